// What the implicit-GEMM kernels share: the tile of a block, an output by its definition, the weights' packing.
#pragma once

#include "../device.h"
#include "../exact_output.h"
#include "../tf32.h"
#include "mode.h"
#include "params.h"

namespace convt::implicit_gemm {

template <Mode>
struct Traits;
template <>
struct Traits<Mode::tf32> {
  using Scalar = float;
};
template <>
struct Traits<Mode::ieee> {
  using Scalar = float;
};
template <>
struct Traits<Mode::float16> {
  using Scalar = Float16;
};
template <>
struct Traits<Mode::bfloat16> {
  using Scalar = BFloat16;
};

using device::opaque;

// A float32 as the sum of two TF32 numbers. What rounds to infinity but is finite is cut instead; the rest of a number
// that is not finite is zero.
CONVT_DEVICE void split(float v, uint32_t& high, uint32_t& low) {
  constexpr uint32_t infinity = 0x7f800000;
  high = device::to_tf32(v);
  if ((high & infinity) == infinity) {
    if ((__float_as_uint(v) & infinity) == infinity) {
      low = 0;
      return;
    }
    high = __float_as_uint(v) & 0xffffe000;
  }
  low = device::to_tf32(v - __uint_as_float(high & 0xffffe000));
}

// `v` as the sum of two operands. What is left after eleven bits, rounded, has twelve at most; the tensor core drops
// the twelfth, and rounding it would err as much. It also has what is not a number, which `high` may lose, and is none
// where `v` is infinite or `high` has become so: those sums are computed again.
CONVT_DEVICE void split_pixel(uint32_t v, uint32_t& high, uint32_t& low) {
  high = (v + 0x1000) & 0xffffe000;
  low = __float_as_uint(__uint_as_float(v) - __uint_as_float(high));
}

// The tile of a block of threads.
struct Place {
  int32_t channel_tile, set, split, column, row, image, group;  // tiles; then the group of channels
  uint32_t reduction;                                           // of all splits of the tile
};

CONVT_DEVICE Place place_of(const CommonParams& p, uint32_t block) {
  Place at;
  uint32_t rest = block;
  uint32_t next = p.by_channels.divide(rest);
  at.channel_tile = static_cast<int32_t>(rest), rest = next;
  next = p.by_sets.divide(rest);
  at.set = static_cast<int32_t>(rest), rest = next;
  next = p.by_splits.divide(rest);
  at.split = static_cast<int32_t>(rest), rest = next;
  at.reduction = (rest * p.by_sets.divisor + static_cast<uint32_t>(at.set)) * p.by_channels.divisor +
                 static_cast<uint32_t>(at.channel_tile);
  next = p.by_columns.divide(rest);
  at.column = static_cast<int32_t>(rest) * p.tile_columns, rest = next;
  next = p.by_rows.divide(rest);
  at.row = static_cast<int32_t>(rest) * p.tile_rows, rest = next;
  next = p.by_images.divide(rest);
  at.image = static_cast<int32_t>(rest) * p.tile_images;
  at.group = static_cast<int32_t>(next);
  return at;
}

// The chunks of a tile's part of the reduction; none if no tap reaches its phases.
struct Chunks {
  int32_t first, last;
};

CONVT_DEVICE Chunks chunks_of(const CommonParams& p, const Place& at) {
  const int32_t chunks = p.sets[at.set].steps == 0 ? 0 : p.chunks;
  const auto before = [&](int32_t split) {
    auto rest = static_cast<uint32_t>(chunks * split);
    return static_cast<int32_t>(p.by_splits.divide(rest));
  };
  return {before(at.split), before(at.split + 1)};
}

CONVT_DEVICE int32_t groups_of(const CommonParams& p, int32_t chunk) {
  return smaller<int32_t>(p.groups_of_chunk, p.channel_groups - chunk * p.groups_of_chunk);
}

// Where pixel `i` of a tile's patch is in x, from the tile's first image and channel; -1 if the image has no such
// pixel, which is `outside` unless the whole image does not exist.
CONVT_DEVICE int32_t pixel_offset(const CommonParams& p, const Place& at, const DeviceSet& set, int32_t i,
                                  bool& outside) {
  auto column = static_cast<uint32_t>(i);
  uint32_t row = p.by_patch_columns.divide(column);
  const auto image = static_cast<int32_t>(p.by_patch_rows.divide(row));
  if (at.image + image >= p.batch || image >= p.tile_images) return -1;
  const int32_t r = at.row + set.origin_row + static_cast<int32_t>(row);
  const int32_t c = at.column + set.origin_column + static_cast<int32_t>(column);
  if (r >= 0 && r < p.h.in && c >= 0 && c < p.v.in) {
    return static_cast<int32_t>(image * p.x_batch_stride) + r * p.x_row_stride + c * p.x_column_stride;
  }
  outside = true;
  return -1;
}

// An output by its definition, with inputs outside the image left out instead of taken as zeros: zero times a weight
// that is infinite or NaN would be NaN, and so is a part of an infinite float32 times a part that is zero.
// `ties_to_even`: the copy engine has rounded x to TF32 so.
template <Mode mode, bool ties_to_even, class Params>
__device__ __noinline__ float exact_output(const Params& p, int32_t group, int32_t image, int32_t channel, int32_t row,
                                           int32_t column) {
  using Scalar = typename Traits<mode>::Scalar;
  const Scalar* x = static_cast<const Scalar*>(p.x) + image * p.x_batch_stride +
                    static_cast<int64_t>(group) * p.in_channels * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + static_cast<int64_t>(group) * p.in_channels * p.w_strides[0] +
                    channel * p.w_strides[1];
  return exact_sum(
      transposed_taps(p.h, row), transposed_taps(p.v, column), p.in_channels,
      [&](int32_t r, int32_t k, int32_t c) {
        float v;
        load<1>(x + (c * p.x_channel_stride + (r * p.x_row_stride + k * p.x_column_stride)), &v);
        return mode != Mode::tf32 ? v : ties_to_even ? nearest_tf32(v) : __uint_as_float(device::to_tf32(v));
      },
      [&](int32_t r, int32_t k, int32_t c) {
        float v;
        load<1>(w + (c * p.w_strides[0] + (r * p.w_strides[2] + k * p.w_strides[3])), &v);
        return mode == Mode::tf32 ? __uint_as_float(device::to_tf32(v)) : v;
      });
}

// Zeros to the counters, by all threads of the grid.
CONVT_DEVICE void clear_counters(const PackParams& p, uint32_t block, uint32_t blocks) {
#pragma unroll 1
  for (uint32_t i = block * pack_threads + threadIdx.x; i < p.counter_count; i += blocks * pack_threads) {
    p.counters[i] = 0;
  }
}

// A tile of weights to shared memory, eight words of the channels of a row and tap at a time. `from` is the tile's
// first weight; so many channels, rows and taps of it exist.
template <class Bits>
CONVT_DEVICE void load_weights(const PackParams& p, const Bits* from, int32_t channels_there, int32_t rows_there,
                               int32_t taps_there, uint32_t* words) {
  constexpr int channels_of_word = 4 / sizeof(Bits), channels = 8 * channels_of_word;
  const PackTile& tile = p.tile;
  const int32_t row_elements = tile.rows * tile.taps;
  int32_t eight = 0;
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x);; i += pack_threads) {
    for (; i >= row_elements; i -= row_elements) ++eight;
    if (eight >= pack_words / 8) break;
    auto tap = static_cast<uint32_t>(i);
    const auto row = static_cast<int32_t>(tile.by_taps.divide(tap));
    const bool valid = static_cast<int32_t>(tap) < taps_there && row < rows_there;
    const Bits* const channel = from + (eight * channels * p.strides[0] + row * p.strides[1] + tap);
    Bits values[channels];
#pragma unroll
    for (int in = 0; in < channels; ++in) {
      values[in] = 0;
      if (valid && eight * channels + in < channels_there) values[in] = __ldg(channel + in * p.strides[0]);
    }
    auto* const to = reinterpret_cast<Bits*>(
        words + (8 * eight * tile.word + row * tile.row + static_cast<int32_t>(tap) * tile.tap));
#pragma unroll
    for (int in = 0; in < channels; ++in) {
      to[in / channels_of_word * tile.word * channels_of_word + in % channels_of_word] = values[in];
    }
  }
}

// The same 16 bytes at a time, where a channel's weights of a tile are lines of whole vectors: rows of taps that follow
// each other, or taps of rows. Of a warp, four lanes read neighbouring vectors and eight neighbouring words of
// channels: sectors are whole, and lanes write to different banks.
template <class Bits>
CONVT_DEVICE void load_weight_vectors(const PackParams& p, const Bits* from, int32_t channels_there, int32_t rows_there,
                                      int32_t taps_there, uint32_t* words) {
  constexpr int channels_of_word = 4 / sizeof(Bits), count = 16 / sizeof(Bits);
  constexpr int at_once = channels_of_word == 2 ? 2 : 4, lanes_of_word = 4, words_of_warp = 32 / lanes_of_word;
  constexpr int warps_of_words = pack_words / words_of_warp, step = pack_threads / 32 / warps_of_words * lanes_of_word;
  const PackTile& tile = p.tile;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t word = warp % warps_of_words * words_of_warp + lane / lanes_of_word;
  const Bits* channel[channels_of_word];
#pragma unroll
  for (int c = 0; c < channels_of_word; ++c) channel[c] = from + (word * channels_of_word + c) * p.strides[0];
  const int32_t channels = channels_there - word * channels_of_word;  // that exist
  const int32_t lines = tile.tap == 1 ? rows_there : taps_there, line_elements = tile.tap == 1 ? tile.taps : rows_there;
  uint32_t* const to = words + word * tile.word;
#pragma unroll 1
  for (int32_t first = warp / warps_of_words * lanes_of_word + lane % lanes_of_word; first < tile.vectors;
       first += at_once * step) {
    uint4 v[at_once][channels_of_word];
    int32_t line[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int32_t at = (first + i * step) * count;
      auto element = static_cast<uint32_t>(at);
      line[i] = static_cast<int32_t>(tile.by_line.divide(element));
      const bool there =
          line[i] < lines && static_cast<int32_t>(element) < line_elements && first + i * step < tile.vectors;
#pragma unroll
      for (int c = 0; c < channels_of_word; ++c) {
        v[i][c] = make_uint4(0, 0, 0, 0);
        if (there && c < channels) {
          v[i][c] = __ldg(reinterpret_cast<const uint4*>(channel[c] + (at + line[i] * tile.line_skip)));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int32_t vector = first + i * step;
      if (vector >= tile.vectors) break;
      uint32_t* const at = to + (vector * count + line[i] * tile.line_gap);
      const uint32_t first_channel[4] = {v[i][0].x, v[i][0].y, v[i][0].z, v[i][0].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (channels_of_word == 1) {
          at[e] = first_channel[e];
        } else {
          const uint32_t second_channel[4] = {v[i][1].x, v[i][1].y, v[i][1].z, v[i][1].w};
          at[2 * e] = __byte_perm(first_channel[e], second_channel[e], 0x5410);
          at[2 * e + 1] = __byte_perm(first_channel[e], second_channel[e], 0x7632);
        }
      }
    }
  }
}

// Weights to fragments of A, and zeros to the counters. A block reads a tile of weights, some rows of a fragment by 32
// words of channels by some taps, in the order of memory, and keeps it in shared memory as [word][row][tap], or
// [word][tap][row]. Then a warp writes 512 bytes of a fragment's part at a time, 16 a lane: of a fragment of several
// rows of y, each tap to the rows that read the step's inputs by it, and zeros for rows that have no such tap. `Layout`
// says how many rows a fragment has, of how many words each of its parts is, how many words of channels a row has, how
// many warps make it, which row and word of it is word `e` of a lane, and how many words apart a tile's words are, so
// that lanes find theirs in different banks.
template <Mode mode, class Layout>
CONVT_DEVICE void pack(const PackParams& p, uint32_t number, uint32_t blocks) {
  using Scalar = typename Traits<mode>::Scalar;
  using Bits = BitsOf<Scalar>;
  constexpr int parts = Layout::parts, channels_of_word = channels_of_fragment(mode) / 8;
  constexpr int rows_of_warp = Layout::rows / Layout::warps, groups = pack_words / Layout::group_words;
  clear_counters(p, number, blocks);
  if (p.groups == 0) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  auto* const words = reinterpret_cast<uint32_t*>(device::dynamic_shared_memory());
  const PackTile& tile = p.tile;
  uint32_t row_tile = number;
  uint32_t tap_tile = tile.by_row_tiles.divide(row_tile);
  uint32_t channel_tile = tile.by_tap_tiles.divide(tap_tile);
  const uint32_t group = tile.by_channel_tiles.divide(channel_tile);
  uint32_t tile_of_fragment = row_tile;
  const uint32_t fragment_row = tile.by_tiles_of_fragment.divide(tile_of_fragment);
  const int32_t first_warp = static_cast<int32_t>(tile_of_fragment) * tile.warps;
  const auto first_tap = static_cast<int32_t>(tap_tile) * tile.taps;
  const int32_t taps = smaller<int32_t>(tile.taps, static_cast<int32_t>(p.by_taps.divisor) - first_tap);
  const int32_t first_out = static_cast<int32_t>(fragment_row) * Layout::rows + first_warp * rows_of_warp;
  const int32_t first_in = static_cast<int32_t>(channel_tile) * pack_words * channels_of_word;
  auto tap_column = static_cast<uint32_t>(first_tap);
  const uint32_t tap_row = p.by_kernel_w.divide(tap_column);
  const Bits* const from = static_cast<const Bits*>(p.w) +
                           (static_cast<int64_t>(group) * p.in_channels + first_in) * p.strides[0] +
                           first_out * p.strides[1] + tap_row * p.strides[2] + tap_column * p.strides[3];
  // A tap alone that no output is reached by is left out.
  bool wanted = tile.taps > 1;
#pragma unroll 1
  for (int32_t copy = 0; copy < p.copies && !wanted; ++copy) wanted = p.set_of_tap[first_tap * p.copies + copy] >= 0;
  const int32_t rows = smaller(tile.rows, p.out_channels - first_out);  // that exist
  if (wanted && tile.vectors > 0) {
    load_weight_vectors<Bits>(p, from, p.in_channels - first_in, rows, taps, words);
  } else if (wanted) {
    load_weights<Bits>(p, from, p.in_channels - first_in, rows, taps, words);
  }
  __syncthreads();
  const int32_t lane = thread % 32;
  uint32_t block = fragment_row;
  const uint32_t channel_block = p.by_channel_blocks.divide(block);
  const uint32_t channel_groups = p.by_channel_groups.divisor, first_group = channel_tile * groups;
  const uint32_t first_fragment =
      (group * static_cast<uint32_t>(p.channel_tiles) + channel_block) * channel_groups + first_group;
  uint4* const to = static_cast<uint4*>(p.packed) + lane;
  // 512 bytes of each part of a fragment, of the channels of `next_group`.
  const auto write = [&](int32_t set, int32_t slot, int32_t row, uint32_t next_group, int32_t warp,
                         const uint32_t (&v)[parts][4]) {
    const uint32_t fragment = static_cast<uint32_t>(p.sets[set].packed + slot) + block +
                              (first_fragment + next_group) * static_cast<uint32_t>(p.sets[set].fragments);
    uint4* const at = to + static_cast<int64_t>(fragment) * (Layout::parts * Layout::words / 4) +
                      (row * tile.warps_of_row + first_warp + warp) * 32;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      device::store_global_16(at + part * (Layout::words / 4), v[part], p.policy);
    }
  };
#pragma unroll 1
  for (int32_t i = thread / 32; i < taps * groups * tile.warps; i += pack_threads / 32) {
    auto warp = static_cast<uint32_t>(i);
    const uint32_t tap_and_group = tile.by_warps.divide(warp);
    const uint32_t tap = tap_and_group / groups, next_group = tap_and_group % groups;
    if (first_group + next_group >= channel_groups) continue;
    const auto of_tile = static_cast<int32_t>(warp);
    uint32_t packed[parts][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t k =
          static_cast<int32_t>(next_group) * Layout::group_words + Layout::k(first_warp + of_tile, lane, e);
      packed[0][e] =
          words[k * tile.word + Layout::row(of_tile, lane, e) * tile.row + static_cast<int32_t>(tap) * tile.tap];
      if constexpr (mode == Mode::ieee) split(__uint_as_float(packed[0][e]), packed[0][e], packed[1][e]);
    }
    if constexpr (mode == Mode::tf32) tf32_operands(packed[0]);
    const int32_t first_copy = (first_tap + static_cast<int32_t>(tap)) * p.copies;
#pragma unroll 1
    for (int32_t at = first_copy; at < first_copy + p.copies; ++at) {
      const int32_t set = p.set_of_tap[at];
      if (set >= 0) write(set, p.slot_of_tap[at], p.row_of_tap[at], next_group, of_tile, packed);
    }
  }
#pragma unroll 1
  for (uint32_t zero = tap_tile; zero < static_cast<uint32_t>(p.zero_count); zero += tile.by_tap_tiles.divisor) {
#pragma unroll 1
    for (int32_t i = thread / 32; i < groups * tile.warps; i += pack_threads / 32) {
      auto warp = static_cast<uint32_t>(i);
      const uint32_t next_group = tile.by_warps.divide(warp);
      if (first_group + next_group >= channel_groups) continue;
      const uint32_t nothing[parts][4] = {};
      write(p.zeros[zero].set, p.zeros[zero].slot, p.zeros[zero].row, next_group, static_cast<int32_t>(warp), nothing);
    }
  }
}

template <Mode mode, class Layout>
__global__ void __launch_bounds__(pack_threads, fewest_resident_pack_blocks)
    pack_kernel(const __grid_constant__ PackParams p) {
  device::let_next_kernel_start();
  pack<mode, Layout>(p, blockIdx.x, gridDim.x);
}

// The tile of a block, as large as there is room for. If taps lie next to each other, and channels of an output next to
// those, it has all taps of some rows; else, as in channels_last, a few taps of all rows. It is smaller if there
// are fewer blocks than `fewest_blocks`.
template <Mode mode, class Layout>
void choose_pack_tile(PackParams& p, int64_t fewest_blocks = fewest_pack_blocks) {
  constexpr int64_t element_bytes = sizeof(typename Traits<mode>::Scalar);
  const int64_t taps = p.by_taps.divisor, width = p.by_kernel_w.divisor;
  const bool taps_innermost = (width == 1 || p.strides[3] == 1) && (taps == width || p.strides[2] == width);
  const int64_t copies = taps * p.copies;
  const bool all_taps_wanted = std::all_of(p.set_of_tap, p.set_of_tap + copies, [](int16_t set) { return set >= 0; });
  PackTile& t = p.tile;
  const int32_t warps = Layout::warps / p.stacked;
  const auto whole_vectors = [](int64_t elements) { return elements * element_bytes % 16 == 0; };
  const bool aligned = whole_vectors(p.strides[0]) && reinterpret_cast<uintptr_t>(p.w) % 16 == 0;
  // Lines are rows of all taps, or taps of rows.
  const auto takes_vectors = [&](int64_t rows) {
    if (taps_innermost) {
      return aligned && t.taps == taps && p.strides[1] == taps && (taps % 2 != 0 || whole_vectors(taps)) &&
             whole_vectors(rows * taps) && whole_vectors(p.out_channels * taps);
    }
    return aligned && p.strides[1] == 1 && whole_vectors(rows) && whole_vectors(p.out_channels) &&
           whole_vectors(p.strides[2]) && whole_vectors(p.strides[3]);
  };
  t.warps = t.warps_of_row = warps, t.taps = static_cast<int32_t>(taps);
  if (!taps_innermost) {
    const bool as_lines = takes_vectors(int64_t{warps} * (Layout::rows / Layout::warps)) && all_taps_wanted &&
                          (taps == width || p.strides[2] == width * p.strides[3]);
    t.taps = as_lines ? static_cast<int32_t>(std::min<int64_t>(taps, most_pack_lines)) : 1;
  }
  const auto lay_out = [&] {
    t.rows = t.warps * (Layout::rows / Layout::warps);
    t.row = taps_innermost ? t.taps | 1 : 1, t.tap = taps_innermost ? 1 : t.rows;
    t.word = Layout::pitch(taps_innermost ? t.rows * t.row : t.taps * t.tap);
    t.vectors = takes_vectors(t.rows) ? static_cast<int32_t>(t.rows * t.taps * element_bytes / 16) : 0;
    return t.shared_bytes = 4 * pack_words * t.word;
  };
  constexpr int64_t groups = pack_words / Layout::group_words;
  const int64_t channel_tiles = ceil_div<int64_t>(p.by_channel_groups.divisor, groups);
  const auto halves_have_vectors = [&] {
    return (!taps_innermost && t.taps > 1) || (t.warps > 1 && takes_vectors(t.rows / 2));
  };
  // Of few weights blocks have no more than a thread reads at once: what takes time is to wait for memory.
  const auto waits_again = [&] {
    const int64_t blocks =
        p.by_fragment_rows.divisor * (warps / t.warps) * ceil_div<int64_t>(taps, t.taps) * channel_tiles * p.groups;
    if (blocks >= fewest_blocks) return false;
    if (t.vectors == 0) return t.rows * t.taps * (pack_words / 8) > pack_threads;
    return halves_have_vectors();
  };
  const auto too_large = [&] {
    const bool large_of_vectors = lay_out() > most_vector_pack_bytes && t.vectors > 0 && halves_have_vectors();
    return t.shared_bytes > most_pack_bytes || large_of_vectors || waits_again();
  };
  const auto halve_taps = [&] {
    while (too_large() && t.taps > 1) t.taps = (t.taps + 1) / 2;
  };
  if (!taps_innermost) halve_taps();
  while (too_large() && t.warps > 1) t.warps /= 2;
  halve_taps();
  t.by_line = Divisor(taps_innermost ? t.taps : t.rows), t.line_gap = taps_innermost ? t.row - t.taps : 0;
  t.line_skip = taps_innermost ? 0 : static_cast<int32_t>(p.strides[3]) - t.rows;
  const int64_t tiles_of_fragment = warps / t.warps, row_tiles = p.by_fragment_rows.divisor * tiles_of_fragment;
  const int64_t tap_tiles = ceil_div<int64_t>(taps, t.taps);
  t.by_taps = Divisor(t.taps), t.by_warps = Divisor(t.warps), t.by_tiles_of_fragment = Divisor(tiles_of_fragment);
  t.by_row_tiles = Divisor(row_tiles), t.by_tap_tiles = Divisor(tap_tiles);
  t.by_channel_tiles = Divisor(channel_tiles);
  t.blocks = std::max<int64_t>(1, row_tiles * tap_tiles * channel_tiles * p.groups);  // one clears the counters
}

}  // namespace convt::implicit_gemm
