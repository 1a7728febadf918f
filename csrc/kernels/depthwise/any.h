// Any kernel, stride and dilation, by loops of run-time length over the taps that exist: nothing is ever multiplied by
// a zero that stands for nothing. A thread computes outputs of one phase, which share their taps.
#pragma once

#include "last.h"

namespace convt::depthwise {

// Those of them that one of `outputs` outputs a stride apart reads inside the input.
CONVT_HOST_DEVICE AllTaps inside(const Axis<int32_t>& a, const AllTaps& all, int32_t outputs) {
  const int32_t highest = all.position + outputs - 1;
  if (highest < 0) return {0, 0, 0};
  const int32_t first = larger<int32_t>(0, ceil_div(all.position - a.in + 1, a.input_step));
  const int32_t last = smaller(all.count, floor_div(highest, a.input_step) + 1);
  return {all.tap + first * a.tap_step, all.position - first * a.input_step, larger<int32_t>(0, last - first)};
}

// Whether all taps of `outputs` outputs a stride apart lie inside the input.
CONVT_HOST_DEVICE bool all_inside(const Axis<int32_t>& a, const AllTaps& all, int32_t outputs) {
  return all.position - (all.count - 1) * a.input_step >= 0 && all.position + outputs - 1 < a.in;
}

// Threads of a warp that go apart take the time of both ways.
CONVT_HOST_DEVICE bool all_of_warp(bool v) {
#if defined(__CUDA_ARCH__)
  return __all_sync(__activemask(), v);
#else
  return v;
#endif
}

// channels_last: P outputs a stride apart, V channels of each. `Edge`: some of their inputs may lie outside.
template <int V, int P, bool Edge, class Scalar>
CONVT_HOST_DEVICE void add_columns(const LastParams& p, const Scalar* x, const Scalar* table, const AllTaps& rows,
                                   const AllTaps& columns, float (&sums)[P][V]) {
  const auto taps = static_cast<int32_t>(p.taps.divisor), kernel_w = static_cast<int32_t>(p.kernel_w.divisor);
#pragma unroll 1
  for (int32_t ci = 0; ci < p.in_per_group; ++ci) {
#pragma unroll 1
    for (int32_t j = 0; j < rows.count; ++j) {
      const Scalar* from =
          x + (ci + (rows.position - j * p.h.input_step) * p.x_row_stride + columns.position * p.x_column_stride);
      const Scalar* weight = table + (ci * taps + (rows.tap + j * p.h.tap_step) * kernel_w + columns.tap) * p.pitch;
#pragma unroll 1
      for (int32_t k = 0; k < columns.count; ++k) {
        float weights[V], values[P][V];
        const int32_t column = columns.position - k * p.v.input_step;
        const auto exists = [&](int i) {
          return !Edge || static_cast<uint32_t>(column + i) < static_cast<uint32_t>(p.v.in);
        };
#pragma unroll
        for (int i = 0; i < P; ++i) {
          if constexpr (Edge) {
            load_if<V>(exists(i), from + i * p.x_column_stride, values[i]);
          } else {
            load<V>(from + i * p.x_column_stride, values[i]);
          }
        }
        load_table<V>(weight, weights);
#pragma unroll
        for (int i = 0; i < P; ++i) {
          if (!exists(i)) continue;
#pragma unroll
          for (int v = 0; v < V; ++v) sums[i][v] += values[i][v] * weights[v];
        }
        from -= p.v.input_step * p.x_column_stride;
        weight += p.v.tap_step * p.pitch;
      }
    }
  }
}

template <class Scalar, int V>
CONVT_HOST_DEVICE void compute_any_last(const LastParams& p, const Scalar* table, uint32_t block_index,
                                        uint32_t thread) {
  constexpr int P = columns_of_any;
  const Lane lane = lane_of<V>(p, block_index, thread);
  if (static_cast<int32_t>(lane.slot) >= p.slots || lane.channel >= p.out_channels) return;
  table += lane.table_channel;
  float bias[V];
  load_bias<V, Scalar>(p, lane.channel, bias);
  // With more than one channel in the vector, input and output channels are the same.
  uint32_t in_channel = static_cast<uint32_t>(lane.channel);
  if constexpr (V == 1) {
    uint32_t rest = in_channel;
    in_channel = p.multiplier.divide(rest) * static_cast<uint32_t>(p.in_per_group);
  }

#pragma unroll 1
  for (int32_t repeat = 0; repeat < p.repeats; ++repeat) {
    const uint32_t index = (lane.group * p.repeats + repeat) * p.slots + lane.slot;
    if (index >= p.tiles) return;
    uint32_t phase = index;
    uint32_t tile_column = p.phases.divide(phase);
    uint32_t row = p.columns.divide(tile_column);
    const uint32_t n = p.rows.divide(row);
    const int32_t stride = p.v.stride;
    const auto column = static_cast<int32_t>(tile_column * static_cast<uint32_t>(P * stride) + phase);
    if (column >= p.out_w) continue;
    const Scalar* x = static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + in_channel;
    Scalar* y = static_cast<Scalar*>(p.y) + n * p.y_batch_stride + lane.channel +
                (static_cast<int32_t>(row) * p.y_row_stride + column * p.y_column_stride);

    const AllTaps rows = inside(p.h, all_taps(p.h, p.h_phases, static_cast<int32_t>(row)), 1);
    const AllTaps columns = all_taps(p.v, p.v_phases, column);
    float sums[P][V];
#pragma unroll
    for (int i = 0; i < P; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) sums[i][v] = 0;
    }
    if (all_of_warp(all_inside(p.v, columns, P))) {
      add_columns<V, P, false>(p, x, table, rows, columns, sums);
    } else {
      add_columns<V, P, true>(p, x, table, rows, inside(p.v, columns, P), sums);
    }
#pragma unroll
    for (int i = 0; i < P; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) sums[i][v] += bias[v];
      if (column + i * stride < p.out_w) store<V>(y + i * stride * p.y_column_stride, sums[i]);
    }
  }
}

// Any strides of memory. Inside an image of one channel 32 bits hold every offset.
struct AnyParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, bias_stride;
  int64_t w_input_stride, w_channel_stride;
  int32_t w_row_stride, w_column_stride;
  int32_t x_row_stride, x_column_stride, y_row_stride, y_column_stride;
  int32_t out_h, out_w, in_per_group;
  bool channels_first;  // neighbouring threads have neighbouring channels, not columns
  Axis<int32_t> h, v;
  Phases h_phases, v_phases;
  uint32_t threads;
  Divisor columns, phases, rows, channels, multiplier;  // rows: tiles of a phase of a column
};

static_assert(std::is_trivially_copyable_v<AnyParams>);

inline AnyParams make_any_params(const Problem& p, const Operands& o, int32_t outputs) {
  AnyParams q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1];
  q.bias_stride = p.bias_stride;
  q.w_input_stride = p.w_strides[0], q.w_channel_stride = p.w_strides[1];
  q.w_row_stride = used_stride_32(p.kernel_h, p.w_strides[2]);
  q.w_column_stride = used_stride_32(p.kernel_w, p.w_strides[3]);
  q.x_row_stride = used_stride_32(p.in_h, p.x_strides[2]), q.x_column_stride = used_stride_32(p.in_w, p.x_strides[3]);
  q.y_row_stride = used_stride_32(p.out_h, p.y_strides[2]), q.y_column_stride = used_stride_32(p.out_w, p.y_strides[3]);
  q.out_h = static_cast<int32_t>(p.out_h), q.out_w = static_cast<int32_t>(p.out_w);
  q.in_per_group = static_cast<int32_t>(p.in_channels_per_group());
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.v = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.h_phases = make_phases(q.h), q.v_phases = make_phases(q.v);
  q.channels_first = channels_first(p);
  q.threads = static_cast<uint32_t>(any_threads(p, outputs));
  q.columns = Divisor(p.out_w), q.phases = Divisor(p.stride_h), q.rows = Divisor(any_row_tiles(p, outputs));
  q.channels = Divisor(p.out_channels), q.multiplier = Divisor(p.out_channels_per_group());
  return q;
}

// P outputs a stride apart along a column. `Edge`: some of their inputs may lie outside.
template <int P, bool Edge, class Scalar>
CONVT_HOST_DEVICE void add_rows(const AnyParams& p, const Scalar* x, const Scalar* w, const AllTaps& rows,
                                const AllTaps& columns, float (&sums)[P]) {
#pragma unroll 1
  for (int32_t ci = 0; ci < p.in_per_group; ++ci) {
    float part[P];  // of a channel: long sums are rounded less often
#pragma unroll
    for (int i = 0; i < P; ++i) part[i] = 0;
#pragma unroll 1
    for (int32_t j = 0; j < rows.count; ++j) {
      const int32_t row = rows.position - j * p.h.input_step;
      const auto exists = [&](int i) {
        return !Edge || static_cast<uint32_t>(row + i) < static_cast<uint32_t>(p.h.in);
      };
      const Scalar* from = x + (row * p.x_row_stride + columns.position * p.x_column_stride);
      const Scalar* weight = w + ((rows.tap + j * p.h.tap_step) * p.w_row_stride + columns.tap * p.w_column_stride);
#pragma unroll 2
      for (int32_t k = 0; k < columns.count; ++k) {
        float value[P], factor;
#pragma unroll
        for (int i = 0; i < P; ++i) {
          if constexpr (Edge) {
            load_if<1>(exists(i), from + i * p.x_row_stride, &value[i]);
          } else {
            load<1>(from + i * p.x_row_stride, &value[i]);
          }
        }
        load<1>(weight, &factor);
#pragma unroll
        for (int i = 0; i < P; ++i) {
          if (exists(i)) part[i] += value[i] * factor;
        }
        from -= p.v.input_step * p.x_column_stride;
        weight += p.v.tap_step * p.w_column_stride;
      }
    }
#pragma unroll
    for (int i = 0; i < P; ++i) sums[i] += part[i];
    x += p.x_channel_stride;
    w += p.w_input_stride;
  }
}

// One output: the taps of a channel one after another, some of them on their way at once. Where there are few threads,
// nothing else hides the time that memory takes.
template <class Scalar>
CONVT_HOST_DEVICE void add_taps(const AnyParams& p, const Scalar* x, const Scalar* w, const AllTaps& rows,
                                const AllTaps& columns, float& sum) {
  constexpr int together = 8;
  const int32_t x_column = -p.v.input_step * p.x_column_stride, w_column = p.v.tap_step * p.w_column_stride;
  const int32_t x_row = -p.h.input_step * p.x_row_stride - columns.count * x_column;
  const int32_t w_row = p.h.tap_step * p.w_row_stride - columns.count * w_column;
  x += rows.position * p.x_row_stride + columns.position * p.x_column_stride;
  w += rows.tap * p.w_row_stride + columns.tap * p.w_column_stride;
#pragma unroll 1
  for (int32_t ci = 0; ci < p.in_per_group; ++ci) {
    const Scalar *from = x, *weight = w;
    float part = 0;
    int32_t column = 0;
#pragma unroll 1
    for (int32_t left = rows.count * columns.count; left > 0; left -= together) {
      float values[together], weights[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        load_if<1>(i < left, from, &values[i]);
        load_if<1>(i < left, weight, &weights[i]);
        from += x_column, weight += w_column;
        if (++column == columns.count) column = 0, from += x_row, weight += w_row;
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        if (i < left) part += values[i] * weights[i];
      }
    }
    sum += part;
    x += p.x_channel_stride;
    w += p.w_input_stride;
  }
}

template <class Scalar, int P>
CONVT_HOST_DEVICE void compute_any(const AnyParams& p, uint32_t index) {
  uint32_t channel = index, column = index, tile_row;
  if (p.channels_first) {
    column = p.channels.divide(channel);
    tile_row = p.columns.divide(column);
  } else {
    tile_row = p.columns.divide(column);
  }
  uint32_t phase = tile_row;
  tile_row = p.phases.divide(phase);
  uint32_t n = p.rows.divide(tile_row);
  if (!p.channels_first) {
    channel = n;
    n = p.channels.divide(channel);
  }
  uint32_t channel_of_group = channel;
  const uint32_t group = p.multiplier.divide(channel_of_group);
  const int64_t input = static_cast<int64_t>(group) * p.in_per_group;
  const int32_t stride = p.h.stride;
  const auto row = static_cast<int32_t>(tile_row * static_cast<uint32_t>(P * stride) + phase);
  if (row >= p.out_h) return;

  const Scalar* x = static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + input * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + input * p.w_input_stride + channel_of_group * p.w_channel_stride;
  Scalar* y = static_cast<Scalar*>(p.y) + n * p.y_batch_stride + channel * p.y_channel_stride +
              (row * p.y_row_stride + static_cast<int32_t>(column) * p.y_column_stride);
  float bias = 0;
  if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);

  const AllTaps rows = all_taps(p.h, p.h_phases, row);
  const AllTaps columns = inside(p.v, all_taps(p.v, p.v_phases, static_cast<int32_t>(column)), 1);
  float sums[P];
#pragma unroll
  for (int i = 0; i < P; ++i) sums[i] = 0;
  if constexpr (P == 1) {
    add_taps(p, x, w, inside(p.h, rows, 1), columns, sums[0]);
  } else if (all_of_warp(all_inside(p.h, rows, P))) {
    add_rows<P, false>(p, x, w, rows, columns, sums);
  } else {
    add_rows<P, true>(p, x, w, inside(p.h, rows, P), columns, sums);
  }
#pragma unroll
  for (int i = 0; i < P; ++i) {
    sums[i] += bias;
    if (row + i * stride < p.out_h) store<1>(y + i * stride * p.y_row_stride, &sums[i]);
  }
}

}  // namespace convt::depthwise
