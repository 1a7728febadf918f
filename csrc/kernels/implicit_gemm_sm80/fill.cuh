// Reading the patch: from x in global memory through registers, where elements are rounded, split or paired, to shared
// memory as [channel group][part][t][pixel][2 words]. Lane t of a fragment takes both words of a pixel at once:
// channels 2t and 2t + 1 of float32, 4t to 4t + 3 of the 16-bit types.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "params.h"

namespace convt::implicit_gemm_sm80 {

// 32 bytes of one or four pixels on their way, and where they go.
struct Item {
  uint32_t r[8];
  device::SharedAddress to;
};

struct Filler {
  const void* x;           // of the tile's first image and the group's first channel
  const int32_t* offsets;  // of the patch's pixels; negative outside the image
  device::SharedAddress stages;
};

// Item `i` of chunk `chunk`.
template <Mode mode>
CONVT_DEVICE void load_item(const Params& p, const Filler& f, int32_t chunk, uint32_t i, Item& item) {
  using Scalar = typename Traits<mode>::Scalar;
  const Scalar* x = static_cast<const Scalar*>(f.x);
  uint32_t index = i;
  const auto slot = static_cast<int32_t>(p.by_items.divide(index));
  constexpr int channels = channels_of_fragment(mode), parts = parts_of(mode);
  const bool pixel = p.fill == Fill::channels;  // or four of them
  item.to =
      f.stages + static_cast<uint32_t>(chunk % 2 * p.stage_bytes +
                                       (pixel ? slot * parts * 4 : slot / 4 * parts * 4 + slot % 4) * p.patch_plane +
                                       static_cast<int32_t>(index) * (pixel ? 8 : 8 * quad));
#pragma unroll
  for (int e = 0; e < 8; ++e) item.r[e] = 0;
  constexpr bool wide = sizeof(Scalar) == 4;
  if (pixel) {
    const int32_t channel = (chunk * p.groups_of_chunk + slot) * channels;
    const int32_t offset = f.offsets[index];
    if (offset < 0) return;
    const Scalar* from = x + offset + channel;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (channel + e * (channels / 2) >= p.in_channels) break;
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(from + e * (channels / 2)));
      item.r[4 * e] = words.x, item.r[4 * e + 1] = words.y, item.r[4 * e + 2] = words.z, item.r[4 * e + 3] = words.w;
    }
    return;
  }
  // Two or four channels of a lane.
  constexpr int count = channels / 4;
  const int32_t channel = (chunk * p.groups_of_chunk + slot / 4) * channels + slot % 4 * count;
  const int32_t* offsets = f.offsets + quad * index;
  if (p.fill == Fill::rows) {
    const int32_t offset = offsets[0];
    if (offset < 0) return;
    const Scalar* from = x + (channel * p.x_channel_stride + offset);
#pragma unroll
    for (int c = 0; c < count; ++c, from += p.x_channel_stride) {
      if (channel + c >= p.in_channels) break;
      if constexpr (wide) {
        const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
        item.r[4 * c] = words.x, item.r[4 * c + 1] = words.y, item.r[4 * c + 2] = words.z, item.r[4 * c + 3] = words.w;
      } else {
        const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
        item.r[2 * c] = words.x, item.r[2 * c + 1] = words.y;
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < quad; ++e) {
    const int32_t offset = offsets[e];
    if (offset < 0) continue;
    const Scalar* from = x + (channel * p.x_channel_stride + offset);
#pragma unroll
    for (int c = 0; c < count; ++c, from += p.x_channel_stride) {
      if (channel + c >= p.in_channels) break;
      if constexpr (wide) {
        item.r[4 * c + e] = __ldg(reinterpret_cast<const uint32_t*>(from));
      } else {
        item.r[2 * c + e / 2] |= static_cast<uint32_t>(__ldg(reinterpret_cast<const uint16_t*>(from))) << 16 * (e % 2);
      }
    }
  }
}

template <Mode mode>
CONVT_DEVICE void store_item(const Params& p, const Item& item) {
  // From one part to the other.
  const device::SharedAddress low_part = 4 * p.patch_plane;
  device::SharedAddress to = item.to;
  if (p.fill == Fill::channels) {
#pragma unroll
    for (int t = 0; t < 4; ++t, to += p.patch_plane) {
      uint32_t a = item.r[2 * t], b = item.r[2 * t + 1];
      if constexpr (mode == Mode::tf32) {
        a = device::to_tf32(__uint_as_float(a)), b = device::to_tf32(__uint_as_float(b));
      } else if constexpr (mode == Mode::ieee) {
        uint32_t low_a, low_b;
        split(__uint_as_float(a), a, low_a), split(__uint_as_float(b), b, low_b);
        device::store_shared_8(to + low_part, low_a, low_b);
      }
      device::store_shared_8(to, a, b);
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < quad; e += 2, to += 16) {
    uint32_t words[4];  // of pixels e and e + 1
    if constexpr (mode == Mode::tf32) {
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = device::to_tf32(__uint_as_float(item.r[k % 2 * 4 + e + k / 2]));
    } else if constexpr (mode == Mode::ieee) {
      uint32_t low[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) split(__uint_as_float(item.r[k % 2 * 4 + e + k / 2]), words[k], low[k]);
      device::store_shared_16(to + low_part, low[0], low[1], low[2], low[3]);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t even = item.r[k % 2 * 4 + e / 2], odd = item.r[k % 2 * 4 + 2 + e / 2];
        words[k] = __byte_perm(even, odd, k < 2 ? 0x5410 : 0x7632);
      }
    }
    device::store_shared_16(to, words[0], words[1], words[2], words[3]);
  }
}

}  // namespace convt::implicit_gemm_sm80
