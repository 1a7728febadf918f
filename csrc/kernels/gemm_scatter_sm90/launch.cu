#include "launch.h"

#include "../copy_rows.cuh"
#include "../dispatch.h"
#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "../scalar.h"
#include "kernel.cuh"

namespace convt::gemm_scatter_sm90 {
namespace {

template <class Scalar, int Row, bool channels_last, bool boxes>
cudaError_t launch_writing(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, gemm_scatter_sm90_kernel<Scalar, Row, channels_last, boxes>, launch.params,
                       static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream, launch.params.copies_x);
}

template <class Scalar, int Row, bool channels_last>
cudaError_t launch_layout(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  if constexpr (has_boxes(configs[Row], channels_last)) {
    if (launch.boxes) return launch_writing<Scalar, Row, channels_last, true>(plan, launch, stream);
  }
  return launch_writing<Scalar, Row, channels_last, false>(plan, launch, stream);
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Launch& launch, cudaStream_t stream) {
  if (launch.params.copies_x) {
    const auto grid = static_cast<unsigned>(copy_blocks(launch.copy));
    copy_rows_kernel<uint16_t><<<grid, copy_threads, 0, stream>>>(launch.copy);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    return is_channels_last(problem) ? launch_layout<Scalar, Row, true>(plan, launch, stream)
                                     : launch_layout<Scalar, Row, false>(plan, launch, stream);
  });
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map) || !make_tensor_map(launch.w_map, launch.params.w_map) ||
      (launch.boxes && !make_tensor_map(launch.y_map, launch.params.y_map))) {
    return cudaErrorNotSupported;
  }
  return problem.dtype == DataType::float16 ? launch_scalar<Float16>(plan, problem, launch, stream)
                                            : launch_scalar<BFloat16>(plan, problem, launch, stream);
}

}  // namespace convt::gemm_scatter_sm90
