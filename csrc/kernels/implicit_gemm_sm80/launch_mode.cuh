// The launches of one mode, which are instantiated in translation units of 32 and of 16 bits.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

#if defined(CONVT_IMPLICIT_GEMM_SM80_INSTANTIATE)
#include "../dispatch.h"
#include "../implicit_gemm/launch.cuh"
#include "kernel.cuh"
#endif

namespace convt::implicit_gemm_sm80 {

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream);

#if defined(CONVT_IMPLICIT_GEMM_SM80_INSTANTIATE)

template <Mode mode, int Row>
cudaError_t launch_configuration(const Launch& launch, cudaStream_t stream) {
  if constexpr (!fits_registers(configs[Row], mode)) {
    return cudaErrorInvalidConfiguration;
  } else {
    static Prepared prepared;
    return launch_kernel(prepared, implicit_gemm_kernel<mode, Row>, launch.params, launch.grid, configs[Row].threads(),
                         launch.shared_bytes, stream);
  }
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  const cudaError_t error = launch_pack<mode, Fragments<mode>>(launch.pack, stream);
  if (error != cudaSuccess) return error;
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(launch, stream); });
}

#endif

}  // namespace convt::implicit_gemm_sm80
