// What a kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../gemm_scatter/params.h"
#include "tiling.h"

namespace convt::gemm_scatter_sm90 {

struct Params {
  TensorMap x_map, w_map;
  void* y;
  const void* bias;  // null if there is none
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  int32_t chunks, tiles;
  int32_t outputs, positions, rows;  // outputs of a position; positions of a row, and rows
  int32_t out_channels;              // of a group
  int32_t kernel_h, kernel_w;
  int32_t vector;       // elements of y that are written at once
  bool from_registers;  // four lanes have a vector's elements and exchange them; otherwise a tile is staged
  bool whole_rows;      // vectors of all rows of the kernel are written in the order in which they are in y
  bool copies_x;        // the kernel before this one copies x
  Divisor output_tiles, segment_tiles, segments, image, width;
  Divisor taps;  // of an output channel; in channels_last, output channels
  // Unless y is channels_last, columns of the kernel; otherwise outputs of a row of it.
  Divisor by_rows;
  Divisor row_vectors, kernel_row_vectors;  // of y, that a row of positions has, and a row of the kernel in them
};

static_assert(std::is_trivially_copyable_v<Params>);

// What the kernel that copies x is given.
struct AlignParams {
  const void* x;
  void* to;
  int64_t batch_stride, channel_stride, position_stride, to_stride;
  int32_t positions;  // of all images
  Divisor image, blocks;
};

struct Launch {
  Params params;
  TensorMapLayout x_map, w_map;  // of which the driver makes the maps
  AlignParams align;
  int64_t align_grid;
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const bool last = is_channels_last(p), copies_x = plan.workspace_bytes > 0;
  const Tiling t = make_tiling(config, p, copies_x);
  Params& q = launch.params;
  q = {};
  q.copies_x = copies_x;
  if (copies_x) {
    const int64_t blocks = ceil_div<int64_t>(t.positions, align_positions);
    launch.align = {o.x,
                    o.workspace,
                    p.x_strides[0],
                    p.x_strides[1],
                    position_stride(p),
                    copied_row(p),
                    static_cast<int32_t>(t.positions),
                    Divisor(p.in_h * p.in_w),
                    Divisor(blocks)};
    launch.align_grid = blocks * p.in_channels;
  }
  launch.x_map = last ? make_channels_last_x_map(p, o.x) : make_x_map(p, copies_x ? o.workspace : o.x, copies_x);
  launch.w_map = make_w_map(p, o.w);
  set_common(q, p, o, t);
  q.y_column_stride = p.y_strides[3], q.kernel_w = static_cast<int32_t>(p.kernel_w);
  q.vector = store_width(p, o.result);
  q.from_registers = q.vector == 8 && (last || p.kernel_w == 1 || p.kernel_w == 2 || p.kernel_w == 4);
  q.whole_rows = !q.from_registers && writes_whole_rows(p);
  if (q.whole_rows) {
    q.row_vectors = Divisor(p.kernel_h * p.out_w / q.vector), q.kernel_row_vectors = Divisor(p.out_w / q.vector);
  }
}

}  // namespace convt::gemm_scatter_sm90
