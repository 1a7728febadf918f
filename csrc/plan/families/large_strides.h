// What the families of large strides take alike.
#pragma once

#include "family.h"

namespace convt {

// Why none of their kernels, of which a phase's taps are neighbours in x and places are 32-bit, takes the problem;
// empty if one may.
inline std::string large_strides_refusal(const Problem& p) {
  if (p.in_channels == 0) return "takes at least one input channel";
  if ((p.dilation_h != 1 && p.kernel_h > 1) || (p.dilation_w != 1 && p.kernel_w > 1)) return "takes dilation 1 only";
  constexpr int64_t limit = int64_t{1} << 28;
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    if (a.stride >= 1 << 14 || a.kernel >= limit || a.padding >= limit || a.in >= limit || a.out >= limit ||
        a.in * a.stride >= limit) {
      return "takes images of less than 2^28 rows and columns";
    }
  }
  if (p.in_channels >= limit || p.out_channels >= limit) return "takes less than 2^28 channels";
  return "";
}

// Why none takes a stride that is not large, if it is not.
inline std::string small_stride_refusal(const Problem& p) {
  if (p.stride_h >= 8 || p.stride_w >= 8) return "";
  return "takes strides of 8 or more, not " + std::to_string(std::max(p.stride_h, p.stride_w));
}

}  // namespace convt
