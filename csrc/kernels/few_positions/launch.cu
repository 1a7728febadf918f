#include "launch.h"

#include "launch_scalar.cuh"

namespace convt::few_positions {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  switch (problem.dtype) {
    case DataType::float32:
      return launch_scalar<float>(plan, problem, operands, stream);
    case DataType::float16:
      return launch_scalar<Float16>(plan, problem, operands, stream);
    case DataType::bfloat16:
      return launch_scalar<BFloat16>(plan, problem, operands, stream);
    default:
      return cudaErrorInvalidConfiguration;
  }
}

}  // namespace convt::few_positions
