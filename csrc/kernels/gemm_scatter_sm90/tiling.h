// How the product is cut into tiles, and how y is written.
#pragma once

#include <numeric>

#include "../gemm_scatter/tiling.h"
#include "config.h"

namespace convt::gemm_scatter_sm90 {

// Tiles have as many outputs of a position as rows, and positions as columns; in channels_last the other way round.
inline Tiling make_tiling(const Config& c, const Problem& p, bool copies_x) {
  return is_channels_last(p) ? gemm_scatter::make_tiling(p, c.columns, c.rows, copies_x)
                             : gemm_scatter::make_tiling(p, c.rows, c.columns, copies_x);
}

// Whether a warp writes vectors of all rows of the kernel at once: of narrow rows, whose ends are in the same sectors
// of memory as their neighbours'. Numbers of rows and columns are powers of two then.
inline bool writes_whole_rows(const Problem& p) {
  const int64_t bytes = 2 * p.out_w;
  return !is_channels_last(p) && p.kernel_h > 1 && bytes % 32 != 0 && bytes <= most_narrow_bytes &&
         block_side % (p.kernel_h * p.kernel_w) == 0;
}

// Columns of y's positions that are in a box of channels_last which the copy engine writes: all segments begin at
// multiples of them. Of whole rows there are several.
inline int64_t box_columns(const Problem& p) {
  return p.in_h == 1 ? block_side : std::gcd<int64_t>(p.in_w, block_side);
}
inline int64_t box_rows(const Problem& p) { return box_columns(p) == p.in_w ? block_side / p.in_w : 1; }
inline int64_t box_positions(const Problem& p) {
  return is_channels_last(p) && p.in_h > 1 ? box_columns(p) * box_rows(p) : block_side;
}

// Whether the copy engine may write y from what is staged, in boxes of 64 outputs of some positions in channels_last,
// or of 64 positions of as many channels where a kernel has one tap.
inline bool stores_boxes(const Problem& p, bool copies_x) {
  if (is_channels_last(p)) {
    return (p.kernel_h == 1 || row_outputs(p) % block_side == 0) && block_side >> most_log_boxes <= box_positions(p);
  }
  return p.kernel_h * p.kernel_w == 1 && (p.out_h == 1 || p.y_strides[2] == p.out_w) && (!copies_x || p.batch == 1);
}

// [image][group][channel][position], or [image][row][row of the kernel][column][output of a row of the kernel].
inline TensorMapLayout make_y_map(const Problem& p, const void* y) {
  const auto [batch, channel, row, column] = p.y_strides;
  if (!is_channels_last(p)) {
    const int64_t channels = p.out_channels_per_group();
    return make_map(p, y, {p.in_h * p.in_w, channels, p.groups, p.batch},
                    {channel, checked_mul(channels, channel), batch});
  }
  return {y,
          static_cast<int32_t>(element_size(p.dtype)),
          {row_outputs(p), p.in_w, p.kernel_h, p.in_h, p.batch},
          {map_stride(p, p.in_w, checked_mul(p.kernel_w, column)), map_stride(p, p.kernel_h, row),
           map_stride(p, p.in_h, checked_mul(p.kernel_h, row)), map_stride(p, p.batch, batch)},
          {block_side, static_cast<int32_t>(box_columns(p)), 1, static_cast<int32_t>(box_rows(p)), 1}};
}

}  // namespace convt::gemm_scatter_sm90
