// What a large_stride_sm90 kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::large_stride_sm90 {

struct Params : StridedParams {
  int32_t taps_h, taps_w, taps;  // of a phase
  int32_t planes, units;
  int32_t first_q_h, first_q_w, q_h, q_w;
  int32_t rows, positions, plane_pixels;  // of a block
  int32_t tasks;
  Divisor blocks, row_blocks, groups, phase_blocks, phase_row, in_columns, by_pixels, by_taps, taps_of_row;
  bool load_vectors;   // whether weights of neighbouring phases can be loaded at once
  bool store_vectors;  // whether a lane's outputs of a position can be stored at once
  bool store_pairs;    // and those of two lanes
  bool copies_x;       // see Tiling::copied_bytes
};
static_assert(std::is_trivially_copyable_v<Params>);

inline void set_cut(Plan& plan, const Cut& cut) { plan.cut[0] = cut.groups, plan.cut[1] = cut.row_blocks; }
inline Cut cut_of(const Plan& plan) { return {plan.cut[0], plan.cut[1]}; }

inline Params make_params(const Problem& p, const Tiling& t, const Operands& o) {
  Params q{};
  set_strided(q, p, o);
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  q.taps_h = narrow(t.taps_h), q.taps_w = narrow(t.taps_w), q.taps = narrow(t.taps_h * t.taps_w);
  q.planes = narrow(t.planes), q.units = narrow(t.units);
  q.first_q_h = narrow(t.first_q_h), q.first_q_w = narrow(t.first_q_w), q.q_h = narrow(t.q_h), q.q_w = narrow(t.q_w);
  q.rows = narrow(t.rows), q.positions = narrow(t.positions()), q.plane_pixels = narrow(t.plane_pixels());
  q.tasks = narrow(t.phase_blocks * p.out_channels_per_group());
  q.blocks = Divisor(t.blocks), q.row_blocks = Divisor(t.row_blocks), q.groups = Divisor(p.groups);
  q.phase_blocks = Divisor(t.phase_blocks), q.phase_row = Divisor(t.padded_stride);
  q.in_columns = Divisor(t.in_columns), q.by_pixels = Divisor(t.plane_pixels()), q.by_taps = Divisor(q.taps),
  q.taps_of_row = Divisor(t.taps_w);
  const int64_t size = element_size(p.dtype);
  const auto aligned = [&](const void* pointer, int64_t count) {
    return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(count * size) == 0;
  };
  const auto multiple = [](int64_t n, int64_t stride, int64_t count) { return n <= 1 || stride % count == 0; };
  q.load_vectors = aligned(o.w, of_lane) && p.w_strides[3] == 1 && multiple(p.in_channels, p.w_strides[0], of_lane) &&
                   multiple(p.out_channels_per_group(), p.w_strides[1], of_lane) &&
                   multiple(p.kernel_h, p.w_strides[2], of_lane) && multiple(t.taps_w, p.stride_w, of_lane) &&
                   p.kernel_w % of_lane == 0;
  const auto stores = [&](int64_t count) {
    return aligned(o.result, count) && p.y_strides[3] == 1 && multiple(p.batch, p.y_strides[0], count) &&
           multiple(p.out_channels, p.y_strides[1], count) && multiple(p.out_h, p.y_strides[2], count) &&
           p.stride_w % count == 0 && p.padding_w % count == 0;
  };
  q.store_vectors = stores(of_lane);
  // Where a row of phases is a warp's, positions that follow each other are whole lines; else each is half of one.
  q.store_pairs = stores(2 * of_lane) && p.stride_w <= group_phases / 4;
  q.copies_x = t.copied_bytes > 0 && reinterpret_cast<uintptr_t>(o.x) % unit_bytes == 0;
  return q;
}

}  // namespace convt::large_stride_sm90
