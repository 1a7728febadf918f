// How the product of a kernel as large as its stride is cut into tiles, and how its tensors are in memory.
#pragma once

#include "maps.h"

namespace convt::gemm_scatter {

inline bool is_channels_last(const Problem& p) { return p.y_strides[1] == 1 && p.y_strides[3] != 1; }

// Outputs of a position that are in one row of y, side by side: of a channel, or of all in channels_last.
inline int64_t row_outputs(const Problem& p) {
  return is_channels_last(p) ? checked_mul(p.kernel_w, p.out_channels) : p.kernel_w;
}

// Positions of an image, or of all if x is copied first, are a row, which is counted by segments of as many as a box
// has.
struct Tiling {
  int64_t rows = 0, positions = 0, segments = 0;  // of them
  int64_t output_tiles = 0, segment_tiles = 0;
  int64_t chunks = 0;  // of as many input channels as a box has
  int64_t tiles = 0;
};

// `outputs`, of a position, and `positions`: of a tile.
inline Tiling make_tiling(const Problem& p, int32_t outputs, int32_t positions, bool copies_x) {
  const int64_t of_image = checked_mul(p.in_h, p.in_w);
  const int32_t side = box_side(p);
  Tiling t;
  t.rows = copies_x ? 1 : p.batch;
  t.positions = copies_x ? checked_mul(p.batch, of_image) : of_image;
  t.segments = ceil_div<int64_t>(t.positions, side);
  t.output_tiles = ceil_div<int64_t>(outputs_of_position(p), outputs);
  t.segment_tiles = ceil_div<int64_t>(checked_mul(t.rows, t.segments), positions / side);
  t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), side);
  t.tiles = checked_mul(checked_mul(t.output_tiles, t.segment_tiles), p.groups);
  return t;
}

// Elements from a channel to the next where x is copied: [channel][image][position], rows that begin at multiples of 16
// bytes.
inline int64_t copied_row(const Problem& p) {
  const int64_t vector = vector_of(p);
  return ceil_div<int64_t>(checked_mul(p.batch, checked_mul(p.in_h, p.in_w)), vector) * vector;
}
inline int64_t copied_bytes(const Problem& p) {
  return checked_mul(element_size(p.dtype) * p.in_channels, copied_row(p));
}

// x, or its copy.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, bool copies_x) {
  const int64_t positions = p.in_h * p.in_w;
  return copies_x ? make_x_map(p, x, 1, p.batch * positions, copied_row(p))
                  : make_x_map(p, x, p.batch, positions, p.x_strides[1]);
}

// In channels_last: [image][position][channel].
inline TensorMapLayout make_channels_last_x_map(const Problem& p, const void* x) {
  return make_map(p, x, {p.in_channels, p.in_h * p.in_w, p.batch, 1}, {position_stride(p), p.x_strides[0], 0});
}

// Elements of y that are written at once: of those of a row that one position has in channels_last, otherwise of those
// that positions side by side have. The planner, which has no pointers, passes null.
inline int32_t store_width(const Problem& p, const void* y) {
  const bool last = is_channels_last(p);
  const int64_t row = last ? row_outputs(p) : p.out_w;
  auto width = static_cast<int32_t>(vector_of(p));
  const auto fits = [&](int64_t elements) { return elements % width == 0; };
  while (width > 1 &&
         !(reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(width * element_size(p.dtype)) == 0 && fits(row) &&
           (p.batch == 1 || fits(p.y_strides[0])) && (last || p.out_channels == 1 || fits(p.y_strides[1])) &&
           (p.out_h == 1 || fits(p.y_strides[2])))) {
    width /= 2;
  }
  return width;
}

}  // namespace convt::gemm_scatter
