#include "launch.h"

#include "../dispatch.h"
#include "../early_launch.h"
#include "../implicit_gemm/launch.cuh"
#include "kernel.cuh"

namespace convt::implicit_gemm_sm80 {
namespace {

template <Mode mode, int Row>
cudaError_t launch_configuration(const Launch& launch, cudaStream_t stream) {
  if constexpr (!fits_registers(configs[Row], mode)) {
    return cudaErrorInvalidConfiguration;
  } else {
    static Prepared prepared;
    return launch_kernel(prepared, implicit_gemm_kernel<mode, Row>, launch.params, launch.grid, configs[Row].threads(),
                         launch.shared_bytes, stream);
  }
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  const cudaError_t error = launch_pack<mode, Fragments<mode>>(launch.pack, stream);
  if (error != cudaSuccess) return error;
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(launch, stream); });
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& given, const Operands& operands, cudaStream_t stream) {
  const Problem problem = as_planned(plan, given);
  Launch launch;
  make_launch(plan, problem, operands, launch);
  return dispatch_mode(problem, [&]<Mode mode>() { return launch_mode<mode>(plan, launch, stream); });
}

}  // namespace convt::implicit_gemm_sm80
