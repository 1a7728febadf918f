// What the copy engine is told of operands as they are in memory, by the same families.
#pragma once

#include "../../plan/problem.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::gemm_scatter {

inline int64_t outputs_of_position(const Problem& p) {  // in a group
  return checked_mul(p.out_channels_per_group(), checked_mul(p.kernel_h, p.kernel_w));
}

// Elements of 16 bytes: where the copy engine lets a row, or a box, begin.
inline int64_t vector_of(const Problem& p) { return 16 / element_size(p.dtype); }
inline int32_t box_side(const Problem& p) { return box_side(element_size(p.dtype)); }

// Elements from a position of x to the next.
inline int64_t position_stride(const Problem& p) { return p.in_w > 1 ? p.x_strides[3] : p.x_strides[2]; }

// Bytes. Dimensions of one element have any stride.
inline int64_t map_stride(const Problem& p, int64_t size, int64_t elements) {
  return size > 1 ? checked_mul(elements, element_size(p.dtype)) : 16;
}

// In boxes, which are rounded to TF32 if the product is. `sizes`: innermost first.
inline TensorMapLayout make_map(const Problem& p, const void* operand, const int64_t (&sizes)[4],
                                const int64_t (&strides)[3]) {
  return {operand,
          static_cast<int32_t>(element_size(p.dtype)),
          {sizes[0], sizes[1], sizes[2], sizes[3], 1},
          {map_stride(p, sizes[1], strides[0]), map_stride(p, sizes[2], strides[1]),
           map_stride(p, sizes[3], strides[2]), 16},
          {box_side(p), box_side(p), 1, 1, 1},
          row_bytes,
          p.dtype == DataType::float32 && p.precision == Precision::tf32};
}

// x as [image][group][channel][position], or a copy of it: `channel` elements from a channel to the next.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, int64_t images, int64_t positions, int64_t channel) {
  const int64_t channels = p.in_channels_per_group();
  return make_map(p, x, {positions, channels, p.groups, images},
                  {channel, checked_mul(channels, channel), p.x_strides[0]});
}

// The same in channels_last, as [image][group][position][channel]: `position` and `image` elements from one to the
// next.
inline TensorMapLayout make_last_x_map(const Problem& p, const void* x, int64_t position, int64_t image) {
  const int64_t channels = p.in_channels_per_group();
  return make_map(p, x, {channels, p.in_h * p.in_w, p.groups, p.batch}, {position, channels, image});
}

// [group][channel][output of a position].
inline TensorMapLayout make_w_map(const Problem& p, const void* w) {
  const int64_t channels = p.in_channels_per_group();
  return make_map(p, w, {outputs_of_position(p), channels, p.groups, 1},
                  {p.w_strides[0], checked_mul(channels, p.w_strides[0]), 0});
}

}  // namespace convt::gemm_scatter
