// Tensor maps, made by the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tensor_map.h"

namespace convt {

// The driver's function, asked for by name: the extension does not link with the driver.
inline auto tensor_map_encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const bool there = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                        &result) == cudaSuccess &&
                       result == cudaDriverEntryPointSuccess;
    return there ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found) : nullptr;
  }();
  return function;
}

// False if the driver does not take it.
inline bool make_tensor_map(const TensorMapLayout& layout, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
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
  return encode(reinterpret_cast<CUtensorMap*>(&map), type, tensor_map_rank, const_cast<void*>(layout.base), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace convt
