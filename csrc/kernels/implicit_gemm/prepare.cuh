// Before the product: packs the weights, and copies x to rows that begin at multiples of 16 bytes where the copy engine
// does not take it as it is.
#pragma once

#include "../copy_rows.cuh"
#include "../tf32.h"
#include "device.cuh"
#include "merged_phases.h"
#include "prepare.h"

namespace convt::implicit_gemm {

// A thread packs 16 bytes of channels of a tap and an output channel. They lie as wgmma reads them without a swizzle: 8
// output channels with 16 bytes each, then 16 bytes more of their channels, then the next 8 output channels.
template <class Scalar>
CONVT_DEVICE void pack(const PrepareParams& p, uint32_t number) {
  constexpr int count = 16 / static_cast<int>(sizeof(Scalar));
  using Bits = BitsOf<Scalar>;
  if (number >= static_cast<uint32_t>(p.units)) return;
  // Taps of a channel lie next to each other in memory, mostly.
  uint32_t tap = number;
  uint32_t output = p.by_taps.divide(tap);
  uint32_t unit = p.by_outputs.divide(output);
  uint32_t chunk = p.by_chunk_units.divide(unit);
  const uint32_t group = p.by_chunks.divide(chunk);
  const int32_t first = static_cast<int32_t>(chunk * p.by_chunk_units.divisor + unit) * count;
  // A column of the product is a channel, or a channel and a phase: some have no such tap.
  uint32_t column = output;
  const uint32_t tile_of_group = p.by_channels.divide(column);
  uint32_t phase = column, channel_of_tile = p.by_phases.divide(phase);
  if (!p.phases_innermost) {
    const uint32_t quotient = channel_of_tile;
    channel_of_tile = phase, phase = quotient;
  }
  uint32_t column_phase = phase;
  const uint32_t row_phase = p.by_column_phases.divide(column_phase);
  const auto channel = static_cast<int32_t>(tile_of_group) * p.channels_of_tile + static_cast<int32_t>(channel_of_tile);
  bool there = static_cast<int32_t>(channel_of_tile) < p.channels_of_tile && channel < p.out_channels &&
               static_cast<int32_t>(row_phase) < p.row_phases;
  uint32_t row = 0, kernel_column = 0;
  if (there) {
    row = p.kernel_row[p.tap_row[tap] * static_cast<uint32_t>(p.row_phases) + row_phase];
    kernel_column = p.kernel_column[p.tap_column[tap] * p.by_column_phases.divisor + column_phase];
    there = row != no_tap && kernel_column != no_tap;
  }
  const auto* const w = static_cast<const Bits*>(p.w) +
                        (static_cast<int64_t>(group) * p.in_channels + first) * p.w_strides[0] +
                        channel * p.w_strides[1] + row * p.w_strides[2] + kernel_column * p.w_strides[3];
  Bits v[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    v[i] = 0;
    if (there && first + i < p.in_channels) v[i] = __ldg(w + i * p.w_strides[0]);
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(Scalar) == 4) {
      words[i] = tf32_operand(v[i]);
    } else {
      words[i] = static_cast<uint32_t>(v[2 * i]) | static_cast<uint32_t>(v[2 * i + 1]) << 16;
    }
  }
  const auto channels = static_cast<uint32_t>(p.channels);
  const int64_t tile = static_cast<int64_t>(group) * (p.by_outputs.divisor / channels) + tile_of_group;
  unsigned char* const to =
      p.packed + ((tile * p.by_chunks.divisor + chunk) * p.taps + tap) * (p.by_chunk_units.divisor * channels * 16) +
      unit / 2 * channels * packed_product_bytes + column / 8 * 256 + unit % 2 * 128 + column % 8 * 16;
  device::store_global_16(to, words[0], words[1], words[2], words[3]);
}

template <class Scalar>
__global__ void __launch_bounds__(prepare_threads) prepare_kernel(const __grid_constant__ PrepareParams p) {
  device::let_next_kernel_start();
  const auto packing = static_cast<uint32_t>(p.packing);
  if (blockIdx.x < packing) {
    pack<Scalar>(p, blockIdx.x * prepare_threads + threadIdx.x);
  } else {
    copy_rows<BitsOf<Scalar>>(p.copy, blockIdx.x - packing);
  }
}

}  // namespace convt::implicit_gemm
