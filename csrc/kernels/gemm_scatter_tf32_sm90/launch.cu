#include "launch.h"

#include "../encode_tensor_map.h"
#include "launch_unit.cuh"
#include "prepare.cuh"

namespace convt::gemm_scatter_tf32_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map)) return cudaErrorNotSupported;
  prepare_kernel<<<static_cast<unsigned>(launch.prepare_grid), prepare_threads, prepare_shared_bytes, stream>>>(
      launch.prepare);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  if (is_channels_last(problem)) return launch_unit<true, 4>(plan, launch, stream);
  switch (unit_of(problem.kernel_w)) {
    case 1:
      return launch_unit<false, 1>(plan, launch, stream);
    case 2:
      return launch_unit<false, 2>(plan, launch, stream);
    case 4:
      return launch_unit<false, 4>(plan, launch, stream);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace convt::gemm_scatter_tf32_sm90
