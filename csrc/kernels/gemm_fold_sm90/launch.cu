#include "launch.h"

#include "../copy_rows.cuh"
#include "../dispatch.h"
#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "../scalar.h"
#include "kernel.cuh"

namespace convt::gemm_fold_sm90 {
namespace {

template <class Scalar, bool Strict, int Row, bool Last>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  if constexpr (!compiled(configs[Row], Strict, Last)) {
    return cudaErrorInvalidConfiguration;
  } else {
    static Prepared prepared;
    return launch_kernel(prepared, gemm_fold_sm90_kernel<Scalar, Strict, Row, Last>, launch.params,
                         static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream, launch.params.copies_x);
  }
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.x_map, launch.params.x_map) || !make_tensor_map(launch.w_map, launch.params.w_map)) {
    return cudaErrorNotSupported;
  }
  if (launch.params.copies_x) {
    const auto grid = static_cast<unsigned>(copy_blocks(launch.copy));
    if (problem.dtype == DataType::float32) {
      copy_rows_kernel<uint32_t><<<grid, copy_threads, 0, stream>>>(launch.copy);
    } else {
      copy_rows_kernel<uint16_t><<<grid, copy_threads, 0, stream>>>(launch.copy);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      return launch.params.last ? launch_configuration<Scalar, Strict, Row, true>(plan, launch, stream)
                                : launch_configuration<Scalar, Strict, Row, false>(plan, launch, stream);
    });
  });
}

}  // namespace convt::gemm_fold_sm90
