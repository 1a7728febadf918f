// What the kernels of the family are given, by value. Strides in elements.
#pragma once

#include <bit>
#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../implicit_gemm/prepare.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::implicit_gemm_nchw_sm90 {

struct DeviceSet {
  int16_t row_phase, column_phase, first_step, steps, first_phase_steps, first_tap, taps;
  int32_t row, column;  // of the patch, from the tile's first position
};

// A step in a word: where its inputs are in a patch, bytes; its taps, but one; whether its first column of x is an odd
// one of the patch.
CONVT_HOST_DEVICE constexpr uint32_t pack_step(uint32_t offset, int32_t taps, bool odd) {
  return offset | static_cast<uint32_t>(taps - 1) << 20 | static_cast<uint32_t>(odd) << 22;
}
CONVT_HOST_DEVICE constexpr uint32_t offset_of(uint32_t step) { return step & 0xfffff; }
CONVT_HOST_DEVICE constexpr uint32_t taps_of(uint32_t step) { return (step >> 20 & 3) + 1; }
CONVT_HOST_DEVICE constexpr bool is_odd(uint32_t step) { return (step >> 22 & 1) != 0; }

struct Params {
  TensorMap x_map;
  const unsigned char* packed;
  // An output by its definition (implicit_gemm/device.cuh).
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, bias_stride;
  int64_t w_strides[4];
  int32_t x_row_stride, x_column_stride, y_row_stride, y_column_stride;
  int32_t batch, in_channels, out_channels;  // channels of a group
  Axis<int32_t> h, v;
  Divisor by_bias_period;

  bool copies_x;  // the kernel before does
  int32_t tiles, chunks, taps;
  int32_t halves;  // of a chunk
  int32_t tile_rows, tile_columns, log_strips;
  int32_t row_bytes, channel_bytes;  // of a patch
  int32_t patch_bytes, patch_stages, weight_bytes, weight_stages;
  int32_t staged_bytes;                 // of a buffer of outputs; 0: they are written from registers
  int32_t vector;                       // outputs side by side that are written at once
  Divisor by_phases, by_column_phases;  // that the columns of a product are of
  Divisor by_channels, by_columns, by_rows, by_sets, by_groups;
  DeviceSet sets[most_sets];
  uint32_t steps[most_taps];
};

static_assert(std::is_trivially_copyable_v<Params>);
static_assert(sizeof(Params) <= 4096, "the parameters of a kernel");

struct Launch {
  Params params;
  TensorMapLayout x_map;  // of which the driver makes the map
  PrepareParams prepare;
  int64_t prepare_grid;
};

// Outputs of a channel that a lane has side by side: of two positions, if the tile has all phases, and all phases of
// its own. Of phases that are merged it has two that follow each other.
inline int32_t outputs_side_by_side(const Config& c, const Problem& p) {
  if (c.subpixel) return p.stride_w == 2 ? 4 : p.stride_w == 1 || p.stride_w % 2 == 0 ? 2 : 1;
  return c.phases == p.stride_w ? 2 * c.phases : 1;
}

// Outputs side by side that are written at once, as far as y's rows begin at multiples of them: those of a lane, or 16
// bytes of a row in shared memory.
inline int32_t vector_of(const Config& c, const Problem& p, const void* y, bool staged) {
  const auto bytes = static_cast<int32_t>(element_size(p.dtype));
  const int32_t most = outputs_side_by_side(c, p);
  return most == 1 ? 1 : access_width(y, bytes, p.y_sizes(), p.y_strides, 3, p.out_w, staged ? 16 / bytes : most);
}

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  Tables t;
  make_tables(config, p, t);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  const int32_t strips = plan.tile.columns / strip_columns;
  const Tiling n = make_tiling(config, p, t, strips, plan.tile.rows_staged);
  const int64_t w_bytes = packed_bytes(config, p, t, n), element = element_size(p.dtype);
  const bool copies_x = plan.workspace_bytes > w_bytes;
  auto* const workspace = static_cast<unsigned char*>(o.workspace);
  unsigned char* const copy = workspace + w_bytes;
  launch.x_map = make_x_map(p, n, copies_x ? copy : o.x, copies_x);

  Params& q = launch.params;
  q = {};
  set_common(q, p, o);
  q.copies_x = copies_x;
  q.tiles = narrow(n.tiles), q.chunks = narrow(n.chunks), q.taps = t.taps;
  q.halves = n.halves, q.tile_rows = n.tile_rows, q.tile_columns = n.tile_columns;
  q.log_strips = std::countr_zero(static_cast<uint32_t>(strips));
  q.row_bytes = n.patch_columns * narrow(element), q.channel_bytes = n.patch_rows * q.row_bytes;
  q.patch_bytes = n.patch_bytes, q.patch_stages = n.patch_stages;
  q.weight_bytes = n.weight_bytes, q.weight_stages = n.weight_stages;
  q.staged_bytes = n.staged_bytes, q.vector = vector_of(config, p, o.result, plan.tile.rows_staged);
  q.by_channels = Divisor(n.channel_tiles), q.by_columns = Divisor(n.column_tiles), q.by_rows = Divisor(n.row_tiles);
  q.by_sets = Divisor(t.sets);
  q.by_phases = Divisor(merged_phases(config, p)), q.by_column_phases = Divisor(merged_columns(config, p));
  for (int32_t i = 0; i < t.sets; ++i) {
    const Set& set = t.set[i];
    const auto small = [](int32_t v) { return static_cast<int16_t>(v); };
    q.sets[i] = {small(set.row_phase),
                 small(set.column_phase),
                 small(set.first_step),
                 small(set.steps),
                 small(set.first_phase_steps),
                 small(set.first_tap),
                 small(set.taps),
                 set.row,
                 set.column};
    for (int32_t s = set.first_step; s < set.first_step + set.steps; ++s) {
      const Step& step = t.step[s];
      const int32_t column = step.column - set.column;
      const int32_t offset = (step.row - set.row) * q.row_bytes + column / 2 * 2 * narrow(element);
      q.steps[s] = pack_step(static_cast<uint32_t>(offset), step.taps, column % 2 != 0);
    }
  }

  PrepareParams& r = launch.prepare;
  r = make_prepare(p, o,
                   {config.channels, n.channel_tiles, channels_of_tile(config, p), merged_rows(config, p),
                    merged_columns(config, p), true, n.chunks, n.halves * k_bytes / 16},
                   t.taps, t.kernel_row, t.kernel_column);
  std::copy(t.tap_row, t.tap_row + t.taps, r.tap_row), std::copy(t.tap_column, t.tap_column + t.taps, r.tap_column);
  launch.prepare_grid = r.packing;
  if (copies_x) {
    const int64_t row = copied_row(p), channel = p.in_h * row;
    r.copy = make_copy(p, o.x, copy, {p.batch, p.x_strides[0], p.in_channels * channel},
                       {p.in_channels, p.x_strides[1], channel}, {p.in_h, p.x_strides[2], row}, p.in_w, p.x_strides[3]);
    launch.prepare_grid += copy_blocks(r.copy);
  }
}

}  // namespace convt::implicit_gemm_nchw_sm90
