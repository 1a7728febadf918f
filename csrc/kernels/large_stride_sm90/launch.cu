#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::large_stride_sm90 {
namespace {

template <class Scalar, bool Vectors, int Row, bool Copies>
cudaError_t launch_kernel(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = large_stride_sm90_kernel<Scalar, Vectors, Row, Copies>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block), static_cast<size_t>(plan.shared_bytes),
           stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, int Row>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  if (params.load_vectors) {
    return params.copies_x ? launch_kernel<Scalar, true, Row, true>(plan, params, stream)
                           : launch_kernel<Scalar, true, Row, false>(plan, params, stream);
  }
  return params.copies_x ? launch_kernel<Scalar, false, Row, true>(plan, params, stream)
                         : launch_kernel<Scalar, false, Row, false>(plan, params, stream);
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
