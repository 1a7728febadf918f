#pragma once

#include "../device.h"
#include "../ring.h"
#include "params.h"

namespace convt::gemm_scatter_rows_sm90 {

using device::SharedAddress;

// In shared memory: full and empty of each stage of x and of weights and of each piece that is staged, and whose turn
// it is to multiply.
struct Barriers {
  static constexpr uint32_t warps = group_threads / 32;

  SharedAddress barriers;

  CONVT_DEVICE SharedAddress x_full(int32_t stage) const { return at(stage); }
  CONVT_DEVICE SharedAddress x_empty(int32_t stage) const { return at(most_x_stages + stage); }
  CONVT_DEVICE SharedAddress w_full(int32_t stage) const { return at(2 * most_x_stages + stage); }
  CONVT_DEVICE SharedAddress w_empty(int32_t stage) const { return at(2 * most_x_stages + w_stages + stage); }
  CONVT_DEVICE SharedAddress piece_full(int32_t piece) const { return at(2 * most_x_stages + 2 * w_stages + piece); }
  CONVT_DEVICE SharedAddress piece_empty(int32_t piece) const { return piece_full(staged_pieces + piece); }
  CONVT_DEVICE SharedAddress order(int32_t group) const { return piece_full(2 * staged_pieces + group); }

  // By one thread, before any other uses a barrier.
  CONVT_DEVICE void init() const {
    const auto pairs = [](int32_t count, SharedAddress full, uint32_t arrivals, SharedAddress empty, uint32_t readers) {
#pragma unroll 1
      for (int32_t i = 0; i < count; ++i, full += 8, empty += 8) {
        device::mbarrier_init(full, arrivals), device::mbarrier_init(empty, readers);
      }
    };
    pairs(most_x_stages, x_full(0), fillers, x_empty(0), 2 * warps);
    pairs(w_stages, w_full(0), 1, w_empty(0), warps);
    pairs(staged_pieces, piece_full(0), group_threads, piece_empty(0), 1);
    pairs(1, order(0), warps, order(1), warps);
    device::mbarrier_init_fence();
  }

 private:
  CONVT_DEVICE SharedAddress at(int32_t number) const { return barriers + static_cast<uint32_t>(8 * number); }
};

// A block's tiles, which follow each other: all tiles of outputs of some rows, then those of the next rows.
struct Range {
  int32_t first, end;

  CONVT_DEVICE explicit Range(const Params& p)
      : first(bound(p, static_cast<int32_t>(blockIdx.x))), end(bound(p, static_cast<int32_t>(blockIdx.x) + 1)) {}

 private:
  CONVT_DEVICE static int32_t bound(const Params& p, int32_t block) {
    return static_cast<int32_t>(static_cast<int64_t>(p.tiles) * block / static_cast<int32_t>(gridDim.x));
  }
};

// Rows of x with all their tiles: a group's, from `row` of all images' on.
struct Rows {
  int32_t group, row;

  CONVT_DEVICE static Rows of(const Params& p, int32_t number) {
    auto rest = static_cast<uint32_t>(number);
    const auto group = static_cast<int32_t>(p.by_rows.divide(rest));
    return {group, static_cast<int32_t>(rest) * p.rows};
  }
};

// By one thread: weights of every chunk of every tile.
CONVT_DEVICE void copy_weights(const Params& p, const Barriers& barriers, SharedAddress stages) {
  if (!device::elect()) return;
  device::Ring ring = device::Ring::of_producer();
  const Range range(p);
#pragma unroll 1
  for (int32_t number = range.first; number < range.end; ++number) {
    auto rows = static_cast<uint32_t>(number);
    uint32_t output = rows;
    rows = p.by_outputs.divide(output);
    const int32_t group = Rows::of(p, static_cast<int32_t>(rows)).group;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
      device::mbarrier_wait(barriers.w_empty(ring.stage), ring.parity);
      const SharedAddress full = barriers.w_full(ring.stage);
      device::mbarrier_arrive_expect(full, stage_bytes);
#pragma unroll
      for (int m = 0; m < outputs / block_side; ++m) {
        const int32_t at[] = {static_cast<int32_t>(output) * outputs + m * block_side, chunk * block_side, group, 0, 0};
        device::box_load(stages + static_cast<uint32_t>(ring.stage * stage_bytes + m * block_bytes), p.w_map, at, full);
      }
      ring.advance(w_stages);
    }
  }
}

// By two warps, x of every chunk of the tiles' rows: a warp takes every second channel, a lane two positions of every
// 64, which are a word of x.
struct Filler {
  static constexpr int32_t words = blocks, warps = fillers / 32;

  const Params& p;
  const Barriers& barriers;
  SharedAddress stages;
  int32_t warp, lane;
  device::Ring ring = device::Ring::of_producer();
  const uint16_t* from[words];  // in the tile's first channel; null if x has none

  CONVT_DEVICE Filler(const Params& params, const Barriers& all, SharedAddress at, int32_t thread)
      : p(params),
        barriers(all),
        stages(at),
        warp(static_cast<int32_t>(device::uniform(thread / 32))),
        lane(thread % 32) {}

  CONVT_DEVICE void find(const Rows& rows) {
    const int32_t count = smaller(p.rows, p.all_rows - rows.row) * p.width;
    const auto* const x =
        static_cast<const uint16_t*>(p.x) + static_cast<int64_t>(rows.group) * p.in_channels * p.x_channel_stride;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const int32_t position = 2 * (lane + 32 * i);
      auto column = static_cast<uint32_t>(position);
      auto row = static_cast<uint32_t>(rows.row) + p.by_width.divide(column);
      const int64_t image = p.by_height.divide(row);
      const int32_t in_image = static_cast<int32_t>(row) * p.width + static_cast<int32_t>(column);
      from[i] = position < count ? x + image * p.x_batch_stride + in_image : nullptr;
    }
  }

  CONVT_DEVICE void copy(SharedAddress stage, int32_t chunk) {
    // Channels of 8 rows of the swizzle, which have their units in the same order each.
    constexpr int32_t of_8 = 8 / warps;
    static_assert(8 % warps == 0);
    const int32_t left = p.in_channels - chunk * block_side - warp;
    const auto zero = [&](const uint16_t* at) { return at != nullptr ? 1u : 0u; };
    const uint16_t* at[words];
#pragma unroll
    for (int i = 0; i < words; ++i) at[i] = from[i] + (chunk * block_side + warp) * p.x_channel_stride;
    SharedAddress to[of_8];
#pragma unroll
    for (int k = 0; k < of_8; ++k) {
      const int32_t channel = warp + k * warps;
      to[k] = stage + static_cast<uint32_t>(channel * row_bytes + (lane / 4 ^ channel) * 16 + lane % 4 * 4);
    }
#pragma unroll 2
    for (int32_t begin = 0; begin < block_side; begin += 8) {
#pragma unroll
      for (int k = 0; k < of_8; ++k) {
        const bool is = begin + k * warps < left;
#pragma unroll
        for (int i = 0; i < words; ++i) {
          device::cp_async_if<4>(is ? zero(from[i]) : 0, to[k] + static_cast<uint32_t>(i * block_bytes), at[i]);
          at[i] += warps * p.x_channel_stride;
        }
        to[k] += 8 * row_bytes;
      }
    }
  }

  CONVT_DEVICE void run() {
    const Range range(p);
#pragma unroll 1
    for (int32_t number = range.first; number < range.end;) {
      auto output = static_cast<uint32_t>(number);
      find(Rows::of(p, static_cast<int32_t>(p.by_outputs.divide(output))));
      number += static_cast<int32_t>(p.by_outputs.divisor - output);
#pragma unroll 1
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
        device::mbarrier_wait(barriers.x_empty(ring.stage), ring.parity);
        copy(stages + static_cast<uint32_t>(ring.stage * stage_bytes), chunk);
        device::cp_async_arrive(barriers.x_full(ring.stage));
        ring.advance(p.x_stages);
      }
    }
  }
};

// The part of an image that a tile's rows are: where it begins in what is staged of a channel, and in y; elements.
struct Part {
  int64_t place;
  int32_t first_row, start, length;

  CONVT_DEVICE Part(const Params& p, const Rows& rows, int32_t image) {
    const int32_t before = image * p.height, of_row = p.kernel_h * p.y_row;
    first_row = larger(rows.row, before);
    const int32_t end = smaller(smaller(rows.row + p.rows, p.all_rows), before + p.height);
    length = (end - first_row) * of_row;
    place = image * p.y_batch_stride + static_cast<int64_t>(first_row - before) * of_row;
    start = static_cast<int32_t>(round_up((first_row - rows.row) * of_row, sector)) +
            static_cast<int32_t>(of_image) * (image - image_of(p, rows.row)) + static_cast<int32_t>(place % sector);
  }

  CONVT_DEVICE static int32_t image_of(const Params& p, int32_t row) {
    auto rest = static_cast<uint32_t>(row);
    return static_cast<int32_t>(p.by_height.divide(rest));
  }
};

// Where positions of a tile are in what is staged of a channel: negative if they are not there. By all threads of a
// warpgroup, when they have read what is there.
CONVT_DEVICE void find_positions(const Params& p, const Rows& rows, int32_t thread, int32_t* places) {
#pragma unroll
  for (int32_t position = thread; position < gemm_scatter_rows_sm90::positions; position += group_threads) {
    auto column = static_cast<uint32_t>(position);
    const auto row_of_tile = static_cast<int32_t>(p.by_width.divide(column));
    const int32_t row = rows.row + row_of_tile;
    int32_t to = -1;
    if (row_of_tile < p.rows && row < p.all_rows) {
      const Part part(p, rows, Part::image_of(p, row));
      to =
          part.start + (row - part.first_row) * p.kernel_h * p.y_row + (static_cast<int32_t>(column) << p.log_kernel_w);
    }
    places[position] = to;
  }
}

// A piece: the first of its channels in y, and how many there are of them and of those behind it. What is staged of it
// is as far behind a sector of memory as it is in y.
struct Piece {
  uint16_t* y;
  int32_t left;

  // `number`: of pieces of a group's outputs.
  CONVT_DEVICE Piece(const Params& p, int32_t group, int32_t number) {
    const int32_t channel = number * p.channels;
    y = static_cast<uint16_t*>(p.y) + (static_cast<int64_t>(group) * p.out_channels + channel) * p.y_channel_stride;
    left = p.out_channels - channel;
  }
  CONVT_DEVICE void advance(const Params& p) { y += p.channels * p.y_channel_stride, left -= p.channels; }

  CONVT_DEVICE SharedAddress staged(SharedAddress at) const {
    return at + static_cast<uint32_t>(reinterpret_cast<uintptr_t>(y) % (2 * sector));
  }
};

// A channel of an image: the copy engine writes what whole vectors of 16 bytes there are, the thread the others.
CONVT_DEVICE void write_elements(uint16_t* to, SharedAddress from, int32_t length) {
  const auto behind = static_cast<int32_t>(reinterpret_cast<uintptr_t>(to) % 16 / 2);
  const int32_t begin = smaller((8 - behind) % 8, length), end = begin + (length - begin) / 8 * 8;
  if (begin < end) {
    device::bulk_store(to + begin, from + static_cast<uint32_t>(2 * begin), static_cast<uint32_t>(2 * (end - begin)));
  }
#pragma unroll 1
  for (int32_t e = begin > 0 ? 0 : end; e < length; e = e + 1 == begin ? end : e + 1) {
    to[e] = static_cast<uint16_t>(device::load_shared_2(from + static_cast<uint32_t>(2 * e)));
  }
}

// By a warp: the copy engine writes channels of an image, of whole vectors. One thread has it do so: its operands are
// the same for all lanes.
CONVT_DEVICE void write_part(const Params& p, uint16_t* to, SharedAddress from, int32_t length, int32_t channels) {
  if (!device::elect()) return;
#pragma unroll 8
  for (int32_t channel = 0; channel < channels; ++channel) {
    device::bulk_store(to, from, static_cast<uint32_t>(2 * length));
    to += p.y_channel_stride, from += static_cast<uint32_t>(2 * p.pitch);
  }
}

// By a warp: what the warpgroups stage of each tile goes to y. (Who multiplies would wait for the copy engine to take
// the copies.)
CONVT_DEVICE void write_pieces(const Params& p, const Barriers& barriers, SharedAddress start, int32_t lane) {
  const Range range(p);
  device::Ring ring;
  int32_t before = -1;
#pragma unroll 1
  for (int32_t number = range.first; number < range.end;) {
    auto output = static_cast<uint32_t>(number);
    const Rows rows = Rows::of(p, static_cast<int32_t>(p.by_outputs.divide(output)));
    const int32_t end = smaller(range.end, number + static_cast<int32_t>(p.by_outputs.divisor - output));
    const int32_t first = Part::image_of(p, rows.row),
                  images = Part::image_of(p, smaller(rows.row + p.rows, p.all_rows) - 1) - first + 1;
    // Each lane knows a part.
    const Part of_lane(p, rows, first + smaller(lane, images - 1));
    // Mostly they are one or two.
    const int64_t first_place = __shfl_sync(0xffffffffu, of_lane.place, 0),
                  second_place = __shfl_sync(0xffffffffu, of_lane.place, 1);
    const auto first_start = static_cast<uint32_t>(2 * __shfl_sync(0xffffffffu, of_lane.start, 0)),
               second_start = static_cast<uint32_t>(2 * __shfl_sync(0xffffffffu, of_lane.start, 1));
    const int32_t first_length = __shfl_sync(0xffffffffu, of_lane.length, 0),
                  second_length = __shfl_sync(0xffffffffu, of_lane.length, 1);
    Piece piece(p, rows.group, static_cast<int32_t>(output) * pieces);
#pragma unroll 1
    for (int32_t count = (end - number) * pieces; count > 0; --count) {
      const SharedAddress staged = piece.staged(start + static_cast<uint32_t>(staged_at + ring.stage * p.staged_bytes));
      const int32_t channels = smaller(p.channels, piece.left);
      device::mbarrier_wait(barriers.piece_full(ring.stage), ring.parity);
      if (p.whole_vectors) [[likely]] {
        write_part(p, piece.y + first_place, staged + first_start, first_length, channels);
        if (images > 1) {
          write_part(p, piece.y + second_place, staged + second_start, second_length, channels);
#pragma unroll 1
          for (int32_t i = 2; i < images; ++i) {
            write_part(p, piece.y + __shfl_sync(0xffffffffu, of_lane.place, i),
                       staged + static_cast<uint32_t>(2 * __shfl_sync(0xffffffffu, of_lane.start, i)),
                       __shfl_sync(0xffffffffu, of_lane.length, i), channels);
          }
        }
      } else {
#pragma unroll 1
        for (int32_t i = 0; i < images; ++i) {
          uint16_t* const to = piece.y + __shfl_sync(0xffffffffu, of_lane.place, i);
          const SharedAddress from = staged + static_cast<uint32_t>(2 * __shfl_sync(0xffffffffu, of_lane.start, i));
          const int32_t length = __shfl_sync(0xffffffffu, of_lane.length, i);
#pragma unroll 1
          for (int32_t channel = lane; channel < channels; channel += 32) {
            write_elements(to + channel * p.y_channel_stride, from + static_cast<uint32_t>(2 * channel * p.pitch),
                           length);
          }
        }
      }
      device::bulk_commit();
      // The one before has been read.
      device::bulk_wait_read<1>();
      __syncwarp();
      if (before >= 0) device::mbarrier_arrive_if(barriers.piece_empty(before), lane == 0);
      before = ring.stage;
      ring.advance(staged_pieces);
      piece.advance(p);
    }
    number = end;
  }
  device::bulk_wait();
}

// Stages a lane's sums of a piece: of some positions two columns of the kernel each, which lie together in y.
template <class Scalar, int piece, bool words>
CONVT_DEVICE void stage(const Params& p, SharedAddress staged, const int32_t (&places)[blocks][2], const float* biases,
                        int32_t lane, const float (&sums)[blocks][outputs / 2]) {
  const int32_t output = lane % 4 * 2;
  float bias[block_side / 8];
#pragma unroll
  for (int j = 0; j < block_side / 8; ++j) bias[j] = biases[(8 * j >> p.log_taps) + (output >> p.log_taps)];
  const SharedAddress of_lane = staged + static_cast<uint32_t>(place_of_output(p, output));
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (places[m][half] < 0) continue;
      const SharedAddress of_position = of_lane + static_cast<uint32_t>(2 * places[m][half]);
#pragma unroll
      for (int j = 0; j < block_side / 8; ++j) {
        const float* const v = &sums[m][piece * (block_side / 2) + j * 4 + 2 * half];
        const uint32_t word = pack(Scalar{}, v[0] + bias[j], v[1] + bias[j]);
        const SharedAddress to = of_position + static_cast<uint32_t>(p.place_of_8[j]);
        if constexpr (words) {
          device::store_shared_4(to, __uint_as_float(word));
        } else {
          device::store_shared_2(to, word), device::store_shared_2(to + 2, word >> 16);
        }
      }
    }
  }
}

// By a warpgroup: the products of every second tile.
template <class Scalar>
CONVT_DEVICE void consume(const Params& p, const Barriers& barriers, unsigned char* memory) {
  constexpr uint32_t of_8_rows = 8 * row_bytes;
  const auto thread = static_cast<int32_t>(threadIdx.x) % group_threads;
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const int32_t warp = thread / 32, lane = thread % 32;
  auto* const positions = reinterpret_cast<int32_t*>(memory + groups_at + group * group_bytes);
  auto* const biases = reinterpret_cast<float*>(positions + gemm_scatter_rows_sm90::positions);
  const SharedAddress start = device::dynamic_shared_address();
  const SharedAddress x_stages = start + static_cast<uint32_t>(p.stages_at),
                      first_w = x_stages + static_cast<uint32_t>(p.x_stages * stage_bytes);
  const device::MatrixDescriptor a_of_stages = device::matrix_descriptor(x_stages, of_8_rows),
                                 b_of_stages = device::matrix_descriptor(first_w, of_8_rows, block_bytes);
  const Range range(p);
  device::Ring x_of_rows;
  uint32_t turn = 0;
#pragma unroll 1
  for (int32_t number = range.first; number < range.end;) {
    auto output = static_cast<uint32_t>(number);
    const Rows rows = Rows::of(p, static_cast<int32_t>(p.by_outputs.divide(output)));
    const int32_t end = smaller(range.end, number + static_cast<int32_t>(p.by_outputs.divisor - output));
    const int32_t before = number - static_cast<int32_t>(output);
    int32_t of_lane[blocks][2] = {};  // in what is staged of a channel
    int32_t tile = number + ((number - range.first + group) & 1);
    const int32_t first = number;
    number = end;
    if (tile >= end) {
      // Its stages are the other warpgroup's alone. They are given back when they are there, not before.
      device::Ring x = x_of_rows;
#pragma unroll 1
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
        device::mbarrier_wait(barriers.x_full(x.stage), x.parity);
        device::mbarrier_arrive_if(barriers.x_empty(x.stage), lane == 0);
        x.advance(p.x_stages);
      }
    } else {
      find_positions(p, rows, thread, positions);
      device::named_barrier(1 + group, group_threads);
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          of_lane[m][half] = positions[m * block_side + warp * 16 + half * 8 + lane / 4];
        }
      }
    }
#pragma unroll 1
    for (; tile < end; tile += 2) {
      // It arrives while the tile is multiplied.
      Scalar bias = {};
      const int32_t of_tile = p.channels * pieces, channel = (tile - before) * of_tile + thread;
      if (p.bias != nullptr && thread < of_tile && channel < p.out_channels) {
        bias = static_cast<const Scalar*>(p.bias)[(rows.group * p.out_channels + channel) * p.bias_stride];
      }
      float sums[blocks][outputs / 2];
#pragma unroll
      for (int m = 0; m < blocks; ++m) device::wgmma_results(sums[m]);
      // A barrier knows the parity of its turn only: a warpgroup waits for weights when it is its turn.
      if (turn + static_cast<uint32_t>(group) > 0) {
        device::mbarrier_wait(barriers.order(group), (turn + 1 - static_cast<uint32_t>(group)) & 1);
      }
      ++turn;
      device::Ring x = x_of_rows;
      device::Ring w = device::Ring::after(static_cast<uint32_t>((tile - range.first) * p.chunks), w_stages);
      const bool first_of_rows = tile < first + 2, last_of_rows = tile + 2 >= end;
      int32_t x_used = 0, w_used = 0;
      uint32_t there = 0;  // the next chunk's weights
#pragma unroll 1
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
        if (first_of_rows) {
          device::mbarrier_wait(barriers.x_full(x.stage), x.parity);
          device::fence_async_proxy();
        }
        device::mbarrier_wait_unless(there, barriers.w_full(w.stage), w.parity);
        device::wgmma_fence();
        const auto a_at = static_cast<uint32_t>(x.stage * (stage_bytes / 16)),
                   b_at = static_cast<uint32_t>(w.stage * (stage_bytes / 16));
#pragma unroll
        for (int k = 0; k < block_side / k_of_product; ++k) {
          constexpr uint32_t of_product = k_of_product * row_bytes / 16;
          const auto b = device::with_start(b_of_stages, device::start_of(b_of_stages) + b_at + k * of_product);
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            const auto a = device::with_start(
                a_of_stages, device::start_of(a_of_stages) + a_at + m * (block_bytes / 16) + k * of_product);
            device::wgmma_as_in_memory<device::wgmma_type<Scalar>, outputs>(sums[m], a, b, chunk > 0 || k > 0);
          }
        }
        device::wgmma_commit();
        const int32_t x_now = x.stage, w_now = w.stage;
        x.advance(p.x_stages), w.advance(w_stages);
        // Asked for while it multiplies: the answer takes its time.
        there = chunk + 1 < p.chunks ? device::mbarrier_test(barriers.w_full(w.stage), w.parity) : 0;
        device::wgmma_wait<1>();
        device::mbarrier_arrive_if(barriers.w_empty(w_used), lane == 0 && chunk > 0);
        device::mbarrier_arrive_if(barriers.x_empty(x_used), lane == 0 && last_of_rows && chunk > 0);
        x_used = x_now, w_used = w_now;
      }
      device::mbarrier_arrive_if(barriers.order(group ^ 1), lane == 0);
      device::wgmma_wait<0>();
      device::mbarrier_arrive_if(barriers.w_empty(w_used), lane == 0);
      device::mbarrier_arrive_if(barriers.x_empty(x_used), lane == 0 && last_of_rows);
#pragma unroll
      for (int m = 0; m < blocks; ++m) device::wgmma_results(sums[m]);
      float* const of_turn = biases + (turn & 1) * most_channels;
      if (thread < of_tile) of_turn[thread] = to_float(bias);
      device::named_barrier(1 + group, group_threads);
      const auto stage_piece = [&]<int piece>() {
        const auto place =
            device::Ring::after(static_cast<uint32_t>((tile - range.first) * pieces + piece), staged_pieces);
        const SharedAddress to = Piece(p, rows.group, (tile - before) * pieces + piece)
                                     .staged(start + static_cast<uint32_t>(staged_at + place.stage * p.staged_bytes));
        // Until what was there before is written.
        device::mbarrier_wait(barriers.piece_empty(place.stage), place.parity ^ 1);
        const float* const of_piece = of_turn + piece * p.channels;
        if (p.words) [[likely]] {
          stage<Scalar, piece, true>(p, to, of_lane, of_piece, lane, sums);
        } else {
          stage<Scalar, piece, false>(p, to, of_lane, of_piece, lane, sums);
        }
        device::fence_async_proxy();
        device::mbarrier_arrive(barriers.piece_full(place.stage));
      };
      stage_piece.template operator()<0>();
      stage_piece.template operator()<1>();
    }
    x_of_rows.advance_by(p.chunks, p.x_stages);
  }
}

template <class Scalar>
__global__ void __launch_bounds__(threads, 1) gemm_scatter_rows_sm90_kernel(const __grid_constant__ Params p) {
  static_assert(consumers * consumer_registers + group_threads * other_registers <= 65536);
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const SharedAddress start = device::dynamic_shared_address();
  const Barriers barriers{start};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const SharedAddress x_stages = start + static_cast<uint32_t>(p.stages_at);
  constexpr int start_barrier = 3;
  if (thread >= consumers) {
    const int32_t warp = (thread - consumers) / 32;
    if (warp == 0) {
      // It makes the barriers, and waits for nobody.
      if (thread == consumers) {
        device::prefetch_tensor_map(p.w_map);
        barriers.init();
      }
      __syncwarp();
      device::named_barrier_arrive(start_barrier, threads);
    } else {
      device::named_barrier(start_barrier, threads);
    }
    device::fewer_registers<other_registers>();
    if (warp == 0) {
      copy_weights(p, barriers, x_stages + static_cast<uint32_t>(p.x_stages * stage_bytes));
    } else if (warp == 1) {
      write_pieces(p, barriers, start, thread % 32);
    } else {
      Filler(p, barriers, x_stages, thread - consumers - 64).run();
    }
    return;
  }
  device::named_barrier(start_barrier, threads);
  device::more_registers<consumer_registers>();
  consume<Scalar>(p, barriers, device::dynamic_shared_memory());
#endif
}

}  // namespace convt::gemm_scatter_rows_sm90
