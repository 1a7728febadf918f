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

// `early`: it may begin before the kernel before it is done, and ends after it (sm_90).
template <Mode mode, class Layout>
cudaError_t launch_pack(const PackParams& params, cudaStream_t stream, bool early = false) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.stream = stream;
  how.attrs = &attribute;
  how.numAttrs = early ? 1 : 0;
  if (takes_pack_tiles<Layout>(params)) {
    // Each tap of a block's is packed by as many warps.
    const int64_t taps = params.by_taps.divisor;
    how.gridDim = dim3(static_cast<unsigned>(params.warps / Layout::warps / taps));
    how.blockDim = dim3(static_cast<unsigned>(std::clamp<int64_t>(32 * Layout::warps * taps, 64, 256)));
    how.dynamicSmemBytes = static_cast<size_t>(pack_tile<Layout>(params).bytes);
    return cudaLaunchKernelEx(&how, pack_tiles_kernel<mode, Layout>, params);
  }
  constexpr int block = 256;
  const int64_t work = std::max<int64_t>(32 * params.warps, params.counter_count);
  how.gridDim = dim3(static_cast<unsigned>(std::clamp<int64_t>(ceil_div<int64_t>(work, block), 1, 8192)));
  how.blockDim = dim3(block);
  return cudaLaunchKernelEx(&how, pack_kernel<mode, Layout>, params);
}

}  // namespace convt::implicit_gemm
