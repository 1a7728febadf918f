#pragma once

#include "../device.h"
#include "../exact_output.h"
#include "../load_if.h"
#include "params.h"

namespace convt::few_channels {

// Which output channel and phases a sum of a cell is of: phases of columns are innermost.
struct Sum {
  uint32_t channel, row_phase, column_phase;
};

CONVT_DEVICE Sum sum_of(const Params& p, uint32_t number) {
  uint32_t column_phase = number;
  uint32_t row_phase = p.stride_w.divide(column_phase);
  const uint32_t channel = p.stride_h.divide(row_phase);
  return {channel, row_phase, column_phase};
}

// The weights of `count` input channels from `first` on, as [channel][window][sum][tap]; zeros where there is no tap.
template <class Scalar, int Row>
CONVT_DEVICE void load_weights(const Params& p, int64_t first, int32_t count, uint32_t first_sum, float* weights) {
  constexpr Config c = configs[Row];
  constexpr int taps = padded_taps(c), window = c.sums * taps, at_once = 4;
  uint32_t entry = threadIdx.x;
  const auto first_channel = static_cast<int32_t>(p.fill.divide(entry));
  const int32_t channels = threads / p.row_weights;
  if (first_channel >= channels) return;
#pragma unroll 1
  for (; entry < static_cast<uint32_t>(p.channel_weights); entry += static_cast<uint32_t>(p.row_weights)) {
    const uint32_t tap = entry % taps, number = first_sum + entry / taps % c.sums;
    uint32_t window_column = entry / window;
    const uint32_t window_row = p.windows.divide(window_column);
    const Sum sum = sum_of(p, number);
    // The tap without dilation, and what a dilation leaves.
    uint32_t row_rest = (window_row * c.window_rows + tap / c.window_columns) * p.stride_h.divisor + sum.row_phase;
    uint32_t column_rest =
        (window_column * c.window_columns + tap % c.window_columns) * p.stride_w.divisor + sum.column_phase;
    const uint32_t row = p.dilation_h.divide(row_rest), column = p.dilation_w.divide(column_rest);
    const bool exists = tap < static_cast<uint32_t>(c.window_rows * c.window_columns) &&
                        number < static_cast<uint32_t>(p.sums) && row_rest == 0 && column_rest == 0 &&
                        row < static_cast<uint32_t>(p.h.kernel) && column < static_cast<uint32_t>(p.w_axis.kernel);
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

// Each output of the block: its parts' sums in the order of parts, and the bias.
template <class Scalar, int Row>
CONVT_DEVICE void write_outputs(const Params& p, uint32_t group, uint32_t first_sum, const float* sums,
                                const int32_t* places) {
  constexpr Config c = configs[Row];
  constexpr int all = c.rows * c.sums;
  const int32_t positions = 1 << p.log_positions, splits = threads >> p.log_positions;
  const auto outputs = static_cast<uint32_t>(all << p.log_positions);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < outputs; i += threads) {
    uint32_t together = i;
    uint32_t sum_group = p.outputs_together.divide(together);
    const uint32_t position = p.together.divide(together), row = p.sum_groups.divide(sum_group);
    const uint32_t number = sum_group * p.together.divisor + together;
    const Sum of = sum_of(p, first_sum + number);
    const int32_t* place = places + 4 * position;
    const int32_t image = place[0];
    const int32_t y_row = (p.first_row + place[1] + static_cast<int32_t>(row) * p.row_distance) * p.h.stride +
                          static_cast<int32_t>(of.row_phase) - p.h.padding;
    const int32_t y_column =
        (p.first_column + place[2]) * p.w_axis.stride + static_cast<int32_t>(of.column_phase) - p.w_axis.padding;
    if (image < 0 || first_sum + number >= static_cast<uint32_t>(p.sums) || y_row < 0 || y_row >= p.h.out ||
        y_column < 0 || y_column >= p.w_axis.out) {
      continue;
    }
    const float* from = sums + ((row * c.sums + number) << p.log_positions) + position;
    float sum = 0;
#pragma unroll 1
    for (int32_t part = 0; part < splits; ++part) sum += from[part * all * positions];
    const int64_t channel = int64_t{group} * p.out_channels + of.channel;
    float bias = 0;
    if (p.bias != nullptr) bias = to_float(static_cast<const Scalar*>(p.bias)[channel * p.bias_stride]);
    sum += bias;
    if (sum != sum) {
      const int64_t first_channel = int64_t{group} * p.channels;
      sum = exact_output<Scalar, true>(
          p, static_cast<const Scalar*>(p.x) + image * p.x_batch_stride + first_channel * p.x_channel_stride,
          static_cast<const Scalar*>(p.w) + first_channel * p.w_in_stride + of.channel * p.w_out_stride, bias, y_row,
          y_column);
    }
    Scalar* y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride + channel * p.y_channel_stride +
                y_row * p.y_row_stride + y_column * p.y_column_stride;
    store<1>(y, &sum);
  }
}

template <class Scalar, int Row>
__global__ void __launch_bounds__(threads, blocks_of_multiprocessor)
    few_channels_kernel(const __grid_constant__ Params p) {
  constexpr Config c = configs[Row];
  constexpr int taps = padded_taps(c), x_rows = c.rows + c.window_rows - 1;
  auto* const shared = reinterpret_cast<float*>(device::dynamic_shared_memory());
  auto* const places = reinterpret_cast<int32_t*>(device::dynamic_shared_memory() + p.places_offset);

  uint32_t sum_block = blockIdx.x;
  uint32_t position_block = p.sum_blocks.divide(sum_block);
  const uint32_t group = p.position_blocks.divide(position_block);
  const uint32_t first_sum = sum_block * c.sums;

  const int32_t splits = threads >> p.log_positions;
  const auto part = static_cast<int32_t>(threadIdx.x >> p.log_positions);
  const uint32_t slot = threadIdx.x - (static_cast<uint32_t>(part) << p.log_positions);
  uint32_t column = (position_block << p.log_positions) + slot;
  const bool exists = column < static_cast<uint32_t>(p.all_positions);
  uint32_t row_block = p.columns.divide(column);
  const auto image = static_cast<int32_t>(p.row_blocks.divide(row_block));
  const uint32_t block_of_rows = p.distance.divide(row_block);
  const auto cell_row = static_cast<int32_t>(block_of_rows) * c.rows * p.row_distance + static_cast<int32_t>(row_block);
  if (part == 0) {
    int32_t* place = places + 4 * slot;
    place[0] = exists ? image : -1, place[1] = cell_row, place[2] = static_cast<int32_t>(column);
  }
  const int64_t first_channel = int64_t{group} * p.channels;
  const Scalar* const x =
      static_cast<const Scalar*>(p.x) + image * p.x_batch_stride + (first_channel + part) * p.x_channel_stride;

  float sums[c.rows][c.sums];
#pragma unroll
  for (int r = 0; r < c.rows; ++r) {
#pragma unroll
    for (int m = 0; m < c.sums; ++m) sums[r][m] = 0;
  }
#pragma unroll 1
  for (int32_t first = 0; first < p.channels; first += p.channels_at_once) {
    const int32_t count = smaller(p.channels_at_once, p.channels - first);
    if (first > 0) __syncthreads();
    load_weights<Scalar, Row>(p, first_channel + first, count, first_sum, shared);
    __syncthreads();
#pragma unroll 1
    for (int32_t window = 0; window < p.window_rows * p.window_columns; ++window) {
      auto window_column = static_cast<uint32_t>(window);
      const auto window_row = static_cast<int32_t>(p.windows.divide(window_column));
      // The first input of the window, above and to the right of the others.
      const int32_t x_row = p.first_row + cell_row - (window_row + 1) * c.window_rows * p.row_distance + p.row_distance;
      const int32_t x_column =
          p.first_column + static_cast<int32_t>(column) - static_cast<int32_t>(window_column) * c.window_columns;
      uint32_t rows = 0;  // that exist
#pragma unroll
      for (int i = 0; i < x_rows; ++i) {
        const int32_t at = x_row + i * p.row_distance;
        rows |= static_cast<uint32_t>(at >= 0 && at < p.h.in) << i;
      }
      bool columns[c.window_columns];
#pragma unroll
      for (int k = 0; k < c.window_columns; ++k) {
        columns[k] = exists && x_column >= k && x_column - k < p.w_axis.in;
      }
      const Scalar* from = x + first * p.x_channel_stride + x_row * p.x_row_stride + x_column;
      const float* weights = shared + part * p.channel_weights + window * c.sums * taps;
      // Inputs that do not exist are never loaded, and stay zero.
      uint32_t words[x_rows][c.window_columns];
#pragma unroll
      for (int i = 0; i < x_rows; ++i) {
#pragma unroll
        for (int k = 0; k < c.window_columns; ++k) words[i][k] = 0;
      }
#pragma unroll 1
      for (int32_t channel = part; channel < count; channel += splits) {
        const Scalar* of_row = from;
#pragma unroll
        for (int i = 0; i < x_rows; ++i) {
#pragma unroll
          for (int k = 0; k < c.window_columns; ++k) {
            load_over<sizeof(Scalar)>(columns[k] && (rows >> i & 1) != 0, of_row - k, words[i][k]);
          }
          of_row += p.row_step;
        }
        float inputs[x_rows][c.window_columns];
#pragma unroll
        for (int i = 0; i < x_rows; ++i) {
#pragma unroll
          for (int k = 0; k < c.window_columns; ++k) inputs[i][k] = element<Scalar>(words[i] + k, 0);
        }
#pragma unroll
        for (int m = 0; m < c.sums; ++m) {
          float of_tap[taps];
#pragma unroll
          for (int t = 0; t < taps; t += 4) {
            const float4 four = *reinterpret_cast<const float4*>(weights + m * taps + t);
            of_tap[t] = four.x, of_tap[t + 1] = four.y, of_tap[t + 2] = four.z, of_tap[t + 3] = four.w;
          }
#pragma unroll
          for (int r = 0; r < c.rows; ++r) {
            // A channel's sum by itself, so that errors do not grow with the number of products.
            float sum = 0;
#pragma unroll
            for (int t = 0; t < c.window_rows * c.window_columns; ++t) {
              const float input = inputs[r + c.window_rows - 1 - t / c.window_columns][t % c.window_columns];
              sum = t == 0 ? input * of_tap[t] : sum + input * of_tap[t];
            }
            sums[r][m] += sum;
          }
        }
        from += splits * p.x_channel_stride;
        weights += splits * p.channel_weights;
      }
    }
  }

  __syncthreads();
  float* const mine = shared + ((part * c.rows * c.sums) << p.log_positions) + slot;
#pragma unroll
  for (int r = 0; r < c.rows; ++r) {
#pragma unroll
    for (int m = 0; m < c.sums; ++m) mine[(r * c.sums + m) << p.log_positions] = sums[r][m];
  }
  __syncthreads();
  write_outputs<Scalar, Row>(p, group, first_sum, shared, places);
}

}  // namespace convt::few_channels
