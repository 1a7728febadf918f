// What a large-stride kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::large_stride {

struct Params : StridedParams {
  int32_t pairs, depth;    // of words of K: of the channels, and in all
  int32_t taps_h, taps_w;  // of a phase
  int32_t first_q_h, first_q_w, q_h;
  int32_t rows, positions;  // of a block: of positions, and rounded up
  int32_t pixels, plane;    // of the inputs in shared memory
  int32_t phase_tasks;
  Divisor blocks, row_blocks, groups, parts, phase_blocks, phase_row, q_w, in_columns, pair_count, taps_of_row;
  bool load_vectors;   // whether weights of neighbouring phases can be loaded at once
  bool store_vectors;  // whether a lane's outputs of a position can be stored at once
};

static_assert(std::is_trivially_copyable_v<Params>);

inline Params make_params(const Config& c, const Problem& p, const Tiling& t, const Operands& o) {
  Params q{};
  set_strided(q, p, o);
  q.pairs = static_cast<int32_t>(t.pairs), q.depth = static_cast<int32_t>(t.depth);
  q.taps_w = static_cast<int32_t>(t.taps_w), q.taps_h = static_cast<int32_t>(t.taps_h);
  q.first_q_h = static_cast<int32_t>(t.first_q_h), q.first_q_w = static_cast<int32_t>(t.first_q_w);
  q.q_h = static_cast<int32_t>(t.q_h);
  q.rows = static_cast<int32_t>(t.rows), q.positions = static_cast<int32_t>(t.positions());
  q.plane = static_cast<int32_t>(t.plane);
  q.phase_tasks = static_cast<int32_t>(t.parts * t.phase_blocks * p.out_channels_per_group());
  q.parts = Divisor(t.parts);
  q.blocks = Divisor(t.blocks), q.row_blocks = Divisor(t.row_blocks), q.groups = Divisor(p.groups);
  q.phase_blocks = Divisor(t.phase_blocks), q.phase_row = Divisor(t.padded_stride), q.q_w = Divisor(t.q_w);
  q.in_columns = Divisor(t.in_columns);
  q.pixels = static_cast<int32_t>(t.in_rows * t.in_columns);
  q.pair_count = Divisor(t.pairs), q.taps_of_row = Divisor(t.taps_w);
  const auto aligned = [](const void* pointer, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
  };
  const int64_t size = element_size(p.dtype);
  const auto even = [](int64_t n, int64_t stride, int64_t by) { return n <= 1 || stride % by == 0; };
  // A lane's phases of one pair are taps r, r + 1, ...; r is a multiple of their number. Those of float32 are loaded
  // two at a time.
  const int64_t outputs = c.phases / 8, neighbours = size == 4 ? 2 : outputs;
  q.load_vectors =
      aligned(o.w, neighbours * size) && p.w_strides[3] == 1 && even(p.in_channels, p.w_strides[0], neighbours) &&
      even(p.out_channels_per_group(), p.w_strides[1], neighbours) && even(p.kernel_h, p.w_strides[2], neighbours) &&
      (t.taps_w == 1 || p.stride_w % neighbours == 0) && p.kernel_w % neighbours == 0;
  q.store_vectors = aligned(o.result, outputs * size) && p.y_strides[3] == 1 &&
                    even(p.batch, p.y_strides[0], outputs) && even(p.out_channels, p.y_strides[1], outputs) &&
                    even(p.out_h, p.y_strides[2], outputs) && p.stride_w % outputs == 0 && p.padding_w % outputs == 0;
  return q;
}

}  // namespace convt::large_stride
