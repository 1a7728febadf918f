// Random problems of large strides and few input channels.
#pragma once

#include "simt_problem.h"

namespace convt {

// Of at most so many channels, that `fits` takes; kernels are often multiples of the stride.
template <class Fits>
Problem random_large_stride(DataType dtype, int64_t most_channels, const Fits& fits) {
  Problem p;
  p.dtype = dtype;
  do {
    p.batch = pick(1, 2);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * (pick(0, 2) == 0 ? pick(1, most_channels) : pick(1, 9));
    p.out_channels = p.groups * pick(1, 3);
    const bool flat = pick(0, 3) == 0;
    p.in_h = flat ? 1 : pick(1, 7), p.in_w = pick(0, 2) == 0 ? pick(10, 40) : pick(1, 9);
    p.stride_h = flat ? pick(1, 2) : pick(1, 12), p.stride_w = pick(0, 1) == 0 ? 4 * pick(1, 4) : pick(1, 18);
    if (p.stride_h < 8 && p.stride_w < 8) p.stride_w += 8;
    const auto kernel = [](int64_t stride) { return pick(0, 1) == 0 ? stride * pick(1, 2) : pick(1, 2 * stride + 3); };
    p.kernel_h = flat ? 1 : kernel(p.stride_h), p.kernel_w = kernel(p.stride_w);
    p.padding_h = pick(0, 1) * pick(0, 20), p.padding_w = pick(0, 1) == 0 ? 4 * pick(0, 4) : pick(0, 20);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, p.stride_h - 1), 1);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, 1) * pick(0, p.stride_w - 1), 1);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.out_h * p.out_w > 9000 || !fits(p));
  return p;
}

}  // namespace convt
