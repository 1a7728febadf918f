// How a problem is cut: the taps of each set of phases in steps, the patch of x that a tile reads, stages in shared
// memory, and what the copy engine is told of x. Host code, for the planner and the launches.
#pragma once

#include <algorithm>

#include "../implicit_gemm/merged_phases.h"
#include "../implicit_gemm/phases.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::implicit_gemm_nchw_sm90 {

// Taps of a phase whose inputs lie below each other: at (row, column), (row + 1, column), ... from the position.
struct Step {
  int32_t row, column, taps;
};

// A phase of the rows, and as many of the columns as the configuration has.
struct Set {
  int32_t row_phase, column_phase;
  int32_t first_step, steps, first_phase_steps, first_tap, taps;  // those of the first phase of the columns come first
  int32_t row, column;                                            // of the patch, from the position
};

// Output channels of a tile, and phases of the rows and columns that the columns of a product are of.
inline int64_t merged_rows(const Config& c, const Problem& p) { return c.subpixel ? p.stride_h : 1; }
inline int64_t merged_columns(const Config& c, const Problem& p) { return c.subpixel ? p.stride_w : 1; }
inline int64_t merged_phases(const Config& c, const Problem& p) { return merged_rows(c, p) * merged_columns(c, p); }
inline int64_t channels_of_tile(const Config& c, const Problem& p) { return c.channels / merged_phases(c, p); }
// Phases of the columns that a tile has.
inline int64_t column_phases(const Config& c, const Problem& p) { return c.subpixel ? p.stride_w : c.phases; }

struct Tables {
  int32_t sets = 0, steps = 0, taps = 0, row_sets = 0, column_sets = 0;
  int32_t rows = 1, columns = 1;  // that a patch has more than a tile, at least 1
  int32_t taps_of_step = 1;       // most
  Set set[most_sets];
  Step step[most_taps];
  // Of a tap, in the order of steps: which of `kernel_row` and `kernel_column` it has, each with one for each of the
  // phases that are merged.
  uint8_t tap_row[most_taps], tap_column[most_taps];
  uint8_t kernel_row[most_taps], kernel_column[most_taps];
};

// Where a set's patch begins, and how far it goes.
inline void make_patch(const Problem& p, Set& set, Tables& t) {
  if (set.steps == 0) return;
  int32_t last_row = t.step[set.first_step].row, last_column = t.step[set.first_step].column;
  int32_t first_column = last_column;
  set.row = last_row;
  for (int32_t s = set.first_step; s < t.steps; ++s) {
    const Step& step = t.step[s];
    set.row = std::min(set.row, step.row), first_column = std::min(first_column, step.column);
    last_row = std::max(last_row, step.row + step.taps - 1), last_column = std::max(last_column, step.column);
  }
  // Boxes of the copy engine begin at multiples of 16 bytes.
  const auto unit = static_cast<int32_t>(16 / element_size(p.dtype));
  set.column = floor_div(first_column, unit) * unit;
  t.rows = std::max(t.rows, last_row - set.row + 1), t.columns = std::max(t.columns, last_column - set.column + 1);
}

// The one set of a configuration that merges phases.
inline Refusal make_merged_tables(const Config& config, const Problem& p, Tables& t) {
  if (channels_of_tile(config, p) == 0) return {"has fewer columns than there are phases"};
  int32_t rows[most_taps], columns[most_taps];
  const int32_t row_count = merge_phases(p.axis_h(), rows, t.kernel_row),
                column_count = merge_phases(p.axis_w(), columns, t.kernel_column);
  if (row_count < 0 || column_count < 0 || row_count * column_count > most_taps)
    return {"takes at most ", most_taps, " taps"};
  t.sets = t.row_sets = t.column_sets = 1;
  Set& set = t.set[0];
  set = {};
  for (int32_t k = 0; k < column_count && row_count > 0; ++k) {
    for (int32_t i = 0; i < row_count;) {
      int32_t run = 1;
      while (i + run < row_count && rows[i + run] == rows[i] + run) ++run;
      const int32_t taps = ceil_div(run, ceil_div(run, most_taps_of_step));
      t.step[t.steps++] = {rows[i], columns[k], taps};
      t.taps_of_step = std::max(t.taps_of_step, taps);
      for (int32_t tap = 0; tap < taps; ++tap, ++i) {
        t.tap_row[t.taps] = static_cast<uint8_t>(i), t.tap_column[t.taps++] = static_cast<uint8_t>(k);
      }
    }
  }
  set.steps = set.first_phase_steps = t.steps, set.taps = t.taps;
  make_patch(p, set, t);
  return {};
}

// Why a configuration cannot have such sets; empty if `t` has been filled.
inline Refusal make_tables(const Config& config, const Problem& p, Tables& t) {
  if (config.subpixel) return make_merged_tables(config, p, t);
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  if (w.stride % config.phases != 0) return {"takes strides of the columns that are multiples of ", config.phases, ""};
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  t.row_sets = narrow(h.stride), t.column_sets = narrow(w.stride) / config.phases;
  t.sets = t.row_sets * t.column_sets;
  if (t.sets > most_sets) return {"takes at most ", most_sets, " sets of phases"};
  for (int32_t i = 0; i < t.sets; ++i) {
    Set& set = t.set[i];
    set = {i / t.column_sets, i % t.column_sets * config.phases, t.steps, 0, 0, t.taps, 0, 0, 0};
    const AxisPhase rows = axis_phase(h, set.row_phase, h.stride);
    const int32_t row_step = narrow(h.input_step), column_step = narrow(w.input_step);
    const int32_t together =
        row_step == 1 ? ceil_div(rows.taps, ceil_div(std::max(rows.taps, 1), most_taps_of_step)) : 1;
    for (int32_t phase = 0; phase < config.phases; ++phase) {
      const AxisPhase columns = axis_phase(w, set.column_phase + phase, w.stride);
      for (int32_t k = 0; k < columns.taps; ++k) {
        // Inputs from the first row to the last: the last tap reads the first one.
        for (int32_t j = rows.taps; j > 0;) {
          const int32_t taps = std::min(together, j);
          if (t.taps + taps > most_taps) return {"takes at most ", most_taps, " taps"};
          t.step[t.steps++] = {rows.origin - (j - 1) * row_step, columns.origin - k * column_step, taps};
          t.taps_of_step = std::max(t.taps_of_step, taps);
          for (int32_t tap = 0; tap < taps; ++tap) {
            --j;
            t.tap_row[t.taps] = static_cast<uint8_t>(rows.first_tap + j * narrow(h.tap_step));
            t.tap_column[t.taps++] = static_cast<uint8_t>(columns.first_tap + k * narrow(w.tap_step));
          }
        }
      }
      if (phase == 0) set.first_phase_steps = t.steps - set.first_step;
    }
    set.steps = t.steps - set.first_step, set.taps = t.taps - set.first_tap;
    make_patch(p, set, t);
  }
  for (int32_t i = 0; i < most_taps; ++i) t.kernel_row[i] = t.kernel_column[i] = static_cast<uint8_t>(i);
  return {};
}

struct Tiling {
  int32_t halves = 0;                                                              // of a chunk
  int32_t tile_rows = 0, tile_columns = 0;                                         // positions
  int32_t patch_rows = 0, patch_columns = 0;                                       // of x, in shared memory
  int32_t patch_bytes = 0, patch_stages = 0, weight_bytes = 0, weight_stages = 0;  // of a stage
  int32_t staged_bytes = 0;                                                        // of a buffer of outputs
  int64_t chunks = 0, channel_tiles = 0, row_tiles = 0, column_tiles = 0, tiles = 0;

  int32_t shared_bytes() const {
    return 2 * staged_bytes + patch_stages * patch_bytes + weight_stages * weight_bytes + barrier_bytes;
  }
};

// Whether rows of y begin at multiples of a sector of memory.
inline bool whole_sectors(const Problem& p) {
  const auto whole = [&](int64_t size, int64_t stride) {
    return size <= 1 || stride * element_size(p.dtype) % sector_bytes == 0;
  };
  return whole(p.batch, p.y_strides[0]) && whole(p.out_channels, p.y_strides[1]) && whole(p.out_h, p.y_strides[2]);
}

// Whether a tile may be written through shared memory, row by row: rows of y have all of a tile's columns. (Where they
// begin at whole sectors, registers are faster.)
inline bool may_stage(const Config& c, const Problem& p) {
  return c.phases == p.stride_w && !c.subpixel && !whole_sectors(p);
}

// With strips of so many side by side; `staged`: outputs pass through shared memory. No stages: they have no room.
inline Tiling make_tiling(const Config& c, const Problem& p, const Tables& t, int32_t strips, bool staged) {
  const int64_t element = element_size(p.dtype);
  Tiling n;
  n.tile_rows = c.rows * (warps / strips), n.tile_columns = strip_columns * strips;
  // Lanes that read 32 bytes of channels of 16 positions at once find them in different banks if a channel, or two
  // channels of 16 bits, are 32 bytes, or 96, from the next, modulo 128.
  const auto unit = static_cast<int32_t>(16 / element);
  const int32_t odd = element == 4 ? 2 : 1;
  const int32_t units = ceil_div(n.tile_columns + t.columns - 1, unit), rows = n.tile_rows + t.rows - 1;
  for (int32_t u = units; u <= units + 1; ++u) {
    for (int32_t r = rows; r < rows + 4; ++r) {
      if (u * r % (2 * odd) != odd || (n.patch_rows > 0 && u * unit * r >= n.patch_columns * n.patch_rows)) continue;
      n.patch_columns = u * unit, n.patch_rows = r;
    }
  }
  // As many halves of a chunk of the reduction as a group's channels reach.
  n.halves = p.in_channels_per_group() * element <= k_bytes ? 1 : most_halves;
  n.patch_bytes = n.patch_rows * n.patch_columns * n.halves * k_bytes;
  n.weight_bytes = t.taps_of_step * tap_bytes(c, n.halves);
  if (staged) n.staged_bytes = staged_bytes(c, strips, static_cast<int32_t>(element));
  const int32_t left = shared_bytes_limit(c) - barrier_bytes - 2 * n.staged_bytes;
  if (n.patch_columns <= tensor_map_most_box && n.patch_rows <= tensor_map_most_box) {
    for (int32_t stages = most_patch_stages; stages >= fewest_patch_stages && n.weight_stages == 0; --stages) {
      const int32_t weights = std::min(most_weight_stages, (left - stages * n.patch_bytes) / n.weight_bytes);
      // Weights of some steps are on their way, too.
      if (weights >= (stages > fewest_patch_stages ? 2 * fewest_weight_stages : fewest_weight_stages)) {
        n.patch_stages = stages, n.weight_stages = weights;
      }
    }
  }
  n.chunks = ceil_div<int64_t>(p.in_channels_per_group(), n.halves * k_bytes / element);
  n.channel_tiles = ceil_div<int64_t>(p.out_channels_per_group(), channels_of_tile(c, p));
  n.row_tiles = ceil_div<int64_t>(ceil_div(p.out_h, p.stride_h), n.tile_rows);
  n.column_tiles = ceil_div<int64_t>(ceil_div(p.out_w, p.stride_w), n.tile_columns);
  n.tiles = checked_mul(checked_mul(checked_mul(n.row_tiles, n.column_tiles), checked_mul(n.channel_tiles, t.sets)),
                        checked_mul(p.groups, p.batch));
  return n;
}

// The workspace: packed weights as [group][tile of channels][chunk][tap], then, if it is there, the copy of x, whose
// rows begin at multiples of 16 bytes.
inline int64_t packed_bytes(const Config& c, const Problem& p, const Tables& t, const Tiling& n) {
  return checked_mul(checked_mul(p.groups, n.channel_tiles),
                     checked_mul(n.chunks, checked_mul(t.taps, tap_bytes(c, n.halves))));
}
inline int64_t copied_row(const Problem& p) {
  const int64_t unit = 16 / element_size(p.dtype);
  return ceil_div<int64_t>(p.in_w, unit) * unit;
}
inline int64_t copied_bytes(const Problem& p) {
  return checked_mul(checked_mul(p.batch, p.in_channels), checked_mul(p.in_h, copied_row(p)) * element_size(p.dtype));
}

// x as [image][group][channel][row][column], or its copy. The copy engine takes five dimensions.
inline TensorMapLayout make_x_map(const Problem& p, const Tiling& n, const void* x, bool copies_x) {
  const int64_t bytes = element_size(p.dtype), channels = p.in_channels_per_group();
  const int64_t row = copies_x ? copied_row(p) : p.x_strides[2], channel = copies_x ? p.in_h * row : p.x_strides[1],
                image = copies_x ? checked_mul(p.in_channels, channel) : p.x_strides[0];
  // Bytes. Dimensions of one element have any stride.
  const auto stride = [&](int64_t size, int64_t elements) { return size > 1 ? checked_mul(elements, bytes) : 16; };
  TensorMapLayout map{x,
                      static_cast<int32_t>(bytes),
                      {p.in_w, p.in_h, channels, p.groups, p.batch},
                      {stride(p.in_h, row), stride(channels, channel), stride(p.groups, checked_mul(channels, channel)),
                       stride(p.batch, image)},
                      {n.patch_columns, n.patch_rows, static_cast<int32_t>(n.halves * k_bytes / bytes), 1, 1}};
  map.swizzle_bytes = 0;
  map.rounds_to_tf32 = bytes == 4;
  return map;
}

}  // namespace convt::implicit_gemm_nchw_sm90
