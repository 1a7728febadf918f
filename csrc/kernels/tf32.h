// Operands of TF32 multiplications. cvt.rna.tf32 is four instructions on sm_90; the tensor core does not read the 13
// low bits, so that rounding an operand is an addition.
#pragma once

#include "device.h"

namespace convt {

// What the tensor core reads as `v` rounded to TF32, to nearest with ties away from zero; NaN and infinity stay.
CONVT_DEVICE uint32_t tf32_operand(uint32_t v) {
#if defined(__CUDA_ARCH__)
  // Two instructions; the compiler selects between the two values instead.
  asm("{.reg .pred p; .reg .f32 m; abs.f32 m, %1; setp.lt.f32 p, m, 0f7F800000; @p add.u32 %0, %0, 0x1000;}"
      : "+r"(v)
      : "f"(__uint_as_float(v)));
#else
  const float magnitude = __uint_as_float(v & 0x7fffffff);
  if (magnitude < __uint_as_float(0x7f800000)) v += 0x1000;
#endif
  return v;
}

// Likewise, of several values: an addition each, which leaves an infinity what it is. It reaches the sign of NaN alone,
// which is seldom.
template <int Count>
CONVT_DEVICE void tf32_operands(uint32_t (&v)[Count]) {
  uint32_t rounded[Count], changed = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) rounded[i] = v[i] + 0x1000, changed |= rounded[i] ^ v[i];
  if (changed >> 31 != 0) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const auto before = static_cast<uint32_t>(device::opaque(static_cast<int32_t>(v[i])));  // not in the other path
      if ((rounded[i] ^ before) >> 31 != 0) rounded[i] = before;
    }
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) v[i] = rounded[i];
}

// `v` rounded to TF32, to nearest with ties to even, as the copy engine does; NaN and infinity stay.
CONVT_DEVICE float nearest_tf32(float v) {
  const uint32_t bits = __float_as_uint(v);
  if ((bits & 0x7f800000) == 0x7f800000) return v;
  return __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000);
}

// `v` as the sum of two operands; what is left is below float32's precision. Products with a `v` that is not finite, or
// that rounds to infinity, are not finite either, but may be NaN where `v`'s were infinite.
CONVT_DEVICE void split_tf32_operand(uint32_t v, uint32_t& high, uint32_t& low) {
  high = tf32_operand(v) & 0xffffe000;
  low = __float_as_uint(__uint_as_float(v) - __uint_as_float(high)) + 0x1000;
}

}  // namespace convt
