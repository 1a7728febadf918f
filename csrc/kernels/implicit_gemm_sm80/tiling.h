// The geometry of a tile: which phases and taps a block of threads multiplies, and what of the input it keeps in shared
// memory. Host code, for the planner and the launch.
//
// Per axis, phase c holds the outputs s v + c, v = 0, 1, ...; they read inputs origin(c) + v - j d' by taps
// first_tap(c) + j s' (plan/geometry.h). So all phases of a set read, at position v, inputs v + offset, with a few
// offsets that they share: a step multiplies the inputs at one offset by the weights of every phase that reads it.
#pragma once

#include <algorithm>
#include <optional>

#include "../../plan/plan.h"
#include "config.h"

namespace convt::implicit_gemm_sm80 {

// One phase of one axis.
struct AxisPhase {
  int32_t outputs, first_tap, taps, origin;

  bool empty() const { return taps == 0; }
};

inline AxisPhase axis_phase(const Axis<int64_t>& a, int64_t c) {
  AxisPhase f{0, 0, 0, 0};
  if (c < a.out) f.outputs = static_cast<int32_t>(ceil_div<int64_t>(a.out - c, a.stride));
  const int64_t r = (c + a.padding) % a.stride;
  if (f.outputs == 0 || r % a.divisor != 0) return f;
  const int64_t tap = r / a.divisor * a.tap_inverse % a.tap_step;
  if (tap >= a.kernel) return f;
  f.first_tap = static_cast<int32_t>(tap);
  f.taps = static_cast<int32_t>(ceil_div<int64_t>(a.kernel - tap, a.tap_step));
  f.origin = static_cast<int32_t>((c + a.padding - tap * a.dilation) / a.stride);
  return f;
}

// Inputs at (row, column) from the position, times the weights of the blocks of 16 rows in `mask`; their fragments
// start at `prefix` of a channel group's.
struct Step {
  int32_t row, column;
  uint32_t mask, prefix;
};

struct PhaseSet {
  int32_t row_phase, column_phase;  // the first ones
  int32_t columns;                  // of the phases with taps
  int32_t first_step, steps;
  int32_t fragments;  // of a channel group and a tile of output channels
  int32_t lowest_row, highest_row, lowest_column, highest_column;
};

struct Tables {
  int32_t sets = 0, steps = 0;
  int32_t row_sets = 0, column_sets = 0;
  int32_t channel_blocks = 0;  // blocks of 16 output channels of a phase in a block of threads
  PhaseSet set[most_sets];
  Step step[most_taps];
  int8_t row_rank[most_stride], column_rank[most_stride];  // of a phase among those of its set that have taps; or -1
};

// Why a block of threads cannot hold such sets of phases; empty if `t` has been filled.
inline std::string make_tables(const Config& config, const Problem& p, int32_t row_phases, int32_t column_phases,
                               Tables& t) {
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  const auto strides = [](const Axis<int64_t>& a) { return static_cast<int32_t>(a.stride); };
  t.row_sets = ceil_div(strides(h), row_phases), t.column_sets = ceil_div(strides(w), column_phases);
  t.sets = t.row_sets * t.column_sets, t.steps = 0;
  if (t.sets > most_sets) return "takes at most " + std::to_string(most_sets) + " sets of phases";
  AxisPhase rows[most_stride], columns[most_stride];
  const auto rank = [](const Axis<int64_t>& a, int32_t chunk, AxisPhase* phases, int8_t* ranks) {
    int32_t widest = 0;
    for (int32_t c = 0, count = 0; c < a.stride; ++c) {
      if (c % chunk == 0) count = 0;
      phases[c] = axis_phase(a, c);
      ranks[c] = phases[c].empty() ? int8_t{-1} : static_cast<int8_t>(count++);
      widest = std::max(widest, count);
    }
    return widest;
  };
  const int32_t most_rows = rank(h, row_phases, rows, t.row_rank);
  const int32_t most_columns = rank(w, column_phases, columns, t.column_rank);
  const int32_t phases = std::max(1, most_rows * most_columns);
  if (phases > config.rows()) return "has too few rows for the phases";
  t.channel_blocks =
      std::min(config.rows() / phases, static_cast<int32_t>(ceil_div<int64_t>(p.out_channels_per_group(), 16)));
  for (int32_t i = 0; i < t.sets; ++i) {
    PhaseSet& set = t.set[i];
    set = {};
    set.row_phase = i / t.column_sets * row_phases, set.column_phase = i % t.column_sets * column_phases;
    set.first_step = t.steps;
    const int32_t row_end = std::min(set.row_phase + row_phases, strides(h));
    const int32_t column_end = std::min(set.column_phase + column_phases, strides(w));
    for (int32_t c = set.column_phase; c < column_end; ++c) set.columns += !columns[c].empty();
    for (int32_t ch = set.row_phase; ch < row_end; ++ch) {
      for (int32_t cw = set.column_phase; cw < column_end; ++cw) {
        if (rows[ch].empty() || columns[cw].empty()) continue;
        const int32_t phase = t.row_rank[ch] * set.columns + t.column_rank[cw];
        const uint32_t mask = ((1u << t.channel_blocks) - 1) << phase * t.channel_blocks;
        for (int32_t j = 0; j < rows[ch].taps; ++j) {
          for (int32_t k = 0; k < columns[cw].taps; ++k) {
            const int32_t row = rows[ch].origin - j * static_cast<int32_t>(h.input_step);
            const int32_t column = columns[cw].origin - k * static_cast<int32_t>(w.input_step);
            int32_t s = set.first_step;
            while (s < t.steps && (t.step[s].row != row || t.step[s].column != column)) ++s;
            if (s == t.steps) {
              if (t.steps == most_taps) return "takes at most " + std::to_string(most_taps) + " taps";
              t.step[t.steps++] = {row, column, 0, 0};
            }
            t.step[s].mask |= mask;
          }
        }
      }
    }
    set.steps = t.steps - set.first_step;
    for (int32_t s = set.first_step; s < t.steps; ++s) {
      Step& step = t.step[s];
      step.prefix = static_cast<uint32_t>(set.fragments);
      set.fragments += __builtin_popcount(step.mask);
      const bool first = s == set.first_step;
      set.lowest_row = first ? step.row : std::min(set.lowest_row, step.row);
      set.highest_row = first ? step.row : std::max(set.highest_row, step.row);
      set.lowest_column = first ? step.column : std::min(set.lowest_column, step.column);
      set.highest_column = first ? step.column : std::max(set.highest_column, step.column);
    }
  }
  return "";
}

// Whether rows of x can be read four pixels at a time, as far as strides tell.
inline bool rows_in_quads(const Problem& p) {
  if (p.in_w % quad != 0 || p.x_strides[3] != 1) return false;
  for (int d = 0; d < 3; ++d) {
    if (p.x_sizes()[d] > 1 && p.x_strides[d] % quad != 0) return false;
  }
  return true;
}

// The part of the input that is in shared memory at a time, in pixels of one channel.
struct Patch {
  int32_t rows, columns, pixels, quads, pitch;
  int64_t bytes;  // of a stage
};

constexpr int32_t floor_to_quad(int32_t v) { return floor_div<int32_t>(v, quad) * quad; }

// Where the patch of a set begins, from the tile's first position.
inline int32_t first_column(const PhaseSet& set, bool quads) {
  return quads ? floor_to_quad(set.lowest_column) : set.lowest_column;
}

inline Patch make_patch(const Problem& p, const Tables& t, const GemmTile& tile) {
  const bool quads = rows_in_quads(p);
  Patch patch{};
  for (int32_t i = 0; i < t.sets; ++i) {
    const PhaseSet& set = t.set[i];
    patch.rows = std::max(patch.rows, tile.rows + set.highest_row - set.lowest_row);
    patch.columns = std::max(patch.columns, tile.columns + set.highest_column - first_column(set, quads));
  }
  if (quads) patch.columns = ceil_div(patch.columns, quad) * quad;
  patch.pixels = tile.images * patch.rows * patch.columns;
  patch.quads = ceil_div(patch.pixels, quad);
  // Four channel pairs of eight pixels of a fragment lie in different banks.
  patch.pitch = ceil_div(quad * patch.quads - 4, 16) * 16 + 4;
  patch.bytes = int64_t{8} * 4 * patch.pitch * parts_of(mode_of(p)) * tile.channel_groups;
  return patch;
}

// Shared memory, in bytes from its start: the steps, where in an image each pixel of the patch is, then two stages of
// the patch, and in their place, at the end, the sums.
struct SharedLayout {
  int64_t pixels, stages, bytes;
};

inline bool channels_innermost(const Problem& p) { return p.y_strides[1] == 1 && p.out_channels > 1; }

// Words between rows of the sums in shared memory: [row][position], or [position][row] if channels are innermost.
constexpr int32_t sums_pitch(const Config& c, bool innermost) {
  return innermost ? 16 * c.rows() + 4 : c.columns() + 8;
}
constexpr int64_t sums_bytes(const Config& c, bool innermost) {
  return innermost ? int64_t{4} * c.columns() * sums_pitch(c, true)
                   : int64_t{4} * (16 * c.rows() * sums_pitch(c, false) + 32 * 8);
}

inline SharedLayout shared_layout(const Config& config, const Problem& p, const Tables& t, const Patch& patch) {
  int32_t steps = 0;
  for (int32_t i = 0; i < t.sets; ++i) steps = std::max(steps, t.set[i].steps);
  const auto aligned = [](int64_t bytes) { return ceil_div<int64_t>(bytes, 128) * 128; };
  SharedLayout s{};
  s.pixels = aligned(16 + int64_t{8} * steps);
  s.stages = aligned(s.pixels + int64_t{4} * quad * patch.quads);
  s.bytes = s.stages + std::max(2 * patch.bytes, sums_bytes(config, channels_innermost(p)));
  return s;
}

struct Counts {
  int64_t rows, columns, images;   // tiles of positions
  int64_t channels;                // tiles of output channels
  int64_t channel_groups, chunks;  // of input channels
  int64_t blocks;                  // of the grid, without splits
  int64_t fragments;               // packed, 512 bytes each
};

inline Counts make_counts(const Problem& p, const Tables& t, const GemmTile& tile) {
  Counts n{};
  n.rows = ceil_div<int64_t>(ceil_div(p.out_h, p.stride_h), tile.rows);
  n.columns = ceil_div<int64_t>(ceil_div(p.out_w, p.stride_w), tile.columns);
  n.images = ceil_div<int64_t>(p.batch, tile.images);
  n.channels = ceil_div<int64_t>(p.out_channels_per_group(), 16 * t.channel_blocks);
  n.channel_groups = ceil_div<int64_t>(p.in_channels_per_group(), channels_of_fragment(mode_of(p)));
  n.chunks = ceil_div<int64_t>(n.channel_groups, tile.channel_groups);
  n.blocks = checked_mul(checked_mul(checked_mul(n.rows, n.columns), checked_mul(n.images, n.channels)),
                         checked_mul(t.sets, p.groups));
  int64_t fragments = 0;
  for (int32_t i = 0; i < t.sets; ++i) fragments += t.set[i].fragments;
  n.fragments = checked_mul(checked_mul(fragments, parts_of(mode_of(p))),
                            checked_mul(n.channel_groups, checked_mul(n.channels, p.groups)));
  return n;
}

// The workspace: counters of the tiles whose reduction is split, their partial sums, the packed weights.
struct Workspace {
  int64_t partials, packed, bytes;
};

inline Workspace make_workspace(const Config& c, const Counts& n, const GemmTile& tile) {
  const auto aligned = [](int64_t bytes) { return ceil_div<int64_t>(bytes, 512) * 512; };
  const bool split = tile.splits > 1;
  Workspace s{};
  s.partials = split ? aligned(4 * n.blocks) : 0;
  s.packed = s.partials + (split ? checked_mul(n.blocks * tile.splits, int64_t{4} * 16 * c.rows() * c.columns()) : 0);
  s.bytes = checked_add(s.packed, checked_mul(n.fragments, 512));
  return s;
}

}  // namespace convt::implicit_gemm_sm80
