#include "launch.h"

#include "../dispatch.h"
#include "launch_scalar.cuh"

namespace convt::grouped {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return launch_scalar<Scalar, Strict>(plan, problem, operands, stream);
  });
}

}  // namespace convt::grouped
