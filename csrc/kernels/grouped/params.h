// What a grouped kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../operands.h"
#include "config.h"

namespace convt::grouped {

// Strides in elements.
struct Params {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch, x_channel, x_row, x_column;
  int64_t w_in, w_out, w_row, w_column;
  int64_t y_batch, y_channel, y_row;
  int64_t bias_stride;
  AxisParams h, w_axis;
  Tiling t;
  int32_t groups, cin, cout, kernel_h, kernel_w;
  int32_t load_width;                                    // words of x that can be read at once: 1, 2 or 4
  int32_t store_width;                                   // elements of y that can be written at once
  int32_t store_lanes;                                   // lanes that write a plane together (NCHW)
  int32_t plane_step;                                    // elements from an output to its right neighbour
  Divisor chunks, strips, channel_blocks, group_blocks;  // of a block's index
  Divisor tiles, steps;                                  // of a weight's index
  Divisor passes, stride_h, ring, kernel_rows;
  Divisor unit_columns, unit_passes;  // of a unit's index
  int32_t residues[most_phases];      // the phases of a row, as they are computed
  int32_t residue_count;
  int32_t row_weights, unit_weights;              // words of weights: of a kernel row, of all of them
  int32_t batch_residues;                         // phases of a row that are computed together
  Divisor load_inner, load_middle, load_vectors;  // of the vectors of an input row
  Divisor words;                                  // of a group
  int32_t load_first;                             // the first column in shared memory that may be in the image
};
static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t bytes = element_size(p.dtype);
  Params q{};
  Tiling& t = q.t;
  t = tiling(c, p, plan.cut);
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch = used_stride(p.batch, p.x_strides[0]), q.x_channel = used_stride(p.in_channels, p.x_strides[1]);
  q.x_row = used_stride(p.in_h, p.x_strides[2]), q.x_column = used_stride(p.in_w, p.x_strides[3]);
  q.w_in = p.w_strides[0], q.w_out = p.w_strides[1], q.w_row = p.w_strides[2], q.w_column = p.w_strides[3];
  q.y_batch = p.y_strides[0], q.y_channel = t.y_pixels ? p.y_strides[1] : 1;
  q.y_row = t.y_pixels ? p.out_w : p.out_w * p.out_channels;
  q.bias_stride = p.bias_stride;
  q.h = axis_params(p.axis_h()), q.w_axis = axis_params(p.axis_w());
  q.groups = static_cast<int32_t>(p.groups);
  q.cin = static_cast<int32_t>(p.in_channels_per_group()), q.cout = static_cast<int32_t>(p.out_channels_per_group());
  q.kernel_h = static_cast<int32_t>(p.kernel_h), q.kernel_w = static_cast<int32_t>(p.kernel_w);
  // Vectors run along the columns, two channels at a time in 16 bits, or along the channels of a group.
  if (t.x_pixels) {
    q.load_width = common_width(o.x, bytes, {q.x_batch, q.x_channel, q.x_row, p.in_w}, 4);
  } else {
    q.load_width = common_width(o.x, bytes, {q.x_batch, q.x_row, q.x_column, q.cin}, static_cast<int32_t>(16 / bytes));
    if (t.words < p.in_channels_per_group()) q.load_width /= 2;  // pairs
  }
  q.load_width = std::max(q.load_width, 1);
  q.plane_step = static_cast<int32_t>(t.y_pixels ? 1 : p.out_channels);
  const auto widest = static_cast<int32_t>(16 / bytes);
  if (t.y_pixels) {
    q.store_width = common_width(o.result, bytes, {used_stride(p.batch, q.y_batch), q.y_channel, p.out_w}, widest);
  } else {
    q.store_width = common_width(o.result, bytes, {p.out_channels, q.cout, t.block_groups > 1 ? 8 : 8 * t.block_tiles},
                                 2 * c.tiles);
  }
  q.chunks = Divisor(t.chunks), q.strips = Divisor(t.strips), q.channel_blocks = Divisor(t.channel_blocks);
  q.group_blocks = Divisor(ceil_div<int64_t>(t.group_tiles, t.block_tiles));
  q.tiles = Divisor(t.block_groups * t.block_tiles), q.steps = Divisor(t.steps);
  q.kernel_rows = Divisor(std::max(1, t.kernel_rows));
  q.passes = Divisor(t.block_tiles / c.tiles), q.stride_h = Divisor(p.stride_h), q.ring = Divisor(t.ring);
  const int32_t passes = t.block_tiles / c.tiles * t.block_groups;
  q.unit_columns = Divisor(t.unit_columns), q.unit_passes = Divisor(passes);
  // Those that have taps first.
  for (const bool taps : {true, false}) {
    for (int32_t r = 0; r < q.w_axis.stride; ++r) {
      if ((q.w_axis.phases.of[r].count > 0) == taps && (taps || !t.blanks)) q.residues[q.residue_count++] = r;
    }
  }
  q.row_weights = q.kernel_w * t.steps * c.tiles * 32 * t.fragment_words;
  q.unit_weights = q.kernel_h * q.row_weights;
  q.batch_residues = static_cast<int32_t>(ceil_div<int64_t>(q.residue_count, t.batches));
  const int64_t vectors = ceil_div<int64_t>(t.words, q.load_width);
  q.load_vectors = Divisor(vectors);
  q.words = Divisor(t.words);
  int64_t columns = t.input_columns;
  if (t.strips == 1 && t.x_pixels) {
    const int32_t input_column = q.w_axis.phases.first & -4;
    q.load_first = std::min(std::max(0, -input_column), t.input_columns - 4);
    columns = std::clamp<int64_t>(int64_t{q.w_axis.in} - input_column - q.load_first, 1, columns - q.load_first);
  }
  q.load_inner = Divisor(t.x_pixels ? ceil_div<int64_t>(columns, q.load_width) : t.block_groups * vectors);
  q.load_middle = Divisor(t.x_pixels ? t.block_groups * t.words : t.input_columns);
  return q;
}

}  // namespace convt::grouped
