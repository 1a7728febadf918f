// Weights of neighbouring phases, which are neighbours in a kernel's row.
#pragma once

#include "../load_if.h"

namespace convt::large_stride {

// A lane's phases of a row of them, from `column`; how many exist is `count`.
struct Phases {
  int32_t row, column, count;
};

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

}  // namespace convt::large_stride
