// What a depthwise kernel is given, by value, and how wide its accesses of memory may be.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../operands.h"
#include "../scalar.h"
#include "config.h"

namespace convt::depthwise {

// A value that the compiler knows nothing about: what is computed from it stays inside the loop that asks for it, and
// an address is not taken apart into what it was computed from.
template <class T>
CONVT_HOST_DEVICE T opaque(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(v));
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("" : "+h"(v));
  } else {
    asm volatile("" : "+r"(v));
  }
#endif
  return v;
}

#if defined(__CUDA_ARCH__)
template <int N, class Scalar, class Type>
__device__ __forceinline__ void from_words(const Type& words, float* to) {
  if constexpr (sizeof(Scalar) == 4) {
    if constexpr (N == 1) {
      to[0] = __uint_as_float(words);
    } else {
      to[0] = __uint_as_float(words.x), to[1] = __uint_as_float(words.y);
      if constexpr (N == 4) to[2] = __uint_as_float(words.z), to[3] = __uint_as_float(words.w);
    }
  } else {
    const auto put = [&](int i, unsigned word) {
      const float2 pair = unpack(Scalar{}, word);
      to[i] = pair.x, to[i + 1] = pair.y;
    };
    if constexpr (N == 1) {
      to[0] = to_float(Scalar{words});
    } else if constexpr (N == 2) {
      put(0, words);
    } else {
      put(0, words.x), put(2, words.y);
      if constexpr (N == 8) put(4, words.z), put(6, words.w);
    }
  }
}
#endif

// N elements as they are in memory.
template <int N, class Scalar>
struct Loaded {
#if defined(__CUDA_ARCH__)
  typename Words<static_cast<int>(sizeof(Scalar)) * N>::Type words;
#else
  float values[N];
#endif
};

// N elements, or zeros. The choice is made before they are converted, of whole words.
template <int N, class Scalar>
CONVT_HOST_DEVICE Loaded<N, Scalar> loaded_if(bool inside, const Scalar* from) {
  Loaded<N, Scalar> loaded{};
#if defined(__CUDA_ARCH__)
  auto& words = loaded.words;
  using Type = std::remove_reference_t<decltype(words)>;
  if (inside) words = __ldg(reinterpret_cast<const Type*>(from));
  // Not moved to where it is used, behind a branch: it would be under way too late.
  if constexpr (sizeof(Type) <= 4) {
    words = opaque(words);
  } else {
    words.x = opaque(words.x), words.y = opaque(words.y);
    if constexpr (sizeof(Type) == 16) words.z = opaque(words.z), words.w = opaque(words.w);
  }
#else
  if (inside) load<N>(from, loaded.values);
#endif
  return loaded;
}

template <int N, class Scalar>
CONVT_HOST_DEVICE void values_of(const Loaded<N, Scalar>& loaded, float* to) {
#if defined(__CUDA_ARCH__)
  from_words<N, Scalar>(loaded.words, to);
#else
  for (int i = 0; i < N; ++i) to[i] = loaded.values[i];
#endif
}

template <int N, class Scalar>
CONVT_HOST_DEVICE void load_if(bool inside, const Scalar* from, float* to) {
  values_of<N, Scalar>(loaded_if<N>(inside, from), to);
}

// Strides in elements. Inside an image of one channel 32 bits hold every offset.
struct Params {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, w_group_stride, w_channel_stride,
      bias_stride;
  int32_t x_row_stride;
  int32_t in_h, in_w, out_h, out_w;
  int32_t shift_h, shift_w;  // of the input, by the padding beyond the configuration's
  int32_t store_width;       // elements
  uint32_t threads;
  Divisor columns, rows, channels, multiplier;  // tiles of a row and of a column; output channels in all and of a group
  Divisor slices_h;
};

static_assert(std::is_trivially_copyable_v<Params>);

// What a tile sees of an axis: positions of the input and of the output, of which position i is `first + i * step` of
// the tensor's, and the shift of the input beyond the configuration's padding.
//
// If the kernel is dilated by d and the stride is 1, outputs that are d apart are an axis of their own, whose kernel is
// not dilated: output q * d + r reads inputs (q + m - t) * d + s, where r + padding = m * d + s.
struct Slice {
  int32_t in, out, shift;
  int32_t first_in, first_out, step;
};

CONVT_HOST_DEVICE Slice whole_axis(int32_t in, int32_t out, int32_t shift) { return {in, out, shift, 0, 0, 1}; }

// Of a tile's number along an axis of stride 1, which becomes that in its slice. Neighbouring tiles are in different
// slices.
template <int Padding>
CONVT_HOST_DEVICE Slice slice_of(const Slice& whole, const Divisor& slices, uint32_t& tile) {
  Slice slice = whole;
  if (slices.divisor > 1) {
    uint32_t first_out = tile;
    tile = slices.divide(first_out);
    uint32_t first_in = first_out + static_cast<uint32_t>(whole.shift + Padding);
    slice.shift = static_cast<int32_t>(slices.divide(first_in)) - Padding;
    const auto count = [&](int32_t size, uint32_t first) {
      uint32_t n = static_cast<uint32_t>(size) + (slices.divisor - 1 - first);
      return static_cast<int32_t>(slices.divide(n));
    };
    slice.in = count(whole.in, first_in), slice.out = count(whole.out, first_out);
    slice.first_in = static_cast<int32_t>(first_in), slice.first_out = static_cast<int32_t>(first_out);
    slice.step = static_cast<int32_t>(slices.divisor);
  }
  return slice;
}

struct TileCounts {
  int64_t columns, rows;
};

inline TileCounts tile_counts(const Config& c, const Problem& p, Access access) {
  const Tile tile = tile_of(c, element_size(p.dtype), access);
  return {ceil_div<int64_t>(p.out_w, tile.columns * c.w.stride),
          tiles_along(p.out_h, slices_of(p.kernel_h, p.dilation_h), tile.rows * c.h.stride)};
}

// The widest power of two of elements in which all rows of the result can be stored.
inline int32_t store_width(const Config& c, const Problem& p, const Operands& o, Access access) {
  return access_width(o.result, element_size(p.dtype), p.y_sizes(), p.y_strides, 3, p.out_w,
                      widest_store(c, element_size(p.dtype), access));
}

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o, Access access = Access::vectors) {
  const Config& c = configs[plan.configuration];
  const TileCounts tiles = tile_counts(c, p, access);
  Params q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1];
  q.w_group_stride = p.w_strides[0], q.w_channel_stride = p.w_strides[1];
  q.bias_stride = p.bias_stride;
  q.x_row_stride = used_stride_32(p.in_h, p.x_strides[2]);
  q.in_h = static_cast<int32_t>(p.in_h), q.in_w = static_cast<int32_t>(p.in_w);
  q.out_h = static_cast<int32_t>(p.out_h), q.out_w = static_cast<int32_t>(p.out_w);
  q.shift_h = static_cast<int32_t>((p.padding_h - c.h.padding) / c.h.stride);
  q.shift_w = static_cast<int32_t>((p.padding_w - c.w.padding) / c.w.stride);
  q.store_width = store_width(c, p, o, access);
  q.threads = static_cast<uint32_t>(p.batch * p.out_channels * tiles.rows * tiles.columns);
  q.columns = Divisor(tiles.columns), q.rows = Divisor(tiles.rows);
  q.channels = Divisor(p.out_channels), q.multiplier = Divisor(p.out_channels_per_group());
  q.slices_h = Divisor(slices_of(p.kernel_h, p.dilation_h));
  return q;
}

// Form tile: in vectors, where input rows can be loaded in vectors of the tile's columns and output rows stored in
// eight bytes, or in as many as ever are. The planner says whether what is not is taken by tall tiles.
inline Access access_of(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t bytes = element_size(p.dtype);
  const int32_t columns = tile_of(c, bytes).columns;
  const int32_t stored = store_width(c, p, o, Access::vectors);
  const bool vectors = (p.padding_w - c.w.padding) / c.w.stride % columns == 0 &&
                       access_width(o.x, bytes, p.x_sizes(), p.x_strides, 3, p.in_w, columns) == columns &&
                       (stored * bytes >= 8 || stored == widest_store(c, bytes));
  if (vectors) return Access::vectors;
  return plan.cut[0] != 0 && has_tall(c, bytes) ? Access::tall : Access::elements;
}

// Form rows: whether the tensors lie in memory as the vectors want; their sizes and strides are known to fit. The
// kernel for any shape computes it if not.
inline bool fits_rows(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t bytes = element_size(p.dtype);
  const auto aligned = [&](const void* pointer, int32_t elements) {
    return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(elements * bytes) == 0;
  };
  return aligned(o.x, tile_of(c, bytes).columns) && aligned(o.w, weight_piece(c, bytes)) &&
         aligned(o.result, widest_store(c, bytes));
}

}  // namespace convt::depthwise
