// The launches of one element type; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "../scalar.h"
#include "params.h"

namespace convt::gemm_scatter_sm90 {

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Params& params, cudaStream_t stream);

}  // namespace convt::gemm_scatter_sm90

#if defined(CONVT_GEMM_SCATTER_SM90_INSTANTIATE)

#include "../prepared.h"
#include "kernel.cuh"

namespace convt::gemm_scatter_sm90 {

template <class Scalar, int Row, bool channels_last>
cudaError_t launch_kernel(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = gemm_scatter_sm90_kernel<Scalar, Row, channels_last>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), threads, static_cast<size_t>(plan.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, int Row = 0>
cudaError_t launch_row(const Plan& plan, bool channels_last, const Params& params, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (plan.configuration != Row) return launch_row<Scalar, Row + 1>(plan, channels_last, params, stream);
    return channels_last ? launch_kernel<Scalar, Row, true>(plan, params, stream)
                         : launch_kernel<Scalar, Row, false>(plan, params, stream);
  }
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Params& params, cudaStream_t stream) {
  return launch_row<Scalar>(plan, is_channels_last(problem), params, stream);
}

}  // namespace convt::gemm_scatter_sm90

#endif
