#pragma once

#include "any.h"
#include "last.h"
#include "one_tap.h"
#include "rows.h"
#include "tile.h"

namespace convt::depthwise {

template <int Row, class Scalar, Access Mode>
__global__ void __launch_bounds__(block, resident_blocks(configs[Row], sizeof(Scalar), Mode))
    depthwise_kernel(const __grid_constant__ Params p) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(block) + threadIdx.x;
  if (index < p.threads) compute_tile<Row, Scalar, Mode>(p, index);
}

template <int Row, class Scalar>
__global__ void __launch_bounds__(block, resident_blocks(configs[Row], sizeof(Scalar), Access::vectors))
    depthwise_rows_kernel(const __grid_constant__ Params p) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(block) + threadIdx.x;
  if (index < p.threads) compute_rows<Row, Scalar>(p, index);
}

template <int Row, class Scalar>
__global__ void __launch_bounds__(block, resident_blocks(configs[Row], sizeof(Scalar)))
    depthwise_last_kernel(const __grid_constant__ LastParams p) {
  using S = LastShape<Row, Scalar>;
  __shared__ alignas(16) typename S::Entry table[S::table];
  __shared__ alignas(16) float biases[S::most_channels];
  static_assert(S::most_channels <= block);
  const Scalar bias = load_block_bias<Scalar>(p, blockIdx.x, threadIdx.x);
  const LastStart<Row, Scalar> start(p, blockIdx.x, threadIdx.x);
  const bool not_finite = fill_exact_table<S, Scalar>(p, table, blockIdx.x, threadIdx.x);
  start.prefetch(p);
  if (threadIdx.x < S::most_channels) biases[threadIdx.x] = to_float(bias);
  const bool spoilt = __syncthreads_or(not_finite);
  compute_last<Row, Scalar>(p, table, biases, spoilt, start);
}

template <class Scalar, int V>
__global__ void __launch_bounds__(block, V == 4 ? 3 : 4)
    depthwise_any_last_kernel(const __grid_constant__ LastParams p) {
  extern __shared__ uint4 shared[];
  auto* table = reinterpret_cast<Scalar*>(shared);
  fill_table(p, table, blockIdx.x, threadIdx.x);
  __syncthreads();
  compute_any_last<Scalar, V>(p, table, blockIdx.x, threadIdx.x);
}

template <class Scalar, int P>
__global__ void __launch_bounds__(block, 4) depthwise_any_kernel(const __grid_constant__ AnyParams p) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(block) + threadIdx.x;
  if (index < p.threads) compute_any<Scalar, P>(p, index);
}

template <class Scalar, int Row, bool Last>
__global__ void __launch_bounds__(block, 2) depthwise_one_tap_kernel(const __grid_constant__ OneTapParams p) {
  extern __shared__ uint4 shared[];
  auto* table = reinterpret_cast<float*>(shared);
  fill_one_tap_table<Scalar, Row>(p, table, threadIdx.x);
  __syncthreads();
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(block) + threadIdx.x;
  if (index < p.threads) compute_one_tap<Scalar, Row, Last>(p, table, index);
}

}  // namespace convt::depthwise
