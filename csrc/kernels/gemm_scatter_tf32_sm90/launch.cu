#include "launch.h"

#include "../dispatch.h"
#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "kernel.cuh"
#include "prepare.cuh"

namespace convt::gemm_scatter_tf32_sm90 {
namespace {

template <bool channels_last, int Unit, int Neighbours, int Row>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, gemm_scatter_tf32_sm90_kernel<channels_last, Unit, Neighbours, Row>, launch.params,
                       static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream);
}

template <bool channels_last, int Unit>
cudaError_t launch_unit(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    return launch.neighbours == 4 / Unit
               ? launch_configuration<channels_last, Unit, 4 / Unit, Row>(plan, launch, stream)
               : launch_configuration<channels_last, Unit, 1, Row>(plan, launch, stream);
  });
}

}  // namespace

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
