// Taps of an output, in a kernel.
#pragma once

#include "device.h"
#include "divisor.h"

namespace convt {

// As transposed_taps(), whose divisions take some hundred clocks: without dilation there are none.
CONVT_DEVICE Taps<int32_t> taps_of(const Axis<int32_t>& a, const Divisor& stride, int32_t o) {
  if (a.dilation != 1) return transposed_taps(a, o);
  auto tap = static_cast<uint32_t>(o + a.padding);
  const auto position = static_cast<int32_t>(stride.divide(tap));
  Taps<int32_t> taps{0, a.stride, 0, -1, 0};
  const int32_t left = a.kernel - static_cast<int32_t>(tap);
  if (left <= 0) return taps;
  auto rest = static_cast<uint32_t>(left + a.stride - 1);
  const int32_t first = larger(0, position - a.in + 1);
  const int32_t last = smaller(static_cast<int32_t>(stride.divide(rest)), position + 1);
  if (last <= first) return taps;
  taps.tap = static_cast<int32_t>(tap) + first * a.stride, taps.position = position - first, taps.count = last - first;
  return taps;
}

}  // namespace convt
