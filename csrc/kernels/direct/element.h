// One element of each operator's result. Runs on the GPU in kernel.cuh and on the CPU in host.cpp, so that a machine
// without a GPU tests the index arithmetic that the GPU runs.
#pragma once

#include "config.h"
#include "params.h"
#include "scalar.h"

namespace convt::direct {

template <class Scalar>
using Accumulator = typename Traits<Scalar>::Accumulator;

// The sum over `count` channels of a[c * a_step] * b[c * b_step], in chunks.
template <class Scalar, class Index>
CONVT_HOST_DEVICE void accumulate_channels(const Scalar* a, Index a_step, const Scalar* b, Index b_step, Index count,
                                           Accumulator<Scalar>& sum) {
  for (Index first = 0; first < count; first += summation_chunk) {
    const Index last = smaller<Index>(count, first + summation_chunk);
    auto partial = zero<Accumulator<Scalar>>();
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
    for (Index c = first; c < last; ++c) {
      partial = multiply_add(load(a + c * a_step), load(b + c * b_step), partial);
    }
    sum = add(sum, partial);
  }
}

// y[n, co, oh, ow]: only the taps that reach this output are visited, so an output that no tap reaches is its bias.
template <class Scalar, class Index>
CONVT_HOST_DEVICE Accumulator<Scalar> output_element(const Params<Index>& p, Index n, Index co, Index oh, Index ow) {
  const Index group = co / p.out_channels_per_group;
  const Index ci = group * p.in_channels_per_group;
  const Scalar* x = static_cast<const Scalar*>(p.x) + n * p.x_strides.d0 + ci * p.x_strides.d1;
  const Scalar* w =
      static_cast<const Scalar*>(p.w) + ci * p.w_strides.d0 + (co - group * p.out_channels_per_group) * p.w_strides.d1;
  const Taps<Index> rows = transposed_taps(p.h, oh);
  const Taps<Index> columns = transposed_taps(p.w_axis, ow);
  auto sum = zero<Accumulator<Scalar>>();
  for (Index r = 0; r < rows.count; ++r) {
    const Scalar* x_row = x + (rows.position + r * rows.position_step) * p.x_strides.d2;
    const Scalar* w_row = w + (rows.tap + r * rows.tap_step) * p.w_strides.d2;
    for (Index c = 0; c < columns.count; ++c) {
      accumulate_channels(x_row + (columns.position + c * columns.position_step) * p.x_strides.d3, p.x_strides.d1,
                          w_row + (columns.tap + c * columns.tap_step) * p.w_strides.d3, p.w_strides.d0,
                          p.in_channels_per_group, sum);
    }
  }
  if (p.bias != nullptr) sum = add(sum, load(static_cast<const Scalar*>(p.bias) + co * p.bias_stride));
  return sum;
}

// x[n, ci, ih, iw] of the input gradient: a convolution over y.
template <class Scalar, class Index>
CONVT_HOST_DEVICE Accumulator<Scalar> input_element(const Params<Index>& p, Index n, Index ci, Index ih, Index iw) {
  const Index co = ci / p.in_channels_per_group * p.out_channels_per_group;
  const Scalar* y = static_cast<const Scalar*>(p.y) + n * p.y_strides.d0 + co * p.y_strides.d1;
  const Scalar* w = static_cast<const Scalar*>(p.w) + ci * p.w_strides.d0;
  const Taps<Index> rows = convolution_taps(p.h, ih);
  const Taps<Index> columns = convolution_taps(p.w_axis, iw);
  auto sum = zero<Accumulator<Scalar>>();
  for (Index r = 0; r < rows.count; ++r) {
    const Scalar* y_row = y + (rows.position + r * rows.position_step) * p.y_strides.d2;
    const Scalar* w_row = w + (rows.tap + r) * p.w_strides.d2;
    for (Index c = 0; c < columns.count; ++c) {
      accumulate_channels(y_row + (columns.position + c * columns.position_step) * p.y_strides.d3, p.y_strides.d1,
                          w_row + (columns.tap + c) * p.w_strides.d3, p.w_strides.d1, p.out_channels_per_group, sum);
    }
  }
  return sum;
}

// The part of w[ci, co of its group, kh, kw] of the weight gradient that thread `thread` of `threads` sums: every
// `threads`-th position of the (n, ih, iw) that this tap carries into the output. The position is carried along, so
// that there is no division in the loop.
template <class Scalar, class Index>
CONVT_HOST_DEVICE Accumulator<Scalar> weight_element_part(const Params<Index>& p, Index ci, Index co_in_group, Index kh,
                                                          Index kw, Index thread, Index threads) {
  const Reduction<Index> rows = reduction_range(p.h, kh);
  const Reduction<Index> columns = reduction_range(p.w_axis, kw);
  auto sum = zero<Accumulator<Scalar>>();
  const Index image = rows.count * columns.count;
  if (image == 0) return sum;
  const Index co = ci / p.in_channels_per_group * p.out_channels_per_group + co_in_group;
  const Scalar* x = static_cast<const Scalar*>(p.x) + ci * p.x_strides.d1;
  const Scalar* y = static_cast<const Scalar*>(p.y) + co * p.y_strides.d1;
  const Index step_n = threads / image, step_row = threads % image / columns.count,
              step_column = threads % columns.count;
  Index n = thread / image, row = thread % image / columns.count, column = thread % columns.count;
  while (n < p.batch) {
    auto partial = zero<Accumulator<Scalar>>();
    for (int i = 0; i < summation_chunk && n < p.batch; ++i) {
      const Index ih = rows.first + row, iw = columns.first + column;
      partial = multiply_add(load(x + n * p.x_strides.d0 + ih * p.x_strides.d2 + iw * p.x_strides.d3),
                             load(y + n * p.y_strides.d0 + (ih * p.h.stride + rows.offset) * p.y_strides.d2 +
                                  (iw * p.w_axis.stride + columns.offset) * p.y_strides.d3),
                             partial);
      column += step_column;
      row += step_row;
      n += step_n;
      if (column >= columns.count) column -= columns.count, ++row;
      if (row >= rows.count) row -= rows.count, ++n;
    }
    sum = add(sum, partial);
  }
  return sum;
}

// Coordinates of the `i`-th element of a (batch, channels, height, width) result in the order in which it lies in
// memory, so that consecutive threads store to consecutive addresses.
template <class Index>
struct Coordinates {
  Index n, channel, row, column;
};

template <class Index>
CONVT_HOST_DEVICE Coordinates<Index> coordinates(Index i, Index channels, Index rows, Index columns,
                                                 bool channels_innermost) {
  Coordinates<Index> at;
  Index rest = i;
  if (channels_innermost) {
    rest = i / channels;
    at.channel = i - rest * channels;
  }
  Index up = rest / columns;
  at.column = rest - up * columns;
  rest = up / rows;
  at.row = up - rest * rows;
  if (channels_innermost) {
    at.n = rest;
  } else {
    at.n = rest / channels;
    at.channel = rest - at.n * channels;
  }
  return at;
}

template <class Index>
CONVT_HOST_DEVICE Index offset(const Coordinates<Index>& at, const TensorStrides<Index>& s) {
  return at.n * s.d0 + at.channel * s.d1 + at.row * s.d2 + at.column * s.d3;
}

}  // namespace convt::direct
