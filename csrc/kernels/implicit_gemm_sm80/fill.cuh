// Reading the patch: asynchronous copies bring a chunk of it to shared memory while chunks before it are multiplied;
// then each thread rounds, splits or pairs what it has copied, where it lies. The patch is [channel
// group][part][t][pixel] [2 words]. Lane t of a fragment takes both words of a pixel at once: channels 2t and 2t + 1 of
// float32, 4t to 4t + 3 of the 16-bit types.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "params.h"

namespace convt::implicit_gemm_sm80 {

struct Filler {
  const void* x;           // of the tile's first image and the group's first channel
  const int32_t* offsets;  // of the patch's pixels; negative outside the image
};

// 32 bytes of one or four pixels, and where they go. Of four pixels, they are first [channel][pixel].
struct Item {
  uint32_t r[8];
  device::SharedAddress to;
};

// Which of the channel slots an item is of, and which pixel or four pixels; and where it goes.
CONVT_DEVICE int32_t place_item(const Params& p, device::SharedAddress stage, int32_t parts, uint32_t& index,
                                device::SharedAddress& to) {
  const auto slot = static_cast<int32_t>(p.by_items.divide(index));
  const bool pixel = p.fill == Fill::channels;  // or four of them
  to = stage + static_cast<uint32_t>((pixel ? slot * parts * 4 : slot / 4 * parts * 4 + slot % 4) * p.patch_plane +
                                     static_cast<int32_t>(index) * (pixel ? 8 : 8 * quad));
  return slot;
}

// Copies item `index` of chunk `chunk`. The address of a copy of nothing is not read.
template <Mode mode>
CONVT_DEVICE void copy_item(const Params& p, const Filler& f, device::SharedAddress stage, int32_t chunk,
                            uint32_t index) {
  using Scalar = typename Traits<mode>::Scalar;
  const Scalar* x = static_cast<const Scalar*>(f.x);
  constexpr int channels = channels_of_fragment(mode);
  constexpr bool wide = sizeof(Scalar) == 4;
  device::SharedAddress to;
  const int32_t slot = place_item(p, stage, parts_of(mode), index, to);
  if (p.fill == Fill::channels) {
    const int32_t channel = (chunk * p.groups_of_chunk + slot) * channels, offset = f.offsets[index];
    const Scalar* from = x + ((offset < 0 ? 0 : offset) + channel);
#pragma unroll
    for (int t = 0; t < 4; ++t, to += p.patch_plane) {
      const bool valid = offset >= 0 && channel + t * (channels / 4) < p.in_channels;
      device::cp_async<8>(to, valid ? from + t * (channels / 4) : x, valid ? 8 : 0);
    }
    return;
  }
  // Two or four channels of a lane.
  constexpr int count = channels / 4;
  const int32_t channel = (chunk * p.groups_of_chunk + slot / 4) * channels + slot % 4 * count;
  const int32_t left = p.in_channels - channel;
  const int32_t* offsets = f.offsets + quad * index;
  if (p.fill == Fill::rows) {
    const int32_t offset = offsets[0], valid = offset < 0 ? 0 : left;
    const Scalar* from = x + (channel * p.x_channel_stride + (offset < 0 ? 0 : offset));
#pragma unroll
    for (int c = 0; c < count; ++c, from += p.x_channel_stride) {
      device::cp_async<32 / count>(to + static_cast<uint32_t>(c * (32 / count)), from, c < valid ? 32 / count : 0);
    }
    return;
  }
  x += channel * p.x_channel_stride;
  if constexpr (wide) {
#pragma unroll
    for (int e = 0; e < quad; ++e) {
      const int32_t offset = offsets[e], valid = offset < 0 ? 0 : left;
      const Scalar* from = x + (offset < 0 ? 0 : offset);
#pragma unroll
      for (int c = 0; c < count; ++c, from += p.x_channel_stride) {
        device::cp_async<4>(to + static_cast<uint32_t>(16 * c + 4 * e), from, c < valid ? 4 : 0);
      }
    }
  } else {
    // No asynchronous copy takes elements of 2 bytes.
    uint32_t r[quad][count];
#pragma unroll
    for (int e = 0; e < quad; ++e) {
      const int32_t offset = offsets[e], valid = offset < 0 ? 0 : left;
      const Scalar* from = x + (offset < 0 ? 0 : offset);
#pragma unroll
      for (int c = 0; c < count; ++c, from += p.x_channel_stride) {
        r[e][c] = 0;
        if (c < valid) r[e][c] = __ldg(reinterpret_cast<const uint16_t*>(from));
      }
    }
#pragma unroll
    for (int e = 0; e < quad; e += 2) {
      device::store_shared_16(to + static_cast<uint32_t>(8 * e), r[e][0] | r[e][1] << 16, r[e][2] | r[e][3] << 16,
                              r[e + 1][0] | r[e + 1][1] << 16, r[e + 1][2] | r[e + 1][3] << 16);
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

// Brings into order what this thread has copied of a chunk.
template <Mode mode>
CONVT_DEVICE void finish_item(const Params& p, device::SharedAddress stage, uint32_t index) {
  Item item;
  place_item(p, stage, parts_of(mode), index, item.to);
  if (p.fill == Fill::channels) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint2 words = device::load_shared_8(item.to + static_cast<uint32_t>(t * p.patch_plane));
      item.r[2 * t] = words.x, item.r[2 * t + 1] = words.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const uint4 words = device::load_shared_16(item.to + static_cast<uint32_t>(4 * i));
      item.r[i] = words.x, item.r[i + 1] = words.y, item.r[i + 2] = words.z, item.r[i + 3] = words.w;
    }
  }
  store_item<mode>(p, item);
}

// Whether copies of a mode's elements are what the fragments are.
template <Mode mode>
CONVT_DEVICE bool copies_need_no_order(const Params& p) {
  return sizeof(typename Traits<mode>::Scalar) == 2 && p.fill != Fill::rows;
}

}  // namespace convt::implicit_gemm_sm80
