// What the kernels of the tiled configurations are given, by value.
#pragma once

#include <type_traits>

#include "../access_width.h"
#include "../divisor.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::large_stride {

// Strides in elements.
struct TileParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  float* partials;
  uint32_t* counters;
  int64_t x_batch_stride, x_channel_stride, x_row_stride, x_column_stride;
  int64_t w_in_stride, w_out_stride, w_row_stride, w_column_stride;
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  Axis<int32_t> h, w_axis;
  int32_t channels, out_channels;  // of one group
  int32_t words, chunks;           // of the channels of a tap
  int32_t first_q_h, first_q_w, positions;
  int32_t columns, splits;
  Divisor position_tiles, column_tiles, by_splits, q_w, q_h, row_columns, inner;
  bool channels_innermost;  // of the columns
  bool x_channels;          // whether 16 bytes of channels of a pixel can be loaded at once
  bool w_quads;             // whether weights of 4 columns can be loaded at once
  bool y_quads;             // whether outputs of 4 columns can be stored at once
};

static_assert(std::is_trivially_copyable_v<TileParams>);

inline TileParams make_tile_params(const Problem& p, const TileTiling& t, int32_t splits, const Operands& o) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  TileParams q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.counters = static_cast<uint32_t*>(o.workspace);
  q.partials = reinterpret_cast<float*>(static_cast<unsigned char*>(o.workspace) + t.counter_bytes());
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1], q.x_row_stride = p.x_strides[2];
  q.x_column_stride = p.x_strides[3];
  q.w_in_stride = p.w_strides[0], q.w_out_stride = p.w_strides[1], q.w_row_stride = p.w_strides[2];
  q.w_column_stride = p.w_strides[3];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.y_row_stride = p.y_strides[2];
  q.y_column_stride = p.y_strides[3], q.bias_stride = p.bias_stride;
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.w_axis = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.channels = narrow(p.in_channels_per_group()), q.out_channels = narrow(p.out_channels_per_group());
  q.words = narrow(t.words), q.chunks = narrow(t.chunks);
  q.first_q_h = narrow(t.first_q_h), q.first_q_w = narrow(t.first_q_w), q.positions = narrow(t.positions);
  q.columns = narrow(t.columns), q.splits = splits;
  q.position_tiles = Divisor(t.position_tiles), q.column_tiles = Divisor(t.column_tiles), q.by_splits = Divisor(splits);
  q.q_w = Divisor(t.q_w), q.q_h = Divisor(t.q_h), q.row_columns = Divisor(t.row_columns), q.inner = Divisor(t.inner);
  q.channels_innermost = t.channels_innermost;
  const int64_t size = element_size(p.dtype);
  const auto vector = narrow(16 / size);
  q.x_channels = access_width(o.x, size, p.x_sizes(), p.x_strides, 1, p.in_channels_per_group(), vector) == vector;
  const int inner = t.channels_innermost ? 1 : 3;
  // The phases of a row begin at a multiple of 4 in every tap, and all 4 exist or none.
  const bool whole = t.channels_innermost || p.stride_w % 4 == 0;
  q.w_quads = whole && access_width(o.w, size, p.w_sizes(), p.w_strides, inner, p.w_sizes()[inner], 4) == 4;
  q.y_quads = (t.channels_innermost || (p.stride_w % 4 == 0 && p.padding_w % 4 == 0)) &&
              access_width(o.result, size, p.y_sizes(), p.y_strides, inner,
                           t.channels_innermost ? p.out_channels_per_group() : p.out_w, 4) == 4;
  return q;
}

}  // namespace convt::large_stride
