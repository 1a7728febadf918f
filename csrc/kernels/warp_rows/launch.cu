#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::warp_rows {
namespace {

template <class Scalar, bool Strict, int Stride, int Row, bool Aligned, Writes writes>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  constexpr Config config = configs[Row];
  const auto kernel =
      warp_rows_kernel<Scalar, Strict, Stride, config.rows, config.columns, config.steps, Aligned, writes>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
           static_cast<size_t>(params.t.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, bool Strict, int Stride, int Row>
cudaError_t launch_layout(const Plan& plan, const Params& params, cudaStream_t stream) {
  constexpr Writes writes = configs[Row].writes;
  if constexpr (writes == Writes::pieces) {
    if (params.last) {
      return launch_configuration<Scalar, Strict, Stride, Row, true, Writes::pixels>(plan, params, stream);
    }
  }
  if constexpr (sizeof(Scalar) == 2) {
    if (!params.aligned) return launch_configuration<Scalar, Strict, Stride, Row, false, writes>(plan, params, stream);
  }
  return launch_configuration<Scalar, Strict, Stride, Row, true, writes>(plan, params, stream);
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    const Params params = make_params(plan, problem, operands);
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      constexpr int32_t least = configs[Row].least_stride;
      return dispatch_row<configs[Row].most_stride - least + 1>(params.w_axis.stride - least, [&]<int More>() {
        return launch_layout<Scalar, Strict, configs[Row].least_stride + More, Row>(plan, params, stream);
      });
    });
  });
}

}  // namespace convt::warp_rows
