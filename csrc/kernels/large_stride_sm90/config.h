// Large strides with few input channels on Hopper's tensor cores: as in large_stride, one matrix product for all phases
// of the stride, rows of which are phases of an output channel, and columns positions of the input. A warpgroup has 64
// phases, whose weights it reads once, straight into registers, from where wgmma takes them; inputs lie in shared
// memory as they are, with their halo, a plane of pixels for every 16 bytes of channels: a tap is another start of the
// same operand. So nothing but wgmma reads either, and what takes time is memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../large_stride/positions.h"

namespace convt::large_stride_sm90 {

struct Config {
  const char* name;
  int32_t steps;  // of 32 bytes of K, whose weights are in registers
};

inline constexpr Config configs[] = {{"k48", 6}, {"k96", 12}};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t group_threads = 128;             // of a warpgroup
inline constexpr int32_t group_phases = 64, of_lane = 2;  // rows of its product; of a lane, neighbours
inline constexpr int32_t most_groups = 3;                 // warpgroups of a block, for which registers suffice
inline constexpr int32_t columns = 64;                    // of a product: positions
inline constexpr int32_t unit_bytes = 16;                 // of a pixel's channels in a plane: half of a step of K
inline constexpr int32_t inputs_at_once = 24;             // elements of x that a thread asks for
inline constexpr int64_t most_shared_bytes = 112 << 10;   // as much as lets two blocks share a multiprocessor
inline constexpr int64_t multiprocessors = 132;           // which warpgroups are to fill

inline constexpr int32_t barrier_bytes = 16;  // with what keeps the copy of x behind it aligned
constexpr int32_t table_words(int32_t steps) { return (steps + 3) / 4 * 4; }

// How a problem is cut into blocks.
struct Tiling : large_stride::Positions {
  int64_t planes = 0, units = 0;                // of 16 bytes of channels; of those of a tap, in all
  int64_t rows = 0, row_blocks = 0;             // of positions of a block
  int64_t in_columns = 0;                       // of the inputs in shared memory, whose pixels are positions, too
  int64_t padded_stride = 0, phase_blocks = 0;  // of a warpgroup's phases of one channel
  int64_t groups = 0, blocks = 0;               // warpgroups of a block; blocks of an image's row block
  int64_t copied_bytes = 0;                     // of x, that the copy engine brings as they are, if it can

  int64_t positions() const { return ceil_div<int64_t>((rows - 1) * in_columns + q_w, columns) * columns; }
  // With the furthest tap's, and one more, where K has an odd number of units.
  int64_t plane_pixels() const { return positions() + (taps_h - 1) * in_columns + taps_w; }
  int64_t shared_bytes(int32_t steps) const {
    const int64_t copy = copied_bytes > 0 ? barrier_bytes + copied_bytes : 0;
    return unit_bytes * (planes * plane_pixels() + 8 * steps) + 8 * positions() + 4 * table_words(steps) + copy;
  }
};

// What a plan says of a tiling: warpgroups of a block, and how many blocks share the rows of positions.
struct Cut {
  int32_t groups, row_blocks;
};

inline Tiling make_tiling(const Problem& p, const Cut& cut) {
  Tiling t{large_stride::Positions(p)};
  t.planes = ceil_div<int64_t>(p.in_channels_per_group() * element_size(p.dtype), unit_bytes);
  t.units = t.planes * t.taps_h * t.taps_w;
  t.in_columns = t.q_w + t.taps_w - 1;
  t.padded_stride = ceil_div<int64_t>(p.stride_w, of_lane) * of_lane;
  t.phase_blocks = ceil_div<int64_t>(p.stride_h * t.padded_stride, group_phases);
  t.rows = ceil_div<int64_t>(t.q_h, cut.row_blocks), t.row_blocks = ceil_div<int64_t>(t.q_h, t.rows);
  t.groups = cut.groups, t.blocks = ceil_div<int64_t>(t.phase_blocks * p.out_channels_per_group(), t.groups);
  // Of each channel the rows of an image, or some of them, which follow each other and begin at 16 bytes.
  const int64_t size = element_size(p.dtype);
  const auto whole = [&](int64_t n, int64_t elements) { return n <= 1 || elements * size % unit_bytes == 0; };
  if (dense(p.in_w, p.x_strides[3], 1) && dense(p.in_h, p.x_strides[2], p.in_w) && whole(p.batch, p.x_strides[0]) &&
      whole(p.in_channels, p.x_strides[1]) && whole(2, t.row_blocks == 1 ? p.in_h * p.in_w : p.in_w)) {
    const int64_t rows = t.row_blocks == 1 ? p.in_h : std::min(p.in_h, t.rows + t.taps_h - 1);
    t.copied_bytes = checked_mul(p.in_channels_per_group(), rows * p.in_w) * size;
    if (t.shared_bytes(configs[config_count - 1].steps) > most_shared_bytes) t.copied_bytes = 0;
  }
  return t;
}

inline Cut choose_cut(const Problem& p, const Config& config) {
  const Tiling whole = make_tiling(p, {1, 1});
  const int64_t tasks = whole.blocks, images = p.groups * p.batch;
  // Few warpgroups share the positions, as long as each has a product of them.
  const int64_t products = ceil_div<int64_t>(whole.q_h * whole.in_columns, columns);
  const int64_t fill = multiprocessors * most_groups / std::max<int64_t>(tasks * images, 1);
  Cut cut{1, static_cast<int32_t>(std::clamp<int64_t>(std::min(fill, products), 1, whole.q_h))};
  const auto fits = [&] { return make_tiling(p, cut).shared_bytes(config.steps) <= most_shared_bytes; };
  while (cut.row_blocks < whole.q_h && !fits()) ++cut.row_blocks;
  // One block a multiprocessor, if that is enough; or as many as leave the fewest without a task.
  const int64_t each = ceil_div<int64_t>(tasks * images * make_tiling(p, cut).row_blocks, multiprocessors),
                wide = ceil_div<int64_t>(tasks, 2) * 2 < ceil_div<int64_t>(tasks, 3) * 3 ? 2 : 3;
  cut.groups = static_cast<int32_t>(std::min<int64_t>(each <= most_groups ? each : wide, tasks));
  return cut;
}

}  // namespace convt::large_stride_sm90
