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
};

// Of a tile: positions, at most, and outputs of a position.
inline constexpr int32_t positions = 128, outputs = 128;
inline constexpr Config configs[] = {{"128x128"}};

// Two warpgroups take tiles in turn. Of a third one a warp has weights copied, another one y, and two bring x.
inline constexpr int32_t threads = consumers + group_threads;
inline constexpr int32_t fillers = 64;
inline constexpr int32_t consumer_registers = 200, other_registers = 104;

// Both operands are in boxes of 64 x 64 elements, whose rows are channels, as wgmma reads them with the 128-byte
// swizzle: a stage has two of them.
inline constexpr int32_t block_side = 64, block_bytes = block_side * row_bytes;
inline constexpr int32_t blocks = positions / block_side, stage_bytes = 2 * block_bytes;
inline constexpr int32_t k_of_product = 16;  // channels, of one wgmma
inline constexpr int32_t most_x_stages = 12, w_stages = 4;
inline constexpr int32_t most_images = 32;  // of a tile: each lane of a warp knows one

// What warpgroups stage are pieces of 64 outputs, in so many places that both take in turn.
inline constexpr int32_t pieces = outputs / block_side, staged_pieces = 3;
static_assert(blocks == 2 && pieces == 2);

// Before what is staged and the stages: barriers, full and empty of each of them and whose turn it is; of each
// warpgroup where positions are in what it stages, and biases of two tiles.
inline constexpr int32_t barriers_bytes = 8 * (2 * most_x_stages + 2 * w_stages + 2 * staged_pieces + 2);
inline constexpr int32_t fewest_taps = 2, most_channels = outputs / fewest_taps;
inline constexpr int32_t group_bytes = 4 * (positions + 2 * most_channels);
inline constexpr int32_t groups_at = (barriers_bytes + 15) / 16 * 16;
inline constexpr int32_t staged_at = (groups_at + 2 * group_bytes + 31) / 32 * 32;

}  // namespace convt::gemm_scatter_rows_sm90
