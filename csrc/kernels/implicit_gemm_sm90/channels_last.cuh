// Brings x into channels_last in the workspace, for the copy engine to read boxes of it. In TF32 mode it is rounded on
// its way, which is why x that is in channels_last already may be brought there, too. Without TF32 its two parts are.
#pragma once

#include "../copy_rows.cuh"
#include "producer.cuh"

namespace convt::implicit_gemm_sm90 {

// Four words of x, as operands of products.
template <Mode mode>
CONVT_DEVICE void store_channels(typename Traits<mode>::Scalar* to, int64_t part_stride, uint4 v) {
  const uint4 low = round_words<mode>(v);
  *reinterpret_cast<uint4*>(to) = v;
  if constexpr (parts_of(mode) == 2) *reinterpret_cast<uint4*>(to + part_stride) = low;
}

template <Mode mode>
CONVT_DEVICE void bring_channels_last(const ChannelsLastParams& p, uint32_t block) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr int32_t channels = row_bytes / sizeof(Scalar), of_word = 4 / sizeof(Scalar);
  constexpr int32_t words = row_bytes / 4, pitch = words + 1;  // no bank conflicts, by rows or by columns
  auto* const tile = reinterpret_cast<uint32_t*>(device::dynamic_shared_memory());
  uint32_t channel_tile = block;
  uint32_t rest = p.by_channel_tiles.divide(channel_tile);
  uint32_t next = p.by_pixel_tiles.divide(rest);
  const auto first_pixel = static_cast<int32_t>(rest) * channels_last_pixels;
  auto image = next;
  const auto group = static_cast<int32_t>(p.by_images.divide(image));
  const int32_t first_channel = static_cast<int32_t>(channel_tile) * channels;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const Scalar* const x = static_cast<const Scalar*>(p.x) + image * p.batch_stride +
                          (static_cast<int64_t>(group) * p.channels + first_channel) * p.channel_stride;

  constexpr int32_t units = row_bytes / unit_bytes, of_unit = unit_bytes / static_cast<int32_t>(sizeof(Scalar));
  const int32_t unit = thread % units;
  // Rows end at a multiple of 16 bytes.
  const bool written = first_channel + unit * of_unit < p.padded_channels;
  Scalar* const to =
      static_cast<Scalar*>(p.to) +
      ((static_cast<int64_t>(group) * static_cast<int64_t>(p.by_images.divisor) + image) * p.pixels + first_pixel) *
          p.padded_channels +
      first_channel + unit * of_unit;
  if (p.innermost) {
    if (!written) return;
    constexpr int32_t passes = channels_last_pixels * units / channels_last_threads;
    const int32_t there = smaller(of_unit, p.channels - first_channel - unit * of_unit);
    uint4 v[passes];
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      const int32_t pixel = thread / units + i * (channels_last_threads / units);
      if (first_pixel + pixel >= p.pixels) break;
      auto column = static_cast<uint32_t>(first_pixel + pixel);
      const auto row = static_cast<int32_t>(p.by_columns.divide(column));
      const Scalar* const from = x + static_cast<int64_t>(row) * p.row_stride +
                                 static_cast<int64_t>(column) * p.column_stride + unit * of_unit;
      if (p.units) {
        v[i] = __ldg(reinterpret_cast<const uint4*>(from));
      } else {
        uint32_t w[4];
        load_anywhere<BitsOf<Scalar>>(static_cast<const unsigned char*>(p.x),
                                      static_cast<const unsigned char*>(p.x_end),
                                      reinterpret_cast<const unsigned char*>(from), 0, there, w);
        v[i] = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      const int32_t pixel = thread / units + i * (channels_last_threads / units);
      if (first_pixel + pixel >= p.pixels) break;
      store_channels<mode>(to + static_cast<int64_t>(pixel) * p.padded_channels, p.part_stride, v[i]);
    }
    return;
  }

  // A word of a pixel: one channel, or two whose pixels are read as pairs if they may.
  constexpr int32_t passes = channels_last_pixels * words / channels_last_threads;
  if (of_word == 2 && p.pairs) {
    constexpr int32_t pairs = channels_last_pixels / 2;
    const int32_t pixel = thread % pairs * 2, word = thread / pairs;
    uint32_t r[passes / 2][2];
#pragma unroll
    for (int i = 0; i < passes / 2; ++i) {
      const int32_t channel = (word + i * (channels_last_threads / pairs)) * 2;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        r[i][e] = 0;
        if (first_pixel + pixel < p.pixels && first_channel + channel + e < p.channels) {
          r[i][e] =
              __ldg(reinterpret_cast<const uint32_t*>(x + (channel + e) * p.channel_stride + first_pixel + pixel));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < passes / 2; ++i) {
      const int32_t at = pixel * pitch + word + i * (channels_last_threads / pairs);
      tile[at] = __byte_perm(r[i][0], r[i][1], 0x5410), tile[at + pitch] = __byte_perm(r[i][0], r[i][1], 0x7632);
    }
  } else {
    const int32_t pixel = thread % channels_last_pixels, word = thread / channels_last_pixels;
    auto column = static_cast<uint32_t>(first_pixel + pixel);
    const bool there = first_pixel + pixel < p.pixels;
    const auto row = static_cast<int32_t>(p.by_columns.divide(column));
    const Scalar* const from =
        x + static_cast<int64_t>(row) * p.row_stride + static_cast<int64_t>(column) * p.column_stride;
    constexpr int32_t step = channels_last_threads / channels_last_pixels;
    uint32_t r[passes];
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      const int32_t channel = (word + i * step) * of_word;
      r[i] = 0;
#pragma unroll
      for (int e = 0; e < of_word; ++e) {
        if (there && first_channel + channel + e < p.channels) {
          const Scalar* const at = from + (channel + e) * p.channel_stride;
          if constexpr (of_word == 1) {
            r[i] = __float_as_uint(__ldg(reinterpret_cast<const float*>(at)));
          } else {
            r[i] |= static_cast<uint32_t>(__ldg(reinterpret_cast<const uint16_t*>(at))) << 16 * e;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < passes; ++i) tile[pixel * pitch + word + i * step] = r[i];
  }
  __syncthreads();
  if (!written) return;
#pragma unroll
  for (int32_t pixel = thread / units; pixel < channels_last_pixels; pixel += channels_last_threads / units) {
    if (first_pixel + pixel >= p.pixels) break;
    const uint32_t* const from = tile + pixel * pitch + unit * 4;
    store_channels<mode>(to + static_cast<int64_t>(pixel) * p.padded_channels, p.part_stride,
                         make_uint4(from[0], from[1], from[2], from[3]));
  }
}

}  // namespace convt::implicit_gemm_sm90
