// Element types: how each is loaded into its accumulator, multiplied and stored.
#pragma once

#include "../../plan/geometry.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace convt::direct {

// std::complex has no device arithmetic and cuda::std::complex rescues infinities at many times the cost of the
// product; torch's CUDA convolutions do neither.
template <class T>
struct Complex {
  T re, im;
};

template <class Scalar>
struct Traits {
  using Accumulator = Scalar;
};

template <class A>
CONVT_HOST_DEVICE A zero() {
  return A{};
}

// acc + a * b
CONVT_HOST_DEVICE float multiply_add(float a, float b, float acc) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, acc);
#else
  return a * b + acc;
#endif
}

CONVT_HOST_DEVICE double multiply_add(double a, double b, double acc) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, acc);
#else
  return a * b + acc;
#endif
}

template <class T>
CONVT_HOST_DEVICE Complex<T> multiply_add(Complex<T> a, Complex<T> b, Complex<T> acc) {
  return {multiply_add(-a.im, b.im, multiply_add(a.re, b.re, acc.re)),
          multiply_add(a.im, b.re, multiply_add(a.re, b.im, acc.im))};
}

CONVT_HOST_DEVICE float add(float a, float b) { return a + b; }
CONVT_HOST_DEVICE double add(double a, double b) { return a + b; }
template <class T>
CONVT_HOST_DEVICE Complex<T> add(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}

template <class Scalar>
CONVT_HOST_DEVICE typename Traits<Scalar>::Accumulator load(const Scalar* p) {
  return *p;
}

template <class Scalar>
CONVT_HOST_DEVICE void store(Scalar* p, typename Traits<Scalar>::Accumulator v) {
  *p = v;
}

#if defined(__CUDACC__)
template <>
struct Traits<__half> {
  using Accumulator = float;
};
template <>
struct Traits<__nv_bfloat16> {
  using Accumulator = float;
};
template <>
CONVT_HOST_DEVICE float load<__half>(const __half* p) {
  return __half2float(*p);
}
template <>
CONVT_HOST_DEVICE float load<__nv_bfloat16>(const __nv_bfloat16* p) {
  return __bfloat162float(*p);
}
template <>
CONVT_HOST_DEVICE void store<__half>(__half* p, float v) {
  *p = __float2half_rn(v);
}
template <>
CONVT_HOST_DEVICE void store<__nv_bfloat16>(__nv_bfloat16* p, float v) {
  *p = __float2bfloat16_rn(v);
}
#endif

}  // namespace convt::direct
