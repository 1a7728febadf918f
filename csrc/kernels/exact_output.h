// An output without tensor cores.
#pragma once

#include "device.h"
#include "taps.h"

namespace convt {

// By its definition, of the inputs and weights that exist: in a matrix product factors that do not are zeros, and
// float32 is two parts, so that one that is infinite or NaN gives other sums. `input` and `weight` are given a row, a
// column and a channel.
template <class Input, class Weight>
CONVT_DEVICE float exact_sum(const Taps<int32_t>& rows, const Taps<int32_t>& columns, int32_t channels,
                             const Input& input, const Weight& weight) {
  float sum = 0;
#pragma unroll 1
  for (int32_t j = 0; j < rows.count; ++j) {
    const int32_t row = rows.position + j * rows.position_step, tap_row = rows.tap + j * rows.tap_step;
#pragma unroll 1
    for (int32_t k = 0; k < columns.count; ++k) {
      const int32_t column = columns.position + k * columns.position_step, tap = columns.tap + k * columns.tap_step;
#pragma unroll 1
      for (int32_t c = 0; c < channels; ++c) {
        sum += input(row, column, c) * weight(tap_row, tap, c);
        if (sum != sum) return sum;
      }
    }
  }
  return sum;
}

// For kernels that read tensors of any strides: an output of the image's and group's inputs and the channel's weights.
template <class Scalar, bool Strict, class P>
CONVT_DEVICE float exact_output(const P& p, const Scalar* x, const Scalar* w, float bias, int32_t row, int32_t column) {
  const auto operand = [](const Scalar* from) {
    float v;
    load<1>(from, &v);
    return sizeof(Scalar) == 4 && !Strict ? __uint_as_float(device::to_tf32(v)) : v;
  };
  return bias + exact_sum(
                    transposed_taps(p.h, row), transposed_taps(p.w_axis, column), p.channels,
                    [&](int32_t r, int32_t k, int32_t c) {
                      return operand(x + (r * p.x_row_stride + k * p.x_column_stride) + c * p.x_channel_stride);
                    },
                    [&](int32_t r, int32_t k, int32_t c) {
                      return operand(w + (r * p.w_row_stride + k * p.w_column_stride) + c * p.w_in_stride);
                    });
}

}  // namespace convt
