// A tensor in global memory, as the copy engine of sm_90 is told about it: boxes of it are copied to shared memory, and
// what a box has outside of the tensor becomes zero.
#pragma once

#include <cstdint>

namespace convt {

inline constexpr int tensor_map_rank = 5;
inline constexpr int32_t tensor_map_most_box = 256;  // elements of a dimension of a box

struct TensorMapLayout {
  const void* base;
  int32_t element_bytes;
  int64_t sizes[tensor_map_rank];        // innermost first
  int64_t strides[tensor_map_rank - 1];  // bytes, of all but the innermost
  int32_t box[tensor_map_rank];
  int32_t swizzle_bytes = 128;  // of that name, for rows of so many bytes; or 0, none
  bool rounds_to_tf32 = false;  // float32 on its way to shared memory: to nearest, ties to even; NaN and infinity stay

  int32_t inner_bytes() const { return box[0] * element_bytes; }

  // Whether the copy engine takes it.
  bool valid() const {
    if (reinterpret_cast<uintptr_t>(base) % 16 != 0) return false;
    if (inner_bytes() % 16 != 0 || (swizzle_bytes != 0 && inner_bytes() != swizzle_bytes)) return false;
    for (int d = 0; d < tensor_map_rank; ++d) {
      if (sizes[d] < 1 || sizes[d] > int64_t{1} << 32 || box[d] < 1 || box[d] > tensor_map_most_box) return false;
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
enum class CachePolicy : uint64_t { evict_normal = 0x1000000000000000, evict_first = 0x12F0000000000000 };
// Of what is read or written once, or more often.
constexpr CachePolicy once_policy(bool once) { return once ? CachePolicy::evict_first : CachePolicy::evict_normal; }

}  // namespace convt
