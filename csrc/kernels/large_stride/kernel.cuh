// One matrix product for all phases of a large stride. See config.h for the idea.
//
// A warp has 16 phases of one output channel: two tiles of the tensor core's N, whose columns c are the phases 2 c and
// 2 c + 1. So a lane loads two neighbouring weights, and its accumulators of a position, columns 2 t and 2 t + 1 of
// both tiles, are the phases 4 t ... 4 t + 3.
#pragma once

#include "../tf32.h"
#include "params.h"

namespace convt::large_stride {

// Of a position: its first input word in shared memory, in bytes, and where its phase (0, 0) would lie in the output.
struct Position {
  int32_t input, row, column, inside;
};
static_assert(sizeof(Position) == 16);

template <class Scalar>
CONVT_DEVICE uint32_t bits_at(const Scalar* p) {
  if constexpr (sizeof(Scalar) == 4) {
    return __float_as_uint(__ldg(p));
  } else {
    return __ldg(&p->bits);
  }
}

// The weights of phases r and r + 1, as bits.
template <class Scalar>
CONVT_DEVICE void load_pair(const Params& p, const Scalar* from, int32_t valid, uint32_t (&to)[2]) {
  to[0] = to[1] = 0;
  if (p.load_pairs) {
    if (valid > 1) {
      if constexpr (sizeof(Scalar) == 4) {
        const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
        to[0] = v.x, to[1] = v.y;
      } else {
        const uint32_t v = __ldg(reinterpret_cast<const uint32_t*>(from));
        to[0] = v & 0xffff, to[1] = v >> 16;
      }
    }
  } else {
    if (valid > 0) to[0] = bits_at(from);
    if (valid > 1) to[1] = bits_at(from + p.w_column_stride);
  }
}

// A lane's phases r and r + 1 of a row of them; how many of the two exist is `count`.
struct Phases {
  int32_t row, column, count;
};

// One word of K of the lane's two phases.
template <class Scalar, bool Strict>
CONVT_DEVICE void load_weights(const Params& p, const Scalar* w, const Phases& r, int32_t word, uint32_t (&to)[2]) {
  to[0] = to[1] = 0;
  if (word >= p.depth) return;
  auto channel = static_cast<uint32_t>(word);
  const auto tap = static_cast<int32_t>(p.word_count.divide(channel));
  const int32_t j = tap / p.taps_w;
  const int32_t row = r.row + j * p.h.stride, column = r.column + (tap - j * p.taps_w) * p.w_axis.stride;
  const int32_t valid = row < p.h.kernel ? smaller(r.count, p.w_axis.kernel - column) : 0;
  if constexpr (sizeof(Scalar) == 4) {
    load_pair(p, w + (channel * p.w_in_stride + row * p.w_row_stride + column * p.w_column_stride), valid, to);
    if constexpr (!Strict) {
      to[0] = tf32_operand(to[0]), to[1] = tf32_operand(to[1]);
    }
  } else {
    const auto first = static_cast<int32_t>(2 * channel);
    const Scalar* from = w + (first * p.w_in_stride + row * p.w_row_stride + column * p.w_column_stride);
    uint32_t low[2], high[2];
    load_pair(p, from, valid, low);
    load_pair(p, from + p.w_in_stride, first + 1 < p.channels ? valid : 0, high);
    to[0] = low[0] | high[0] << 16, to[1] = low[1] | high[1] << 16;
  }
}

// An output by its definition. Products with inputs or taps that do not exist are zero in the matrix product, unless
// the other factor is infinite or NaN.
template <class Scalar, bool Strict, class P>
CONVT_DEVICE float exact_output(const P& p, const Scalar* x, const Scalar* w, float bias, int32_t row, int32_t column) {
  const auto operand = [](const Scalar* from) {
    float v;
    load<1>(from, &v);
    return sizeof(Scalar) == 4 && !Strict ? __uint_as_float(device::to_tf32(v)) : v;
  };
  const Taps<int32_t> h = transposed_taps(p.h, row), v = transposed_taps(p.w_axis, column);
  float sum = 0;
#pragma unroll 1
  for (int32_t j = 0; j < h.count; ++j) {
#pragma unroll 1
    for (int32_t k = 0; k < v.count; ++k) {
      const Scalar* from_x = x + ((h.position + j * h.position_step) * p.x_row_stride +
                                  (v.position + k * v.position_step) * p.x_column_stride);
      const Scalar* from_w =
          w + ((h.tap + j * h.tap_step) * p.w_row_stride + (v.tap + k * v.tap_step) * p.w_column_stride);
#pragma unroll 1
      for (int32_t c = 0; c < p.channels; ++c) {
        sum += operand(from_x + c * p.x_channel_stride) * operand(from_w + c * p.w_in_stride);
      }
    }
  }
  return sum + bias;
}

template <class Scalar, bool Strict, int Steps>
__global__ void __launch_bounds__(block, resident_blocks(Steps, Strict))
    large_stride_kernel(const __grid_constant__ Params p) {
  static_assert(!Strict || sizeof(Scalar) == 4);
  unsigned char* shared = device::dynamic_shared_memory();
  auto* positions = reinterpret_cast<Position*>(shared);
  auto* offsets = reinterpret_cast<int32_t*>(positions + p.positions);
  auto* inputs = reinterpret_cast<uint32_t*>(offsets + (p.depth + step_words - 1) / step_words * step_words);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, g = lane / 4, t = lane % 4;

  uint32_t task = blockIdx.x;
  uint32_t row_block = p.blocks.divide(task);
  uint32_t group = p.row_blocks.divide(row_block);
  const int64_t image = p.groups.divide(group);
  task = task * (block / 32) + threadIdx.x / 32;
  const bool idle = task >= static_cast<uint32_t>(p.phase_tasks);
  uint32_t phase_block = task;
  const auto co = static_cast<int32_t>(p.phase_blocks.divide(phase_block));
  const Scalar* x =
      static_cast<const Scalar*>(p.x) + image * p.x_batch_stride + group * p.channels * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + group * p.channels * p.w_in_stride + co * p.w_out_stride;

  // The weights are on their way while the inputs are staged.
  uint32_t b[Steps][2][2];  // [step][half of its words][tile]
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) b[step][half][0] = b[step][half][1] = 0;
  }
  if (!idle) {
    uint32_t column = phase_block * warp_phases + 2 * g;
    const uint32_t row = p.phase_row.divide(column);
    const Phases mine{static_cast<int32_t>(row), static_cast<int32_t>(column),
                      static_cast<int32_t>(row) < p.h.stride ? p.w_axis.stride - static_cast<int32_t>(column) : 0};
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
      if (step * step_words < p.depth) {
        load_weights<Scalar, Strict>(p, w, mine, step * step_words + t, b[step][0]);
        load_weights<Scalar, Strict>(p, w, mine, step * step_words + t + 4, b[step][1]);
      }
    }
  }

  const auto first_row = static_cast<int32_t>(row_block) * p.rows;  // of the block's positions
  const auto in_columns = static_cast<int32_t>(p.in_columns.divisor);
  for (int32_t i = thread; i < p.positions; i += block) {
    auto column = static_cast<uint32_t>(i);
    const auto row = static_cast<int32_t>(p.q_w.divide(column));
    const bool inside = row < p.rows && first_row + row < p.q_h;
    const auto q = static_cast<int32_t>(column);
    positions[i] = {4 * ((inside ? (row + p.taps_h - 1) * in_columns + q : (p.taps_h - 1) * in_columns) + p.taps_w - 1),
                    (p.first_q_h + first_row + row) * p.h.stride - p.h.padding,
                    (p.first_q_w + q) * p.w_axis.stride - p.w_axis.padding, inside ? 1 : 0};
  }
  for (int32_t i = thread; i < (p.depth + step_words - 1) / step_words * step_words; i += block) {
    auto channel = static_cast<uint32_t>(i);
    const auto tap = static_cast<int32_t>(p.word_count.divide(channel));
    const int32_t j = tap / p.taps_w;
    // Behind the last word of K: a plane of zeros.
    offsets[i] = 4 * (i < p.depth ? static_cast<int32_t>(channel) * p.plane - j * in_columns - (tap - j * p.taps_w)
                                  : p.words * p.plane);
  }
  const auto pixels = p.pixels;
  const int32_t first_in_row = p.first_q_h + first_row - (p.taps_h - 1), first_in_column = p.first_q_w - (p.taps_w - 1);
  for (int32_t i = thread; i < pixels; i += block) {
    auto column = static_cast<uint32_t>(i);
    const int32_t in_row = static_cast<int32_t>(p.in_columns.divide(column)) + first_in_row;
    const int32_t in_column = static_cast<int32_t>(column) + first_in_column;
    const bool exists = static_cast<uint32_t>(in_row) < static_cast<uint32_t>(p.h.in) &&
                        static_cast<uint32_t>(in_column) < static_cast<uint32_t>(p.w_axis.in);
    const Scalar* from = x + (in_row * p.x_row_stride + in_column * p.x_column_stride);
#pragma unroll 8
    for (int32_t word = 0; word < p.words; ++word) {
      uint32_t v = 0;
      if (exists) {
        if constexpr (sizeof(Scalar) == 4) {
          v = bits_at(from + word * p.x_channel_stride);
          if constexpr (!Strict) v = tf32_operand(v);
        } else {
          v = bits_at(from + 2 * word * p.x_channel_stride);
          if (2 * word + 1 < p.channels) v |= bits_at(from + (2 * word + 1) * p.x_channel_stride) << 16;
        }
      }
      inputs[word * p.plane + i] = v;
    }
  }
  for (int32_t i = thread; i < p.plane; i += block) inputs[p.words * p.plane + i] = 0;
  __syncthreads();
  if (idle) return;

  // The lane's four outputs of a position.
  uint32_t first_column = phase_block * warp_phases + 4 * t;
  const auto phase_row = static_cast<int32_t>(p.phase_row.divide(first_column));
  const auto phase_column = static_cast<int32_t>(first_column);
  const int32_t phases = phase_row < p.h.stride ? smaller(4, p.w_axis.stride - phase_column) : 0;
  const int64_t channel = static_cast<int64_t>(group) * p.out_channels + co;
  float bias = 0;
  if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);
  Scalar* y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride + channel * p.y_channel_stride;

  const auto* from_inputs = reinterpret_cast<const unsigned char*>(inputs);
  float wrong = 0;  // becomes NaN when an output is not finite
  for (int32_t first = 0; first < p.positions; first += loop_positions) {
    Position at[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = positions[first + 8 * i + g];
    float sums[2][2][4];  // [16 positions][tile]
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
      if (step * step_words < p.depth) {
        const int32_t offset[2] = {offsets[step * step_words + t], offsets[step * step_words + t + 4]};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            // The plane of zeros has no row for the taps.
            a[r] = *reinterpret_cast<const uint32_t*>(from_inputs + (at[2 * i + r % 2].input + offset[r / 2]));
          }
          if constexpr (Strict) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) split_tf32_operand(a[r], high[r], low[r]);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
              uint32_t c[2], d[2];
              split_tf32_operand(b[step][0][tile], c[0], d[0]);
              split_tf32_operand(b[step][1][tile], c[1], d[1]);
              // The tensor core truncates its sums: long ones are taken in float32.
              float part[4] = {0, 0, 0, 0};
              device::mma_m16n8k8_tf32(part, low, c);
              device::mma_m16n8k8_tf32(part, high, d);
              device::mma_m16n8k8_tf32(part, high, c);
#pragma unroll
              for (int r = 0; r < 4; ++r) sums[i][tile][r] += part[r];
            }
          } else {
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
              const uint32_t c[2] = {b[step][0][tile], b[step][1][tile]};
              if constexpr (sizeof(Scalar) == 4) {
                device::mma_m16n8k8_tf32(sums[i][tile], a, c);
              } else {
                device::mma_m16n8k16<Scalar>(sums[i][tile], a, c);
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t row = at[i].row + phase_row, column = at[i].column + phase_column;
      const int32_t half = 2 * (i % 2);
      float v[4] = {sums[i / 2][0][half], sums[i / 2][1][half], sums[i / 2][0][half + 1], sums[i / 2][1][half + 1]};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[j] += bias;
        wrong += v[j] * 0.0f;
      }
      if (at[i].inside == 0 || static_cast<uint32_t>(row) >= static_cast<uint32_t>(p.h.out)) continue;
      Scalar* to = y + (row * p.y_row_stride + column * p.y_column_stride);
      if (p.store_quads && phases == 4 && column >= 0 && column + 4 <= p.w_axis.out) {
        store<4>(to, v);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j < phases && static_cast<uint32_t>(column + j) < static_cast<uint32_t>(p.w_axis.out)) {
            store<1>(to + j * p.y_column_stride, &v[j]);
          }
        }
      }
    }
  }

  if (wrong == 0.0f) return;
  // Each output that is not finite, once more.
#pragma unroll 1
  for (int32_t i = g; i < p.positions; i += 8) {
    const Position at = positions[i];
    const int32_t row = at.row + phase_row;
    if (at.inside == 0 || static_cast<uint32_t>(row) >= static_cast<uint32_t>(p.h.out)) continue;
#pragma unroll 1
    for (int32_t j = 0; j < phases; ++j) {
      const int32_t column = at.column + phase_column + j;
      if (static_cast<uint32_t>(column) >= static_cast<uint32_t>(p.w_axis.out)) continue;
      Scalar* to = y + (row * p.y_row_stride + column * p.y_column_stride);
      float v = to_float(*to);
      if (v - v == 0.0f) continue;
      v = exact_output<Scalar, Strict>(p, x, w, bias, row, column);
      store<1>(to, &v);
    }
  }
}

}  // namespace convt::large_stride
