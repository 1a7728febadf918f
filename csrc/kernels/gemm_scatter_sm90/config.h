// Configurations of the family for kernels as large as their stride, in 16-bit types, on Hopper. There no output has
// inputs of two positions: the layer is one matrix product of x (positions x channels) and w (channels x outputs of a
// position), and y its elements, scattered. wgmma takes both operands as they are in memory, whichever of their
// dimensions is the innermost: the copy engine brings them, nothing is packed or transposed. Only rows of x that it
// does not take, because they begin anywhere, are copied first. A is what y has outermost: outputs of a position if y
// is NCHW, positions if it is channels_last. A warpgroup stages its part of a tile in shared memory, from where the
// copy engine writes it as boxes or the warpgroup as vectors, or writes vectors from registers, while the other one
// multiplies if they take tiles in turn.
#pragma once

#include "../gemm_scatter/config.h"

namespace convt::gemm_scatter_sm90 {

using namespace gemm_scatter;

struct Config {
  const char* name;
  int32_t rows, columns;  // of a tile of the product
  bool alternate;         // warpgroups take tiles in turn; otherwise each has half of the rows

  constexpr int32_t group_rows() const { return alternate ? rows : rows / 2; }
};

inline constexpr Config configs[] = {
    {"128x64", 128, 64, false},
    {"128x128_pingpong", 128, 128, true},
    {"256x128", 256, 128, false},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t threads = consumers + 32;
// Operands are copied in blocks of 64 x 64 elements: 64 rows of 128 bytes, of the reduction if they are MN-major.
inline constexpr int32_t block_side = box_side(2), block_bytes = block_side * row_bytes;
inline constexpr int32_t k_of_product = 16;  // of the reduction, of one wgmma
inline constexpr int32_t most_kernel_w = block_side;
inline constexpr int32_t most_narrow_bytes = 64;  // rows of y
inline constexpr int32_t most_log_boxes = 2;      // of 64 positions: smaller boxes take longer than vectors
// Whether there is a kernel whose tiles the copy engine writes. Kernels of their own: instructions that a launch jumps
// over take longer than those that it executes. In NCHW, kernels of one tap alone have such outputs.
constexpr bool has_boxes(const Config& c, bool channels_last) { return channels_last || c.alternate; }

constexpr int32_t stage_bytes(const Config& c) { return (c.rows + c.columns) / block_side * block_bytes; }
// Rows of what a warpgroup stages begin in other banks than their neighbours'.
constexpr int32_t staged_pitch(const Config& c) { return 2 * c.columns + 16; }
constexpr int32_t staged_bytes(const Config& c) { return (c.group_rows() * staged_pitch(c) + 1023) / 1024 * 1024; }
constexpr int32_t bias_bytes(const Config& c) { return 4 * std::max(c.group_rows(), c.columns); }
inline constexpr int32_t places_bytes = 2 * 2 * block_side * 8;
// After the stages: of each warpgroup what it stages, biases and places in y; then the barriers, full and empty of each
// stage and whose turn it is.
constexpr int32_t other_bytes(const Config& c) {
  return 2 * (staged_bytes(c) + bias_bytes(c) + places_bytes) + 8 * (2 * most_stages + 2);
}

}  // namespace convt::gemm_scatter_sm90
