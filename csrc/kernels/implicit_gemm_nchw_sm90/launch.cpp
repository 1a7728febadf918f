#include "launch.h"

#include "../encode_tensor_map.h"
#include "launch_mode.cuh"

namespace convt::implicit_gemm_nchw_sm90 {

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
