// A transpose of words among four lanes, for epilogues.
#pragma once

#include "device.h"

namespace convt::device {

// Four lanes, whose numbers differ in the bits `A` and `B`, exchange words: of word i of each, lane i of them gets all.
// The lane's number among them has bit 0 where it has A, and bit 1 where it has B.
template <int A, int B>
CONVT_DEVICE void exchange(uint32_t (&w)[4], int32_t lane) {
  const auto pair = [&](bool upper, int mask, uint32_t& low, uint32_t& high) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, mask);
    low = upper ? got : low, high = upper ? high : got;
  };
  pair((lane & A) != 0, A, w[0], w[1]), pair((lane & A) != 0, A, w[2], w[3]);
  pair((lane & B) != 0, B, w[0], w[2]), pair((lane & B) != 0, B, w[1], w[3]);
}

}  // namespace convt::device
