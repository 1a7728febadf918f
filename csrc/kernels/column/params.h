// What a column kernel is given, by value.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "../../plan/plan.h"
#include "../operands.h"
#include "config.h"

namespace convt::column {

// Strides in elements.
struct Params {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, x_row_stride, x_column_stride;
  int64_t w_in_stride, w_out_stride, w_row_stride, w_column_stride;
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  Axis<int32_t> h, w_axis;
  int32_t channels, out_channels, groups;  // of one group; groups
  int32_t columns, padded_columns;         // output channels x taps; padded to whole blocks of the warps' accumulators
  int32_t tile_h, tile_w;                  // outputs
  int32_t first_u_h, first_u_w;            // of the first tile
  int32_t tiles_h, tiles_w;
  int32_t pixel_blocks, column_blocks, splits, passes;  // of the warps' work; channels are split over `splits` warps
  int32_t chunks, stage_chunks;                         // of 16 input channels
  int32_t pitch;                                        // of a column in shared memory
  int32_t weight_offset, low_weight_offset, column_offset;  // in shared memory, bytes; tables are at 0
  int32_t align;                                            // of a tile's first input column
  bool vectors;          // whether 4 pixels (channels_last: channels) can be loaded at once
  bool channels_of_row;  // whether threads run over the output channels of a pixel first
};

static_assert(std::is_trivially_copyable_v<Params>);

// Shared memory and the division of work, known without the operands.
struct Resources {
  int32_t column_blocks, padded_columns, splits, passes, chunks, stage_chunks, pitch;
  int64_t low_weight_bytes, weight_bytes, table_bytes, column_bytes;

  int64_t shared_bytes() const { return table_bytes + weight_bytes + column_bytes; }
};

// Sixteen bytes (16-bit types: 8) for each 4 channels of a column; a quarter (half) warp reads them without conflicts.
constexpr int32_t weight_pitch(int32_t padded_columns, int64_t element_bytes) {
  return padded_columns + (element_bytes == 4 ? 2 : 4);
}

inline Resources resources(const Problem& p, const Config& c, const Tiling& t) {
  Resources r{};
  const int64_t size = element_size(p.dtype);
  const auto columns = static_cast<int32_t>(p.out_channels_per_group() * p.kernel_h * p.kernel_w);
  const auto blocks = static_cast<int32_t>(t.pixel_blocks());
  r.column_blocks = ceil_div<int32_t>(columns, 8 * c.tiles);
  r.padded_columns = r.column_blocks * 8 * c.tiles;
  r.chunks = static_cast<int32_t>(ceil_div<int64_t>(p.in_channels_per_group(), chunk_channels));
  r.splits = 1;
  while (2 * r.splits <= 4 && 2 * r.splits <= r.chunks && 2 * r.splits * blocks * r.column_blocks <= c.warps) {
    r.splits *= 2;
  }
  r.passes = ceil_div<int32_t>(blocks * r.column_blocks * r.splits, c.warps);
  const bool strict = p.dtype == DataType::float32 && p.precision == Precision::ieee;
  const int64_t panel = chunk_channels * size * weight_pitch(r.padded_columns, size);
  const int64_t most = std::max<int64_t>(1, most_weight_bytes / (panel * (strict ? 2 : 1)) / r.splits) * r.splits;
  r.stage_chunks = static_cast<int32_t>(std::min<int64_t>(ceil_div<int32_t>(r.chunks, r.splits) * r.splits, most));
  r.low_weight_bytes = strict ? panel * r.stage_chunks : 0;
  r.weight_bytes = panel * r.stage_chunks * (strict ? 2 : 1);
  r.table_bytes = ceil_div<int64_t>(8 * (t.h.q * p.stride_h + t.w.q * p.stride_w), 128) * 128;
  // Multiples of 4, not of 8: accumulators are written without conflicts.
  r.pitch = blocks * block_pixels + 4;
  r.column_bytes = int64_t{4} * columns * r.pitch;
  return r;
}

inline bool is_channels_last(const Problem& p) {
  const bool rows = p.in_w == 1 || p.x_strides[3] == 1;
  const bool channels = p.in_channels_per_group() == 1 || p.x_strides[1] == 1;
  return channels && (!rows || memory_format(p.x_sizes(), p.x_strides) == MemoryFormat::channels_last);
}

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const bool channels_last = is_channels_last(p);
  const Tiling t = choose_tiling(p, c.pixel_blocks, channels_last);
  const Resources r = resources(p, c, t);
  Params q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1], q.x_row_stride = p.x_strides[2];
  q.x_column_stride = p.x_strides[3];
  q.w_in_stride = p.w_strides[0], q.w_out_stride = p.w_strides[1], q.w_row_stride = p.w_strides[2];
  q.w_column_stride = p.w_strides[3];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.y_row_stride = p.y_strides[2];
  q.y_column_stride = p.y_strides[3], q.bias_stride = p.bias_stride;
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.w_axis = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.channels = static_cast<int32_t>(p.in_channels_per_group());
  q.out_channels = static_cast<int32_t>(p.out_channels_per_group());
  q.groups = static_cast<int32_t>(p.groups);
  q.columns = static_cast<int32_t>(p.out_channels_per_group() * p.kernel_h * p.kernel_w);
  q.padded_columns = r.padded_columns;
  q.tile_h = static_cast<int32_t>(t.h.q * p.stride_h), q.tile_w = static_cast<int32_t>(t.w.q * p.stride_w);
  q.first_u_h = static_cast<int32_t>(t.h.first_u), q.first_u_w = static_cast<int32_t>(t.w.first_u);
  q.tiles_h = static_cast<int32_t>(t.h.count), q.tiles_w = static_cast<int32_t>(t.w.count);
  q.pixel_blocks = static_cast<int32_t>(t.pixel_blocks()), q.column_blocks = r.column_blocks, q.splits = r.splits;
  q.passes = r.passes, q.chunks = r.chunks, q.stage_chunks = r.stage_chunks, q.pitch = r.pitch;
  q.weight_offset = static_cast<int32_t>(r.table_bytes);
  q.low_weight_offset = static_cast<int32_t>(r.table_bytes + r.low_weight_bytes);
  q.column_offset = static_cast<int32_t>(r.table_bytes + r.weight_bytes);
  q.align = static_cast<int32_t>(alignment(channels_last));
  // All rows (pixels) start at a multiple of 4 elements, and are a multiple long.
  const auto whole = [&](int64_t size, int64_t stride) { return size <= 1 || stride % 4 == 0; };
  q.vectors = reinterpret_cast<uintptr_t>(o.x) % static_cast<uintptr_t>(4 * element_size(p.dtype)) == 0 &&
              whole(p.batch, p.x_strides[0]) && whole(p.in_h, p.x_strides[2]) &&
              (channels_last ? p.in_channels_per_group() % 4 == 0 && whole(p.in_w, p.x_strides[3])
                             : p.in_w % 4 == 0 && whole(p.in_channels, p.x_strides[1]));
  q.channels_of_row = p.out_channels_per_group() > 1 && p.y_strides[1] == 1 && p.y_strides[3] != 1;
  return q;
}

}  // namespace convt::column
