// What the kernel is given of a problem, by value, and how blocks divide it. Without CUDA, so that the planner counts
// with the same numbers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::few_channels {

// The cells of an axis that have outputs.
struct Cells {
  int64_t first, count;
  int64_t window;    // inputs of a cell
  int64_t distance;  // from one of them to the next
};

// `strides`: without a stride, the inputs of a cell are a dilation apart; else, or with `neighbours`, the window has
// all inputs between the first and the last, with weights of zero.
inline Cells cells_of(const Axis<int64_t>& a, bool neighbours) {
  Cells c{};
  c.first = a.padding / a.stride;
  c.count = ceil_div<int64_t>(a.out + a.padding, a.stride) - c.first;
  c.distance = a.stride == 1 && !neighbours ? a.dilation : 1;
  c.window = ceil_div<int64_t>((a.kernel - 1) * (a.dilation / c.distance) + 1, a.stride);
  return c;
}

struct Division {
  Cells h, w;
  int64_t row_blocks;  // of cells of a thread, in an image
  int64_t sums, sum_blocks;
  int64_t window_rows, window_columns;  // windows of the configuration in that of the problem
  int64_t channel_weights;              // in shared memory, of one input channel
  int64_t channels;                     // of which weights are in shared memory at a time
  int64_t positions;                    // of a block: threads that share no outputs
  int64_t all_positions;                // of a group
  int64_t blocks;
  int64_t shared_bytes;
};

inline Division divide(const Problem& p, const Config& c, int64_t splits) {
  Division d{};
  d.h = cells_of(p.axis_h(), false), d.w = cells_of(p.axis_w(), true);
  // Rows of a thread are as far from each other as the inputs of a cell, so that they share inputs.
  d.row_blocks = d.h.distance * ceil_div<int64_t>(ceil_div<int64_t>(d.h.count, d.h.distance), c.rows);
  d.sums = checked_mul(checked_mul(p.stride_h, p.stride_w), p.out_channels_per_group());
  d.sum_blocks = ceil_div<int64_t>(d.sums, c.sums);
  d.window_rows = ceil_div<int64_t>(d.h.window, c.window_rows);
  d.window_columns = ceil_div<int64_t>(d.w.window, c.window_columns);
  d.channel_weights = checked_mul(checked_mul(d.window_rows, d.window_columns), window_weights(c));
  const int64_t at_once = most_weight_bytes / static_cast<int64_t>(sizeof(float)) / d.channel_weights;
  d.channels = std::clamp<int64_t>(at_once, 1, p.in_channels_per_group());
  d.positions = threads / splits;
  d.all_positions = checked_mul(checked_mul(p.batch, d.row_blocks), d.w.count);
  d.blocks = checked_mul(checked_mul(p.groups, d.sum_blocks), ceil_div<int64_t>(d.all_positions, d.positions));
  const int64_t sums = int64_t{threads} * c.rows * c.sums;
  d.shared_bytes = std::max(d.channels * d.channel_weights, sums) * static_cast<int64_t>(sizeof(float));
  return d;
}

struct Params : StridedParams {
  int64_t x_row_step, y_row_step;  // in memory, from one of a thread's cells to the next
  int32_t first_row, first_column, row_distance, out_row_distance;
  int32_t log_positions, all_positions;
  int32_t channels_at_once, window_rows, window_columns, channel_weights, row_weights;
  int32_t sums;
  Divisor sum_blocks, position_blocks, columns, row_blocks, distance;
  Divisor fill, windows, stride_h, stride_w, dilation_h, dilation_w;
};

static_assert(std::is_trivially_copyable_v<Params>);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t splits = plan.cut[0];
  const Division d = divide(p, c, splits);
  Params q{};
  set_strided(q, p, o);
  q.x_row_step = d.h.distance * p.x_strides[2], q.y_row_step = d.h.distance * p.stride_h * p.y_strides[2];
  q.first_row = static_cast<int32_t>(d.h.first), q.first_column = static_cast<int32_t>(d.w.first);
  q.row_distance = static_cast<int32_t>(d.h.distance);
  q.out_row_distance = static_cast<int32_t>(d.h.distance * p.stride_h);
  while ((int64_t{1} << q.log_positions) < d.positions) ++q.log_positions;
  q.all_positions = static_cast<int32_t>(d.all_positions);
  q.channels_at_once = static_cast<int32_t>(d.channels);
  q.window_rows = static_cast<int32_t>(d.window_rows), q.window_columns = static_cast<int32_t>(d.window_columns);
  q.channel_weights = static_cast<int32_t>(d.channel_weights);
  q.row_weights = std::min(q.channel_weights, threads);
  q.sums = static_cast<int32_t>(d.sums);
  q.sum_blocks = Divisor(d.sum_blocks), q.position_blocks = Divisor(ceil_div<int64_t>(d.all_positions, d.positions));
  q.columns = Divisor(d.w.count), q.row_blocks = Divisor(d.row_blocks), q.distance = Divisor(d.h.distance);
  q.fill = Divisor(q.row_weights), q.windows = Divisor(d.window_columns);
  q.stride_h = Divisor(p.stride_h), q.stride_w = Divisor(p.stride_w);
  q.dilation_h = Divisor(p.dilation_h / d.h.distance), q.dilation_w = Divisor(p.dilation_w);
  return q;
}

}  // namespace convt::few_channels
