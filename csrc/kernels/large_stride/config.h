// Configurations of the large-stride family: one matrix product for all phases of the stride. Its rows are the output
// channels and phases, its columns the positions q of the input (an output o of phase r = (o + padding) % stride
// belongs to q = (o + padding) / stride), and its K the input channels and the taps of a phase. A warp reads the
// weights of its 16 or 32 phases from memory once, straight into the tensor core's fragments, keeps them, and goes over
// all positions of the block's rows, whose inputs are in shared memory. Phases along the width are neighbours in the
// output: a lane stores 2 or 4.
#pragma once

#include <algorithm>
#include <cstdint>

#include "positions.h"

namespace convt::large_stride {

struct Config {
  const char* name;
  int32_t steps;       // of 8 words of K (a word is a float32 channel or two 16-bit channels), in registers
  int32_t phases = 0;  // of a warp
  // Of those without, which cut the product into tiles (see tiling.h): their size, and the words of K at a time.
  int32_t tile_positions = 0, tile_columns = 0, chunk_words = 0;
};

inline constexpr Config configs[] = {{"k96", 12, 16},
                                     // Inputs are read from shared memory half as often.
                                     {"k48_n32", 6, 32},
                                     {"k96_n32", 12, 32},
                                     {"tile_64x64", 0, 0, 64, 64, 32},
                                     {"tile_64x128", 0, 0, 64, 128, 32},
                                     {"tile_128x128", 0, 0, 128, 128, 16}};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// Strict float32 keeps its weights as two TF32 numbers each, and its sums apart from the tensor core's: those of the
// largest tile do not fit the registers. Nor do, in 16 bits, loads of many weights of many phases. (k96 in 16 bits and
// k48_n32 in TF32 would take no layer of the benchmark.)
constexpr bool compiled(const Config& c, bool strict, int64_t element_bytes) {
  if (c.tile_positions > 0) return !strict || c.tile_positions <= 64;
  if (element_bytes == 2) return c.phases > 16 && c.steps <= 6;
  return strict ? c.phases <= 16 : c.steps > 6;
}
// Warps of a multiprocessor, by the registers that the weights take: 128, 168 or 255 a thread. A block has at most 12.
constexpr int32_t resident_warps(const Config& c, bool strict) { return strict ? 8 : c.phases > 16 ? 12 : 16; }
constexpr int32_t most_warps(const Config& c, bool strict) { return std::min(12, resident_warps(c, strict)); }
// 16-bit inputs on their way take twice the registers.
constexpr int32_t tile_resident_blocks(int32_t tile_columns, int64_t element_bytes) {
  return tile_columns > 64 || element_bytes == 2 ? 2 : 3;
}

inline constexpr int32_t block = 128;                   // threads of the tiled configurations, and at least
inline constexpr int32_t step_words = 8;                // of K, of one multiplication
inline constexpr int32_t step_pairs = step_words / 2;   // of words: what a lane has of them
inline constexpr int32_t loop_positions = 32;           // of a round of a warp
inline constexpr int64_t most_shared_bytes = 72 << 10;  // as much as lets 3 blocks share a multiprocessor
inline constexpr int64_t multiprocessors = 132;         // which blocks are to fill

// How a problem is cut into blocks.
struct Tiling : Positions {
  int64_t pairs = 0, depth = 0;                 // of words of K: of the channels, and in all
  int64_t rows = 0, row_blocks = 0;             // of positions of a block
  int64_t in_rows = 0, in_columns = 0;          // of the inputs in shared memory
  int64_t plane = 0;                            // words between pairs of channel words there
  int64_t padded_stride = 0, phase_blocks = 0;  // of a warp's phases of one channel
  int64_t parts = 1;                            // warps that share the positions of those
  int64_t warps = 0, blocks = 0;                // which take a part each

  // Positions, their table, the tables of K and the inputs.
  int64_t positions() const { return ceil_div<int64_t>(rows * q_w, loop_positions) * loop_positions; }
  int64_t input_bytes() const { return 4 * (pairs + 1) * plane; }
  int64_t shared_bytes(int32_t steps) const { return 16 * positions() + 20 * steps * step_pairs + input_bytes(); }
};

inline Tiling choose_tiling(const Problem& p, const Config& config) {
  const bool strict = p.strict_float32();
  Tiling t{Positions(p)};
  t.pairs = ceil_div<int64_t>(p.in_channels_per_group(), element_size(p.dtype) == 2 ? 4 : 2);
  t.depth = t.pairs * t.taps_h * t.taps_w;
  const int64_t of_lane = config.phases / 8;
  t.padded_stride = ceil_div<int64_t>(p.stride_w, of_lane) * of_lane;
  t.phase_blocks = ceil_div<int64_t>(p.stride_h * t.padded_stride, config.phases);
  // One block a multiprocessor stages its inputs once; of many, two overlap.
  int64_t tasks = t.phase_blocks * p.out_channels_per_group();
  const int64_t images = p.groups * p.batch, most = most_warps(config, strict);
  const auto of_multiprocessor = [&](int64_t n) { return ceil_div<int64_t>(n * images, multiprocessors); };
  // Warps of many phases are few.
  if (config.phases > 16 && of_multiprocessor(2 * tasks) <= most && t.q_h * t.q_w > 2 * loop_positions) t.parts = 2;
  tasks *= t.parts;
  const int64_t each = of_multiprocessor(tasks);
  t.warps = std::max<int64_t>(block / 32, each <= most ? each : resident_warps(config, strict) / 2);
  t.blocks = ceil_div<int64_t>(tasks, t.warps);
  t.in_columns = t.q_w + t.taps_w - 1;
  const auto with_rows = [&](int64_t rows) {
    t.rows = rows;
    t.row_blocks = ceil_div<int64_t>(t.q_h, rows);
    t.in_rows = rows + t.taps_h - 1;
    // 8 modulo 32: half a warp reads 4 positions of 4 pairs without conflicts.
    t.plane = ceil_div<int64_t>(2 * t.in_rows * t.in_columns - 8, 32) * 32 + 8;
  };
  with_rows(t.q_h);
  while (t.rows > 1 &&
         (t.shared_bytes(config.steps) > most_shared_bytes ||
          (t.blocks * images * t.row_blocks < multiprocessors / 2 && t.rows * t.q_w > 2 * loop_positions))) {
    with_rows(ceil_div<int64_t>(t.q_h, t.row_blocks + 1) < t.rows ? ceil_div<int64_t>(t.q_h, t.row_blocks + 1)
                                                                  : t.rows - 1);
  }
  return t;
}

}  // namespace convt::large_stride
