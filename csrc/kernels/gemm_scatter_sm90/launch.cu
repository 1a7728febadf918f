#include "launch.h"

#include "../encode_tensor_map.h"
#include "launch_scalar.cuh"

namespace convt::gemm_scatter_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  Params& params = launch.params;
  for (int32_t r = 0; r < params.residues; ++r) {
    if (!make_tensor_map(launch.x_maps[r], params.x_maps[r])) return cudaErrorNotSupported;
  }
  if (!make_tensor_map(launch.w_map, params.w_map)) return cudaErrorNotSupported;
  return problem.dtype == DataType::float16 ? launch_scalar<Float16>(plan, problem, params, stream)
                                            : launch_scalar<BFloat16>(plan, problem, params, stream);
}

}  // namespace convt::gemm_scatter_sm90
