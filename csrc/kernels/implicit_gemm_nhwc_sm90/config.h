// Configurations of the implicit GEMM for channels_last with few outputs of a position on Hopper's tensor cores (wgmma,
// sm_90a): M = positions, N = (phase, output channel) as sub-pixel convolution has it, K = (input channel, tap), of all
// phases together; a phase that lacks a tap has zeros for it. x is read from shared memory as the copy engine brought
// it, at any shift by a tap, and rows of y are written from registers, where phases and channels follow each other.
// Positions that do not begin at multiples of 16 bytes are copied first.
#pragma once

#include <cstdint>

#include "../implicit_gemm/mode.h"

namespace convt::implicit_gemm_nhwc_sm90 {

using namespace implicit_gemm;

// A warpgroup multiplies `blocks` blocks of 64 positions, 8 rows of 8 or a row, by `columns` columns.
struct Config {
  const char* name;                    // columns x positions
  int32_t columns, blocks, residents;  // at most so many blocks of threads of a multiprocessor
};

inline constexpr Config configs[] = {{"16x256", 16, 4, 4}, {"32x256", 32, 4, 3}};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]), most_blocks = 4;

// A warpgroup multiplies, and a warp has data copied.
inline constexpr int32_t consumers = 128, warps = 4, threads = consumers + 32;
inline constexpr int32_t block_positions = 64;
// A product takes 32 bytes of channels. A chunk of the reduction is 128 bytes of them, or 64 if a group has no more: a
// position of a patch.
inline constexpr int32_t k_bytes = 32, most_chunk_bytes = 128, most_products = most_chunk_bytes / k_bytes;

inline constexpr int32_t most_patch_stages = 4, fewest_patch_stages = 2;
inline constexpr int32_t most_weight_stages = 48, fewest_weight_stages = 2;
// Full and empty of each stage.
inline constexpr int32_t barrier_bytes = 8 * 2 * (most_patch_stages + most_weight_stages);
constexpr int32_t shared_bytes_limit(int32_t residents) { return (228 * 1024 / residents - 1024) / 128 * 128; }

// Packed weights of a tap and a chunk.
constexpr int32_t tap_bytes(const Config& c, int32_t chunk_bytes) { return c.columns * chunk_bytes; }

constexpr bool has_mode(Mode m) { return m != Mode::ieee; }

}  // namespace convt::implicit_gemm_nhwc_sm90
