// Element types, and vectors of them in memory. The 16-bit types are their bits, so that a compiler without CUDA's
// headers computes with them too.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../plan/geometry.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace convt {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// What is copied of an element, whatever it means.
template <class Scalar>
using BitsOf = std::conditional_t<sizeof(Scalar) == 4, uint32_t, uint16_t>;

#if !defined(__CUDA_ARCH__)
inline float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
inline uint32_t bits_of_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(f));
  return bits;
}

inline float to_float(float v) { return v; }
inline float to_float(BFloat16 v) { return float_of_bits(static_cast<uint32_t>(v.bits) << 16); }
inline float to_float(Float16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Moved into place with the exponent still biased by 15; the product rebiases it, subnormals included.
  return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
}

template <class Scalar>
Scalar from_float(float v);
template <>
inline float from_float<float>(float v) {
  return v;
}
template <>
inline BFloat16 from_float<BFloat16>(float v) {
  const uint32_t bits = bits_of_float(v);
  if (v != v) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
inline Float16 from_float<Float16>(float v) {
  const uint32_t bits = bits_of_float(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x38800000) {
    // Below the smallest normal number: the sum's last bit is the subnormals' unit, so the addition rounds to it.
    const float sum = float_of_bits(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (bits_of_float(sum) - bits_of_float(0.5f)))};
  }
  return {static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13)};
}

// An access to less aligned memory than a GPU needs for it is undefined behaviour here too, so that a sanitizer sees
// it.
template <class Scalar, int N>
struct alignas(sizeof(Scalar) * N) Vector {
  Scalar v[N];
};

template <int N, class Scalar>
void load(const Scalar* from, float* to) {
  const Vector<Scalar, N>& vector = *reinterpret_cast<const Vector<Scalar, N>*>(from);
  for (int i = 0; i < N; ++i) to[i] = to_float(vector.v[i]);
}

// Two elements of 16 bits in a word.
template <class Scalar>
uint32_t pack(Scalar, float low, float high) {
  return static_cast<uint32_t>(from_float<Scalar>(high).bits) << 16 | from_float<Scalar>(low).bits;
}

template <int N, class Scalar>
void store(Scalar* to, const float* from) {
  Vector<Scalar, N>& vector = *reinterpret_cast<Vector<Scalar, N>*>(to);
  for (int i = 0; i < N; ++i) vector.v[i] = from_float<Scalar>(from[i]);
}
#else
template <int Bytes>
struct Words;
template <>
struct Words<2> {
  using Type = unsigned short;
};
template <>
struct Words<4> {
  using Type = unsigned;
};
template <>
struct Words<8> {
  using Type = uint2;
};
template <>
struct Words<16> {
  using Type = uint4;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(Float16 v) { return __half2float(__ushort_as_half(v.bits)); }
__device__ __forceinline__ float to_float(BFloat16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }

__device__ __forceinline__ float2 unpack(Float16, unsigned word) {
  return {__half2float(__ushort_as_half(static_cast<unsigned short>(word))),
          __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)))};
}
__device__ __forceinline__ float2 unpack(BFloat16, unsigned word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
__device__ __forceinline__ unsigned pack(Float16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return static_cast<unsigned>(__half_as_ushort(__high2half(pair))) << 16 | __half_as_ushort(__low2half(pair));
}
__device__ __forceinline__ unsigned pack(BFloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<unsigned>(__bfloat16_as_ushort(__high2bfloat16(pair))) << 16 |
         __bfloat16_as_ushort(__low2bfloat16(pair));
}

template <int N>
__device__ __forceinline__ void load(const float* from, float* to) {
  using Type = typename Words<4 * N>::Type;
  const Type words = __ldg(reinterpret_cast<const Type*>(from));
  if constexpr (N == 1) {
    to[0] = __uint_as_float(words);
  } else {
    to[0] = __uint_as_float(words.x), to[1] = __uint_as_float(words.y);
    if constexpr (N == 4) to[2] = __uint_as_float(words.z), to[3] = __uint_as_float(words.w);
  }
}

template <int N, class Scalar>
__device__ __forceinline__ void load(const Scalar* from, float* to) {
  using Type = typename Words<2 * N>::Type;
  const Type words = __ldg(reinterpret_cast<const Type*>(from));
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

template <int N>
__device__ __forceinline__ void store(float* to, const float* from) {
  if constexpr (N == 1) {
    *to = from[0];
  } else if constexpr (N == 2) {
    *reinterpret_cast<float2*>(to) = {from[0], from[1]};
  } else {
    *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
  }
}

template <int N, class Scalar>
__device__ __forceinline__ void store(Scalar* to, const float* from) {
  const auto word = [&](int i) { return pack(Scalar{}, from[i], from[i + 1]); };
  if constexpr (N == 1) {
    to->bits = static_cast<uint16_t>(pack(Scalar{}, from[0], 0.0f));
  } else if constexpr (N == 2) {
    *reinterpret_cast<unsigned*>(to) = word(0);
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = {word(0), word(2)};
  } else {
    *reinterpret_cast<uint4*>(to) = {word(0), word(2), word(4), word(6)};
  }
}
#endif

}  // namespace convt
