// The launches of one mode; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

#if defined(CONVT_IMPLICIT_GEMM_SM90_INSTANTIATE)
#include "../dispatch.h"
#include "../early_launch.h"
#include "../implicit_gemm/launch.cuh"
#include "channels_last.cuh"
#include "kernel.cuh"
#endif

namespace convt::implicit_gemm_sm90 {

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream);

#if defined(CONVT_IMPLICIT_GEMM_SM90_INSTANTIATE)

template <Mode mode, int Row, Variant variant>
cudaError_t launch_variant(const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, implicit_gemm_sm90_kernel<mode, Row, variant>, launch.params, launch.grid, threads,
                       launch.shared_bytes, stream, packs(launch) || launch.params.channels_last);
}

template <Mode mode, int Row>
cudaError_t launch_configuration(const Launch& launch, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  if (const auto variant = variant_of(launch, configs[Row], mode)) {
    with_variant<mode, Row>(*variant, [&](auto v) { error = launch_variant<mode, Row, v>(launch, stream); });
  }
  return error;
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  // A few blocks pack, so that what brings x begins at once, too; it ends behind them.
  if (packs(launch)) {
    const cudaError_t error = launch_pack<mode, Fragments<mode>>(launch.pack, stream);
    if (error != cudaSuccess) return error;
  }
  if (launch.params.channels_last) {
    const cudaError_t error =
        launch_early(packs(launch), channels_last_kernel<mode>, launch.channels_last, launch.channels_last_grid,
                     channels_last_threads, channels_last_shared_bytes, stream);
    if (error != cudaSuccess) return error;
  }
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(launch, stream); });
}

#endif

}  // namespace convt::implicit_gemm_sm90
