// How the product is cut into tiles, and how y is written.
#pragma once

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

}  // namespace convt::gemm_scatter_sm90
