// The geometry of a tile. Host code, for the planner and the launch.
#pragma once

#include "../implicit_gemm/params.h"
#include "config.h"

namespace convt::implicit_gemm_sm90 {

inline std::string make_tables(const Config& config, const Problem& p, int32_t row_phases, int32_t column_phases,
                               Tables& t) {
  return make_tables(config.rows(), 64, p, row_phases, column_phases, t);
}

inline int64_t channel_groups_of(const Problem& p) {
  return ceil_div<int64_t>(p.in_channels_per_group(), channels_of_fragment(mode_of(p)));
}

// The part of the input that is in shared memory at a time: for each group of channels two planes of 16 bytes a pixel.
struct Patch {
  int32_t rows, columns, pixels, quads;
  int64_t plane_bytes, bytes;  // of a stage
};

inline Patch make_patch(const Problem& p, const Tables& t, const GemmTile& tile) {
  const bool quads = rows_in_quads(p);
  Patch patch{};
  for (int32_t i = 0; i < t.sets; ++i) {
    const PhaseSet& set = t.set[i];
    patch.rows = std::max(patch.rows, tile.rows + set.highest_row - set.lowest_row);
    patch.columns = std::max(patch.columns, tile.columns + set.highest_column - first_column(set, quads));
  }
  if (quads) patch.columns = ceil_div(patch.columns, quad) * quad;
  patch.pixels = tile.images * patch.rows * patch.columns;
  // An odd number, so that two planes of four pixels are 128 bytes in different banks.
  patch.quads = ceil_div(patch.pixels, quad) | 1;
  patch.plane_bytes = int64_t{16} * quad * patch.quads;
  patch.bytes = ceil_div<int64_t>(2 * patch.plane_bytes * tile.channel_groups, region_bytes) * region_bytes;
  return patch;
}

// Shared memory, in bytes from its start: barriers and steps; where in an image each pixel of the patch is; stages of
// the patch; stages of weights; what a warp stages of its sums.
struct SharedLayout {
  int64_t steps, pixels, patches, weights, sums, bytes;
  int32_t patch_stages;
};

inline SharedLayout shared_layout(const Config& config, const Tables& t, const Patch& patch) {
  int32_t steps = 0;
  for (int32_t i = 0; i < t.sets; ++i) steps = std::max(steps, t.set[i].steps);
  const auto aligned = [](int64_t bytes) { return ceil_div<int64_t>(bytes, 128) * 128; };
  SharedLayout s{};
  s.steps = words_at + 4 * shared_words;
  s.steps = ceil_div<int64_t>(s.steps, 16) * 16;
  s.pixels = aligned(s.steps);
  s.patches = aligned(s.pixels + int64_t{4} * quad * patch.quads);
  for (s.patch_stages = patch_stages;; --s.patch_stages) {
    s.weights = aligned(s.patches + s.patch_stages * patch.bytes);
    s.sums = s.weights + weight_stages * weight_stage_bytes;
    s.bytes = s.sums + int64_t{4} * slab_pitch * 16 * config.m_blocks * (consumers / 32);
    if (s.bytes <= shared_bytes_limit || s.patch_stages == fewest_patch_stages) break;
  }
  return s;
}

inline Counts make_counts(const Problem& p, const Tables& t, const GemmTile& tile) {
  return make_counts(p, t, tile, 64, channels_of_fragment(mode_of(p)));
}

inline Workspace make_workspace(const Config& c, const Counts& n, const GemmTile& tile) {
  return make_workspace(n, tile, int64_t{64} * c.rows() * c.columns(), fragment_bytes);
}

// The pieces of a tile, columns first: their arrangement, for wgmma's operands.
struct Pieces {
  int32_t columns, rows, images;      // pieces
  int32_t piece_columns, piece_rows;  // positions of one
};

inline Pieces make_pieces(const Config& c, const GemmTile& tile) {
  Pieces q{};
  q.piece_rows = tile.piece_rows, q.piece_columns = c.width / tile.piece_rows;
  q.columns = tile.columns / q.piece_columns, q.rows = tile.rows / q.piece_rows;
  return q;
}

}  // namespace convt::implicit_gemm_sm90
