// The launches of the implicit-GEMM families: the weights' packing, then the kernel, which begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

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
cudaError_t launch_pack(PackParams params, cudaStream_t stream, bool early = false) {
  choose_pack_tile<Layout>(params);
  return launch_early(early, pack_kernel<mode, Layout>, params, params.tile.blocks, pack_threads,
                      params.tile.shared_bytes, stream);
}

}  // namespace convt::implicit_gemm
