// One matrix product for all phases of a large stride, by wgmma. See config.h for the idea.
//
// Rows r and r + 8 of a warp's 16 are the phases 2 r and the next: a lane loads two neighbouring weights at a time,
// which are a row of either half of its operand, and its sums of a position are the same phases.
#pragma once

#include <limits>

#include "../large_stride/phases.cuh"
#include "../tf32.h"
#include "params.h"

namespace convt::large_stride_sm90 {

// Where phase (0, 0) of a position lies in the output: bytes from the image's first element, which are even. Odd if
// some of its phases are outside of the image, or it is no position of the block's at all: `nowhere`.
using Output = int64_t;
inline constexpr Output nowhere = std::numeric_limits<int64_t>::min() | 1;

// Of a unit of K and a lane of four: where its weights of phase (0, 0) lie, from those of the first channel and tap;
// how many channels it has; below which row and column a phase has its tap.
struct Weights {
  int64_t offset;
  int32_t channels;
  int16_t rows, columns;
};
static_assert(sizeof(Weights) == unit_bytes);

// Where phase (0, 0) of a position of a block would lie in the output.
struct Place {
  int32_t row, column;
};
CONVT_DEVICE Place place_of(const Params& p, int32_t first_row, int32_t row, int32_t column) {
  return {(p.first_q_h + first_row + row) * p.h.stride - p.h.padding,
          (p.first_q_w + column) * p.w_axis.stride - p.w_axis.padding};
}
CONVT_DEVICE Place place_of(const Params& p, int32_t first_row, int32_t position) {
  auto column = static_cast<uint32_t>(position);
  const auto row = static_cast<int32_t>(p.in_columns.divide(column));
  return place_of(p, first_row, row, static_cast<int32_t>(column));
}

// What a warpgroup computes: phases of an output channel of a group, at the positions of a block's rows.
struct Task {
  int64_t image;
  int32_t group, channel, first_row;
  uint32_t phase_block;
  bool idle;
};
CONVT_DEVICE Task task_of(const Params& p, int32_t block, int32_t warpgroup) {
  auto task = static_cast<uint32_t>(block);
  uint32_t row_block = p.blocks.divide(task);
  uint32_t group = p.row_blocks.divide(row_block);
  const int64_t image = p.groups.divide(group);
  task = task * (blockDim.x / group_threads) + static_cast<uint32_t>(warpgroup);
  const bool idle = task >= static_cast<uint32_t>(p.tasks);
  const auto channel = static_cast<int32_t>(p.phase_blocks.divide(task));
  return {image, static_cast<int32_t>(group), channel, static_cast<int32_t>(row_block) * p.rows, task, idle};
}

// A lane's two rows of half of a step's operand, as they come from memory: finish_weights() makes them operands.
// `from`: the unit's first weight of the lane's first phase, which has `valid` of both.
template <class Scalar, bool Vectors>
CONVT_DEVICE void load_weights(const Params& p, const Scalar* from, int32_t channels, int32_t valid, uint32_t* to) {
  if constexpr (sizeof(Scalar) == 4) {
    uint32_t two[2];
    large_stride::load_phases<Scalar, Vectors>(p, from, channels > 0 ? valid : 0, two);
    to[0] = two[0], to[1] = two[1];
  } else {
    uint32_t low[2], high[2];
    large_stride::load_phases<Scalar, Vectors>(p, from, channels > 0 ? valid : 0, low);
    large_stride::load_phases<Scalar, Vectors>(p, from + p.w_in_stride, channels > 1 ? valid : 0, high);
    to[0] = Vectors ? low[0] : low[0] | high[0] << 16, to[1] = Vectors ? high[0] : low[1] | high[1] << 16;
  }
}
template <class Scalar, bool Vectors>
CONVT_DEVICE void finish_weights(uint32_t (&a)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t &first = a[2 * half], &second = a[2 * half + 1];
    if constexpr (sizeof(Scalar) == 4) {
      first = tf32_operand(first), second = tf32_operand(second);
    } else if constexpr (Vectors) {
      const uint32_t low = first, high = second;
      first = __byte_perm(low, high, 0x5410), second = __byte_perm(low, high, 0x7632);
    }
  }
}

// Rows of x are copied as they are (Copies) by a kernel of its own: the other one has nothing of it to fetch.
template <class Scalar, bool Vectors, int Row, bool Copies>
__global__ void __launch_bounds__(most_groups* group_threads, 1)
    large_stride_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int steps = configs[Row].steps, size = sizeof(Scalar), unit = unit_bytes / size;
  unsigned char* const shared = device::dynamic_shared_memory();
  const auto thread = static_cast<int32_t>(threadIdx.x), block = static_cast<int32_t>(blockDim.x);
  const int32_t lane = thread % 32, g = lane / 4, t = lane % 4;
  const auto warpgroup = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const int32_t plane_bytes = p.plane_pixels * unit_bytes, in_columns = static_cast<int32_t>(p.in_columns.divisor);
  auto* const of_positions = reinterpret_cast<Output*>(shared + p.planes * plane_bytes);
  auto* const of_weights = reinterpret_cast<Weights*>(of_positions + p.positions);
  auto* const of_steps = reinterpret_cast<uint32_t*>(of_weights + 8 * steps);
  const Task task = task_of(p, static_cast<int32_t>(blockIdx.x), warpgroup);
  const int32_t first_row = task.first_row, group_thread = thread % group_threads;
  const bool is_stager = warpgroup == block / group_threads - 1;
  constexpr int inputs_barrier = 1, stagers_barrier = 2;
  const Scalar* const x = large_stride::inputs_of<Scalar>(p, task);
  const int32_t x_row = p.first_q_h + first_row - (p.taps_h - 1), x_column = p.first_q_w - (p.taps_w - 1);  // the first
  // As they are, rows of all channels, if the copy engine can.
  const bool copies_all = p.row_blocks.divisor == 1;
  const int32_t copied_row = copies_all ? 0 : larger(x_row, 0),
                copied_end = copies_all ? p.h.in : smaller(x_row + p.rows + p.taps_h - 1, p.h.in),
                copied = (copied_end - copied_row) * p.w_axis.in;  // elements of a channel
  const device::SharedAddress copy_barrier = device::shared_address(of_steps + table_words(steps)),
                              copy = copy_barrier + barrier_bytes;
  if (Copies && is_stager && group_thread < 32) {
    if (lane == 0) {
      device::mbarrier_init(copy_barrier, 1);
      device::mbarrier_init_fence();
    }
    __syncwarp();
    if (lane == 0) {
      device::mbarrier_arrive_expect(copy_barrier, static_cast<uint32_t>(larger(copied, 0) * p.channels * size));
    }
    __syncwarp();
    for (int32_t c = lane; c < p.channels && copied > 0; c += 32) {
      device::bulk_load(copy + static_cast<uint32_t>(c * copied * size),
                        x + (c * p.x_channel_stride + copied_row * p.x_row_stride),
                        static_cast<uint32_t>(copied * size), copy_barrier);
    }
  }

  // Inputs, some units of channels of a pixel at a time: loads that do not wait for each other.
  constexpr int at_once = inputs_at_once / unit;
  const int32_t pixel_units = p.planes * p.plane_pixels;
  // Blocks begin with different ones: all of them at the same lines of L2 would wait for each other.
  const auto begin =
      static_cast<int32_t>(static_cast<uint64_t>(blockIdx.x * 0x9e3779b9u) * static_cast<uint64_t>(pixel_units) >> 32);
  const auto number_of = [&](int32_t n) {
    n += begin;
    return n < pixel_units ? n : n - pixel_units;
  };
  struct Pixel {
    int32_t channel, row, column;
    bool exists;
  };
  const auto pixel_of = [&](int32_t number) -> Pixel {
    auto column = static_cast<uint32_t>(number);
    const int32_t first = static_cast<int32_t>(p.by_pixels.divide(column)) * unit,
                  row = static_cast<int32_t>(p.in_columns.divide(column)) + x_row,
                  last = static_cast<int32_t>(column) + x_column;
    return {first, row, last,
            static_cast<uint32_t>(row) < static_cast<uint32_t>(p.h.in) &&
                static_cast<uint32_t>(last) < static_cast<uint32_t>(p.w_axis.in)};
  };
  const auto load_inputs = [&](int32_t first, uint32_t (&v)[at_once][unit]) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const Pixel at = pixel_of(number_of(first + i * group_threads));
      const bool exists = at.exists && first + i * group_threads < pixel_units;
      const Scalar* from =
          x + (at.channel * p.x_channel_stride + at.row * p.x_row_stride + at.column * p.x_column_stride);
#pragma unroll
      for (int c = 0; c < unit; ++c, from += p.x_channel_stride) {
        load_if<size>(exists && at.channel + c < p.channels, from, &v[i][c]);
      }
    }
  };
  const auto store_unit = [&](int32_t number, uint32_t (&v)[unit]) {
    const device::SharedAddress to = device::shared_address(shared) + static_cast<uint32_t>(number) * unit_bytes;
    if constexpr (size == 4) {
#pragma unroll
      for (int c = 0; c < unit; ++c) v[c] = tf32_operand(v[c]);
      device::store_shared_16(to, v[0], v[1], v[2], v[3]);
    } else {
      device::store_shared_16(to, v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
    }
  };
  const auto store_inputs = [&](int32_t first, uint32_t (&v)[at_once][unit]) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i * group_threads >= pixel_units) break;
      store_unit(number_of(first + i * group_threads), v[i]);
    }
  };
  const int64_t channel = static_cast<int64_t>(task.group) * p.out_channels + task.channel;
  uint32_t bias_bits;
  load_if<size>(p.bias != nullptr && !task.idle, static_cast<const Scalar*>(p.bias) + channel * p.bias_stride,
                &bias_bits);

  // Units of K are ordered by where they begin in shared memory: planes, and of each the taps from the last one on.
  struct Unit {
    int32_t plane, row, column;  // of its tap
  };
  const auto unit_of = [&](int32_t number) -> Unit {
    auto within = static_cast<uint32_t>(number);
    const uint32_t plane = p.by_taps.divide(within);
    auto tap = static_cast<uint32_t>(p.taps - 1) - within;
    const uint32_t row = p.taps_of_row.divide(tap);
    return {static_cast<int32_t>(plane), static_cast<int32_t>(row), static_cast<int32_t>(tap)};
  };
  const auto start_of = [&](int32_t number) {
    const auto [plane, row, column] = unit_of(smaller(number, p.units - 1));
    const int32_t pixel = (p.taps_h - 1 - row) * in_columns + p.taps_w - 1 - column;
    return plane * p.plane_pixels + pixel + (number < p.units ? 0 : 1);
  };
#pragma unroll 1
  for (int32_t i = thread; i < 8 * steps; i += block) {
    const int32_t number = i / 4;
    const auto [plane, row, column] = unit_of(number);
    const int32_t first = plane * unit + i % 4 * (unit / 4), tap_row = row * p.h.stride,
                  tap_column = column * p.w_axis.stride;
    const bool exists = number < p.units;
    of_weights[i] = {first * p.w_in_stride + tap_row * p.w_row_stride + tap_column * p.w_column_stride,
                     smaller(unit / 4, p.channels - first),
                     static_cast<int16_t>(exists ? smaller(p.h.kernel - tap_row, 1 << 14) : 0),
                     static_cast<int16_t>(exists ? smaller(p.w_axis.kernel - tap_column, 1 << 14) : 0)};
    if (i % 8 == 0) {
      const int32_t start = start_of(number);
      of_steps[i / 8] = static_cast<uint32_t>(start | (start_of(number + 1) - start) << 16);
    }
  }
  __syncthreads();

  // The last warpgroup brings inputs, while the others' weights are on their way, and then its own.
  if (is_stager) {
    const auto find_positions = [&] {
#pragma unroll 1
      for (int32_t i = group_thread; i < p.positions; i += group_threads) {
        auto column = static_cast<uint32_t>(i);
        const auto row = static_cast<int32_t>(p.in_columns.divide(column));
        const auto q = static_cast<int32_t>(column);
        const bool exists = row < p.rows && first_row + row < p.q_h && q < p.q_w;
        const Place at = place_of(p, first_row, row, q);
        const bool whole = at.row >= 0 && at.row + p.h.stride <= p.h.out && at.column >= 0 &&
                           at.column + p.w_axis.stride <= p.w_axis.out;
        of_positions[i] =
            exists ? (at.row * p.y_row_stride + at.column * p.y_column_stride) * size + (whole ? 0 : 1) : nowhere;
      }
    };
    if constexpr (Copies) {
      find_positions();
      device::mbarrier_wait(copy_barrier, 0);
#pragma unroll 2
      for (int32_t number = group_thread; number < pixel_units; number += group_threads) {
        const Pixel at = pixel_of(number);
        const bool exists = at.exists && at.row < x_row + p.rows + p.taps_h - 1;  // beyond, pixels nobody needs
        device::SharedAddress from =
            copy +
            static_cast<uint32_t>((at.channel * copied + (at.row - copied_row) * p.w_axis.in + at.column) * size);
        uint32_t of_unit[unit];
#pragma unroll
        for (int c = 0; c < unit; ++c, from += static_cast<uint32_t>(copied * size)) {
          of_unit[c] = 0;
          if (exists && at.channel + c < p.channels) {
            of_unit[c] = size == 4 ? device::load_shared_4(from) : device::load_shared_2(from);
          }
        }
        store_unit(number, of_unit);
      }
    } else {
      uint32_t v[at_once][unit];
      load_inputs(group_thread, v);
      find_positions();
      store_inputs(group_thread, v);
#pragma unroll 1
      for (int32_t first = group_thread + at_once * group_threads; first < pixel_units;
           first += at_once * group_threads) {
        load_inputs(first, v);
        store_inputs(first, v);
      }
    }
    device::fence_async_proxy();
    device::named_barrier(stagers_barrier, group_threads);
    if (block > group_threads) device::named_barrier_arrive(inputs_barrier, block);
  }

  // The lane's phases are those of its outputs, too.
  uint32_t first_phase = task.phase_block * group_phases + static_cast<uint32_t>(group_thread / 32 * 16 + 2 * g);
  const auto phase_row = static_cast<int32_t>(p.phase_row.divide(first_phase));
  const auto phase_column = static_cast<int32_t>(first_phase);
  const int32_t phases = phase_row < p.h.stride ? smaller(of_lane, p.w_axis.stride - phase_column) : 0;
  uint32_t weights[steps][4];
  {
    // A warpgroup that is idle loads nothing, without a branch: behind one, all weights would be waited for at once.
    const int32_t mine = task.idle ? 0 : phases;
    const Scalar* from =
        large_stride::weights_of<Scalar>(p, task) + (phase_row * p.w_row_stride + phase_column * p.w_column_stride);
#pragma unroll
    for (int i = 0; i < 2 * steps; ++i) {
      const Weights k = of_weights[4 * i + t];
      const int32_t valid = phase_row < k.rows ? smaller(mine, k.columns - phase_column) : 0;
      load_weights<Scalar, Vectors>(p, from + k.offset, k.channels, valid, &weights[i / 2][i % 2 * 2]);
    }
  }
  if (!is_stager) device::named_barrier(inputs_barrier, block);
  if (task.idle) return;
#pragma unroll
  for (int step = 0; step < steps; ++step) finish_weights<Scalar, Vectors>(weights[step]);

  auto* const y = reinterpret_cast<unsigned char*>(static_cast<Scalar*>(p.y) + task.image * p.y_batch_stride +
                                                   channel * p.y_channel_stride + phase_row * p.y_row_stride +
                                                   phase_column * p.y_column_stride);
  const auto at = [&](Output place) { return reinterpret_cast<Scalar*>(y + place); };
  const device::SharedAddress inputs = device::shared_address(shared) / unit_bytes,
                              places = device::shared_address(of_positions);
  const float bias = element<Scalar>(&bias_bits, 0);
  float wrong = 0;  // becomes NaN when an output is not finite
  // Outputs that are stored one by one: some of the position's are outside of the image, or they are not neighbours.
  const auto store_apart = [&](int32_t position, const float (&v)[of_lane]) {
    const Place place = place_of(p, first_row, position);
    if (static_cast<uint32_t>(place.row + phase_row) >= static_cast<uint32_t>(p.h.out)) return;
    large_stride::store_inside(p, place.column + phase_column, phases, at(of_positions[position] & ~Output{1}), v);
  };
  const bool together = p.store_vectors && phases == of_lane;
  // Two lanes with neighbouring phases have two positions; each stores one of them, if they may.
  const bool has_second = g % 2 == 1;
  unsigned char* const y_of_pair = y - (has_second ? of_lane * size : 0);
  const auto store_pair = [&](const float (&v)[2][of_lane], Output first, Output second) {
    const Output mine = has_second ? second : first;
    const bool is = together && (mine & 1) == 0;
    if constexpr (size == 4) {
      float four[2 * of_lane];
#pragma unroll
      for (int j = 0; j < of_lane; ++j) {
        const float own = has_second ? v[1][j] : v[0][j],
                    got = __shfl_xor_sync(0xffffffffu, has_second ? v[0][j] : v[1][j], 4);
        four[j] = has_second ? got : own, four[of_lane + j] = has_second ? own : got;
      }
      store_if<2 * of_lane>(is, reinterpret_cast<Scalar*>(y_of_pair + mine), four);
    } else {
      const uint32_t first_words = pack(Scalar{}, v[0][0], v[0][1]), second_words = pack(Scalar{}, v[1][0], v[1][1]);
      const uint32_t own = has_second ? second_words : first_words,
                     got = __shfl_xor_sync(0xffffffffu, has_second ? first_words : second_words, 4),
                     both[2] = {has_second ? got : own, has_second ? own : got};
      store_words_if<2 * of_lane * size>(is, y_of_pair + mine, both);
    }
  };
#pragma unroll 1
  for (int32_t first = 0; first < p.positions; first += columns) {
    float sums[columns / 2];
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sums[i] = 0;
    device::wgmma_results(sums);
    // (Read ahead: behind others' stores they would wait.)
    uint32_t operands[steps];
#pragma unroll
    for (int step = 0; step < steps; ++step) operands[step] = of_steps[step];
    device::wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const device::MatrixDescriptor b =
          device::plain_matrix_descriptor_of_units(inputs + static_cast<uint32_t>(first), operands[step], 8);
      device::wgmma_registers<columns, device::wgmma_type<Scalar>>(sums, weights[step], b);
    }
    device::wgmma_commit();
    device::wgmma_wait<0>();
    device::wgmma_results(sums);
    const auto values = [&](int i, float (&v)[2][of_lane]) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int j = 0; j < of_lane; ++j) v[e][j] = sums[4 * i + 2 * j + e] + bias;
      }
    };
    const auto position_of = [&](int i) { return first + 8 * i + 2 * t; };
    const auto load_places = [&](int i, Output(&place)[2]) {
      const uint4 two = device::load_shared_16(places + static_cast<uint32_t>(position_of(i)) * sizeof(Output));
      place[0] = static_cast<Output>(two.x | static_cast<uint64_t>(two.y) << 32);
      place[1] = static_cast<Output>(two.z | static_cast<uint64_t>(two.w) << 32);
    };
    bool apart = false;
    const auto store_all = [&](const auto& use) {
#pragma unroll
      for (int i = 0; i < columns / 8; ++i) {
        float v[2][of_lane];
        Output place[2];
        values(i, v), load_places(i, place);
        use(v, place);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool whole = (place[e] & 1) == 0;
          if (whole) wrong += v[e][0] * 0.0f + v[e][1] * 0.0f;
          apart = apart || (!(whole && together) && place[e] != nowhere);
        }
      }
    };
    if (p.store_pairs) {
      store_all([&](const float (&v)[2][of_lane], const Output(&place)[2]) { store_pair(v, place[0], place[1]); });
    } else {
      store_all([&](const float (&v)[2][of_lane], const Output(&place)[2]) {
#pragma unroll
        for (int e = 0; e < 2; ++e) store_if<of_lane>(together && (place[e] & 1) == 0, at(place[e]), v[e]);
      });
    }
    if (!apart) continue;
#pragma unroll
    for (int i = 0; i < columns / 8; ++i) {
      float v[2][of_lane];
      Output place[2];
      values(i, v), load_places(i, place);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool whole = (place[e] & 1) == 0;
        if ((whole && together) || place[e] == nowhere) continue;
        store_apart(position_of(i) + e, v[e]);
        if (!whole) wrong += v[e][0] * 0.0f + v[e][1] * 0.0f;
      }
    }
  }

  // (What a lane reads below, another one of the warp may have written.)
  if (!__any_sync(0xffffffffu, wrong != 0.0f)) return;
  __syncwarp();
  // Each output that is not finite, once more. Where its operands are is not kept until then.
  const Task again = task_of(p, device::opaque(static_cast<int32_t>(blockIdx.x)), device::opaque(warpgroup));
  const Scalar *all_inputs = large_stride::inputs_of<Scalar>(p, again), *w = large_stride::weights_of<Scalar>(p, again);
#pragma unroll 1
  for (int32_t n = 0; n < p.positions / 4; ++n) {
    const int32_t position = n / 2 * 8 + 2 * t + n % 2;
    const Output output = of_positions[position];
    const Place place = place_of(p, first_row, position);
    const int32_t row = place.row + phase_row;
    if (output == nowhere || static_cast<uint32_t>(row) >= static_cast<uint32_t>(p.h.out)) continue;
    large_stride::correct_inside<Scalar, false>(p, all_inputs, w, bias, row, place.column + phase_column, phases,
                                                at(output & ~Output{1}));
  }
#endif
}

}  // namespace convt::large_stride_sm90
