// The matrix product of all phases, tile by tile. See tiling.h for the idea.
//
// A block's 4 warps have half of the positions and half of the columns each. Inputs and weights lie in shared memory as
// [word of K][position] and [word of K][column], rounded; the next chunk is on its way to registers while one is
// multiplied. Of 16 columns, the even and the odd ones are two tiles of the tensor core's N, as in kernel.cuh: a lane
// reads the weights of both at once and ends with 4 neighbouring columns of a position.
#pragma once

#include "kernel.cuh"
#include "tile_params.h"

namespace convt::large_stride {

// Of a position: where its phase (0, 0) would lie in the output.
struct TilePosition {
  int64_t output;
  int32_t row, column;
};
static_assert(sizeof(TilePosition) == 16);

// The first of 4 columns; `count` of them exist.
struct Columns {
  int32_t channel, row, column, count;
};

template <bool Strict>
CONVT_DEVICE Columns columns_at(const TileParams& p, int32_t first) {
  if (first >= p.columns) return {0, 0, 0, 0};
  auto rest = static_cast<uint32_t>(first);
  auto row = static_cast<int32_t>(p.outer_columns.divide(rest)), outer = static_cast<int32_t>(p.inner.divide(rest));
  const auto inner = static_cast<int32_t>(rest);
  if (!Strict && p.channels_outermost) {
    const int32_t channel = row;
    row = outer, outer = channel;
  }
  if (p.channels_innermost) return {inner, row, outer, smaller(4, p.out_channels - inner)};
  return {outer, row, inner, smaller(4, p.w_axis.stride - inner)};
}

// A chunk of K: words of one tap.
struct Chunk {
  int32_t row, column, word;  // the tap's place among its phase's, and the first word
  int64_t x, w;               // from a position's first pixel and a column's first weight, elements

  CONVT_DEVICE void place(const TileParams& p, int32_t channels_of_word) {
    x = int64_t{word} * channels_of_word * p.x_channel_stride - row * p.x_row_stride - column * p.x_column_stride;
    w = int64_t{word} * channels_of_word * p.w_in_stride + row * p.h.stride * p.w_row_stride +
        column * p.w_axis.stride * p.w_column_stride;
  }

  CONVT_DEVICE void advance(const TileParams& p, int32_t chunk_words, int32_t channels_of_word, int32_t taps_w) {
    word += chunk_words;
    if (word < p.words) {
      x += chunk_words * channels_of_word * p.x_channel_stride;
      w += chunk_words * channels_of_word * p.w_in_stride;
      return;
    }
    word = 0;
    if (++column == taps_w) column = 0, ++row;
    place(p, channels_of_word);
  }
};

// Strict float32 has no register to spare for a predicated load's address, and enough work to wait behind.
template <int Bytes, bool Strict>
CONVT_DEVICE void load_operand(bool is, const void* from, uint32_t* to) {
  if constexpr (!Strict) {
    load_if<Bytes>(is, from, to);
  } else if constexpr (Bytes == 16) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (is) v = __ldg(static_cast<const uint4*>(from));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    to[0] = is ? __float_as_uint(__ldg(static_cast<const float*>(from))) : 0;
  }
}

// What a thread carries of the inputs from memory to shared memory: of one position every word or every second one, or
// of some positions 16 bytes of channels, once or twice.
template <class Scalar, bool Strict, int Row, bool OfChannels>
struct InputLoader {
  static constexpr Config config = configs[Row];
  static constexpr int32_t tile_positions = config.tile_positions;
  static constexpr bool single = sizeof(Scalar) == 4;
  static constexpr int32_t groups = block / tile_positions;  // of threads, of other words
  static constexpr int32_t slots = config.chunk_words / groups;
  static constexpr int32_t pixels = OfChannels ? tile_positions / (block / 4) : 1, vectors = config.chunk_words / 16;
  const Scalar* from[pixels];  // the pixel at tap 0
  int32_t row[pixels], column[pixels];
  uint32_t raw[single ? slots : 2 * slots];

  static CONVT_DEVICE int32_t position(int i) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return OfChannels ? 8 * (thread / 32 + 4 * i) + thread % 8 : thread % tile_positions;
  }

  CONVT_DEVICE void init(const TileParams& p, const Scalar* x, int32_t first_position) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < pixels; ++i) {
      const int32_t at = first_position + position(i);
      auto q = static_cast<uint32_t>(at);
      uint32_t q_row = p.q_w.divide(q);
      const uint32_t image = p.q_h.divide(q_row);
      row[i] = at < p.positions ? p.first_q_h + static_cast<int32_t>(q_row) : -1;
      column[i] = p.first_q_w + static_cast<int32_t>(q);
      const int32_t word = OfChannels ? thread % 32 / 8 * 4 : thread / tile_positions;
      from[i] = x + (image * p.x_batch_stride + row[i] * p.x_row_stride + column[i] * p.x_column_stride +
                     word * (single ? 1 : 2) * p.x_channel_stride);
    }
  }

  // In steps of 16 bytes a lane has quad lane / 8 of 4 of them, of 16 words.
  CONVT_DEVICE void load(const TileParams& p, const Chunk& at) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const auto exists = [&](int i) {
      return static_cast<uint32_t>(row[i] - at.row) < static_cast<uint32_t>(p.h.in) &&
             static_cast<uint32_t>(column[i] - at.column) < static_cast<uint32_t>(p.w_axis.in);
    };
    if constexpr (OfChannels) {
#pragma unroll
      for (int i = 0; i < pixels; ++i) {
        const bool inside = exists(i);
        const Scalar* pixel = from[i] + at.x;
#pragma unroll
        for (int half = 0; half < vectors; ++half) {
          const int32_t word = at.word + 16 * half + 4 * (thread % 32 / 8);
          load_operand<16, Strict>(inside && word < p.words, pixel + 16 * half * static_cast<int>(4 / sizeof(Scalar)),
                                   raw + 4 * (vectors * i + half));
        }
      }
      return;
    }
    const bool inside = exists(0);
    const int32_t first = at.word + thread / tile_positions;
    const Scalar* pixel = from[0] + at.x;
    const int64_t step = groups * (single ? 1 : 2) * p.x_channel_stride;
    const int32_t left = inside ? p.words - first : 0;
#pragma unroll
    for (int i = 0; i < slots; ++i) {
      const bool is = groups * i < left;
      if constexpr (single) {
        load_operand<4, Strict>(is, pixel, raw + i);
      } else {
        load_if<2>(is, pixel, raw + 2 * i);
        load_if<2>(is && 2 * (first + groups * i) + 1 < p.channels, pixel + p.x_channel_stride, raw + 2 * i + 1);
      }
      pixel += step;
    }
  }

  static CONVT_DEVICE uint32_t rounded(uint32_t v) {
    if constexpr (single && !Strict) return tf32_operand(v);
    return v;
  }

  // Positions are shifted by 8 from one four of words to the next: so 4 lanes with 4 words each have no conflicts.
  CONVT_DEVICE void store(uint32_t* to) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if constexpr (OfChannels) {
      const int32_t quad = thread % 32 / 8;
#pragma unroll
      for (int i = 0; i < pixels; ++i) {
        const int32_t column = position(i) ^ 8 * quad;
#pragma unroll
        for (int half = 0; half < vectors; ++half) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            to[(16 * half + 4 * quad + j) * pitch(tile_positions) + column] =
                rounded(raw[4 * (vectors * i + half) + j]);
          }
        }
      }
      return;
    }
    const int32_t first = thread / tile_positions;
#pragma unroll
    for (int i = 0; i < slots; ++i) {
      const int32_t column = position(0) ^ 8 * (groups * i / 4 % 4);
      to[(first + groups * i) * pitch(tile_positions) + column] =
          rounded(single ? raw[i] : raw[2 * i] | raw[2 * i + 1] << 16);
    }
  }
};

// Of the weights, 4 columns of every few words.
template <class Scalar, bool Strict, int Row>
struct WeightLoader {
  static constexpr Config config = configs[Row];
  static constexpr bool single = sizeof(Scalar) == 4;
  static constexpr int32_t quads = config.tile_columns / 4, rows = block / quads, slots = config.chunk_words / rows;
  const Scalar* from;
  Columns at_columns;
  // Slots are pairs of words, 4 apart: those that a lane multiplies at once.
  static CONVT_DEVICE int32_t first_word() {
    const int32_t row = static_cast<int32_t>(threadIdx.x) / quads;
    return row % 4 + row / 4 * 8;
  }
  static constexpr int32_t word_of_slot(int i) { return i / 2 * (2 * rows) + i % 2 * 4; }
  uint32_t raw[slots][4];  // of 16-bit types 2 are 4 columns of a channel, if they are loaded at once

  CONVT_DEVICE void init(const TileParams& p, const Scalar* w, int32_t first_column) {
    at_columns = columns_at<Strict>(p, first_column + static_cast<int32_t>(threadIdx.x) % quads * 4);
    from = w + (at_columns.channel * p.w_out_stride + at_columns.row * p.w_row_stride +
                at_columns.column * p.w_column_stride + first_word() * (single ? 1 : 2) * p.w_in_stride);
  }

  CONVT_DEVICE void load(const TileParams& p, const Chunk& at) {
    const int32_t first = at.word + first_word();
    const int32_t row = at_columns.row + at.row * p.h.stride, column = at_columns.column + at.column * p.w_axis.stride;
    int32_t count = row < p.h.kernel ? at_columns.count : 0;
    if (p.channels_innermost) {
      if (column >= p.w_axis.kernel) count = 0;
    } else {
      count = smaller(count, p.w_axis.kernel - column);
    }
    const Scalar* const of_chunk = from + at.w;
    const int64_t of_word = (single ? 1 : 2) * p.w_in_stride;
    const int32_t words = count > 0 ? p.words - first : 0;
    if constexpr (Strict) {
#pragma unroll
      for (int i = 0; i < slots; ++i) raw[i][0] = raw[i][1] = raw[i][2] = raw[i][3] = 0;
    }
    if (p.w_quads) {
#pragma unroll
      for (int i = 0; i < slots; ++i) {
        const bool exists = word_of_slot(i) < words;
        const Scalar* const weight = of_chunk + word_of_slot(i) * of_word;
        if constexpr (Strict) {
          if (exists) {
            const uint4 v = __ldg(reinterpret_cast<const uint4*>(weight));
            raw[i][0] = v.x, raw[i][1] = v.y, raw[i][2] = v.z, raw[i][3] = v.w;
          }
        } else if constexpr (single) {
          load_if<16>(exists, weight, raw[i]);
        } else {
          load_if<8>(exists, weight, raw[i]);
          load_if<8>(exists && 2 * (first + word_of_slot(i)) + 1 < p.channels, weight + p.w_in_stride, raw[i] + 2);
        }
      }
      return;
    }
    const int64_t next = p.channels_innermost ? p.w_out_stride : p.w_column_stride;
#pragma unroll
    for (int i = 0; i < slots; ++i) {
      const bool exists = word_of_slot(i) < words, pair = 2 * (first + word_of_slot(i)) + 1 < p.channels;
      const Scalar* of_column = of_chunk + word_of_slot(i) * of_word;
      uint32_t v[single ? 1 : 2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (Strict) {
          if (exists && j < count) raw[i][j] = bits_at(of_column);
        } else {
          load_if<sizeof(Scalar)>(exists && j < count, of_column, &v[0][j]);
        }
        if constexpr (!single) load_if<2>(exists && j < count && pair, of_column + p.w_in_stride, &v[1][j]);
        of_column += next;
      }
#pragma unroll
      for (int j = 0; j < 4 && !Strict; ++j)
        raw[i][j] = single ? v[0][j] : v[j / 2][j % 2 * 2] | v[j / 2][j % 2 * 2 + 1] << 16;
    }
  }

  CONVT_DEVICE void store(uint32_t* to) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    to += (first_word() / 8 * 4 + first_word() % 4) * weight_pitch(config.tile_columns) + thread % quads * 8;
#pragma unroll
    for (int i = 0; i < slots; i += 2) {
      uint32_t v[4][2];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t (&word)[4] = raw[i + j % 2];
        if constexpr (single) {
          v[j / 2][j % 2] = Strict ? word[j / 2] : tf32_operand(word[j / 2]);
        } else {
          v[j / 2][j % 2] = __byte_perm(word[j / 4], word[2 + j / 4], j / 2 % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
      auto* pairs = reinterpret_cast<uint4*>(to + word_of_slot(i) / 2 * weight_pitch(config.tile_columns));
      pairs[0] = make_uint4(v[0][0], v[0][1], v[1][0], v[1][1]);
      pairs[1] = make_uint4(v[2][0], v[2][1], v[3][0], v[3][1]);
    }
  }
};

// OfChannels: 16 bytes of channels of a pixel are loaded at once.
template <class Scalar, bool Strict, int Row, bool OfChannels>
__global__ void __launch_bounds__(block, tile_resident_blocks(configs[Row].tile_columns, sizeof(Scalar)))
    large_stride_tile_kernel(const __grid_constant__ TileParams p) {
  static_assert(!Strict || sizeof(Scalar) == 4);
  constexpr Config config = configs[Row];
  constexpr int32_t tile_positions = config.tile_positions, tile_columns = config.tile_columns,
                    chunk_words = config.chunk_words;
  constexpr int pairs = tile_columns / 32;     // of a warp: 16 columns
  constexpr int eights = tile_positions / 16;  // of its positions
  constexpr int32_t input_words = chunk_words * pitch(tile_positions),
                    weight_words = chunk_words / 2 * weight_pitch(tile_columns);
  unsigned char* shared = device::dynamic_shared_memory();
  auto* positions = reinterpret_cast<TilePosition*>(shared);
  auto* inputs = reinterpret_cast<uint32_t*>(positions + tile_positions);
  uint32_t* weights = inputs + 2 * input_words;
  uint32_t* last = weights + 2 * weight_words;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;

  uint32_t rest = blockIdx.x;
  uint32_t next = p.position_tiles.divide(rest);
  const int32_t first_position = static_cast<int32_t>(rest) * tile_positions;
  rest = next, next = p.column_tiles.divide(rest);
  const int32_t first_column = static_cast<int32_t>(rest) * tile_columns;
  rest = next;
  const auto group = static_cast<int32_t>(p.by_splits.divide(rest));
  const auto split = static_cast<int32_t>(rest);
  const Scalar* x = static_cast<const Scalar*>(p.x) + int64_t{group} * p.channels * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + int64_t{group} * p.channels * p.w_in_stride;

  // The taps that a column of the tile has: those of its first phases.
  const Columns lowest = columns_at<Strict>(p, first_column);
  const Columns highest = columns_at<Strict>(p, smaller(first_column + tile_columns, p.columns) - 4);
  const bool one = lowest.row == highest.row && (p.channels_innermost || lowest.channel == highest.channel);
  const int32_t taps_h = larger(0, (p.h.kernel - lowest.row + p.h.stride - 1) / p.h.stride);
  const int32_t taps_w =
      larger(0, (p.w_axis.kernel - (one ? lowest.column : 0) + p.w_axis.stride - 1) / p.w_axis.stride);
  const int64_t all_chunks = int64_t{taps_h} * taps_w * p.chunks;
  const auto begin = static_cast<int32_t>(all_chunks * split / p.splits);
  const auto end = static_cast<int32_t>(all_chunks * (split + 1) / p.splits);

  InputLoader<Scalar, Strict, Row, OfChannels> input;
  WeightLoader<Scalar, Strict, Row> weight;
  constexpr int32_t channels_of_word = sizeof(Scalar) == 4 ? 1 : 2;
  Chunk at{};
  weight.init(p, w, first_column);
  input.init(p, x, first_position);
  if (begin < end) {
    const int32_t tap = begin / p.chunks;
    at = {tap / taps_w, tap % taps_w, (begin - tap * p.chunks) * chunk_words, 0, 0};
    at.place(p, channels_of_word);
    weight.load(p, at);
    input.load(p, at);
  }
  if (thread < tile_positions) {
    auto q = static_cast<uint32_t>(first_position + thread);
    const bool exists = first_position + thread < p.positions;
    uint32_t q_row = p.q_w.divide(q);
    const uint32_t image = p.q_h.divide(q_row);
    const int32_t row = (p.first_q_h + static_cast<int32_t>(q_row)) * p.h.stride - p.h.padding;
    const int32_t column = (p.first_q_w + static_cast<int32_t>(q)) * p.w_axis.stride - p.w_axis.padding;
    positions[thread] = {image * p.y_batch_stride + row * p.y_row_stride + column * p.y_column_stride,
                         exists ? row : -(1 << 30), column};
  }
  if (begin < end) {
    weight.store(weights);
    input.store(inputs);
  }
  __syncthreads();

  const int32_t warp_position = warp % 2 * 8 * eights, warp_column = warp / 2 * 16 * pairs;
  float sums[eights / 2][pairs][2][4];  // [16 positions][16 columns][even or odd ones]
#pragma unroll
  for (int i = 0; i < eights / 2; ++i) {
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
#pragma unroll
      for (int r = 0; r < 8; ++r) sums[i][j][r / 4][r % 4] = 0;
    }
  }
  int32_t buffer = 0;
#pragma unroll 1
  for (int32_t chunk = begin; chunk < end; ++chunk) {
    const int32_t steps = (smaller(chunk_words, p.words - at.word) + step_words - 1) / step_words;
    if (chunk + 1 < end) {
      at.advance(p, chunk_words, channels_of_word, taps_w);
      weight.load(p, at);
      input.load(p, at);
    }
    const uint32_t* from_inputs = inputs + buffer * input_words + t * pitch(tile_positions) + warp_position + g;
    const uint32_t* from_weights =
        weights + buffer * weight_words + t * weight_pitch(tile_columns) + 2 * warp_column + 4 * g;
#pragma unroll
    for (int step = 0; step < chunk_words / step_words; ++step) {
      if (step < steps) {
        uint32_t a[eights / 2][4], low[Strict ? eights / 2 : 1][4];
#pragma unroll
        for (int i = 0; i < eights / 2; ++i) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const int four = 2 * step + r / 2;
            a[i][r] = from_inputs[4 * four * pitch(tile_positions) + ((16 * i + 8 * (r % 2)) ^ 8 * (four % 4))];
            if constexpr (Strict) split_tf32_operand(a[i][r], a[i][r], low[i][r]);
          }
        }
#pragma unroll
        for (int j = 0; j < pairs; ++j) {
          const uint4 b =
              *reinterpret_cast<const uint4*>(from_weights + 4 * step * weight_pitch(tile_columns) + 32 * j);
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            uint32_t c[2] = {odd == 0 ? b.x : b.z, odd == 0 ? b.y : b.w};
            if constexpr (Strict) {
              uint32_t d[2];
              split_tf32_operand(c[0], c[0], d[0]);
              split_tf32_operand(c[1], c[1], d[1]);
#pragma unroll
              for (int i = 0; i < eights / 2; ++i) {
                // The tensor core truncates its sums: long ones are taken in float32.
                float part[4] = {0, 0, 0, 0};
                device::mma_m16n8k8_tf32(part, low[i], c);
                device::mma_m16n8k8_tf32(part, a[i], d);
                device::mma_m16n8k8_tf32(part, a[i], c);
#pragma unroll
                for (int r = 0; r < 4; ++r) sums[i][j][odd][r] += part[r];
              }
            } else {
#pragma unroll
              for (int i = 0; i < eights / 2; ++i) {
                if constexpr (sizeof(Scalar) == 4) {
                  device::mma_m16n8k8_tf32(sums[i][j][odd], a[i], c);
                } else {
                  device::mma_m16n8k16<Scalar>(sums[i][j][odd], a[i], c);
                }
              }
            }
          }
        }
      }
    }
    if (chunk + 1 < end) {
      buffer ^= 1;
      weight.store(weights + buffer * weight_words);
      input.store(inputs + buffer * input_words);
    }
    __syncthreads();
  }

  if (p.splits > 1) {
    // Every split leaves its sums; the one that is last adds them all, in the order of the splits.
    constexpr int32_t elements = tile_positions * tile_columns;
    const uint32_t tiles = p.position_tiles.divisor * p.column_tiles.divisor;
    const uint32_t tile = static_cast<uint32_t>(group) * tiles + blockIdx.x % tiles;
    float* const partials = p.partials + int64_t{tile} * p.splits * elements + thread;
#pragma unroll
    for (int i = 0; i < 8 * eights / 2 * pairs; ++i) {
      partials[int64_t{split} * elements + i * block] = sums[i / 8 / pairs][i / 8 % pairs][i / 4 % 2][i % 4];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) *last = atomicAdd(p.counters + tile, 1u) + 1 == static_cast<uint32_t>(p.splits) ? 1 : 0;
    __syncthreads();
    if (*last == 0) return;
    __threadfence();
#pragma unroll
    for (int i = 0; i < 8 * eights / 2 * pairs; ++i) sums[i / 8 / pairs][i / 8 % pairs][i / 4 % 2][i % 4] = 0;
#pragma unroll 1
    for (int32_t k = 0; k < p.splits; ++k) {
#pragma unroll
      for (int i = 0; i < 8 * eights / 2 * pairs; ++i) {
        sums[i / 8 / pairs][i / 8 % pairs][i / 4 % 2][i % 4] += __ldcg(partials + int64_t{k} * elements + i * block);
      }
    }
  }

  const Scalar* bias = static_cast<const Scalar*>(p.bias);
  Scalar* y = static_cast<Scalar*>(p.y) + int64_t{group} * p.out_channels * p.y_channel_stride;
  const int64_t next_output = p.channels_innermost ? p.y_channel_stride : p.y_column_stride;
  // How many of 4 columns from `column` are in the image, and how many come before it.
  const auto valid = [&](const Columns& c, int32_t column, int32_t& first) {
    first = 0;
    if (p.channels_innermost) {
      return static_cast<uint32_t>(column) < static_cast<uint32_t>(p.w_axis.out) ? c.count : 0;
    }
    first = larger(0, -column);
    return smaller(c.count, p.w_axis.out - column);
  };
  float wrong = 0;  // becomes NaN when an output is not finite
#pragma unroll
  for (int j = 0; j < pairs; ++j) {
    const Columns c = columns_at<Strict>(p, first_column + warp_column + 16 * j + 4 * t);
    float add[4] = {0, 0, 0, 0};
    if (bias != nullptr && c.count > 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int32_t channel = c.channel + (p.channels_innermost ? smaller(k, c.count - 1) : 0);
        load<1>(bias + (int64_t{group} * p.out_channels + channel) * p.bias_stride, &add[k]);
      }
    }
    Scalar* const of_columns =
        y + (c.channel * p.y_channel_stride + c.row * p.y_row_stride + c.column * p.y_column_stride);
#pragma unroll
    for (int i = 0; i < eights; ++i) {
      const TilePosition q = positions[warp_position + 8 * i + g];
      const int half = 2 * (i % 2);
      const float (&sum)[2][4] = sums[i / 2][j];
      float v[4] = {sum[0][half], sum[1][half], sum[0][half + 1], sum[1][half + 1]};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[k] += add[k];
        wrong += v[k] * 0.0f;
      }
      if (static_cast<uint32_t>(q.row + c.row) >= static_cast<uint32_t>(p.h.out)) continue;
      int32_t first;
      const int32_t count = valid(c, q.column + c.column, first);
      Scalar* to = of_columns + q.output;
      if (p.y_quads && count == 4 && first == 0) {
        store<4>(to, v);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k >= first && k < count) store<1>(to + k * next_output, &v[k]);
        }
      }
    }
  }

  if (wrong == 0.0f) return;
  // Each output that is not finite, once more.
#pragma unroll 1
  for (int32_t i = 0; i < eights * pairs; ++i) {
    const Columns c = columns_at<Strict>(p, first_column + warp_column + 16 * (i / eights) + 4 * t);
    const int32_t position = warp_position + 8 * (i % eights) + g;
    const TilePosition q = positions[position];
    if (static_cast<uint32_t>(q.row + c.row) >= static_cast<uint32_t>(p.h.out)) continue;
    int32_t first;
    const int32_t count = valid(c, q.column + c.column, first);
    auto image = static_cast<uint32_t>(first_position + position);
    image = p.q_w.divide(image);
    image = p.q_h.divide(image);
#pragma unroll 1
    for (int32_t k = first; k < count; ++k) {
      Scalar* to = y + (q.output + c.channel * p.y_channel_stride + c.row * p.y_row_stride +
                        c.column * p.y_column_stride + k * next_output);
      float v = to_float(*to);
      if (v - v == 0.0f) continue;
      const int32_t channel = c.channel + (p.channels_innermost ? k : 0);
      const int32_t column = q.column + c.column + (p.channels_innermost ? 0 : k);
      float add = 0;
      if (bias != nullptr) load<1>(bias + (int64_t{group} * p.out_channels + channel) * p.bias_stride, &add);
      v = exact_output<Scalar, Strict>(p, x + image * p.x_batch_stride, w + channel * p.w_out_stride, add,
                                       q.row + c.row, column);
      store<1>(to, &v);
    }
  }
}

}  // namespace convt::large_stride
