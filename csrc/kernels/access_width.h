// How wide accesses of a tensor's memory may be: it depends on pointers, which only a launch knows.
#pragma once

#include <initializer_list>

#include "../plan/problem.h"

namespace convt {

// The widest power of two of at most `widest` elements at which the innermost dimension `inner` of a tensor can be
// accessed.
inline int32_t access_width(const void* pointer, int64_t element_bytes, const std::array<int64_t, 4>& sizes,
                            const Strides& strides, int inner, int64_t inner_size, int32_t widest) {
  const auto fits = [&](int32_t width) {
    if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(width * element_bytes) != 0) return false;
    if (inner_size % width != 0 || strides[inner] != 1) return false;
    for (int d = 0; d < 4; ++d) {
      if (d != inner && sizes[d] > 1 && strides[d] % width != 0) return false;
    }
    return true;
  };
  while (widest > 1 && !fits(widest)) widest /= 2;
  return widest;
}

// A used stride in 32 bits, which hold every one where a family refuses others.
constexpr int32_t used_stride_32(int64_t size, int64_t stride) {
  return static_cast<int32_t>(used_stride(size, stride));
}

// The widest power of two of at most `widest` at which every stride that is used and the pointer, in units of
// `element_bytes`, are multiples.
inline int32_t common_width(const void* pointer, int64_t element_bytes, std::initializer_list<int64_t> strides,
                            int32_t widest) {
  const auto fits = [&](int32_t width) {
    if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(width * element_bytes) != 0) return false;
    for (int64_t s : strides) {
      if (s % width != 0) return false;
    }
    return true;
  };
  while (widest > 1 && !fits(widest)) widest /= 2;
  return widest;
}

}  // namespace convt
