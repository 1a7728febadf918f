// A tensor in global memory, as the copy engine of sm_90 is told about it: boxes of it are copied to shared memory, and
// what a box has outside of the tensor becomes zero.
#pragma once

#include <cstdint>

namespace convt {

inline constexpr int tensor_map_rank = 5;
inline constexpr int32_t tensor_map_most_box = 256;  // elements of a dimension of a box
inline constexpr int32_t im2col_most_pixels = 1024;  // of a copy in im2col mode, which has shifts of less than this:
inline constexpr int32_t im2col_most_shift = 256;

struct TensorMapLayout {
  const void* base;
  int32_t element_bytes;
  int64_t sizes[tensor_map_rank];        // innermost first
  int64_t strides[tensor_map_rank - 1];  // bytes, of all but the innermost
  int32_t box[tensor_map_rank];
  int32_t swizzle_bytes = 128;  // of that name, for rows of so many bytes; or 0, none
  bool rounds_to_tf32 = false;  // float32 on its way to shared memory: to nearest, ties to even; NaN and infinity stay
  // The im2col mode, for a tensor of [image][row][column][channel], the outermost dimension being 1: a copy brings
  // box[1] pixels that follow each other, row by row and image by image, of those that are, in columns and rows, from
  // so many behind the first pixel of an image to so many behind the last one; and all of them shifted, further on, by
  // a number of columns and rows.
  bool im2col = false;
  int16_t lower[2] = {}, upper[2] = {};

  int32_t inner_bytes() const { return box[0] * element_bytes; }

  // Whether the copy engine takes it.
  bool valid() const {
    if (reinterpret_cast<uintptr_t>(base) % 16 != 0) return false;
    if (inner_bytes() % 16 != 0 || (swizzle_bytes != 0 && inner_bytes() != swizzle_bytes)) return false;
    for (int d = 0; d < tensor_map_rank; ++d) {
      const int32_t most = im2col && d == 1 ? im2col_most_pixels : tensor_map_most_box;
      if (sizes[d] < 1 || sizes[d] > int64_t{1} << 32 || box[d] < 1 || box[d] > most) return false;
    }
    for (int d = 0; im2col && d < 2; ++d) {
      constexpr int32_t most = 127;
      if (lower[d] < -most - 1 || lower[d] > most || upper[d] < -most - 1 || upper[d] > most) return false;
      if (sizes[d + 1] + upper[d] - lower[d] < 1) return false;
    }
    for (const int64_t stride : strides) {
      if (stride <= 0 || stride % 16 != 0 || stride >= int64_t{1} << 40) return false;
    }
    return true;
  }
};

// What a kernel is given: opaque to all but the driver, which makes it of a layout, and the copy engine.
struct alignas(128) TensorMap {
  unsigned char words[128];
};

// What becomes of lines in L2 that a copy has touched: createpolicy's words for all of them, which CUTLASS has as
// constants, too (TMA::CacheHintSm90). What is written or read once and is larger than L2 would only take the place of
// what is read again.
enum class CachePolicy : uint64_t {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000
};
// Of what is read or written once, or more often.
constexpr CachePolicy once_policy(bool once) { return once ? CachePolicy::evict_first : CachePolicy::evict_normal; }
// Of what is to stay while others pass.
constexpr CachePolicy stay_policy(bool stays) { return stays ? CachePolicy::evict_last : CachePolicy::evict_normal; }

}  // namespace convt
