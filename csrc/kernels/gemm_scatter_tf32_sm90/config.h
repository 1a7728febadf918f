// Configurations of the family for kernels as large as their stride, in TF32, on Hopper: as gemm_scatter_sm90, one
// matrix product of x (positions x channels) and w (channels x outputs of a position), and y its elements, scattered.
// wgmma takes 32-bit operands from shared memory only if their channels are innermost. Those of x in NCHW are not: it
// takes them from registers, to which any order of memory can be loaded. So positions are the rows of the product.
// Which of them a row is, and which output a column, is chosen so that a lane's sums are up to four neighbours of a row
// of y: they are written from registers, as they are. Weights are packed first; the copy engine brings them and x,
// rounded to TF32.
#pragma once

#include "../gemm_scatter/config.h"

namespace convt::gemm_scatter_tf32_sm90 {

using namespace gemm_scatter;

struct Config {
  const char* name;
  int32_t rows, columns;  // of a tile of the product: positions, and outputs of a position
  bool alternate;         // warpgroups take tiles in turn; otherwise each has half of the rows
};

inline constexpr Config configs[] = {
    {"128x64_pingpong", 128, 64, true},
    {"128x128_pingpong", 128, 128, true},
    {"256x128", 256, 128, false},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// The warp that has data copied is of a warpgroup that gives the others its registers.
inline constexpr int32_t threads = consumers + 128;
inline constexpr int32_t copier_registers = 40, consumer_registers = 232;
inline constexpr int32_t group_rows = 128, group_blocks = 2;  // of a warpgroup: blocks of 64 rows, of a wgmma
// A segment is 32 positions, of which the copy engine brings 32 channels at a time: a warp's, unless y is
// channels_last.
inline constexpr int32_t segment_rows = box_side(4), chunk = box_side(4), segment_bytes = chunk * row_bytes;
// Packed weights: 64 columns, with 32 channels each.
inline constexpr int32_t block_columns = 64, block_bytes = block_columns * row_bytes;
inline constexpr int32_t k_of_product = 8;  // channels of one wgmma

// The kernel before: threads of a block that packs weights, or copies x.
inline constexpr int32_t prepare_threads = 256;
// Of a column's weights in shared memory: columns side by side are in other banks.
inline constexpr int32_t prepare_pitch = chunk + 1, prepare_shared_bytes = 4 * block_columns * prepare_pitch;

constexpr int32_t weights_at(const Config& c) { return c.rows / segment_rows * segment_bytes; }
constexpr int32_t stage_bytes(const Config& c) { return weights_at(c) + c.columns * row_bytes; }
// After the stages, of each warpgroup: where a tile's outputs are in y, and biases; then the barriers, full and empty
// of each stage and whose turn it is.
constexpr int32_t places_bytes(const Config& c) { return 8 * c.columns; }
constexpr int32_t bias_bytes(const Config& c) { return 4 * c.columns; }
constexpr int32_t other_bytes(const Config& c) {
  return 2 * (places_bytes(c) + bias_bytes(c)) + 8 * (2 * most_stages + 2);
}

// Neighbouring outputs of a position that a lane has: all columns of the kernel, or four; four in channels_last. Four
// that follow each other in y are those of 4, 2 or 1 neighbouring positions; where they cannot be written at once, a
// lane has no neighbouring positions, and those of several lanes follow each other.
constexpr int32_t unit_of(int64_t kernel_w) { return kernel_w % 4 == 0 ? 4 : static_cast<int32_t>(kernel_w); }

}  // namespace convt::gemm_scatter_tf32_sm90
