#include "launch.h"

#include "launch_mode.cuh"

namespace convt::implicit_gemm_sm80 {

cudaError_t launch(const Plan& plan, const Problem& given, const Operands& operands, cudaStream_t stream) {
  const Problem problem = as_planned(plan, given);
  Launch launch;
  make_launch(plan, problem, operands, launch);
  switch (mode_of(problem)) {
    case Mode::tf32:
      return launch_mode<Mode::tf32>(plan, launch, stream);
    case Mode::ieee:
      return launch_mode<Mode::ieee>(plan, launch, stream);
    case Mode::float16:
      return launch_mode<Mode::float16>(plan, launch, stream);
    case Mode::bfloat16:
      return launch_mode<Mode::bfloat16>(plan, launch, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace convt::implicit_gemm_sm80
