// The arithmetic of one spatial axis of a transposed convolution, shared by the planner and by every kernel.
//
// Per axis, with stride s, padding p, dilation d, kernel k, output padding q:
//
//     out = (in - 1) * s - 2 * p + d * (k - 1) + q + 1
//     y[o] = sum of x[i] * w[t] over all taps t with o + p = i * s + t * d and 0 <= i < in
//
// Let g = gcd(s, d). Only outputs with g | (o + p) mod s are reached by any tap; the taps of such an output are an
// arithmetic progression with step s / g, and their input positions one with step -d / g. So there is no divisibility
// test per tap. `transposed_taps` solves this for one output, `convolution_taps` and `reduction_range` for the two
// adjoints.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>

#if defined(__CUDACC__)
#define CONVT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CONVT_HOST_DEVICE inline
#endif

namespace convt {

// C's `/` truncates towards zero, which is wrong here for negative numerators. `b` is positive. Division by one is by
// far the most common case and a uniform branch is much cheaper than an integer division on a GPU.
template <class Index>
CONVT_HOST_DEVICE constexpr Index floor_div(Index a, Index b) {
  return b == 1 ? a : a / b - (a % b < 0 ? 1 : 0);
}

template <class Index>
CONVT_HOST_DEVICE constexpr Index ceil_div(Index a, Index b) {
  return b == 1 ? a : a / b + (a % b > 0 ? 1 : 0);
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

template <class Index>
CONVT_HOST_DEVICE constexpr Index smaller(Index a, Index b) {
  return a < b ? a : b;
}

template <class Index>
CONVT_HOST_DEVICE constexpr Index larger(Index a, Index b) {
  return a < b ? b : a;
}

// Overflow of a size is an error, never a wrap: overflow.h has its type. Host only.
[[noreturn]] void throw_overflow(const char* what, int64_t a, int64_t b);

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) throw_overflow("product", a, b);
  return r;
}

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) throw_overflow("sum", a, b);
  return r;
}

// The size of the output; zero or negative if the padding eats all of it.
inline int64_t output_size(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t output_padding,
                           int64_t dilation) {
  const int64_t spread = checked_mul(checked_add(in, -1), stride);
  const int64_t reach = checked_mul(dilation, checked_add(kernel, -1));
  const int64_t cut = checked_mul(-2, padding);
  return checked_add(checked_add(checked_add(spread, cut), checked_add(reach, output_padding)), 1);
}

// x with a * x = 1 (mod m), for coprime a and m; 0 when m is 1.
constexpr int64_t modular_inverse(int64_t a, int64_t m) {
  int64_t r0 = m, r1 = a % m, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const int64_t q = r0 / r1;
    const int64_t r2 = r0 - q * r1, t2 = t0 - q * t1;
    r0 = r1, r1 = r2, t0 = t1, t1 = t2;
  }
  return t0 < 0 ? t0 + m : (m == 1 ? 0 : t0);
}

template <class Index>
struct Axis {
  Index in, out, kernel, stride, padding, dilation;
  Index divisor;      // g = gcd(stride, dilation)
  Index tap_step;     // stride / g
  Index input_step;   // dilation / g
  Index tap_inverse;  // the inverse of dilation / g modulo stride / g
};

template <class Index = int64_t>
constexpr Axis<Index> make_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                                int64_t dilation) {
  const int64_t g = std::gcd(stride, dilation);
  return {static_cast<Index>(in),
          static_cast<Index>(out),
          static_cast<Index>(kernel),
          static_cast<Index>(stride),
          static_cast<Index>(padding),
          static_cast<Index>(dilation),
          static_cast<Index>(g),
          static_cast<Index>(stride / g),
          static_cast<Index>(dilation / g),
          static_cast<Index>(modular_inverse(dilation / g, stride / g))};
}

// `count` taps: the j-th is tap `tap + j * tap_step` at position `position + j * position_step` of the other tensor,
// every one of them inside it.
template <class Index>
struct Taps {
  Index tap, tap_step;
  Index position, position_step;
  Index count;
};

// The taps that reach output `o`, with their input positions.
template <class Index>
CONVT_HOST_DEVICE Taps<Index> transposed_taps(const Axis<Index>& a, Index o) {
  Taps<Index> taps{0, a.tap_step, 0, -a.input_step, 0};
  const Index u = o + a.padding;
  const Index whole = a.stride == 1 ? u : u / a.stride;
  const Index phase = u - whole * a.stride;
  Index tap = 0;
  if (phase != 0) {
    const Index q = a.divisor == 1 ? phase : phase / a.divisor;
    if (q * a.divisor != phase) return taps;
    tap = q * a.tap_inverse % a.tap_step;
  }
  if (tap >= a.kernel) return taps;
  // u - tap * d is a multiple of s, so this division is exact.
  const Index position = tap == 0 ? whole : (u - tap * a.dilation) / a.stride;
  if (position < 0) return taps;
  const Index first = larger<Index>(0, ceil_div<Index>(position - a.in + 1, a.input_step));
  const Index last = smaller<Index>(ceil_div<Index>(a.kernel - tap, a.tap_step), floor_div(position, a.input_step) + 1);
  if (last <= first) return taps;
  taps.tap = tap + first * a.tap_step;
  taps.position = position - first * a.input_step;
  taps.count = last - first;
  return taps;
}

// The taps that input `i` reaches, with their output positions: an ordinary strided convolution over y.
template <class Index>
CONVT_HOST_DEVICE Taps<Index> convolution_taps(const Axis<Index>& a, Index i) {
  const Index base = i * a.stride - a.padding;
  const Index first = larger<Index>(0, ceil_div<Index>(-base, a.dilation));
  const Index last = smaller<Index>(a.kernel, floor_div<Index>(a.out - 1 - base, a.dilation) + 1);
  return {first, 1, base + first * a.dilation, a.dilation, larger<Index>(0, last - first)};
}

// The inputs [first, first + count) that tap `t` carries into the output; input i lands on output i * s + offset.
template <class Index>
struct Reduction {
  Index first, count, offset;
};

template <class Index>
CONVT_HOST_DEVICE Reduction<Index> reduction_range(const Axis<Index>& a, Index t) {
  const Index offset = t * a.dilation - a.padding;
  const Index first = larger<Index>(0, ceil_div<Index>(-offset, a.stride));
  const Index last = smaller<Index>(a.in, floor_div<Index>(a.out - 1 - offset, a.stride) + 1);
  return {first, larger<Index>(0, last - first), offset};
}

// How many (input, tap) pairs of this axis land inside the output: the useful multiplications of the axis.
inline int64_t useful_pairs(const Axis<int64_t>& a) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < a.kernel; ++t) pairs = checked_add(pairs, reduction_range(a, t).count);
  return pairs;
}

}  // namespace convt
