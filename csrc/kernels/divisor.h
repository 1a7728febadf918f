#pragma once

#include <cstdint>

#include "../plan/geometry.h"

namespace convt {

// Division of 0 <= n < 2^31 by a fixed divisor in three instructions.
struct Divisor {
  uint32_t divisor, multiplier, shift;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(static_cast<uint32_t>(d)), multiplier(1), shift(0) {
    while ((int64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }

  // The quotient; n becomes the remainder.
  CONVT_HOST_DEVICE uint32_t divide(uint32_t& n) const {
#if defined(__CUDA_ARCH__)
    const uint32_t high = __umulhi(n, multiplier);
#else
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier >> 32);
#endif
    const uint32_t quotient = (high + n) >> shift;
    n -= quotient * divisor;
    return quotient;
  }
};

}  // namespace convt
