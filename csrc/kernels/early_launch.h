// Launches of kernels that begin before the kernel before them is done (sm_90), and wait where they need it.
#pragma once

#include <cuda_runtime_api.h>

#include "prepared.h"

namespace convt {

// `early`: it may begin so. `cluster`: blocks of a cluster.
template <class Kernel, class Params>
cudaError_t launch_early(bool early, Kernel kernel, const Params& params, int64_t grid, int64_t threads,
                         int64_t shared_bytes, cudaStream_t stream, int32_t cluster = 1) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(grid));
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  how.stream = stream;
  how.attrs = attributes;
  how.numAttrs = count;
  return cudaLaunchKernelEx(&how, kernel, params);
}

// From sm_90 on, the kernel begins early if the kernel before it is one of its own call (`follows_own`).
template <class Kernel, class Params>
cudaError_t launch_kernel(Prepared& prepared, Kernel kernel, const Params& params, uint32_t grid, int32_t threads,
                          int64_t shared_bytes, cudaStream_t stream, bool follows_own = true, int32_t cluster = 1) {
  bool overlap = false;
  const cudaError_t error = prepared.prepare(kernel, &overlap);
  if (error != cudaSuccess) return error;
  return launch_early(overlap && follows_own, kernel, params, grid, threads, shared_bytes, stream, cluster);
}

}  // namespace convt
