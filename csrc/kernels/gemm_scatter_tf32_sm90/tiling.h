// How the product is cut into tiles, and what the workspace has.
#pragma once

#include "../gemm_scatter/tiling.h"
#include "config.h"

namespace convt::gemm_scatter_tf32_sm90 {

struct Tiling : gemm_scatter::Tiling {
  int64_t blocks = 0;  // of columns, of packed weights
};

inline Tiling make_tiling(const Config& c, const Problem& p, bool copies_x) {
  Tiling t{gemm_scatter::make_tiling(p, c.columns, c.rows, copies_x)};
  t.blocks = t.output_tiles * (c.columns / block_columns);
  return t;
}

// The workspace: packed weights as [group][block of columns][chunk], then, if it is there, the copy of x.
inline int64_t packed_bytes(const Problem& p, const Tiling& t) {
  return checked_mul(checked_mul(p.groups, t.blocks), checked_mul(t.chunks, block_bytes));
}

}  // namespace convt::gemm_scatter_tf32_sm90
