// Configurations of the family for kernels of any size in 16-bit types, NCHW, on Hopper, where images are small. As in
// gemm_scatter_sm90 the layer is one matrix product of operands as they are in memory: rows are the taps of an output
// channel, (channel, kernel row, kernel column), columns are input positions. But an output is the sum of several
// elements of it: of each of its taps, at the tap's position. A tile has all taps of its channels, and all positions
// that the outputs of whole images, or of some rows of one, have inputs of; so each of its outputs is summed in shared
// memory, in the order of its taps, from float32. Nothing is packed, transposed or multiplied by zeros of phases.
// Warpgroups take tiles in turn: one sums and writes while the other one multiplies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../gemm_scatter_sm90/config.h"

namespace convt::gemm_fold_sm90 {

using gemm_scatter_sm90::block_bytes, gemm_scatter_sm90::block_side, gemm_scatter_sm90::consumers,
    gemm_scatter_sm90::k_of_product, gemm_scatter_sm90::row_bytes, gemm_scatter_sm90::shared_bytes_limit,
    gemm_scatter_sm90::threads;

struct Config {
  const char* name;
  int32_t blocks, columns;  // of a tile of the product: of 64 rows, each of whole channels; positions
};

inline constexpr Config configs[] = {
    {"64x64", 1, 64},     // few tiles
    {"128x128", 2, 128},  // the least of both operands for a product
    {"64x256", 1, 256},   // images of more than 128 positions
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t most_stages = 8;
inline constexpr int32_t most_rows = 512, most_columns = 2048;  // of y, in a tile
inline constexpr int32_t together = 4;                          // channels that a thread sums at a time

// Where x is copied first: threads of a block, and pairs of positions of each.
inline constexpr int32_t copy_threads = 256, copy_pairs = 4, copy_positions = 2 * copy_threads * copy_pairs;

constexpr int32_t stage_bytes(const Config& c) { return (c.blocks + c.columns / block_side) * block_bytes; }
// From a row to the next of what is staged, float32: lanes of four rows write to different banks.
constexpr int32_t staged_pitch(const Config& c) { return c.columns + 8; }
constexpr int32_t staged_bytes(const Config& c) { return 4 * block_side * staged_pitch(c); }
inline constexpr int32_t table_bytes = 4 * (most_rows + most_columns);
constexpr int32_t bias_bytes(const Config& c) { return 4 * (c.blocks * block_side + together); }
// After the stages: a block of rows, staged by one warpgroup at a time; of each warpgroup the taps of its tile's rows
// and columns of y, and biases; then the barriers: full and empty of each stage, and whose turn it is to multiply and
// to stage.
constexpr int32_t other_bytes(const Config& c) {
  return staged_bytes(c) + 2 * (table_bytes + bias_bytes(c)) + 8 * (2 * most_stages + 4);
}
constexpr int32_t stages_of(const Config& c) {
  return std::min(most_stages, (shared_bytes_limit - other_bytes(c)) / stage_bytes(c));
}
// In whole periods of the swizzle.
constexpr int32_t shared_bytes(const Config& c) {
  return (stages_of(c) * stage_bytes(c) + other_bytes(c) + 1023) / 1024 * 1024;
}

}  // namespace convt::gemm_fold_sm90
