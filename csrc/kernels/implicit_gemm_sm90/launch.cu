#include "launch.h"

#include <cuda.h>

#include "launch_mode.cuh"

namespace convt::implicit_gemm_sm90 {

namespace {

// The driver's function, asked for by name: the extension does not link with the driver.
auto encode_function() {
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
bool make_tensor_map(const TensorMapLayout& layout, TensorMap& map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
  const auto encode = encode_function();
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
                                     : layout.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
  return encode(reinterpret_cast<CUtensorMap*>(&map), type, tensor_map_rank, const_cast<void*>(layout.base), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& given, const Operands& operands, cudaStream_t stream) {
  const Problem problem = as_planned(plan, given);
  Launch launch;
  make_launch(plan, problem, operands, launch);
  Params& params = launch.params;
  // Without a map of x, threads bring the patch.
  if (uses_x_map(params)) params.copy_boxes = make_tensor_map(launch.x_map, params.x_map);
  if (uses_wide_x_map(params)) params.copy_boxes = make_tensor_map(launch.wide_x_map, params.wide_x_map);
  for (int64_t phase = 0; params.store_boxes && phase < problem.stride_w; ++phase) {
    params.store_boxes = make_tensor_map(launch.y_maps[phase], params.y_maps[phase]);
  }
  if (params.weights_in_place) {
    // Threads that bring the patch have no time to transpose weights of TF32.
    const bool transposed = mode_of(problem) != Mode::tf32 || params.copy_boxes;
    if (!transposed || !make_tensor_map(make_w_map(problem, operands.w), params.w_map)) return cudaErrorNotSupported;
  }
  switch (mode_of(problem)) {
    case Mode::tf32:
      return launch_mode<Mode::tf32>(plan, launch, stream);
    case Mode::float16:
      return launch_mode<Mode::float16>(plan, launch, stream);
    case Mode::bfloat16:
      return launch_mode<Mode::bfloat16>(plan, launch, stream);
    case Mode::ieee:
      return launch_mode<Mode::ieee>(plan, launch, stream);
  }
  return cudaErrorInvalidValue;
}

namespace {

__global__ void which_code() {}

}  // namespace

bool compiled_for_device() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, which_code) == cudaSuccess && attributes.ptxVersion == 90;
}

}  // namespace convt::implicit_gemm_sm90
