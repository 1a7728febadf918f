// The launches of one element type; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

namespace convt::large_stride {

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::large_stride

#if defined(CONVT_LARGE_STRIDE_INSTANTIATE)

#include "../prepared.h"
#include "kernel.cuh"

namespace convt::large_stride {

template <class Scalar, bool Strict, int Row = 0>
cudaError_t launch_row(const Plan& plan, const Params& params, int64_t shared_bytes, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else if constexpr (!compiled(configs[Row], Strict)) {
    return launch_row<Scalar, Strict, Row + 1>(plan, params, shared_bytes, stream);
  } else {
    if (plan.configuration != Row) return launch_row<Scalar, Strict, Row + 1>(plan, params, shared_bytes, stream);
    const auto kernel = large_stride_kernel<Scalar, Strict, configs[Row].steps>;
    const auto bytes = static_cast<int>(shared_bytes);
    static Prepared prepared;
    const cudaError_t error = prepared.prepare(kernel);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(plan.grid), block, bytes, stream>>>(params);
    return cudaGetLastError();
  }
}

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Tiling tiling = choose_tiling(problem);
  return launch_row<Scalar, Strict>(plan, make_params(problem, tiling, operands), tiling.shared_bytes(), stream);
}

}  // namespace convt::large_stride

#endif
