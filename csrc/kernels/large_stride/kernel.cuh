// One matrix product for all phases of a large stride. See config.h for the idea.
//
// Weights are the tensor core's A, so that neither they nor inputs change registers between memory and a product: a
// warp has 16 or 32 phases of one output channel, T = 1 or 2 tiles of 16 rows, and rows r and r + 8 of tile i are the
// phases 2 T r + 2 i and the next. So a lane loads 2 T neighbouring weights, and its accumulators of a position are the
// same phases.
#pragma once

#include "../tf32.h"
#include "../touch.h"
#include "params.h"
#include "phases.cuh"

namespace convt::large_stride {

// Of a position: its first input words in shared memory, in bytes; which of its phases lie in the image; and where
// phase (0, 0) lies in the output, from the image's first element.
struct Position {
  int32_t input, inside;
  int64_t output;
};
enum Inside : int32_t { none, some, all };
static_assert(sizeof(Position) == 16);

// Of a pair of words of K: where its weights of phase (0, 0) lie, from those of the first channel and tap; how many
// channels it has; below which row and column a phase has its tap.
struct Weights {
  int64_t offset;
  int32_t channels;
  int16_t rows, columns;
};
static_assert(sizeof(Weights) == 16);

template <class Scalar>
CONVT_DEVICE uint32_t bits_at(const Scalar* p) {
  if constexpr (sizeof(Scalar) == 4) {
    return __float_as_uint(__ldg(p));
  } else {
    return __ldg(&p->bits);
  }
}

// A lane's phases of a row of them, from `column`; how many exist is `count`.
struct Phases {
  int32_t row, column, count;
};

// A pair of words of K of the lane's phases, as they come from memory: finish_weights() makes them operands.
// `from` is the pair's first weight of the lane's first phase.
template <class Scalar, bool Vectors, int Tiles>
CONVT_DEVICE void load_weights(const Params& p, const Scalar* from, const Weights& k, const Phases& r,
                               uint32_t (&to)[Tiles][4]) {
  const int32_t valid = r.row < k.rows ? smaller(r.count, k.columns - r.column) : 0;
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    if constexpr (sizeof(Scalar) == 4) {
      // Two at a time are the registers of an operand that lie side by side.
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        uint32_t two[2];
        load_phases<Scalar, Vectors>(p, from + 2 * i * p.w_column_stride, word < k.channels ? valid - 2 * i : 0, two);
        to[i][2 * word] = two[0], to[i][2 * word + 1] = two[1];
      }
      from += p.w_in_stride;
    } else {
      uint32_t low[2 * Tiles], high[2 * Tiles];
      load_phases<Scalar, Vectors>(p, from, 2 * word < k.channels ? valid : 0, low);
      from += p.w_in_stride;
      load_phases<Scalar, Vectors>(p, from, 2 * word + 1 < k.channels ? valid : 0, high);
      from += p.w_in_stride;
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        to[i][2 * word] = Vectors ? low[i] : low[2 * i] | high[2 * i] << 16;
        to[i][2 * word + 1] = Vectors ? high[i] : low[2 * i + 1] | high[2 * i + 1] << 16;
      }
    }
  }
}

template <class Scalar, bool Strict, bool Vectors, int Tiles>
CONVT_DEVICE void finish_weights(uint32_t (&a)[Tiles][4]) {
#pragma unroll
  for (int i = 0; i < 2 * Tiles; ++i) {
    uint32_t &first = a[i / 2][i % 2 * 2], &second = a[i / 2][i % 2 * 2 + 1];
    if constexpr (sizeof(Scalar) == 2 && Vectors) {
      const uint32_t low = first, high = second;
      first = __byte_perm(low, high, 0x5410), second = __byte_perm(low, high, 0x7632);
    } else if constexpr (sizeof(Scalar) == 4 && !Strict) {
      first = tf32_operand(first), second = tf32_operand(second);
    }
  }
}

// Where phase (0, 0) of a position of a block would lie in the output.
struct Place {
  int32_t row, column;
};

CONVT_DEVICE Place place_of(const Params& p, int32_t first_row, int32_t position) {
  auto q = static_cast<uint32_t>(position);
  const auto row = static_cast<int32_t>(p.q_w.divide(q));
  return {(p.first_q_h + first_row + row) * p.h.stride - p.h.padding,
          (p.first_q_w + static_cast<int32_t>(q)) * p.w_axis.stride - p.w_axis.padding};
}

// What a warp computes: phases of an output channel of a group, at a part of the positions of a block's rows.
struct Task {
  int64_t image;
  int32_t group, channel, first_row;
  uint32_t phase_block, part;
  bool idle;
};

CONVT_DEVICE Task task_of(const Params& p, int32_t block, int32_t thread) {
  auto task = static_cast<uint32_t>(block);
  uint32_t row_block = p.blocks.divide(task);
  uint32_t group = p.row_blocks.divide(row_block);
  const int64_t image = p.groups.divide(group);
  task = task * (blockDim.x / 32) + static_cast<uint32_t>(thread) / 32;
  const bool idle = task >= static_cast<uint32_t>(p.phase_tasks);
  uint32_t phase_block = p.parts.divide(task);
  const auto channel = static_cast<int32_t>(p.phase_blocks.divide(phase_block));
  return {image, static_cast<int32_t>(group), channel, static_cast<int32_t>(row_block) * p.rows, phase_block, task,
          idle};
}

template <class Scalar, bool Strict, bool Vectors, int Row>
__global__ void __launch_bounds__(32 * resident_warps(configs[Row], Strict), 1)
    large_stride_kernel(const __grid_constant__ Params p) {
  static_assert(!Strict || sizeof(Scalar) == 4);
  constexpr int Steps = configs[Row].steps, warp_phases = configs[Row].phases, Tiles = warp_phases / 16;
  constexpr int outputs = 2 * Tiles;  // of a lane and a position: neighbouring phases
  unsigned char* shared = device::dynamic_shared_memory();
  constexpr int32_t pairs = Steps * step_pairs;
  const auto block = static_cast<int32_t>(blockDim.x);
  const uint32_t touched = touch(p, blockIdx.y);
  auto* positions = reinterpret_cast<Position*>(shared);
  auto* of_weights = reinterpret_cast<Weights*>(positions + p.positions);
  auto* offsets = reinterpret_cast<int32_t*>(of_weights + pairs);
  auto* inputs = reinterpret_cast<uint32_t*>(offsets + pairs);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, g = lane / 4, t = lane % 4;

  const Task task = task_of(p, static_cast<int32_t>(blockIdx.x), thread);
  const Scalar* x = inputs_of<Scalar>(p, task);
  const int32_t first_row = task.first_row;
  const auto in_columns = static_cast<int32_t>(p.in_columns.divisor);

  if (thread == 0) *reinterpret_cast<volatile uint32_t*>(positions) = touched;
  // Behind the last word of K: weights that do not exist, and a plane of zeros.
#pragma unroll 1
  for (int32_t i = thread; i < pairs; i += block) {
    auto pair = static_cast<uint32_t>(i);
    auto k = p.pair_count.divide(pair);
    const auto j = static_cast<int32_t>(p.taps_of_row.divide(k));
    const auto tap_row = j * p.h.stride, tap_column = static_cast<int32_t>(k) * p.w_axis.stride;
    constexpr int32_t channels = sizeof(Scalar) == 4 ? 2 : 4;
    const auto first = static_cast<int32_t>(pair) * channels;
    const bool exists = i < p.depth;
    of_weights[i] = {first * p.w_in_stride + tap_row * p.w_row_stride + tap_column * p.w_column_stride,
                     smaller(channels, p.channels - first),
                     static_cast<int16_t>(exists ? smaller(p.h.kernel - tap_row, 1 << 14) : 0),
                     static_cast<int16_t>(exists ? smaller(p.w_axis.kernel - tap_column, 1 << 14) : 0)};
    // A lane's are beside each other.
    offsets[i % step_pairs * Steps + i / step_pairs] =
        4 * (exists ? static_cast<int32_t>(pair) * p.plane - 2 * (j * in_columns + static_cast<int32_t>(k))
                    : p.pairs * p.plane);
  }
  // Copies of float32 inputs are on their way while the weights are loaded, behind which they would wait; 16-bit inputs
  // are staged behind them.
  const auto stage_inputs = [&](const auto& stage) {
    const int32_t first_in_row = p.first_q_h + first_row - (p.taps_h - 1);
    const int32_t first_in_column = p.first_q_w - (p.taps_w - 1);
#pragma unroll 1
    for (int32_t i = thread; i < p.pixels; i += block) {
      auto column = static_cast<uint32_t>(i);
      const int32_t in_row = static_cast<int32_t>(p.in_columns.divide(column)) + first_in_row;
      const int32_t in_column = static_cast<int32_t>(column) + first_in_column;
      const bool exists = static_cast<uint32_t>(in_row) < static_cast<uint32_t>(p.h.in) &&
                          static_cast<uint32_t>(in_column) < static_cast<uint32_t>(p.w_axis.in);
      stage(x + (in_row * p.x_row_stride + in_column * p.x_column_stride), exists, inputs + 2 * i);
    }
  };
  if constexpr (sizeof(Scalar) == 4) {
    stage_inputs([&](const Scalar* from, bool inside, uint32_t* pixel) {
      device::SharedAddress to = device::shared_address(pixel);
#pragma unroll 1
      for (int32_t pair = 0; pair < p.pairs; ++pair, to += 4 * p.plane) {
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          const bool exists = inside && 2 * pair + word < p.channels;
          device::cp_async<4>(to + 4 * word, exists ? from : x, exists ? 4 : 0);
          from += p.x_channel_stride;
        }
      }
    });
    device::cp_async_commit();
  }
  __syncthreads();

  // The lane's phases are those of its outputs, too.
  uint32_t first_phase = task.phase_block * warp_phases + outputs * g;
  const auto phase_row = static_cast<int32_t>(p.phase_row.divide(first_phase));
  const auto phase_column = static_cast<int32_t>(first_phase);
  const int32_t phases = phase_row < p.h.stride ? smaller(outputs, p.w_axis.stride - phase_column) : 0;
  uint32_t weights[Steps][Tiles][4];
  {
    // A warp that is idle loads nothing, without a branch: behind one, all weights would be waited for at once.
    const Phases mine{phase_row, phase_column, task.idle ? 0 : phases};
    const Scalar* from = weights_of<Scalar>(p, task) + (phase_row * p.w_row_stride + phase_column * p.w_column_stride);
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
      const Weights k = of_weights[step * step_pairs + t];
      load_weights<Scalar, Vectors>(p, from + k.offset, k, mine, weights[step]);
    }
  }

#pragma unroll 1
  for (int32_t i = thread; i < p.positions; i += block) {
    auto column = static_cast<uint32_t>(i);
    const auto row = static_cast<int32_t>(p.q_w.divide(column));
    const auto q = static_cast<int32_t>(column);
    const bool exists = row < p.rows && first_row + row < p.q_h;
    const Place at = place_of(p, first_row, i);
    const bool whole =
        at.row >= 0 && at.row + p.h.stride <= p.h.out && at.column >= 0 && at.column + p.w_axis.stride <= p.w_axis.out;
    positions[i] = {8 * ((p.taps_h - 1 + (exists ? row : 0)) * in_columns + (exists ? q : 0) + p.taps_w - 1),
                    !exists ? none
                    : whole ? all
                            : some,
                    at.row * p.y_row_stride + at.column * p.y_column_stride};
  }
#pragma unroll 1
  for (int32_t i = thread; i < p.plane; i += block) inputs[p.pairs * p.plane + i] = 0;
  if constexpr (sizeof(Scalar) == 4) {
    device::cp_async_wait<0>();
    if constexpr (!Strict) {
      // Each thread rounds what it has copied itself.
      stage_inputs([&](const Scalar*, bool, uint32_t* pixel) {
#pragma unroll 4
        for (int32_t pair = 0; pair < p.pairs; ++pair, pixel += p.plane) {
          uint2& words = *reinterpret_cast<uint2*>(pixel);
          words = make_uint2(tf32_operand(words.x), tf32_operand(words.y));
        }
      });
    }
  } else {
    // Loads of several pairs, before the first of them is put together.
    constexpr int batch = Steps > 12 ? 2 : 4;
    stage_inputs([&](const Scalar* from, bool exists, uint32_t* pixel) {
#pragma unroll 1
      for (int32_t first = 0; first < p.pairs; first += batch) {
        uint32_t v[batch][4];
#pragma unroll
        for (int i = 0; i < 4 * batch; ++i) {
          load_if<2>(exists && 4 * first + i < p.channels, from, &v[i / 4][i % 4]);
          from += p.x_channel_stride;
        }
#pragma unroll
        for (int i = 0; i < batch; ++i, pixel += p.plane) {
          if (first + i < p.pairs) {
            *reinterpret_cast<uint2*>(pixel) = make_uint2(v[i][0] | v[i][1] << 16, v[i][2] | v[i][3] << 16);
          }
        }
      }
    });
  }
  __syncthreads();
  if (task.idle) return;
#pragma unroll
  for (int step = 0; step < Steps; ++step) finish_weights<Scalar, Strict, Vectors>(weights[step]);

  const int64_t channel = static_cast<int64_t>(task.group) * p.out_channels + task.channel;
  float bias = 0;
  if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);
  Scalar* y = static_cast<Scalar*>(p.y) + task.image * p.y_batch_stride + channel * p.y_channel_stride +
              phase_row * p.y_row_stride + phase_column * p.y_column_stride;

  const auto* from_inputs = reinterpret_cast<const unsigned char*>(inputs);
  constexpr int blocks = loop_positions / 8;  // of positions: columns of a product
  constexpr int offsets_at_once = Steps % 4 == 0 ? 4 : 2;
  struct alignas(4 * offsets_at_once) OffsetsOfLane {
    int32_t v[offsets_at_once];
  };
  float wrong = 0;  // becomes NaN when an output is not finite
  const int32_t begin = static_cast<int32_t>(task.part) * loop_positions,
                step_positions = static_cast<int32_t>(p.parts.divisor) * loop_positions;
  for (int32_t first = begin; first < p.positions; first += step_positions) {
    int32_t at[blocks];
#pragma unroll
    for (int i = 0; i < blocks; ++i) at[i] = positions[first + 8 * i + g].input;
    float sums[blocks][Tiles][4];
#pragma unroll
    for (int i = 0; i < 4 * Tiles * blocks; ++i) sums[i / (4 * Tiles)][i / 4 % Tiles][i % 4] = 0;
    OffsetsOfLane of;
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
      if (step % offsets_at_once == 0) of = *reinterpret_cast<const OffsetsOfLane*>(offsets + t * Steps + step);
      const int32_t offset = of.v[step % offsets_at_once];
#pragma unroll
      for (int i = 0; i < blocks; ++i) {
        // The plane of zeros has no row for the taps.
        const uint2 v = *reinterpret_cast<const uint2*>(from_inputs + (at[i] + offset));
        const uint32_t input[2] = {v.x, v.y};
        if constexpr (Strict) {
          uint32_t high[2], low[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) split_tf32_operand(input[r], high[r], low[r]);
#pragma unroll
          for (int tile = 0; tile < Tiles; ++tile) {
            uint32_t c[4], d[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) split_tf32_operand(weights[step][tile][r], c[r], d[r]);
            // The tensor core truncates its sums: long ones are taken in float32.
            float part[4] = {0, 0, 0, 0};
            device::mma_m16n8k8_tf32(part, c, low);
            device::mma_m16n8k8_tf32(part, d, high);
            device::mma_m16n8k8_tf32(part, c, high);
#pragma unroll
            for (int r = 0; r < 4; ++r) sums[i][tile][r] += part[r];
          }
        } else {
#pragma unroll
          for (int tile = 0; tile < Tiles; ++tile) {
            if constexpr (sizeof(Scalar) == 4) {
              device::mma_m16n8k8_tf32(sums[i][tile], weights[step][tile], input);
            } else {
              device::mma_m16n8k16<Scalar>(sums[i][tile], weights[step][tile], input);
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * blocks; ++i) {
      const int32_t position = first + 8 * (i / 2) + 2 * t + i % 2;
      const Position at = positions[position];
      float v[outputs];
#pragma unroll
      for (int j = 0; j < outputs; ++j) {
        v[j] = sums[i / 2][j / 2][j % 2 * 2 + i % 2] + bias;
        wrong += v[j] * 0.0f;
      }
      Scalar* to = y + at.output;
      const bool whole = at.inside == all && p.store_vectors && phases == outputs;
      store_if<outputs>(whole, to, v);
      if (at.inside != none && !whole) {
        const Place place = place_of(p, first_row, position);
        if (static_cast<uint32_t>(place.row + phase_row) >= static_cast<uint32_t>(p.h.out)) continue;
        store_inside(p, place.column + phase_column, phases, to, v);
      }
    }
  }

  if (wrong == 0.0f) return;
  // Each output that is not finite, once more. Where its operands are is not kept until then.
  const Task again =
      task_of(p, device::opaque(static_cast<int32_t>(blockIdx.x)), device::opaque(static_cast<int32_t>(threadIdx.x)));
  const Scalar *all_inputs = inputs_of<Scalar>(p, again), *w = weights_of<Scalar>(p, again);
#pragma unroll 1
  for (int32_t n = 0, first = begin; first < p.positions; n += 1, first = n / (2 * blocks) * step_positions + begin) {
    const int32_t i = first + n / 2 % blocks * 8 + 2 * t + n % 2;
    const Position at = positions[i];
    const Place place = place_of(p, first_row, i);
    const int32_t row = place.row + phase_row;
    if (at.inside == none || static_cast<uint32_t>(row) >= static_cast<uint32_t>(p.h.out)) continue;
    correct_inside<Scalar, Strict>(p, all_inputs, w, bias, row, place.column + phase_column, phases, y + at.output);
  }
}

}  // namespace convt::large_stride
