// Configurations of the column family: few output channels a group, or few positions. A block multiplies the input
// pixels of its tile with all taps of all output channels by tensor cores (a matrix product over the input channels),
// keeps the products in shared memory as [output channel and tap][pixel], and each thread sums those of its outputs: no
// phase is computed apart, no atomics, and a pixel outside the image is never added.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "../../plan/problem.h"

namespace convt::column {

struct Config {
  const char* name;
  int32_t tiles;         // of 8 columns, in the accumulators of a warp
  int32_t warps;         // of a block
  int32_t pixel_blocks;  // of 32 pixels, at most, in a block's tile
};

inline constexpr Config configs[] = {
    {"n16_p128", 2, 8, 4},  {"n16_p192", 2, 12, 6},   {"n16_p256", 2, 8, 8},     {"n16_p512", 2, 16, 16},
    {"n32_p96", 4, 6, 3},   {"n32_p192", 4, 12, 6},   {"n32_p192_w6", 4, 6, 6},  {"n32_p384", 4, 12, 12},
    {"n32_p32", 4, 12, 1},  {"n32_p64", 4, 12, 2},    {"n32_p96_w12", 4, 12, 3}, {"n48_p96", 6, 6, 3},
    {"n48_p192", 6, 12, 6}, {"n48_p192_w6", 6, 6, 6}, {"n48_p384", 6, 12, 12},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// Warps of a multiprocessor, by the registers that a thread has: 128 or 168.
constexpr int32_t resident_warps(int32_t tiles) { return tiles > 2 ? 12 : 16; }
static_assert(std::ranges::all_of(configs, [](const Config& c) { return c.warps <= resident_warps(c.tiles); }));

inline constexpr int32_t most_columns = 256;   // taps times output channels of a block
inline constexpr int32_t block_pixels = 32;    // of a warp's accumulators
inline constexpr int32_t group_pixels = 4;     // neighbours in a row, which a lane holds
inline constexpr int32_t chunk_channels = 16;  // input channels of a step
// In shared memory: the numbers of three tiles and of each warp's first one, the warps' work, tables for two tiles.
inline constexpr int32_t tile_bytes = 64, work_offset = 19 * tile_bytes, table_offset = work_offset + 256;
inline constexpr int32_t most_weight_bytes = 96 << 10;  // of shared memory, unless one step takes more
inline constexpr int32_t most_splits = 16;              // of the channels

// How a lane gets the 4 x 4 elements that it multiplies: by copies to shared memory, 4 elements at once, or words that
// begin anywhere. Elements of 16 bits that do so it loads to registers, one by one.
enum class Load { vectors, words, registers };
constexpr Load load_of(int64_t element_bytes, bool vectors) {
  return vectors ? Load::vectors : element_bytes == 4 ? Load::words : Load::registers;
}

// Steps whose inputs a warp has on their way: in shared memory as many as there is room for; or in registers.
inline constexpr int32_t ring_steps[] = {4, 2};
constexpr int32_t depth_of(bool strict) { return strict ? 1 : 2; }
// Of one of them, in shared memory, of a warp: 4 slots of each lane, of 4 elements. The 8 lanes that copy neighbouring
// pixels of a channel write neighbouring places; the pitch of those is such that all lanes then read their own without
// conflicts.
constexpr int32_t slot_bytes(int64_t element_bytes) { return 4 * static_cast<int32_t>(element_bytes); }
constexpr int32_t lanes_pitch(int32_t slot) { return slot == 16 ? 160 : 96; }
constexpr int32_t copy_pitch(int32_t slot) { return 4 * lanes_pitch(slot); }
constexpr int32_t step_bytes(int32_t slot) { return 4 * copy_pitch(slot); }
// Where the lane of pixels lane / 4 and channels 4 (lane % 4) and on has its first slot.
template <bool ChannelsLast>
CONVT_HOST_DEVICE constexpr int32_t slot_of_lane(int32_t lane, int32_t slot) {
  return ChannelsLast ? lane * slot : lane % 4 * lanes_pitch(slot) + lane / 4 * slot;
}

// One axis of a tile. With u = o + padding, tiles start at multiples of the stride: tile i has the outputs
// first_u + i * q * stride <= u < first_u + (i + 1) * q * stride, and reads at most q + halo inputs.
struct TileAxis {
  int64_t q = 0, count = 0, halo = 0, first_u = 0;
};

struct Tiling {
  TileAxis h, w;
  int64_t rows = 0, groups = 0;  // at most, of a tile's inputs: rows, and groups of 4 pixels in one
  bool fits = false;

  int64_t pixel_blocks() const { return ceil_div<int64_t>(rows * groups * group_pixels, block_pixels); }
};

// Pixels of a row start at multiples of this many, so that whole groups can be loaded.
inline int64_t alignment(bool channels_last) { return channels_last ? 1 : group_pixels; }

// The tile of at most `pixel_blocks` that takes the fewest pixels in all.
inline Tiling choose_tiling(const Problem& p, int32_t pixel_blocks, bool channels_last) {
  const auto axis = [](int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    TileAxis a;
    a.halo = (kernel - 1) * dilation / stride;
    a.first_u = padding / stride * stride;
    a.q = ceil_div<int64_t>(out + padding - a.first_u, stride);
    return a;
  };
  const TileAxis h = axis(p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  const TileAxis w = axis(p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  const int64_t budget = pixel_blocks * (block_pixels / group_pixels);
  const int64_t all_groups = ceil_div<int64_t>(p.in_w, group_pixels);
  const int64_t align = alignment(channels_last);
  // How far the first input of a tile lies behind a multiple of the alignment, if its q is a multiple of it.
  const int64_t phase = ((w.first_u / p.stride_w - w.halo) % align + align) % align;
  Tiling best;
  int64_t least = 0;
  constexpr std::array<int64_t, 20> widths{1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 17, 20, 24, 32, 33, 48, 64, 96, 128};
  const auto consider = [&](int64_t groups) {
    Tiling t{h, w};
    t.groups = groups;
    if (groups < all_groups) {
      const int64_t whole = (group_pixels * groups - w.halo - phase) / align * align;
      t.w.q = whole > 0 ? whole : group_pixels * groups - w.halo - (align - 1);
      if (t.w.q <= 0) return;
      if (t.w.q < w.q) {
        t.w.count = ceil_div<int64_t>(w.q, t.w.q);
        const int64_t even = ceil_div<int64_t>(w.q, t.w.count);
        if (whole > 0 && even % align == 0) t.w.q = even;
      } else {
        t.w.q = w.q;
      }
    }
    t.w.count = ceil_div<int64_t>(w.q, t.w.q);
    t.rows = budget / groups;
    if (t.rows == 0) return;
    if (t.rows < p.in_h) {
      t.h.q = t.rows - h.halo;
      if (t.h.q <= 0) return;
      if (t.h.q > h.q) t.h.q = h.q;
      t.h.q = ceil_div<int64_t>(h.q, ceil_div<int64_t>(h.q, t.h.q));
      t.rows = t.h.q + h.halo;
    }
    if (t.rows > p.in_h) t.rows = p.in_h;
    t.h.count = ceil_div<int64_t>(h.q, t.h.q);
    // Outputs of a tile are numbered in 32 bits, and their taps are in a table.
    if (t.h.q * p.stride_h + t.w.q * p.stride_w > 4096) return;
    // A block's own time counts as 32 pixels; where a row is a piece of memory, its ends count as 8.
    const int64_t ends = t.rows * (channels_last ? 2 : 8);
    const int64_t cost = t.h.count * t.w.count * (t.pixel_blocks() * block_pixels + block_pixels + ends);
    if (!best.fits || cost < least) best = t, best.fits = true, least = cost;
  };
  for (int64_t groups : widths) {
    if (groups < all_groups && groups <= budget) consider(groups);
  }
  if (all_groups <= budget) consider(all_groups);
  return best;
}

}  // namespace convt::column
