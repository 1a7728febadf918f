// An output without tensor cores, for kernels that read tensors of any strides.
#pragma once

#include "device.h"
#include "strided_params.h"

namespace convt {

// An output by its definition, of the image's and group's inputs and the channel's weights. In a matrix product,
// factors that do not exist are zeros, and float32 is two parts, so that one that is infinite or NaN gives other sums.
template <class Scalar, bool Strict, class P>
CONVT_DEVICE float exact_output(const P& p, const Scalar* x, const Scalar* w, float bias, int32_t row, int32_t column) {
  const auto operand = [](const Scalar* from) {
    float v;
    load<1>(from, &v);
    return sizeof(Scalar) == 4 && !Strict ? __uint_as_float(device::to_tf32(v)) : v;
  };
  const Taps<int32_t> h = transposed_taps(p.h, row), v = transposed_taps(p.w_axis, column);
  float sum = 0;
#pragma unroll 1
  for (int32_t j = 0; j < h.count; ++j) {
#pragma unroll 1
    for (int32_t k = 0; k < v.count; ++k) {
      const Scalar* from_x = x + ((h.position + j * h.position_step) * p.x_row_stride +
                                  (v.position + k * v.position_step) * p.x_column_stride);
      const Scalar* from_w =
          w + ((h.tap + j * h.tap_step) * p.w_row_stride + (v.tap + k * v.tap_step) * p.w_column_stride);
#pragma unroll 1
      for (int32_t c = 0; c < p.channels; ++c) {
        sum += operand(from_x + c * p.x_channel_stride) * operand(from_w + c * p.w_in_stride);
      }
    }
  }
  return sum + bias;
}

}  // namespace convt
