// What the kernel is given that packs weights for products of Hopper's tensor cores without a swizzle, and copies x to
// rows that begin at multiples of 16 bytes, by value.
#pragma once

#include <type_traits>

#include "../copy_rows.h"
#include "../divisor.h"
#include "phases.h"

namespace convt::implicit_gemm {

// Threads of a block that packs weights, or copies x.
inline constexpr int32_t prepare_threads = 256;
// Of a product, bytes of input channels.
inline constexpr uint32_t packed_product_bytes = 32;

// What the kernel before it is given.
struct PrepareParams {
  const void* w;
  unsigned char* packed;
  int64_t w_strides[4];
  int32_t in_channels, out_channels, channels;  // of a group; columns of a product
  int32_t channels_of_tile, row_phases;         // that are merged
  bool phases_innermost;                        // of a product's columns, or channels
  int32_t taps;                                 // packed
  int32_t units;                                // of 16 bytes, packed
  int32_t packing;                              // blocks, which come first
  Divisor by_taps, by_outputs, by_chunk_units, by_chunks;
  Divisor by_channels, by_phases, by_column_phases;
  uint8_t tap_row[most_taps], tap_column[most_taps], kernel_row[most_taps], kernel_column[most_taps];
  CopyParams copy;
};

static_assert(std::is_trivially_copyable_v<PrepareParams>);

}  // namespace convt::implicit_gemm
