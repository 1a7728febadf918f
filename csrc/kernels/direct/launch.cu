#include "launch.h"

#include "launch_scalar.cuh"

namespace convt::direct {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  switch (problem.dtype) {
    case DataType::float16:
      return launch_scalar<__half>(plan, problem, operands, stream);
    case DataType::bfloat16:
      return launch_scalar<__nv_bfloat16>(plan, problem, operands, stream);
    case DataType::float32:
      return launch_scalar<float>(plan, problem, operands, stream);
    case DataType::float64:
      return launch_scalar<double>(plan, problem, operands, stream);
    case DataType::complex64:
      return launch_scalar<Complex<float>>(plan, problem, operands, stream);
    case DataType::complex128:
      return launch_scalar<Complex<double>>(plan, problem, operands, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace convt::direct
