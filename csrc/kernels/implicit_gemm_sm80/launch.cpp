#include "launch.h"

#include "launch_mode.cuh"

namespace convt::implicit_gemm_sm80 {

cudaError_t launch(const Plan& plan, const Problem& given, const Operands& operands, cudaStream_t stream) {
  const Problem problem = as_planned(plan, given);
  Launch launch;
  make_launch(plan, problem, operands, launch);
  return dispatch_mode(problem, [&]<Mode mode>() { return launch_mode<mode>(plan, launch, stream); });
}

}  // namespace convt::implicit_gemm_sm80
