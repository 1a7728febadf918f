// The launches of one mode; each is instantiated in a translation unit of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "params.h"

#if defined(CONVT_IMPLICIT_GEMM_SM80_INSTANTIATE)
#include <atomic>

#include "kernel.cuh"
#endif

namespace convt::implicit_gemm_sm80 {

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream);

#if defined(CONVT_IMPLICIT_GEMM_SM80_INSTANTIATE)

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

template <Mode mode, int Row = 0>
cudaError_t launch_row(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  if constexpr (Row == config_count) {
    return cudaErrorInvalidConfiguration;
  } else {
    if (plan.configuration != Row) return launch_row<mode, Row + 1>(plan, launch, stream);
    if constexpr (!fits_registers(configs[Row], mode)) {
      return cudaErrorInvalidConfiguration;
    } else {
      const auto kernel = implicit_gemm_kernel<mode, Row>;
      static Prepared prepared;
      bool overlap = false;
      const cudaError_t error = prepared.prepare(kernel, launch.shared_bytes, overlap);
      if (error != cudaSuccess) return error;
      // From sm_90 on, the kernel begins before the weights are packed, and waits for them where it reads them.
      cudaLaunchAttribute early{};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t how{};
      how.gridDim = dim3(launch.grid);
      how.blockDim = dim3(static_cast<unsigned>(configs[Row].threads()));
      how.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
      how.stream = stream;
      how.attrs = &early;
      how.numAttrs = overlap ? 1 : 0;
      return cudaLaunchKernelEx(&how, kernel, launch.params);
    }
  }
}

template <Mode mode>
cudaError_t launch_mode(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  constexpr int block = 256;
  const int64_t work = std::max<int64_t>(launch.pack.words, launch.pack.counter_count);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(ceil_div<int64_t>(work, block), 1, 8192));
  pack_kernel<mode, Fragments<mode>><<<blocks, block, 0, stream>>>(launch.pack);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return launch_row<mode>(plan, launch, stream);
}

#endif

}  // namespace convt::implicit_gemm_sm80
