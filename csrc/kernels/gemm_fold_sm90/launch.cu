#include "launch.h"

#include "../copy_rows.cuh"
#include "../encode_tensor_map.h"
#include "launch_scalar.cuh"

namespace convt::gemm_fold_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map) || !make_tensor_map(launch.w_map, launch.params.w_map)) {
    return cudaErrorNotSupported;
  }
  const bool float32 = problem.dtype == DataType::float32;
  if (launch.params.copies_x) {
    const auto grid = static_cast<unsigned>(copy_blocks(launch.copy));
    if (float32) {
      copy_rows_kernel<uint32_t><<<grid, copy_threads, 0, stream>>>(launch.copy);
    } else {
      copy_rows_kernel<uint16_t><<<grid, copy_threads, 0, stream>>>(launch.copy);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  if (float32) return launch_scalar<float>(plan, launch, stream);
  return problem.dtype == DataType::float16 ? launch_scalar<Float16>(plan, launch, stream)
                                            : launch_scalar<BFloat16>(plan, launch, stream);
}

}  // namespace convt::gemm_fold_sm90
