// How the product is cut into tiles.
#pragma once

#include "../gemm_scatter/tiling.h"
#include "config.h"

namespace convt::gemm_scatter_rows_sm90 {

using gemm_scatter::outputs_of_position;

struct Tiling {
  int64_t rows = 0;      // of x, of a tile: whichever images they are of
  int64_t images = 0;    // that they may be of
  int64_t channels = 0;  // of a piece of 64 outputs
  int64_t row_tiles = 0, output_tiles = 0, tiles = 0;
  int64_t chunks = 0;  // of 64 input channels
  int64_t pitch = 0;   // elements of what is staged from a channel to the next
  int64_t staged_bytes = 0, x_stages = 0, stages_at = 0;

  bool fits() const { return rows > 0 && images <= most_images && x_stages >= chunks; }
  int64_t shared_bytes() const { return stages_at + (x_stages + w_stages) * stage_bytes; }
};

// What is staged begins as far from a sector of memory, 32 bytes, as it does in y, each image anew: the copy engine
// writes what a sector of shared memory has at once. Elements.
inline constexpr int64_t sector = 16, of_image = 2 * sector;

// Times that shared memory takes for the words that a warp stages at once, of 8 positions 8 outputs each: those of a
// tile.
inline int64_t bank_turns(const Problem& p, int64_t count, int64_t pitch) {
  const int64_t taps = p.kernel_h * p.kernel_w;
  int64_t turns = 0;
  for (int64_t first = 0; first < count; first += 8) {
    int64_t of_bank[32] = {}, most = 0;
    for (int64_t position = first; position < std::min(count, first + 8); ++position) {
      const int64_t of_position = position / p.in_w * p.kernel_h * p.out_w + position % p.in_w * p.kernel_w;
      for (int64_t output = 0; output < 8; output += 2) {
        const int64_t tap = output % taps;
        const int64_t at = of_position + output / taps * pitch + tap / p.kernel_w * p.out_w + tap % p.kernel_w;
        most = std::max(most, ++of_bank[at / 2 % 32]);
      }
    }
    turns += most;
  }
  return turns;
}

// Elements of what is staged from a channel to the next: as far from a multiple of a sector as in y.
inline int64_t pitch_of(const Problem& p, int64_t rows, int64_t images) {
  const int64_t count = rows * p.in_w, used = count * p.kernel_h * p.kernel_w + of_image * images;
  const int64_t fewest = round_up(used, sector) + p.y_strides[1] % sector;
  int64_t best = fewest, turns = bank_turns(p, count, fewest);
  for (int64_t pitch = fewest + sector; pitch < fewest + 4 * sector; pitch += sector) {
    if (const int64_t n = bank_turns(p, count, pitch); n < turns) turns = n, best = pitch;
  }
  return best;
}

// `pitch`: 0, or what an earlier call had, which takes its time.
inline Tiling make_tiling(const Problem& p, int64_t pitch = 0) {
  Tiling t;
  const int64_t taps = p.kernel_h * p.kernel_w, all_rows = checked_mul(p.batch, p.in_h);
  t.rows = std::min(positions / p.in_w, all_rows);
  if (t.rows == 0) return t;
  t.row_tiles = ceil_div(all_rows, t.rows);
  t.images = std::min(p.batch, (t.rows + p.in_h - 2) / p.in_h + 1);
  t.channels = block_side / taps;
  t.output_tiles = ceil_div<int64_t>(outputs_of_position(p), outputs);
  t.tiles = checked_mul(checked_mul(t.row_tiles, t.output_tiles), p.groups);
  t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), block_side);
  t.pitch = pitch != 0 ? pitch : pitch_of(p, t.rows, t.images);
  t.staged_bytes = ceil_div<int64_t>(2 * (t.channels * t.pitch + sector), 2 * sector) * 2 * sector;
  t.stages_at = ceil_div<int64_t>(staged_at + staged_pieces * t.staged_bytes, 1024) * 1024;
  const int64_t room = shared_bytes_limit - t.stages_at - w_stages * stage_bytes;
  t.x_stages = std::clamp<int64_t>(room / stage_bytes, 0, most_x_stages);
  return t;
}

}  // namespace convt::gemm_scatter_rows_sm90
