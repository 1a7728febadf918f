#pragma once

#include "../exchange.h"
#include "../implicit_gemm/epilogue.cuh"
#include "../load_if.h"
#include "../ring.h"
#include "params.h"

namespace convt::implicit_gemm_nhwc_sm90 {

// Where things are in shared memory.
struct Shared {
  device::SharedAddress patches, weights, barriers;

  CONVT_DEVICE explicit Shared(const Params& p)
      : patches((device::shared_address(device::dynamic_shared_memory()) + 1023) & ~device::SharedAddress{1023}) {
    weights = patches + static_cast<uint32_t>(p.patch_stages * p.patch_bytes);
    barriers = weights + static_cast<uint32_t>(p.weight_stages * p.weight_bytes);
  }
  CONVT_DEVICE device::SharedAddress at(int32_t i) const { return barriers + static_cast<uint32_t>(8 * i); }
  CONVT_DEVICE device::SharedAddress patch_full(int32_t s) const { return at(s); }
  CONVT_DEVICE device::SharedAddress patch_empty(int32_t s) const { return at(most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_full(int32_t s) const { return at(2 * most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_empty(int32_t s) const {
    return at(2 * most_patch_stages + most_weight_stages + s);
  }
};

struct Tile {
  int32_t channel_tile, column, row, group, image;  // columns and rows are positions

  CONVT_DEVICE static Tile of(const Params& p, int32_t number) {
    auto channels = static_cast<uint32_t>(number);
    uint32_t column = p.by_channels.divide(channels);
    uint32_t row = p.by_columns.divide(column);
    uint32_t group = p.by_rows.divide(row);
    const uint32_t image = p.by_groups.divide(group);
    return {static_cast<int32_t>(channels), static_cast<int32_t>(column) * p.tile_columns,
            static_cast<int32_t>(row) * p.tile_rows, static_cast<int32_t>(group), static_cast<int32_t>(image)};
  }
};

// By one lane: has x and the weights of each step copied; those that stay, once.
template <class Scalar, int Row>
CONVT_DEVICE void copy_operands(const Params& p, const Shared& shared) {
  // Several chunks are whole ones.
  constexpr auto channels_of_chunk = static_cast<int32_t>(most_chunk_bytes / sizeof(Scalar));
  device::Ring patch = device::Ring::of_producer(), ring = device::Ring::of_producer();
  const auto bytes = static_cast<uint32_t>(p.taps_of_step * p.tap_bytes);
  bool first = true;
  if (p.copies_x) device::wait_for_previous_kernel();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = Tile::of(p, number);
    const unsigned char* w = p.packed + (static_cast<int64_t>(tile.group) * p.by_channels.divisor + tile.channel_tile) *
                                            p.chunks * p.taps * p.tap_bytes;
#pragma unroll 1
    for (int32_t c = 0; c < p.chunks; ++c) {
      device::mbarrier_wait(shared.patch_empty(patch.stage), patch.parity);
      const int32_t at[] = {c * channels_of_chunk, tile.group, tile.column + p.column, tile.row + p.row, tile.image};
      device::mbarrier_arrive_expect(shared.patch_full(patch.stage), static_cast<uint32_t>(p.pitch * p.patch_rows));
      device::box_load(shared.patches + static_cast<uint32_t>(patch.stage * p.patch_bytes), p.x_map, at,
                       shared.patch_full(patch.stage), p.x_policy);
      patch.advance(p.patch_stages);
      if (p.resident && !first) continue;
      if (first && c == 0 && !p.copies_x) device::wait_for_previous_kernel();
#pragma unroll 1
      for (int32_t s = 0; s < p.steps; ++s, w += bytes) {
        if (!p.resident) device::mbarrier_wait(shared.weights_empty(ring.stage), ring.parity);
        device::mbarrier_arrive_expect(shared.weights_full(ring.stage), bytes);
        device::bulk_load(shared.weights + static_cast<uint32_t>(ring.stage * p.weight_bytes), w, bytes,
                          shared.weights_full(ring.stage));
        ring.advance(p.weight_stages);
      }
    }
    first = false;
  }
}

// What a lane writes of a tile: of each block of positions, two rows' outputs of two columns of the product that follow
// each other; or, of 16 bits, eight columns of every fourth.
template <Mode mode, int Row>
struct Outputs {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];

  const Params& p;
  int32_t image, group, channel, channels;  // the tile's first channel of the group, and how many it has
  int32_t row, column;                      // the lane's first position
  int32_t product_column;                   // its first

  CONVT_DEVICE Outputs(const Params& p, const Tile& tile, int32_t warp, int32_t lane) : p(p) {
    image = tile.image, group = tile.group;
    channel = tile.channel_tile * p.channels_of_tile, channels = smaller(p.channels_of_tile, p.out_channels - channel);
    const bool flat = p.block_rows == 1;
    row = tile.row + (flat ? 0 : 2 * warp), column = tile.column + (flat ? 16 * warp : 0) + lane / 4;
    product_column = lane % 4 * 2;
  }

  struct Place {
    int32_t channel, row, column;  // phases
    CONVT_DEVICE bool there(const Params& p, int32_t channels) const { return channel < channels && row < p.h.stride; }
  };

  CONVT_DEVICE Place place_of(int32_t n) const {
    auto of_channel = static_cast<uint32_t>(n);
    uint32_t phase = of_channel;
    const uint32_t row_phase = p.by_columns_of_row.divide(phase);
    of_channel = phase;
    const uint32_t column_phase = p.by_channels_of_tile.divide(of_channel);
    return {static_cast<int32_t>(of_channel), static_cast<int32_t>(row_phase), static_cast<int32_t>(column_phase)};
  }

  CONVT_DEVICE static Scalar* further(Scalar* to, int64_t bytes) {
    return reinterpret_cast<Scalar*>(reinterpret_cast<unsigned char*>(to) + bytes);
  }

  // `Pairs`: both columns of the product at once.
  template <bool Pairs>
  CONVT_DEVICE void write(const float (&sums)[config.blocks][config.columns / 2]) const {
    Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                      (static_cast<int64_t>(group) * p.out_channels + channel) * p.y_channel_stride;
#pragma unroll
    for (int j = 0; j < config.columns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < (Pairs ? 1 : 2); ++e) {
        const Place at = place_of(product_column + 8 * j + e);
        if (!at.there(p, channels)) continue;
        const int32_t y_row = row * p.h.stride + at.row, y_column = column * p.v.stride + at.column;
        const int32_t rows = p.h.out - y_row, columns = p.v.out - y_column;
        Scalar* const to = y + static_cast<int64_t>(y_row) * p.y_row_stride +
                           static_cast<int64_t>(y_column) * p.y_column_stride + at.channel * p.y_channel_stride;
#pragma unroll
        for (int m = 0; m < config.blocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const Further& f = p.further[m][half];
            store_if<Pairs ? 2 : 1>(f.rows < rows && f.columns < columns, further(to, f.bytes),
                                    &sums[m][4 * j + 2 * half + e]);
          }
        }
      }
    }
  }

  // Eight columns of 16 bits at once. A lane's are of every fourth of the eights of a block's positions, in the order
  // of blocks, halves and columns.
  CONVT_DEVICE void write_eights(const float (&sums)[config.blocks][config.columns / 2]) const {
    constexpr int eights = config.columns / 8, of_half = eights / 4;  // of a position; fours of them, or half of one
    constexpr int fours = of_half == 0 ? 1 : of_half, halves = of_half == 0 ? 1 : 2;
    const int32_t of_four = product_column / 2, half_of_lane = of_half == 0 ? of_four / eights : 0;
    const Further& from_first = p.further[0][1];
    const int32_t first_row = row * p.h.stride + half_of_lane * from_first.rows,
                  first_column = column * p.v.stride + half_of_lane * from_first.columns;
    Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                      (static_cast<int64_t>(group) * p.out_channels + channel) * p.y_channel_stride;
    // All of them in half of the registers, first.
    uint32_t packed[config.blocks][config.columns / 4];
#pragma unroll
    for (int m = 0; m < config.blocks; ++m) {
#pragma unroll
      for (int i = 0; i < config.columns / 4; ++i) packed[m][i] = pack(Scalar{}, sums[m][2 * i], sums[m][2 * i + 1]);
    }
#pragma unroll
    for (int four = 0; four < fours; ++four) {
      const Place at = place_of(8 * ((4 * four + of_four) % eights));
      const int32_t y_row = first_row + at.row, y_column = first_column + at.column;
      const int32_t rows = at.there(p, channels) ? p.h.out - y_row : 0, columns = p.v.out - y_column;
      Scalar* const to = y + static_cast<int64_t>(y_row) * p.y_row_stride +
                         static_cast<int64_t>(y_column) * p.y_column_stride + at.channel * p.y_channel_stride;
#pragma unroll
      for (int m = 0; m < config.blocks; ++m) {
#pragma unroll
        for (int half = 0; half < halves; ++half) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = 4 * four + i;
            words[i] = packed[m][2 * (n % eights) + half + n / eights];
          }
          device::exchange<1, 2>(words, of_four);
          const Further& f = p.further[m][half];
          store_words_if<16>(f.rows < rows && f.columns < columns, further(to, f.bytes), words);
        }
      }
    }
  }

  // Those that are NaN again, by their definition: a phase that lacks a tap has a zero for it, which times an input
  // that is not finite is NaN, and so may be what lies beyond an edge.
  CONVT_DEVICE void correct() const {
#pragma unroll 1
    for (int32_t i = 0; i < config.columns / 2 * config.blocks; ++i) {
      const int32_t half = i % 2, e = i / 2 % 2, m = i / 4 % config.blocks, j = i / 4 / config.blocks;
      const Place at = place_of(product_column + 8 * j + e);
      const int32_t y_row = row * p.h.stride + p.further[m][half].rows + at.row,
                    y_column = column * p.v.stride + p.further[m][half].columns + at.column;
      if (!at.there(p, channels) || y_row >= p.h.out || y_column >= p.v.out) continue;
      correct_output<mode, true>(p, group, image, channel + at.channel, y_row, y_column);
    }
  }
};

inline constexpr int32_t most_taps_at_once = 3;

// The products of taps that follow each other in a step, of so many times 32 bytes of channels. Nothing is in flight
// from a call to the next: ptxas serialises products in flight across branches
// (benchmarks/notes/implicit_gemm_nchw_sm90.md).
template <Mode mode, int Row, int Products, int Taps>
CONVT_DEVICE void multiply(device::MatrixDescriptor x_of_stages, const device::SharedAddress (&x)[most_taps_at_once],
                           const uint32_t (&block_at)[configs[Row].blocks], device::MatrixDescriptor w_of_stages,
                           device::SharedAddress w, uint32_t of_tap,
                           float (&sums)[configs[Row].blocks][configs[Row].columns / 2]) {
  constexpr Config config = configs[Row];
  constexpr uint32_t of_product = config.columns * k_bytes / 16;  // weights, in units of 16 bytes
  device::wgmma_fence();
#pragma unroll
  for (int tap = 0; tap < Taps; ++tap) {
#pragma unroll
    for (int k = 0; k < Products; ++k) {
      const auto b = device::with_start(
          w_of_stages, w + (static_cast<uint32_t>(tap) * of_tap + static_cast<uint32_t>(k) * of_product));
#pragma unroll
      for (int m = 0; m < config.blocks; ++m) {
        const auto a = device::with_start(x_of_stages, x[tap] + block_at[m] + static_cast<uint32_t>(k * k_bytes / 16));
        device::wgmma<device::wgmma_type<typename Traits<mode>::Scalar>, config.columns>(sums[m], a, b);
      }
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
}

// As many products as there are of 32 bytes of channels, and as many taps.
template <Mode mode, int Row, int Products = most_products, int Taps = most_taps_at_once>
CONVT_DEVICE void multiply(int32_t products, int32_t taps, device::MatrixDescriptor x_of_stages,
                           const device::SharedAddress (&x)[most_taps_at_once],
                           const uint32_t (&block_at)[configs[Row].blocks], device::MatrixDescriptor w_of_stages,
                           device::SharedAddress w, uint32_t of_tap,
                           float (&sums)[configs[Row].blocks][configs[Row].columns / 2]) {
  if constexpr (Products > 1) {
    if (products < Products) {
      return multiply<mode, Row, Products - 1, Taps>(products, taps, x_of_stages, x, block_at, w_of_stages, w, of_tap,
                                                     sums);
    }
  }
  if constexpr (Taps > 1) {
    if (taps < Taps) {
      return multiply<mode, Row, Products, Taps - 1>(products, taps, x_of_stages, x, block_at, w_of_stages, w, of_tap,
                                                     sums);
    }
  }
  multiply<mode, Row, Products, Taps>(x_of_stages, x, block_at, w_of_stages, w, of_tap, sums);
}

// By the warpgroup that multiplies.
template <Mode mode, int Row>
CONVT_DEVICE void consume(const Params& p, const Shared& shared) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  // Asked of all lanes at once, this also says that they are all here: what is the same for all is computed once.
  const auto warp = static_cast<int32_t>(device::uniform(threadIdx.x / 32));
  const auto pitch = static_cast<uint32_t>(p.pitch), chunk_bytes = static_cast<uint32_t>(p.chunk_bytes),
             of_tap = static_cast<uint32_t>(p.tap_bytes / 16);
  const device::MatrixDescriptor x_of_stages =
      device::matrix_descriptor(shared.patches, p.block_rows == 1 ? 8 * chunk_bytes : pitch, 16, chunk_bytes);
  const device::MatrixDescriptor w_of_stages = device::plain_matrix_descriptor(shared.weights, 256, 128);
  uint32_t block_at[config.blocks];
#pragma unroll
  for (int m = 0; m < config.blocks; ++m) {
    const auto down = static_cast<uint32_t>(m >> p.log_side_by_side),
               right = static_cast<uint32_t>(m & ((1 << p.log_side_by_side) - 1));
    block_at[m] = (down * static_cast<uint32_t>(p.block_rows) * pitch +
                   right * static_cast<uint32_t>(p.block_columns) * chunk_bytes) /
                  16;
  }
  device::Ring patch, weights;
  constexpr bool keeps_bias = config.columns < 64;  // or there are no registers for it
  float bias[config.columns / 4] = {};
  bool knows_bias = false;
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = Tile::of(p, number);
    const Outputs<mode, Row> outputs(p, tile, warp, lane);
    if (!keeps_bias || !knows_bias) {
#pragma unroll
      for (int c = 0; c < config.columns / 4; ++c) {
        bias[c] = 0;
        if (p.bias == nullptr) continue;
        const auto at = outputs.place_of(outputs.product_column + c / 2 * 8 + c % 2);
        const int64_t group_channel = static_cast<int64_t>(tile.group) * p.out_channels + outputs.channel + at.channel;
        if (at.there(p, outputs.channels)) load<1>(bias_at<Scalar>(p, group_channel), &bias[c]);
      }
      knows_bias = p.one_bias;
    }
    // Sums begin with it.
    float sums[config.blocks][config.columns / 2];
#pragma unroll
    for (int m = 0; m < config.blocks; ++m) {
#pragma unroll
      for (int i = 0; i < config.columns / 2; ++i) sums[m][i] = bias[i / 4 * 2 + i % 2];
      device::wgmma_results(sums[m]);
    }
#pragma unroll 1
    for (int32_t c = 0; c < p.chunks; ++c) {
      device::mbarrier_wait(shared.patch_full(patch.stage), patch.parity);
      const device::SharedAddress x =
          device::start_of(x_of_stages) + static_cast<uint32_t>(patch.stage * (p.patch_bytes / 16));
      const int32_t products = c == p.chunks - 1 ? p.last_products : p.products;
#pragma unroll 1
      for (int32_t s = 0; s < p.steps; ++s) {
        device::mbarrier_wait(shared.weights_full(weights.stage), weights.parity);
        const device::SharedAddress of_step = x + p.step_column[s] * (chunk_bytes / 16);
        device::SharedAddress w =
            device::start_of(w_of_stages) + static_cast<uint32_t>(weights.stage * (p.weight_bytes / 16));
#pragma unroll 1
        for (int32_t tap = 0; tap < p.taps_of_step; tap += most_taps_at_once) {
          device::SharedAddress of_taps[most_taps_at_once];
#pragma unroll
          for (int i = 0; i < most_taps_at_once; ++i) {
            of_taps[i] = of_step + p.tap_row[smaller(tap + i, p.taps_of_step - 1)] * (pitch / 16);
          }
          multiply<mode, Row>(products, p.taps_of_step - tap, x_of_stages, of_taps, block_at, w_of_stages, w, of_tap,
                              sums);
          w += most_taps_at_once * of_tap;
        }
        if (!p.resident) {
          device::mbarrier_arrive_if(shared.weights_empty(weights.stage), lane == 0);
          weights.advance(p.weight_stages);
        } else if (++weights.stage == p.weight_stages) {
          weights.stage = 0;
        }
      }
      device::mbarrier_arrive_if(shared.patch_empty(patch.stage), lane == 0);
      patch.advance(p.patch_stages);
    }
#pragma unroll
    for (int m = 0; m < config.blocks; ++m) device::wgmma_results(sums[m]);
    ZeroSum zeros;
#pragma unroll
    for (int m = 0; m < config.blocks; ++m) zeros.add(sums[m]);
    if (p.together == 8) {
      if constexpr (sizeof(Scalar) == 2) outputs.write_eights(sums);
    } else if (p.together == 2) {
      outputs.template write<true>(sums);
    } else {
      outputs.template write<false>(sums);
    }
    __syncwarp();  // other lanes have written some of what is looked at
    if (zeros.is_nan()) outputs.correct();
  }
}

template <Mode mode, int Row>
__global__ void __launch_bounds__(threads, configs[Row].residents)
    implicit_gemm_nhwc_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const Shared shared(p);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == consumers) {
    device::prefetch_tensor_map(p.x_map);
    for (int32_t s = 0; s < p.patch_stages; ++s) {
      device::mbarrier_init(shared.patch_full(s), 1), device::mbarrier_init(shared.patch_empty(s), warps);
    }
    for (int32_t s = 0; s < p.weight_stages; ++s) {
      device::mbarrier_init(shared.weights_full(s), 1), device::mbarrier_init(shared.weights_empty(s), warps);
    }
    device::mbarrier_init_fence();
  }
  __syncthreads();
  if (thread < consumers) {
    consume<mode, Row>(p, shared);
  } else if (device::elect()) {
    copy_operands<typename Traits<mode>::Scalar, Row>(p, shared);
  }
#endif
}

}  // namespace convt::implicit_gemm_nhwc_sm90
