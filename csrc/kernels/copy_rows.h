// What is told to the copying of x to rows that begin at multiples of 16 bytes, where the copy engine does not take it
// as it is. Three dimensions and rows of x, any of one element, are the same ones of the copy.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../plan/problem.h"
#include "divisor.h"

namespace convt {

inline constexpr int32_t copy_threads = 256, eighths_of_thread = 2;

struct CopyParams {
  const unsigned char *x, *x_end;  // behind its last element
  unsigned char* to;
  int64_t outer_stride, middle_stride, inner_stride, column_stride;  // of x
  int32_t middle, inner, columns;                                    // sizes
  // Bytes that a thread copies at once: 8 that lie next to each other in x and begin at such a multiple there, of which
  // it copies two, or 16 that do not.
  int32_t unit;
  int32_t units;
  // Elements of the copy from one to the next; the last one's are a row's.
  Divisor by_outer, by_middle, by_inner;
  // Neighbours in x are the outermost dimension's, as in images of one position: threads side by side copy theirs.
  bool across;
  Divisor outers;
};

static_assert(std::is_trivially_copyable_v<CopyParams>);

// A dimension: its size, and elements from one to the next in x and in the copy.
struct CopiedDimension {
  int64_t size, stride, pitch;
};

// Rows of the copy may have more elements than those of x have, and dimensions more than their elements take: what is
// there is not told. The outermost one's elements begin at multiples of 16 bytes.
inline CopyParams make_copy(const Problem& p, const void* x, void* to, const CopiedDimension& outer,
                            const CopiedDimension& middle, const CopiedDimension& inner, int64_t columns,
                            int64_t column_stride) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  const int64_t element = element_size(p.dtype);
  const auto* const first = static_cast<const unsigned char*>(x);
  const auto eighths = [&](int64_t elements) { return elements * element % 8 == 0; };
  int64_t last = (columns - 1) * column_stride;
  bool aligned = reinterpret_cast<uintptr_t>(x) % 8 == 0 && eighths(columns) && (columns == 1 || column_stride == 1);
  for (const CopiedDimension& d : {outer, middle, inner}) {
    last += (d.size - 1) * d.stride;
    aligned = aligned && eighths(d.pitch) && (d.size == 1 || eighths(d.stride));
  }
  CopyParams q{};
  q.x = first, q.x_end = first + (last + 1) * element, q.to = static_cast<unsigned char*>(to);
  q.outer_stride = outer.stride, q.middle_stride = middle.stride, q.inner_stride = inner.stride;
  q.column_stride = columns > 1 ? column_stride : 1;
  q.middle = narrow(middle.size), q.inner = narrow(inner.size), q.columns = narrow(columns);
  q.unit = aligned ? 8 : 16, q.units = narrow(outer.size * outer.pitch * element / q.unit);
  q.by_outer = Divisor(outer.pitch), q.by_middle = Divisor(middle.pitch), q.by_inner = Divisor(inner.pitch);
  q.across = outer.stride == 1 && columns == 1, q.outers = Divisor(outer.size);
  return q;
}

inline int64_t copy_blocks(const CopyParams& q) {
  return ceil_div<int64_t>(q.units, copy_threads * (q.unit == 8 ? eighths_of_thread : 1));
}

}  // namespace convt
