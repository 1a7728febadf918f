// The launches of one mode; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

#if defined(CONVT_IMPLICIT_GEMM_SM90_INSTANTIATE)
#include "../dispatch.h"
#include "../early_launch.h"
#include "prepare.cuh"
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
  PrepareParams params = launch.prepare;
  if (packs(launch)) {
    choose_pack_tile<mode, Fragments<mode>>(params.pack);
    params.packing = static_cast<uint32_t>(params.pack.tile.blocks);
  }
  uint32_t bringing = launch.params.channels_last ? launch.channels_last_grid : 0;
  const auto prepare = [&](uint32_t blocks, int64_t shared_bytes) {
    return launch_early(params.follows, prepare_kernel<mode>, params, blocks, pack_threads, shared_bytes, stream);
  };
  if (params.packing > 0) {
    const bool together = bringing >= bringing_of_packing * params.packing;
    const int64_t shared_bytes =
        std::max<int64_t>(params.pack.tile.shared_bytes, together ? channels_last_shared_bytes : 0);
    const cudaError_t error = prepare(params.packing + (together ? bringing : 0), shared_bytes);
    if (error != cudaSuccess) return error;
    if (together) bringing = 0;
  }
  if (bringing > 0) {
    params.follows = params.packing > 0, params.packing = 0;
    const cudaError_t error = prepare(bringing, channels_last_shared_bytes);
    if (error != cudaSuccess) return error;
  }
  return dispatch_row<config_count>(plan.configuration,
                                    [&]<int Row>() { return launch_configuration<mode, Row>(launch, stream); });
}

#endif

}  // namespace convt::implicit_gemm_sm90
