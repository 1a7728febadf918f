#pragma once

#include "../exact_output.h"
#include "../exchange.h"
#include "products.cuh"

namespace convt::gemm_fold_sm90 {

struct Tile {
  int32_t group, image, row_tile, column_tile, channel;  // the first of its images and channels

  CONVT_DEVICE static Tile of(const Params& p, int32_t number) {
    auto rest = static_cast<uint32_t>(number);
    uint32_t next = p.output_tiles.divide(rest);
    const int32_t channel = static_cast<int32_t>(rest) * p.tile_channels;
    rest = next, next = p.column_tiles.divide(rest);
    const auto column_tile = static_cast<int32_t>(rest);
    rest = next, next = p.row_tiles.divide(rest);
    const auto row_tile = static_cast<int32_t>(rest);
    rest = next, next = p.image_tiles.divide(rest);
    return {static_cast<int32_t>(next), static_cast<int32_t>(rest) * p.images, row_tile, column_tile, channel};
  }

  // Of y; may be ahead of it.
  CONVT_DEVICE int32_t first_output_row(const Params& p) const { return row_tile * p.rows - p.rows_before; }
  CONVT_DEVICE int32_t first_output_column(const Params& p) const { return column_tile * p.columns - p.columns_before; }
  // Of x; may be outside.
  CONVT_DEVICE int32_t first_row(const Params& p) const { return p.first_row + row_tile * p.row_step; }
  CONVT_DEVICE int32_t first_column(const Params& p) const { return p.first_column + column_tile * p.column_step; }
};

// The row of w where a tile begins whose first channel this is.
template <class Scalar>
CONVT_DEVICE int32_t begin_of(const Params& p, int32_t channel) {
  constexpr int32_t vector = 16 / sizeof(Scalar);
  return channel * p.taps / vector * vector;
}

// By one warp: every chunk of every tile of this block.
template <class Scalar, int Row, bool Last>
CONVT_DEVICE void copy_operands(const Params& p, const Shared<Row>& shared) {
  constexpr Config config = configs[Row];
  constexpr int32_t side = box_side(sizeof(Scalar)), bytes = box_bytes(sizeof(Scalar));
  constexpr int stages = stages_of(config), segments = config.columns / side;
  if (!device::elect()) return;
  if (p.copies_x) device::wait_for_previous_kernel();
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = Tile::of(p, number);
    int32_t image[segments], position[segments];
    // A copy has all images in a row, but in channels_last.
    const int32_t first_image = !Last && p.copies_x ? 0 : tile.image,
                  first = tile.image * p.memory_image + tile.first_row(p) * p.memory_row + tile.first_column(p);
#pragma unroll
    for (int s = 0; s < segments; ++s) {
      auto segment = static_cast<uint32_t>(s);
      const auto next = static_cast<int32_t>(p.segments.divide(segment));
      image[s] = first_image + next * p.next_image;
      position[s] = first + next * p.next_position + static_cast<int32_t>(segment) * side;
    }
    const int32_t output = begin_of<Scalar>(p, tile.channel);
#pragma unroll 1
    for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
      device::mbarrier_wait(shared.empty(ring.stage), ring.parity);
      const device::SharedAddress full = shared.full(ring.stage);
      device::mbarrier_arrive_expect(full, brought_bytes(config, sizeof(Scalar), p.boxes));
      const device::SharedAddress w = shared.start + ring.stage * stage_bytes(config),
                                  x = w + config.blocks * block_bytes;
      const int32_t channel = chunk * side;
#pragma unroll
      for (int s = 0; s < segments; ++s) {
        if (s >= p.boxes) break;
        const int32_t at[] = {Last ? channel : position[s], Last ? position[s] : channel, tile.group, image[s], 0};
        device::box_load(x + s * bytes, p.x_map, at, full);
      }
#pragma unroll
      for (int m = 0; m < config.rows() / side; ++m) {
        const int32_t at[] = {output + m * side, channel, tile.group, 0, 0};
        device::box_load(w + m * bytes, p.w_map, at, full);
      }
      ring.advance(stages);
    }
  }
}

// The taps of a row or column of y, in a word: how many, which is less than 256, and in what is staged, bytes from the
// first tap and a tile's first position to theirs; the next ones are at equal distances.
CONVT_DEVICE uint32_t word_of(const Taps<int32_t>& taps, int32_t of_tap, int32_t of_position, int32_t first_position) {
  if (taps.count <= 0) return 0;
  const int32_t at = taps.tap * of_tap + (taps.position - first_position) * of_position;
  return static_cast<uint32_t>(at) << 8 | static_cast<uint32_t>(taps.count);
}
CONVT_DEVICE int32_t count_of(uint32_t word) { return static_cast<int32_t>(word & 0xff); }
CONVT_DEVICE uint32_t offset_of(uint32_t word) { return word >> 8; }

// By all threads that share the tile.
template <int Row>
CONVT_DEVICE void find_taps(const Params& p, const Shared<Row>& shared, const Tile& tile, int32_t group,
                            int32_t thread) {
  const int32_t row = tile.first_output_row(p), column = tile.first_output_column(p);
  constexpr int32_t threads = configs[Row].tile_threads();
  for (int32_t i = thread; i < smaller(p.rows, p.h.out - row); i += threads) {
    if (row + i < 0) continue;
    const uint32_t word =
        word_of(taps_of(p.h, p.stride_h, row + i), p.kernel_row_pitch, 4 * p.row_pitch, tile.first_row(p));
    device::store_shared_4(shared.rows(group) + static_cast<uint32_t>(4 * i), __uint_as_float(word));
  }
  // A row may end with half a pair.
  const int32_t columns = smaller(p.columns, p.w_axis.out - column);
  for (int32_t i = thread; i < columns + columns % 2; i += threads) {
    if (column + i < 0) continue;
    const uint32_t word =
        i < columns ? word_of(taps_of(p.w_axis, p.stride_w, column + i), p.tap_pitch, 4, tile.first_column(p)) : 0;
    device::store_shared_4(shared.columns(group) + static_cast<uint32_t>(4 * i), __uint_as_float(word));
  }
}

// Four lanes have a pair of columns each, side by side, of four channels; each gets the eight columns of one of them.
template <class Scalar>
CONVT_DEVICE uint4 exchange(const float (*sums)[2], int32_t lane) {
  uint32_t pair[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) pair[c] = pack(Scalar{}, sums[c][0], sums[c][1]);
  device::exchange<1, 2>(pair, lane);
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// Two outputs of a row, side by side, of each channel: where their taps are.
struct Pair {
  device::SharedAddress first;  // of the tile's first channel, of taps that are nowhere
  uint32_t of_row;
  uint2 of_columns;
  int32_t column;
  bool wanted;
};

// `Channels` of them that follow each other, of which `count` are outputs; what is summed of the others is nothing.
template <int Channels, bool Strict, bool Last, class Scalar, int Row>
CONVT_DEVICE void fold_channels(const Params& p, const Shared<Row>& shared, int32_t group, const Pair& pair,
                                int32_t channel, int32_t count, int32_t columns, Scalar* to, float& not_finite) {
  static_assert(Channels % 4 == 0, "biases are read four at a time");
  constexpr uint32_t pitch = 4 * configs[Row].columns;
  const auto row_step = static_cast<uint32_t>(p.h.tap_step * p.kernel_row_pitch - p.h.input_step * p.row_pitch * 4),
             column_step = static_cast<uint32_t>(p.w_axis.tap_step * p.tap_pitch - p.w_axis.input_step * 4);
  float sums[Channels][2];
#pragma unroll
  for (int c = 0; c < Channels; c += 4) {
    const uint4 biases =
        device::load_shared_16(shared.address_of_biases(group) + static_cast<uint32_t>(4 * (channel + c)));
    sums[c][0] = sums[c][1] = __uint_as_float(biases.x), sums[c + 1][0] = sums[c + 1][1] = __uint_as_float(biases.y);
    sums[c + 2][0] = sums[c + 2][1] = __uint_as_float(biases.z);
    sums[c + 3][0] = sums[c + 3][1] = __uint_as_float(biases.w);
  }
  const device::SharedAddress nowhere = pair.first + static_cast<uint32_t>(channel) * pitch;
  const int32_t row_taps = count_of(pair.of_row), left = count_of(pair.of_columns.x),
                right = count_of(pair.of_columns.y), most = larger(left, right);
  device::SharedAddress row = nowhere + offset_of(pair.of_row);
#pragma unroll 1
  for (int32_t j = 0; j < row_taps; ++j, row += row_step) {
    device::SharedAddress from[2] = {row + offset_of(pair.of_columns.x), row + offset_of(pair.of_columns.y)};
#pragma unroll 1
    for (int32_t l = 0; l < most; ++l, from[0] += column_step, from[1] += column_step) {
      // Beyond a column's last tap, something is read for nothing.
      const bool there[2] = {l < left, l < right};
      uint32_t v[Channels][2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const device::SharedAddress at = there[e] ? from[e] : nowhere;
#pragma unroll
        for (int c = 0; c < Channels; ++c) v[c][e] = device::load_shared_4(at + static_cast<uint32_t>(c) * pitch);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!there[e]) continue;
#pragma unroll
        for (int c = 0; c < Channels; ++c) sums[c][e] += __uint_as_float(v[c][e]);
      }
    }
  }
  if constexpr (Strict) {
#pragma unroll
    for (int c = 0; c < Channels; ++c) not_finite = fmaf(sums[c][0], 0.0f, fmaf(sums[c][1], 0.0f, not_finite));
  }
  if constexpr (Last) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int32_t stored = pair.wanted && pair.column + e < columns ? count : 0;
      float of_position[Channels];
#pragma unroll
      for (int c = 0; c < Channels; ++c) of_position[c] = sums[c][e];
      Scalar* const at = to + e * p.y_column_stride;
      if (p.store_width == 4) {
#pragma unroll
        for (int c = 0; c < Channels; c += 4) {
          if (c < stored) store<4>(at + c, of_position + c);
        }
      } else if (p.store_width == 2) {
#pragma unroll
        for (int c = 0; c < Channels; c += 2) {
          if (c < stored) store<2>(at + c, of_position + c);
        }
      } else {
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
          if (c < stored) store<1>(at + c * p.y_channel_stride, of_position + c);
        }
      }
    }
    return;
  }
  if constexpr (sizeof(Scalar) == 2) {
    if (p.store_width == 8) {
      const auto lane = static_cast<int32_t>(threadIdx.x) % 32, mine = lane % 4;
#pragma unroll
      for (int c = 0; c < Channels; c += 4) {
        const uint4 v = exchange<Scalar>(&sums[c], lane);
        if (pair.wanted && c + mine < count) {
          device::store_global_16(to + (c + mine) * p.y_channel_stride - 2 * mine, v.x, v.y, v.z, v.w);
        }
      }
      return;
    }
  }
  const int32_t stored = pair.wanted ? count : 0;
  if (p.store_width == 2) {
#pragma unroll
    for (int c = 0; c < Channels; ++c, to += p.y_channel_stride) {
      if (c < stored) store<2>(to, sums[c]);
    }
  } else {
    const int32_t second = pair.column + 1 < columns ? stored : 0;
#pragma unroll
    for (int c = 0; c < Channels; ++c, to += p.y_channel_stride) {
      if (c < stored) store<1>(to, &sums[c][0]);
      if (c < second) store<1>(to + 1, &sums[c][1]);
    }
  }
}

// Those of a pair's outputs again that are not finite, by their definition: an infinity is two parts, of which one is
// NaN. `to` is where the tile's first channel is written; `slice`: whose channels are this thread's.
template <class Scalar>
CONVT_DEVICE void correct(const Params& p, const Tile& tile, int32_t image, int32_t row, int32_t column, int32_t count,
                          int32_t channels, int32_t slice, Scalar* to) {
  const Scalar* const x = static_cast<const Scalar*>(p.x) + (tile.image + image) * p.x_batch_stride +
                          static_cast<int64_t>(tile.group) * p.channels * p.x_channel_stride;
  const Scalar* const w = static_cast<const Scalar*>(p.w) +
                          static_cast<int64_t>(tile.group) * p.channels * p.w_in_stride +
                          static_cast<int64_t>(tile.channel) * p.w_out_stride;
#pragma unroll 1
  for (int32_t first = slice * most_together; first < channels; first += p.slices * most_together) {
#pragma unroll 1
    for (int32_t i = 0; i < most_together * count; ++i) {
      const int32_t c = first + i / count, e = i % count;
      if (c >= channels) break;
      Scalar* const at = to + c * p.y_channel_stride + e * p.y_column_stride;
      float v = to_float(*at), bias = 0;
      if (v - v == 0) continue;
      if (p.bias != nullptr) {
        const int64_t channel = tile.group * p.out_channels + tile.channel + c;
        load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);
      }
      v = exact_output<Scalar, true>(p, x, w + c * p.w_out_stride, bias, row, column + e);
      store<1>(at, &v);
    }
  }
}

// What the threads write that share a tile which is staged: its outputs.
template <class Scalar, bool Strict, int Row, bool Last>
CONVT_DEVICE void fold(const Params& p, const Shared<Row>& shared, const Tile& tile, int32_t group) {
  constexpr int32_t threads = configs[Row].tile_threads();
  const auto thread = static_cast<int32_t>(threadIdx.x) % threads;
  const int32_t lane = thread % 32;
  const int32_t channels = smaller(p.tile_channels, p.out_channels - tile.channel);
  const int32_t first_row = tile.first_output_row(p), rows = smaller(p.rows, p.h.out - first_row);
  const int32_t first_column = tile.first_output_column(p), columns = smaller(p.columns, p.w_axis.out - first_column);
  const int32_t images = smaller(p.images, p.batch - tile.image);
  auto* const y = static_cast<Scalar*>(p.y) + tile.image * p.y_batch_stride + first_row * p.y_row_stride +
                  first_column * (Last ? p.y_column_stride : 1) +
                  (static_cast<int64_t>(tile.group) * p.out_channels + tile.channel) * p.y_channel_stride;
  const int32_t units = static_cast<int32_t>(p.by_units.divisor) * p.slices;
#pragma unroll 1
  for (int32_t unit = thread; unit - lane < units; unit += threads) {
    auto column = static_cast<uint32_t>(unit);
    const auto slice = static_cast<int32_t>(device::uniform(p.by_units.divide(column)));
    uint32_t row = p.by_pairs.divide(column);
    const uint32_t image = p.by_rows.divide(row);
    Pair pair;
    pair.column = static_cast<int32_t>(2 * column);
    // All lanes of a warp stay together; those that have no outputs have no taps.
    const auto in_tile = static_cast<int32_t>(row);
    pair.wanted = static_cast<int32_t>(image) < images && in_tile < rows && first_row + in_tile >= 0 &&
                  pair.column < columns && first_column + pair.column >= 0;
    pair.of_row = pair.wanted ? device::load_shared_4(shared.rows(group) + 4 * row) : 0;
    pair.of_columns = pair.wanted ? device::load_shared_8(shared.columns(group) + 8 * column) : uint2{0, 0};
    pair.first = shared.staged(group) + 4 * image * static_cast<uint32_t>(p.image_pitch);
    Scalar* const to =
        y + image * p.y_batch_stride + row * p.y_row_stride + pair.column * (Last ? p.y_column_stride : 1);
    float not_finite = 0;  // or NaN, if an output is not finite
#pragma unroll 1
    for (int32_t channel = slice * most_together; channel < channels; channel += p.slices * most_together) {
      const int32_t count = channels - channel;
      Scalar* const at = to + channel * p.y_channel_stride;
      if (count > most_together / 2) {
        fold_channels<most_together, Strict, Last>(p, shared, group, pair, channel, count, columns, at, not_finite);
      } else {
        fold_channels<most_together / 2, Strict, Last>(p, shared, group, pair, channel, count, columns, at, not_finite);
      }
    }
    if (Strict && pair.wanted && not_finite != 0) {
      correct(p, tile, static_cast<int32_t>(image), first_row + static_cast<int32_t>(row), first_column + pair.column,
              smaller(2, columns - pair.column), channels, slice, to);
    }
  }
}

// Biases of a tile's channels, which arrive while it is multiplied.
template <class Scalar, int Row>
struct Biases {
  static constexpr int32_t rows = configs[Row].rows(), threads = configs[Row].tile_threads(),
                           of_thread = (rows + threads - 1) / threads;

  Scalar values[of_thread];

  CONVT_DEVICE Biases(const Params& p, const Tile& tile, int32_t thread) {
    const auto* const from =
        static_cast<const Scalar*>(p.bias) + static_cast<int64_t>(tile.group) * p.out_channels * p.bias_stride;
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int32_t channel = tile.channel + thread + i * threads;
      values[i] = {};
      if (p.bias != nullptr && channel < p.out_channels) values[i] = from[channel * p.bias_stride];
    }
  }

  CONVT_DEVICE void store(float* to, int32_t thread) const {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      if (thread + i * threads < rows) to[thread + i * threads] = to_float(values[i]);
    }
  }
};

// By the consumers, if they share the block's only tile.
template <class Scalar, bool Strict, int Row, bool Last>
CONVT_DEVICE void consume_together(const Params& p, const Shared<Row>& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  Tile tile = Tile::of(p, static_cast<int32_t>(blockIdx.x));
  find_taps(p, shared, tile, group, thread);
  const Biases<Scalar, Row> biases(p, tile, thread);
  Products<Scalar, Strict, Row, Last> products{shared, group, thread % group_threads / 32, thread % 32, {}};
  products.clear();
  products.multiply(p, 0, [] {});
  if (Strict) tile = Tile::of(p, device::opaque(static_cast<int32_t>(blockIdx.x)));  // the products take all registers
  // Nobody reads the stages any more.
  device::named_barrier(1, consumers);
  products.stage(p, tile.channel * p.taps - begin_of<Scalar>(p, tile.channel));
  biases.store(shared.biases(group), thread);
  device::named_barrier(1, consumers);
  fold<Scalar, Strict, Row, Last>(p, shared, tile, group);
}

// By the consumers, every second tile each: its products, and its outputs.
template <class Scalar, bool Strict, int Row, bool Last>
CONVT_DEVICE void consume_in_turn(const Params& p, const Shared<Row>& shared) {
  constexpr Config config = configs[Row];
  const auto thread = static_cast<int32_t>(threadIdx.x) % group_threads;
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const int32_t lane = thread % 32;
  const auto grid = static_cast<int32_t>(gridDim.x);
  uint32_t turn = 0;
  int32_t row_tile = -1, column_tile = -1;  // whose taps are in the tables
  // Chunks of the block's tiles before this one, which are in the stages in turn.
  auto chunks_before = static_cast<uint32_t>(group * p.chunks);
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x) + group * grid; number < p.tiles; number += 2 * grid) {
    Tile tile = Tile::of(p, number);
    // Tiles that follow each other mostly have the same rows and columns.
    if (tile.row_tile != row_tile || tile.column_tile != column_tile) find_taps(p, shared, tile, group, thread);
    row_tile = tile.row_tile, column_tile = tile.column_tile;
    const Biases<Scalar, Row> biases(p, tile, thread);
    Products<Scalar, Strict, Row, Last> products{shared, group, thread / 32, lane, {}};
    products.clear();
    // A barrier knows the parity of its turn only: nobody may wait for a stage before the turn that precedes its own.
    const bool waits = turn + static_cast<uint32_t>(group) > 0;
    const uint32_t order = (turn + 1 - static_cast<uint32_t>(group)) & 1;
    if (waits) device::mbarrier_wait(shared.multiplies(group), order);
    ++turn;
    products.multiply(p, chunks_before, [&] { device::mbarrier_arrive_if(shared.multiplies(group ^ 1), lane == 0); });
    if (Strict) tile = Tile::of(p, device::opaque(number));  // the products take all registers
    if (staged_buffers(config) == 1 && waits) device::mbarrier_wait(shared.stages(group), order);
    products.stage(p, tile.channel * p.taps - begin_of<Scalar>(p, tile.channel));
    biases.store(shared.biases(group), thread);
    device::named_barrier(1 + group, group_threads);
    fold<Scalar, Strict, Row, Last>(p, shared, tile, group);
    if (staged_buffers(config) == 1) device::mbarrier_arrive(shared.stages(group ^ 1));
    // All threads have read: the next tile's tables may be written, and the tile be staged.
    device::named_barrier(1 + group, group_threads);
    chunks_before += static_cast<uint32_t>(2 * p.chunks);
  }
}

template <class Scalar, bool Strict, int Row, bool Last>
__global__ void __launch_bounds__(threads, 1) gemm_fold_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(
      consumers * consumer_registers(Strict) + producers * producer_registers(Strict) <= threads * launch_registers,
      "a warpgroup would wait for registers that nobody gives back");
  constexpr Config config = configs[Row];
  constexpr int start_barrier = 3, start_threads = consumers + 32;
  const Shared<Row> shared{device::dynamic_shared_address(), device::dynamic_shared_memory()};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // First of all data are asked for, by the warp that makes the barriers: it waits for nobody.
  if (thread >= consumers) {
    const bool copies = thread < start_threads;
    if (thread == consumers) {
      device::prefetch_tensor_map(p.x_map);
      device::prefetch_tensor_map(p.w_map);
#pragma unroll
      for (uint32_t stage = 0; stage < stages_of(config); ++stage) {
        device::mbarrier_init(shared.full(stage), 1);
        device::mbarrier_init(shared.empty(stage), config.tile_threads() / 32);
      }
#pragma unroll
      for (int32_t group = 0; group < 2 && !config.cooperative; ++group) {
        device::mbarrier_init(shared.multiplies(group), group_threads / 32);
        device::mbarrier_init(shared.stages(group), group_threads);
      }
      device::mbarrier_init_fence();
    }
    __syncwarp();
    if (copies) device::named_barrier_arrive(start_barrier, start_threads);
    device::fewer_registers<producer_registers(Strict)>();
    if (copies) copy_operands<Scalar, Row, Last>(p, shared);
    return;
  }
  device::more_registers<consumer_registers(Strict)>();
  device::named_barrier(start_barrier, start_threads);
  if constexpr (config.cooperative) {
    consume_together<Scalar, Strict, Row, Last>(p, shared);
  } else {
    consume_in_turn<Scalar, Strict, Row, Last>(p, shared);
  }
#endif
}

}  // namespace convt::gemm_fold_sm90
