// The geometry of a tile: which phases and taps a block of threads multiplies, and what of the input it keeps in shared
// memory. Host code, for the planner and the launch.
#pragma once

#include "../implicit_gemm/params.h"
#include "config.h"

namespace convt::implicit_gemm_sm80 {

using namespace implicit_gemm;

// Sets of phases whose blocks of rows are those of `config`.
inline Refusal make_tables(const Config& config, const Problem& p, int32_t row_phases, int32_t column_phases,
                           Tables& t) {
  const Refusal cannot = make_tables(config.rows(), 16, p, row_phases, column_phases, 1, t);
  if (!cannot.empty()) return cannot;
  for (int32_t i = 0; i < t.sets; ++i) {
    // A thread takes a step.
    if (t.set[i].steps > config.threads()) {
      return {"takes at most ", config.threads(), " taps of a set of phases"};
    }
  }
  return {};
}

// The part of the input that is in shared memory at a time, in pixels of one channel.
struct Patch {
  int32_t rows, columns, pixels, quads, pitch, channel_groups;
  int64_t bytes;  // of a stage
};

inline Patch make_patch(const Problem& p, const Tables& t, const GemmTile& tile) {
  const int32_t begin = patch_begin(p);
  Patch patch{};
  for (int32_t i = 0; i < t.sets; ++i) {
    const PhaseSet& set = t.set[i];
    patch.rows = std::max(patch.rows, tile.rows + set.highest_row - set.lowest_row);
    patch.columns = std::max(patch.columns, tile.columns + set.highest_column - first_column(set, begin));
  }
  patch.columns = ceil_div(patch.columns, begin) * begin;
  patch.pixels = tile.images * patch.rows * patch.columns;
  patch.quads = ceil_div(patch.pixels, quad);
  // The words of four lanes of a pixel, and of their neighbours that are read with them, lie in different banks.
  const int32_t bytes = pixel_bytes(mode_of(p));
  patch.pitch = (ceil_div(bytes * quad * patch.quads - 32, 128) * 128 + 32) / bytes;
  patch.channel_groups = tile.channel_groups;
  patch.bytes = int64_t{4} * bytes * patch.pitch * tile.channel_groups;
  return patch;
}

inline constexpr int32_t steps_at = 48;    // after flags and counts
inline constexpr int32_t steps_ahead = 2;  // that a warp reads, of the next chunk's at last

// Shared memory, in bytes from its start: flags, the steps of a chunk, where the patch's pixels are, then stages of the
// patch, and in their place, at the end, the sums.
struct SharedLayout {
  int64_t pixels, stages, bytes;
  int32_t patch_stages;
};

// Words between rows of the sums in shared memory: [row][position], or [position][row] if channels are innermost.
constexpr int32_t sums_pitch(const Config& c, bool innermost) {
  return innermost ? 16 * c.rows() + 4 : c.columns() + 8;
}
constexpr int64_t sums_bytes(const Config& c, bool innermost) {
  return innermost ? int64_t{4} * c.columns() * sums_pitch(c, true)
                   : int64_t{4} * (16 * c.rows() * sums_pitch(c, false) + 32 * 8);
}

// What stages may take without more shared memory than the sums do, or than leaves the blocks of an SM, which registers
// allow, some of it as L1 for the weights.
inline int64_t stages_room(const Config& config, const Problem& p) {
  return std::max<int64_t>(sums_bytes(config, channels_innermost(p)),
                           std::min(90, 144 / resident_blocks(config, mode_of(p))) * 1024);
}

inline SharedLayout shared_layout(const Config& config, const Problem& p, const Tables& t, const Patch& patch) {
  int32_t steps = 0;
  for (int32_t i = 0; i < t.sets; ++i) steps = std::max(steps, t.set[i].steps);
  const auto aligned = [](int64_t bytes) { return ceil_div<int64_t>(bytes, 128) * 128; };
  SharedLayout s{};
  s.pixels = aligned(steps_at + int64_t{8} * config.warps_m * (steps * patch.channel_groups + steps_ahead));
  s.stages = aligned(s.pixels + int64_t{8} * quad * patch.quads);
  const int64_t sums = sums_bytes(config, channels_innermost(p));
  s.patch_stages =
      static_cast<int32_t>(std::clamp<int64_t>(stages_room(config, p) / patch.bytes, fewest_stages, most_stages));
  s.bytes = s.stages + std::max(s.patch_stages * patch.bytes, sums);
  return s;
}

inline Counts make_counts(const Problem& p, const Tables& t, const GemmTile& tile) {
  return make_counts(p, t, tile, 16, channels_of_fragment(mode_of(p)));
}

// After the last fragments of A is room for as many as a channel group has: a warp reads on.
inline Workspace make_workspace(const Config& c, const Problem& p, const Counts& n, const GemmTile& tile) {
  const int64_t fragment_bytes = 512 * parts_of(mode_of(p));
  Workspace s = make_workspace(n, tile, int64_t{16} * c.rows() * c.columns(), fragment_bytes);
  s.bytes = checked_add(s.bytes, n.fragments / (n.channel_groups * n.channels * p.groups) * fragment_bytes);
  return s;
}

}  // namespace convt::implicit_gemm_sm80
