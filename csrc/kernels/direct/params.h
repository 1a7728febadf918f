// What a direct kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/problem.h"
#include "../operands.h"

namespace convt::direct {

// Strides in elements.
template <class Index>
struct TensorStrides {
  Index d0, d1, d2, d3;
};

template <class Index>
struct Params {
  const void* x;
  const void* w;
  const void* y;
  const void* bias;  // null if there is none
  void* result;      // y, x or w, by operation
  TensorStrides<Index> x_strides, w_strides, y_strides;
  Index bias_stride;
  Axis<Index> h, w_axis;
  Index batch, in_channels, out_channels, in_channels_per_group, out_channels_per_group;
  Index results;            // elements of the result
  bool channels_innermost;  // consecutive threads write consecutive channels, not columns
};

static_assert(std::is_trivially_copyable_v<Params<int64_t>>);

template <class Index>
Params<Index> make_params(const Problem& p, const Operands& o) {
  const auto narrow = [](const Strides& s) {
    return TensorStrides<Index>{static_cast<Index>(s[0]), static_cast<Index>(s[1]), static_cast<Index>(s[2]),
                                static_cast<Index>(s[3])};
  };
  const Strides& result = p.operation == Operation::forward ? p.y_strides : p.x_strides;
  return {o.x,
          o.w,
          o.y,
          p.has_bias ? o.bias : nullptr,
          o.result,
          narrow(p.x_strides),
          narrow(p.w_strides),
          narrow(p.y_strides),
          static_cast<Index>(p.bias_stride),
          make_axis<Index>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h),
          make_axis<Index>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w),
          static_cast<Index>(p.batch),
          static_cast<Index>(p.in_channels),
          static_cast<Index>(p.out_channels),
          static_cast<Index>(p.in_channels_per_group()),
          static_cast<Index>(p.out_channels_per_group()),
          static_cast<Index>(p.result_elements()),
          result[1] < result[3]};
}

}  // namespace convt::direct
