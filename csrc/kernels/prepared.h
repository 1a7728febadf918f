// What the driver must be told of a kernel before its first launch on a device.
#pragma once

#include <cuda_runtime_api.h>

namespace convt {

// What has been asked of a kernel on each device, so that a launch asks the driver nothing. One for each kernel.
struct Prepared {
  static constexpr int devices = 64;
  // 1 if its code is for sm_90 or later, -1 if not, 0 if not known. Read and written by any thread; <atomic> takes a
  // second of each translation unit's time.
  int hopper[devices]{};

  // Lets the kernel use all shared memory that a block may have on the current device: the same for every launch, so
  // that threads which launch at the same time do not undo what another has asked for. `sm_90` says whether its code
  // there is for sm_90 or later.
  template <class Kernel>
  cudaError_t prepare(Kernel kernel, bool* sm_90 = nullptr) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    int known = device < devices ? __atomic_load_n(&hopper[device], __ATOMIC_ACQUIRE) : 0;
    if (known == 0) {
      cudaFuncAttributes attributes{};
      error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
      int most = 0;
      error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      if (error != cudaSuccess) return error;
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   most - static_cast<int>(attributes.sharedSizeBytes));
      if (error != cudaSuccess) return error;
      known = attributes.ptxVersion >= 90 ? 1 : -1;
      if (device < devices) __atomic_store_n(&hopper[device], known, __ATOMIC_RELEASE);
    }
    if (sm_90 != nullptr) *sm_90 = known == 1;
    return cudaSuccess;
  }
};

}  // namespace convt
