// Copies x to rows that begin at multiples of 16 bytes, of all images, for the copy engine to read.
#pragma once

#include "../device.h"
#include "params.h"

namespace convt::gemm_scatter_sm90 {

template <class Scalar>
CONVT_DEVICE uint32_t load_bits(const Scalar* from) {
  return __ldg(reinterpret_cast<const uint16_t*>(from));
}

// A block has positions of one channel.
template <class Scalar>
__global__ void __launch_bounds__(align_threads) align_kernel(const __grid_constant__ AlignParams p) {
  device::let_next_kernel_start();
  uint32_t block = blockIdx.x;
  const auto channel = static_cast<int64_t>(p.blocks.divide(block));
  const auto first = static_cast<int32_t>(block) * align_positions + 2 * static_cast<int32_t>(threadIdx.x);
  const auto* const x = static_cast<const Scalar*>(p.x) + channel * p.channel_stride;
  auto* const to = static_cast<Scalar*>(p.to) + channel * p.to_stride;
  uint32_t low[align_pairs], high[align_pairs];
#pragma unroll
  for (int i = 0; i < align_pairs; ++i) {
    const int32_t at = first + 2 * i * align_threads;
    low[i] = high[i] = 0;
    if (at >= p.positions) break;
    auto position = static_cast<uint32_t>(at);
    const auto image = static_cast<int64_t>(p.image.divide(position));
    const Scalar* const from = x + image * p.batch_stride + position * p.position_stride;
    low[i] = load_bits(from);
    if (at + 1 == p.positions) break;
    const bool next_image = position + 1 == p.image.divisor;
    high[i] = load_bits(next_image ? x + (image + 1) * p.batch_stride : from + p.position_stride);
  }
#pragma unroll
  for (int i = 0; i < align_pairs; ++i) {
    const int32_t at = first + 2 * i * align_threads;
    if (at < p.positions) *reinterpret_cast<uint32_t*>(to + at) = high[i] << 16 | low[i];
  }
}

}  // namespace convt::gemm_scatter_sm90
