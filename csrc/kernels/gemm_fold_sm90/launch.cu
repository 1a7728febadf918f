#include "launch.h"

#include "../encode_tensor_map.h"
#include "copy.cuh"
#include "launch_scalar.cuh"

namespace convt::gemm_fold_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map) || !make_tensor_map(launch.w_map, launch.params.w_map)) {
    return cudaErrorNotSupported;
  }
  if (launch.params.copies_x) {
    copy_kernel<<<static_cast<unsigned>(launch.copy_grid), copy_threads, 0, stream>>>(launch.copy);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return problem.dtype == DataType::float16 ? launch_scalar<Float16>(plan, launch, stream)
                                            : launch_scalar<BFloat16>(plan, launch, stream);
}

}  // namespace convt::gemm_fold_sm90
