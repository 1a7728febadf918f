#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::large_stride_sm90 {
namespace {

template <class Scalar, int Row>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel =
      params.load_vectors ? large_stride_sm90_kernel<Scalar, true, Row> : large_stride_sm90_kernel<Scalar, false, Row>;
  static Prepared of_vectors, of_elements;
  const cudaError_t error = (params.load_vectors ? of_vectors : of_elements).prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block), static_cast<size_t>(plan.shared_bytes),
           stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(problem, make_tiling(problem, cut_of(plan)), operands);
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    if constexpr (Strict) {
      return cudaErrorInvalidConfiguration;
    } else {
      return dispatch_row<config_count>(
          plan.configuration, [&]<int Row>() { return launch_configuration<Scalar, Row>(plan, params, stream); });
    }
  });
}

}  // namespace convt::large_stride_sm90
