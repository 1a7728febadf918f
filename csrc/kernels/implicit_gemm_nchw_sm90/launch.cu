#include "launch.h"

#include "../implicit_gemm/launch_prepared.cuh"
#include "kernel.cuh"

namespace convt::implicit_gemm_nchw_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  return launch_prepared<config_count>(plan, problem, launch, threads, stream,
                                       [&]<Mode mode, int Row>() { return implicit_gemm_nchw_sm90_kernel<mode, Row>; });
}

}  // namespace convt::implicit_gemm_nchw_sm90
