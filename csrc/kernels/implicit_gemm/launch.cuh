// The launches of the implicit-GEMM families: the weights' packing, then the kernel, which begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "../prepared.h"
#include "device.cuh"

namespace convt::implicit_gemm {

template <class Kernel, class Params>
cudaError_t launch_kernel(Prepared& prepared, Kernel kernel, const Params& params, uint32_t grid, int32_t threads,
                          int64_t shared_bytes, cudaStream_t stream) {
  bool overlap = false;
  const cudaError_t error = prepared.prepare(kernel, &overlap);
  if (error != cudaSuccess) return error;
  // From sm_90 on, the kernel begins before the weights are packed, and waits for them where it reads them.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(grid);
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  how.stream = stream;
  how.attrs = &early;
  how.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&how, kernel, params);
}

template <Mode mode, class Layout>
cudaError_t launch_pack(const PackParams& params, cudaStream_t stream) {
  if (takes_pack_tiles<Layout>(params)) {
    // Each tap of a block's is packed by as many warps.
    const int64_t taps = params.by_taps.divisor, tiles = params.warps / Layout::warps / taps;
    const auto threads = static_cast<unsigned>(std::clamp<int64_t>(32 * Layout::warps * taps, 64, 256));
    pack_tiles_kernel<mode, Layout>
        <<<static_cast<unsigned>(tiles), threads, pack_tile<Layout>(params).bytes, stream>>>(params);
    return cudaGetLastError();
  }
  constexpr int block = 256;
  const int64_t work = std::max<int64_t>(32 * params.warps, params.counter_count);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(ceil_div<int64_t>(work, block), 1, 8192));
  pack_kernel<mode, Layout><<<blocks, block, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace convt::implicit_gemm
