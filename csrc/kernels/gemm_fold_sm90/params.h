// What a kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../copy_rows.h"
#include "../divisor.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::gemm_fold_sm90 {

struct Params {
  TensorMap x_map, w_map;
  const void *x, *w;  // for outputs that are computed again
  void* y;
  const void* bias;  // null if there is none
  int64_t x_batch_stride, x_channel_stride, x_row_stride, x_column_stride;
  int64_t w_in_stride, w_out_stride, w_row_stride, w_column_stride;
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  int32_t chunks, tiles, boxes;           // boxes of positions, of a tile
  int32_t batch, channels, out_channels;  // channels of a group
  int32_t taps, tile_channels;
  int32_t tap_pitch, kernel_row_pitch;  // of what is staged: bytes from a tap, or a row of them, to the next
  int32_t slices;                       // of channels: each thread has the pairs of one
  int32_t images, rows, columns;        // of a tile; rows and columns of y
  int32_t rows_before, columns_before;  // of an image's first output, in its first tile
  int32_t first_row, row_step, first_column, column_step, image_pitch, row_pitch;
  // In memory: elements from a row of x to the next, and from an image if x is copied; a segment that does not follow
  // the one before begins so many images and elements further.
  int32_t memory_row, memory_image, next_image, next_position;
  int32_t store_width;  // elements of y at once, of a row or, if x is channels_last, of a position
  bool copies_x;        // the kernel before this one does
  bool last;            // x is channels_last, and so is its copy
  bool last_weights;    // rows of the product are channels of a tap, not taps of a channel
  Divisor output_tiles, column_tiles, row_tiles, image_tiles, segments;
  Divisor by_units, by_pairs, by_rows, by_rows_of_w, by_kernel_columns;  // of a tile
  Divisor stride_h, stride_w;
  Axis<int32_t> h, w_axis;
};

static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);

struct Launch {
  Params params;
  TensorMapLayout x_map, w_map;  // of which the driver makes the maps
  CopyParams copy;               // if params.copies_x
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const bool copies = plan.workspace_bytes > 0;
  const Tiling t = make_tiling(config, p, copies, cut_of(plan));
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  q = {};
  q.copies_x = copies, q.last = is_last(p);
  if (copies && q.last) {
    const int64_t position = copied_row(p, t), row = p.in_w * position;
    launch.copy = make_copy(p, o.x, o.workspace, {p.batch, p.x_strides[0], p.in_h * row}, {p.in_h, p.x_strides[2], row},
                            {p.in_w, p.x_strides[3], position}, p.in_channels, 1);
  } else if (copies) {
    launch.copy = make_copy(p, o.x, o.workspace, {p.in_channels, p.x_strides[1], copied_row(p, t)},
                            {p.batch, p.x_strides[0], t.memory_image}, {p.in_h, p.x_strides[2], t.memory_row}, p.in_w,
                            p.x_strides[3]);
  }
  launch.x_map = make_x_map(p, t, copies ? o.workspace : o.x, copies);
  launch.w_map = make_w_map(p, o.w);
  q.x = o.x, q.w = o.w;
  q.last_weights = has_last_weights(p);
  q.w_in_stride = p.w_strides[0], q.w_out_stride = p.w_strides[1], q.w_row_stride = p.w_strides[2],
  q.w_column_stride = p.w_strides[3];
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1];
  q.x_row_stride = p.x_strides[2], q.x_column_stride = p.x_strides[3];
  q.y = o.result, q.bias = p.has_bias ? o.bias : nullptr;
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1];
  q.y_row_stride = p.y_strides[2], q.y_column_stride = p.y_strides[3], q.bias_stride = p.bias_stride;
  q.chunks = narrow(t.chunks), q.tiles = narrow(t.tiles), q.boxes = narrow(t.boxes);
  q.batch = narrow(p.batch), q.channels = narrow(p.in_channels_per_group());
  q.out_channels = narrow(p.out_channels_per_group());
  q.taps = narrow(p.kernel_h * p.kernel_w), q.tile_channels = narrow(t.channels);
  q.images = narrow(t.images), q.rows = narrow(t.rows), q.columns = narrow(t.columns);
  q.rows_before = narrow(t.rows_before), q.columns_before = narrow(t.columns_before);
  q.first_row = narrow(t.first_row), q.row_step = narrow(t.row_step);
  q.first_column = narrow(t.first_column), q.column_step = narrow(t.column_step);
  q.image_pitch = narrow(t.image_pitch), q.row_pitch = narrow(t.row_pitch);
  q.memory_row = narrow(t.memory_row), q.memory_image = narrow(t.memory_image);
  q.next_image = t.next_is_image ? 1 : 0, q.next_position = t.next_is_image ? 0 : q.memory_row;
  q.store_width = q.last ? last_store_width(p, t, o.result) : store_width(p, t, o.result);
  q.output_tiles = Divisor(t.output_tiles), q.column_tiles = Divisor(t.column_tiles);
  q.row_tiles = Divisor(t.row_tiles), q.image_tiles = Divisor(t.image_tiles), q.segments = Divisor(t.segments);
  q.tap_pitch = narrow(t.channels * 4 * config.columns + kernel_column_gap);
  // A kernel of one column has no gaps of rows, for which there may be no room.
  q.kernel_row_pitch = narrow(p.kernel_w * q.tap_pitch + (p.kernel_w > 1 ? kernel_row_gap : 0));
  q.slices = narrow(slices_of(t, config.tile_threads()));
  q.by_pairs = Divisor(ceil_div<int64_t>(t.columns, 2)), q.by_rows = Divisor(t.rows);
  q.by_units = Divisor(units_of(t)),
  q.by_rows_of_w = Divisor(q.last_weights ? p.out_channels_per_group() : p.kernel_h * p.kernel_w);
  q.by_kernel_columns = Divisor(p.kernel_w), q.stride_h = Divisor(p.stride_h), q.stride_w = Divisor(p.stride_w);
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.w_axis = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
}

}  // namespace convt::gemm_fold_sm90
