// Copies x to where the copy engine takes it: see make_tiling().
#pragma once

#include "../device.h"
#include "params.h"

namespace convt::gemm_fold_sm90 {

// Of elements of two bytes, or four. A block has those of one channel.
template <class Element, class Pair>
__global__ void __launch_bounds__(copy_threads) copy_kernel(const __grid_constant__ CopyParams p) {
  static_assert(sizeof(Pair) == 2 * sizeof(Element));
  device::let_next_kernel_start();
  uint32_t block = blockIdx.x;
  const auto channel = static_cast<int64_t>(p.blocks.divide(block));
  const auto first = static_cast<int32_t>(block) * copy_positions + 2 * static_cast<int32_t>(threadIdx.x);
  const auto* const x = static_cast<const Element*>(p.x) + channel * p.channel_stride;
  auto* const to = static_cast<Element*>(p.to) + channel * p.row;
  Pair pair[copy_pairs];
#pragma unroll
  for (int i = 0; i < copy_pairs; ++i) {
    pair[i] = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      auto column = static_cast<uint32_t>(first + 2 * i * copy_threads + e);
      const auto image = static_cast<int32_t>(p.by_images.divide(column));
      const auto row = static_cast<int32_t>(p.by_rows.divide(column));
      if (image < p.batch && row < p.rows && static_cast<int32_t>(column) < p.columns) {
        const Element* const from = x + image * p.batch_stride + row * p.row_stride + column * p.column_stride;
        pair[i] |= static_cast<Pair>(__ldg(from)) << 8 * sizeof(Element) * e;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < copy_pairs; ++i) {
    const int32_t at = first + 2 * i * copy_threads;
    if (at < p.row) *reinterpret_cast<Pair*>(to + at) = pair[i];
  }
}

}  // namespace convt::gemm_fold_sm90
