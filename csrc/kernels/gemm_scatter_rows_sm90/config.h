// Kernels as large as their stride in 16-bit types, NCHW, on Hopper, where rows of x or y begin at no multiple of 16
// bytes. A tile's positions are whole rows of x, so that what a channel of y has of them lies together in memory.
// Threads bring x, which the copy engine does not take from where it lies, and once: it stays in shared memory while
// all outputs of its positions are multiplied, for which weights stream past. A warpgroup stages its outputs in the
// order of y, and the copy engine writes them, while the other warpgroup multiplies.
#pragma once

#include <algorithm>

#include "../gemm_scatter/config.h"

namespace convt::gemm_scatter_rows_sm90 {

using gemm_scatter::consumers;
using gemm_scatter::group_threads;
using gemm_scatter::row_bytes;
using gemm_scatter::shared_bytes_limit;

struct Config {
  const char* name;
  int32_t positions, outputs;  // of a tile: positions at most, and outputs of a position

  constexpr int32_t blocks() const { return positions / 64; }
};

inline constexpr Config configs[] = {
    {"128x128", 128, 128},
    {"192x64", 192, 64},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// Two warpgroups take tiles in turn. Of a third one a warp has weights copied, another one y, and two bring x.
inline constexpr int32_t threads = consumers + group_threads;
inline constexpr int32_t fillers = 64;
inline constexpr int32_t consumer_registers = 200, other_registers = 104;

// Both operands are in boxes of 64 x 64 elements, whose rows are channels, as wgmma reads them with the 128-byte
// swizzle.
inline constexpr int32_t block_side = 64, block_bytes = block_side * row_bytes;
inline constexpr int32_t k_of_product = 16;  // channels, of one wgmma
inline constexpr int32_t most_images = 32;   // of a tile: each lane of a warp knows one
inline constexpr int32_t most_stages = 12;   // of x

constexpr int32_t x_stage_bytes(const Config& c) { return c.blocks() * block_bytes; }
constexpr int32_t w_stage_bytes(const Config& c) { return c.outputs / block_side * block_bytes; }

constexpr int32_t pieces(const Config& c) { return c.outputs / block_side; }
constexpr int32_t w_stages(const Config& c) { return c.outputs == 128 ? 4 : 5; }
// What warpgroups stage are pieces of 64 outputs, in so many places that both take in turn.
constexpr int32_t places(const Config& c) { return c.outputs == 128 ? 3 : 2; }

// Before the stages: barriers, full and empty of each stage of x and of weights and of what is staged, and whose turn
// it is; of each warpgroup where positions are in what it stages, and biases of two tiles.
constexpr int32_t barriers_bytes(const Config& c) {
  return 8 * (2 * most_stages + 2 * w_stages(c) + 2 * places(c) + 2);
}
inline constexpr int32_t fewest_taps = 2;
constexpr int32_t places_bytes(const Config& c) { return 4 * (c.positions + 2 * c.outputs / fewest_taps); }
constexpr int32_t places_at(const Config& c) { return (barriers_bytes(c) + 15) / 16 * 16; }
constexpr int32_t staged_at(const Config& c) { return (places_at(c) + 2 * places_bytes(c) + 31) / 32 * 32; }

}  // namespace convt::gemm_scatter_rows_sm90
