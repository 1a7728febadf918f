// The launch that packs the weights of the implicit-GEMM families.
#pragma once

#include <cuda_runtime_api.h>

#include "device.cuh"

namespace convt::implicit_gemm {

// Packs the weights, and writes zeros to the counters.
template <Mode mode, class Layout>
cudaError_t launch_pack(PackParams params, cudaStream_t stream) {
  choose_pack_tile<mode, Layout>(params);
  pack_kernel<mode, Layout><<<static_cast<unsigned>(params.tile.blocks), pack_threads,
                              static_cast<size_t>(params.tile.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace convt::implicit_gemm
