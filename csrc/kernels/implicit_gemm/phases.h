// What the implicit-GEMM families share: which phases and taps a block of threads multiplies. Host code, for the
// planner and the launches.
//
// Per axis, phase c holds the outputs s v + c, v = 0, 1, ...; they read inputs origin(c) + v - j d' by taps
// first_tap(c) + j s' (plan/geometry.h). So all phases of a set read, at position v, inputs v + offset, with a few
// offsets that they share: a step multiplies the inputs at one offset by the weights of every phase that reads it.
//
// A block of rows may hold few channels of several rows of y instead of many of one: these are stacked. The period of
// the rows is then a multiple of the stride, and positions are `period / s` inputs apart.
#pragma once

#include <algorithm>
#include <numeric>

#include "../../plan/plan.h"
#include "../../plan/refusal.h"

namespace convt::implicit_gemm {

inline constexpr int32_t most_taps = 160;   // steps of all phase sets: a table in the parameters
inline constexpr int32_t most_sets = 32;    // likewise
inline constexpr int32_t most_stride = 32;  // likewise
inline constexpr int32_t quad = 4;          // pixels that a thread moves at once

// How a patch is read: one pixel of one channel at a time; four pixels of a channel; 16 bytes of the channels of a
// pixel.
enum class Fill : int32_t { elements, rows, channels };

// One phase of one axis.
struct AxisPhase {
  int32_t outputs, first_tap, taps, origin;

  bool empty() const { return taps == 0; }
};

// The outputs period v + c; the period is the stride, or a multiple of it.
inline AxisPhase axis_phase(const Axis<int64_t>& a, int64_t c, int64_t period) {
  AxisPhase f{0, 0, 0, 0};
  if (c < a.out) f.outputs = static_cast<int32_t>(ceil_div<int64_t>(a.out - c, period));
  const int64_t r = (c + a.padding) % a.stride;
  if (f.outputs == 0 || r % a.divisor != 0) return f;
  const int64_t tap = r / a.divisor * a.tap_inverse % a.tap_step;
  if (tap >= a.kernel) return f;
  f.first_tap = static_cast<int32_t>(tap);
  f.taps = static_cast<int32_t>(ceil_div<int64_t>(a.kernel - tap, a.tap_step));
  f.origin = static_cast<int32_t>((c + a.padding - tap * a.dilation) / a.stride);
  return f;
}

// Rows of y from a position to the next, if a block of rows has `stacked` of them.
inline int32_t row_period(const Problem& p, int32_t stacked) {
  return static_cast<int32_t>(std::lcm(p.stride_h, int64_t{stacked}));
}

// Inputs at (row, column) from the position, times the weights of the blocks of rows in `mask`; their fragments
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
  int32_t row_step = 1;        // rows of x from a position to the next
  int32_t channel_blocks = 0;  // blocks of output channels of a phase in a block of threads
  PhaseSet set[most_sets];
  Step step[most_taps];
  int8_t row_rank[most_stride], column_rank[most_stride];  // of a phase among those of its set that have taps; or -1
};

// Why a block of threads cannot hold such sets of phases; empty if `t` has been filled. It has
// `blocks` blocks of rows, of `block_channels` output channels of each of `stacked` rows of y, which are phases that
// follow each other and count as one.
inline Refusal make_tables(int32_t blocks, int32_t block_channels, const Problem& p, int32_t row_phases,
                           int32_t column_phases, int32_t stacked, Tables& t) {
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  const int32_t period_h = row_period(p, stacked), period_w = static_cast<int32_t>(w.stride);
  if (period_h > most_stride) return {"takes strides of at most ", most_stride, ""};
  t.row_step = period_h / static_cast<int32_t>(h.stride);
  t.row_sets = ceil_div(period_h, row_phases * stacked), t.column_sets = ceil_div(period_w, column_phases);
  t.sets = t.row_sets * t.column_sets, t.steps = 0;
  if (t.sets > most_sets) return {"takes at most ", most_sets, " sets of phases"};
  AxisPhase rows[most_stride], columns[most_stride];
  const auto rank = [](const Axis<int64_t>& a, int32_t period, int32_t chunk, int32_t together, AxisPhase* phases,
                       int8_t* ranks) {
    int32_t widest = 0;
    for (int32_t c = 0, count = 0; c < period; c += together) {
      if (c % (chunk * together) == 0) count = 0;
      bool empty = true;
      for (int32_t i = c; i < c + together; ++i) phases[i] = axis_phase(a, i, period), empty &= phases[i].empty();
      std::fill_n(ranks + c, together, empty ? int8_t{-1} : static_cast<int8_t>(count));
      count += empty ? 0 : 1;
      widest = std::max(widest, count);
    }
    return widest;
  };
  const int32_t most_rows = rank(h, period_h, row_phases, stacked, rows, t.row_rank);
  const int32_t most_columns = rank(w, period_w, column_phases, 1, columns, t.column_rank);
  // Columns have blocks of their own where no row has taps, too: then these have the bias alone.
  const int32_t phases = std::max(1, most_rows) * std::max(1, most_columns);
  if (phases > blocks) return {"has too few rows for the phases"};
  t.channel_blocks =
      std::min(blocks / phases, static_cast<int32_t>(ceil_div<int64_t>(p.out_channels_per_group(), block_channels)));
  int32_t taps = 0, places = 0;  // for them in the blocks of all steps
  for (int32_t i = 0; i < t.sets; ++i) {
    PhaseSet& set = t.set[i];
    set = {};
    set.row_phase = i / t.column_sets * row_phases * stacked, set.column_phase = i % t.column_sets * column_phases;
    set.first_step = t.steps;
    const int32_t row_end = std::min(set.row_phase + row_phases * stacked, period_h);
    const int32_t column_end = std::min(set.column_phase + column_phases, period_w);
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
              if (t.steps == most_taps) return {"takes at most ", most_taps, " taps"};
              t.step[t.steps++] = {row, column, 0, 0};
            }
            t.step[s].mask |= mask;
            ++taps;
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
  // What the packing of weights has room for.
  for (int32_t i = 0; i < t.sets; ++i) places += t.set[i].fragments * stacked;
  if (stacked > 1 && (taps > most_taps || places - taps > most_taps)) {
    return {"takes at most ", most_taps, " taps"};
  }
  return {};
}

// Whether y is written channel by channel of a pixel.
inline bool channels_innermost(const Problem& p) { return p.y_strides[1] == 1 && p.out_channels > 1; }

// Whether rows of x can be read four pixels at a time, as far as strides tell.
inline bool rows_in_quads(const Problem& p) {
  if (p.in_w % quad != 0 || p.x_strides[3] != 1) return false;
  for (int d = 0; d < 3; ++d) {
    if (p.x_sizes()[d] > 1 && p.x_strides[d] % quad != 0) return false;
  }
  return true;
}

// Patches begin at multiples of so many pixels, if threads read them.
inline int32_t patch_begin(const Problem& p) { return rows_in_quads(p) ? quad : 1; }

// Where the patch of a set begins, from the tile's first position: at a multiple of `pixels`.
inline int32_t first_column(const PhaseSet& set, int32_t pixels) {
  return floor_div<int32_t>(set.lowest_column, pixels) * pixels;
}

}  // namespace convt::implicit_gemm
