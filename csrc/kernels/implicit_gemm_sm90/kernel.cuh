#pragma once

#include "consumer.cuh"

namespace convt::implicit_gemm_sm90 {

// Blocks of A: 64 rows of 128 bytes, as wgmma reads them.
template <Mode mode>
struct Fragments {
  static constexpr int rows = 64, words = block_bytes / 4, group_words = row_bytes / 4, parts = parts_of(mode),
                       warps = block_bytes / 512;
  CONVT_HOST_DEVICE static int32_t row(int32_t warp, int32_t lane, int32_t) { return warp * 4 + lane / 8; }
  CONVT_HOST_DEVICE static int32_t k(int32_t warp, int32_t lane, int32_t e) {
    return (lane % 8 ^ (row(warp, lane, e) & 7)) * 4 + e;
  }
  static int32_t pitch(int32_t words) { return words | 1; }
};

// By one lane each: a barrier is made at an address that the warp has in a uniform register. A loop each: a call waits
// for its first instructions, the fewer the better.
template <Mode mode, int Row>
CONVT_DEVICE void make_weight_barriers(const Params& p, const Barriers& barriers) {
#pragma unroll 1
  for (int32_t s = 0; s < p.weight_stages; ++s) {
    device::mbarrier_init(barriers.weights_full(s), weights_arrivals<mode>(p));
    device::mbarrier_init(barriers.weights_empty(s), configs[Row].tile_threads() / 32);
    device::mbarrier_init(barriers.weights_read(s), 1);
  }
  device::mbarrier_init_fence();
}
template <Mode mode, int Row>
CONVT_DEVICE void make_patch_barriers(const Params& p, const Barriers& barriers) {
  constexpr Config config = configs[Row];
  constexpr uint32_t warps = config.tile_threads() / 32;
  // Warpgroups that take tiles in turn share what stays for several tiles.
  const uint32_t readers = config.alternate() && p.reuse > 1 ? consumers / 32 : warps;
#pragma unroll 1
  for (int32_t s = 0; s < p.stages; ++s) {
    device::mbarrier_init(barriers.patch_full(s), patch_arrivals<mode>(p));
    device::mbarrier_init(barriers.patch_empty(s), readers);
    device::mbarrier_init(barriers.patch_read(s), 1);
  }
  for (int32_t group = 0; group < 2; ++group) device::mbarrier_init(barriers.order(group), warps);
  device::mbarrier_init_fence();
}

// A block's share of an operand into L2.
CONVT_DEVICE void prefetch(const void* operand, const Prefetch& q) {
  const uint32_t first = blockIdx.x * q.share;
  if (first < q.bytes) {
    device::bulk_prefetch(static_cast<const unsigned char*>(operand) + first, smaller(q.share, q.bytes - first));
  }
}

// Calls f with the variant as a constant, if it is compiled.
template <Mode mode, int Row, class F>
void with_variant(Variant variant, const F& f) {
  const auto if_it_is = [&](auto v) {
    if constexpr (has_variant(configs[Row], mode, v)) {
      if (variant == v) f(v);
    }
  };
  if_it_is(std::integral_constant<Variant, Variant::general>{});
  if_it_is(std::integral_constant<Variant, Variant::boxes>{});
  if_it_is(std::integral_constant<Variant, Variant::channels>{});
  if_it_is(std::integral_constant<Variant, Variant::rows>{});
  if_it_is(std::integral_constant<Variant, Variant::threads>{});
  if_it_is(std::integral_constant<Variant, Variant::balanced>{});
  if_it_is(std::integral_constant<Variant, Variant::unaligned_rows>{});
}

template <Mode mode, int Row, Variant variant>
__global__ void __launch_bounds__(threads, 1) implicit_gemm_sm90_kernel(const __grid_constant__ Params p) {
  static_assert(has_mode(configs[Row], mode) && has_variant(configs[Row], mode, variant));
  static_assert(configs[Row].accumulators() <= 136, "more do not fit a consumer's registers");
  static_assert(configs[Row].width % 8 == 0);
  static_assert(consumers * consumer_registers + producers * producer_registers <= threads * launch_registers,
                "a warpgroup would wait for registers that nobody gives back");
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned char* const shared = device::dynamic_shared_memory();
  const Barriers barriers{device::dynamic_shared_address()};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int start_barrier = 15;
  if (thread >= consumers) {
    // First of all data are asked for, by the warps that make the barriers: those that have them copied wait for
    // nobody.
    const int32_t warp = (thread - consumers) / 32, lane = thread % 32;
    if (warp == 0) {
      if (lane == 0) {
        if (takes_in_place(mode, variant) && p.weights_in_place) device::prefetch_tensor_map(p.w_map);
        make_weight_barriers<mode, Row>(p, barriers);
      }
    } else if (warp == 1) {
      if (lane == 0) {
        if (uses_x_map(p)) device::prefetch_tensor_map(p.x_map);
        if (uses_wide_x_map(p)) device::prefetch_tensor_map(p.wide_x_map);
        make_patch_barriers<mode, Row>(p, barriers);
      }
      static_assert(shared_words <= 32);
      if (lane < shared_words) reinterpret_cast<uint32_t*>(shared + words_at)[lane] = 0;
    } else if (thread == consumers + 64) {
      prefetch(p.w, p.w_prefetch), prefetch(p.x, p.x_prefetch);
      for (int32_t i = 0; i < y_map_count(p); ++i) device::prefetch_tensor_map(p.y_maps[i]);
    }
    __syncwarp();
    if (warp > 1 || (warp == 1 && threads_bring(variant) && !p.copy_boxes)) {
      device::named_barrier(start_barrier, threads);
    } else {
      device::named_barrier_arrive(start_barrier, threads);
    }
    device::fewer_registers<producer_registers>();
    if (warp > 0) {
      fill_patches<mode, variant>(p, shared, barriers);
    } else {
      copy_weights<mode, variant>(p, barriers);
    }
    return;
  }
  if constexpr (is_general(variant)) clear_beyond_boxes<mode>(p, shared);
  device::named_barrier(start_barrier, threads);
  device::more_registers<consumer_registers>();
  consume<mode, Row, variant>(p, shared, barriers);
#endif
}

}  // namespace convt::implicit_gemm_sm90
