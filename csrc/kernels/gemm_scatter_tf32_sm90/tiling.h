// How the product is cut into tiles, and what the copy engine is told of x.
#pragma once

#include "../../plan/problem.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::gemm_scatter_tf32_sm90 {

inline bool is_channels_last(const Problem& p) { return p.y_strides[1] == 1 && p.y_strides[3] != 1; }

inline int64_t outputs_of_position(const Problem& p) {  // in a group
  return checked_mul(p.out_channels_per_group(), checked_mul(p.kernel_h, p.kernel_w));
}

// Those of them that are in one row of y, side by side: of a channel, or of all in channels_last.
inline int64_t row_outputs(const Problem& p) {
  return is_channels_last(p) ? checked_mul(p.kernel_w, p.out_channels) : p.kernel_w;
}

// Positions of an image, or of all if x is copied first, are a row, which is counted by segments.
struct Tiling {
  int64_t rows = 0, positions = 0, segments = 0;  // of them
  int64_t output_tiles = 0, segment_tiles = 0;
  int64_t chunks = 0;  // of input channels
  int64_t blocks = 0;  // of columns, of packed weights
  int64_t tiles = 0;
};

inline Tiling make_tiling(const Config& c, const Problem& p, bool copies_x) {
  const int64_t positions = checked_mul(p.in_h, p.in_w);
  Tiling t;
  t.rows = copies_x ? 1 : p.batch;
  t.positions = copies_x ? checked_mul(p.batch, positions) : positions;
  t.segments = ceil_div<int64_t>(t.positions, segment_rows);
  t.output_tiles = ceil_div<int64_t>(outputs_of_position(p), c.columns);
  t.segment_tiles = ceil_div<int64_t>(checked_mul(t.rows, t.segments), c.rows / segment_rows);
  t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), chunk);
  t.blocks = t.output_tiles * (c.columns / block_columns);
  t.tiles = checked_mul(checked_mul(t.output_tiles, t.segment_tiles), p.groups);
  return t;
}

// The workspace: packed weights as [group][block of columns][chunk], then, if it is there, the copy of x.
inline int64_t packed_bytes(const Problem& p, const Tiling& t) {
  return checked_mul(checked_mul(p.groups, t.blocks), checked_mul(t.chunks, block_bytes));
}
// Elements from a channel to the next where x is copied: [channel][image][position], rows that begin at multiples of 16
// bytes.
inline int64_t copied_row(const Problem& p) {
  return ceil_div<int64_t>(checked_mul(p.batch, checked_mul(p.in_h, p.in_w)), 4) * 4;
}
inline int64_t copied_bytes(const Problem& p) { return checked_mul(4 * p.in_channels, copied_row(p)); }

// Bytes. Dimensions of one element have any stride.
inline int64_t map_stride(int64_t size, int64_t elements) { return size > 1 ? checked_mul(elements, 4) : 16; }

// x as [image][group][channel][position], or its copy.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, bool copies_x) {
  const int64_t channels = p.in_channels_per_group(), rows = copies_x ? 1 : p.batch,
                channel = copies_x ? copied_row(p) : p.x_strides[1];
  TensorMapLayout map{x,
                      4,
                      {p.in_h * p.in_w * (p.batch / rows), channels, p.groups, rows, 1},
                      {map_stride(channels, channel), map_stride(p.groups, checked_mul(channels, channel)),
                       map_stride(rows, p.x_strides[0]), 16},
                      {segment_rows, chunk, 1, 1, 1}};
  map.rounds_to_tf32 = true;
  return map;
}

// In channels_last: [image][position][channel].
inline TensorMapLayout make_channels_last_x_map(const Problem& p, const void* x) {
  const int64_t positions = p.in_h * p.in_w, position = p.in_w > 1 ? p.x_strides[3] : p.x_strides[2];
  TensorMapLayout map{x,
                      4,
                      {p.in_channels, positions, p.batch, 1, 1},
                      {map_stride(positions, position), map_stride(p.batch, p.x_strides[0]), 16, 16},
                      {chunk, segment_rows, 1, 1, 1}};
  map.rounds_to_tf32 = true;
  return map;
}

// Elements of y that are written at once, of those that follow each other.
inline int32_t vector_of(const Problem& p, const void* y) {
  const bool last = is_channels_last(p);
  const int64_t row = last ? row_outputs(p) : p.out_w;
  int32_t vector = 4;
  const auto fits = [&](int64_t elements) { return elements % vector == 0; };
  while (vector > 1 &&
         !(reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(4 * vector) == 0 && fits(row) &&
           (p.batch == 1 || fits(p.y_strides[0])) && (last || p.out_channels == 1 || fits(p.y_strides[1])) &&
           (p.out_h == 1 || fits(p.y_strides[2])))) {
    vector /= 2;
  }
  return vector;
}

}  // namespace convt::gemm_scatter_tf32_sm90
