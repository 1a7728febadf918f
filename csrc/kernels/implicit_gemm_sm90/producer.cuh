// The producers: one thread copies packed weights, three warps read the patch.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "params.h"

namespace convt::implicit_gemm_sm90 {

// Barriers in shared memory. A stage is full when it may be read, and empty when it may be written.
struct Barriers {
  device::SharedAddress base;

  CONVT_DEVICE device::SharedAddress patch_full(int32_t s) const { return base + static_cast<uint32_t>(16 * s); }
  CONVT_DEVICE device::SharedAddress patch_empty(int32_t s) const { return patch_full(s) + 8; }
  CONVT_DEVICE device::SharedAddress weights_full(int32_t s) const { return patch_full(patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_empty(int32_t s) const { return weights_full(s) + 8; }
};

// A ring of stages: the one that is next, and the parity of its turn.
template <int Stages>
struct Ring {
  int32_t stage = 0;
  uint32_t parity = 0;

  CONVT_DEVICE void advance() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// How many steps of a chunk are a stage of weights, so that its stages are of a size.
template <int Row>
CONVT_DEVICE int32_t steps_of_stage(const DeviceSet& set, int32_t groups) {
  constexpr int32_t most = weight_stage_bytes / (fragment_bytes * configs[Row].rows());
  const int32_t steps = set.steps * groups;
  return ceil_div(steps, ceil_div(steps, most));
}

template <int Row>
CONVT_DEVICE void copy_weights(const Params& p, device::SharedAddress shared, const Barriers& barriers) {
  Ring<weight_stages> ring;
  device::wait_for_previous_kernel();  // which packs them
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    const unsigned char* from =
        static_cast<const unsigned char*>(p.packed) +
        (static_cast<int64_t>(set.packed) +
         (static_cast<int64_t>(at.group * static_cast<int32_t>(p.by_channels.divisor) + at.channel_tile) *
              p.channel_groups +
          static_cast<int64_t>(chunks.first) * p.groups_of_chunk) *
             set.fragments) *
            fragment_bytes;
    int32_t step = 0;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const int32_t groups = groups_of(p, chunk);
      const int32_t run = steps_of_stage<Row>(set, groups);
      for (int32_t left = set.steps * groups; left > 0; left -= run) {
        uint32_t fragments = 0;
        for (int32_t s = smaller(left, run); s > 0; --s) {
          fragments += static_cast<uint32_t>(__popc(p.steps[set.first_step + step].mask));
          if (++step == set.steps) step = 0;
        }
        device::mbarrier_wait(barriers.weights_empty(ring.stage), ring.parity ^ 1);
        device::mbarrier_arrive_expect(barriers.weights_full(ring.stage), fragments * fragment_bytes);
        device::bulk_load(shared + static_cast<uint32_t>(p.weights_at + ring.stage * weight_stage_bytes), from,
                          fragments * fragment_bytes, barriers.weights_full(ring.stage));
        from += static_cast<int64_t>(fragments) * fragment_bytes;
        ring.advance();
      }
    }
  }
}

// 16 bytes of each of four pixels on their way, and where the first goes.
struct Item {
  uint32_t r[4][4];  // of a pixel, in the order of memory
  device::SharedAddress to;
};

// Item `i` of a chunk: four pixels of a plane. They are next to each other if rows are read four pixels at a time, else
// a quarter of the patch apart, so that neighbouring threads have neighbouring pixels.
template <Mode mode>
CONVT_DEVICE void load_item(const Params& p, const typename Traits<mode>::Scalar* x, const int32_t* offsets,
                            device::SharedAddress stage, int32_t chunk, uint32_t i, Item& item) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr int channels = 16 / sizeof(Scalar);
  constexpr bool wide = sizeof(Scalar) == 4;
  uint32_t index = i;
  const auto plane = static_cast<int32_t>(p.by_quads.divide(index));
  const int32_t channel = (chunk * p.groups_of_chunk * 2 + plane) * channels;
  item.to = stage + static_cast<uint32_t>(plane * p.patch_plane) + index * (p.fill == Fill::rows ? 16 * quad : 16);
#pragma unroll
  for (int e = 0; e < quad; ++e) {
#pragma unroll
    for (int k = 0; k < 4; ++k) item.r[e][k] = 0;
  }
  if (p.fill == Fill::rows) {
    const int32_t offset = offsets[quad * index];
    if (offset < 0) return;
    const Scalar* from = x + (channel * p.x_channel_stride + offset);
    if constexpr (wide) {
#pragma unroll
      for (int c = 0; c < channels; ++c, from += p.x_channel_stride) {
        if (channel + c >= p.in_channels) break;
        const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
        item.r[0][c] = words.x, item.r[1][c] = words.y, item.r[2][c] = words.z, item.r[3][c] = words.w;
      }
    } else {
#pragma unroll
      for (int c = 0; c < channels; c += 2) {
        uint2 even = make_uint2(0, 0), odd = make_uint2(0, 0);
        if (channel + c < p.in_channels) even = __ldg(reinterpret_cast<const uint2*>(from));
        from += p.x_channel_stride;
        if (channel + c + 1 < p.in_channels) odd = __ldg(reinterpret_cast<const uint2*>(from));
        from += p.x_channel_stride;
        // Paired when they are stored: the loads must not be waited for here.
        item.r[0][c / 2] = even.x, item.r[1][c / 2] = even.y, item.r[2][c / 2] = odd.x, item.r[3][c / 2] = odd.y;
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < quad; ++e) {
    const int32_t offset = offsets[index + static_cast<uint32_t>(e * p.quads)];
    if (offset < 0 || channel >= p.in_channels) continue;
    if (p.fill == Fill::channels) {
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(x + offset + channel));
      item.r[e][0] = words.x, item.r[e][1] = words.y, item.r[e][2] = words.z, item.r[e][3] = words.w;
      continue;
    }
    const Scalar* from = x + (channel * p.x_channel_stride + offset);
#pragma unroll
    for (int c = 0; c < channels; ++c, from += p.x_channel_stride) {
      if (channel + c >= p.in_channels) break;
      if constexpr (wide) {
        item.r[e][c] = __ldg(reinterpret_cast<const uint32_t*>(from));
      } else {
        item.r[e][c / 2] |= static_cast<uint32_t>(__ldg(reinterpret_cast<const uint16_t*>(from))) << 16 * (c % 2);
      }
    }
  }
}

template <Mode mode>
CONVT_DEVICE void store_item(const Params& p, Item& item, int32_t lane) {
  constexpr bool wide = mode == Mode::tf32;
  if constexpr (wide) {
#pragma unroll
    for (int e = 0; e < quad; ++e) {
#pragma unroll
      for (int k = 0; k < 4; ++k) item.r[e][k] = device::to_tf32(__uint_as_float(item.r[e][k]));
    }
  }
  if (p.fill != Fill::rows) {
#pragma unroll
    for (int e = 0; e < quad; ++e) {
      device::store_shared_16(item.to + static_cast<uint32_t>(16 * e * p.quads), item.r[e][0], item.r[e][1],
                              item.r[e][2], item.r[e][3]);
    }
    return;
  }
  if constexpr (!wide) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t even01 = item.r[0][k], even23 = item.r[1][k], odd01 = item.r[2][k], odd23 = item.r[3][k];
      item.r[0][k] = __byte_perm(even01, odd01, 0x5410), item.r[1][k] = __byte_perm(even01, odd01, 0x7632);
      item.r[2][k] = __byte_perm(even23, odd23, 0x5410), item.r[3][k] = __byte_perm(even23, odd23, 0x7632);
    }
  }
  // Eight lanes that store at once have pixels 64 bytes apart: each begins with another of its four, so that they are
  // in different banks.
  const bool by_one = (lane >> 1 & 1) != 0, by_two = (lane >> 2 & 1) != 0;
  const device::SharedAddress first = item.to ^ static_cast<uint32_t>((lane >> 1 & 3) * 16);
#pragma unroll
  for (int e = 0; e < quad; ++e) {
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t near = by_one ? item.r[e ^ 1][k] : item.r[e][k];
      const uint32_t far = by_one ? item.r[e ^ 3][k] : item.r[e ^ 2][k];
      words[k] = by_two ? far : near;
    }
    device::store_shared_16(first ^ static_cast<uint32_t>(16 * e), words[0], words[1], words[2], words[3]);
  }
}

template <Mode mode>
CONVT_DEVICE void fill_patches(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - consumers - 32, lane = thread % 32;
  auto* const offsets = reinterpret_cast<int32_t*>(shared + p.pixels_at);
  // Whether an edge of the image is in the patch: of the stages that hold the first chunk of a tile, and of this tile
  // and the next one.
  auto* const edges = reinterpret_cast<uint32_t*>(shared + 16 * (patch_stages + weight_stages));
  auto* const edge_of_tile = edges + patch_stages;
  int32_t turn = 0;
  const device::SharedAddress patches = device::shared_address(shared + p.patches_at);
  Ring<patch_stages> ring;
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    if (chunks.first == chunks.last) continue;
    // Where the patch's pixels are in x, from its first image and channel.
    device::named_barrier(1, fillers);
    bool outside = false;
#pragma unroll 1
    for (int32_t i = thread; i < quad * p.quads; i += fillers) {
      offsets[i] = pixel_offset(p, at, set, i, outside);
    }
    if (outside) edge_of_tile[turn] = 1;
    device::named_barrier(1, fillers);
    const uint32_t edge = edge_of_tile[turn];
    turn ^= 1;
    if (thread == 0) edge_of_tile[turn] = 0;

    const Scalar* x = static_cast<const Scalar*>(p.x) + at.image * p.x_batch_stride +
                      static_cast<int64_t>(at.group) * p.in_channels * p.x_channel_stride;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const auto items = static_cast<uint32_t>(groups_of(p, chunk) * 2 * p.quads);
      const device::SharedAddress stage = patches + static_cast<uint32_t>(ring.stage * p.patch_bytes);
      auto i = static_cast<uint32_t>(thread);
      // Two items on their way at a time, the first ones before the stage is empty.
      Item first, second;
      bool waited = false;
#pragma unroll 1
      while (i < items || !waited) {
        if (i < items) load_item<mode>(p, x, offsets, stage, chunk, i, first);
        if (i + fillers < items) load_item<mode>(p, x, offsets, stage, chunk, i + fillers, second);
        if (!waited) {
          device::mbarrier_wait(barriers.patch_empty(ring.stage), ring.parity ^ 1);
          waited = true;
          if (thread == 0) edges[ring.stage] = edge;
        }
        if (i < items) store_item<mode>(p, first, lane);
        if (i + fillers < items) store_item<mode>(p, second, lane);
        i += 2 * fillers;
      }
      device::fence_async_proxy();
      __syncwarp();
      if (lane == 0) device::mbarrier_arrive(barriers.patch_full(ring.stage));
      ring.advance();
    }
  }
}

}  // namespace convt::implicit_gemm_sm90
