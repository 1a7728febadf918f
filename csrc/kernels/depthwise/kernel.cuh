#pragma once

#include "tile.h"

namespace convt::depthwise {

template <int Row, class Scalar, int LoadWidth>
__global__ void __launch_bounds__(block, resident_blocks(configs[Row], sizeof(Scalar)))
    depthwise_kernel(const __grid_constant__ Params p) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(block) + threadIdx.x;
  if (index < p.threads) compute_tile<Row, Scalar, LoadWidth>(p, index);
}

}  // namespace convt::depthwise
