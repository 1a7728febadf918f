// The launches of one mode; each mode is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

namespace convt::implicit_gemm_nhwc_sm90 {

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream);

}  // namespace convt::implicit_gemm_nhwc_sm90

#if defined(CONVT_IMPLICIT_GEMM_NHWC_SM90_INSTANTIATE)

#include "../dispatch.h"
#include "../early_launch.h"
#include "../implicit_gemm/prepare.cuh"
#include "kernel.cuh"

namespace convt::implicit_gemm_nhwc_sm90 {

template <Mode mode, int Row>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, implicit_gemm_nhwc_sm90_kernel<mode, Row>, launch.params,
                       static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream);
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  prepare_kernel<typename Traits<mode>::Scalar>
      <<<static_cast<unsigned>(launch.prepare_grid), prepare_threads, 0, stream>>>(launch.prepare);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(plan, launch, stream); });
}

}  // namespace convt::implicit_gemm_nhwc_sm90

#endif
