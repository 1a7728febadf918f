// Kernels with a fault each, which the SIMT emulator must find. Usage: simt_faults FAULT SEED; exits with 0 if it does
// not show with this seed.
#define SIMT_MAIN
#include "kernels/device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using namespace convt;

// Sums of the neighbour's number, through shared memory.
void through_shared_memory(const float* x, float* y, bool barrier) {
  auto* shared = reinterpret_cast<float*>(device::dynamic_shared_memory());
  shared[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncthreads();
  y[threadIdx.x] = shared[(threadIdx.x + 32) % 64];
}

void asynchronous(const float* x, float* y, bool wait) {
  auto* shared = reinterpret_cast<float*>(device::dynamic_shared_memory());
  device::cp_async<4>(shared + threadIdx.x, x + threadIdx.x, 4);
  device::cp_async_commit();
  if (wait) device::cp_async_wait<0>();
  __syncthreads();
  y[threadIdx.x] = shared[63 - threadIdx.x];
}

void diverging(float* y, bool apart) {
  float v = y[threadIdx.x];
  if (apart && threadIdx.x % 32 < 16) {
    v = static_cast<float>(__ballot_sync(0xffffffffu, v > 1));
  } else {
    v = __shfl_down_sync(0xffffffffu, v, 1);
  }
  y[threadIdx.x] = v;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string fault = argv[1];
  simt::seed(static_cast<unsigned>(std::atoi(argv[2])));
  const simt::Buffer<float> x(64), y(64);
  for (int i = 0; i < 64; ++i) x.data[i] = y.data[i] = static_cast<float>(i);
  int offset = 0;
  if (fault == "beyond") offset = 1;
  const bool right = fault == "none";
  const bool all = right || fault == "beyond";
  if (all || fault == "barrier") {
    simt::launch(dim3(1), dim3(64), 256, [&] { through_shared_memory(x.data + offset, y.data, fault != "barrier"); });
    for (int i = 0; i < 64; ++i) {
      if (y.data[i] != static_cast<float>((i + 32) % 64)) return 1;
    }
  }
  if (right || fault == "wait") {
    simt::launch(dim3(1), dim3(64), 256, [&] { asynchronous(x.data, y.data, fault != "wait"); });
    for (int i = 0; i < 64; ++i) {
      if (y.data[i] != static_cast<float>(63 - i)) return 1;
    }
  }
  if (fault == "misaligned") {
    simt::launch(dim3(1), dim3(32), 256,
                 [&] { device::cp_async<16>(device::dynamic_shared_memory(), x.data + 1, 16); });
  }
  if (fault == "shared") simt::launch(dim3(1), dim3(64), 128, [&] { through_shared_memory(x.data, y.data, true); });
  if (right || fault == "diverging") {
    simt::launch(dim3(1), dim3(64), 0, [&] { diverging(y.data, fault == "diverging"); });
  }
  if (fault == "deadlock") {
    simt::launch(dim3(1), dim3(64), 0, [&] {
      if (threadIdx.x < 32) __syncthreads();
    });
  }
  return 0;
}
