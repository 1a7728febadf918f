// The launches of the implicit-GEMM families: the weights' packing, then the kernel, which begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "../prepared.h"
#include "device.cuh"

namespace convt::implicit_gemm {

// `early`: it may begin before the kernel before it is done (sm_90).
template <class Kernel, class Params>
cudaError_t launch_early(bool early, Kernel kernel, const Params& params, int64_t grid, int64_t threads,
                         int64_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(grid));
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  how.stream = stream;
  how.attrs = &attribute;
  how.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&how, kernel, params);
}

// From sm_90 on, the kernel begins before the kernel before it is done if that is one of its own call (`follows_own`),
// and waits where it needs it.
template <class Kernel, class Params>
cudaError_t launch_kernel(Prepared& prepared, Kernel kernel, const Params& params, uint32_t grid, int32_t threads,
                          int64_t shared_bytes, cudaStream_t stream, bool follows_own = true) {
  bool overlap = false;
  const cudaError_t error = prepared.prepare(kernel, &overlap);
  if (error != cudaSuccess) return error;
  return launch_early(overlap && follows_own, kernel, params, grid, threads, shared_bytes, stream);
}

// And zeros to the counters. If `early`, it ends after the kernel before it all the same.
template <Mode mode, class Layout>
cudaError_t launch_pack(const PackParams& params, cudaStream_t stream, bool early = false) {
  if (takes_pack_tiles<Layout>(params)) {
    // Each tap of a block's is packed by as many warps, all at once: what they read takes its time.
    const int64_t taps = params.by_taps.divisor;
    return launch_early(early, pack_tiles_kernel<mode, Layout>, params, params.warps / Layout::warps / taps,
                        std::clamp<int64_t>(32 * Layout::warps * taps, 64, 1024), pack_tile<Layout>(params).bytes,
                        stream);
  }
  constexpr int block = 256;
  const int64_t work = std::max<int64_t>(32 * params.warps, params.counter_count);
  const int64_t blocks = std::clamp<int64_t>(ceil_div<int64_t>(work, block), 1, 8192);
  return launch_early(early, pack_kernel<mode, Layout>, params, blocks, block, 0, stream);
}

}  // namespace convt::implicit_gemm
