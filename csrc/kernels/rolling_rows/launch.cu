#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::rolling_rows {
namespace {

template <class Scalar, bool Strict, int Row, bool Last>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = rolling_rows_kernel<Scalar, Strict, Row, Last>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
           static_cast<size_t>(params.t.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    const Params params = make_params(plan, problem, operands);
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      return channels_last(problem) ? launch_configuration<Scalar, Strict, Row, true>(plan, params, stream)
                                    : launch_configuration<Scalar, Strict, Row, false>(plan, params, stream);
    });
  });
}

}  // namespace convt::rolling_rows
