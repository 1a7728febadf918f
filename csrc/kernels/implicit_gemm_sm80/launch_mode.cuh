// The launches of one mode, which are instantiated in translation units of 32 and of 16 bits.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

#if defined(CONVT_IMPLICIT_GEMM_SM80_INSTANTIATE)
#include "../dispatch.h"
#include "../early_launch.h"
#include "kernel.cuh"
#endif

namespace convt::implicit_gemm_sm80 {

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, Launch& launch, cudaStream_t stream);

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
cudaError_t launch_mode(const Plan& plan, Launch& launch, cudaStream_t stream) {
  choose_pack_tile<Fragments<mode>>(launch.pack);
  const cudaError_t error = launch_early(false, pack_kernel<mode>, launch.pack, launch.pack.tile.blocks, pack_threads,
                                         launch.pack.tile.shared_bytes, stream);
  if (error != cudaSuccess) return error;
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(launch, stream); });
}

#endif

}  // namespace convt::implicit_gemm_sm80
