// Positions of the input that outputs belong to, and taps: those of a large stride, however it is cut.
#pragma once

#include "../../plan/problem.h"

namespace convt::large_stride {

// Output o of an axis is phase (o + padding) % stride of position (o + padding) / stride.
struct Positions {
  int64_t taps_h = 0, taps_w = 0;                          // of a phase, at most
  int64_t first_q_h = 0, first_q_w = 0, q_h = 0, q_w = 0;  // positions that have outputs: the first, and how many

  Positions() = default;
  explicit Positions(const Problem& p)
      : taps_h(ceil_div<int64_t>(p.kernel_h, p.stride_h)),
        taps_w(ceil_div<int64_t>(p.kernel_w, p.stride_w)),
        first_q_h(p.padding_h / p.stride_h),
        first_q_w(p.padding_w / p.stride_w),
        q_h((p.out_h - 1 + p.padding_h) / p.stride_h - first_q_h + 1),
        q_w((p.out_w - 1 + p.padding_w) / p.stride_w - first_q_w + 1) {}
};

}  // namespace convt::large_stride
