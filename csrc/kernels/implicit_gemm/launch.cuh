// The launch that packs the weights of the implicit-GEMM families; the kernel begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

#include "../early_launch.h"
#include "device.cuh"

namespace convt::implicit_gemm {

// Packs the weights, and writes zeros to the counters. If `early`, it ends after the kernel before it all the same.
template <Mode mode, class Layout>
cudaError_t launch_pack(PackParams params, cudaStream_t stream, bool early = false) {
  choose_pack_tile<Layout>(params);
  return launch_early(early, pack_kernel<mode, Layout>, params, params.tile.blocks, pack_threads,
                      params.tile.shared_bytes, stream);
}

}  // namespace convt::implicit_gemm
