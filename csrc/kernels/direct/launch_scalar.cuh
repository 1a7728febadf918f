// The launches of one element type; each is instantiated in a translation unit of its own.
#pragma once

#include "../../plan/plan.h"
#include "kernel.cuh"

namespace convt::direct {

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

#if defined(CONVT_DIRECT_INSTANTIATE)

template <int Row, class Scalar, class Index>
void launch_row(const Plan& plan, const Params<Index>& params, cudaStream_t stream) {
  constexpr Config config = configs[Row];
  const dim3 grid(static_cast<unsigned>(plan.grid));
  if constexpr (config.operation == Operation::forward) {
    output_kernel<Scalar, Index, config.block><<<grid, config.block, 0, stream>>>(params);
  } else if constexpr (config.operation == Operation::input_grad) {
    input_kernel<Scalar, Index, config.block><<<grid, config.block, 0, stream>>>(params);
  } else {
    weight_kernel<Scalar, Index, config.block, config.threads_per_result><<<grid, config.block, 0, stream>>>(params);
  }
}

template <class Scalar, class Index, int Row = 0>
cudaError_t launch_indexed(const Plan& plan, const Params<Index>& params, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (plan.configuration != Row) return launch_indexed<Scalar, Index, Row + 1>(plan, params, stream);
    launch_row<Row, Scalar>(plan, params, stream);
    return cudaGetLastError();
  }
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  if (plan.index_bits == 32) return launch_indexed<Scalar>(plan, make_params<int32_t>(problem, operands), stream);
  return launch_indexed<Scalar>(plan, make_params<int64_t>(problem, operands), stream);
}

#endif

}  // namespace convt::direct
