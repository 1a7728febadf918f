// Configurations of the implicit GEMM for NCHW on Hopper's tensor cores (wgmma, sm_90a): M = output positions, N =
// output channels, K = (input channel, tap), of each phase of the columns for itself; or, as sub-pixel convolution has
// it (Shi et al., 2016), N = (output channel, phase), K having the taps of all phases, some of which are zeros. x is
// the operand in registers. A lane loads it from shared memory as it lies in memory, at any shift by a tap: nothing
// transposes it, which the other families of implicit GEMM do, whose operand in shared memory has its channels
// innermost. And 16 or 32 output channels do not fill up to 64.
#pragma once

#include <cstdint>

#include "../implicit_gemm/mode.h"

namespace convt::implicit_gemm_nchw_sm90 {

using namespace implicit_gemm;

// A warp multiplies `rows` rows of 16 positions of each of `phases` phases of the columns by `channels` output
// channels. The four warps' strips of 16 columns lie side by side, or on top of each other: as the tile of the plan
// says. A block is such a warpgroup; a multiprocessor has several, of which one multiplies while another loads
// fragments, or writes.
struct Config {
  const char* name;                        // phases x channels x positions
  int32_t phases, channels, rows, blocks;  // columns of a product are channels; blocks of a multiprocessor
  bool subpixel = false;                   // or they are channels and phases, of which the last are the columns'

  constexpr int32_t accumulators() const { return phases * rows * channels / 2; }  // registers of a thread
};

inline constexpr Config configs[] = {
    {"2x32x256", 2, 32, 4, 2},
    {"subpixel_16x512", 1, 16, 8, 2, true},
    {"subpixel_32x384", 1, 32, 6, 2, true},
    {"subpixel_64x256", 1, 64, 4, 2, true},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// A warpgroup multiplies, and another one gives it registers, of which one warp has data copied.
inline constexpr int32_t consumers = 128, warps = 4, threads = consumers + 128;
inline constexpr int32_t copier_registers = 40, consumer_registers = 216;
// Positions of a warp in a row: a lane has two that are neighbours.
inline constexpr int32_t strip_columns = 16;
// A product takes 32 bytes of channels, and a chunk of the reduction is that of two; of one if that is all channels.
inline constexpr int32_t k_bytes = 32, most_halves = 2;
// Taps that follow each other in a column of the kernel are a step: rows of x are loaded once for all of them.
inline constexpr int32_t most_taps_of_step = 3;

inline constexpr int32_t most_patch_stages = 4, fewest_patch_stages = 2;
inline constexpr int32_t most_weight_stages = 16, fewest_weight_stages = 2;
// Full and empty of each stage.
inline constexpr int32_t barrier_bytes = 8 * 2 * (most_patch_stages + most_weight_stages);
// Of a block: a multiprocessor has 228 KB, of which 1 KB is kept for each block.
constexpr int32_t shared_bytes_limit(const Config& c) { return (228 * 1024 / c.blocks - 1024) / 128 * 128; }

// Packed weights of a tap and a chunk.
constexpr int32_t tap_bytes(const Config& c, int32_t halves) { return halves * c.channels * k_bytes; }

// A block may write its rows of y through shared memory, 8 channels of so many rows of each strip at a time, in two
// buffers.
inline constexpr int32_t staged_channels = 8, sector_bytes = 32;
constexpr int32_t staged_rows(const Config& c) { return c.phases > 1 ? 2 : c.rows % 4 == 0 ? 4 : 3; }
// Of a row of a channel of strips that lie side by side, which begins in the first 16 bytes; lanes that write two
// channels at once find other banks.
constexpr int32_t staged_pitch(const Config& c, int32_t strips, int32_t element_bytes) {
  return strips * strip_columns * c.phases * element_bytes + 16;
}
constexpr int32_t staged_bytes(const Config& c, int32_t strips, int32_t element_bytes) {
  return staged_channels * staged_rows(c) * (warps / strips) * staged_pitch(c, strips, element_bytes);
}

constexpr bool has_mode(Mode m) { return m != Mode::ieee; }

}  // namespace convt::implicit_gemm_nchw_sm90
