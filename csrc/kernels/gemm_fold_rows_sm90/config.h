// Rows of inputs in NCHW in 16-bit types on Hopper. wgmma takes inputs as they lie in memory, columns innermost, but
// not shifted by a column, which is 2 bytes: so no column is. The taps of a kernel's row are rows of the product, as
// output channels are, and each input column's products with them are added to those of its neighbours afterwards, in
// registers: F.fold along rows. Rows of the kernel are part of the reduction: their inputs are other rows of the same
// patch. x is neither transposed nor copied, and read once for all taps of a tile; weights, which stay in shared
// memory, are put in order there. Columns have no halo: a warpgroup walks along rows, and keeps what the next 64
// columns lack.
#pragma once

#include "../gemm_scatter/config.h"

namespace convt::gemm_fold_rows_sm90 {

using gemm_scatter::consumers;
using gemm_scatter::group_threads;
using gemm_scatter::most_stages;
using gemm_scatter::row_bytes;
using gemm_scatter::shared_bytes_limit;

struct Config {
  const char* name;
  int32_t taps, stride;  // of the columns
  int32_t channels;      // output channels of a tile: 64, or 32, of which two taps are a block of rows of the product
  int32_t rows;          // of a tile: each has 64 columns of x

  constexpr int32_t blocks() const { return (taps * channels + 63) / 64; }  // of 64 rows of the product
  constexpr int32_t positions() const { return 64 * rows; }
  constexpr int32_t halves() const { return channels / 32; }              // channels of a lane
  constexpr bool carries_in_registers() const { return channels == 32; }  // which are the sums', of 64
};

inline constexpr Config configs[] = {
    {"k3s1_64x128", 3, 1, 64, 2},
    {"k3s1_32x128", 3, 1, 32, 2},
    {"k3s2_32x128", 3, 2, 32, 2},
    {"k4s2_32x128", 4, 2, 32, 2},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t threads = consumers + group_threads;
inline constexpr int32_t segment = 64;                              // columns of x: 128 bytes
inline constexpr int32_t k_of_product = 16;                         // channels, of one wgmma
inline constexpr int32_t product_bytes = k_of_product * row_bytes;  // of 64 rows or columns of it
inline constexpr int32_t consumer_registers = 240, other_registers = 24;

// What a warp stages of a tile: of each of its channels and rows the elements of a row of y, as far behind a multiple
// of so many as in y. At a stride of 1 rows that lanes stage at once are in different banks if that is half of what a
// lane reads; at a stride of 2 they are not in either case.
constexpr int32_t unit_of(const Config& c) { return c.stride == 1 ? 4 : 8; }
// Before them are those of the columns before, which had no whole vector of 16 bytes, in the second one of the row;
// behind them those that no column of x has as its own.
inline constexpr int32_t most_behind = 8;
constexpr int32_t before(const Config& c) { return 16 - unit_of(c); }
constexpr int32_t staged_pitch(const Config& c) {
  return 2 * (before(c) + segment * c.stride + unit_of(c) + most_behind);
}
constexpr int32_t staged_rows(const Config& c) { return 8 * c.halves() * c.rows; }
constexpr int32_t staged_bytes(const Config& c) { return staged_rows(c) * staged_pitch(c); }
// What is added to the next columns' sums, of each tap but those of the first stride.
constexpr int32_t carried_bytes(const Config& c) {
  return c.carries_in_registers() ? 0 : 4 * staged_rows(c) * (c.taps - c.stride);
}
// Where a stripe is in y, and which parts of it are whose: registers are the sums'.
inline constexpr int32_t place_bytes = 32, lane_bytes = 16;
constexpr int32_t warp_bytes(const Config& c) {
  return staged_bytes(c) + carried_bytes(c) + place_bytes + 32 * lane_bytes;
}
inline constexpr int32_t consumer_warps = consumers / 32;
// In shared memory, before the weights and the patches: barriers, full and empty of each stage and whose turn it is;
// biases; and each warp's.
inline constexpr int32_t barriers_bytes = 8 * (2 * most_stages + 2), biases_at = (barriers_bytes + 15) / 16 * 16;
constexpr int32_t warps_at(const Config& c) { return biases_at + 4 * c.channels; }
constexpr int32_t weights_at(const Config& c) {
  return (warps_at(c) + consumer_warps * warp_bytes(c) + 1023) / 1024 * 1024;
}

}  // namespace convt::gemm_fold_rows_sm90
