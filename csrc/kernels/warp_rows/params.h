// What a warp_rows kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../operands.h"
#include "config.h"

namespace convt::warp_rows {

// Strides in elements.
struct Params {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch, x_channel, x_row, x_column, y_batch, y_row, y_column, bias_stride;  // columns: of channels_last
  // Of 32 bits, so that a product with them is one instruction.
  int32_t w_in, w_out, w_row, w_column;
  int64_t y_channel;
  AxisParams h, w_axis;  // counted
  Tiling t;
  int32_t cin, cout, groups, kernel_h;
  int32_t skipped_rows, skipped_columns;  // of y
  int32_t y_row_bytes;
  bool whole_sectors;                                // rows of y begin and end with sectors of memory
  int32_t strip_bits, tile_bits;                     // a block has 2^strip_bits strips, and 2^tile_bits tiles
  Divisor block_strips;                              // of sectors: any number of strips
  bool last;                                         // channels_last
  bool aligned;                                      // of 16 bits, words of two columns begin where rows of x do
  int32_t store_width;                               // elements of y that can be written at once
  Divisor chunks, strip_blocks, tile_blocks, tiles;  // of a block's index; of a tile's
  Divisor window;                                    // of a weight's index: phases of a row x columns of x
  int32_t tap_columns[most_windows];                 // the kernel's column of a phase and a column of x; or -1
  uint32_t bare;                                     // a bit for each phase of the rows: without taps
  uint32_t rows[most_phases][most_rows];  // of x, of a phase: taps of the phases and columns; kernel row << 16
};
static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t bytes = element_size(p.dtype);
  Params q{};
  const Counted h = counted(c, p.axis_h()), w_axis = counted(c, p.axis_w());
  q.h = axis_params(h.axis), q.w_axis = axis_params(w_axis.axis);
  q.skipped_rows = h.skipped, q.skipped_columns = w_axis.skipped;
  q.t = tiling(c, p, plan.cut);
  const Tiling& t = q.t;
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch = used_stride(p.batch, p.x_strides[0]), q.x_channel = used_stride(p.in_channels, p.x_strides[1]);
  q.x_row = used_stride(p.in_h, p.x_strides[2]), q.x_column = p.in_w > 1 ? p.x_strides[3] : 1;
  q.w_in = used_stride_32(p.in_channels, p.w_strides[0]);
  q.w_out = used_stride_32(p.out_channels_per_group(), p.w_strides[1]);
  q.w_row = used_stride_32(p.kernel_h, p.w_strides[2]), q.w_column = used_stride_32(p.kernel_w, p.w_strides[3]);
  q.y_batch = p.y_strides[0], q.y_channel = p.y_strides[1], q.y_row = p.y_strides[2], q.y_column = p.y_strides[3];
  q.bias_stride = p.bias_stride;
  q.cin = static_cast<int32_t>(p.in_channels_per_group()), q.cout = static_cast<int32_t>(p.out_channels_per_group());
  q.kernel_h = static_cast<int32_t>(p.kernel_h);
  while (1 << q.strip_bits < t.block_strips) ++q.strip_bits;
  while (1 << q.tile_bits < t.block_tiles) ++q.tile_bits;
  q.last = is_last(p);
  q.aligned = bytes == 4 || q.last || common_width(o.x, bytes, {q.x_batch, q.x_channel, q.x_row, p.in_w}, 2) == 2;
  const int64_t y_image = used_stride(p.batch, p.y_strides[0]), y_channel = used_stride(p.out_channels, p.y_strides[1]);
  q.store_width = q.last ? access_width(o.result, bytes, p.y_sizes(), p.y_strides, 1, p.out_channels_per_group(),
                                        p.out_channels_per_group() % 8 == 0 ? static_cast<int32_t>(16 / bytes) : 2)
                         : common_width(o.result, bytes, {y_image, y_channel, p.out_w, w_axis.skipped},
                                        static_cast<int32_t>(16 / bytes));
  q.y_row_bytes = static_cast<int32_t>(p.out_w * bytes);
  q.whole_sectors = common_width(o.result, bytes, {y_image, y_channel, p.out_w},
                                 static_cast<int32_t>(sector_bytes / bytes)) == sector_bytes / bytes;
  q.block_strips = Divisor(t.block_strips);
  q.chunks = Divisor(t.chunks), q.strip_blocks = Divisor(t.strip_blocks);
  q.tile_blocks = Divisor(t.tile_blocks), q.tiles = Divisor(ceil_div(t.tiles, t.warp_tiles));
  q.groups = static_cast<int32_t>(p.groups), q.window = Divisor(p.stride_w * c.columns);
  uint32_t taps = 0;
  for (int32_t r = 0; r < q.w_axis.stride; ++r) {
    const Phase& phase = q.w_axis.phases.of[r];
    int32_t* of_phase = q.tap_columns + r * c.columns;
    std::fill(of_phase, of_phase + c.columns, -1);
    for (int32_t i = 0; i < phase.count; ++i) {
      const int32_t column = phase.top - i * q.w_axis.input_step - q.w_axis.phases.first;
      of_phase[column] = phase.tap + i * q.w_axis.tap_step;
      taps |= 1u << (r * c.columns + column);
    }
  }
  for (int32_t r = 0; r < q.h.stride; ++r) {
    const Phase& phase = q.h.phases.of[r];
    if (phase.count == 0 || taps == 0) q.bare |= 1u << r;
    for (int32_t i = 0; i < phase.count; ++i) {
      const int32_t row = phase.top - i * q.h.input_step - (q.h.phases.last - c.rows + 1);
      q.rows[r][row] = taps | static_cast<uint32_t>(phase.tap + i * q.h.tap_step) << 16;
    }
  }
  return q;
}

}  // namespace convt::warp_rows
