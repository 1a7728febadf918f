// Copies x to rows that begin at multiples of 16 bytes.
#pragma once

#include "copy_rows.h"
#include "device.h"
#include "load_if.h"

namespace convt {

// 16 bytes at `from`, of which elements `first` to `last` are wanted. They begin anywhere: two vectors of memory have
// them, or one. What lies before x or behind it is not read.
template <class Bits>
CONVT_DEVICE void load_anywhere(const unsigned char* x, const unsigned char* x_end, const unsigned char* from,
                                int32_t first, int32_t last, uint32_t (&words)[4]) {
  constexpr auto size = static_cast<int32_t>(sizeof(Bits));
  const auto shift = static_cast<int32_t>(reinterpret_cast<uintptr_t>(from) % 16);
  const unsigned char* const vector = from - shift;
  const bool wants_low = shift + first * size < 16, wants_high = shift + last * size > 16;
  if ((!wants_low || vector >= x) && vector + (wants_high ? 32 : 16) <= x_end) {
    uint32_t v[8];
    load_if<16>(wants_low, vector, v), load_if<16>(wants_high, vector + 16, v + 4);
#pragma unroll
    for (int i = 0; i < 6; ++i) v[i] = shift & 8 ? v[i + 2] : v[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) v[i] = shift & 4 ? v[i + 1] : v[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] =
          size == 4 ? v[i] : static_cast<uint32_t>((static_cast<uint64_t>(v[i + 1]) << 32 | v[i]) >> 8 * (shift & 2));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = 0;
#pragma unroll
    for (int e = 0; e < 16 / size; ++e) {
      uint32_t element;
      load_if<size>(e >= first && e < last, from + e * size, &element);
      words[e * size / 4] |= element << 8 * (e * size % 4);
    }
  }
}

// Where a row of x is that element `column` of an outer dimension's is in, `outer` elements from x, and `column`
// becomes the row's; negative if x has no such element.
CONVT_DEVICE int64_t copied_place(const CopyParams& p, int64_t outer, uint32_t& column) {
  const uint32_t middle = p.by_middle.divide(column), inner = p.by_inner.divide(column);
  const bool there = static_cast<int32_t>(middle) < p.middle && static_cast<int32_t>(inner) < p.inner &&
                     static_cast<int32_t>(column) < p.columns;
  return there ? outer + middle * p.middle_stride + inner * p.inner_stride : -1;
}

// Units of 8 bytes, as they are in x.
template <class Bits>
CONVT_DEVICE void copy_eighths(const CopyParams& p, uint32_t block) {
  constexpr auto size = static_cast<int32_t>(sizeof(Bits));
  const uint32_t first = block * (copy_threads * eighths_of_thread) + threadIdx.x;
  uint32_t words[eighths_of_thread][2];
#pragma unroll
  for (int i = 0; i < eighths_of_thread; ++i) {
    const uint32_t number = first + static_cast<uint32_t>(i * copy_threads);
    uint32_t column = number * (8 / size);
    const int64_t outer = p.by_outer.divide(column) * p.outer_stride, row = copied_place(p, outer, column);
    load_if<8>(row >= 0 && number < static_cast<uint32_t>(p.units), p.x + (row + column) * size, words[i]);
  }
#pragma unroll
  for (int i = 0; i < eighths_of_thread; ++i) {
    const uint32_t number = first + static_cast<uint32_t>(i * copy_threads);
    if (number < static_cast<uint32_t>(p.units)) device::store_global_8(p.to + number * 8, words[i][0], words[i][1]);
  }
}

template <class Bits>
CONVT_DEVICE void copy_rows(const CopyParams& p, uint32_t block) {
  if (p.unit == 8) return copy_eighths<Bits>(p, block);
  constexpr auto size = static_cast<int32_t>(sizeof(Bits));
  constexpr int32_t count = 16 / size;
  uint32_t number = block * copy_threads + threadIdx.x;
  if (number >= static_cast<uint32_t>(p.units)) return;
  if (p.across) {
    const uint32_t of_outer = p.outers.divide(number);
    number = number * (p.by_outer.divisor / count) + of_outer;
  }
  uint32_t first = number * count;
  const int64_t outer = p.by_outer.divide(first) * p.outer_stride;
  const auto pitch = static_cast<int32_t>(p.by_inner.divisor);
  uint32_t words[4] = {};
  if (p.column_stride == 1 && pitch >= count) {
    // Of one row, or of the end of one and the begin of the next.
    uint32_t column = first;
    const int64_t row = copied_place(p, outer, column);
    const auto at = static_cast<int32_t>(column);
    if (row >= 0) load_anywhere<Bits>(p.x, p.x_end, p.x + (row + at) * size, 0, smaller(count, p.columns - at), words);
    const int32_t rest = pitch - at;
    if (rest < count) {
      uint32_t next_column = first + static_cast<uint32_t>(rest), next[4] = {};
      const int64_t next_row = copied_place(p, outer, next_column);
      if (next_row >= 0) {
        load_anywhere<Bits>(p.x, p.x_end, p.x + (next_row - rest) * size, rest, smaller(count, rest + p.columns), next);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t kept = 8 * (rest * size - 4 * i);  // bits
        const uint32_t mask = kept >= 32 ? ~0u : kept <= 0 ? 0 : (1u << kept) - 1;
        words[i] = (words[i] & mask) | (next[i] & ~mask);
      }
    }
  } else {
#pragma unroll
    for (int e = 0; e < count; ++e) {
      uint32_t column = first + static_cast<uint32_t>(e), element;
      const int64_t row = copied_place(p, outer, column);
      load_if<size>(row >= 0, p.x + (row + column * p.column_stride) * size, &element);
      words[e * size / 4] |= element << 8 * (e * size % 4);
    }
  }
  device::store_global_16(p.to + static_cast<int64_t>(number) * 16, words[0], words[1], words[2], words[3]);
}

template <class Bits>
__global__ void __launch_bounds__(copy_threads) copy_rows_kernel(const __grid_constant__ CopyParams p) {
  device::let_next_kernel_start();
  copy_rows<Bits>(p, blockIdx.x);
}

}  // namespace convt
