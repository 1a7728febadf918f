#pragma once

#include "element.h"

namespace convt::direct {

constexpr int warp_size = 32;

template <class Scalar, class Index, int Block>
__global__ void __launch_bounds__(Block) output_kernel(const Params<Index> p) {
  const Index i = static_cast<Index>(blockIdx.x) * Block + static_cast<Index>(threadIdx.x);
  if (i >= p.results) return;
  const auto at = coordinates(i, p.out_channels, p.h.out, p.w_axis.out, p.channels_innermost);
  store(static_cast<Scalar*>(p.result) + offset(at, p.y_strides),
        output_element<Scalar>(p, at.n, at.channel, at.row, at.column));
}

template <class Scalar, class Index, int Block>
__global__ void __launch_bounds__(Block) input_kernel(const Params<Index> p) {
  const Index i = static_cast<Index>(blockIdx.x) * Block + static_cast<Index>(threadIdx.x);
  if (i >= p.results) return;
  const auto at = coordinates(i, p.in_channels, p.h.in, p.w_axis.in, p.channels_innermost);
  store(static_cast<Scalar*>(p.result) + offset(at, p.x_strides),
        input_element<Scalar>(p, at.n, at.channel, at.row, at.column));
}

__device__ __forceinline__ float shuffle_down(float v, int delta) { return __shfl_down_sync(~0u, v, delta); }
__device__ __forceinline__ double shuffle_down(double v, int delta) { return __shfl_down_sync(~0u, v, delta); }
template <class T>
__device__ __forceinline__ Complex<T> shuffle_down(Complex<T> v, int delta) {
  return {shuffle_down(v.re, delta), shuffle_down(v.im, delta)};
}

// In a fixed order; the total is in lane 0.
template <class A>
__device__ __forceinline__ A warp_sum(A v) {
#pragma unroll
  for (int delta = warp_size / 2; delta > 0; delta /= 2) v = add(v, shuffle_down(v, delta));
  return v;
}

template <class Scalar, class Index, int Block, int ThreadsPerResult>
__global__ void __launch_bounds__(Block) weight_kernel(const Params<Index> p) {
  static_assert(ThreadsPerResult == warp_size || ThreadsPerResult == Block, "a warp or the block reduces one weight");
  static_assert(Block % warp_size == 0 && Block / warp_size <= warp_size, "one warp adds up the sums of the others");
  constexpr int results_per_block = Block / ThreadsPerResult;
  const int thread = threadIdx.x % ThreadsPerResult;
  const Index i = static_cast<Index>(blockIdx.x) * results_per_block + threadIdx.x / ThreadsPerResult;
  // Uniform over the threads that share a result.
  if (i >= p.results) return;
  const Index kernel_w = p.w_axis.kernel, kernel_h = p.h.kernel;
  const Index above = i / kernel_w, plane = above / kernel_h, ci = plane / p.out_channels_per_group;
  const Index kw = i - above * kernel_w, kh = above - plane * kernel_h, co = plane - ci * p.out_channels_per_group;
  auto sum = warp_sum(weight_element_part<Scalar>(p, ci, co, kh, kw, Index(thread), Index(ThreadsPerResult)));
  if constexpr (ThreadsPerResult > warp_size) {
    constexpr int warps = Block / warp_size;
    __shared__ Accumulator<Scalar> sums[warps];
    const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = warp_sum(lane < warps ? sums[lane] : zero<Accumulator<Scalar>>());
  }
  if (thread == 0) {
    store(static_cast<Scalar*>(p.result) + ci * p.w_strides.d0 + co * p.w_strides.d1 + kh * p.w_strides.d2 +
              kw * p.w_strides.d3,
          sum);
  }
}

}  // namespace convt::direct
