// How the product is cut into tiles, and what the copy engine is told of its operands.
#pragma once

#include "../../plan/problem.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::gemm_scatter_sm90 {

inline bool is_channels_last(const Problem& p) { return p.y_strides[1] == 1 && p.y_strides[3] != 1; }

inline int64_t outputs_of_position(const Problem& p) {  // in a group
  return checked_mul(p.out_channels_per_group(), checked_mul(p.kernel_h, p.kernel_w));
}

// Positions of an image, or of all if x is copied first, are a row, which is counted by segments of 64. Tiles have as
// many outputs of a position as rows, and segments for the columns; in channels_last the other way round.
struct Tiling {
  int64_t rows = 0, positions = 0, segments = 0;  // of them
  int64_t output_tiles = 0, segment_tiles = 0;
  int64_t chunks = 0;  // of 64 input channels
  int64_t tiles = 0;
};

inline Tiling make_tiling(const Config& c, const Problem& p, bool aligns_x) {
  const bool last = is_channels_last(p);
  const int64_t positions = checked_mul(p.in_h, p.in_w);
  Tiling t;
  t.rows = aligns_x ? 1 : p.batch;
  t.positions = aligns_x ? checked_mul(p.batch, positions) : positions;
  t.segments = ceil_div<int64_t>(t.positions, block_side);
  t.output_tiles = ceil_div<int64_t>(outputs_of_position(p), last ? c.columns : c.rows);
  t.segment_tiles = ceil_div<int64_t>(checked_mul(t.rows, t.segments), (last ? c.rows : c.columns) / block_side);
  t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), block_side);
  t.tiles = checked_mul(checked_mul(t.output_tiles, t.segment_tiles), p.groups);
  return t;
}

// Elements from a channel to the next where x is copied: [channel][image][position], rows that begin at multiples of 16
// bytes.
inline int64_t aligned_row(const Problem& p) {
  return ceil_div<int64_t>(checked_mul(p.batch, checked_mul(p.in_h, p.in_w)), 8) * 8;
}
inline int64_t aligned_bytes(const Problem& p) { return checked_mul(2 * p.in_channels, aligned_row(p)); }

// Dimensions of one element have any stride.
inline int64_t map_stride(int64_t size, int64_t elements) { return size > 1 ? checked_mul(elements, 2) : 16; }

// x as [image][group][channel][position], or its copy.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, bool aligns_x) {
  const int64_t channels = p.in_channels_per_group(), rows = aligns_x ? 1 : p.batch,
                channel = aligns_x ? aligned_row(p) : p.x_strides[1];
  return {x,
          2,
          {p.in_h * p.in_w * (p.batch / rows), channels, p.groups, rows, 1},
          {map_stride(channels, channel), map_stride(p.groups, checked_mul(channels, channel)),
           map_stride(rows, p.x_strides[0]), 16},
          {block_side, block_side, 1, 1, 1}};
}

// In channels_last: [image][position][channel].
inline TensorMapLayout make_channels_last_x_map(const Problem& p, const void* x) {
  const int64_t positions = p.in_h * p.in_w, position = p.in_w > 1 ? p.x_strides[3] : p.x_strides[2];
  return {x,
          2,
          {p.in_channels, positions, p.batch, 1, 1},
          {map_stride(positions, position), map_stride(p.batch, p.x_strides[0]), 16, 16},
          {block_side, block_side, 1, 1, 1}};
}

// [group][channel][output of a position].
inline TensorMapLayout make_w_map(const Problem& p, const void* w) {
  const int64_t channels = p.in_channels_per_group();
  return {w,
          2,
          {outputs_of_position(p), channels, p.groups, 1, 1},
          {map_stride(channels, p.w_strides[0]), map_stride(p.groups, checked_mul(channels, p.w_strides[0])), 16, 16},
          {block_side, block_side, 1, 1, 1}};
}

// Elements of y that are written at once: of those of a row that one position has in channels_last, otherwise of those
// that positions side by side have.
inline int32_t vector_of(const Problem& p, const void* y) {
  const bool last = is_channels_last(p);
  const int64_t row = last ? checked_mul(p.kernel_w, p.out_channels) : p.out_w;
  int32_t vector = 8;
  const auto fits = [&](int64_t elements) { return elements % vector == 0; };
  while (vector > 1 &&
         !(reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(2 * vector) == 0 && fits(row) &&
           (p.batch == 1 || fits(p.y_strides[0])) && (last || p.out_channels == 1 || fits(p.y_strides[1])) &&
           (p.out_h == 1 || fits(p.y_strides[2])))) {
    vector /= 2;
  }
  return vector;
}

// Whether vectors of all rows of the kernel are written in the order in which they are in y: narrow rows, whose ends
// are in the same sectors of memory as their neighbours'.
inline bool writes_whole_rows(const Problem& p) {
  const int64_t bytes = 2 * p.out_w;
  return !is_channels_last(p) && p.kernel_h > 1 && p.y_strides[2] == p.out_w && bytes % 32 != 0 &&
         bytes <= most_narrow_bytes && block_side % (p.kernel_h * p.kernel_w) == 0;
}

}  // namespace convt::gemm_scatter_sm90
