// How the product is cut into tiles, and what the copy engine is told of its operands.
#pragma once

#include <numeric>

#include "../../plan/problem.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::gemm_scatter_sm90 {

inline bool is_channels_last(const Problem& p) { return p.y_strides[1] == 1 && p.y_strides[3] != 1; }

inline int64_t outputs_of_position(const Problem& p) {  // in a group
  return checked_mul(p.out_channels_per_group(), checked_mul(p.kernel_h, p.kernel_w));
}

// Positions are counted by segments of 64 of an image. Tiles have as many outputs of a position as rows, and segments
// for the columns; in channels_last the other way round.
struct Tiling {
  int64_t positions = 0;  // of an image
  int64_t segments = 0;   // of an image
  int64_t output_tiles = 0, segment_tiles = 0;
  int64_t chunks = 0;  // of 64 input channels
  int64_t tiles = 0;
};

inline Tiling make_tiling(const Config& c, const Problem& p) {
  const bool last = is_channels_last(p);
  Tiling t;
  t.positions = checked_mul(p.in_h, p.in_w);
  t.segments = ceil_div<int64_t>(t.positions, block_side);
  t.output_tiles = ceil_div<int64_t>(outputs_of_position(p), last ? c.columns : c.rows);
  t.segment_tiles = ceil_div<int64_t>(checked_mul(p.batch, t.segments), (last ? c.rows : c.columns) / block_side);
  t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), block_side);
  t.tiles = checked_mul(checked_mul(t.output_tiles, t.segment_tiles), p.groups);
  return t;
}

// Rows of x that are a channel of an image begin at a multiple of 16 bytes only if their length is one. But those of
// every so many channels, the residues, are so many bytes apart, and the copy engine takes a box that begins anywhere
// in its row: there is a map for each residue, whose rows begin at the multiple of 16 bytes before them.
inline int32_t residues_of(const Problem& p) {
  if (is_channels_last(p) || p.in_channels_per_group() == 1) return 1;
  return static_cast<int32_t>(8 / std::gcd<int64_t>(8, p.x_strides[1]));
}

// Dimensions of one element have any stride.
inline int64_t map_stride(int64_t size, int64_t elements) { return size > 1 ? checked_mul(elements, 2) : 16; }

// Channels of `residue`: [image][group][channel][position]; `first` is where its rows begin in those of the map.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, int32_t residue, int32_t& first) {
  const int64_t residues = residues_of(p), channels = ceil_div(p.in_channels_per_group(), residues);
  const uintptr_t address = reinterpret_cast<uintptr_t>(x) + static_cast<uintptr_t>(2 * residue * p.x_strides[1]);
  first = static_cast<int32_t>(address % 16 / 2);
  const auto box = static_cast<int32_t>(block_side / residues);
  return {reinterpret_cast<const void*>(address / 16 * 16),
          2,
          {first + p.in_h * p.in_w, channels, p.groups, p.batch, 1},
          {map_stride(channels, residues * p.x_strides[1]),
           map_stride(p.groups, checked_mul(p.in_channels_per_group(), p.x_strides[1])),
           map_stride(p.batch, p.x_strides[0]), 16},
          {block_side, box, 1, 1, 1}};
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

// [group][residue][channel][output of a position]: rows are in the order of those of x.
inline TensorMapLayout make_w_map(const Problem& p, const void* w) {
  const int64_t residues = residues_of(p), channels = ceil_div(p.in_channels_per_group(), residues);
  return {w,
          2,
          {outputs_of_position(p), channels, residues, p.groups, 1},
          {map_stride(channels, residues * p.w_strides[0]), map_stride(residues, p.w_strides[0]),
           map_stride(p.groups, checked_mul(p.in_channels_per_group(), p.w_strides[0])), 16},
          {block_side, static_cast<int32_t>(block_side / residues), static_cast<int32_t>(residues), 1, 1}};
}

}  // namespace convt::gemm_scatter_sm90
