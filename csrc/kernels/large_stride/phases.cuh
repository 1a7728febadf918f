// What kernels of a large stride, each lane of which has neighbouring phases of an output channel, do alike.
#pragma once

#include "../exact_output.h"
#include "../load_if.h"

namespace convt::large_stride {

// Where a task's inputs and weights begin.
template <class Scalar, class Params, class Task>
CONVT_DEVICE const Scalar* inputs_of(const Params& p, const Task& task) {
  return static_cast<const Scalar*>(p.x) + task.image * p.x_batch_stride + task.group * p.channels * p.x_channel_stride;
}
template <class Scalar, class Params, class Task>
CONVT_DEVICE const Scalar* weights_of(const Params& p, const Task& task) {
  return static_cast<const Scalar*>(p.w) + task.group * p.channels * p.w_in_stride + task.channel * p.w_out_stride;
}

// Of neighbouring phases, the weights of an input channel, as bits: words of two of 16-bit types if they lie together.
template <class Scalar, bool Vectors, class Params, int Count>
CONVT_DEVICE void load_phases(const Params& p, const Scalar* from, int32_t valid, uint32_t (&to)[Count]) {
  if constexpr (Vectors) {
    load_if<Count * sizeof(Scalar)>(valid >= Count, from, to);
  } else {
#pragma unroll
    for (int i = 0; i < Count; ++i) load_if<sizeof(Scalar)>(valid > i, from + i * p.w_column_stride, to + i);
  }
}

// Outputs side by side in a row of the image, the first of them at `column`: those that are inside of it, one by one.
template <class Params, class Scalar, int Count>
CONVT_DEVICE void store_inside(const Params& p, int32_t column, int32_t count, Scalar* to, const float (&v)[Count]) {
#pragma unroll
  for (int j = 0; j < Count; ++j) {
    if (j < count && static_cast<uint32_t>(column + j) < static_cast<uint32_t>(p.w_axis.out)) {
      store<1>(to + j * p.y_column_stride, &v[j]);
    }
  }
}

// Those that are not finite again, by their definition.
template <class Scalar, bool Strict, class Params>
CONVT_DEVICE void correct_inside(const Params& p, const Scalar* inputs, const Scalar* weights, float bias, int32_t row,
                                 int32_t first_column, int32_t count, Scalar* first) {
#pragma unroll 1
  for (int32_t j = 0; j < count; ++j) {
    const int32_t column = first_column + j;
    if (static_cast<uint32_t>(column) >= static_cast<uint32_t>(p.w_axis.out)) continue;
    Scalar* const to = first + j * p.y_column_stride;
    float v = to_float(*to);
    if (v - v == 0.0f) continue;
    v = exact_output<Scalar, Strict>(p, inputs, weights, bias, row, column);
    store<1>(to, &v);
  }
}

}  // namespace convt::large_stride
