// What kernels that read and write tensors of any strides are given of them, by value.
#pragma once

#include "../plan/plan.h"
#include "operands.h"

namespace convt {

// Strides in elements.
struct StridedParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, x_row_stride, x_column_stride;
  int64_t w_in_stride, w_out_stride, w_row_stride, w_column_stride;
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  Axis<int32_t> h, w_axis;
  int32_t channels, out_channels;  // of one group
};

inline void set_strided(StridedParams& q, const Problem& p, const Operands& o) {
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1], q.x_row_stride = p.x_strides[2];
  q.x_column_stride = p.x_strides[3];
  q.w_in_stride = p.w_strides[0], q.w_out_stride = p.w_strides[1], q.w_row_stride = p.w_strides[2];
  q.w_column_stride = p.w_strides[3];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.y_row_stride = p.y_strides[2];
  q.y_column_stride = p.y_strides[3], q.bias_stride = p.bias_stride;
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.w_axis = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.channels = static_cast<int32_t>(p.in_channels_per_group());
  q.out_channels = static_cast<int32_t>(p.out_channels_per_group());
}

}  // namespace convt
