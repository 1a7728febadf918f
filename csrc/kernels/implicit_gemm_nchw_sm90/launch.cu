#include "launch.h"

#include "../encode_tensor_map.h"
#include "launch_mode.cuh"

namespace convt::implicit_gemm_nchw_sm90 {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map)) return cudaErrorNotSupported;
  switch (mode_of(problem)) {
    case Mode::tf32:
      return launch_mode<Mode::tf32>(plan, launch, stream);
    case Mode::float16:
      return launch_mode<Mode::float16>(plan, launch, stream);
    case Mode::bfloat16:
      return launch_mode<Mode::bfloat16>(plan, launch, stream);
    case Mode::ieee:
      break;
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace convt::implicit_gemm_nchw_sm90
