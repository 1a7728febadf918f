#pragma once

#include "consumer.cuh"

namespace convt::implicit_gemm_sm90 {

// Fragments of A: 64 rows of 32 bytes, as wgmma reads them without swizzle.
struct Fragments {
  static constexpr int rows = 64, words = fragment_bytes / 4, parts = 1, warps = 4;
  CONVT_HOST_DEVICE static int32_t row(int32_t warp, int32_t lane, int32_t) { return warp % 2 * 32 + lane; }
  CONVT_HOST_DEVICE static int32_t k(int32_t warp, int32_t, int32_t e) { return warp / 2 * 4 + e; }
};

template <Mode mode, int Row>
__global__ void __launch_bounds__(threads, 1) implicit_gemm_sm90_kernel(const __grid_constant__ Params p) {
  static_assert(has_mode(mode));
  static_assert(configs[Row].accumulators() <= 136, "more do not fit a consumer's registers");
  static_assert(configs[Row].rows() * fragment_bytes <= weight_stage_bytes);
  static_assert(configs[Row].width % 8 == 0);
  static_assert(consumers * consumer_registers + producers * producer_registers <= threads * launch_registers,
                "a warpgroup would wait for registers that nobody gives back");
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned char* const shared = device::dynamic_shared_memory();
  const Barriers barriers{device::shared_address(shared)};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int32_t tile_warps = configs[Row].tile_threads() / 32;
  if (thread == 0) {
    for (int32_t s = 0; s < patch_stages; ++s) {
      device::mbarrier_init(barriers.patch_full(s), fillers / 32);
      device::mbarrier_init(barriers.patch_empty(s), tile_warps);
    }
    for (int32_t s = 0; s < weight_stages; ++s) {
      device::mbarrier_init(barriers.weights_full(s), 1);
      device::mbarrier_init(barriers.weights_empty(s), tile_warps);
    }
    for (int32_t group = 0; group < 2; ++group) device::mbarrier_init(barriers.order(group), tile_warps);
    device::mbarrier_init_fence();
    auto* const edges = reinterpret_cast<uint32_t*>(shared + words_at);
    for (int32_t s = 0; s < shared_words; ++s) edges[s] = 0;
  }
  __syncthreads();
  if (thread < consumers) {
    device::more_registers<consumer_registers>();
    consume<mode, Row>(p, shared, barriers);
  } else {
    device::fewer_registers<producer_registers>();
    if (thread >= consumers + 32) {
      fill_patches<mode>(p, shared, barriers);
    } else if (thread == consumers) {
      copy_weights<Row>(p, device::shared_address(shared), barriers);
    }
  }
#endif
}

}  // namespace convt::implicit_gemm_sm90
