// What the kernels of the implicit-GEMM families are given, by value, as far as they share it. Strides in elements.
#pragma once

#include <type_traits>

#include "../access_width.h"
#include "../divisor.h"
#include "../operands.h"
#include "../tensor_map.h"
#include "phases.h"

namespace convt::implicit_gemm {

struct DeviceSet {
  int16_t row_phase, column_phase, columns;
  int16_t first_step, steps, fragments;
  int32_t packed;                     // its first fragment
  int32_t origin_row, origin_column;  // of the patch, from the tile's first position
};

struct DeviceStep {
  uint32_t offset;  // in the patch, bytes
  uint32_t mask;    // blocks of rows that it is for
};

struct CommonParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  const void* packed;
  float* partials;
  uint32_t* counters;
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, bias_stride;
  int64_t w_strides[4];
  int32_t x_row_stride, x_column_stride, y_row_stride, y_column_stride;
  int32_t batch, in_channels, out_channels;  // channels of a group
  int32_t tile_images, tile_rows, tile_columns;
  int32_t row_phases, column_phases;  // of a set
  int32_t channel_blocks;
  int32_t patch_rows, patch_columns, patch_pixels;
  int32_t channel_groups, groups_of_chunk, chunks, splits;
  int32_t store_width;      // elements
  bool channels_innermost;  // in y
  Fill fill;
  Divisor by_channels, by_sets, by_splits, by_columns, by_rows, by_images;  // tiles of the grid
  Divisor by_patch_columns, by_patch_rows;
  Divisor by_column_phases;
  Divisor by_bias_period;  // channels after which the bias repeats
  Axis<int32_t> h, v;
  int8_t row_rank[most_stride], column_rank[most_stride];
  DeviceSet sets[most_sets];
  DeviceStep steps[most_taps];
};

inline constexpr int32_t pack_threads = 256;
inline constexpr int32_t pack_words = 32;                  // of channels, that a block packs together
inline constexpr int32_t fewest_pack_blocks = 256;         // if tiles can be smaller
inline constexpr int32_t fewest_resident_pack_blocks = 6;  // of a multiprocessor
inline constexpr int32_t most_pack_lines = 4;              // of taps that do not follow each other
// Of a tile, so that those share a multiprocessor. Those that are read in vectors are done sooner if they are smaller;
// of others the sectors are read more often then.
inline constexpr int32_t most_pack_bytes = 35 * 1024, most_vector_pack_bytes = 17 * 1024;

// The tile of a block that packs weights: so many taps, and rows of a fragment that so many warps write. In shared
// memory, words from a row to the next and from a word of channels to the next.
struct PackTile {
  int32_t taps, rows, warps, warps_of_row;
  int32_t row, tap, word;  // in shared memory, words from one to the next
  int32_t vectors;         // of 16 bytes of a channel, or 0 if they are not whole
  // Of a channel: rows of all taps or taps of all rows, in memory so many elements apart, in shared memory so many
  // words.
  int32_t line_skip, line_gap;
  int32_t shared_bytes;
  Divisor by_line, by_taps, by_warps, by_tiles_of_fragment, by_row_tiles, by_tap_tiles, by_channel_tiles;
  int64_t blocks;
};

struct PackParams {
  const void* w;
  void* packed;
  CachePolicy policy = CachePolicy::evict_normal;  // of what is packed
  uint32_t* counters;
  int64_t strides[4];
  uint32_t counter_count;
  int32_t groups;           // of channels; none if the weights are read in place
  int32_t stacked, copies;  // rows of y of a block, and in how many of their places a tap is
  int32_t zero_count;
  int32_t in_channels, out_channels;  // of a group
  int32_t channel_tiles;
  Divisor by_taps, by_kernel_w, by_fragment_rows, by_channel_groups, by_channel_blocks;
  PackTile tile;
  struct {
    int32_t packed, fragments;
  } sets[most_sets];
  // Where a tap's copies are: -1 if no output is reached; of the first fragment in a channel group; row of y.
  int16_t set_of_tap[most_taps];
  int16_t slot_of_tap[most_taps];
  int8_t row_of_tap[most_taps];
  // Places that no tap has, where others of the same step are for other rows of y.
  struct {
    int16_t set, slot;
    int8_t row;
  } zeros[most_taps];
};

static_assert(std::is_trivially_copyable_v<PackParams> && sizeof(PackParams) <= 4096);

// The tiles of a grid.
struct Counts {
  int64_t rows, columns, images;   // of positions
  int64_t channels;                // of output channels
  int64_t channel_groups, chunks;  // of input channels
  int64_t blocks;                  // without splits
  int64_t fragments;               // packed, of all sets
};

// `block_channels`: output channels of a block of rows; `group_channels`: input channels of a fragment.
inline Counts make_counts(const Problem& p, const Tables& t, const GemmTile& tile, int32_t block_channels,
                          int32_t group_channels) {
  Counts n{};
  n.rows = ceil_div<int64_t>(ceil_div<int64_t>(p.out_h, row_period(p, tile.stacked_rows)), tile.rows);
  n.columns = ceil_div<int64_t>(ceil_div(p.out_w, p.stride_w), tile.columns);
  n.images = ceil_div<int64_t>(p.batch, tile.images);
  if (tile.im2col) {
    const int64_t of_image = checked_mul(ceil_div(p.out_h, p.stride_h), ceil_div(p.out_w, p.stride_w));
    n.rows = n.images = 1, n.columns = ceil_div<int64_t>(checked_mul(p.batch, of_image), tile.columns);
  }
  n.channels = ceil_div<int64_t>(p.out_channels_per_group(), block_channels * t.channel_blocks);
  n.channel_groups = ceil_div<int64_t>(p.in_channels_per_group(), group_channels);
  n.chunks = ceil_div<int64_t>(n.channel_groups, tile.channel_groups);
  n.blocks = checked_mul(checked_mul(checked_mul(n.rows, n.columns), checked_mul(n.images, n.channels)),
                         checked_mul(t.sets, p.groups));
  int64_t fragments = 0;
  for (int32_t i = 0; i < t.sets; ++i) fragments += t.set[i].fragments;
  n.fragments = checked_mul(fragments, checked_mul(n.channel_groups, checked_mul(n.channels, p.groups)));
  return n;
}

// The workspace: counters of the tiles whose reduction is split, their partial sums, the packed weights if there are.
// Where steps are shared out evenly, a block leaves sums of the tile that it begins with, and of the one it ends with.
struct Workspace {
  int64_t partials, packed, bytes;
};

inline Workspace make_workspace(const Counts& n, const GemmTile& tile, int64_t tile_elements, int64_t fragment_bytes) {
  const auto aligned = [](int64_t bytes) { return ceil_div<int64_t>(bytes, 512) * 512; };
  const bool split = tile.splits > 1;
  const int64_t parts = tile.balanced_blocks > 0 ? int64_t{2} * tile.balanced_blocks : n.blocks * tile.splits;
  Workspace s{};
  s.partials = split ? aligned(4 * n.blocks) : 0;
  s.packed = s.partials + (split ? aligned(checked_mul(parts, 4 * tile_elements)) : 0);
  s.bytes = checked_add(s.packed, checked_mul(n.fragments, fragment_bytes));
  return s;
}

// Calls f(row, column, set, step, first block of rows, phase of the rows) for each tap that an output has: it belongs
// to one phase of an axis, and with it to one step; or, if rows of y are stacked, to one of each stride of their
// period.
template <class F>
void for_each_tap(const Problem& p, const GemmTile& tile, const Tables& t, const F& f) {
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  const int32_t period = row_period(p, tile.stacked_rows);
  for (int32_t ch = 0; ch < period; ++ch) {
    const AxisPhase row = axis_phase(h, ch, period);
    for (int32_t cw = 0; cw < p.stride_w; ++cw) {
      const AxisPhase column = axis_phase(w, cw, w.stride);
      if (row.empty() || column.empty()) continue;
      const int32_t i = ch / (tile.row_phases * tile.stacked_rows) * t.column_sets + cw / tile.column_phases;
      const PhaseSet& set = t.set[i];
      const int32_t block = (t.row_rank[ch] * set.columns + t.column_rank[cw]) * t.channel_blocks;
      for (int32_t j = 0; j < row.taps; ++j) {
        for (int32_t l = 0; l < column.taps; ++l) {
          int32_t s = set.first_step;
          while (t.step[s].row != row.origin - j * narrow(h.input_step) ||
                 t.step[s].column != column.origin - l * narrow(w.input_step)) {
            ++s;
          }
          f(row.first_tap + j * narrow(h.tap_step), column.first_tap + l * narrow(w.tap_step), i, s, block, ch);
        }
      }
    }
  }
}

// How x is read, where patches begin at multiples of so many pixels. The planner, which has no pointers, passes null.
inline Fill fill_of(const Problem& p, const void* x, int32_t begin) {
  const int64_t bytes = element_size(p.dtype);
  const auto vector = static_cast<int32_t>(16 / bytes);
  if (begin % quad == 0 && access_width(x, bytes, p.x_sizes(), p.x_strides, 3, p.in_w, quad) == quad) return Fill::rows;
  const int32_t width = access_width(x, bytes, p.x_sizes(), p.x_strides, 1, p.in_channels_per_group(), vector);
  return width == vector ? Fill::channels : Fill::elements;
}

// Elements that a store writes. `columns`: tiles of a row.
inline int32_t store_width(const Problem& p, const void* y, const GemmTile& tile, int64_t columns) {
  const int64_t bytes = element_size(p.dtype);
  const auto vector = static_cast<int32_t>(16 / bytes);
  if (channels_innermost(p)) {
    return access_width(y, bytes, p.y_sizes(), p.y_strides, 1, p.out_channels_per_group(), vector);
  }
  int32_t widest = tile.column_phases == p.stride_w ? vector : 1;
  // A tile that is not the last of its row ends with a whole vector.
  while (columns > 1 && tile.columns * p.stride_w % widest != 0) widest /= 2;
  return access_width(y, bytes, p.y_sizes(), p.y_strides, 3, p.out_w, widest);
}

// `begin`: patches begin at multiples of so many pixels. `pixel_bytes`: of a pixel in the patch, from a step's offset
// in pixels.
inline void make_common(const GemmTile& tile, const Problem& p, const Operands& o, const Tables& t, const Counts& n,
                        const Workspace& workspace, int32_t patch_rows, int32_t patch_columns, int32_t begin,
                        int32_t pixel_bytes, CommonParams& q, PackParams& k) {
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  unsigned char* const memory = static_cast<unsigned char*>(o.workspace);
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.counters = reinterpret_cast<uint32_t*>(memory);
  q.partials = reinterpret_cast<float*>(memory + workspace.partials);
  q.packed = memory + workspace.packed;
  q.x_batch_stride = p.x_strides[0], q.y_batch_stride = p.y_strides[0];
  // The stride of a single channel, row or column may be any number, even one beyond 32 bits: it counts as 0. Then
  // addresses of channels that do not exist, which kernels compute like others, are aligned like others, too.
  q.x_channel_stride = used_stride(p.in_channels, p.x_strides[1]);
  q.x_row_stride = used_stride_32(p.in_h, p.x_strides[2]);
  q.x_column_stride = used_stride_32(p.in_w, p.x_strides[3]);
  q.y_channel_stride = used_stride(p.out_channels, p.y_strides[1]);
  q.y_row_stride = used_stride_32(p.out_h, p.y_strides[2]);
  q.y_column_stride = used_stride_32(p.out_w, p.y_strides[3]);
  q.bias_stride = p.bias_stride;
  std::copy(p.w_strides.begin(), p.w_strides.end(), q.w_strides);
  q.batch = narrow(p.batch);
  q.in_channels = narrow(p.in_channels_per_group()), q.out_channels = narrow(p.out_channels_per_group());
  q.tile_images = tile.images, q.tile_rows = tile.rows, q.tile_columns = tile.columns;
  q.patch_rows = patch_rows, q.patch_columns = patch_columns;
  q.patch_pixels = tile.images * patch_rows * patch_columns;
  q.row_phases = tile.row_phases, q.column_phases = tile.column_phases;
  q.channel_blocks = t.channel_blocks;
  q.channel_groups = narrow(n.channel_groups), q.groups_of_chunk = tile.channel_groups, q.chunks = narrow(n.chunks);
  q.splits = tile.splits;
  q.channels_innermost = channels_innermost(p);

  q.fill = fill_of(p, o.x, begin);
  q.store_width = store_width(p, o.result, tile, n.columns);

  q.by_channels = Divisor(n.channels), q.by_sets = Divisor(t.sets), q.by_splits = Divisor(tile.splits);
  q.by_columns = Divisor(n.columns), q.by_rows = Divisor(n.rows), q.by_images = Divisor(n.images);
  q.by_patch_columns = Divisor(patch_columns), q.by_patch_rows = Divisor(patch_rows);
  q.by_column_phases = Divisor(tile.column_phases);
  q.by_bias_period = Divisor(p.bias_period > 0 ? p.bias_period : p.out_channels);
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.v = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  std::copy(std::begin(t.row_rank), std::end(t.row_rank), q.row_rank);
  std::copy(std::begin(t.column_rank), std::end(t.column_rank), q.column_rank);

  k.w = o.w, k.packed = memory + workspace.packed, k.counters = q.counters;
  k.counter_count = tile.splits > 1 ? static_cast<uint32_t>(n.blocks) : 0;
  std::copy(p.w_strides.begin(), p.w_strides.end(), k.strides);
  const int64_t taps = p.kernel_h * p.kernel_w;
  k.in_channels = q.in_channels, k.out_channels = q.out_channels;
  k.channel_tiles = narrow(n.channels);
  k.by_taps = Divisor(taps), k.by_kernel_w = Divisor(p.kernel_w);
  k.by_fragment_rows = Divisor(n.channels * t.channel_blocks), k.by_channel_groups = Divisor(n.channel_groups);
  k.by_channel_blocks = Divisor(t.channel_blocks);
  k.groups = tile.weights_in_place ? 0 : narrow(p.groups);
  std::fill(k.set_of_tap, k.set_of_tap + most_taps, int16_t{-1});

  int64_t packed = 0;
  for (int32_t i = 0; i < t.sets; ++i) {
    const PhaseSet& set = t.set[i];
    const int32_t first = first_column(set, begin);
    const auto small = [](int32_t v) { return static_cast<int16_t>(v); };
    q.sets[i] = {small(set.row_phase),  small(set.column_phase), small(set.columns),
                 small(set.first_step), small(set.steps),        small(set.fragments),
                 narrow(packed),        set.lowest_row,          first};
    k.sets[i] = {narrow(packed), set.fragments};
    packed += p.groups * n.channels * n.channel_groups * set.fragments;
    for (int32_t s = set.first_step; s < set.first_step + set.steps; ++s) {
      const Step& step = t.step[s];
      const int32_t pixel = (step.row - set.lowest_row) * patch_columns + step.column - first;
      q.steps[s] = {static_cast<uint32_t>(pixel_bytes * pixel), step.mask};
    }
  }
  k.stacked = tile.stacked_rows, k.copies = t.row_step, k.zero_count = 0;
  const auto slot_of = [&](int32_t s, int32_t block) {
    return static_cast<int16_t>(t.step[s].prefix +
                                static_cast<uint32_t>(__builtin_popcount(t.step[s].mask & ((1u << block) - 1))));
  };
  uint32_t there[most_taps][most_stride] = {};  // of a step and a row of y, blocks with a tap
  for_each_tap(p, tile, t, [&](int32_t tap_row, int32_t tap_column, int32_t i, int32_t s, int32_t block, int32_t ch) {
    const int32_t at = (tap_row * narrow(p.kernel_w) + tap_column) * k.copies + ch / narrow(p.stride_h);
    const int32_t row = ch % k.stacked;
    k.set_of_tap[at] = static_cast<int16_t>(i), k.slot_of_tap[at] = slot_of(s, block);
    k.row_of_tap[at] = static_cast<int8_t>(row);
    there[s][row] |= 1u << block;
  });
  for (int32_t i = 0; i < t.sets && k.stacked > 1; ++i) {
    for (int32_t s = t.set[i].first_step; s < t.set[i].first_step + t.set[i].steps; ++s) {
      for (int32_t row = 0; row < k.stacked; ++row) {
        for (int32_t block = 0; t.step[s].mask >> block != 0; ++block) {
          if ((t.step[s].mask & ~there[s][row]) >> block & 1) {
            k.zeros[k.zero_count++] = {static_cast<int16_t>(i), slot_of(s, block), static_cast<int8_t>(row)};
          }
        }
      }
    }
  }
}

}  // namespace convt::implicit_gemm
