// What the kernel is given of a problem, by value, and how blocks divide it. Without CUDA, so that the planner counts
// with the same numbers.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <type_traits>
#include <vector>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::few_positions {

// The output channels of a block may be these.
inline std::vector<int64_t> channel_choices(const Problem& p) {
  const int64_t channels = p.out_channels_per_group(), taps = p.kernel_h * p.kernel_w;
  std::vector<int64_t> choices;
  for (int64_t c = 1; c <= channels && c * taps <= most_columns; ++c) {
    if (channels % c == 0) choices.push_back(c);
  }
  return choices;
}

// A column is a tap of an output channel. Columns are in the order of memory: taps innermost, or output channels.
inline bool taps_innermost(const Problem& p) {
  return p.kernel_h * p.kernel_w == 1 || p.w_strides[1] != 1 || p.out_channels_per_group() == 1;
}

// The elements of a load of weights: 16 bytes, 4 or one element, as the alignment of all of a block's rows allows.
inline int32_t vector_elements(const Problem& p, int64_t out_channels) {
  const int64_t size = element_size(p.dtype), taps = p.kernel_h * p.kernel_w;
  // The elements that follow each other in memory, and where runs of them begin.
  int64_t run = 0, starts = 0;
  if (taps_innermost(p)) {
    const bool rows = p.kernel_w == 1 || p.w_strides[3] == 1;
    const bool kernels = rows && (p.kernel_h == 1 || p.w_strides[2] == p.kernel_w);
    const bool channels = kernels && (p.w_strides[1] == taps || p.out_channels_per_group() == 1);
    run = channels ? out_channels * taps : kernels ? taps : 1;
    starts = std::gcd(used_stride(p.in_channels, p.w_strides[0]), channels ? run : p.w_strides[1]);
  } else {
    run = out_channels;
    starts = std::gcd(std::gcd(used_stride(p.in_channels, p.w_strides[0]), out_channels),
                      std::gcd(used_stride(p.kernel_h, p.w_strides[2]), used_stride(p.kernel_w, p.w_strides[3])));
  }
  for (const int64_t bytes : {int64_t{16}, int64_t{4}}) {
    const int64_t n = bytes / size;
    if (n > 1 && p.w_aligned && run % n == 0 && starts % n == 0) return static_cast<int32_t>(n);
  }
  return 1;
}

struct Division {
  int64_t images, image_blocks, positions, passes;  // of a block; blocks; of a block; of a block
  int64_t columns, lanes, row_lanes;                // of a block; threads that share a row of columns; rows at a time
  int64_t blocks;
  int64_t products_offset, shared_bytes;
};

inline Division divide(const Problem& p, const Config& c, int64_t out_channels, int32_t vector) {
  Division d{};
  const int64_t of_image = p.in_h * p.in_w, size = sizeof(float);
  d.images = std::clamp<int64_t>(c.positions / of_image, 1, p.batch);
  d.image_blocks = ceil_div(p.batch, d.images);
  d.positions = d.images * of_image;
  d.passes = ceil_div<int64_t>(d.positions, c.positions);
  d.columns = out_channels * p.kernel_h * p.kernel_w;
  d.lanes = d.columns / vector;
  d.row_lanes = threads / d.lanes;
  d.blocks = checked_mul(checked_mul(d.image_blocks, p.groups), p.out_channels_per_group() / out_channels);
  // Inputs, and then the sums of each row of threads, which are added up when all have theirs.
  const int64_t first = std::max(p.in_channels_per_group(), d.row_lanes * d.columns) * c.positions * size;
  d.products_offset = ceil_div<int64_t>(first, 16) * 16;
  d.shared_bytes = d.products_offset + d.passes * c.positions * d.columns * size;
  return d;
}

struct Params : StridedParams {
  int32_t block_channels, columns, row_lanes, positions, passes, images, batch;
  int32_t products_offset;
  Divisor lanes, taps, kernel_w, channel_blocks, groups;
  Divisor in_w, image_positions, channels_divisor;
  Divisor out_w, out_h, channels_of_block;
  bool taps_innermost;
  bool x_channels_innermost, y_channels_innermost;
};

static_assert(std::is_trivially_copyable_v<Params>);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const int64_t out_channels = plan.cut[0];
  const Division d = divide(p, configs[plan.configuration], out_channels, plan.cut[1]);
  Params q{};
  set_strided(q, p, o);
  q.block_channels = static_cast<int32_t>(out_channels);
  q.columns = static_cast<int32_t>(d.columns), q.row_lanes = static_cast<int32_t>(d.row_lanes);
  q.positions = static_cast<int32_t>(d.positions), q.passes = static_cast<int32_t>(d.passes);
  q.images = static_cast<int32_t>(d.images), q.batch = static_cast<int32_t>(p.batch);
  q.products_offset = static_cast<int32_t>(d.products_offset);
  q.lanes = Divisor(d.lanes), q.taps = Divisor(p.kernel_h * p.kernel_w), q.kernel_w = Divisor(p.kernel_w);
  q.channel_blocks = Divisor(p.out_channels_per_group() / out_channels), q.groups = Divisor(p.groups);
  q.in_w = Divisor(p.in_w), q.image_positions = Divisor(p.in_h * p.in_w);
  q.channels_divisor = Divisor(p.in_channels_per_group());
  q.out_w = Divisor(p.out_w), q.out_h = Divisor(p.out_h), q.channels_of_block = Divisor(out_channels);
  q.taps_innermost = taps_innermost(p);
  q.x_channels_innermost = p.x_strides[1] == 1 && p.in_h * p.in_w > 1;
  q.y_channels_innermost = p.y_strides[1] == 1 && p.out_h * p.out_w > 1;
  return q;
}

}  // namespace convt::few_positions
