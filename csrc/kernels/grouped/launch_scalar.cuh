// The launches of one element type and precision; each is instantiated in a translation unit of its own.
#pragma once

#include "../prepared.h"
#include "kernel.cuh"

namespace convt::grouped {

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

#if defined(CONVT_GROUPED_INSTANTIATE)

template <class Scalar, bool Strict, int StepWords, bool XPixels, int Row = 0>
cudaError_t launch_row(const Plan& plan, const Params& params, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (plan.configuration != Row) return launch_row<Scalar, Strict, StepWords, XPixels, Row + 1>(plan, params, stream);
    const auto kernel = grouped_kernel<Scalar, Strict, StepWords, configs[Row].tiles,
                                       pixel_tiles(configs[Row], sizeof(Scalar), Strict, XPixels), XPixels>;
    const auto bytes = static_cast<int>(params.t.shared_bytes);
    static Prepared prepared;
    const cudaError_t error = prepared.prepare(kernel);
    if (error != cudaSuccess) return error;
    kernel<<<dim3(static_cast<unsigned>(plan.grid)), block, static_cast<size_t>(bytes), stream>>>(params);
    return cudaGetLastError();
  }
}

template <class Scalar, bool Strict, int StepWords>
cudaError_t launch_steps(const Plan& plan, const Params& params, cudaStream_t stream) {
  return params.t.x_pixels ? launch_row<Scalar, Strict, StepWords, true>(plan, params, stream)
                           : launch_row<Scalar, Strict, StepWords, false>(plan, params, stream);
}

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(plan, problem, operands);
  if constexpr (sizeof(Scalar) == 2) {
    if (params.t.step_words == 4) return launch_steps<Scalar, Strict, 4>(plan, params, stream);
  }
  return launch_steps<Scalar, Strict, Strict ? 4 : 8>(plan, params, stream);
}

#endif

}  // namespace convt::grouped
