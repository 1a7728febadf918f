// Launches of kernels that begin before the kernel before them is done (sm_90), and wait where they need it.
#pragma once

#include <cuda_runtime_api.h>

#include "prepared.h"

namespace convt {

// `early`: it may begin so.
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

// From sm_90 on, the kernel begins early if the kernel before it is one of its own call (`follows_own`).
template <class Kernel, class Params>
cudaError_t launch_kernel(Prepared& prepared, Kernel kernel, const Params& params, uint32_t grid, int32_t threads,
                          int64_t shared_bytes, cudaStream_t stream, bool follows_own = true) {
  bool overlap = false;
  const cudaError_t error = prepared.prepare(kernel, &overlap);
  if (error != cudaSuccess) return error;
  return launch_early(overlap && follows_own, kernel, params, grid, threads, shared_bytes, stream);
}

}  // namespace convt
