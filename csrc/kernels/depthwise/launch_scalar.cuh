// The launches of one element type; each is instantiated in a translation unit of its own.
#pragma once

#include "kernel.cuh"

namespace convt::depthwise {

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

#if defined(CONVT_DEPTHWISE_INSTANTIATE)

template <class Scalar, int Row = 0>
cudaError_t launch_row(const Plan& plan, bool vectors, const Params& params, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (plan.configuration != Row) return launch_row<Scalar, Row + 1>(plan, vectors, params, stream);
    constexpr int columns = tile_of(configs[Row], sizeof(Scalar)).columns;
    const dim3 grid(static_cast<unsigned>(plan.grid));
    if (vectors) {
      depthwise_kernel<Row, Scalar, columns><<<grid, block, 0, stream>>>(params);
    } else {
      depthwise_kernel<Row, Scalar, 1><<<grid, block, 0, stream>>>(params);
    }
    return cudaGetLastError();
  }
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return launch_row<Scalar>(plan, loads_vectors(plan, problem, operands), make_params(plan, problem, operands), stream);
}

#endif

}  // namespace convt::depthwise
