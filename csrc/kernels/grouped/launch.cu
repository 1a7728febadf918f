#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::grouped {
namespace {

template <class Scalar, bool Strict, int StepWords, bool XPixels, int Row>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = grouped_kernel<Scalar, Strict, StepWords, configs[Row].tiles,
                                     pixel_tiles(configs[Row], sizeof(Scalar), Strict, XPixels), XPixels>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), block, static_cast<size_t>(params.t.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, bool Strict, int StepWords>
cudaError_t launch_steps(const Plan& plan, const Params& params, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    if constexpr (takes_x(configs[Row], true)) {
      if (params.t.x_pixels) return launch_configuration<Scalar, Strict, StepWords, true, Row>(plan, params, stream);
    }
    return launch_configuration<Scalar, Strict, StepWords, false, Row>(plan, params, stream);
  });
}

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(plan, problem, operands);
  if constexpr (sizeof(Scalar) == 2) {
    if (params.t.step_words == 4) return launch_steps<Scalar, Strict, 4>(plan, params, stream);
  }
  return launch_steps<Scalar, Strict, Strict ? 4 : 8>(plan, params, stream);
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return launch_scalar<Scalar, Strict>(plan, problem, operands, stream);
  });
}

}  // namespace convt::grouped
