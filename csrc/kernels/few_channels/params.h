// What the kernel is given of a problem, by value, and how blocks divide it. Without CUDA, so that the planner counts
// with the same numbers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
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

// Without a stride, the inputs of a cell are a dilation apart; else, or with `neighbours`, the window has all inputs
// between the first and the last, with weights of zero.
inline Cells cells_of(const Axis<int64_t>& a, bool neighbours) {
  Cells c{};
  c.first = a.padding / a.stride;
  c.count = ceil_div<int64_t>(a.out + a.padding, a.stride) - c.first;
  c.distance = a.stride == 1 && a.kernel > 1 && !neighbours ? a.dilation : 1;
  c.window = ceil_div<int64_t>((a.kernel - 1) * (a.dilation / c.distance) + 1, a.stride);
  return c;
}

struct Image {
  Cells h, w;
};

inline Image cells_of(const Problem& p) { return {cells_of(p.axis_h(), false), cells_of(p.axis_w(), true)}; }

// Whether inputs pass through shared memory, a pixel's channels as words of 4 bytes: where columns are no neighbours.
inline bool has_pixels(const Problem& p) { return p.in_w > 1 && p.x_strides[3] != 1; }
// Channels of what a thread reads at a time.
inline int64_t word_channels(const Problem& p) { return has_pixels(p) ? 4 / element_size(p.dtype) : 1; }

// Whether sums that follow each other are of channels, rather than of phases, and written together: where they lie so.
// The planner, which has no pointers, passes null.
inline bool writes_channels(const Problem& p, const Config& c, const void* y) {
  const int32_t width = written_channels(c);
  return width > 1 && has_pixels(p) &&
         access_width(y, element_size(p.dtype), p.y_sizes(), p.y_strides, 1, p.out_channels_per_group(), width) ==
             width;
}

// How inputs pass through shared memory. The columns of a block's positions follow each other, also from one row of
// positions to the next. Each of its rows there begins with the inputs to the left that the first one's window has, so
// that a lane's inputs lie in front of those of its neighbour. An input's rows are side by side, an odd number of
// words.
struct Staging {
  int64_t columns;        // of inputs
  int64_t word_stride;    // from a word of all inputs to the next
  int64_t lanes;          // which copy neighbouring words of an input
  int64_t words, stages;  // of a stage; stages in shared memory: the next one is on its way while one is multiplied
  int64_t vector;         // words of a pixel that are read at a time
  int64_t bytes;
};

// Where an input's rows are in memory, and a bit for each that exists. Known of a block's inputs before they are
// copied, word by word.
struct alignas(16) Pixel {
  int64_t offset;
  uint32_t exist;
};

// An odd number: lanes whose inputs are neighbours read from different banks.
constexpr int32_t staged_rows(const Config& c) { return input_rows(c) | 1; }

// Words of a pixel that can be read at a time, of so many that are wanted: 4, 2 or 1.
inline int64_t widest_read(const Problem& p, int64_t words) {
  const int64_t channels = word_channels(p);
  const auto widest = static_cast<int32_t>((p.x_aligned ? 4 : 1) * channels);
  return common_width(nullptr, 1,
                      {words * channels, p.in_channels_per_group(), used_stride(p.batch, p.x_strides[0]),
                       used_stride(p.in_h, p.x_strides[2]), used_stride(p.in_w, p.x_strides[3])},
                      widest) /
         channels;
}

// Whole sectors of memory, and one for each of the threads that share a position.
constexpr int64_t least_words(int64_t splits) { return std::max<int64_t>(sector_words, splits); }

// Of `words` of a pixel, whose weights are in shared memory, and `positions` of a block, in rows of `row_positions`;
// `bytes` of shared memory are left for them, and may not suffice.
inline Staging stage(const Config& c, int64_t words, int64_t splits, int64_t positions, int64_t row_positions,
                     int64_t bytes) {
  Staging s{};
  s.columns = positions + (c.window_columns - 1) * (ceil_div<int64_t>(positions - 1, row_positions) + 1);
  const int64_t pixel_bytes = s.columns * static_cast<int64_t>(sizeof(Pixel));
  int64_t least = 0, word_bytes = 0, fit = 0;
  // Whole lines of memory if there is room, which would have left the second level of cache when the next sector of
  // them is asked for.
  for (int64_t at_once = line_words; at_once >= sector_words && fit == 0; at_once /= 2) {
    least = std::min(words, std::max(at_once, splits));
    s.lanes = 1;
    while (2 * s.lanes <= least) s.lanes *= 2;
    // Lanes that copy words of an input write to banks which those of its neighbours leave free.
    const int64_t apart = 32 / s.lanes;
    s.word_stride = round_up(s.columns * staged_rows(c) - apart, 2 * apart) + apart;
    word_bytes = s.word_stride * static_cast<int64_t>(sizeof(uint32_t));
    fit = std::max<int64_t>(bytes - pixel_bytes, 0) / word_bytes / least;
  }
  s.stages = words > least && fit >= 2 ? 2 : 1;
  // As many in each turn.
  const int64_t pieces = ceil_div<int64_t>(words, least), most = std::max<int64_t>(fit / s.stages, 1);
  const int64_t turns = std::max(ceil_div<int64_t>(pieces, most), s.stages);
  s.words = std::min(ceil_div<int64_t>(pieces, turns) * least, words);
  s.bytes = pixel_bytes + s.stages * s.words * word_bytes;
  return s;
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
  Staging staging;  // of pixels
  int64_t shared_bytes;
};

// `image`: the problem's cells.
inline Division divide(const Problem& p, const Image& image, const Config& c, int64_t splits) {
  Division d{};
  d.h = image.h, d.w = image.w;
  // Rows of a thread are as far from each other as the inputs of a cell, so that they share inputs.
  d.row_blocks = d.h.distance * ceil_div<int64_t>(ceil_div<int64_t>(d.h.count, d.h.distance), c.rows);
  d.sums = checked_mul(checked_mul(p.stride_h, p.stride_w), p.out_channels_per_group());
  d.sum_blocks = ceil_div<int64_t>(d.sums, c.sums);
  d.window_rows = ceil_div<int64_t>(d.h.window, c.window_rows);
  d.window_columns = ceil_div<int64_t>(d.w.window, c.window_columns);
  d.channel_weights = checked_mul(checked_mul(d.window_rows, d.window_columns), window_weights(c));
  const bool pixels = has_pixels(p);
  const int64_t channels = p.in_channels_per_group(), channel_bytes = d.channel_weights * int64_t{sizeof(float)},
                at_once = (pixels ? most_weight_bytes_beside_inputs : most_weight_bytes) / channel_bytes;
  d.channels = std::clamp<int64_t>(at_once, 1, channels);
  d.positions = threads / splits;
  if (pixels) {
    const int64_t of_word = word_channels(p), of_stage = least_words(splits) * of_word;
    if (d.channels < channels) {
      // As many at each time, of whole stages if there is room.
      const int64_t unit = at_once < of_stage ? of_word : of_stage, most = std::max(at_once / unit * unit, unit);
      d.channels = round_up(ceil_div(channels, ceil_div(channels, most)), unit);
    }
    // As many blocks of a multiprocessor as registers allow.
    const int64_t bytes =
        multiprocessor_bytes / resident_blocks(c, pixels) - reserved_bytes - d.channels * channel_bytes;
    d.staging = stage(c, d.channels / of_word, splits, d.positions, d.w.count, bytes);
    // Without a stage that is multiplied meanwhile, they are there sooner through registers.
    d.staging.vector =
        d.staging.stages == 1 ? std::min(widest_read(p, d.channels / of_word), widest_read(p, d.staging.words)) : 1;
  }
  d.all_positions = checked_mul(checked_mul(p.batch, d.row_blocks), d.w.count);
  d.blocks = checked_mul(checked_mul(p.groups, d.sum_blocks), ceil_div<int64_t>(d.all_positions, d.positions));
  const int64_t sums_bytes = int64_t{threads} * c.rows * c.sums * int64_t{sizeof(float)};
  d.shared_bytes = std::max(d.channels * channel_bytes + d.staging.bytes, sums_bytes);
  return d;
}

struct Params : StridedParams {
  int64_t x_row_step, y_row_step;  // in memory, from one of a thread's cells to the next
  int32_t first_row, first_column, row_distance, out_row_distance;
  int32_t log_positions, all_positions;
  int32_t channels_at_once, windows, channel_weights;
  int32_t sums;
  bool channels_innermost;                                                      // of sums
  int32_t all_rows;                                                             // of positions
  int32_t stage_words, stages, staged_columns, word_stride, log_lanes, vector;  // as in Staging
  Divisor sum_blocks, position_blocks, columns, row_blocks, distance;
  Divisor fill, window_columns, stride_h, stride_w, dilation_h, dilation_w, by_channels;
  Divisor input_columns;  // that a row of positions has, those of the first one's window too
};

static_assert(std::is_trivially_copyable_v<Params>);

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const int64_t splits = plan.cut[0];
  const Division d = divide(p, cells_of(p), c, splits);
  Params q{};
  set_strided(q, p, o);
  q.x_row_step = d.h.distance * p.x_strides[2], q.y_row_step = d.h.distance * p.stride_h * p.y_strides[2];
  q.first_row = static_cast<int32_t>(d.h.first), q.first_column = static_cast<int32_t>(d.w.first);
  q.row_distance = static_cast<int32_t>(d.h.distance);
  q.out_row_distance = static_cast<int32_t>(d.h.distance * p.stride_h);
  while ((int64_t{1} << q.log_positions) < d.positions) ++q.log_positions;
  q.all_positions = static_cast<int32_t>(d.all_positions);
  q.channels_at_once = static_cast<int32_t>(d.channels);
  q.windows = static_cast<int32_t>(d.window_rows * d.window_columns);
  q.channel_weights = static_cast<int32_t>(d.channel_weights);
  q.sums = static_cast<int32_t>(d.sums);
  q.sum_blocks = Divisor(d.sum_blocks), q.position_blocks = Divisor(ceil_div<int64_t>(d.all_positions, d.positions));
  q.columns = Divisor(d.w.count), q.row_blocks = Divisor(d.row_blocks), q.distance = Divisor(d.h.distance);
  q.fill = Divisor(std::min(q.channel_weights, threads)), q.window_columns = Divisor(d.window_columns);
  q.stride_h = Divisor(p.stride_h), q.stride_w = Divisor(p.stride_w);
  q.dilation_h = Divisor(p.dilation_h / d.h.distance), q.dilation_w = Divisor(p.dilation_w);
  q.channels_innermost = writes_channels(p, c, o.result);
  q.by_channels = Divisor(p.out_channels_per_group());
  const Staging& s = d.staging;
  q.all_rows = static_cast<int32_t>(d.all_positions / d.w.count);
  q.stage_words = static_cast<int32_t>(s.words), q.stages = static_cast<int32_t>(s.stages);
  q.staged_columns = static_cast<int32_t>(s.columns), q.word_stride = static_cast<int32_t>(s.word_stride);
  q.vector = static_cast<int32_t>(s.vector);
  while ((s.vector << q.log_lanes) < s.lanes) ++q.log_lanes;
  q.input_columns = Divisor(d.w.count + c.window_columns - 1);
  return q;
}

}  // namespace convt::few_channels
