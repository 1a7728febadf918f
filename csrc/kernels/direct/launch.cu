#include "launch.h"

#include "../dispatch.h"
#include "kernel.cuh"

namespace convt::direct {
namespace {

template <class Scalar, class Index, int Row>
cudaError_t launch_configuration(const Plan& plan, const Params<Index>& params, cudaStream_t stream) {
  constexpr Config config = configs[Row];
  const dim3 grid(static_cast<unsigned>(plan.grid));
  if constexpr (config.operation == Operation::forward) {
    output_kernel<Scalar, Index, config.block><<<grid, config.block, 0, stream>>>(params);
  } else if constexpr (config.operation == Operation::input_grad) {
    input_kernel<Scalar, Index, config.block><<<grid, config.block, 0, stream>>>(params);
  } else {
    weight_kernel<Scalar, Index, config.block, config.threads_per_result><<<grid, config.block, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

template <class Scalar, class Index>
cudaError_t launch_indexed(const Plan& plan, const Params<Index>& params, cudaStream_t stream) {
  return dispatch_row<config_count>(
      plan.configuration, [&]<int Row>() { return launch_configuration<Scalar, Index, Row>(plan, params, stream); });
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  if (plan.index_bits == 32) return launch_indexed<Scalar>(plan, make_params<int32_t>(problem, operands), stream);
  return launch_indexed<Scalar>(plan, make_params<int64_t>(problem, operands), stream);
}

}  // namespace

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
