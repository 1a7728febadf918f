#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::few_channels {
namespace {

template <class Scalar, int Row, bool Pixels>
cudaError_t launch_kernel(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = few_channels_kernel<Scalar, Row, Pixels>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), threads, static_cast<size_t>(plan.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(plan, problem, operands);
  // Strict or not, products are float32's.
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      return has_pixels(problem) ? launch_kernel<Scalar, Row, true>(plan, params, stream)
                                 : launch_kernel<Scalar, Row, false>(plan, params, stream);
    });
  });
}

}  // namespace convt::few_channels
