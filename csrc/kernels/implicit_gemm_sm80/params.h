// What the kernels of the family are given, by value.
#pragma once

#include "tiling.h"

namespace convt::implicit_gemm_sm80 {

// Whether there is a loop for sets whose steps have all blocks of rows: in strict float32 it spilled.
constexpr bool has_full_loop(Mode m) { return parts_of(m) == 1; }

struct Params : CommonParams {
  int32_t positions;                          // of a tile
  int32_t patch_plane;                        // bytes of a lane's words of all pixels
  int32_t pixels_at, stages_at, stage_bytes;  // in shared memory
  int32_t stages;                             // of the patch
  uint32_t zero;                              // which no compiler knows
  uint32_t full_sets;                         // a bit for each set that the loop without branches is for
  int32_t skew;                               // words between the sums of two phases, beyond their rows
  bool from_registers;                        // a thread has whole vectors of y
  uint32_t phase_of_block;                    // of a tile's blocks of rows, four bits for each
  Divisor by_tile_columns, by_tile_rows;
  Divisor by_row_phases, by_vectors;  // when a tile is written
};

static_assert(std::is_trivially_copyable_v<Params>);
static_assert(sizeof(Params) <= 4096, "the parameters of a kernel");

struct Launch {
  Params params;
  PackParams pack;
  int64_t shared_bytes;
  uint32_t grid;
};

// Taps that no position of the tiles reads a pixel of the image with are not packed: on the smallest images few others
// are left.
inline void leave_out_taps(const Problem& p, const Counts& n, const GemmTile& tile, PackParams& k) {
  const auto reach = [](const Axis<int64_t>& a, int64_t positions, int32_t tap) {
    for (int32_t c = 0; c < a.stride; ++c) {
      const AxisPhase phase = axis_phase(a, c, a.stride);
      for (int32_t j = 0; j < phase.taps; ++j) {
        if (phase.first_tap + j * a.tap_step != tap) continue;
        const int64_t offset = phase.origin - j * a.input_step;
        return offset < a.in && positions - 1 + offset >= 0;
      }
    }
    return false;
  };
  if (p.in_h > 16 && p.in_w > 16) return;
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  bool columns[most_taps];
  for (int32_t i = 0; i < p.kernel_w; ++i) columns[i] = reach(w, n.columns * tile.columns, i);
  for (int32_t row = 0; row < p.kernel_h; ++row) {
    const bool reached = reach(h, n.rows * tile.rows, row);
    for (int32_t i = 0; i < p.kernel_w; ++i) {
      if (!reached || !columns[i]) k.set_of_tap[row * p.kernel_w + i] = -1;
    }
  }
}

// Whether threads write what they have of a tile from registers: where it is whole vectors of NCHW, and what a row of
// four threads writes is whole sectors of memory.
inline bool writes_registers(const Config& c, const Problem& p, const Tables& t, const GemmTile& tile, const void* y) {
  const int64_t bytes = element_size(p.dtype);
  const auto sector = static_cast<int32_t>(32 / bytes);
  if (channels_innermost(p) || tile.column_phases != p.stride_w || tile.column_phases > 2) return false;
  // Blocks of columns, of which four are written together in 16-bit types of one phase, are of one row.
  if (tile.columns % (bytes == 2 && tile.column_phases == 1 ? 32 : 8) != 0) return false;
  if (access_width(y, bytes, p.y_sizes(), p.y_strides, 3, p.out_w, sector) != sector) return false;
  // Both phases of the columns are in one warp.
  const int32_t gap = t.channel_blocks / c.warps_m;
  if (tile.column_phases == 2 && (t.channel_blocks % c.warps_m != 0 || c.m_blocks % (2 * gap) != 0)) return false;
  const auto reached = [](const int8_t* ranks, int64_t phases) {
    return std::all_of(ranks, ranks + phases, [](int8_t rank) { return rank >= 0; });
  };
  return reached(t.row_rank, p.stride_h) && reached(t.column_rank, p.stride_w);
}

// `p`: as planned.
inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const GemmTile& tile = plan.tile;
  Tables t;
  make_tables(config, p, tile.row_phases, tile.column_phases, t);
  const Patch patch = make_patch(p, t, tile);
  const SharedLayout shared = shared_layout(config, p, t, patch);
  const Counts n = make_counts(p, t, tile);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  make_common(tile, p, o, t, n, make_workspace(config, p, n, tile), patch.rows, patch.columns, patch_begin(p),
              pixel_bytes(mode_of(p)), q, launch.pack);
  leave_out_taps(p, n, tile, launch.pack);
  // Beside the mask, where the step's fragments of A begin.
  for (int32_t s = 0; s < t.steps; ++s) q.steps[s].mask |= t.step[s].prefix << 8;
  static_assert(most_sets <= 32);
  q.full_sets = 0;
  for (int32_t i = 0; i < t.sets && has_full_loop(mode_of(p)); ++i) {
    const Step* const steps = t.step + t.set[i].first_step;
    const bool full =
        std::all_of(steps, steps + t.set[i].steps, [&](const Step& s) { return s.mask == (1u << config.rows()) - 1; });
    q.full_sets |= static_cast<uint32_t>(full) << i;
  }
  q.from_registers = writes_registers(config, p, t, tile, o.result);
  q.positions = tile.images * tile.rows * tile.columns;
  q.patch_plane = pixel_bytes(mode_of(p)) * patch.pitch;
  q.pixels_at = narrow(shared.pixels), q.stages_at = narrow(shared.stages), q.stage_bytes = narrow(patch.bytes);
  q.stages = shared.patch_stages, q.zero = 0;
  // Neighbouring columns of an output row come from the phases in turn: their sums should lie in different banks.
  int32_t columns = 1;
  for (int32_t i = 0; i < t.sets; ++i) columns = std::max(columns, t.set[i].columns);
  q.skew = columns == 1 ? 0 : 32 / columns / 2 * 2;
  q.phase_of_block = 0;
  for (int32_t block = 0; block < config.rows(); ++block) {
    q.phase_of_block |= static_cast<uint32_t>(block / t.channel_blocks) << 4 * block;
  }
  q.by_tile_columns = Divisor(tile.columns), q.by_tile_rows = Divisor(tile.rows);
  q.by_row_phases = Divisor(tile.row_phases);
  q.by_vectors = Divisor(ceil_div<int64_t>(
      q.channels_innermost ? 16 * t.channel_blocks : tile.columns * tile.column_phases, q.store_width));
  launch.shared_bytes = shared.bytes;
  launch.grid = static_cast<uint32_t>(n.blocks * tile.splits);
}

}  // namespace convt::implicit_gemm_sm80
