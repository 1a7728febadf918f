// Before the product: packs the weights, and copies x to rows that begin at multiples of 16 bytes, of all images, where
// the copy engine does not take it as it is.
#pragma once

#include "../copy_rows.cuh"
#include "../device.h"
#include "../tf32.h"
#include "params.h"

namespace convt::gemm_scatter_tf32_sm90 {

// A block of packed weights: a row of 128 bytes for each column of the product, with the 128-byte swizzle. Of 8
// channels the even ones come first: those that a lane has of x are two that follow each other in shared memory.
CONVT_DEVICE void pack(const PrepareParams& p, uint32_t number) {
  constexpr int32_t loads = chunk * block_columns / prepare_threads, step = prepare_threads / block_columns;
  auto* const tile = reinterpret_cast<float*>(device::dynamic_shared_memory());
  const auto thread = static_cast<int32_t>(threadIdx.x);
  auto* const to = p.packed + static_cast<int64_t>(number) * block_bytes;
  uint32_t chunk_number = number;
  uint32_t block = p.chunks.divide(chunk_number);
  const auto group = static_cast<int64_t>(p.blocks.divide(block));
  // Of 16 columns, a lane has 2 of the first 8 and 2 of the others: of a kernel of 4 columns, or 8, 4 neighbours.
  const int32_t column = thread % block_columns;
  const int32_t output_of_block =
      p.unit == 4 ? column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2 + column % 2 : column;
  auto output = block * block_columns + static_cast<uint32_t>(output_of_block);
  const bool there = static_cast<int32_t>(output) < p.outputs;
  int64_t channel, row;
  if (p.channels_last) {
    row = p.by_rows.divide(output);
    const uint32_t kernel_column = p.taps.divide(output);
    channel = output, output = kernel_column;
  } else {
    channel = p.taps.divide(output), row = p.by_rows.divide(output);
  }
  const auto first = static_cast<int32_t>(chunk_number) * chunk + thread / block_columns;
  const float* const w = p.w + (group * p.in_channels + first) * p.w_input_stride + channel * p.w_channel_stride +
                         row * p.w_row_stride + static_cast<int64_t>(output) * p.w_column_stride;
  float values[loads];
#pragma unroll
  for (int i = 0; i < loads; ++i) {
    values[i] = there && first + i * step < p.in_channels ? __ldg(w + i * step * p.w_input_stride) : 0;
  }
#pragma unroll
  for (int i = 0; i < loads; ++i) {
    const int32_t at = i * step + thread / block_columns;
    tile[column * prepare_pitch + (p.channels_last ? at : at / 8 * 8 + at % 2 * 4 + at % 8 / 2)] = values[i];
  }
  __syncthreads();
  constexpr int32_t units = row_bytes / 16;
#pragma unroll
  for (int32_t i = thread; i < block_columns * units; i += prepare_threads) {
    const int32_t r = i / units, unit = i % units;
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = tf32_operand(__float_as_uint(tile[r * prepare_pitch + 4 * unit + e]));
    device::store_global_16(to + r * row_bytes + (unit ^ r % 8) * 16, v[0], v[1], v[2], v[3]);
  }
}

static_assert(prepare_threads == copy_threads);

static __global__ void __launch_bounds__(prepare_threads) prepare_kernel(const __grid_constant__ PrepareParams p) {
  device::let_next_kernel_start();
  const auto packing = static_cast<uint32_t>(p.packing);
  if (blockIdx.x < packing) {
    pack(p, blockIdx.x);
  } else {
    copy_rows<uint32_t>(p.copy, blockIdx.x - packing);
  }
}

}  // namespace convt::gemm_scatter_tf32_sm90
