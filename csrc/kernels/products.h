// Products of mma.sync in every precision: how a lane's operands are made of elements, and multiplied.
#pragma once

#include "device.h"
#include "phases.h"
#include "tf32.h"

namespace convt {

// Words of a lane that a product takes of 16 rows: of rows g and g + 8, of each part or of each word of 8 columns; and
// of 8 columns of the other operand. In strict float32 those of weights are parts 2, 1, 1 and 0, see multiply.
template <bool Strict, int StepWords>
constexpr int tile_words = Strict ? 6 : StepWords / 2;
template <bool Strict, int StepWords>
constexpr int weight_words = Strict ? 4 : StepWords / 4;

// d = a b. Added to zeros that are constants, which take no registers.
CONVT_DEVICE void multiply_first(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
#if defined(__CUDA_ARCH__)
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(0.0f));
#else
  for (float& v : d) v = 0;
  device::mma_m16n8k8<BFloat16>(d, a, b);
#endif
}
CONVT_DEVICE void multiply_first(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
  for (float& v : d) v = 0;
  device::mma_m16n8k16<BFloat16>(d, a, b);
#endif
}

template <class Scalar, bool Strict, int StepWords>
CONVT_DEVICE void multiply(float (&d)[4], const uint32_t (&a)[tile_words<Strict, StepWords>],
                           const uint32_t (&b)[weight_words<Strict, StepWords>]) {
  if constexpr (Strict) {
    // The products of float32's parts, the smallest first, and the tensor core's truncated sum for 8 channels only: the
    // rest is added in float32. What is left out is below a hundredth of float32's precision.
    // Parts 0 and 1 of x lie beside each other, and so do parts 2 and 1, and 1 and 0, of the weights: two products are
    // one instruction, for which no register is copied.
    const uint32_t a01[4] = {a[0], a[1], a[2], a[3]}, a0[2] = {a[0], a[1]}, a2[2] = {a[4], a[5]};
    const uint32_t b21[2] = {b[0], b[1]}, b10[2] = {b[2], b[3]}, b0[1] = {b[3]};
    float sum[4];
    multiply_first(sum, a01, b21);
    device::mma_m16n8k8<BFloat16>(sum, a2, b0);
    device::mma_m16n8k16<BFloat16>(sum, a01, b10);
    device::mma_m16n8k8<BFloat16>(sum, a0, b0);
#pragma unroll
    for (int q = 0; q < 4; ++q) d[q] += sum[q];
  } else if constexpr (sizeof(Scalar) == 2 && StepWords == 4) {
    const uint32_t b1[1] = {b[0]};
    device::mma_m16n8k8<Scalar>(d, a, b1);
  } else if constexpr (sizeof(Scalar) == 2) {
    const uint32_t b2[2] = {b[0], b[1]};
    device::mma_m16n8k16<Scalar>(d, a, b2);
  } else {
    const uint32_t b2[2] = {b[0], b[1]};
    device::mma_m16n8k8_tf32(d, a, b2);
  }
}

// The same in strict float32, where several products are summed before they are added in float32. What the tensor core
// truncates is a part of the largest number: products of parts 0 have 16 bits each, so that their sum in `large` loses
// next to nothing, and all others are small. Both begin anew with the first of them.
CONVT_DEVICE void multiply_parts(float (&large)[4], float (&small)[4], const uint32_t (&a)[6], const uint32_t (&b)[4],
                                 bool first) {
  const uint32_t a01[4] = {a[0], a[1], a[2], a[3]}, a0[2] = {a[0], a[1]}, a2[2] = {a[4], a[5]};
  const uint32_t b21[2] = {b[0], b[1]}, b10[2] = {b[2], b[3]}, b0[1] = {b[3]};
  if (first) {
    multiply_first(small, a01, b21);
    multiply_first(large, a0, b0);
  } else {
    device::mma_m16n8k16<BFloat16>(small, a01, b21);
    device::mma_m16n8k8<BFloat16>(large, a0, b0);
  }
  device::mma_m16n8k8<BFloat16>(small, a2, b0);
  device::mma_m16n8k16<BFloat16>(small, a01, b10);
}

CONVT_DEVICE uint32_t pack_bfloat16(float low, float high) {
#if defined(__CUDA_ARCH__)
  return pack(BFloat16{}, low, high);
#else
  return from_float<BFloat16>(low).bits | static_cast<uint32_t>(from_float<BFloat16>(high).bits) << 16;
#endif
}

// Two float32 elements as three bfloat16 parts each; what is left of a finite one is zero, of others it is NaN.
CONVT_DEVICE void split_pair(uint32_t low, uint32_t high, uint32_t (&words)[3], float (&left)[2]) {
  left[0] = __uint_as_float(low), left[1] = __uint_as_float(high);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    words[part] = pack_bfloat16(left[0], left[1]);
    left[0] -= __uint_as_float(words[part] << 16), left[1] -= __uint_as_float(words[part] & 0xffff0000);
  }
}

// Whether a word as it is multiplied is or has an infinity or a NaN.
template <class Scalar>
CONVT_DEVICE bool not_finite(uint32_t word) {
  if constexpr (sizeof(Scalar) == 4) {
    return (word & 0x7f800000u) == 0x7f800000u;
  } else {
    // Largest exponent of float16, of bfloat16.
    constexpr uint32_t mask = std::is_same_v<Scalar, Float16> ? 0x7c00u : 0x7f80u;
    return (word & mask) == mask || (word >> 16 & mask) == mask;
  }
}

template <class Scalar>
CONVT_DEVICE uint32_t bits(const Scalar* p) {
  if constexpr (sizeof(Scalar) == 4) {
    return __float_as_uint(__ldg(p));
  } else {
    return __ldg(reinterpret_cast<const uint16_t*>(p));
  }
}

template <class Scalar, bool Strict>
CONVT_DEVICE uint32_t operand(uint32_t word) {
  if constexpr (sizeof(Scalar) == 4 && !Strict) return tf32_operand(word);
  return word;
}

template <class Scalar>
CONVT_DEVICE float element_of(uint32_t word, int which) {
  if constexpr (sizeof(Scalar) == 4) {
    return __uint_as_float(word);
  } else {
    return to_float(Scalar{static_cast<uint16_t>(word >> 16 * which)});
  }
}

// Words that are put together of two channels: of 16-bit elements, or of float32's parts.
template <class Scalar, bool Strict>
constexpr bool pairs = sizeof(Scalar) == 2 || Strict;

// An output without bias by its definition, see exact_output.h, for kernels that are given phases: of the image `x` and
// output channel `co` of the group.
template <class Scalar, bool Strict, class P>
CONVT_DEVICE float sum_of_phases(const P& p, const Scalar* x, int32_t row, int32_t column, int32_t group, int32_t co) {
  const Scalar* w = static_cast<const Scalar*>(p.w);
  const int32_t jh = row / p.h.stride, jw = column / p.w_axis.stride;
  const Phase h = p.h.phases.of[row - jh * p.h.stride], v = p.w_axis.phases.of[column - jw * p.w_axis.stride];
  const auto value = [](const Scalar* at) {
    const uint32_t word = operand<Scalar, Strict>(bits(at));
    return element_of<Scalar>(sizeof(Scalar) == 4 && !Strict ? word & 0xffffe000 : word, 0);
  };
  float sum = 0;
#pragma unroll 1
  for (int32_t i = 0; i < h.count; ++i) {
    const int32_t ih = jh + h.top - i * p.h.input_step;
    if (ih < 0 || ih >= p.h.in) continue;
#pragma unroll 1
    for (int32_t k = 0; k < v.count; ++k) {
      const int32_t iw = jw + v.top - k * p.w_axis.input_step;
      if (iw < 0 || iw >= p.w_axis.in) continue;
#pragma unroll 1
      for (int32_t ci = 0; ci < p.cin; ++ci) {
        const int32_t channel = group * p.cin + ci;
        sum +=
            value(x + (int64_t{channel} * p.x_channel + int64_t{ih} * p.x_row + int64_t{iw} * p.x_column)) *
            value(w + (int64_t{channel} * p.w_in + int64_t{co} * p.w_out + int64_t{h.tap + i * p.h.tap_step} * p.w_row +
                       int64_t{v.tap + k * p.w_axis.tap_step} * p.w_column));
      }
    }
  }
  return sum;
}

// Computes those of a warp's outputs of some channels and columns again that are NaN: a zero outside the image times a
// weight that is not finite is NaN, and so is the sum of the parts of an infinity. They are at place(channel, column).
template <class Scalar, class Place, class Value>
CONVT_DEVICE void repair_outputs(int32_t channels, int32_t columns, const Place& place, const Value& value) {
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x % 32); i < channels * columns; i += 32) {
    const int32_t channel = i / columns, column = i - channel * columns;
    Scalar* y = place(channel, column);
    const float stored = element_of<Scalar>(
        sizeof(Scalar) == 4 ? *reinterpret_cast<const uint32_t*>(y) : *reinterpret_cast<const uint16_t*>(y), 0);
    if (stored == stored) continue;
    const float v = value(channel, column);
    store<1>(y, &v);
  }
}

}  // namespace convt
