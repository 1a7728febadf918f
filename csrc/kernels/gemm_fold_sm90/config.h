// Configurations of the family for kernels of any size on Hopper. As in gemm_scatter_sm90 the layer is one
// matrix product of operands as they are in memory: rows are the taps of an output channel, (channel, kernel row,
// kernel column), columns are input positions. But an output is the sum of several elements of it: of each of its taps,
// at the tap's position. A tile has all taps of its channels, and all positions that the outputs of some images, or of
// some rows and columns of one, have inputs of; so each of its outputs is summed in shared memory, from float32, in the
// order of its taps. Nothing is packed, transposed or multiplied by zeros of phases. Warpgroups take tiles in turn: one
// sums and writes while the other one multiplies. Where there is no tile for each, both share one: half of its
// positions each, and half of its outputs. 16-bit types are multiplied by wgmma, which takes operands of either
// majorness; float32, of which it takes those of K innermost only, by mma.sync, in TF32, or, strict, as three products
// of two parts.
#pragma once

#include "../gemm_scatter/config.h"

namespace convt::gemm_fold_sm90 {

using namespace gemm_scatter;

// Boxes of operands have a row for each channel of the reduction; those of a block of rows of the product, or of as
// many positions, follow each other.
inline constexpr int32_t block_rows = 64;

struct Config {
  const char* name;
  int32_t blocks, columns;   // of a tile of the product: of 64 rows; positions
  bool cooperative = false;  // warpgroups share a tile, and a block has one; otherwise they take tiles in turn

  constexpr int32_t rows() const { return blocks * block_rows; }
  constexpr int32_t group_columns() const { return cooperative ? columns / 2 : columns; }
  // That share a tile, and how many tiles a block has at once.
  constexpr int32_t tile_threads() const { return cooperative ? consumers : group_threads; }
  constexpr int32_t tiles() const { return consumers / tile_threads(); }
};

inline constexpr Config configs[] = {
    {"64x64", 1, 64},     // few tiles
    {"64x128", 1, 128},   // short reductions, whose sums take long: both warpgroups add up
    {"128x128", 2, 128},  // the least of both operands for a product
    {"64x256", 1, 256},   // images of more than 128 positions
    {"192x64", 3, 64},    // channels of many taps
    // The same where they are no more than multiprocessors.
    {"64x64_cooperative", 1, 64, true},
    {"64x128_cooperative", 1, 128, true},
    {"128x128_cooperative", 2, 128, true},
    {"64x256_cooperative", 1, 256, true},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);
// In strict float32, two parts of operands and the sums of 64x256 do not fit into registers, nor those of 128x128 if x
// is channels_last.
constexpr bool compiled(const Config& c, bool strict, bool last) {
  const bool fits = c.blocks > 1 || c.group_columns() < 256, last_fits = c.blocks != 2 || c.cooperative;
  return !strict || (fits && (!last || last_fits));
}

// The warp that has data copied is of a third warpgroup, which gives the others its registers.
inline constexpr int32_t producers = 128, threads = consumers + producers;
inline constexpr int32_t launch_registers = 168;
// With few registers the copying warp waits; two parts of operands need them all.
constexpr int32_t consumer_registers(bool strict) { return strict ? 240 : 224; }
constexpr int32_t producer_registers(bool strict) { return strict ? 24 : 56; }
inline constexpr int32_t block_bytes = block_rows * row_bytes;
constexpr int32_t box_bytes(int64_t element_bytes) { return box_side(element_bytes) * row_bytes; }
inline constexpr int32_t most_rows = 512, most_columns = 2048;  // of y, in a tile
inline constexpr int32_t table_bytes = 4 * (most_rows + most_columns);
inline constexpr int32_t most_together = 8;  // channels that a thread sums at a time, or half as many

constexpr int32_t stage_bytes(const Config& c) { return (c.blocks + c.columns / block_rows) * block_bytes; }
// Of a stage, what is brought for a tile of so many boxes of positions.
constexpr int32_t brought_bytes(const Config& c, int64_t element_bytes, int32_t boxes) {
  return c.blocks * block_bytes + boxes * box_bytes(element_bytes);
}
// A tile is staged as float32, [kernel row][kernel column][channel][position]. With 32 bytes between kernel columns,
// lanes of four rows of the product write to different banks. With 64 between kernel rows, so do lanes that read for
// two rows of y, of a stride of two. Beyond the last channel, a thread that sums several reads up to three more.
constexpr int32_t kernel_column_gap = 32, kernel_row_gap = 64;
constexpr int32_t staged_bytes(const Config& c) {
  return c.rows() * (4 * c.columns + kernel_column_gap) + c.rows() / 2 * kernel_row_gap + 3 * 4 * c.columns;
}
constexpr int32_t bias_bytes(const Config& c) { return 4 * (c.rows() + most_together); }
// Each warpgroup stages its tiles for itself, or both in turn where that would leave too few stages. A block's only
// tile is staged where the stages have been.
constexpr int32_t staged_buffers(const Config& c) { return c.cooperative ? 0 : c.blocks * c.columns > 128 ? 1 : 2; }
// After the stages: the tiles that are staged; of each tile the taps of its rows and columns of y, and biases; then the
// barriers: full and empty of each stage, and whose turn it is to multiply and to stage.
constexpr int32_t other_bytes(const Config& c) {
  return staged_buffers(c) * staged_bytes(c) + c.tiles() * (table_bytes + bias_bytes(c)) + 8 * (2 * most_stages + 4);
}

}  // namespace convt::gemm_fold_sm90
