// How a problem is cut: taps of all phases, the patch of x that a tile reads, stages in shared memory. Host code, for
// the planner and the launches.
#pragma once

#include <algorithm>

#include "../implicit_gemm/merged_phases.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::implicit_gemm_nhwc_sm90 {

inline int64_t phases_of(const Problem& p) { return p.stride_h * p.stride_w; }
inline int64_t channels_of_tile(const Config& c, const Problem& p) {
  return std::min(c.columns / phases_of(p), p.out_channels_per_group());
}

struct Tables {
  int32_t rows = 0, columns = 0;  // of x that a phase reads from a position: taps are all of both
  int32_t row[most_taps], column[most_taps];
  uint8_t kernel_row[most_taps], kernel_column[most_taps];
  int32_t taps() const { return rows * columns; }
};

inline Refusal make_tables(const Problem& p, Tables& t) {
  t.rows = merge_phases(p.axis_h(), t.row, t.kernel_row);
  t.columns = merge_phases(p.axis_w(), t.column, t.kernel_column);
  if (t.rows < 0 || t.columns < 0 || t.taps() > most_taps) {
    return {"takes at most ", most_taps, " taps"};
  }
  if (t.rows == 0 || t.columns == 0) t.rows = t.columns = 0;
  return {};
}

struct Tiling {
  int32_t tile_rows = 0, tile_columns = 0;    // positions
  int32_t patch_rows = 0, patch_columns = 0;  // of x
  int32_t chunk_bytes = 0;                    // of a position
  int32_t patch_bytes = 0, patch_stages = 0, weight_bytes = 0, weight_stages = 0;
  bool resident = false;  // all weights stay in shared memory
  int64_t chunks = 0, channel_tiles = 0, row_tiles = 0, column_tiles = 0, tiles = 0;

  int32_t shared_bytes() const {
    return 1024 + patch_stages * patch_bytes + weight_stages * weight_bytes + barrier_bytes;
  }
};

// With blocks of so many rows, 8 or 1, so many blocks side by side, and so many blocks of threads of a multiprocessor.
// No stages: they have no room.
inline Tiling make_tiling(const Config& c, const Problem& p, const Tables& t, int32_t block_rows, int32_t side_by_side,
                          int32_t residents) {
  const int64_t element = element_size(p.dtype);
  Tiling n;
  n.tile_columns = block_positions / block_rows * side_by_side, n.tile_rows = block_rows * (c.blocks / side_by_side);
  const auto extent = [](const int32_t* at, int32_t count) { return count == 0 ? 0 : at[count - 1] - at[0]; };
  n.patch_rows = n.tile_rows + extent(t.row, t.rows), n.patch_columns = n.tile_columns + extent(t.column, t.columns);
  n.chunk_bytes = p.in_channels_per_group() * element <= most_chunk_bytes / 2 ? most_chunk_bytes / 2 : most_chunk_bytes;
  n.patch_bytes = ceil_div(n.patch_rows * n.patch_columns * n.chunk_bytes, 1024) * 1024;
  n.weight_bytes = std::max(1, t.rows) * tap_bytes(c, n.chunk_bytes);
  n.chunks = ceil_div<int64_t>(p.in_channels_per_group(), n.chunk_bytes / element);
  n.channel_tiles = ceil_div<int64_t>(p.out_channels_per_group(), channels_of_tile(c, p));
  n.row_tiles = ceil_div<int64_t>(ceil_div(p.out_h, p.stride_h), n.tile_rows);
  n.column_tiles = ceil_div<int64_t>(ceil_div(p.out_w, p.stride_w), n.tile_columns);
  n.tiles = checked_mul(checked_mul(n.row_tiles, n.column_tiles),
                        checked_mul(n.channel_tiles, checked_mul(p.groups, p.batch)));
  if (n.patch_columns > tensor_map_most_box || n.patch_rows > tensor_map_most_box) return n;
  const int64_t steps = n.chunks * t.columns;
  // 1 KB more, since patches begin at multiples of it.
  const int32_t room = shared_bytes_limit(residents) - barrier_bytes - 1024;
  for (int32_t stages = most_patch_stages; stages >= fewest_patch_stages && n.patch_stages == 0; --stages) {
    const int32_t weights = std::min(most_weight_stages, (room - stages * n.patch_bytes) / n.weight_bytes);
    if (weights < fewest_weight_stages) continue;
    n.resident = n.channel_tiles * p.groups == 1 && steps <= weights;
    if (!n.resident && stages > fewest_patch_stages && weights < 2 * fewest_weight_stages) continue;
    n.patch_stages = stages;
    n.weight_stages = n.resident ? static_cast<int32_t>(std::max<int64_t>(1, steps)) : weights;
  }
  return n;
}

// The workspace: packed weights as [group][tile of channels][chunk][tap], then, if it is there, the copy of x, where a
// group of a position begins at a multiple of 16 bytes.
inline int64_t packed_bytes(const Config& c, const Problem& p, const Tables& t, const Tiling& n) {
  return checked_mul(checked_mul(p.groups, n.channel_tiles),
                     checked_mul(n.chunks, checked_mul(t.taps(), tap_bytes(c, n.chunk_bytes))));
}
inline int64_t copied_group(const Problem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  return ceil_div<int64_t>(p.in_channels_per_group(), unit) * unit;
}
inline int64_t copied_bytes(const Problem& p) {
  return checked_mul(checked_mul(p.batch, checked_mul(p.in_h, p.in_w)),
                     checked_mul(p.groups, copied_group(p)) * element_size(p.dtype));
}

// Positions all as far from each other, or negative.
inline int64_t position_stride(const Problem& p) {
  if (p.in_h > 1 && p.in_w > 1 && p.x_strides[2] != p.in_w * p.x_strides[3]) return -1;
  return p.in_w > 1 ? p.x_strides[3] : p.x_strides[2];
}
inline bool may_copy_x(const Problem& p) {
  return copied_bytes(p) < int64_t{1} << 30 && (p.groups == 1 || position_stride(p) >= 0);
}

// x as [image][row][column][group][channel], or its copy.
inline TensorMapLayout make_x_map(const Problem& p, const Tiling& n, const void* x, bool copies_x) {
  const int64_t bytes = element_size(p.dtype), channels = p.in_channels_per_group();
  const int64_t group = copies_x ? copied_group(p) : channels, column = copies_x ? p.groups * group : p.x_strides[3],
                row = copies_x ? p.in_w * column : p.x_strides[2],
                image = copies_x ? checked_mul(p.in_h, row) : p.x_strides[0];
  const auto stride = [&](int64_t size, int64_t elements) { return size > 1 ? checked_mul(elements, bytes) : 16; };
  TensorMapLayout map{x,
                      static_cast<int32_t>(bytes),
                      {channels, p.groups, p.in_w, p.in_h, p.batch},
                      {stride(p.groups, group), stride(p.in_w, column), stride(p.in_h, row), stride(p.batch, image)},
                      {static_cast<int32_t>(n.chunk_bytes / bytes), 1, n.patch_columns, n.patch_rows, 1}};
  map.swizzle_bytes = n.chunk_bytes, map.rounds_to_tf32 = bytes == 4;
  return map;
}

}  // namespace convt::implicit_gemm_nhwc_sm90
