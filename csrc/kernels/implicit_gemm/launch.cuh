// The launches of the implicit-GEMM families: the weights' packing, then the kernel, which begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "device.cuh"

namespace convt::implicit_gemm {

// What has been asked of a kernel on each device, so that a launch asks the driver nothing.
struct Prepared {
  static constexpr int devices = 64;
  std::atomic<int64_t> shared_bytes[devices]{};  // that it may use
  std::atomic<int> overlaps[devices]{};          // 1 if its code is for sm_90 or later, -1 if not

  template <class Kernel>
  cudaError_t prepare(Kernel kernel, int64_t bytes, bool& overlap) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    if (device >= devices || overlaps[device] == 0 || shared_bytes[device] < bytes) {
      cudaFuncAttributes attributes{};
      error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      if (error != cudaSuccess) return error;
      overlap = attributes.ptxVersion >= 90;
      if (device < devices) {
        overlaps[device] = overlap ? 1 : -1;
        shared_bytes[device] = bytes;
      }
      return cudaSuccess;
    }
    overlap = overlaps[device] == 1;
    return cudaSuccess;
  }
};

template <class Kernel, class Params>
cudaError_t launch_kernel(Prepared& prepared, Kernel kernel, const Params& params, uint32_t grid, int32_t threads,
                          int64_t shared_bytes, cudaStream_t stream) {
  bool overlap = false;
  const cudaError_t error = prepared.prepare(kernel, shared_bytes, overlap);
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
  constexpr int block = 256;
  const int64_t work = std::max<int64_t>(params.words, params.counter_count);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(ceil_div<int64_t>(work, block), 1, 8192));
  pack_kernel<mode, Layout><<<blocks, block, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace convt::implicit_gemm
