#include "launch.h"

#include "launch_scalar.cuh"

namespace convt::depthwise {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  switch (problem.dtype) {
    case DataType::float16:
      return launch_scalar<Float16>(plan, problem, operands, stream);
    case DataType::bfloat16:
      return launch_scalar<BFloat16>(plan, problem, operands, stream);
    case DataType::float32:
      return launch_scalar<float>(plan, problem, operands, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace convt::depthwise
