// Configurations that cut the matrix product into tiles: any depth, staged piece by piece. M are the positions of all
// images, N the row phases and, of each, output channels times column phases; neighbours in memory are innermost,
// padded to 4. Row phases are outermost, so that most tiles meet few of them and leave out the taps that none of theirs
// has; if all have the same, output channels are, whose phases' weights lie together in memory.
#pragma once

#include "../../plan/plan.h"
#include "config.h"

namespace convt::large_stride {

// How a problem is cut into tiles.
struct TileTiling : Positions {
  bool channels_innermost = false;  // whether columns run along output channels, or along the phases of a row
  bool channels_outermost = false;
  int64_t inner = 0;                     // of those, padded
  int64_t row_columns = 0, columns = 0;  // of a row phase, and all
  int64_t words = 0, chunks = 0;         // of the channels of a tap
  int64_t positions = 0;                 // of all images
  int64_t position_tiles = 0, column_tiles = 0;
  int64_t tiles = 0;  // of all groups

  int64_t counter_bytes() const { return ceil_div<int64_t>(4 * tiles, 512) * 512; }
  int64_t workspace_bytes(const Config& c, int32_t splits) const {
    if (splits == 1) return 0;
    return checked_add(counter_bytes(), checked_mul(tiles * splits, int64_t{4} * c.tile_positions * c.tile_columns));
  }
};

// A row of staged words: 8 modulo 32, so that a warp reads 4 rows of 8 words without conflicts.
constexpr int32_t pitch(int32_t columns) { return columns + 8; }
// Of weights: pairs of words of a column. A quarter of a warp reads 4 rows of 2 columns' pairs without conflicts.
constexpr int32_t weight_pitch(int32_t columns) { return 2 * columns + 8; }

constexpr int64_t tile_shared_bytes(const Config& c) {
  return 16 * c.tile_positions + 2 * 4 * c.chunk_words * pitch(c.tile_positions) +
         4 * c.chunk_words * weight_pitch(c.tile_columns) + 16;
}

inline TileTiling choose_tiles(const Problem& p, const Config& c) {
  TileTiling t{Positions(p)};
  const int64_t channels = p.out_channels_per_group();
  const int64_t phases = ceil_div<int64_t>(p.stride_w, 4) * 4, padded_channels = ceil_div<int64_t>(channels, 4) * 4;
  // Without rows of phases worth the name, channels fill the columns better.
  t.channels_innermost = (p.y_strides[1] == 1 && channels > 1) ||
                         checked_mul(phases, channels) > checked_mul(2 * p.stride_w, padded_channels);
  // Strict float32 does without: it has no register to spare.
  const bool strict = p.strict_float32();
  t.channels_outermost = !strict && !t.channels_innermost && p.kernel_h % p.stride_h == 0;
  t.inner = t.channels_innermost ? padded_channels : phases;
  t.row_columns = checked_mul(t.inner, t.channels_innermost ? p.stride_w : channels);
  t.columns = checked_mul(p.stride_h, t.row_columns);
  t.words = ceil_div<int64_t>(p.in_channels_per_group(), element_size(p.dtype) == 2 ? 2 : 1);
  t.chunks = ceil_div<int64_t>(t.words, c.chunk_words);
  t.positions = checked_mul(checked_mul(p.batch, t.q_h), t.q_w);
  t.position_tiles = ceil_div<int64_t>(t.positions, c.tile_positions);
  t.column_tiles = ceil_div<int64_t>(t.columns, c.tile_columns);
  t.tiles = checked_mul(checked_mul(t.position_tiles, t.column_tiles), p.groups);
  return t;
}

}  // namespace convt::large_stride
