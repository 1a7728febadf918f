// The launches for one layout and width of a kernel; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

namespace convt::gemm_scatter_tf32_sm90 {

// Of `Unit` neighbouring outputs of a position.
template <bool channels_last, int Unit>
cudaError_t launch_unit(const Plan& plan, const Launch& launch, cudaStream_t stream);

}  // namespace convt::gemm_scatter_tf32_sm90

#if defined(CONVT_GEMM_SCATTER_TF32_SM90_INSTANTIATE)

#include "../dispatch.h"
#include "../early_launch.h"
#include "kernel.cuh"

namespace convt::gemm_scatter_tf32_sm90 {

template <bool channels_last, int Unit, int Neighbours, int Row>
cudaError_t launch_configuration(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, gemm_scatter_tf32_sm90_kernel<channels_last, Unit, Neighbours, Row>, launch.params,
                       static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream);
}

template <bool channels_last, int Unit>
cudaError_t launch_unit(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    return launch.neighbours == 4 / Unit
               ? launch_configuration<channels_last, Unit, 4 / Unit, Row>(plan, launch, stream)
               : launch_configuration<channels_last, Unit, 1, Row>(plan, launch, stream);
  });
}

}  // namespace convt::gemm_scatter_tf32_sm90

#endif
