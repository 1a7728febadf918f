#pragma once

#include "../device.h"
#include "../load_if.h"
#include "params.h"

namespace convt::few_positions {

// The inputs of `Positions` positions, from `first` on, as [channel][position]; zeros beyond the last one.
template <class Scalar, int Positions>
CONVT_DEVICE void load_inputs(const Params& p, int32_t first_image, int64_t first_channel, int32_t first,
                              float* inputs) {
  constexpr int at_once = 4;
  const Scalar* x = static_cast<const Scalar*>(p.x) + first_channel * p.x_channel_stride;
  const auto elements = static_cast<uint32_t>(p.channels * Positions);
#pragma unroll 1
  for (uint32_t start = threadIdx.x; start < elements; start += at_once * threads) {
    float values[at_once];
    uint32_t places[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const uint32_t index = start + static_cast<uint32_t>(i * threads);
      uint32_t channel = index / Positions, position = index % Positions;
      if (p.x_channels_innermost) {
        channel = index;
        position = p.channels_divisor.divide(channel);
      }
      uint32_t column = position + static_cast<uint32_t>(first);
      const uint32_t image = p.image_positions.divide(column), row = p.in_w.divide(column);
      const int64_t n = first_image + static_cast<int32_t>(image);
      const bool exists = index < elements && static_cast<int32_t>(image) < p.images && n < p.batch;
      uint32_t word[1];
      load_if<sizeof(Scalar)>(
          exists,
          x + (n * p.x_batch_stride + channel * p.x_channel_stride + row * p.x_row_stride + column * p.x_column_stride),
          word);
      values[i] = element<Scalar>(word, 0);
      places[i] = channel * Positions + position;
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (start + static_cast<uint32_t>(i * threads) < elements) inputs[places[i]] = values[i];
    }
  }
}

// Each output of the block: the products that meet in it, and the bias.
template <class Scalar>
CONVT_DEVICE void write_outputs(const Params& p, int32_t first_image, int64_t first_channel, const float* products) {
  const int32_t images = smaller(p.images, p.batch - first_image);
  const auto outputs = static_cast<uint32_t>(images * p.block_channels * p.h.out * p.w_axis.out);
  const int32_t of_channel = p.taps_innermost ? static_cast<int32_t>(p.taps.divisor) : 1;
  const int32_t of_tap = p.taps_innermost ? 1 : p.block_channels;
  for (uint32_t i = threadIdx.x; i < outputs; i += threads) {
    uint32_t channel = i, column, row, image;
    if (p.y_channels_innermost) {
      column = p.channels_of_block.divide(channel);
      row = p.out_w.divide(column);
      image = p.out_h.divide(row);
    } else {
      column = i;
      row = p.out_w.divide(column);
      channel = p.out_h.divide(row);
      image = p.channels_of_block.divide(channel);
    }
    const Taps<int32_t> rows = transposed_taps(p.h, static_cast<int32_t>(row));
    const Taps<int32_t> columns = transposed_taps(p.w_axis, static_cast<int32_t>(column));
    float sum = 0;
    for (int32_t j = 0; j < rows.count; ++j) {
      for (int32_t k = 0; k < columns.count; ++k) {
        const int32_t tap = (rows.tap + j * rows.tap_step) * p.w_axis.kernel + columns.tap + k * columns.tap_step;
        const int32_t position =
            (static_cast<int32_t>(image) * p.h.in + rows.position + j * rows.position_step) * p.w_axis.in +
            columns.position + k * columns.position_step;
        sum += products[position * p.columns + static_cast<int32_t>(channel) * of_channel + tap * of_tap];
      }
    }
    const int64_t co = first_channel + channel;
    if (p.bias != nullptr) sum += to_float(static_cast<const Scalar*>(p.bias)[co * p.bias_stride]);
    Scalar* y = static_cast<Scalar*>(p.y) + (first_image + static_cast<int64_t>(image)) * p.y_batch_stride +
                co * p.y_channel_stride + row * p.y_row_stride + column * p.y_column_stride;
    store<1>(y, &sum);
  }
}

template <class Scalar, int Vector, int Positions>
__global__ void __launch_bounds__(threads, blocks_of_multiprocessor)
    few_positions_kernel(const __grid_constant__ Params p) {
  constexpr int bytes = Vector * sizeof(Scalar), words = bytes < 4 ? 1 : bytes / 4;
  constexpr int wide = Vector < 4 ? Vector : 4;  // of a store to shared memory
  constexpr int depth = rows_at_once(Vector, sizeof(Scalar));
  auto* inputs = reinterpret_cast<float*>(device::dynamic_shared_memory());
  auto* products = reinterpret_cast<float*>(device::dynamic_shared_memory() + p.products_offset);

  uint32_t block_of_channels = blockIdx.x;
  uint32_t group = p.channel_blocks.divide(block_of_channels);
  const auto first_image = static_cast<int32_t>(p.groups.divide(group)) * p.images;
  const int64_t first_output = (int64_t{group} * p.channel_blocks.divisor + block_of_channels) * p.block_channels;
  const int64_t first_input = int64_t{group} * p.channels;

  uint32_t lane = threadIdx.x;
  const auto row_lane = static_cast<int32_t>(p.lanes.divide(lane));
  const auto first_column = static_cast<int32_t>(lane) * Vector;
  uint32_t tap, channel;
  if (p.taps_innermost) {
    tap = static_cast<uint32_t>(first_column);
    channel = p.taps.divide(tap);
  } else {
    channel = static_cast<uint32_t>(first_column);
    tap = p.channels_of_block.divide(channel);
  }
  const uint32_t tap_row = p.kernel_w.divide(tap);
  // Threads that are too many for whole rows have none.
  const int32_t rows = row_lane < p.row_lanes ? p.channels : 0;
  const Scalar* const weights = static_cast<const Scalar*>(p.w) + (first_input + row_lane) * p.w_in_stride +
                                (int64_t{block_of_channels} * p.block_channels + channel) * p.w_out_stride +
                                tap_row * p.w_row_stride + tap * p.w_column_stride;
  const int64_t step = p.row_lanes * p.w_in_stride;

#pragma unroll 1
  for (int32_t pass = 0; pass < p.passes; ++pass) {
    uint32_t raw[depth][words], next[depth][words];
    const Scalar* from = weights;
    int32_t row = row_lane;  // of raw's first
    const auto load_rows = [&](int32_t first, uint32_t (&to)[depth][words]) {
#pragma unroll
      for (int i = 0; i < depth; ++i) {
        load_if<bytes>(first + i * p.row_lanes < rows, from, to[i]);
        from += step;
      }
    };
    load_rows(row, raw);
    if (pass > 0) __syncthreads();
    load_inputs<Scalar, Positions>(p, first_image, first_input, pass * Positions, inputs);
    __syncthreads();

    float sums[Positions][Vector];
#pragma unroll
    for (int i = 0; i < Positions; ++i) {
#pragma unroll
      for (int v = 0; v < Vector; ++v) sums[i][v] = 0;
    }
    const auto multiply = [&](int32_t first, const uint32_t (&of)[depth][words]) {
#pragma unroll
      for (int i = 0; i < depth; ++i) {
        const int32_t channel_of_row = first + i * p.row_lanes;
        if (channel_of_row >= rows) break;
        float values[Positions];
#pragma unroll
        for (int j = 0; j < Positions; j += Positions < 4 ? 1 : 4) {
          const float* at = inputs + channel_of_row * Positions + j;
          if constexpr (Positions < 4) {
            values[j] = *at;
          } else {
            const float4 four = *reinterpret_cast<const float4*>(at);
            values[j] = four.x, values[j + 1] = four.y, values[j + 2] = four.z, values[j + 3] = four.w;
          }
        }
#pragma unroll
        for (int v = 0; v < Vector; ++v) {
          const float weight = element<Scalar>(of[i], v);
#pragma unroll
          for (int j = 0; j < Positions; ++j) sums[j][v] += values[j] * weight;
        }
      }
    };
    const int32_t stride = depth * p.row_lanes;
#pragma unroll 1
    for (; row < rows; row += 2 * stride) {
      load_rows(row + stride, next);
      multiply(row, raw);
      load_rows(row + 2 * stride, raw);
      multiply(row + stride, next);
    }

    // Where the inputs were: the sums of each row of threads, added up in the order of rows.
    __syncthreads();
    if (row_lane < p.row_lanes) {
#pragma unroll
      for (int j = 0; j < Positions; ++j) {
#pragma unroll
        for (int v = 0; v < Vector; v += wide) {
          store<wide>(inputs + ((row_lane * Positions + j) * p.columns + first_column + v), sums[j] + v);
        }
      }
    }
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Positions * p.columns; i += threads) {
      float sum = 0;
#pragma unroll 8
      for (int32_t r = 0; r < p.row_lanes; ++r) sum += inputs[r * Positions * p.columns + i];
      products[pass * Positions * p.columns + i] = sum;
    }
  }
  __syncthreads();
  write_outputs<Scalar>(p, first_image, first_output, products);
}

}  // namespace convt::few_positions
