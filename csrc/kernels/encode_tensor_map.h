// Tensor maps, made by the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tensor_map.h"

namespace convt {

// A function of the driver, asked for by name: the extension does not link with the driver.
template <class Function>
Function* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const bool there = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) == cudaSuccess &&
                     result == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<Function*>(found) : nullptr;
}

// False if the driver does not take it.
inline bool make_tensor_map(const TensorMapLayout& layout, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
  static auto* const encode_boxes = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  static auto* const encode_im2col = driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  cuuint64_t sizes[tensor_map_rank], strides[tensor_map_rank - 1];
  cuuint32_t box[tensor_map_rank], steps[tensor_map_rank];
  for (int d = 0; d < tensor_map_rank; ++d) {
    sizes[d] = static_cast<cuuint64_t>(layout.sizes[d]);
    box[d] = static_cast<cuuint32_t>(layout.box[d]), steps[d] = 1;
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(layout.strides[d - 1]);
  }
  // Other elements are not interpreted, and what is outside is zero bits.
  const CUtensorMapDataType type = layout.rounds_to_tf32       ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                   : layout.element_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                               : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  const CUtensorMapSwizzle swizzle = layout.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : layout.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : layout.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
  auto* const to = reinterpret_cast<CUtensorMap*>(&map);
  void* const base = const_cast<void*>(layout.base);
  if (layout.im2col) {
    const int lower[2] = {layout.lower[0], layout.lower[1]}, upper[2] = {layout.upper[0], layout.upper[1]};
    return encode_im2col != nullptr &&
           encode_im2col(to, type, tensor_map_rank - 1, base, sizes, strides, lower, upper, box[0], box[1], steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }
  return encode_boxes != nullptr &&
         encode_boxes(to, type, tensor_map_rank, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace convt
