#include "launch.h"

#include "launch_scalar.cuh"

namespace convt::grouped {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  switch (problem.dtype) {
    case DataType::float16:
      return launch_scalar<Float16, false>(plan, problem, operands, stream);
    case DataType::bfloat16:
      return launch_scalar<BFloat16, false>(plan, problem, operands, stream);
    case DataType::float32:
      return problem.precision == Precision::tf32 ? launch_scalar<float, false>(plan, problem, operands, stream)
                                                  : launch_scalar<float, true>(plan, problem, operands, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace convt::grouped
