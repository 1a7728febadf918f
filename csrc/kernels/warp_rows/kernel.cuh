// A warp computes rows of outputs of 8 channels, for some columns of x that lie beside each other: the rows of a
// product are those columns, its columns the output channels. It goes down the rows of x: the last ones are in
// registers, the next one is read while those are multiplied. All phases of a row's columns are in registers, too, so
// that a lane stores neighbouring outputs. What a block shares are its weights. In channels_last (Last) a lane reads
// and writes the pair of channels of a pixel that it has in a product: four lanes all eight.
#pragma once

#include "../device.h"
#include "../load_if.h"
#include "../products.h"
#include "params.h"

namespace convt::warp_rows {

// What a warp computes: 8 output channels (`tile`) of a group, or the next 8 too, and of the first of its rows of x on.
struct Part {
  int32_t image, group, tile, strip, row;
  int32_t slot;  // of its tile, in the block
  bool exists;
};

// Blocks that follow each other go down the rows of the same channels; in channels_last they have all channels first.
template <Writes writes>
CONVT_DEVICE Part part_of(const Params& p, uint32_t index, int32_t warp) {
  constexpr bool Last = writes == Writes::pixels;
  uint32_t tile = index;
  if constexpr (Last) index = p.tile_blocks.divide(tile);
  uint32_t chunk = index, strip = p.chunks.divide(chunk), image = p.strip_blocks.divide(strip);
  if constexpr (!Last) tile = image, image = p.tile_blocks.divide(tile);
  const int32_t slot = Last ? warp & ((1 << p.tile_bits) - 1) : 0;
  if constexpr (Last) tile = (tile << p.tile_bits) + static_cast<uint32_t>(slot), warp >>= p.tile_bits;
  const int32_t bits = p.strip_bits + (Last ? p.tile_bits : 0);
  const auto group = static_cast<int32_t>(p.tiles.divide(tile));
  if constexpr (writes == Writes::sectors) {
    auto of_block = static_cast<uint32_t>(warp);
    const auto rows_before = static_cast<int32_t>(p.block_strips.divide(of_block)),
               strips = static_cast<int32_t>(p.block_strips.divisor);
    return {static_cast<int32_t>(image),
            group,
            static_cast<int32_t>(tile) * p.t.warp_tiles,
            static_cast<int32_t>(strip) * strips + static_cast<int32_t>(of_block),
            (static_cast<int32_t>(chunk) * (warps / strips) + rows_before) * p.t.rows,
            0,
            true};
  }
  return {static_cast<int32_t>(image),
          group,
          static_cast<int32_t>(tile) * p.t.warp_tiles,
          (static_cast<int32_t>(strip) << p.strip_bits) + (warp & ((1 << p.strip_bits) - 1)),
          static_cast<int32_t>(chunk) * (p.t.rows * warps >> bits) + (warp >> p.strip_bits) * p.t.rows,
          slot,
          !Last || group < p.groups};
}

// Tiles of a warp that exist.
CONVT_DEVICE int32_t tiles_of(const Params& p, const Part& b) { return smaller(p.t.warp_tiles, p.t.tiles - b.tile); }

// The weights of a tile's output channels, or of Two: of a kernel row, a phase and a column of x, as a lane multiplies
// them. The warps of a tile share them out, each of which has some of them on their way at a time.
template <class Scalar, bool Strict, int Steps, Writes writes>
struct Weights {
  static constexpr bool Last = writes == Writes::pixels, Two = has_two_tiles(writes);
  static constexpr int words = fragment_words(sizeof(Scalar), Strict), together = Last ? 6 : 3;

  const Params& p;
  const Scalar* w;   // of the lane's channels
  bool has[2];       // of the lane's input channels, of the first step
  uint32_t windows;  // kernel rows x phases x columns of x x steps
  uint32_t count;    // of all tiles
  int32_t left;      // output channels of the group, the lane's of the first tile and those behind it
  uint32_t first;    // of those on their way
  uint32_t elements[together][2];

  CONVT_DEVICE Weights(const Params& params, const Part& b) : p(params) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t co = b.tile * 8 + lane / 4, ci = lane % 4 * 2;
    w = static_cast<const Scalar*>(p.w) + int64_t{b.group * p.cin + ci} * p.w_in + int64_t{co} * p.w_out;
#pragma unroll
    for (int e = 0; e < 2; ++e) has[e] = b.exists && (Two || co < p.cout) && ci + e < p.cin;
    windows = static_cast<uint32_t>(p.kernel_h) * p.window.divisor * Steps;
    count = Two ? windows * static_cast<uint32_t>(tiles_of(p, b)) : windows;
    left = p.cout - co;
    first = threadIdx.x / 32 >> (Last ? p.tile_bits : 0);
    load();
  }

  // Writes all of them to shared memory. True if one is not finite.
  CONVT_DEVICE bool write(uint32_t* weights) {
    bool bad = false;
    while (true) {
#pragma unroll
      for (int k = 0; k < together; ++k) {
        if (first + k * step() >= count) return bad;
        const uint32_t (&element)[2] = elements[k];
        uint32_t* to = weights + ((first + k * step()) * 32 + threadIdx.x % 32) * words;
        if constexpr (Strict) {
          uint32_t parts[3];
          float left[2];
          split_pair(element[0], element[1], parts, left);
          *reinterpret_cast<uint4*>(to) = make_uint4(parts[2], parts[1], parts[1], parts[0]);  // see multiply
          bad |= !(left[0] + left[1] == 0);
        } else if constexpr (sizeof(Scalar) == 4) {
          const uint32_t low = operand<Scalar, Strict>(element[0]), high = operand<Scalar, Strict>(element[1]);
          *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
          bad |= not_finite<Scalar>(low) || not_finite<Scalar>(high);
        } else {
          *to = element[0] | element[1] << 16;
          bad |= not_finite<Scalar>(*to);
        }
      }
      first += together * step();
      load();
    }
  }

 private:
  // Warps of the tile.
  CONVT_DEVICE uint32_t step() const {
    if constexpr (writes == Writes::sectors) return blockDim.x / 32;
    return Last ? warps >> p.tile_bits : warps;
  }
  CONVT_DEVICE void load() {
#pragma unroll
    for (int k = 0; k < together; ++k) {
      uint32_t column = first + k * step();
      const bool second = Two && column >= windows;  // tile
      const bool is = column < count && (!Two || left > (second ? 8 : 0));
      if (second) column -= windows;
      const auto channel = static_cast<int32_t>(column % Steps) * step_channels;  // the step's first
      column /= Steps;
      const auto row = static_cast<int32_t>(p.window.divide(column));
      const int32_t tap = p.tap_columns[column];
      const Scalar* at = w + int64_t{row} * p.w_row + int64_t{tap} * p.w_column;
      if constexpr (Steps > 1) at += int64_t{channel} * p.w_in;
      if (second) at += int64_t{8} * p.w_out;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool has_channel =
            has[e] && (Steps == 1 || channel < p.cin - static_cast<int32_t>(threadIdx.x % 4 * 2) - e);
        load_if<sizeof(Scalar)>(is && tap >= 0 && has_channel, e == 0 ? at : at + p.w_in, &elements[k][e]);
      }
    }
  }
};

// From here on, an element is not the sum of its parts: the first one may be infinite.
constexpr float largest_of_parts = 0x1.fep127f;

// Of two channels, the columns of x that a lane multiplies: those of its outputs and the next Columns - 1. The rows g
// and g + 8 of tile m are its columns m and m + half, so that another column of the kernel takes those of tile m + 1.
// Words of 16-bit elements begin where rows do if they are Aligned.
template <class Scalar, bool Strict, int OfLane, int Columns, bool Aligned, bool Last>
struct Window {
  static constexpr bool packed = sizeof(Scalar) == 2 && !Last;  // two columns a word
  static constexpr int count = OfLane + Columns - 1, half = OfLane / 2, tiles = half + Columns - 1;
  // Of x: of a channel or, where a word has both, of the pair; of a tile; of a warp.
  static constexpr int all_words = warp_rows::raw_words(sizeof(Scalar), OfLane, Columns, Last),
                       raw_channels = Last && sizeof(Scalar) == 2 ? 1 : 2, raw_words = all_words / raw_channels;
  static constexpr int words = Strict ? 6 : sizeof(Scalar) == 4 ? 4 : 2;
  static constexpr uint32_t buffer_bytes = all_words * 128;
  // Lanes have what was copied beside each other, as many bytes of a copy.
  static constexpr uint32_t copy_bytes = Last ? 2 * sizeof(Scalar) : 4;
  using Tiles = uint32_t[tiles][words];
  using Raw = uint32_t[raw_channels][raw_words];

  // Whether elements begin with the second half of a word.
  CONVT_DEVICE static int32_t odd(const Scalar* x, int32_t column) {
    if constexpr (!packed) return 0;
    return Aligned ? column & 1 : static_cast<int32_t>(reinterpret_cast<uintptr_t>(x) / 2) & 1;
  }

  // `x` is at `column`, which need not be in the row, unless the row is known to have All columns, those of the words
  // around them too.
  template <bool All>
  CONVT_DEVICE static void read(const Params& p, const Scalar* x, int32_t column, bool first, bool second, Raw& raw) {
    const auto in = static_cast<uint32_t>(p.w_axis.in);
    const auto has = [&](int32_t k) { return All || static_cast<uint32_t>(column + k) < in; };
    if constexpr (Last) {
#pragma unroll
      for (int k = 0; k < count; ++k) {
        uint32_t pair[raw_channels];
        load_if<copy_bytes>(first && has(k), x + k * p.x_column, pair);
#pragma unroll
        for (int e = 0; e < raw_channels; ++e) raw[e][k] = pair[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Scalar* from = e == 0 ? x : x + p.x_channel;
        const bool is = e == 0 ? first : second;
        if constexpr (sizeof(Scalar) == 4) {
#pragma unroll
          for (int k = 0; k < count; ++k) load_if<4>(is && has(k), from + k, &raw[e][k]);
        } else {
          // Whole words, whether or not the row begins with one.
          const int32_t before = odd(from, column);
          from -= before;
#pragma unroll
          for (int k = 0; k < raw_words; ++k) {
            const bool low = is && has(2 * k - before), high = is && has(2 * k - before + 1);
            if constexpr (All || Aligned) {
              load_if<4>(low, from + 2 * k, &raw[e][k]);
            } else {
              uint32_t element;
              load_if<4>(low && high, from + 2 * k, &raw[e][k]);
              load_if<2>(low != high, from + 2 * k + (low ? 0 : 1), &element);
              raw[e][k] |= low ? element : element << 16;
            }
          }
        }
      }
    }
  }

  // Begins to copy the same to shared memory, where a word of all lanes follows another.
  template <bool All>
  CONVT_DEVICE static void fetch(const Params& p, const Scalar* x, int32_t column, bool first, bool second,
                                 device::SharedAddress to) {
    const auto has = [&](int32_t k) {
      return All || static_cast<uint32_t>(column + k) < static_cast<uint32_t>(p.w_axis.in);
    };
    // Of words that are not read: aligned.
    const Scalar* none = static_cast<const Scalar*>(p.x);
    if constexpr (Last) {
#pragma unroll
      for (int k = 0; k < count; ++k, to += 32 * copy_bytes) {
        const bool is = first && has(k);
        device::cp_async<copy_bytes>(to, is ? x + k * p.x_column : none, is ? copy_bytes : 0);
      }
    } else {
      if constexpr (packed && !Aligned) none -= odd(none, 0);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Scalar* from = e == 0 ? x : x + p.x_channel;
        const bool is = e == 0 ? first : second;
        const int32_t before = odd(from, column);
        from -= before;
#pragma unroll
        for (int k = 0; k < raw_words; ++k, to += 128) {
          const Scalar* word = from + (packed ? 2 * k : k);
          if constexpr (!packed) {
            device::cp_async<4>(to, is && has(k) ? word : none, is && has(k) ? 4 : 0);
          } else if constexpr (Aligned) {
            const bool whole = is && has(2 * k - before);
            device::cp_async<4>(to, whole ? word : none, whole ? 4 : 0);
          } else {
            const bool low = is && has(2 * k - before), high = is && has(2 * k - before + 1);
            if (!All && high && !low && word < p.x) {
              // Half of the word is before the tensor.
              device::store_shared_4(to, __uint_as_float(bits(word + 1) << 16));
            } else {
              device::cp_async<4>(to, low || high ? word : none, high ? 4 : low ? 2 : 0);
            }
          }
        }
      }
    }
  }
  // What was copied from `column` on, as `before` of convert says.
  CONVT_DEVICE static void take(device::SharedAddress from, int32_t column, const int32_t (&before)[2], Raw& raw) {
    if constexpr (Last) {
#pragma unroll
      for (int k = 0; k < raw_words; ++k, from += 32 * copy_bytes) {
        if constexpr (raw_channels == 2) {
          const uint2 pair = device::load_shared_8(from);
          raw[0][k] = pair.x, raw[1][k] = pair.y;
        } else {
          raw[0][k] = device::load_shared_4(from);
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int k = 0; k < raw_words; ++k, from += 128) {
          raw[e][k] = device::load_shared_4(from);
          // Half of the word with the row's first column may be no column.
          if (packed && !Aligned && column - before[e] + 2 * k == -1) raw[e][k] &= 0xffff0000;
        }
      }
    }
  }

  // The largest magnitude of float32's elements and `v`, NaN if one is.
  CONVT_DEVICE static float largest(float v, const Raw& raw) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
#pragma unroll
      for (int e = 0; e < 2; ++e) v = device::max_or_nan(v, fabsf(__uint_as_float(raw[e][k])));
    }
    return v;
  }

  // As they are multiplied. `before`: columns that the words of each channel have before the first one.
  CONVT_DEVICE static void convert(const int32_t (&before)[2], const Raw& raw, Tiles& to) {
    constexpr int parts = Strict ? 3 : sizeof(Scalar) == 4 ? 2 : 1;  // of a column: of TF32, the channels
    uint32_t of_column[count][parts];
    if constexpr (Strict) {
#pragma unroll
      for (int k = 0; k < count; ++k) {
        float left[2];
        split_pair(raw[0][k], raw[1][k], of_column[k], left);
      }
    } else if constexpr (sizeof(Scalar) == 4) {
      uint32_t all[2 * count];
#pragma unroll
      for (int k = 0; k < count; ++k) all[2 * k] = raw[0][k], all[2 * k + 1] = raw[1][k];
      tf32_operands(all);
#pragma unroll
      for (int k = 0; k < count; ++k) of_column[k][0] = all[2 * k], of_column[k][1] = all[2 * k + 1];
    } else if constexpr (Last) {
#pragma unroll
      for (int k = 0; k < count; ++k) of_column[k][0] = raw[0][k];
    } else {
      uint32_t even[2][raw_words];  // words that begin at the first column
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int k = 0; k < raw_words; ++k) {
          even[e][k] =
              __funnelshift_r(raw[e][k], k + 1 < raw_words ? raw[e][k + 1] : 0, static_cast<uint32_t>(before[e]) * 16);
        }
      }
#pragma unroll
      for (int k = 0; k < count; ++k) {
        of_column[k][0] = __byte_perm(even[0][k / 2], even[1][k / 2], k % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
#pragma unroll
    for (int m = 0; m < tiles; ++m) {
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        to[m][2 * part] = of_column[m][part], to[m][2 * part + 1] = of_column[m + half][part];
      }
    }
  }
};

// Adds to the sums of some tiles their products with the same weights, of `Taps` columns of the kernel.
template <class Scalar, bool Strict, bool Apart, int Taps, int Tiles, int Words, int WeightWords>
CONVT_DEVICE void multiply_tiles(float (*const (&sums)[Tiles])[4], const uint32_t (*const (&a)[Taps][Tiles])[Words],
                                 const uint32_t (&b)[Taps][WeightWords]) {
  if constexpr (Strict) {
    // The products of parts as in multiply, but one by one: operands of four registers beside each other would leave
    // too few, and what is spilled costs more. The tensor core sums two taps at most. Where there are registers for it,
    // the larger products have a sum of their own, and wait for no others.
    float small[Tiles][4], of_large[Tiles][4];
    auto& large = Apart ? of_large : small;
    const auto product = [&](float (&sum)[Tiles][4], int of_a, int of_b, bool first) {
#pragma unroll
      for (int c = 0; c < Taps; ++c) {
        const uint32_t w[1] = {b[c][of_b == 2 ? 0 : of_b == 1 ? 1 : 3]};
#pragma unroll
        for (int m = 0; m < Tiles; ++m) {
          const uint32_t x[2] = {(*a[c][m])[2 * of_a], (*a[c][m])[2 * of_a + 1]};
          if (first && c == 0) {
            multiply_first(sum[m], x, w);
          } else {
            device::mma_m16n8k8<BFloat16>(sum[m], x, w);
          }
        }
      }
    };
    product(small, 1, 1, true);
    product(small, 0, 2, false);
    product(small, 2, 0, false);
    product(large, 0, 1, Apart);
    product(large, 1, 0, false);
    product(large, 0, 0, false);
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
#pragma unroll
      for (int q = 0; q < 4; ++q) (*sums[m])[q] += Apart ? small[m][q] + large[m][q] : small[m][q];
    }
  } else {
    static_assert(Taps == 1);
#pragma unroll
    for (int m = 0; m < Tiles; ++m) multiply<Scalar, false, sizeof(Scalar) == 4 ? 8 : 4>(*sums[m], *a[0][m], b[0]);
  }
}

// A lane's words of weights.
template <int N>
CONVT_DEVICE void load_fragment(const uint32_t* from, uint32_t (&to)[N]) {
  if constexpr (N == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (N == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}

// Of a row of a channel, the columns that a strip's warp writes, from the strip's first one on, which is at `to`: those
// of the sectors that begin in the strip; and at either end of the row what is no whole sector.
struct Written {
  int32_t begin, end;
};
template <int Columns, class Scalar>
CONVT_DEVICE Written written(const Params& p, int32_t strip, const Scalar* to) {
  constexpr int32_t size = sizeof(Scalar);
  const auto place = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to));
  const auto before = [&](int32_t columns) {  // of the last sector's begin
    return columns - static_cast<int32_t>((place + static_cast<uint32_t>(columns * size)) % sector_bytes) / size;
  };
  constexpr int32_t of_sector = sector_bytes / size;
  const int32_t left = p.w_axis.out - strip * Columns, last = before(left);
  return {strip == 0 ? 0 : smaller(before(of_sector - 1), last),
          strip + 1 == p.t.strips ? left : smaller(before(Columns + of_sector - 1), last)};
}

// Computes a warp's outputs of a tile again where they are NaN.
template <class Scalar, bool Strict, int Columns, Writes writes>
__noinline__ __device__ void repair(const Params& p, const float* bias, int32_t tile) {
  constexpr bool Last = writes == Writes::pixels, sectors = writes == Writes::sectors;
  // Rows and columns are counted, see Counted: those that are skipped do not exist.
  const Part b = part_of<writes>(p, blockIdx.x, static_cast<int32_t>(threadIdx.x) / 32);
  const int32_t co = tile * 8, channels = smaller(8, p.cout - co);
  const int32_t out_column = b.strip * Columns;
  const int32_t columns = smaller(p.w_axis.out - out_column, Columns);
  const int32_t first = b.row * p.h.stride < p.skipped_rows ? p.skipped_rows : b.row * p.h.stride;
  const int32_t last = smaller((b.row + p.t.rows) * p.h.stride, p.h.out);
  const int32_t skipped = out_column < p.skipped_columns ? p.skipped_columns - out_column : 0;
  const Scalar* image = static_cast<const Scalar*>(p.x) + b.image * p.x_batch;
  __syncwarp();  // the outputs are stored
#pragma unroll 1
  for (int32_t row = first; row < last; ++row) {
    const int64_t y_column = Last ? p.y_column : 1;
    const int32_t first_column = out_column + skipped;
    Scalar* to = static_cast<Scalar*>(p.y) + b.image * p.y_batch + (b.group * p.cout + co) * p.y_channel +
                 (row - p.skipped_rows) * p.y_row + (first_column - p.skipped_columns) * y_column;
    const auto place = [&](int32_t channel, int32_t column) {
      return to + (channel * p.y_channel + column * y_column);
    };
    const auto value = [&](int32_t channel, int32_t column) {
      return bias[channel] + sum_of_phases<Scalar, Strict>(p, image, row, first_column + column, b.group, co + channel);
    };
    if constexpr (sectors) {
#pragma unroll 1
      for (int32_t c = 0; c < channels; ++c) {
        const Written w = written<Columns>(p, b.strip, place(c, 0));
        repair_outputs<Scalar>(
            1, w.end - w.begin, [&](int32_t, int32_t column) { return place(c, w.begin + column); },
            [&](int32_t, int32_t column) { return value(c, w.begin + column); });
      }
    } else {
      repair_outputs<Scalar>(channels, columns - skipped, place, value);
    }
  }
}

// A lane's outputs of a row, one after the other, of which value(tile, half, phase, q) is one: of channel number `q` of
// the lane's two.
template <int OfLane, int Stride, class Value>
CONVT_DEVICE void outputs_of_lane(const Value& value, int q, float (&v)[OfLane * Stride]) {
  constexpr int half = OfLane / 2;
#pragma unroll
  for (int e = 0; e < OfLane; ++e) {
#pragma unroll
    for (int r = 0; r < Stride; ++r) v[e * Stride + r] = value(e % half, e / half, r, q);
  }
}

// Where a warp writes rows of outputs, of which `left` columns are in the image. A lane stores its outputs where they
// are a vector of 16 bytes; others meet in shared memory, for vectors as wide as rows of y allow.
template <class Scalar, bool Strict, int Stride, int Rows>
struct Output {
  static constexpr int of_lane = lane_columns(sizeof(Scalar), Stride), run = of_lane * Stride, columns_of_run = 8 * run;
  static constexpr int columns = columns_of_run * lane_runs(sizeof(Scalar), Strict, Stride, Rows);
  static constexpr int whole = 16 / sizeof(Scalar), pitch = stage_pitch(sizeof(Scalar), Strict, Stride, Rows);

  Scalar* stage;  // the warp's
  int32_t width, channels, left;
  int64_t y_channel;
  int lane;

  CONVT_DEVICE bool stages() const { return run != whole || width != whole; }

  // A lane's outputs of a row and a run: value(tile, half, phase, q) is of channel 2 (lane % 4) + q. `to` is the warp's
  // first output of the row.
  template <class Value>
  CONVT_DEVICE void put(Scalar* to, int which, const Value& value) const {
    const int channel = lane % 4 * 2, column = which * columns_of_run + lane / 4 * run;
    const bool direct = !stages();
    Scalar* at = to + (channel * y_channel + column);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      float v[run];
      outputs_of_lane<of_lane, Stride>(value, q, v);
      if (direct) {
        if (channel + q < channels && column < left) store<whole>(q == 0 ? at : at + y_channel, v);
      } else {
#pragma unroll
        for (int i = 0; i < run; i += whole) store<whole>(stage + ((channel + q) * pitch + column + i), v + i);
      }
    }
  }
  CONVT_DEVICE void end_row(Scalar* to, const float*) const {
    if (!stages()) return;
    __syncwarp();
    with_width([&]<int Width>() {
      copy<Width>(to, [&](int32_t channel) {
        return
            [from = stage + channel * pitch](int32_t at) { return *reinterpret_cast<const Words<Width>*>(from + at); };
      });
    });
    __syncwarp();
  }

  // A row without taps.
  CONVT_DEVICE void put_bias(Scalar* to, const float* bias) const {
    with_width([&]<int Width>() {
      copy<Width>(to, [&](int32_t channel) {
        Words<Width> words;
        const uint32_t word = word_of(bias[channel]);
#pragma unroll
        for (auto& v : words.v) v = static_cast<typename Words<Width>::Word>(word);
        return [words](int32_t) { return words; };
      });
    });
  }

 private:
  // Vectors of at least 4 bytes are words.
  template <int Width>
  struct alignas(Width * sizeof(Scalar)) Words {
    using Word = std::conditional_t<Width * sizeof(Scalar) == 2, uint16_t, uint32_t>;
    static constexpr int count = Width * sizeof(Scalar) / sizeof(Word);
    Word v[count];
  };

  CONVT_DEVICE static uint32_t word_of(float v) {
    if constexpr (sizeof(Scalar) == 4) {
      return __float_as_uint(v);
    } else {
      return pack(Scalar{}, v, v);
    }
  }

  template <class F>
  CONVT_DEVICE void with_width(const F& f) const {
    if (width == whole) {
      f.template operator()<whole>();
    } else if (width >= whole / 2) {
      f.template operator()<whole / 2>();
    } else if (sizeof(Scalar) == 4 || width == 1) {
      f.template operator()<1>();
    } else {
      f.template operator()<2>();
    }
  }

  // Vectors of a row of each channel: from_channel(channel)(column).
  template <int Width, class FromChannel>
  CONVT_DEVICE void copy(Scalar* to, const FromChannel& from_channel) const {
    constexpr int vectors = columns / Width, rounds = ceil_div(vectors, 32);
    to += lane * Width;
    bool is[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      is[i] = (i * 32 + 32 <= vectors || i * 32 + lane < vectors) && (i * 32 + lane) * Width < left;
    }
    const auto copy_channel = [&](int c) {
      const auto from = from_channel(c);
#pragma unroll
      for (int i = 0; i < rounds; ++i) {
        if (is[i]) *reinterpret_cast<Words<Width>*>(to + i * 32 * Width) = from((i * 32 + lane) * Width);
      }
      to += y_channel;
      device::forget(to);  // or the places of all channels would be kept from row to row
    };
    if (channels == 8) {
#pragma unroll
      for (int c = 0; c < 8; ++c) copy_channel(c);
    } else {
#pragma unroll 1
      for (int c = 0; c < channels; ++c) copy_channel(c);
    }
  }
};

// The same in channels_last: a lane stores its pair of channels of a pixel, with three others 8 channels. Of 16 bits
// that is half a sector of memory, which is read before a part of it is written: there the tiles of warps beside each
// other meet in shared memory, so that all of a pixel is stored, 16 bytes of channels at a time, if tiles are whole and
// y is aligned.
template <class Scalar, bool Strict, int Stride, int Rows>
struct LastOutput {
  static constexpr int of_lane = lane_columns(sizeof(Scalar), Stride), run = of_lane * Stride, columns_of_run = 8 * run;
  static constexpr int runs = lane_runs(sizeof(Scalar), Strict, Stride, Rows), columns = columns_of_run * runs;
  static constexpr int vector = 16 / sizeof(Scalar), vectors_of_tile = 8 / vector;
  static constexpr bool stages = stages_pixels(sizeof(Scalar));

  const Params& p;
  int lane, warp;
  int32_t channels, left;
  // Of what is staged, and of those that meet, see below. In float32 they are computed where they are needed, which is
  // seldom: there are no registers for them.
  device::SharedAddress staged;
  int meeting;
  uint32_t buffer = 0;  // of the next row

  CONVT_DEVICE LastOutput(const Params& params, int lane_number, int warp_number, int32_t of_tile, int32_t columns_left)
      : p(params), lane(lane_number), warp(warp_number), channels(of_tile), left(columns_left) {
    if constexpr (stages) staged = find_stage(), meeting = count_present();
  }

  template <class Value>
  CONVT_DEVICE void put(Scalar* to, int which, const Value& value) const {
    constexpr int half = of_lane / 2;
    const int channel = lane % 4 * 2, column = which * columns_of_run + lane / 4 * run;
    const auto pair = [&](int i, float (&v)[2]) {
#pragma unroll
      for (int q = 0; q < 2; ++q) v[q] = value(i / Stride % half, i / Stride / half, i % Stride, q);
    };
    if constexpr (stages) {
      if (has_vectors()) {
        const auto first = static_cast<uint32_t>((column << p.tile_bits) + slot());
        const device::SharedAddress begin = staged + buffer + static_cast<uint32_t>(channel * sizeof(Scalar));
#pragma unroll
        for (int i = 0; i < run; ++i) {
          float v[2];
          pair(i, v);
          device::store_shared_4(begin + 16 * place(first + (static_cast<uint32_t>(i) << p.tile_bits), column),
                                 __uint_as_float(pack(Scalar{}, v[0], v[1])));
        }
        return;
      }
    }
    const bool first = channel < channels, second = channel + 1 < channels;
    Scalar* const at = to + (channel * p.y_channel + column * p.y_column);
#pragma unroll
    for (int i = 0; i < run; ++i) {
      float v[2];
      pair(i, v);
      const bool is = column + i < left;
      Scalar* const pixel = at + i * p.y_column;
      if (p.store_width > 1) {
        store_if<2>(is && first, pixel, v);
      } else {
        store_if<1>(is && first, pixel, v);
        store_if<1>(is && second, pixel + p.y_channel, v + 1);
      }
    }
  }
  // The next row is written to the other buffer; a row later, nobody reads this one any more.
  CONVT_DEVICE void end_row(Scalar* to, const float*) {
    if constexpr (stages) {
      if (!has_vectors()) return;
      meet();
      store_vectors(to, [&, from = staged + buffer](uint32_t number, int pixel) {
        return device::load_shared_16(from + 16 * place(number, pixel));
      });
      buffer ^= static_cast<uint32_t>(columns * 16) << p.tile_bits;
    }
  }
  // A row without taps.
  CONVT_DEVICE void put_bias(Scalar* to, const float* bias) const {
    if (!has_vectors()) {
#pragma unroll
      for (int k = 0; k < runs; ++k) put(to, k, [&](int, int, int, int q) { return bias[lane % 4 * 2 + q]; });
      return;
    }
    uint32_t words[4];
    const float* from = reinterpret_cast<const float*>(device::dynamic_shared_memory() + p.t.places.bias) +
                        of_pixel() * vector;  // of all tiles
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(Scalar) == 4) {
        words[i] = __float_as_uint(from[i]);
      } else {
        words[i] = pack(Scalar{}, from[2 * i], from[2 * i + 1]);
      }
    }
    store_vectors(to, [&](uint32_t, int) { return make_uint4(words[0], words[1], words[2], words[3]); });
  }
  // All warps that have tiles beside each other have stored their rows.
  CONVT_DEVICE void end() const {
    if (has_vectors()) meet();
  }

 private:
  CONVT_DEVICE bool has_vectors() const { return !Strict && p.store_width == vector; }
  // The warp's tile among those beside each other, of which there may be 2^tile_bits and are so many.
  CONVT_DEVICE int slot() const { return warp & ((1 << p.tile_bits) - 1); }
  CONVT_DEVICE int present() const { return stages ? meeting : count_present(); }
  CONVT_DEVICE int count_present() const {
    uint32_t tile_block = blockIdx.x;
    p.tile_blocks.divide(tile_block);
    return smaller(1 << p.tile_bits, p.groups * p.t.tiles - static_cast<int32_t>(tile_block << p.tile_bits));
  }
  // What the warps that meet stage.
  CONVT_DEVICE device::SharedAddress find_stage() const {
    return device::dynamic_shared_address() +
           static_cast<uint32_t>(p.t.places.stages + (warp - slot()) * static_cast<int32_t>(p.t.stage_bytes));
  }
  CONVT_DEVICE void meet() const { device::named_barrier(2 + (warp >> p.tile_bits), 32 * present()); }

  // Vectors of a pixel follow each other. Of those of 128 bytes, which one is where depends on the lane that writes:
  // neighbouring ones are as many pixels apart as fill all banks.
  CONVT_DEVICE static uint32_t place(uint32_t number, int pixel) {
    return number ^ (static_cast<uint32_t>(pixel / run) & 7);
  }
  // Of the vectors of a pixel, the one that this lane stores.
  CONVT_DEVICE int of_pixel() const { return lane & ((vectors_of_tile << p.tile_bits) - 1); }

  // Each warp a part of the row, as one of as many as there may be: of(number, pixel) of each vector.
  template <class Vector>
  CONVT_DEVICE void store_vectors(Scalar* to, const Vector& of) const {
    constexpr int pixels_at_once = 32 / vectors_of_tile, rounds = columns / pixels_at_once;  // of all warps
    static_assert(columns % pixels_at_once == 0);
    const int warps_present = present();
    const bool is_present = of_pixel() < warps_present * vectors_of_tile;
#pragma unroll 1
    for (int part = slot(); part < 1 << p.tile_bits; part += warps_present) {
      const int number = part * 32 + lane, pixel = (number >> p.tile_bits) / vectors_of_tile;
      Scalar* const at = to + (of_pixel() - slot() * vectors_of_tile) * vector + pixel * p.y_column;
#pragma unroll
      for (int k = 0; k < rounds; ++k) {
        const int further = pixel + k * pixels_at_once;
        const uint4 v = of(static_cast<uint32_t>(number + (k * 32 << p.tile_bits)), further);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        store_words_if<16>(is_present && further < left, at + k * pixels_at_once * p.y_column, words);
      }
    }
  }
};

// Outputs that meet in shared memory, each channel as far behind a multiple of 16 bytes as it is in y, so that vectors
// of memory are vectors there; sectors of memory that rows share have parts of both.
template <class Scalar, bool Strict, int Stride, int Rows>
struct Shifted {
  static constexpr int of_lane = lane_columns(sizeof(Scalar), Stride), run = of_lane * Stride, columns_of_run = 8 * run;
  static constexpr int columns = columns_of_run * lane_runs(sizeof(Scalar), Strict, Stride, Rows);
  static constexpr int size = sizeof(Scalar), whole = 16 / size;

  template <int Count>
  struct Words {
    uint32_t v[Count];
  };

  const Params& p;
  int lane;

  // A lane's outputs of a row and a run: value(tile, half, phase, q) is of channel 2 (lane % 4) + q. `to` is the first
  // output of what is staged; if that begins at 16 bytes, the lane's first one of the first channel belongs to `begin`.
  template <class Value>
  CONVT_DEVICE void put_at(device::SharedAddress begin, Scalar* to, const Value& value) const {
    constexpr bool has_vectors = run * size % 16 == 0;
    const int channel = lane % 4 * 2;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      float v[run];
      outputs_of_lane<of_lane, Stride>(value, q, v);
      const device::SharedAddress at =
          begin + static_cast<uint32_t>(channel + q) * pitch() + (place_of(to, channel + q) & 15);
      if (has_vectors && p.store_width == whole) {
#pragma unroll
        for (int i = 0; i < run; i += whole) {
          const auto w = words<4>(v + i);
          device::store_shared_16(at + static_cast<uint32_t>(i * size), w.v[0], w.v[1], w.v[2], w.v[3]);
        }
      } else if (p.store_width >= whole / 2) {
#pragma unroll
        for (int i = 0; i < run; i += whole / 2) {
          const auto w = words<2>(v + i);
          device::store_shared_8(at + static_cast<uint32_t>(i * size), w.v[0], w.v[1]);
        }
      } else if (size == 4 || p.store_width > 1) {
#pragma unroll
        for (int i = 0; i < run; i += whole / 4) {
          device::store_shared_4(at + static_cast<uint32_t>(i * size), __uint_as_float(words<1>(v + i).v[0]));
        }
      } else {
#pragma unroll
        for (int i = 0; i < run; i += 2) {
          const uint32_t pair = pack_pair(v[i], v[i + 1]);
          device::store_shared_2(at + static_cast<uint32_t>(i * size), pair);
          device::store_shared_2(at + static_cast<uint32_t>((i + 1) * size), pair >> 16);
        }
      }
    }
  }

  CONVT_DEVICE static uint32_t pack_pair(float low, float high) {
    if constexpr (size == 4) {
      return 0;
    } else {
      return pack(Scalar{}, low, high);
    }
  }
  template <int Count>
  CONVT_DEVICE static Words<Count> words(const float* v) {
    Words<Count> result;
#pragma unroll
    for (int i = 0; i < Count; ++i) result.v[i] = size == 4 ? __float_as_uint(v[i]) : pack_pair(v[2 * i], v[2 * i + 1]);
    return result;
  }

  CONVT_DEVICE uint32_t pitch() const { return static_cast<uint32_t>(p.t.stage_bytes); }
  // The last bits of the address of a channel's element.
  CONVT_DEVICE uint32_t place_of(const Scalar* to, int channel) const {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to)) +
           static_cast<uint32_t>(channel) * static_cast<uint32_t>(p.y_channel) * size;
  }

  // Of a channel, four lanes have a sector, 8 bytes each from this one on.
  CONVT_DEVICE uint32_t byte() const { return static_cast<uint32_t>(lane % 4 * 8); }
  // The lane's elements from a byte of the sector on to another one.
  CONVT_DEVICE void store_elements(Scalar* sector, const Words<2>& pair, uint32_t begin, uint32_t end) const {
#pragma unroll
    for (uint32_t e = 0; e < 8 / size; ++e) {
      const uint32_t at = byte() + e * size, v = pair.v[e * size / 4] >> e * size % 4 * 8;
      store_words_if<size>(at >= begin && at < end, sector + e, &v);
    }
  }
  CONVT_DEVICE static Words<2> load_pair(device::SharedAddress from) {
    const uint2 v = device::load_shared_8(from);
    return {v.x, v.y};
  }
  CONVT_DEVICE static Words<2> pair_of(float v) {
    const float all[4] = {v, v, v, v};
    return words<2>(all);
  }
  // The first bytes of one sector, the others of another one, of which the lane has 8.
  CONVT_DEVICE Words<2> join(const Words<2>& first, const Words<2>& second, uint32_t of_first) const {
    Words<2> result = second;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const auto bytes = static_cast<int32_t>(of_first - byte() - 4 * i);
      if (bytes >= 4) {
        result.v[i] = first.v[i];
      } else if (size == 2 && bytes == 2) {
        result.v[i] = __byte_perm(first.v[i], second.v[i], 0x7610);
      }
    }
    return result;
  }

  // What rows without taps are copied from: of a channel, by a warp that has its bias in every lane.
  CONVT_DEVICE static void fill(const Params& p, int lane, int channel, uint32_t element) {
    if constexpr (size == 2) element |= element << 16;
    device::SharedAddress to = device::dynamic_shared_address() +
                               static_cast<uint32_t>(p.t.places.bias_rows + channel * p.t.bias_bytes + lane * 16);
    for (int i = lane * 16; i < p.t.bias_bytes; i += 32 * 16, to += 32 * 16) {
      device::store_shared_16(to, element, element, element, element);
    }
    device::fence_async_proxy();
  }

  // Of the channels of a strip's warp, by one thread, the row whose first output of the strip's first channel is at
  // `first`, from its first whole sector on, or the one before: use(channel, the last bits of the row's address, that
  // sector, how far behind the row's begin it is, bytes of whole sectors).
  template <class Use>
  CONVT_DEVICE void each_channel(Scalar* first, int strip, int32_t channels, bool one_before, const Use& use) const {
    // Uniform: these take no vector registers, and no loop over lanes.
    if (!device::elect()) return;
    char* at = reinterpret_cast<char*>(first);
    const auto step = p.t.strips * p.y_channel * size;
    const auto row_bytes = static_cast<uint32_t>(p.y_row_bytes);
#pragma unroll 1
    for (int c = strip; c < channels; c += p.t.strips, at += step) {
      const auto place = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
      const uint32_t head = one_before ? 0 - place % sector_bytes : (0 - place) % sector_bytes;
      use(c, place, at + static_cast<int32_t>(head), head, (row_bytes - head) / sector_bytes * sector_bytes);
    }
  }
  // Outputs of a channel that no tap reaches, by one thread.
  CONVT_DEVICE void store_bias(int channel, char* at, uint32_t bytes) const {
    const device::SharedAddress from =
        device::dynamic_shared_address() +
        static_cast<uint32_t>(p.t.places.bias_rows + (p.bias == nullptr ? 0 : channel) * p.t.bias_bytes);
    const auto most = static_cast<uint32_t>(p.t.bias_bytes);
#pragma unroll 1
    for (; bytes > most; bytes -= most, at += most) device::bulk_store(at, from, most);
    device::bulk_store(at, from, bytes);
  }
};

// Rows written whole, wherever they begin: the warps that have a row's strips put them into shared memory, each channel
// as far behind a multiple of 16 bytes as it is in y, and meet. Then each copies the channels that are its own by the
// copy engine, whole sectors of memory, and one of them in turn stores the sectors that rows share, of all channels:
// what the last row has of one is kept in shared memory. Rows without taps are copied from a part of one, without
// meeting.
template <class Scalar, bool Strict, int Stride, int Rows>
struct WholeRows : Shifted<Scalar, Strict, Stride, Rows> {
  using Base = Shifted<Scalar, Strict, Stride, Rows>;
  using Base::byte, Base::store_elements, Base::load_pair, Base::pair_of, Base::join, Base::each_channel;
  using Base::p, Base::lane, Base::size, Base::columns, Base::columns_of_run, Base::run, Base::pitch, Base::place_of;
  template <int Count>
  using Words = Base::template Words<Count>;

  // What the next row shares its first sector with: nothing that this warp has, outputs, or a row without taps.
  enum class Before { nothing, outputs, bias };

  int strip;
  int32_t channels, tile = 0;   // of the next row: the tile's channels, which one of the warp's it is
  int group;                    // of the warps that have a row's strips, in the block
  device::SharedAddress stage;  // of the first channel, in the first buffer
  uint32_t other = 0;           // bytes from there to the next row's buffer
  Before before = Before::nothing;
  bool bias_follows = false;  // a row without taps
  int turn = 0;               // whose strip has the sectors of the next row
  int64_t first_channel;      // of the warp's, elements behind the tile's

  CONVT_DEVICE WholeRows(const Params& params, int lane_number, int warp, int strip_number)
      : Base{params, lane_number}, strip(strip_number), group(warp >> params.strip_bits) {
    const auto of_group = static_cast<uint32_t>(group * p.t.buffers) * buffer_bytes();
    stage = device::dynamic_shared_address() + static_cast<uint32_t>(p.t.places.stages) + of_group;
    first_channel = strip * p.y_channel;
  }

  // What follows is of this one of the warp's tiles, from whose first channel on the group has `left`.
  CONVT_DEVICE void of_tile(int which, int32_t left) { tile = which, channels = smaller(8, left - 8 * which); }

  template <class Value>
  CONVT_DEVICE void put(Scalar* to, int which, const Value& value) const {
    const int column = strip * columns + which * columns_of_run + lane / 4 * run;
    Base::put_at(stage + other + static_cast<uint32_t>(p.t.lead_bytes + (column - p.skipped_columns) * size), to,
                 value);
  }
  CONVT_DEVICE void end_row(Scalar* to, const float* bias) {
    // What was copied from the buffer that comes next, by this thread.
    if (p.t.buffers == 3) {
      device::bulk_wait_read<1>();
    } else if (p.t.buffers == 2) {
      device::bulk_wait_read<0>();
    }
    device::fence_async_proxy();
    meet();
    copy(to, bias);
    if (p.t.buffers > 1) {
      other += buffer_bytes();
      if (other == static_cast<uint32_t>(p.t.buffers) * buffer_bytes()) other = 0;
    } else {
      device::bulk_wait_read<0>();
      meet();
    }
  }
  // A row without taps.
  CONVT_DEVICE void put_bias(Scalar* to, const float* bias) {
    each_channel(
        to + first_channel, strip, channels, before == Before::bias,
        [&](int c, uint32_t, char* at, uint32_t, uint32_t bytes) { Base::store_bias(tile * 8 + c, at, bytes); });
    if (before != Before::nothing || strip > 0) return;
    each_sector(to, [&](int c, uint32_t of_last, Scalar* sector, device::SharedAddress) {
      if (of_last > 0) store_elements(sector, pair_of(bias[c]), of_last, sector_bytes);
    });
  }

  // All rows are put; then, of each tile, `to` is behind the last one.
  CONVT_DEVICE void end_rows() const { meet(); }
  CONVT_DEVICE void end_tile(Scalar* to, const float* bias) const {
    if (strip > 0) return;
    each_sector(to, [&](int c, uint32_t of_last, Scalar* sector, device::SharedAddress kept) {
      store_elements(sector, before == Before::bias ? pair_of(bias[c]) : load_pair(kept), 0, of_last);
    });
  }
  // Whether the outputs of the warps that meet are to be repaired, all of them written.
  CONVT_DEVICE bool end(bool spoilt) const {
    if constexpr (Strict) spoilt = device::named_barrier_or(2 + group, 32 * p.t.strips, spoilt);
    device::bulk_commit();
    if (!spoilt) {
      device::bulk_wait_read<0>();  // the block's shared memory
      return false;
    }
    device::bulk_wait();
    meet();
    return true;
  }

 private:
  CONVT_DEVICE uint32_t buffer_bytes() const { return 8 * pitch(); }
  // A channel's first output, in the next row's buffer.
  CONVT_DEVICE device::SharedAddress row(int channel, uint32_t place) const {
    return stage + other + static_cast<uint32_t>(p.t.lead_bytes) + static_cast<uint32_t>(channel) * pitch() +
           place % 16;
  }
  CONVT_DEVICE void meet() const {
    __syncwarp();
    device::named_barrier(2 + group, 32 * p.t.strips);
  }

  // By one warp, of all channels, the sector in which the row at `to` begins: use(channel, bytes of it that are the
  // last row's, the lane's first element of it, and where of that is kept from row to row).
  template <class Use>
  CONVT_DEVICE void each_sector(Scalar* to, const Use& use) const {
    const int c = lane / 4;
    if (p.whole_sectors || c >= channels) return;
    const uint32_t of_last = place_of(to, c) % sector_bytes;
    Scalar* const sector = to + c * p.y_channel + static_cast<int32_t>(byte() - of_last) / size;
    use(c, of_last, sector,
        device::dynamic_shared_address() + byte() +
            static_cast<uint32_t>(p.t.places.shared_sectors +
                                  ((group * p.t.warp_tiles + tile) * 8 + c) * sector_bytes));
  }
  // With the sector that the row shares with the one before, and with the next one if that has no taps.
  CONVT_DEVICE void copy(Scalar* to, const float* bias) {
    each_channel(to + first_channel, strip, channels, false,
                 [&](int c, uint32_t place, char* at, uint32_t head, uint32_t bytes) {
                   device::bulk_store(at, row(c, place) + head, bytes);
                 });
    device::bulk_commit();
    if (strip == turn) {
      each_sector(to, [&](int c, uint32_t of_last, Scalar* sector, device::SharedAddress kept) {
        const uint32_t end = of_last + static_cast<uint32_t>(p.y_row_bytes), behind = end % sector_bytes;
        const device::SharedAddress first = row(c, of_last) - of_last + byte();  // of the sector
        const Words<2> of_bias = pair_of(bias[c]);
        Words<2> begin{}, of_end{};
        if (byte() + 8 > of_last) begin = load_pair(first);
        if (byte() < behind) of_end = load_pair(first + end - behind);
        if (of_last > 0) {
          if (before == Before::nothing) {
            store_elements(sector, begin, of_last, sector_bytes);
          } else {
            const Words<2> v = join(before == Before::bias ? of_bias : load_pair(kept), begin, of_last);
            store_words_if<8>(true, sector, v.v);
          }
        }
        if (bias_follows) {
          store_words_if<8>(behind > 0, sector + (end - behind) / size, join(of_end, of_bias, behind).v);
        } else {
          device::store_shared_8(kept, of_end.v[0], of_end.v[1]);
        }
      });
    }
    if (++turn == p.t.strips) turn = 0;
  }
};

// Pieces of rows in whole sectors of memory, wherever they begin (see Written): the warps that have a row's strips put
// them into shared memory and meet, and each writes the sectors that begin in its own. A sector that two rows share is
// written by the one that has taps, if the other has none; otherwise each writes its own part of it. Rows without taps
// are copied as in WholeRows.
template <class Scalar, bool Strict, int Stride, int Rows>
struct Sectors : Shifted<Scalar, Strict, Stride, Rows> {
  using Base = Shifted<Scalar, Strict, Stride, Rows>;
  using Base::byte, Base::store_elements, Base::load_pair, Base::pair_of, Base::join;
  using Base::p, Base::lane, Base::size, Base::columns, Base::columns_of_run, Base::run, Base::pitch, Base::place_of;

  // What the row before or behind this one is.
  enum class Neighbour { none, outputs, bias };

  // Of the strip's first output of the first channel, if that begins at 16 bytes, in the first buffer; bytes from there
  // to the next row's buffer.
  device::SharedAddress stage;
  uint32_t other = 0;
  int group;  // of the warps that have a row's strips, in the block
  int32_t strip, left;
  int32_t channels = 8, tile = 0;  // of the next row: the tile's channels, which one of the warp's it is
  // Bytes whose end, rounded up to a sector, is where the next strip's warp begins, or the last whole sector ends.
  int32_t span;
  Neighbour before = Neighbour::none, behind = Neighbour::none;

  CONVT_DEVICE Sectors(const Params& params, int lane_number, int warp, int32_t strip_number, int32_t columns_left)
      : Base{params, lane_number}, strip(strip_number), left(columns_left) {
    group = (warp - strip) / p.t.strips;
    stage = device::dynamic_shared_address() +
            static_cast<uint32_t>(p.t.places.stages + sector_bytes + strip * columns * size) +
            static_cast<uint32_t>(group * sector_buffers) * buffer_bytes();
    span = smaller(columns * size, left * size - (sector_bytes - 1));
  }

  CONVT_DEVICE void of_tile(int which, int32_t of_group) { tile = which, channels = smaller(8, of_group - 8 * which); }

  template <class Value>
  CONVT_DEVICE void put(Scalar* to, int which, const Value& value) const {
    Base::put_at(stage + other + static_cast<uint32_t>((which * columns_of_run + lane / 4 * run) * size), to, value);
  }
  CONVT_DEVICE void end_row(Scalar* to, const float* bias) {
    __syncwarp();
    device::named_barrier(2 + group, 32 * p.t.strips);
    copy(to);
    if (strip == 0) {
      each_end(to, 0, [&](int c, uint32_t inside, Scalar* sector, device::SharedAddress from) {
        if (inside == 0) return;
        const auto begin = load_pair(from);
        if (before == Neighbour::bias) {
          store_words_if<8>(true, sector, join(pair_of(bias[c]), begin, inside).v);
        } else {
          store_elements(sector, begin, inside, sector_bytes);
        }
      });
    }
    if (strip + 1 == p.t.strips) {
      each_end(to, left, [&](int c, uint32_t inside, Scalar* sector, device::SharedAddress from) {
        if (inside == 0) return;
        const auto end = load_pair(from);
        if (behind == Neighbour::bias) {
          store_words_if<8>(true, sector, join(end, pair_of(bias[c]), inside).v);
        } else {
          store_elements(sector, end, 0, inside);
        }
      });
    }
    // The next row goes to the other buffer; when its warps meet, nobody reads this one any more.
    other ^= buffer_bytes();
  }
  // A row without taps.
  CONVT_DEVICE void put_bias(Scalar* to, const float* bias) const {
    Base::each_channel(
        to + (strip * p.y_channel - first_column()), strip, channels, false,
        [&](int c, uint32_t, char* at, uint32_t, uint32_t bytes) { Base::store_bias(tile * 8 + c, at, bytes); });
    if (strip == 0 && before != Neighbour::outputs) {
      each_end(to, 0, [&](int c, uint32_t inside, Scalar* sector, device::SharedAddress) {
        if (inside > 0) store_elements(sector, pair_of(bias[c]), before == Neighbour::bias ? 0 : inside, sector_bytes);
      });
    }
    if (strip + 1 == p.t.strips && behind == Neighbour::none) {
      each_end(to, left, [&](int c, uint32_t inside, Scalar* sector, device::SharedAddress) {
        store_elements(sector, pair_of(bias[c]), 0, inside);
      });
    }
  }

  // Whether the outputs of the warps that meet are to be repaired: of a sector, another warp has written a part.
  CONVT_DEVICE bool end(bool spoilt) const {
    if constexpr (Strict) spoilt = device::named_barrier_or(2 + group, 32 * p.t.strips, spoilt);
    device::bulk_commit();
    device::bulk_wait_read<0>();  // the block's shared memory
    return spoilt;
  }

 private:
  CONVT_DEVICE uint32_t buffer_bytes() const { return 8 * pitch(); }
  // The strip's, of the row's.
  CONVT_DEVICE int32_t first_column() const { return p.w_axis.out - left; }
  // Whole sectors of all channels of the row at `to`, a line of four channels at a time.
  CONVT_DEVICE void copy(Scalar* to) const {
    constexpr int line = 128, of_channel = line / 16, lines = ceil_div(columns * size, line);
    const auto further = static_cast<uint32_t>(lane % of_channel * 16);
#pragma unroll
    for (int first = 0; first < 8; first += 32 / of_channel) {
      const int c = first + lane / of_channel;
      const uint32_t place = place_of(to, c), begin = (0 - place) % sector_bytes,
                     end = static_cast<uint32_t>(span) + (0 - place - static_cast<uint32_t>(span)) % sector_bytes;
      const int32_t left_bytes = c < channels ? static_cast<int32_t>(end - begin - further) : 0;
      char* const at = reinterpret_cast<char*>(to + c * p.y_channel) + (begin + further);
      const device::SharedAddress staged =
          stage + other + static_cast<uint32_t>(c) * pitch() + (place & 15) + begin + further;
      uint4 v[lines];
#pragma unroll
      for (int i = 0; i < lines; ++i) v[i] = device::load_shared_16(staged + static_cast<uint32_t>(i * line));
#pragma unroll
      for (int i = 0; i < lines; ++i) {
        const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        store_words_if<16>(left_bytes > i * line, at + i * line, words);
      }
    }
  }
  // Of all channels, the sector that the output `column` of the row at `to` is in, if it does not begin there:
  // use(channel, how many of its bytes are before, the lane's first element of it, and where that is staged).
  template <class Use>
  CONVT_DEVICE void each_end(Scalar* to, int32_t column, const Use& use) const {
    const int c = lane / 4;
    if (c >= channels) return;
    const uint32_t place = place_of(to, c), inside = (place + static_cast<uint32_t>(column * size)) % sector_bytes;
    const int32_t at = column * size - static_cast<int32_t>(inside) + static_cast<int32_t>(byte());
    use(c, inside, to + (c * p.y_channel + at / size),
        stage + other - sector_bytes + static_cast<uint32_t>(c) * pitch() + (place & 15) +
            static_cast<uint32_t>(at + sector_bytes));
  }
};

template <class Scalar, bool Strict, int Stride, int Rows, int Columns, int Steps, bool Aligned, Writes writes>
CONVT_DEVICE void compute(const Params& p) {
  constexpr bool Last = writes == Writes::pixels, whole = writes == Writes::rows, sectors = writes == Writes::sectors;
  using Y = std::conditional_t<Last, LastOutput<Scalar, Strict, Stride, Rows>,
                               std::conditional_t<whole, WholeRows<Scalar, Strict, Stride, Rows>,
                                                  std::conditional_t<sectors, Sectors<Scalar, Strict, Stride, Rows>,
                                                                     Output<Scalar, Strict, Stride, Rows>>>>;
  constexpr int of_lane = Y::of_lane, pixel_tiles = of_lane / 2;
  constexpr int words = fragment_words(sizeof(Scalar), Strict);
  // Strict float32 sums the products of two columns of the kernel together, and the larger ones apart; at a stride of 3
  // they would take too many registers.
  constexpr bool has_registers = Strict && Stride <= 2;
  constexpr int taps_at_once = has_registers ? 2 : 1;
  // Runs of columns, each as those of a warp that has one of them: products that do not wait for each other.
  constexpr int runs = lane_runs(sizeof(Scalar), Strict, Stride, Rows);
  constexpr bool buffered = in_buffers(Strict, Stride);
  using X = Window<Scalar, Strict, of_lane, Columns, Aligned, Last>;
  using Raw = typename X::Raw;
  const Tiling& t = p.t;
  unsigned char* shared = device::dynamic_shared_memory();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, g = lane / 4, l = lane % 4;
  const auto warp = static_cast<int>(device::uniform(threadIdx.x / 32));

  const Part b = part_of<writes>(p, blockIdx.x, warp);
  const int slot = Last ? b.slot : 0;
  uint32_t* weights = reinterpret_cast<uint32_t*>(shared + slot * static_cast<int32_t>(t.weight_bytes));
  float* bias = reinterpret_cast<float*>(shared + t.places.bias) + 8 * slot;
  // The weights are asked for first: what is read after them, for which memory takes longer, would return before them.
  Weights<Scalar, Strict, Steps, writes> of_tile(p, b);
  // By the first warp of a tile; where warps fill rows with it, one of each channel.
  const bool has_bias = Last ? warp == slot && lane < 8 : whole || thread < 8;
  const int bias_number = Last ? lane : whole ? warp : thread;
  const int32_t bias_channel = b.tile * 8 + bias_number;
  constexpr int most_tiles = has_two_tiles(writes) ? 2 : 1;  // of a warp
  uint32_t lane_of_bias[most_tiles];
#pragma unroll
  for (int i = 0; i < most_tiles; ++i) {
    load_if<sizeof(Scalar)>(
        p.bias != nullptr && has_bias && b.exists && bias_channel + 8 * i < p.cout &&
            i < (most_tiles > 1 ? t.warp_tiles : 1),
        static_cast<const Scalar*>(p.bias) + (b.group * p.cout + bias_channel + 8 * i) * p.bias_stride,
        &lane_of_bias[i]);
  }
  const int32_t strip = b.strip, j = b.row;
  int32_t row = j * p.h.stride;
  const int32_t last_row = b.exists && strip < t.strips ? smaller(row + t.rows * p.h.stride, p.h.out) : 0;
  constexpr int run_columns = 8 * of_lane;
  const int32_t first_column = strip * runs * run_columns + p.w_axis.phases.first;  // of x, the warp's
  const int32_t column = first_column + g * of_lane;                                // and the lane's
  // Words of 16 bits may have a column more on either side.
  const bool all = first_column >= (X::packed && !Aligned ? 1 : 0) && p.cin == Steps * step_channels &&
                   first_column + runs * run_columns + Columns - 1 + (X::packed ? 2 : 0) <= p.w_axis.in;
  int32_t x_row = j + p.h.phases.last - (Rows - 1);
  const int64_t x_column = Last ? p.x_column : 1, x_run = run_columns * x_column,
                y_row = Last || whole ? p.y_row : p.w_axis.out, y_column = Last ? p.y_column : 1;
  const Scalar* x = static_cast<const Scalar*>(p.x) + b.image * p.x_batch +
                    (int64_t{b.group * p.cin + 2 * l} * p.x_channel + column * x_column + int64_t{x_row} * p.x_row);
  const int64_t x_step = step_channels * p.x_channel;
  const device::SharedAddress buffer =
      device::shared_address(shared + t.places.rows + warp * static_cast<int32_t>(t.row_bytes)) +
      static_cast<uint32_t>(lane) * X::copy_bytes;
  // The next row of x: use(all, k, x, column, first, second) for each run's steps, which are one after another.
  const auto next_row = [&](const auto& use) {
    const bool inside = static_cast<uint32_t>(x_row) < static_cast<uint32_t>(p.h.in);
    if (all && inside) {
#pragma unroll
      for (int k = 0; k < runs; ++k) {
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
          use(std::true_type{}, k * Steps + s, x + k * x_run + s * x_step, column + k * run_columns, true, true);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < runs; ++k) {
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
          const int channel = s * step_channels + 2 * l;
          use(std::false_type{}, k * Steps + s, x + k * x_run + s * x_step, column + k * run_columns,
              inside && channel < p.cin, inside && channel + 1 < p.cin);
        }
      }
    }
    x += p.x_row, ++x_row;
  };
  // Of the row that was read so many rows ago, see convert.
  const auto columns_before = [&](int rows_ago, int32_t (&before)[2]) {
    const Scalar* from = x - rows_ago * p.x_row;
    before[0] = X::odd(from, column), before[1] = X::odd(from + p.x_channel, column);
  };
  constexpr int run_steps = runs * Steps;
  const auto read = [&](Raw(&raw)[run_steps]) {
    next_row([&]<class All>(All, int k, const Scalar* from, int32_t at, bool first, bool second) {
      X::template read<All::value>(p, from, at, first, second, raw[k]);
    });
  };
  const auto fetch = [&] {
    next_row([&]<class All>(All, int k, const Scalar* from, int32_t at, bool first, bool second) {
      X::template fetch<All::value>(p, from, at, first, second, buffer + static_cast<uint32_t>(k) * X::buffer_bytes);
    });
    device::cp_async_commit();
  };
  // The first rows come while the weights do.
  Raw first[Rows][run_steps];
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    if (row >= last_row) continue;
    if constexpr (buffered) {
      if (i + 1 == Rows) {
        fetch();
        continue;
      }
    }
    read(first[i]);
  }
  const bool bad = of_tile.write(weights);
#pragma unroll
  for (int i = 0; i < most_tiles; ++i) {
    if (most_tiles > 1 && i >= t.warp_tiles) continue;
    if (has_bias) bias[bias_number + 8 * i] = element_of<Scalar>(lane_of_bias[i], 0);
    if constexpr (whole) {
      if (t.places.bias_rows != t.places.rows && (p.bias != nullptr || warp + i == 0)) {
        Y::fill(p, lane, warp + 8 * i, lane_of_bias[i]);
      }
    }
  }
  if constexpr (sectors) {
    for (int c = warp; c < (p.bias == nullptr ? 1 : 8 * t.warp_tiles) && t.bias_bytes > 0;
         c += static_cast<int>(blockDim.x / 32)) {
      uint32_t element;
      load_if<sizeof(Scalar)>(p.bias != nullptr && b.tile * 8 + c < p.cout,
                              static_cast<const Scalar*>(p.bias) + (b.group * p.cout + b.tile * 8 + c) * p.bias_stride,
                              &element);
      Y::fill(p, lane, c, element);
    }
  }
  bool spoilt = device::named_barrier_or(1, sectors ? static_cast<int>(blockDim.x) : block, bad);
  if (row >= last_row) return;
  const int32_t out_column = whole ? 0 : strip * Y::columns, left = p.w_axis.out - out_column;
  const int32_t channels = smaller(8, p.cout - b.tile * 8);
  Y out = [&] {
    if constexpr (Last) {
      return Y(p, lane, warp, channels, left);
    } else if constexpr (whole) {
      return Y(p, lane, warp, strip);
    } else if constexpr (sectors) {
      return Y(p, lane, warp, strip, left);
    } else {
      return Y{reinterpret_cast<Scalar*>(shared + t.places.stages + warp * static_cast<int32_t>(t.stage_bytes)),
               p.store_width,
               channels,
               left,
               p.y_channel,
               lane};
    }
  }();
  Scalar* y = static_cast<Scalar*>(p.y) + b.image * p.y_batch + (b.group * p.cout + b.tile * 8) * p.y_channel +
              (row - (whole ? p.skipped_rows : 0)) * y_row + out_column * y_column;
  const float lane_bias[2] = {bias[2 * l], bias[2 * l + 1]};
  const int32_t tile_count = most_tiles > 1 ? tiles_of(p, b) : 1;
  const int64_t y_tile = 8 * p.y_channel;

  const auto has_no_taps = [](const uint32_t* of_phase) {
    bool none = true;
#pragma unroll
    for (int i = 0; i < Rows; ++i) none = none && of_phase[i] == 0;
    return none;
  };
  typename X::Tiles operands[run_steps][Rows];
  Raw raw[run_steps];
  float largest = spoilt ? largest_of_parts : 0;  // of strict float32's inputs
#pragma unroll
  for (int i = 0; i < Rows - 1; ++i) {
    int32_t before[2];
    columns_before(Rows - i, before);
#pragma unroll
    for (int k = 0; k < run_steps; ++k) {
      X::convert(before, first[i][k], operands[k][i + 1]);
      if constexpr (Strict) largest = X::largest(largest, first[i][k]);
    }
  }
#pragma unroll
  for (int k = 0; k < run_steps; ++k) {
    if constexpr (!buffered) {
#pragma unroll
      for (int e = 0; e < X::raw_channels; ++e) {
#pragma unroll
        for (int word = 0; word < X::raw_words; ++word) raw[k][e][word] = first[Rows - 1][k][e][word];
      }
    }
  }
#pragma unroll 1
  while (true) {
    if constexpr (buffered) device::cp_async_wait<0>();
    int32_t before[2];
    columns_before(1, before);
#pragma unroll
    for (int k = 0; k < run_steps; ++k) {
#pragma unroll
      for (int i = 0; i + 1 < Rows; ++i) {
#pragma unroll
        for (int m = 0; m < X::tiles; ++m) {
#pragma unroll
          for (int word = 0; word < X::words; ++word) operands[k][i][m][word] = operands[k][i + 1][m][word];
        }
      }
      if constexpr (buffered) {
        X::take(buffer + static_cast<uint32_t>(k) * X::buffer_bytes, column + k / Steps * run_columns, before, raw[k]);
      }
      X::convert(before, raw[k], operands[k][Rows - 1]);
      if constexpr (Strict) largest = X::largest(largest, raw[k]);
    }
    const bool more = row + p.h.stride < last_row;
    if (more) {
      if constexpr (buffered) {
        fetch();
      } else {
        read(raw);
      }
    }
    const int32_t end = smaller(row + p.h.stride, last_row);
#pragma unroll 1
    for (int32_t phase = 0; row < end; ++phase, ++row, y += y_row) {
      if (whole && row < p.skipped_rows) continue;
      uint32_t taps[Rows];
#pragma unroll
      for (int i = 0; i < Rows; ++i) taps[i] = p.rows[phase][i];
      const bool bare = sectors ? (p.bare >> phase & 1) != 0 : has_no_taps(taps);
      const auto put_tile = [&](Scalar* to, const float* of_tile_bias, const float (&start)[2],
                                const uint32_t* of_weights) {
        if (bare) {
          out.put_bias(to, of_tile_bias);
          return;
        }
        float sums[runs][Stride][pixel_tiles][4];
#pragma unroll
        for (auto& of_run : sums) {
#pragma unroll
          for (auto& of_phase : of_run) {
#pragma unroll
            for (auto& of_tile : of_phase) {
#pragma unroll
              for (int q = 0; q < 4; ++q) of_tile[q] = start[q % 2];
            }
          }
        }
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
          if (taps[i] == 0) continue;
          const uint32_t* of_row =
              of_weights + ((taps[i] >> 16) * (Stride * Columns * Steps) * 32 + static_cast<uint32_t>(lane)) * words;
#pragma unroll
          for (int r = 0; r < Stride; ++r) {
            // The products of columns c ... c + count - 1, in a step.
            const auto products_of_step = [&]<int count>(std::integral_constant<int, count>, int c, int s) {
              float (*of_tile[runs * pixel_tiles])[4];
              const uint32_t (*rows[count][runs * pixel_tiles])[X::words];
              uint32_t f[count][words];
#pragma unroll
              for (int tap = 0; tap < count; ++tap) {
                load_fragment(of_row + ((r * Columns + c + tap) * Steps + s) * 32 * words, f[tap]);
#pragma unroll
                for (int m = 0; m < runs * pixel_tiles; ++m) {
                  of_tile[m] = &sums[m / pixel_tiles][r][m % pixel_tiles];
                  rows[tap][m] = &operands[m / pixel_tiles * Steps + s][i][m % pixel_tiles + c + tap];
                }
              }
              multiply_tiles<Scalar, Strict, has_registers>(of_tile, rows, f);
            };
            const auto products = [&](auto count, int c) {
#pragma unroll
              for (int s = 0; s < Steps; ++s) {
                if (s == 0 || s * step_channels < p.cin) products_of_step(count, c, s);
              }
            };
            constexpr std::integral_constant<int, 1> one;
#pragma unroll
            for (int c = 0; c < Columns; c += taps_at_once) {
              const uint32_t here = taps[i] >> (r * Columns + c);
              if constexpr (taps_at_once == 2) {
                if (c + 1 < Columns && (here & 3) == 3) {
                  products(std::integral_constant<int, 2>{}, c);
                } else if ((here & 1) != 0) {
                  products(one, c);
                } else if (c + 1 < Columns && (here & 2) != 0) {
                  products(one, c + 1);
                }
              } else if ((here & 1) != 0) {
                products(one, c);
              }
            }
          }
        }
#pragma unroll
        for (int k = 0; k < runs; ++k) {
          out.put(to, k, [&](int m, int h, int r, int q) { return sums[k][r][m][2 * h + q]; });
        }
        out.end_row(to, of_tile_bias);
      };
      if constexpr (whole) {
        const int32_t next = phase + 1 < p.h.stride ? phase + 1 : 0;
        out.bias_follows = row + 1 < last_row && has_no_taps(p.rows[next]);
      } else if constexpr (sectors) {
        const auto neighbour = [&](bool exists, int32_t of) {
          return !exists ? Y::Neighbour::none : (p.bare >> of & 1) != 0 ? Y::Neighbour::bias : Y::Neighbour::outputs;
        };
        const int32_t last = p.h.stride - 1;
        out.before = neighbour(row > 0, phase == 0 ? last : phase - 1);
        out.behind = neighbour(row + 1 < p.h.out, phase == last ? 0 : phase + 1);
      }
      if constexpr (most_tiles > 1) {
#pragma unroll 1
        for (int i = 0; i < tile_count; ++i) {
          out.of_tile(i, p.cout - b.tile * 8);
          const float* const of_bias = bias + 8 * i;
          const float start[2] = {of_bias[2 * l], of_bias[2 * l + 1]};
          put_tile(y + i * y_tile, of_bias, start, weights + i * static_cast<int32_t>(t.weight_bytes / 4));
        }
        if constexpr (whole) out.before = bare ? Y::Before::bias : Y::Before::outputs;
      } else {
        put_tile(y, bias, lane_bias, weights);
      }
    }
    if (!more) break;
  }
  if constexpr (Strict) spoilt = !(largest < largest_of_parts);
  if constexpr (Last) out.end();
  if constexpr (sectors) spoilt = out.end(spoilt);
  if constexpr (whole) {
    out.end_rows();
#pragma unroll 1
    for (int i = 0; i < tile_count; ++i)
      out.of_tile(i, p.cout - b.tile * 8), out.end_tile(y + i * y_tile, bias + 8 * i);
    spoilt = out.end(spoilt);
  }
  if (__any_sync(0xffffffffu, spoilt)) {
    for (int i = 0; i < tile_count; ++i) repair<Scalar, Strict, Y::columns, writes>(p, bias + 8 * i, b.tile + i);
  }
}

template <class Scalar, bool Strict, int Stride, int Rows, int Columns, int Steps, bool Aligned, Writes writes>
__global__ void __launch_bounds__(block, resident_blocks(Columns, Strict, Stride))
    warp_rows_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // The planner has the others on sm_90 alone.
  if constexpr (!has_two_tiles(writes)) compute<Scalar, Strict, Stride, Rows, Columns, Steps, Aligned, writes>(p);
#else
  compute<Scalar, Strict, Stride, Rows, Columns, Steps, Aligned, writes>(p);
#endif
}

}  // namespace convt::warp_rows
