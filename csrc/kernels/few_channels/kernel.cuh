#pragma once

#include "../device.h"
#include "../exact_output.h"
#include "../load_if.h"
#include "params.h"

namespace convt::few_channels {

// A thread's part of the problem.
struct Part {
  uint32_t group, first_sum;   // of a cell's sums
  int32_t image, row, column;  // the first cell
  bool exists;
  int32_t number;  // of the parts that input channels are divided into
  uint32_t slot;   // among the block's threads of that number
  uint32_t first;  // the block's first position
};

template <int Row>
CONVT_DEVICE Part part_of(const Params& p, int32_t block, int32_t thread) {
  Part q;
  auto sum_block = static_cast<uint32_t>(block);
  uint32_t position_block = p.sum_blocks.divide(sum_block);
  q.group = p.position_blocks.divide(position_block);
  q.first_sum = sum_block * configs[Row].sums;
  q.number = thread >> p.log_positions;
  q.slot = static_cast<uint32_t>(thread - (q.number << p.log_positions));
  q.first = position_block << p.log_positions;
  uint32_t column = q.first + q.slot;
  q.exists = column < static_cast<uint32_t>(p.all_positions);
  uint32_t rest = p.columns.divide(column);
  q.image = static_cast<int32_t>(p.row_blocks.divide(rest));
  const uint32_t block_of_rows = p.distance.divide(rest);
  q.row = p.first_row + static_cast<int32_t>(block_of_rows) * configs[Row].rows * p.row_distance +
          static_cast<int32_t>(rest);
  q.column = p.first_column + static_cast<int32_t>(column);
  return q;
}

// Which output channel and phases a sum of a cell is of: phases of columns are innermost, or channels.
struct Sum {
  uint32_t channel, row_phase, column_phase;
};

template <bool Pixels>
CONVT_DEVICE Sum sum_of(const Params& p, uint32_t number) {
  const bool innermost = Pixels && p.channels_innermost;
  uint32_t channel = number;
  uint32_t column_phase = innermost ? p.by_channels.divide(channel) : number;
  uint32_t row_phase = p.stride_w.divide(column_phase);
  if (!innermost) channel = p.stride_h.divide(row_phase);
  return {channel, row_phase, column_phase};
}

// The weights of `count` input channels from `first` on, as [channel][window][sum][tap]; zeros where there is no tap.
template <class Scalar, int Row, bool Pixels>
CONVT_DEVICE void load_weights(const Params& p, int64_t first, int32_t count, uint32_t first_sum, float* weights) {
  constexpr Config c = configs[Row];
  constexpr int window = window_weights(c), at_once = 4;
  uint32_t entry = threadIdx.x;
  const auto first_channel = static_cast<int32_t>(p.fill.divide(entry));
  const int32_t channels = threads / static_cast<int32_t>(p.fill.divisor);
  if (first_channel >= channels) return;
#pragma unroll 1
  for (; entry < static_cast<uint32_t>(p.channel_weights); entry += p.fill.divisor) {
    const uint32_t place = entry % window, tap = place % taps(c), number = first_sum + place / taps(c);
    uint32_t window_column = entry / window;
    const uint32_t window_row = p.window_columns.divide(window_column);
    const Sum sum = sum_of<Pixels>(p, number);
    // The tap without dilation, and what a dilation leaves.
    uint32_t row_rest = (window_row * c.window_rows + tap / c.window_columns) * p.stride_h.divisor + sum.row_phase;
    uint32_t column_rest =
        (window_column * c.window_columns + tap % c.window_columns) * p.stride_w.divisor + sum.column_phase;
    const uint32_t row = p.dilation_h.divide(row_rest), column = p.dilation_w.divide(column_rest);
    const bool exists = place < static_cast<uint32_t>(c.sums * taps(c)) && number < static_cast<uint32_t>(p.sums) &&
                        row_rest == 0 && column_rest == 0 && row < static_cast<uint32_t>(p.h.kernel) &&
                        column < static_cast<uint32_t>(p.w_axis.kernel);
    const Scalar* from = static_cast<const Scalar*>(p.w) + (first + first_channel) * p.w_in_stride +
                         sum.channel * p.w_out_stride + row * p.w_row_stride + column * p.w_column_stride;
    float* to = weights + first_channel * p.channel_weights + entry;
    const int64_t from_step = channels * p.w_in_stride;
    const int32_t to_step = channels * p.channel_weights;
#pragma unroll 1
    for (int32_t channel = first_channel; channel < count; channel += at_once * channels) {
      uint32_t words[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        load_if<sizeof(Scalar)>(exists && channel + i * channels < count, from, words + i);
        from += from_step;
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (channel + i * channels < count) *to = element<Scalar>(words + i, 0);
        to += to_step;
      }
    }
  }
}

// The inputs of a thread's windows, as they are in memory.
template <int Row>
struct Inputs {
  static constexpr int rows = input_rows(configs[Row]), columns = configs[Row].window_columns;
  static_assert(rows * columns <= 32);
  uint32_t words[rows][columns];
};

// Those of a channel that exist; `first` is the one above and to the right of the others.
template <class Scalar, int Row, int Number = 0>
CONVT_DEVICE void load_inputs(const Params& p, const Scalar* first, uint32_t exist, Inputs<Row>& to) {
  constexpr int row = Number / to.columns, column = Number % to.columns;
  load_over<sizeof(Scalar), Number>(exist, first - column, to.words[row][column]);
  if constexpr (Number + 1 < to.rows * to.columns) {
    load_inputs<Scalar, Row, Number + 1>(p, column + 1 == to.columns ? first + p.x_row_step : first, exist, to);
  }
}

// Where the inputs of the block's windows are, and which of their rows exist; `row` and `column`: of a window's first
// input, from its position.
template <int Row>
CONVT_DEVICE void place_pixels(const Params& p, uint32_t first_position, int32_t row, int32_t column, Pixel* pixels) {
  constexpr Config c = configs[Row];
  uint32_t first_column = first_position;
  const uint32_t rows_before = p.columns.divide(first_column);
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.staged_columns; i += threads) {
    uint32_t rest_column = first_column + static_cast<uint32_t>(i);
    uint32_t rest = rows_before + p.input_columns.divide(rest_column);
    const bool is_row = rest < static_cast<uint32_t>(p.all_rows);
    const auto image = static_cast<int32_t>(p.row_blocks.divide(rest));
    const auto block_of_rows = static_cast<int32_t>(p.distance.divide(rest));
    const int32_t x_row = p.first_row + row + block_of_rows * c.rows * p.row_distance + static_cast<int32_t>(rest);
    // The window's last column is the first one here.
    const int32_t x_column = p.first_column + column - (c.window_columns - 1) + static_cast<int32_t>(rest_column);
    const bool is_column = is_row && x_column >= 0 && x_column < p.w_axis.in;
    uint32_t exist = 0;
#pragma unroll
    for (int k = 0; k < input_rows(c); ++k) {
      const int32_t row_of = x_row + k * p.row_distance;
      exist |= static_cast<uint32_t>(is_column && row_of >= 0 && row_of < p.h.in) << k;
    }
    pixels[i] = {image * p.x_batch_stride + x_row * p.x_row_stride + x_column * p.x_column_stride, exist};
  }
}

// Starts to copy `words` of each pixel, from `from` on, to shared memory; zeros of those that do not exist.
template <class Scalar, int Row>
CONVT_DEVICE void copy_stage(const Params& p, const Scalar* from, int32_t words, const Pixel* pixels,
                             device::SharedAddress to) {
  constexpr Config c = configs[Row];
  constexpr int word_channels = 4 / sizeof(Scalar);
  const auto thread = static_cast<int32_t>(threadIdx.x), lanes = int32_t{1} << p.log_lanes;
#pragma unroll 1
  for (int32_t word = thread & (lanes - 1); word < words; word += lanes) {
#pragma unroll 1
    for (int32_t i = thread >> p.log_lanes; i < p.staged_columns; i += threads >> p.log_lanes) {
      const Pixel pixel = pixels[i];
      const Scalar* input = from + pixel.offset + word * word_channels;
      const device::SharedAddress rows =
          to + static_cast<uint32_t>(word * p.word_stride + i * staged_rows(c)) * sizeof(uint32_t);
#pragma unroll
      for (int k = 0; k < input_rows(c); ++k) {
        device::cp_async_if<4>(pixel.exist & uint32_t{1} << k, rows + static_cast<uint32_t>(k * sizeof(uint32_t)),
                               input);
        input += p.x_row_step;
      }
    }
  }
}

// The same, `Vector` words of a pixel at a time, through registers. (`log_lanes` counts vectors.)
template <class Scalar, int Row, int Vector>
CONVT_DEVICE void copy_vectors(const Params& p, const Scalar* from, int32_t words, const Pixel* pixels,
                               device::SharedAddress to) {
  // Of several rows, as many as there are registers for.
  constexpr int rows = input_rows(configs[Row]), most = resident_blocks(configs[Row], true) > 2 ? 4 : 8,
                turns = ceil_div(rows, most), at_once = ceil_div(rows, turns), word_channels = 4 / sizeof(Scalar);
  const auto thread = static_cast<int32_t>(threadIdx.x), lanes = int32_t{1} << p.log_lanes;
#pragma unroll 1
  for (int32_t word = (thread & (lanes - 1)) * Vector; word < words; word += lanes * Vector) {
#pragma unroll 1
    for (int32_t i = thread >> p.log_lanes; i < p.staged_columns; i += threads >> p.log_lanes) {
      const Pixel pixel = pixels[i];
      const Scalar* input = from + pixel.offset + word * word_channels;
      const device::SharedAddress first =
          to + static_cast<uint32_t>(word * p.word_stride + i * staged_rows(configs[Row])) * sizeof(uint32_t);
      // More turns would all be loaded before the first one is stored.
#pragma unroll(turns > 2 && most == 8 ? 1 : turns)
      for (int begin = 0; begin < rows; begin += at_once) {
        uint32_t v[at_once][Vector];
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
          load_if<4 * Vector>(begin + k < rows && (pixel.exist >> (begin + k) & 1) != 0, input, v[k]);
          input += p.x_row_step;
        }
#pragma unroll
        for (int q = 0; q < Vector; ++q) {
          const device::SharedAddress of_word =
              first + static_cast<uint32_t>(q * p.word_stride + begin) * sizeof(uint32_t);
#pragma unroll
          for (int k = 0; k < at_once; ++k) {
            if (begin + k >= rows) continue;
            device::store_shared_4(of_word + static_cast<uint32_t>(k * sizeof(uint32_t)), __uint_as_float(v[k][q]));
          }
        }
      }
    }
  }
}

// Which of them is the first one of a position's window: a row of positions that begins in front of it has those of its
// own first window more.
template <int Row>
CONVT_DEVICE int32_t staged_place(const Params& p, uint32_t first_position, int32_t slot) {
  uint32_t first_column = first_position;
  p.columns.divide(first_column);
  uint32_t from_row = first_column + static_cast<uint32_t>(slot);
  const auto row_begins = static_cast<int32_t>(p.columns.divide(from_row));
  return slot + (configs[Row].window_columns - 1) * (row_begins + 1);
}

// A word of a thread's inputs from shared memory; `first` is the one above and to the right of the others.
template <int Row>
CONVT_DEVICE void load_staged(const float* first, Inputs<Row>& to) {
#pragma unroll
  for (int i = 0; i < to.rows; ++i) {
#pragma unroll
    for (int k = 0; k < to.columns; ++k) {
      to.words[i][k] = __float_as_uint(first[i - k * staged_rows(configs[Row])]);
    }
  }
}

// Of the words' first channel, or second.
template <class Scalar, int Row>
struct Values {
  float of[Inputs<Row>::rows][Inputs<Row>::columns];

  CONVT_DEVICE explicit Values(const Inputs<Row>& inputs, int channel = 0) {
#pragma unroll
    for (int i = 0; i < inputs.rows; ++i) {
#pragma unroll
      for (int k = 0; k < inputs.columns; ++k) of[i][k] = element<Scalar>(inputs.words[i] + k, channel);
    }
  }
};

// sums += products of a channel's inputs and weights.
template <class Scalar, int Row>
CONVT_DEVICE void multiply(const Values<Scalar, Row>& values, const float* weights,
                           float (&sums)[configs[Row].rows][configs[Row].sums]) {
  constexpr Config c = configs[Row];
  float all[window_weights(c)];
#pragma unroll
  for (int m = 0; m < c.sums; ++m) {
    const float* of_tap = all + m * taps(c);
#pragma unroll
    for (int i = m * taps(c); i < (m + 1) * taps(c); ++i) {
      if (i % 4 != 0) continue;
      const float4 four = *reinterpret_cast<const float4*>(weights + i);
      all[i] = four.x, all[i + 1] = four.y, all[i + 2] = four.z, all[i + 3] = four.w;
    }
#pragma unroll
    for (int r = 0; r < c.rows; ++r) {
      // In float32 a channel's sum by itself, so that errors do not grow with the number of products.
      constexpr bool apart = sizeof(Scalar) == 4;
      float sum = apart ? 0 : sums[r][m];
#pragma unroll
      for (int t = 0; t < taps(c); ++t) {
        const float input = values.of[r + c.window_rows - 1 - t / c.window_columns][t % c.window_columns];
        sum = apart && t == 0 ? input * of_tap[t] : sum + input * of_tap[t];
      }
      sums[r][m] = apart ? sums[r][m] + sum : sum;
    }
  }
}

// An output by its definition.
template <class Scalar>
CONVT_DEVICE float exact_sum(const Params& p, const Part& part, uint32_t channel, float bias, int32_t row,
                             int32_t column) {
  const int64_t first_channel = int64_t{part.group} * p.channels;
  const Scalar* x =
      static_cast<const Scalar*>(p.x) + part.image * p.x_batch_stride + first_channel * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + first_channel * p.w_in_stride + channel * p.w_out_stride;
  return exact_output<Scalar, true>(p, x, w, bias, row, column);
}

// The same as a function of its own, where code for each place that calls it would take long to compile.
template <class Scalar>
__noinline__ __device__ float exact_sum_once(const Params& p, const Part& part, uint32_t channel, float bias,
                                             int32_t row, int32_t column) {
  return exact_sum<Scalar>(p, part, channel, bias, row, column);
}

// `Count` of a thread's cells below each other, from `row` on: their outputs of the sum `column`. Whether one is NaN:
// it is computed by its definition if `again`, because it may be so for a weight or an input that does not exist.
template <class Scalar, bool Pixels, int Count>
CONVT_DEVICE bool write_outputs(const Params& p, const Part& part, int32_t row, int32_t column,
                                const float (&sums)[Count], bool again) {
  const uint32_t number = part.first_sum + static_cast<uint32_t>(column);
  const Sum of = sum_of<Pixels>(p, number);
  const int32_t y_column = part.column * p.w_axis.stride - p.w_axis.padding + static_cast<int32_t>(of.column_phase);
  const bool is_column =
      part.exists && number < static_cast<uint32_t>(p.sums) && y_column >= 0 && y_column < p.w_axis.out;
  const int64_t channel = int64_t{part.group} * p.out_channels + of.channel;
  float bias = 0;
  if (is_column && p.bias != nullptr) bias = to_float(static_cast<const Scalar*>(p.bias)[channel * p.bias_stride]);
  int32_t y_row = (part.row + row * p.row_distance) * p.h.stride - p.h.padding + static_cast<int32_t>(of.row_phase);
  Scalar* y = static_cast<Scalar*>(p.y) + part.image * p.y_batch_stride + channel * p.y_channel_stride +
              y_row * p.y_row_stride + y_column * p.y_column_stride;
  bool is_nan = false;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const bool is = is_column && y_row >= 0 && y_row < p.h.out;
    float sum = sums[i] + bias;
    if (again && is && sum != sum) {
      if constexpr (Pixels) {
        sum = exact_sum_once<Scalar>(p, part, of.channel, bias, y_row, y_column);
      } else {
        sum = exact_sum<Scalar>(p, part, of.channel, bias, y_row, y_column);
      }
    }
    store_if<1>(is, y, &sum);
    is_nan = is_nan || (is && sum != sum);
    y_row += p.out_row_distance, y += p.y_row_step;
  }
  return is_nan;
}

// The outputs of four sums, which are of channels that lie together, of one cell.
template <class Scalar>
CONVT_DEVICE void write_channels(const Params& p, const Part& part, int32_t row, int32_t column,
                                 const float (&sums)[4]) {
  const uint32_t number = part.first_sum + static_cast<uint32_t>(column);
  const Sum of = sum_of<true>(p, number);
  const int32_t y_column = part.column * p.w_axis.stride - p.w_axis.padding + static_cast<int32_t>(of.column_phase);
  const int32_t y_row =
      (part.row + row * p.row_distance) * p.h.stride - p.h.padding + static_cast<int32_t>(of.row_phase);
  if (!part.exists || number >= static_cast<uint32_t>(p.sums) || y_column < 0 || y_column >= p.w_axis.out ||
      y_row < 0 || y_row >= p.h.out) {
    return;
  }
  const int64_t channel = int64_t{part.group} * p.out_channels + of.channel;
  const auto bias = [&](int k) {
    return p.bias != nullptr ? to_float(static_cast<const Scalar*>(p.bias)[(channel + k) * p.bias_stride]) : 0;
  };
  Scalar* const y = static_cast<Scalar*>(p.y) + part.image * p.y_batch_stride + channel + y_row * p.y_row_stride +
                    y_column * p.y_column_stride;
  float v[4], zero = 0;  // or NaN
#pragma unroll
  for (int k = 0; k < 4; ++k) v[k] = sums[k] + bias(k), zero += v[k] * 0.0f;
  store_if<4>(true, y, v);
  if (zero == 0) return;
  // From memory, since registers are not numbered. An infinity, too, which is a sum's own then.
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    if (to_float(y[k]) == to_float(y[k])) continue;
    const float exact = exact_sum_once<Scalar>(p, part, of.channel + k, bias(k), y_row, y_column);
    store_if<1>(true, y + k, &exact);
  }
}

// sums += products of `count` channels from `first` on, of a window whose first input is `row` and `column` from the
// position, which pass through shared memory behind the weights. `bring_weights` is called while the first of them are
// on their way.
template <class Scalar, int Row, class BringWeights>
CONVT_DEVICE void add_pixels(const Params& p, const Part& part, int64_t first, int32_t count, int32_t row,
                             int32_t column, int32_t window, const BringWeights& bring_weights,
                             float (&sums)[configs[Row].rows][configs[Row].sums]) {
  constexpr Config c = configs[Row];
  constexpr int word_channels = 4 / sizeof(Scalar);
  auto* const shared = reinterpret_cast<float*>(device::dynamic_shared_memory());
  const int32_t splits = threads >> p.log_positions, words = count / word_channels;
  auto* const pixels = reinterpret_cast<Pixel*>(shared + p.channels_at_once * p.channel_weights);
  place_pixels<Row>(p, part.first, row, column, pixels);
  __syncthreads();
  const int32_t inputs_at =
      p.channels_at_once * p.channel_weights + p.staged_columns * static_cast<int32_t>(sizeof(Pixel) / sizeof(float));
  // Of two stages the next one to copy to, or to read, is the other one.
  const int32_t other = (p.stages - 1) * p.stage_words * p.word_stride;
  int32_t copied = 0, copy_at = inputs_at, read_at = inputs_at;
#pragma unroll 1
  for (int32_t done = 0; done < words; done += p.stage_words) {
#pragma unroll 1
    for (; copied < smaller(words, done + p.stages * p.stage_words); copied += p.stage_words) {
      const Scalar* const from = static_cast<const Scalar*>(p.x) + first + copied * word_channels;
      const int32_t of_stage = smaller(p.stage_words, words - copied);
      const device::SharedAddress to =
          device::dynamic_shared_address() + static_cast<uint32_t>(copy_at) * sizeof(uint32_t);
      if (p.vector == 4) {
        copy_vectors<Scalar, Row, 4>(p, from, of_stage, pixels, to);
      } else if (p.vector == 2) {
        copy_vectors<Scalar, Row, 2>(p, from, of_stage, pixels, to);
      } else {
        copy_stage<Scalar, Row>(p, from, of_stage, pixels, to);
      }
      device::cp_async_commit();
      copy_at = 2 * inputs_at + other - copy_at;
    }
    if (done == 0) bring_weights();
    if (copied > done + p.stage_words) {
      device::cp_async_wait<1>();
    } else {
      device::cp_async_wait<0>();
    }
    __syncthreads();
    const int32_t thread = device::opaque(static_cast<int32_t>(threadIdx.x)), number = thread >> p.log_positions;
    const int32_t place = staged_place<Row>(p, part.first, thread - (number << p.log_positions));
    const int32_t end = smaller(p.stage_words, words - done);
    const int32_t word_step = splits * p.word_stride, weights_step = splits * word_channels * p.channel_weights;
    const float* from = shared + read_at + number * p.word_stride + place * staged_rows(c);
    const float* weights = shared + (done + number) * word_channels * p.channel_weights + window * window_weights(c);
#pragma unroll 1
    for (int32_t word = number; word < end; word += splits) {
      Inputs<Row> inputs;
      load_staged<Row>(from, inputs);
#pragma unroll
      for (int channel = 0; channel < word_channels; ++channel) {
        multiply<Scalar, Row>(Values<Scalar, Row>(inputs, channel), weights + channel * p.channel_weights, sums);
      }
      from += word_step, weights += weights_step;
    }
    __syncthreads();
    read_at = 2 * inputs_at + other - read_at;
  }
}

// `Pixels`: whether inputs pass through shared memory (see has_pixels).
template <class Scalar, int Row, bool Pixels>
__global__ void __launch_bounds__(threads, resident_blocks(configs[Row], Pixels))
    few_channels_kernel(const __grid_constant__ Params p) {
  constexpr Config c = configs[Row];
  constexpr int together = few_channels::together(c);
  auto* const shared = reinterpret_cast<float*>(device::dynamic_shared_memory());

  const int32_t splits = threads >> p.log_positions;
  const auto block = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const Part part = part_of<Row>(p, block, thread);
  const int64_t first_channel = int64_t{part.group} * p.channels;
  const Scalar* const x = static_cast<const Scalar*>(p.x) + part.image * p.x_batch_stride +
                          (first_channel + part.number) * p.x_channel_stride;

  float sums[c.rows][c.sums];
#pragma unroll
  for (int r = 0; r < c.rows; ++r) {
#pragma unroll
    for (int m = 0; m < c.sums; ++m) sums[r][m] = 0;
  }
  const int64_t x_step = splits * p.x_channel_stride;
  const int32_t weights_step = splits * p.channel_weights;
#pragma unroll 1
  for (int32_t first = 0; first < p.channels; first += p.channels_at_once) {
    const int32_t count = smaller(p.channels_at_once, p.channels - first);
#pragma unroll 1
    for (int32_t window = 0; window < p.windows; ++window) {
      const int32_t number = device::opaque(thread) >> p.log_positions;
      auto window_column = static_cast<uint32_t>(window);
      const auto window_row = static_cast<int32_t>(p.window_columns.divide(window_column));
      // While the first inputs are on their way.
      const auto bring_weights = [&] {
        if (window > 0) return;
        if (first > 0) __syncthreads();
        load_weights<Scalar, Row, Pixels>(p, first_channel + first, count, part.first_sum, shared);
        __syncthreads();
      };
      if constexpr (Pixels) {
        const int32_t row = p.row_distance - (window_row + 1) * c.window_rows * p.row_distance;
        const int32_t column = -static_cast<int32_t>(window_column) * c.window_columns;
        add_pixels<Scalar, Row>(p, part, first_channel + first, count, row, column, window, bring_weights, sums);
      } else {
        // The first input of the window, above and to the right of the others.
        const int32_t x_row = part.row - (window_row + 1) * c.window_rows * p.row_distance + p.row_distance;
        const int32_t x_column = part.column - static_cast<int32_t>(window_column) * c.window_columns;
        // Which of them exist, a bit each: of a row, and of all.
        uint32_t of_row = 0, exist = 0;
#pragma unroll
        for (int k = 0; k < c.window_columns; ++k) {
          of_row |= static_cast<uint32_t>(part.exists && x_column >= k && x_column - k < p.w_axis.in) << k;
        }
#pragma unroll
        for (int i = 0; i < input_rows(c); ++i) {
          const int32_t row = x_row + i * p.row_distance;
          if (row >= 0 && row < p.h.in) exist |= of_row << (i * c.window_columns);
        }
        const Scalar* from = x + first * p.x_channel_stride + x_row * p.x_row_stride + x_column;
        const float* weights = shared + number * p.channel_weights + window * window_weights(c);
        // Inputs that do not exist are never loaded, and stay zero.
        Inputs<Row> inputs{};
        if constexpr (c.ahead) load_inputs<Scalar, Row>(p, from, number < count ? exist : 0, inputs);
        bring_weights();
        if constexpr (c.ahead && sizeof(Scalar) == 4) {
          Inputs<Row> next{};
#pragma unroll 1
          for (int32_t channel = number; channel < count; channel += 2 * splits) {
            from += x_step;
            load_inputs<Scalar, Row>(p, from, channel + splits < count ? exist : 0, next);
            multiply<Scalar, Row>(Values<Scalar, Row>(inputs), weights, sums);
            if (channel + splits >= count) break;
            weights += weights_step, from += x_step;
            load_inputs<Scalar, Row>(p, from, channel + 2 * splits < count ? exist : 0, inputs);
            multiply<Scalar, Row>(Values<Scalar, Row>(next), weights, sums);
            weights += weights_step;
          }
        } else {
#pragma unroll 1
          for (int32_t channel = number; channel < count; channel += splits) {
            if constexpr (!c.ahead) load_inputs<Scalar, Row>(p, from, exist, inputs);
            const Values<Scalar, Row> values(inputs);
            from += x_step;
            if constexpr (c.ahead) {
              load_inputs<Scalar, Row>(p, from, channel + splits < count ? exist : 0, inputs);
            }
            multiply<Scalar, Row>(values, weights, sums);
            weights += weights_step;
          }
        }
      }
    }
  }

  // Computed once more: nothing of it is kept in registers while products are computed.
  const Part of = part_of<Row>(p, device::opaque(block), device::opaque(thread));
  constexpr bool has_channels = Pixels && written_channels(c) > 1;
  // Whether outputs are written from shared memory. (Of channels that are written together, more code would not pay.)
  bool again = splits > 1 || (has_channels && p.channels_innermost);
  if (!again) {
#pragma unroll
    for (int m = 0; m < c.sums; ++m) {
      float of_rows[c.rows];
#pragma unroll
      for (int r = 0; r < c.rows; ++r) of_rows[r] = sums[r][m];
      again = write_outputs<Scalar, Pixels>(p, of, 0, m, of_rows, false) || again;
    }
  }
  if (__syncthreads_or(again) == 0) return;
  // The threads of a position divide its outputs, and add the sums of each in the order of threads.
  static_assert(c.rows % together == 0);
  const int32_t number = device::opaque(thread) >> p.log_positions;
  float* const mine = shared + (thread - (number << p.log_positions));
  const int32_t all = c.rows * c.sums << p.log_positions;
#pragma unroll
  for (int r = 0; r < c.rows; ++r) {
#pragma unroll
    for (int m = 0; m < c.sums; ++m) mine[number * all + ((r * c.sums + m) << p.log_positions)] = sums[r][m];
  }
  __syncthreads();
  if constexpr (has_channels) {
    if (p.channels_innermost) {
#pragma unroll 1
      for (int32_t i = number; i < c.rows * c.sums / 4; i += splits) {
        float of_channels[4] = {};
#pragma unroll 2
        for (int32_t n = 0; n < splits; ++n) {
#pragma unroll
          for (int k = 0; k < 4; ++k) of_channels[k] += mine[n * all + ((4 * i + k) << p.log_positions)];
        }
        write_channels<Scalar>(p, of, 4 * i / c.sums, 4 * i % c.sums, of_channels);
      }
      return;
    }
  }
#pragma unroll 1
  for (int32_t i = number; i < c.rows * c.sums / together; i += splits) {
    const int32_t row = i / c.sums * together, column = i % c.sums;
    float of_rows[together] = {};
#pragma unroll 2
    for (int32_t n = 0; n < splits; ++n) {
#pragma unroll
      for (int r = 0; r < together; ++r) {
        of_rows[r] += mine[n * all + (((row + r) * c.sums + column) << p.log_positions)];
      }
    }
    write_outputs<Scalar, Pixels>(p, of, row, column, of_rows, true);
  }
}

}  // namespace convt::few_channels
