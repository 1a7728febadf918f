#include "launch.h"

#include "../dispatch.h"
#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "../implicit_gemm/prepare.cuh"
#include "kernel.cuh"

namespace convt::implicit_gemm_nchw_sm90 {
namespace {

template <Mode mode, int Row>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, implicit_gemm_nchw_sm90_kernel<mode, Row>, launch.params,
                       static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream);
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  prepare_kernel<typename Traits<mode>::Scalar>
      <<<static_cast<unsigned>(launch.prepare_grid), prepare_threads, 0, stream>>>(launch.prepare);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(plan, launch, stream); });
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map)) return cudaErrorNotSupported;
  return dispatch_mode(problem, [&]<Mode mode>() -> cudaError_t {
    if constexpr (mode == Mode::ieee) {
      return cudaErrorInvalidConfiguration;
    } else {
      return launch_mode<mode>(plan, launch, stream);
    }
  });
}

}  // namespace convt::implicit_gemm_nchw_sm90
