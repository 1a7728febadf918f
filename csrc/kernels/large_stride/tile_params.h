// What the kernels of the tiled configurations are given, by value.
#pragma once

#include <type_traits>

#include "../access_width.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "tiling.h"

namespace convt::large_stride {

struct TileParams : StridedParams {
  float* partials;
  uint32_t* counters;
  int32_t words, chunks;  // of the channels of a tap
  int32_t first_q_h, first_q_w, positions;
  int32_t columns, splits;
  Divisor position_tiles, column_tiles, by_splits, q_w, q_h, outer_columns, inner;
  bool channels_innermost, channels_outermost;  // of the columns
  bool x_channels;                              // whether 16 bytes of channels of a pixel can be loaded at once
  bool w_quads;                                 // whether weights of 4 columns can be loaded at once
  bool y_quads;                                 // whether outputs of 4 columns can be stored at once
};

static_assert(std::is_trivially_copyable_v<TileParams>);

inline TileParams make_tile_params(const Problem& p, const TileTiling& t, int32_t splits, const Operands& o) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  TileParams q{};
  set_strided(q, p, o);
  q.counters = static_cast<uint32_t*>(o.workspace);
  q.partials = reinterpret_cast<float*>(static_cast<unsigned char*>(o.workspace) + t.counter_bytes());
  q.words = narrow(t.words), q.chunks = narrow(t.chunks);
  q.first_q_h = narrow(t.first_q_h), q.first_q_w = narrow(t.first_q_w), q.positions = narrow(t.positions);
  q.columns = narrow(t.columns), q.splits = splits;
  q.position_tiles = Divisor(t.position_tiles), q.column_tiles = Divisor(t.column_tiles), q.by_splits = Divisor(splits);
  q.q_w = Divisor(t.q_w), q.q_h = Divisor(t.q_h),
  q.outer_columns = Divisor(t.channels_outermost ? t.columns / p.out_channels_per_group() : t.row_columns);
  q.inner = Divisor(t.inner);
  q.channels_innermost = t.channels_innermost, q.channels_outermost = t.channels_outermost;
  const int64_t size = element_size(p.dtype);
  const auto vector = narrow(16 / size);
  q.x_channels = access_width(o.x, size, p.x_sizes(), p.x_strides, 1, p.in_channels_per_group(), vector) == vector;
  const int inner = t.channels_innermost ? 1 : 3;
  // The phases of a row begin at a multiple of 4 in every tap, and all 4 exist or none.
  const bool whole = t.channels_innermost || p.stride_w % 4 == 0;
  q.w_quads = whole && access_width(o.w, size, p.w_sizes(), p.w_strides, inner, p.w_sizes()[inner], 4) == 4;
  q.y_quads = (t.channels_innermost || (p.stride_w % 4 == 0 && p.padding_w % 4 == 0)) &&
              access_width(o.result, size, p.y_sizes(), p.y_strides, inner,
                           t.channels_innermost ? p.out_channels_per_group() : p.out_w, 4) == 4;
  return q;
}

}  // namespace convt::large_stride
