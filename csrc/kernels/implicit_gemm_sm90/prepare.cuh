// Before the product: weights are packed, by the first blocks, and x is brought into channels_last, whichever a launch
// has to do.
#pragma once

#include "channels_last.cuh"
#include "kernel.cuh"

namespace convt::implicit_gemm_sm90 {

static_assert(pack_threads == channels_last_threads && sizeof(PrepareParams) <= 4096);

template <Mode mode>
__global__ void __launch_bounds__(pack_threads, fewest_resident_pack_blocks)
    prepare_kernel(const __grid_constant__ PrepareParams p) {
  device::let_next_kernel_start();
  if (blockIdx.x < p.packing) {
    pack<mode, Fragments<mode>>(p.pack, blockIdx.x, p.packing);
  } else {
    bring_channels_last<mode>(p.x, blockIdx.x - p.packing);
    // The product waits for this kernel alone.
    if (p.follows && blockIdx.x == 0) device::wait_for_previous_kernel();
  }
}

}  // namespace convt::implicit_gemm_sm90
