#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::warp_rows {
namespace {

template <class Scalar, bool Strict, int Stride, int Row, bool Aligned, bool Last = false>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = warp_rows_kernel<Scalar, Strict, Stride, configs[Row].rows, configs[Row].columns, Aligned, Last>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), block, static_cast<size_t>(params.t.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    const Params params = make_params(plan, problem, operands);
    return dispatch_row<most_stride>(params.w_axis.stride - 1, [&]<int Before>() {
      return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
        if (params.last) return launch_configuration<Scalar, Strict, Before + 1, Row, true, true>(plan, params, stream);
        if constexpr (sizeof(Scalar) == 2) {
          if (!params.aligned)
            return launch_configuration<Scalar, Strict, Before + 1, Row, false>(plan, params, stream);
        }
        return launch_configuration<Scalar, Strict, Before + 1, Row, true>(plan, params, stream);
      });
    });
  });
}

}  // namespace convt::warp_rows
