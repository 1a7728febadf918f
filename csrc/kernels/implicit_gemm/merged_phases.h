// Phases as columns of one product, as sub-pixel convolution has them. Host code, but for the constant.
#pragma once

#include <algorithm>

#include "phases.h"

namespace convt::implicit_gemm {

inline constexpr uint8_t no_tap = 0xff;

// Of an axis whose phases are merged: the inputs that any of them reads, from the position, in ascending order, and of
// each of those the kernel's row (or column) of each phase. How many there are, or -1 if they are too many.
inline int32_t merge_phases(const Axis<int64_t>& a, int32_t (&inputs)[most_taps], uint8_t (&kernel)[most_taps]) {
  const auto stride = static_cast<int32_t>(a.stride), step = static_cast<int32_t>(a.input_step);
  int32_t count = 0;
  for (int32_t c = 0; c < stride; ++c) {
    const AxisPhase phase = axis_phase(a, c, a.stride);
    for (int32_t j = 0; j < phase.taps; ++j) {
      const int32_t input = phase.origin - j * step;
      if (std::find(inputs, inputs + count, input) != inputs + count) continue;
      if ((count + 1) * stride > most_taps) return -1;
      inputs[count++] = input;
    }
  }
  std::sort(inputs, inputs + count);
  std::fill_n(kernel, count * stride, no_tap);
  for (int32_t c = 0; c < stride; ++c) {
    const AxisPhase phase = axis_phase(a, c, a.stride);
    for (int32_t j = 0; j < phase.taps; ++j) {
      const auto i = std::find(inputs, inputs + count, phase.origin - j * step) - inputs;
      kernel[i * stride + c] = static_cast<uint8_t>(phase.first_tap + j * a.tap_step);
    }
  }
  return count;
}

}  // namespace convt::implicit_gemm
