#include "launch.h"

#include "../dispatch.h"
#include "../encode_tensor_map.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::rolling_rows {
namespace {

template <class Scalar, bool Strict, int Row, Source From>
cudaError_t launch_configuration(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = rolling_rows_kernel<Scalar, Strict, Row, From>;
  static Prepared prepared;
  bool sm_90;
  const cudaError_t error = prepared.prepare(kernel, &sm_90);
  if (error != cudaSuccess) return error;
  if (From == Source::boxes && !sm_90) {
    return launch_configuration<Scalar, Strict, Row, Source::rows>(plan, params, stream);
  }
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
           static_cast<size_t>(params.t.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    Params params = make_params(plan, problem, operands);
    const TensorMapLayout x_map = make_x_map(configs[plan.configuration], problem, params.t, operands.x);
    params.box_pitch = x_map.inner_bytes();
    const bool boxes =
        params.t.boxes && !channels_last(problem) && x_map.valid() && make_tensor_map(x_map, params.x_map);
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      return channels_last(problem) ? launch_configuration<Scalar, Strict, Row, Source::pixels>(plan, params, stream)
             : boxes                ? launch_configuration<Scalar, Strict, Row, Source::boxes>(plan, params, stream)
                                    : launch_configuration<Scalar, Strict, Row, Source::rows>(plan, params, stream);
    });
  });
}

}  // namespace convt::rolling_rows
