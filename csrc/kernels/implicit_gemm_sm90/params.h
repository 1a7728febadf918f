// What the kernels of the family are given, by value.
#pragma once

#include "tiling.h"

namespace convt::implicit_gemm_sm90 {

struct Params : CommonParams {
  int32_t steps_at, pixels_at, patches_at, weights_at, sums_at;  // in shared memory, bytes
  int32_t patch_plane, patch_bytes;                              // of a plane and of a stage
  int32_t quads;                                                 // of the patch
  int32_t stages;                                                // of the patch
  int32_t tiles;                                                 // of the grid, splits included
  int32_t piece_columns, piece_rows;                             // positions of a piece
  Divisor by_pieces_columns, by_pieces_rows;
};

static_assert(std::is_trivially_copyable_v<Params>);
static_assert(sizeof(Params) <= 4096, "the parameters of a kernel");

struct Launch {
  Params params;
  PackParams pack;
  int64_t shared_bytes;
  uint32_t grid;
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const GemmTile& tile = plan.tile;
  Tables t;
  make_tables(config, p, tile.row_phases, tile.column_phases, t);
  const Patch patch = make_patch(p, t, tile);
  const SharedLayout shared = shared_layout(config, t, patch);
  const Counts n = make_counts(p, t, tile);
  const Pieces pieces = make_pieces(config, tile);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  make_common(tile, p, o, t, n, make_workspace(config, n, tile), patch.rows, patch.columns, 64, 16, q, launch.pack);
  q.steps_at = narrow(shared.steps), q.pixels_at = narrow(shared.pixels), q.patches_at = narrow(shared.patches);
  q.weights_at = narrow(shared.weights), q.sums_at = narrow(shared.sums);
  q.patch_plane = narrow(patch.plane_bytes), q.patch_bytes = narrow(patch.bytes);
  q.quads = patch.quads;
  q.stages = shared.patch_stages;
  q.tiles = narrow(n.blocks * tile.splits);
  q.piece_columns = pieces.piece_columns, q.piece_rows = pieces.piece_rows;
  q.by_pieces_columns = Divisor(pieces.columns), q.by_pieces_rows = Divisor(pieces.rows);
  launch.shared_bytes = shared.bytes;
  launch.grid = static_cast<uint32_t>(plan.grid);
}

}  // namespace convt::implicit_gemm_sm90
