// What a rolling_rows kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::rolling_rows {

struct Params : StridedParams {
  TensorMap x_map;  // where the copy engine brings x
  Tiling t;
  uint32_t taps;  // bit i * columns + j: some output of a frame reads the input i rows above and j columns before
  int32_t copied_bytes;                  // of x that can be copied at once: 16, 4 or 2
  int64_t step_stride;                   // from a warp's step of x to its next one
  int32_t store_width;                   // elements of y that can be written at once
  uint32_t zero;                         // which the compiler does not know
  int32_t box_pitch;                     // bytes of a channel's row of a box of x
  int32_t reach;                         // rows of x that a frame of rows reads
  int32_t split_bits;                    // 2^split_bits warps have the same outputs
  Divisor group_blocks, strips, chunks;  // of a block's index, a part's
  Divisor stride_h, stride_w;            // of a tap's distance
  Divisor kernel_w, taps_of_channel;     // of a weight's index
  Divisor channels_of_group;             // of an output's index
  int32_t vectors;                       // that a strip has of a segment
  int32_t vector_bits;                   // 2^vector_bits lanes write a segment's
  // Where lanes store outputs as they have them, the stride of a row, 1 or 2; 0 where outputs meet in shared memory.
  int32_t lane_stride;
  bool shifted;  // a lane's first output is the last one of a vector of y
};
static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t bytes = element_size(p.dtype);
  Params q{};
  set_strided(q, p, o);
  q.x_batch_stride = used_stride(p.batch, p.x_strides[0]),
  q.x_channel_stride = used_stride(p.in_channels, p.x_strides[1]);
  q.x_row_stride = used_stride(p.in_h, p.x_strides[2]), q.x_column_stride = used_stride(p.in_w, p.x_strides[3]);
  q.t = tiling(c, p, plan.cut);
  q.reach = static_cast<int32_t>(frames(p.axis_h()).reach);
  while (1 << q.split_bits < q.t.splits) ++q.split_bits;
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  const auto reads = [](const Axis<int64_t>& a) {
    uint32_t bits = 0;
    for (int64_t k = 0; k < a.kernel; ++k) bits |= 1u << (k * a.dilation / a.stride);
    return bits;
  };
  for (int32_t i = 0; i < c.rows; ++i) {
    for (int32_t j = 0; j < c.columns; ++j) {
      q.taps |= (reads(h) >> i & reads(w) >> j & 1) << (i * c.columns + j);
    }
  }
  const bool last = channels_last(p);
  q.copied_bytes = copied_bytes(p, o.x);
  q.step_stride = int64_t{q.t.splits} * step_channels(bytes) * (last ? 1 : q.x_channel_stride);
  const int64_t y_batch = used_stride(p.batch, p.y_strides[0]), y_row = used_stride(p.out_h, p.y_strides[2]);
  const auto widest = static_cast<int32_t>(16 / bytes);
  const int64_t y_channel = last ? 0 : used_stride(p.out_channels, p.y_strides[1]);
  const int64_t row = last ? p.out_w * p.out_channels : p.out_w;
  q.store_width = common_width(o.result, bytes, {y_batch, y_row, y_channel, row}, widest);
  if (q.store_width < widest) q.store_width = 1;
  q.group_blocks = Divisor(plan.grid / p.groups), q.strips = Divisor(q.t.strips), q.chunks = Divisor(q.t.chunks);
  q.stride_h = Divisor(p.stride_h), q.stride_w = Divisor(p.stride_w);
  q.kernel_w = Divisor(p.kernel_w), q.taps_of_channel = Divisor(p.kernel_h * p.kernel_w);
  q.channels_of_group = Divisor(p.out_channels_per_group());
  q.vectors = q.t.strip_frames * q.t.pixel_outputs / q.store_width;
  q.lane_stride = lane_stride(p, static_cast<int32_t>(q.store_width * bytes));
  q.shifted = p.padding_w % p.stride_w != 0;
  while (q.vector_bits < 5 && 1 << q.vector_bits < q.vectors) ++q.vector_bits;
  return q;
}

}  // namespace convt::rolling_rows
