// A ring of stages of shared memory.
#pragma once

#include <cstdint>

#include "device.h"
#include "divisor.h"

namespace convt::device {

// The stage that is next, and the parity of its turn, which a wait for its barriers names.
struct Ring {
  int32_t stage = 0;
  uint32_t parity = 0;

  // A producer's: all stages are empty.
  CONVT_DEVICE static Ring of_producer() { return {0, 1}; }

  // The one that is `count` stages after the first.
  CONVT_DEVICE static Ring after(uint32_t count, uint32_t stages) {
    return {static_cast<int32_t>(count % stages), count / stages & 1};
  }

  CONVT_DEVICE void advance(int32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }

  // By so few stages that a division would take longer.
  CONVT_DEVICE void advance_by(int32_t count, int32_t stages) {
    stage += count;
#pragma unroll 1
    while (stage >= stages) stage -= stages, parity ^= 1;
  }

  CONVT_DEVICE void skip(int32_t count, const Divisor& stages) {
    auto next = static_cast<uint32_t>(stage + count);
    const uint32_t turns = stages.divide(next);
    stage = static_cast<int32_t>(next), parity ^= turns & 1;
  }

  // By `count` stages, at most all.
  CONVT_DEVICE void rewind(int32_t count, int32_t stages) {
    stage -= count;
    if (stage < 0) stage += stages, parity ^= 1;
  }
};

}  // namespace convt::device
