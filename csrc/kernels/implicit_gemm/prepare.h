// What the kernel is given that packs weights for products of Hopper's tensor cores without a swizzle, and copies x to
// rows that begin at multiples of 16 bytes, by value; and what the families that it runs before are given alike.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../access_width.h"
#include "../copy_rows.h"
#include "../divisor.h"
#include "../operands.h"
#include "phases.h"

namespace convt::implicit_gemm {

// Threads of a block that packs weights, or copies x.
inline constexpr int32_t prepare_threads = copy_threads;
// Of a product, bytes of input channels.
inline constexpr uint32_t packed_product_bytes = 32;

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

// A product's columns, in tiles of `columns` of a group's: `channels_of_tile` channels of y by `row_phases` by
// `column_phases`, with channels or phases innermost. Its reduction: chunks of `chunk_units` times 16 bytes of
// channels.
struct PackedTiles {
  int64_t columns, channel_tiles, channels_of_tile, row_phases, column_phases;
  bool phases_innermost;
  int64_t chunks, chunk_units;
};

// But for the taps' tables and x; and how many blocks pack.
inline PrepareParams make_prepare(const Problem& p, const Operands& o, const PackedTiles& t, int32_t taps,
                                  const uint8_t (&kernel_row)[most_taps], const uint8_t (&kernel_column)[most_taps]) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  PrepareParams r{};
  r.w = o.w, r.packed = static_cast<unsigned char*>(o.workspace);
  std::copy(p.w_strides.begin(), p.w_strides.end(), r.w_strides);
  r.in_channels = narrow(p.in_channels_per_group()), r.out_channels = narrow(p.out_channels_per_group());
  r.channels = narrow(t.columns), r.channels_of_tile = narrow(t.channels_of_tile), r.row_phases = narrow(t.row_phases);
  r.phases_innermost = t.phases_innermost, r.taps = taps;
  const int64_t outputs = t.channel_tiles * t.columns, units = p.groups * outputs * t.chunks * t.chunk_units * taps;
  r.units = narrow(units), r.packing = narrow(ceil_div<int64_t>(units, prepare_threads));
  r.by_taps = Divisor(std::max(taps, 1)), r.by_outputs = Divisor(outputs);
  r.by_chunk_units = Divisor(t.chunk_units), r.by_chunks = Divisor(t.chunks), r.by_channels = Divisor(t.columns);
  r.by_phases = Divisor(t.phases_innermost ? t.row_phases * t.column_phases : t.channels_of_tile);
  r.by_column_phases = Divisor(t.column_phases);
  std::copy_n(kernel_row, most_taps, r.kernel_row), std::copy_n(kernel_column, most_taps, r.kernel_column);
  return r;
}

// Of a family's parameters, those that the other one has, too.
template <class Params>
void set_common(Params& q, const Problem& p, const Operands& o) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  q.packed = static_cast<decltype(q.packed)>(o.workspace);
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.bias_stride = p.bias_stride;
  std::copy(p.w_strides.begin(), p.w_strides.end(), q.w_strides);
  q.x_row_stride = used_stride_32(p.in_h, p.x_strides[2]);
  q.x_column_stride = used_stride_32(p.in_w, p.x_strides[3]);
  q.y_row_stride = used_stride_32(p.out_h, p.y_strides[2]);
  q.y_column_stride = used_stride_32(p.out_w, p.y_strides[3]);
  q.batch = narrow(p.batch);
  q.in_channels = narrow(p.in_channels_per_group()), q.out_channels = narrow(p.out_channels_per_group());
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.v = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.by_bias_period = Divisor(p.bias_period > 0 ? p.bias_period : p.out_channels);
  q.by_groups = Divisor(p.groups);
}

}  // namespace convt::implicit_gemm
