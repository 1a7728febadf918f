// What the configurations of the families have in common that multiply operands as they are in memory on Hopper: both
// of gemm_scatter, and gemm_fold_sm90. Two warpgroups multiply, and a warp has data copied, to stages in shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace convt::gemm_scatter {

inline constexpr int32_t consumers = 256, group_threads = consumers / 2;
// Operands are copied in square boxes of elements: rows of 128 bytes, as many of them as one has elements.
inline constexpr int32_t row_bytes = 128;
constexpr int32_t box_side(int64_t element_bytes) { return row_bytes / static_cast<int32_t>(element_bytes); }

inline constexpr int32_t most_stages = 8;
inline constexpr int32_t shared_bytes_limit = 227 * 1024;

// A family says of its configurations how many bytes a stage has, and everything that is after the stages.
template <class Config>
constexpr int32_t stages_of(const Config& c) {
  return std::min(most_stages, (shared_bytes_limit - other_bytes(c)) / stage_bytes(c));
}
// In whole periods of the swizzle.
template <class Config>
constexpr int32_t shared_bytes(const Config& c) {
  return (stages_of(c) * stage_bytes(c) + other_bytes(c) + 1023) / 1024 * 1024;
}

}  // namespace convt::gemm_scatter
