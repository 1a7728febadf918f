#include "launch.h"

#include "../encode_tensor_map.h"
#include "launch_mode.cuh"

namespace convt::implicit_gemm_sm90 {

cudaError_t launch(const Plan& plan, const Problem& given, const Operands& operands, cudaStream_t stream) {
  const Problem problem = as_planned(plan, given);
  Launch launch;
  make_launch(plan, problem, operands, launch);
  Params& params = launch.params;
  // Without a map of x, threads bring the patch, if there is a kernel for it.
  if (uses_x_map(params)) params.copy_boxes = make_tensor_map(launch.x_map, params.x_map);
  if (params.im2col && !params.copy_boxes) return cudaErrorNotSupported;
  if (uses_wide_x_map(params)) params.copy_boxes = make_tensor_map(launch.wide_x_map, params.wide_x_map);
  for (int32_t i = 0; i < y_map_count(params); ++i) {
    params.store_boxes = make_tensor_map(launch.y_maps[i], params.y_maps[i]);
  }
  if (params.weights_in_place) {
    // Threads that bring the patch have no time to transpose weights of TF32.
    const bool transposed = mode_of(problem) != Mode::tf32 || params.copy_boxes;
    if (!transposed || !make_tensor_map(make_w_map(problem, operands.w), params.w_map)) return cudaErrorNotSupported;
  }
  return dispatch_mode(problem, [&]<Mode mode>() { return launch_mode<mode>(plan, launch, stream); });
}

}  // namespace convt::implicit_gemm_sm90
