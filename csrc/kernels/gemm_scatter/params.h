// What the kernels of both families are given alike.
#pragma once

#include "../access_width.h"
#include "../copy_rows.h"
#include "../divisor.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::gemm_scatter {

// Of a family's parameters, those that the other one has, too. `band`: tiles of outputs whose blocks follow each other.
template <class Params>
void set_common(Params& q, int64_t band, const Problem& p, const Operands& o, const Tiling& t) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  q.y = static_cast<decltype(q.y)>(o.result);
  q.bias = p.has_bias ? static_cast<decltype(q.bias)>(o.bias) : nullptr;
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1];
  q.y_row_stride = used_stride(p.out_h, p.y_strides[2]), q.bias_stride = p.bias_stride;
  q.chunks = narrow(t.chunks), q.tiles = narrow(t.tiles);
  q.outputs = narrow(outputs_of_position(p)), q.positions = narrow(t.positions), q.rows = narrow(t.rows);
  q.out_channels = narrow(p.out_channels_per_group()), q.kernel_h = narrow(p.kernel_h);
  // Tiles of a band of outputs come after those of another.
  const int64_t bands = ceil_div(t.output_tiles, band);
  q.group_tiles = Divisor(t.output_tiles * t.segment_tiles), q.band_tiles = Divisor(band * t.segment_tiles);
  q.band_outputs = Divisor(band), q.last_outputs = Divisor(t.output_tiles - (bands - 1) * band);
  q.last_band = static_cast<uint32_t>(bands - 1);
  q.segments = Divisor(t.segments), q.image = Divisor(p.in_h * p.in_w), q.width = Divisor(p.in_w);
  q.taps = Divisor(is_channels_last(p) ? p.out_channels : p.kernel_h * p.kernel_w);
  q.by_rows = Divisor(row_outputs(p));
}

// x to [channel][image][position].
inline CopyParams make_copy(const Problem& p, const void* x, void* to) {
  const int64_t positions = p.in_h * p.in_w;
  return convt::make_copy(p, x, to, {p.in_channels, p.x_strides[1], copied_row(p)},
                          {p.batch, p.x_strides[0], positions}, {1, 0, positions}, positions, position_stride(p));
}

}  // namespace convt::gemm_scatter
