// What a kernel is given, by value.
#pragma once

#include <bit>
#include <type_traits>

#include "../../plan/plan.h"
#include "../gemm_scatter/params.h"
#include "tiling.h"

namespace convt::gemm_scatter_sm90 {

struct Params {
  TensorMap x_map, w_map, y_map;
  void* y;
  const void* bias;  // null if there is none
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  int32_t chunks, tiles;
  int32_t outputs, positions, rows;  // outputs of a position; positions of a row, and rows
  int32_t out_channels;              // of a group
  int32_t kernel_h, kernel_w;
  int32_t vector;  // elements of y that are written at once
  CachePolicy y_policy;
  int32_t log_boxes;    // of 64 positions, if the copy engine writes y
  bool from_registers;  // four lanes have a vector's elements and exchange them; otherwise a tile is staged
  bool whole_rows;      // a warp writes vectors of all rows of the kernel at once
  bool copies_x;        // the kernel before this one copies x
  uint32_t last_band;
  Divisor group_tiles, band_tiles, band_outputs, last_outputs;  // tiles of a group and a band, and of outputs in them
  Divisor segments, image, width;
  Divisor taps;  // of an output channel; in channels_last, output channels
  // Unless y is channels_last, columns of the kernel; otherwise outputs of a row of it.
  Divisor by_rows;
  int32_t log_kernel_h, log_kernel_w;  // if whole_rows
};

static_assert(std::is_trivially_copyable_v<Params>);

struct Launch {
  Params params;
  TensorMapLayout x_map, w_map, y_map;  // of which the driver makes the maps; y_map if boxes
  CopyParams copy;                      // if params.copies_x
  bool boxes;                           // the copy engine writes y from what is staged
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const bool last = is_channels_last(p), copies_x = plan.workspace_bytes > 0;
  const Tiling t = make_tiling(config, p, copies_x);
  Params& q = launch.params;
  q = {};
  q.copies_x = copies_x;
  if (copies_x) launch.copy = make_copy(p, o.x, o.workspace);
  launch.x_map = last ? make_channels_last_x_map(p, o.x) : make_x_map(p, copies_x ? o.workspace : o.x, copies_x);
  launch.w_map = make_w_map(p, o.w);
  set_common(q, plan.cut[0], p, o, t);
  q.y_column_stride = p.y_strides[3], q.kernel_w = static_cast<int32_t>(p.kernel_w);
  q.vector = store_width(p, o.result);
  launch.boxes = has_boxes(config, last) && stores_boxes(p, copies_x);
  if (launch.boxes) launch.y_map = make_y_map(p, o.result), launch.boxes = launch.y_map.valid();
  q.y_policy = once_policy(plan.result_exceeds_l2);
  q.log_boxes = std::countr_zero(static_cast<uint32_t>(block_side / box_positions(p)));
  q.from_registers = q.vector == 8 && (last || p.kernel_w == 1 || p.kernel_w == 2 || p.kernel_w == 4);
  q.whole_rows = !q.from_registers && writes_whole_rows(p);
  if (q.whole_rows) {
    q.log_kernel_h = std::countr_zero(static_cast<uint64_t>(p.kernel_h));
    q.log_kernel_w = std::countr_zero(static_cast<uint64_t>(p.kernel_w));
  }
}

}  // namespace convt::gemm_scatter_sm90
