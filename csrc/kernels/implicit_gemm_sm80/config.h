// Configurations of the general tensor-core family (mma.sync, sm_80 and later): an implicit GEMM with M = (phase,
// output channel), N = output positions of a phase, K = (input channel, tap).
#pragma once

#include <cstdint>

#include "../implicit_gemm/mode.h"

namespace convt::implicit_gemm_sm80 {

using namespace implicit_gemm;

// A warp multiplies m_blocks blocks of 16 rows by n_blocks blocks of 8 columns; a block of threads has warps_m by
// warps_n warps.
struct Config {
  const char* name;
  int32_t warps_m, warps_n, m_blocks, n_blocks;
  int32_t resident;     // blocks an SM that the registers must allow, where sums live once
  bool hopper = false;  // in the code for sm_90a, too, in TF32 and 16 bits

  constexpr int32_t threads() const { return 32 * warps_m * warps_n; }
  constexpr int32_t rows() const { return warps_m * m_blocks; }               // blocks of 16
  constexpr int32_t columns() const { return 8 * warps_n * n_blocks; }        // positions
  constexpr int32_t accumulators() const { return 4 * m_blocks * n_blocks; }  // registers of a thread
};

inline constexpr Config configs[] = {
    // 64 x 64 a warp: two fragments of A and B are read from L1 and shared memory for 32 MMAs, under the rate of both.
    // Bound by the MMA rate; needs Cout (times the phases of a block) of 64, and 256 positions.
    {"64x256", 1, 4, 4, 8, 2},
    // Many channels, few positions: the same warp tile.
    {"128x128", 2, 2, 4, 8, 2},
    // Cout of 32: B is read twice as often, which is just under the rate of shared memory.
    {"32x256", 1, 4, 2, 8, 3},
    // Small problems: more blocks, bound by shared memory.
    {"64x128", 1, 4, 4, 4, 3},
    {"64x64", 2, 2, 2, 4, 4, true},
    {"16x256", 1, 4, 1, 8, 4},
    // Strict float32 with few steps a chunk (k = s): reading and splitting the patch is most of the work, and is shared
    // by twice as many channels.
    {"128x128x8", 2, 4, 4, 4, 1},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// The parts are TF32 halves of a float32.
constexpr int32_t parts_of(Mode m) { return m == Mode::ieee ? 2 : 1; }

// Of a pixel, in the patch, the words of a lane.
constexpr int32_t pixel_bytes(Mode m) { return 8 * parts_of(m); }

// Fragments of float32 live twice, and beside the sums those of a step.
constexpr bool fits_registers(const Config& c, Mode m) {
  return m == Mode::ieee ? c.accumulators() <= 64 : c.threads() == 128;
}
constexpr int32_t resident_blocks(const Config& c, Mode m) {
  return m != Mode::ieee ? c.resident : c.accumulators() >= 64 ? 256 / c.threads() : 3;
}

// The code for sm_90a has other families for TF32 and 16 bits, and of this one what takes least shared memory, for
// layers that those refuse.
constexpr bool in_hopper_code(const Config& c, Mode m) { return m == Mode::ieee || c.hopper; }

inline constexpr int32_t most_groups = 4;                     // fragments of channels in a chunk
inline constexpr int32_t fewest_stages = 2, most_stages = 4;  // of the patch
inline constexpr int32_t shared_bytes_limit = 100 * 1024;

}  // namespace convt::implicit_gemm_sm80
