#pragma once

#include <cstdint>

#include "../../plan/problem.h"

namespace convt::implicit_gemm {

// How a product is computed. ieee: each float32 is the sum of two TF32 numbers, three products of them are summed, and
// sums leave the tensor core, which truncates, after a few of them.
enum class Mode : int32_t { tf32, ieee, float16, bfloat16 };

constexpr Mode mode_of(const Problem& p) {
  if (p.dtype == DataType::float16) return Mode::float16;
  if (p.dtype == DataType::bfloat16) return Mode::bfloat16;
  return p.precision == Precision::tf32 ? Mode::tf32 : Mode::ieee;
}

// launch.operator()<mode>() of a problem's mode.
template <class Launch>
auto dispatch_mode(const Problem& p, const Launch& launch) {
  switch (mode_of(p)) {
    case Mode::tf32:
      return launch.template operator()<Mode::tf32>();
    case Mode::ieee:
      return launch.template operator()<Mode::ieee>();
    case Mode::float16:
      return launch.template operator()<Mode::float16>();
    default:
      return launch.template operator()<Mode::bfloat16>();
  }
}

// 32-bit words of a patch hold one or two channels; 8 words a fragment.
constexpr int32_t channels_of_fragment(Mode m) { return m == Mode::tf32 || m == Mode::ieee ? 8 : 16; }

}  // namespace convt::implicit_gemm
