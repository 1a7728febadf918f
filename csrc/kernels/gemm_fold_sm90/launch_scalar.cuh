// The launches of one element type; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "../scalar.h"
#include "params.h"

namespace convt::gemm_fold_sm90 {

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Launch& launch, cudaStream_t stream);

}  // namespace convt::gemm_fold_sm90

#if defined(CONVT_GEMM_FOLD_SM90_INSTANTIATE)

#include "../dispatch.h"
#include "../early_launch.h"
#include "kernel.cuh"

namespace convt::gemm_fold_sm90 {

template <class Scalar, int Row>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, gemm_fold_sm90_kernel<Scalar, Row>, launch.params, static_cast<uint32_t>(plan.grid),
                       threads, plan.shared_bytes, stream, launch.params.copies_x);
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<Scalar, Row>(plan, launch, stream); });
}

}  // namespace convt::gemm_fold_sm90

#endif
