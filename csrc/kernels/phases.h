// The phases of an axis: outputs that a stride apart read the same taps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../plan/geometry.h"

namespace convt {

// Outputs j * stride + r of an axis read inputs j + top - i * input_step by taps tap + i * tap_step, i = 0 ... count
// - 1.
struct Phase {
  int32_t tap, count, top;
};
inline constexpr int32_t most_phases = 32;
struct Phases {
  Phase of[most_phases];        // of r
  int32_t first = 0, last = 0;  // the inputs of all phases, relative to j
};

// Of a stride of at most most_phases.
inline Phases phases(const Axis<int64_t>& a) {
  Phases result{};
  bool any = false;
  for (int64_t r = 0; r < a.stride; ++r) {
    const int64_t u = r + a.padding;
    int64_t tap = 0;
    while (tap < a.kernel && tap < a.tap_step && (u - tap * a.dilation) % a.stride != 0) ++tap;
    if (tap >= a.kernel || tap >= a.tap_step) continue;
    const int64_t count = ceil_div<int64_t>(a.kernel - tap, a.tap_step), top = (u - tap * a.dilation) / a.stride;
    result.of[r] = {static_cast<int32_t>(tap), static_cast<int32_t>(count), static_cast<int32_t>(top)};
    const auto lowest = static_cast<int32_t>(top - (count - 1) * a.input_step);
    result.first = any ? std::min(result.first, lowest) : lowest;
    result.last = any ? std::max(result.last, static_cast<int32_t>(top)) : static_cast<int32_t>(top);
    any = true;
  }
  return result;
}

// How many phases of an axis have taps.
inline int64_t busy_phases(const Phases& phases, int64_t stride) {
  return std::count_if(phases.of, phases.of + stride, [](const Phase& phase) { return phase.count > 0; });
}

// What a kernel is told of an axis.
struct AxisParams {
  Phases phases;
  int32_t in, out, stride, tap_step, input_step;
};

inline AxisParams axis_params(const Axis<int64_t>& a) {
  AxisParams q{};
  q.phases = phases(a);
  q.in = static_cast<int32_t>(a.in), q.out = static_cast<int32_t>(a.out), q.stride = static_cast<int32_t>(a.stride);
  q.tap_step = static_cast<int32_t>(a.tap_step), q.input_step = static_cast<int32_t>(a.input_step);
  return q;
}

}  // namespace convt
