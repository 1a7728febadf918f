// What a kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../gemm_scatter/params.h"
#include "tiling.h"

namespace convt::gemm_scatter_tf32_sm90 {

struct Params {
  TensorMap x_map;
  const unsigned char* w;  // packed
  float* y;
  const float* bias;  // null if there is none
  int64_t y_batch_stride, y_channel_stride, y_row_stride, bias_stride;
  int32_t chunks, blocks, tiles;
  int32_t outputs, positions, rows;  // outputs of a position; positions of a row, and rows
  int32_t out_channels;              // of a group
  int32_t kernel_h, row_outputs;     // outputs of a position in a row of y
  int32_t vector;                    // elements of y that are written at once
  uint32_t last_band;
  Divisor group_tiles, band_tiles, band_outputs, last_outputs;  // tiles of a group and a band, and of outputs in them
  Divisor segments, image, width;
  // Outputs of a position: those of an output channel (in channels_last, of a column of the kernel), and those in a row
  // of y.
  Divisor taps, by_rows;
};

static_assert(std::is_trivially_copyable_v<Params>);

// What the kernel before it is given.
struct PrepareParams {
  const float* w;
  unsigned char* packed;
  int64_t w_input_stride, w_channel_stride, w_row_stride, w_column_stride;
  int32_t in_channels, outputs, unit;  // of a group; neighbouring outputs of a lane
  bool channels_last;
  int32_t packing;  // blocks, which come first
  Divisor chunks, blocks, taps, by_rows;
  CopyParams copy;
};

struct Launch {
  Params params;
  TensorMapLayout x_map;  // of which the driver makes the map
  int32_t neighbours;     // positions of a lane
  PrepareParams prepare;
  int64_t prepare_grid;
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const Tiling packed = make_tiling(config, p, false);
  const bool last = is_channels_last(p);
  const int64_t w_bytes = packed_bytes(p, packed);
  const bool copies_x = plan.workspace_bytes > w_bytes;
  const Tiling t = make_tiling(config, p, copies_x);
  auto* const workspace = static_cast<unsigned char*>(o.workspace);
  unsigned char* const copy = workspace + w_bytes;

  launch.x_map = last ? make_channels_last_x_map(p, o.x) : make_x_map(p, copies_x ? copy : o.x, copies_x);
  Params& q = launch.params;
  q = {};
  set_common(q, plan.cut[0], p, o, t);
  q.w = workspace;
  q.blocks = static_cast<int32_t>(t.blocks), q.row_outputs = static_cast<int32_t>(row_outputs(p));
  const int32_t unit = last ? 4 : unit_of(p.kernel_w), vector = store_width(p, o.result);
  launch.neighbours = vector == 4 ? 4 / unit : 1;
  q.vector = std::min(vector, unit * launch.neighbours);

  PrepareParams& r = launch.prepare;
  r = {};
  r.w = static_cast<const float*>(o.w), r.packed = workspace;
  r.w_input_stride = p.w_strides[0], r.w_channel_stride = p.w_strides[1];
  r.w_row_stride = p.w_strides[2], r.w_column_stride = p.w_strides[3];
  r.in_channels = static_cast<int32_t>(p.in_channels_per_group()), r.outputs = q.outputs;
  r.channels_last = last, r.unit = unit;
  r.chunks = Divisor(t.chunks), r.blocks = Divisor(t.blocks), r.taps = q.taps, r.by_rows = q.by_rows;
  const int64_t packing = p.groups * t.blocks * t.chunks;
  r.packing = static_cast<int32_t>(packing);
  launch.prepare_grid = packing;
  if (copies_x) {
    r.copy = make_copy(p, o.x, copy);
    launch.prepare_grid += copy_blocks(r.copy);
  }
}

}  // namespace convt::gemm_scatter_tf32_sm90
