#pragma once

#include <limits>

#include "../exact_output.h"
#include "../gemm_scatter/device.cuh"
#include "../load_if.h"
#include "params.h"

namespace convt::gemm_fold_rows_sm90 {

// A pair of stripes, one for each warpgroup, and the set of tiles that it is of. A stripe is some rows of an image, of
// a phase.
struct Pair {
  int32_t block, phase;                // their numbers are the set's
  int32_t group, channel;              // the first channel
  int32_t kind;                        // of the phase: 0 if it is one of the first, which may have a row more
  int32_t image, first_tile, present;  // the last pair of an image may lack the second

  template <int Row>
  CONVT_DEVICE static Pair of(const Params& p, int32_t number) {
    auto rest = static_cast<uint32_t>(number);
    Pair q;
    q.block = static_cast<int32_t>(p.block_pairs.divide(rest));
    const uint32_t of_first = static_cast<uint32_t>(p.phases_with_more) * p.phase_pairs[0].divisor;
    q.kind = rest < of_first ? 0 : 1;
    if (q.kind == 1) rest -= of_first;
    q.phase = static_cast<int32_t>(p.phase_pairs[q.kind].divide(rest)) + (q.kind == 1 ? p.phases_with_more : 0);
    auto channel_block = static_cast<uint32_t>(q.block);
    q.group = static_cast<int32_t>(p.channel_blocks.divide(channel_block));
    q.channel = static_cast<int32_t>(channel_block) * configs[Row].channels;
    q.image = static_cast<int32_t>(p.row_pairs[q.kind].divide(rest));
    q.first_tile = 2 * static_cast<int32_t>(rest);
    q.present = smaller(2, p.row_tiles[q.kind] - q.first_tile);
    return q;
  }

  CONVT_DEVICE int32_t set(const Params& p) const { return block * p.h.stride + phase; }
  CONVT_DEVICE int32_t phase_rows(const Params& p) const { return p.phase_rows[kind]; }
  // Of those of the phase the first one of a stripe.
  template <int Row>
  CONVT_DEVICE int32_t first_row(int32_t stripe) const {
    return (first_tile + stripe) * configs[Row].rows;
  }
};

// Where things are in shared memory.
template <int Row>
struct Shared : gemm_scatter::Barriers {
  static constexpr Config config = configs[Row];

  CONVT_DEVICE device::SharedAddress biases() const { return barriers + biases_at; }
  CONVT_DEVICE device::SharedAddress warp(int32_t number) const {
    return barriers + warps_at(config) + static_cast<uint32_t>(number * warp_bytes(config));
  }
  CONVT_DEVICE device::SharedAddress weights() const { return barriers + weights_at(config); }
  CONVT_DEVICE device::SharedAddress stages(const Params& p) const {
    return weights() + static_cast<uint32_t>(p.weight_bytes);
  }
};

// By one lane: the patches of every tile, or pair of tiles, in the order in which warpgroups take them.
template <int Row>
CONVT_DEVICE void copy_patches(const Params& p, const Shared<Row>& shared) {
  if (!device::elect()) return;
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.pairs; number += static_cast<int32_t>(gridDim.x)) {
    const Pair pair = Pair::of<Row>(p, number);
    const Phase phase = p.phases.of[pair.phase];
    const int32_t before = phase.top - (phase.count - 1) * p.h.input_step;
    const int32_t rows = (p.shares ? 2 : 1) * configs[Row].rows + (phase.count - 1) * p.h.input_step;
    const int32_t patches = p.shares ? 1 : pair.present;
#pragma unroll 1
    for (int32_t step = 0; step < p.steps; ++step) {
#pragma unroll 1
      for (int32_t g = 0; g < patches; ++g) {
        const int32_t row = pair.first_row<Row>(g) + before;
#pragma unroll 1
        for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
          device::mbarrier_wait(shared.empty(ring.stage), ring.parity);
          const device::SharedAddress full = shared.full(ring.stage);
          device::mbarrier_arrive_expect(full, static_cast<uint32_t>(rows * p.patch_row_bytes));
          device::SharedAddress to = shared.stages(p) + static_cast<uint32_t>(ring.stage * p.stage_bytes);
#pragma unroll 1
          for (int32_t r = 0; r < rows; ++r, to += static_cast<uint32_t>(p.patch_row_bytes)) {
            const int32_t at[] = {step * segment, chunk * p.chunk_products * k_of_product, row + r, pair.group,
                                  pair.image};
            device::box_load(to, p.x_map, at, full);
          }
          ring.advance(p.stages);
        }
      }
    }
  }
}

// By the consumers: the set's weights, as wgmma takes them with channels of y innermost, and its biases. Of 64 channels
// a block of rows of the product has one tap; of 32 it has two, of which rows r and r + 8 of a warp's 16 are one
// channel's, so that a lane has both.
template <class Scalar, int Row>
CONVT_DEVICE void bring_weights(const Params& p, const Shared<Row>& shared, const Pair& set, int32_t thread) {
  constexpr Config config = configs[Row];
  constexpr int taps = config.taps, channels = config.channels, together = 4;
  const Phase phase = p.phases.of[set.phase];
  const auto* const w = static_cast<const Scalar*>(p.w) +
                        (static_cast<int64_t>(set.group) * p.channels * p.w_in_stride + set.channel * p.w_out_stride);
  const int32_t all = p.products * k_of_product * channels;
#pragma unroll 1
  for (int32_t i = 0; i < phase.count; ++i) {
    const int64_t kernel_row = (phase.tap + i * p.h.tap_step) * p.w_row_stride;
#pragma unroll 1
    for (int32_t first = thread; first < all; first += together * consumers) {
      uint32_t values[together][taps];
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const int32_t at = first + n * consumers, in = at / channels, out = at % channels;
        const bool there = in < p.channels && set.channel + out < p.out_channels;
        const Scalar* const from = w + (in * p.w_in_stride + out * p.w_out_stride + kernel_row);
#pragma unroll
        for (int t = 0; t < taps; ++t) values[n][t] = there ? from[t * p.w_column_stride].bits : 0;
      }
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const int32_t at = first + n * consumers, in = at / channels, out = at % channels;
        if (at >= all) break;
        const device::SharedAddress of_channel =
            shared.weights() +
            static_cast<uint32_t>((i * p.products + in / k_of_product) * config.blocks() * product_bytes +
                                  in % k_of_product * row_bytes);
        constexpr int of_block = 64 / channels;
#pragma unroll
        for (int t = 0; t < config.blocks() * of_block; ++t) {
          const int32_t row = of_block == 1 ? out : out / 8 * 16 + out % 8 + t % 2 * 8;
          device::store_shared_2(
              of_channel + static_cast<uint32_t>(t / of_block * product_bytes + (row / 8 ^ in % 8) * 16 + row % 8 * 2),
              t < taps ? values[n][t < taps ? t : 0] : 0);
        }
      }
    }
  }
  if (thread < channels) {
    const int32_t channel = set.channel + thread;
    float bias = 0;
    if (p.bias != nullptr && channel < p.out_channels)
      bias = to_float(static_cast<const Scalar*>(p.bias)[(set.group * p.out_channels + channel) * p.bias_stride]);
    reinterpret_cast<float*>(device::dynamic_shared_memory() + biases_at)[thread] = bias;
  }
}

template <class Scalar>
CONVT_DEVICE bool is_nan(uint32_t bits) {
  return (bits & 0x7fff) > (std::is_same_v<Scalar, Float16> ? 0x7c00u : 0x7f80u);
}

// Where a warp's part of a stripe is in y, in shared memory for what needs it seldom.
struct Place {
  uint64_t first;                      // of the first channel and row, where the first column of x has its first output
  int32_t image, channel, row;         // of y
  int32_t channels_there, rows_there;  // from those on

  template <int Row>
  CONVT_DEVICE static Place of(const Params& p, const Pair& pair, int32_t stripe, int32_t warp) {
    const int32_t of_group = pair.channel + warp * (configs[Row].channels / 4), row = pair.first_row<Row>(stripe);
    Place q;
    q.image = pair.image, q.channel = pair.group * p.out_channels + of_group;
    q.row = row * p.h.stride + pair.phase;
    q.channels_there = p.out_channels - of_group, q.rows_there = pair.phase_rows(p) - row;
    q.first = reinterpret_cast<uint64_t>(p.y) +
              2 * static_cast<uint64_t>(q.image * p.y_batch_stride + q.channel * p.y_channel_stride +
                                        q.row * p.y_row_stride - p.w_axis.padding);
    return q;
  }

  CONVT_DEVICE void keep(device::SharedAddress to) const {
    device::store_shared_16(to, static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                            static_cast<uint32_t>(image), static_cast<uint32_t>(channel));
    device::store_shared_16(to + 16, static_cast<uint32_t>(row), static_cast<uint32_t>(channels_there),
                            static_cast<uint32_t>(rows_there), 0);
  }
  CONVT_DEVICE static Place kept(device::SharedAddress from) {
    const uint4 a = device::load_shared_16(from), b = device::load_shared_16(from + 16);
    return {static_cast<uint64_t>(a.y) << 32 | a.x,
            static_cast<int32_t>(a.z),
            static_cast<int32_t>(a.w),
            static_cast<int32_t>(b.x),
            static_cast<int32_t>(b.y),
            static_cast<int32_t>(b.z)};
  }

  // Of the channel and the row that are so many further.
  CONVT_DEVICE uint64_t at(const Params& p, int32_t of_channel, int32_t of_row) const {
    return first + 2 * static_cast<uint64_t>(of_channel * p.y_channel_stride + of_row * p.h.stride * p.y_row_stride);
  }
  CONVT_DEVICE bool there(int32_t of_channel, int32_t of_row) const {
    return of_channel < channels_there && of_row < rows_there;
  }
};

// Elements from the multiple of 16 bytes before a row's first element. Where the row is staged, an odd one does not
// count: who reads the row shifts it.
CONVT_DEVICE int32_t misalignment(uint64_t place) { return static_cast<int32_t>(place >> 1 & 7); }

// What a warp stages of a tile and writes to y: rows of 8 channels, of each of which 4 lanes have 64 columns of x, then
// those of the tile's other rows, then the same of the 8 channels after them.
template <class Scalar, int Row>
struct Staged {
  static constexpr Config config = configs[Row];
  static constexpr int32_t width = segment * config.stride, pitch = staged_pitch(config), vectors = width / 8,
                           together = 32 / vectors, rows = staged_rows(config), unit = unit_of(config),
                           first_byte = 2 * before(config);
  static_assert(vectors <= 32 && rows / together <= 16 && rows / 8 <= 16);

  device::SharedAddress staged, carries, kept, lanes;

  CONVT_DEVICE explicit Staged(device::SharedAddress of_warp)
      : staged(of_warp),
        carries(of_warp + staged_bytes(config)),
        kept(carries + carried_bytes(config)),
        lanes(kept + place_bytes) {}

  CONVT_DEVICE device::SharedAddress row(int32_t number) const {
    return staged + static_cast<uint32_t>(number * pitch);
  }

  // Whose rows are staged where: of the warp's channels and of the tile's rows.
  struct Which {
    int32_t channel, row;
  };
  CONVT_DEVICE static Which which(int32_t number) {
    return {number / (8 * config.rows) * 8 + number % 8, number / 8 % config.rows};
  }

  // A lane writes the vector of the same number of every `together`-th row.
  struct Mine {
    uint64_t first;      // the vector of its first row, at the misalignment of the row
    uint32_t odd_there;  // of each of its rows: the misalignment's last bit, and 16 bits higher whether y has it
    // Of rows that it stages, 2 bits each, words of misalignment to a unit; 16 bits higher, of its rows, whether it is
    // a unit of 8 bytes more.
    uint32_t words_units;
  };
  // Of what all lanes have, so many bytes each, behind so many of each lane's.
  CONVT_DEVICE device::SharedAddress of_lane(int32_t lane, int32_t behind_bytes, int32_t bytes) const {
    return lanes + static_cast<uint32_t>(32 * behind_bytes + bytes * lane);
  }
  CONVT_DEVICE Mine mine(int32_t lane) const {
    const uint2 first = device::load_shared_8(of_lane(lane, 0, 8));
    return {static_cast<uint64_t>(first.y) << 32 | first.x, device::load_shared_4(of_lane(lane, 8, 4)),
            device::load_shared_4(of_lane(lane, 12, 4))};
  }

  // Whether a row may begin at an odd element.
  CONVT_DEVICE bool begin(const Params& p, const Place& place, int32_t lane) const {
    if (lane == 0) place.keep(kept);
    const int32_t lane_row = lane / vectors;
    const uint64_t first = place.at(p, lane_row, 0) + 16 * static_cast<uint64_t>(lane % vectors);
    // Elements of y, of which the last bits alone are asked for.
    const auto origin = static_cast<uint32_t>(place.first >> 1), of_channel = static_cast<uint32_t>(p.y_channel_stride),
               of_row = static_cast<uint32_t>(p.h.stride) * static_cast<uint32_t>(p.y_row_stride);
    uint32_t odd_there = 0, words_units = 0;
#pragma unroll
    for (int n = 0; n < rows / together; ++n) {
      const auto [channel, r] = which(n * together);
      const uint32_t at =
          origin + static_cast<uint32_t>(channel + lane_row) * of_channel + static_cast<uint32_t>(r) * of_row;
      odd_there |= (at & 1) << n | (place.there(channel + lane_row, r) ? 0x10000u : 0u) << n;
      if (unit == 4) words_units |= (at >> 2 & 1) << (16 + n);
    }
#pragma unroll
    for (int n = 0; n < rows / 8; ++n) {
      const auto [channel, r] = which(8 * n);
      const uint32_t at =
          origin + static_cast<uint32_t>(channel + lane / 4) * of_channel + static_cast<uint32_t>(r) * of_row;
      words_units |= (at >> 1 & (unit / 2 - 1)) << 2 * n;
    }
    device::store_shared_8(of_lane(lane, 0, 8), static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32));
    device::store_shared_4(of_lane(lane, 8, 4), __uint_as_float(odd_there));
    device::store_shared_4(of_lane(lane, 12, 4), __uint_as_float(words_units));
#pragma unroll
    for (int n = 0; n < rows / 8 && !config.carries_in_registers(); ++n) {
#pragma unroll
      for (int t = config.stride; t < config.taps; ++t) {
        if (lane % 4 == 3) device::store_shared_4(carried(n, t, lane), 0);
      }
    }
    __syncwarp();
    return __any_sync(0xffffffffu, (odd_there & 0xffff) != 0) != 0;
  }

  // Where the lane's row n of all that it stages has its first element, rounded down to a word.
  CONVT_DEVICE device::SharedAddress to_stage(int32_t n, int32_t lane, uint32_t words) const {
    return row(8 * n + lane / 4) + first_byte + 4 * (words >> 2 * n & (unit / 2 - 1));
  }

  // Of its row n and the tap t: what the last lane of each four has for the next columns.
  CONVT_DEVICE device::SharedAddress carried(int32_t n, int32_t t, int32_t lane) const {
    return carries + static_cast<uint32_t>(4 * (((t - config.stride) * (rows / 8) + n) * 8 + lane / 4));
  }

  // 16 bytes of y; of units of 8 bytes the second one is read first if `swaps`.
  template <bool may_be_odd>
  CONVT_DEVICE static void load_vector(device::SharedAddress from, bool swaps, bool odd, uint32_t (&to)[4]) {
    if constexpr (unit == 4) {
      const uint32_t first = swaps ? 8 : 0;
      const uint2 a = device::load_shared_8(from + first), b = device::load_shared_8(from + (8 - first));
      to[0] = swaps ? b.x : a.x, to[1] = swaps ? b.y : a.y, to[2] = swaps ? a.x : b.x, to[3] = swaps ? a.y : b.y;
    } else {
      const uint4 v = device::load_shared_16(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    if constexpr (may_be_odd) {
      const uint32_t last = device::load_shared_4(from - 4), which = odd ? 0x5432 : 0x7654;
#pragma unroll
      for (int i = 3; i > 0; --i) to[i] = __byte_perm(to[i - 1], to[i], which);
      to[0] = __byte_perm(last, to[0], which);
    }
  }

  // Vectors that are whole, of those that begin in these columns. `column`: of y, the first output of the first of x.
  // And what has no whole vector stays for the next columns.
  template <bool all_whole, bool may_be_odd>
  CONVT_DEVICE void write_vectors(const Params& p, const Mine& mine, int32_t column, int64_t bytes_before,
                                  int32_t lane) const {
    constexpr int32_t count = rows / together,
                      at_once = config.channels == 32 || (config.stride == 1 && !may_be_odd) ? 8 : 4;
    const uint64_t first_vector = mine.first + static_cast<uint64_t>(bytes_before);
    const device::SharedAddress from = row(lane / vectors) + static_cast<uint32_t>(first_byte + 16 * (lane % vectors));
    const int32_t my_column = column + 8 * (lane % vectors);
    const auto whole_columns = static_cast<uint32_t>(larger(p.w_axis.out - 7, 0));
    // (Their multiples are not kept in registers beside the sums.)
    int64_t of_channel = 2 * p.y_channel_stride, of_row = 2 * p.h.stride * p.y_row_stride;
    device::forget(of_channel), device::forget(of_row);
#pragma unroll
    for (int first = 0; first < count; first += at_once) {
      uint32_t v[at_once][4];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (first + i >= count) break;
        // Of each 16 lanes, 8 read the banks that the others do not.
        const uint32_t unit_more = unit == 4 ? mine.words_units >> (16 + first + i) & 1 : 0;
        load_vector<may_be_odd>(from + static_cast<uint32_t>((first + i) * together * pitch) - 8 * unit_more,
                                unit_more != static_cast<uint32_t>(lane / 8 & 1),
                                (mine.odd_there >> (first + i) & 1) != 0, v[i]);
      }
      if (all_whole && first + at_once >= count) {
        __syncwarp();
        keep<may_be_odd>(lane);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int n = first + i;
        if (n >= count) break;
        const auto [channel, r] = which(n * together);
        const uint64_t to = first_vector + static_cast<uint64_t>(channel * of_channel + r * of_row);
        bool whole = (mine.odd_there >> (16 + n) & 1) != 0;
        if (!all_whole) whole = whole && static_cast<uint32_t>(my_column - misalignment(to)) < whole_columns;
        store_words_if(whole, reinterpret_cast<void*>(to & ~uint64_t{15}), v[i], p.y_policy);
      }
    }
  }

  // What these are not: vectors that y has a part of, and of a row's last columns those behind them.
  CONVT_DEVICE void write_ends(const Params& p, int32_t column, int64_t bytes_before, bool last, int32_t lane) const {
    const Place place = Place::kept(kept);
#pragma unroll 1
    for (int32_t number = lane; number < rows; number += 32) {
      const auto [channel, r] = which(number);
      if (!place.there(channel, r)) continue;
      const uint64_t first = place.at(p, channel, r) + static_cast<uint64_t>(bytes_before);
      const int32_t misaligned = misalignment(first);
      // Elements from the first vector's on: where y's columns begin and end; and the vectors that have a part of them.
      // Of the last columns, the last vector that y has any of may be one of two.
      const int32_t begin = misaligned - column, end = begin + p.w_axis.out;
      const int32_t of_begin = begin >> 3, of_end = end >> 3;
      const bool in_last = last && of_end >= vectors;
      const int32_t vector[] = {of_begin, in_last ? vectors : of_end, vectors + 1};
      const bool has_begin = (begin & 7) != 0 && of_begin >= 0 && of_begin < vectors,
                 has_end = (end & 7) != 0 && of_end >= 0 && of_end < vectors && !(has_begin && of_end == of_begin);
      const bool writes[] = {has_begin, in_last || has_end, in_last && of_end > vectors};
      uint32_t w[3][4];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const int32_t v = writes[i] ? vector[i] : 0;
        load_vector<true>(row(number) + static_cast<uint32_t>(first_byte + 16 * v - 2 * (misaligned & (8 - unit))),
                          false, (misaligned & 1) != 0, w[i]);
      }
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (!writes[i]) continue;
        auto* const to = reinterpret_cast<uint16_t*>((first & ~uint64_t{15}) + 16 * static_cast<uint64_t>(vector[i]));
#pragma unroll
        for (int32_t e = 0; e < 8; ++e) {
          if (8 * vector[i] + e >= begin && 8 * vector[i] + e < end) {
            to[e] = static_cast<uint16_t>(w[i][e / 2] >> 16 * (e % 2));
          }
        }
      }
    }
  }

  // After a stripe: what a zero outside of x, or of another tap, has made NaN is computed by its definition.
  CONVT_DEVICE void repair(const Params& p, int32_t lane) const {
#pragma unroll 1
    for (int32_t number = lane; number < rows; number += 32) {
      const auto [of_channel, of_row] = which(number);
      uint64_t y = 0;
      {
        const Place place = Place::kept(kept);
        if (!place.there(of_channel, of_row)) continue;
        y = place.at(p, of_channel, of_row) + 2 * static_cast<uint64_t>(p.w_axis.padding);
      }
#pragma unroll 1
      for (int32_t column = 0; column < p.w_axis.out; ++column, y += 2) {
        auto* const to = reinterpret_cast<volatile uint16_t*>(y);
        if (!is_nan<Scalar>(*to)) continue;
        // (Where it is, is read once more: registers are few.)
        const Place place = Place::kept(kept);
        const int32_t channel = place.channel + of_channel, group = channel / p.out_channels;
        const auto* const x =
            static_cast<const Scalar*>(p.x) +
            (place.image * p.x_batch_stride + static_cast<int64_t>(group) * p.channels * p.x_channel_stride);
        const auto* const w =
            static_cast<const Scalar*>(p.w) + (static_cast<int64_t>(group) * p.channels * p.w_in_stride +
                                               (channel - group * p.out_channels) * p.w_out_stride);
        const float bias =
            p.bias == nullptr ? 0.0f : to_float(static_cast<const Scalar*>(p.bias)[channel * p.bias_stride]);
        const float sum = exact_output<Scalar, false>(p, x, w, bias, place.row + of_row * p.h.stride, column);
        *to = static_cast<uint16_t>(pack(Scalar{}, sum, sum));
      }
    }
  }

  // What has no whole vector stays for the next columns.
  template <bool may_be_odd>
  CONVT_DEVICE void keep(int32_t lane) const {
    constexpr int32_t at = 16;  // the row's second vector, and of an odd row the word before it
#pragma unroll
    for (int32_t first = 0; first < rows; first += 32) {
      if (first + lane >= rows) break;
      const device::SharedAddress to = row(first + lane);
      const uint4 v = device::load_shared_16(to + 2 * width + at);
      if constexpr (may_be_odd) {
        device::store_shared_4(to + at - 4, __uint_as_float(device::load_shared_4(to + 2 * width + at - 4)));
      }
      device::store_shared_16(to + at, v.x, v.y, v.z, v.w);
    }
  }
};

// By the consumers.
template <class Scalar, int Row>
CONVT_DEVICE void consume(const Params& p, const Shared<Row>& shared) {
  constexpr Config config = configs[Row];
  constexpr int taps = config.taps, stride = config.stride, rows = config.rows, halves = config.halves(),
                blocks = config.blocks(), columns = config.positions();
  constexpr uint32_t of_8_rows = 8 * row_bytes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const auto warp = static_cast<int32_t>(device::uniform(threadIdx.x / 32)) % (group_threads / 32);
  int32_t lane = thread % 32;
  Staged<Scalar, Row> out(shared.warp(group * (group_threads / 32) + warp));
  const device::MatrixDescriptor a_of_weights = device::matrix_descriptor(shared.weights(), of_8_rows);
  const device::MatrixDescriptor b_of_stages =
      device::matrix_descriptor(shared.stages(p), of_8_rows, static_cast<uint32_t>(p.patch_row_bytes));
  // The parity of the turn before: the first warpgroup's first one is not waited for.
  auto turn = static_cast<uint32_t>(group ^ 1);
  int32_t set = -1;  // of the weights
  device::Ring ring;
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.pairs; number += static_cast<int32_t>(gridDim.x)) {
    const Pair pair = Pair::of<Row>(p, number);
    if (pair.set(p) != set) {
      set = pair.set(p);
      device::named_barrier(1, consumers);
      bring_weights<Scalar, Row>(p, shared, pair, thread);
      device::fence_async_proxy();
      device::named_barrier(1, consumers);
    }
    const Phase phase = p.phases.of[pair.phase];
    const int32_t present = pair.present;
    if (group >= present) {  // nothing but turns
#pragma unroll 1
      for (int32_t step = 0; step < p.steps; ++step, turn ^= 1) {
        device::mbarrier_wait(shared.order(group), turn);
        __syncwarp();
        if (p.shares) device::mbarrier_arrive_if(shared.empty(ring.stage), lane == 0);
        device::mbarrier_arrive_if(shared.order(group ^ 1), lane == 0);
        ring.advance_by(p.chunks, p.stages);
      }
      continue;
    }
    device::forget(lane);
    const bool may_be_odd = out.begin(p, Place::of<Row>(p, pair, group, warp), lane);
    uint32_t any_nan = 0;
    float carries[halves * rows][taps - stride] = {};  // of the last lane of each four
    const float minus_zero =
        config.carries_in_registers()
            ? __uint_as_float(static_cast<uint32_t>(device::opaque(std::numeric_limits<int32_t>::min())))
            : 0.0f;
#pragma unroll 1
    for (int32_t step = 0; step < p.steps; ++step) {
      float sums[blocks][columns / 2];
      if (group == 1 && !p.shares) ring.advance_by(p.chunks, p.stages);
      device::mbarrier_wait(shared.order(group), turn);
      turn ^= 1;
      int32_t used = -1;
      uint32_t added_to = 0;
#pragma unroll 1
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
        device::mbarrier_wait(shared.full(ring.stage), ring.parity);
        const int32_t products = smaller(p.chunk_products, p.products - chunk * p.chunk_products);
        auto a_at = static_cast<uint32_t>(chunk * p.chunk_products * blocks * product_bytes) / 16;
        const int32_t first_row = (phase.count - 1) * p.h.input_step + (group == 1 && p.shares ? rows : 0);
        auto b_at = static_cast<uint32_t>(ring.stage * p.stage_bytes + first_row * p.patch_row_bytes) / 16;
        // From a product of a tap to the next, and from a tap's last one to the next tap's first.
        constexpr uint32_t a_of_product = blocks * product_bytes / 16, b_of_product = product_bytes / 16;
        const uint32_t a_of_tap = static_cast<uint32_t>(p.products - products + 1) * a_of_product;
        const uint32_t b_of_tap = 0u - static_cast<uint32_t>(p.h.input_step * p.patch_row_bytes) / 16 -
                                  static_cast<uint32_t>(products - 1) * b_of_product;
        int32_t k = 0;
#pragma unroll 1
        for (int32_t n = phase.count * products; n > 0; --n) {
          device::wgmma_fence();
          const auto b = device::with_start(b_of_stages, device::start_of(b_of_stages) + b_at);
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            const auto a = device::with_start(
                a_of_weights, device::start_of(a_of_weights) + a_at + static_cast<uint32_t>(m * product_bytes) / 16);
            device::wgmma_as_in_memory<device::wgmma_type<Scalar>, columns>(sums[m], a, b, added_to);
          }
          device::wgmma_commit();
          device::wgmma_wait<1>();
          added_to = 1;
          const bool next_tap = ++k == products;
          a_at += next_tap ? a_of_tap : a_of_product, b_at += next_tap ? b_of_tap : b_of_product;
          k = next_tap ? 0 : k;
        }
        // (What precedes the last product has been read.)
        if (used >= 0) device::mbarrier_arrive_if(shared.empty(used), lane == 0);
        used = ring.stage;
        ring.advance(p.stages);
      }
      device::mbarrier_arrive_if(shared.order(group ^ 1), lane == 0);
      device::wgmma_wait<0>();
      device::mbarrier_arrive_if(shared.empty(used), lane == 0);
      if (group == 0 && present == 2 && !p.shares) ring.advance_by(p.chunks, p.stages);
#pragma unroll
      for (int b = 0; b < blocks; ++b) device::wgmma_results(sums[b]);
      // (What follows from it is not kept in registers beside the sums.)
      device::forget(lane);
      const int32_t quad = lane % 4;
      // Of tap t and the lane's channel `half`, in the 8 columns j: one of its two.
      const auto at = [&](int t, int half, int j, int e) -> float& {
        return halves == 2 ? sums[t][4 * j + 2 * half + e] : sums[t / 2][4 * j + 2 * (t % 2) + e];
      };
      // Horner's scheme: of taps that are a stride apart, the further one's sums are those of the column before.
      const int32_t left = lane - quad + (quad + 3) % 4;
      const bool last = step == p.steps - 1;
      const uint32_t words = out.mine(lane).words_units;
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        const float bias = __uint_as_float(device::load_shared_4(
            shared.biases() + static_cast<uint32_t>(4 * (warp * (config.channels / 4) + half * 8 + lane / 4))));
#pragma unroll
        for (int r = 0; r < rows; ++r) {
#pragma unroll
          for (int t = taps - 1; t >= stride; --t) {
            float& carry = carries[half * rows + r][t - stride];
            const device::SharedAddress carried = out.carried(half * rows + r, t, lane);
            float before_all = 0;
            if constexpr (config.carries_in_registers()) {
              before_all = carry;
            } else {
              if (quad == 3) before_all = __uint_as_float(device::load_shared_4(carried));
            }
#pragma unroll
            for (int j = 8 * r; j < 8 * r + 8; ++j) {
              const float before_8 = j % 8 == 0 ? before_all : at(t, half, j % 8 == 0 ? j : j - 1, 1);
              const float got = device::shuffle(quad == 3 ? before_8 : at(t, half, j, 1), left);
              at(t - stride, half, j, 0) += got, at(t - stride, half, j, 1) += at(t, half, j, 0);
            }
            if constexpr (config.carries_in_registers()) {
              // (A sum of its own: the same register would be read while the next tile's sums are made.)
              carry = at(t, half, 8 * r + 7, 1) + minus_zero;
            } else {
              if (quad == 3) device::store_shared_4(carried, at(t, half, 8 * r + 7, 1));
            }
          }
          const device::SharedAddress row = out.to_stage(half * rows + r, lane, words),
                                      to = row + static_cast<uint32_t>(4 * stride * quad);
          const auto stage = [&](device::SharedAddress where, float low, float high) {
            const uint32_t word = pack(Scalar{}, low + bias, high + bias);
            any_nan = device::max_or_nan_pair<Scalar>(any_nan, word);
            device::store_shared_4(where, __uint_as_float(word));
          };
#pragma unroll
          for (int j = 8 * r; j < 8 * r + 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2 * stride; i += 2) {
              stage(to + static_cast<uint32_t>(2 * (8 * stride * (j - 8 * r) + i)), at(i % stride, half, j, i / stride),
                    at((i + 1) % stride, half, j, (i + 1) / stride));
            }
          }
          // Outputs that are behind the last column's own.
          if (last && quad == 3) {
            const auto of_last = [&](int i) {
              return i < taps - stride ? at(i < taps - stride ? i + stride : 0, half, 8 * r + 7, 1) : 0.0f;
            };
#pragma unroll
            for (int i = 0; i < most_behind; i += 2) {
              stage(row + static_cast<uint32_t>(2 * (segment * stride + i)), of_last(i), of_last(i + 1));
            }
          }
        }
      }
      __syncwarp();
      const int32_t column = step * segment * stride - p.w_axis.padding;
      const int64_t bytes_before = static_cast<int64_t>(step) * (2 * segment * stride);
      const auto mine = out.mine(lane);
      if (!last && column >= 7 && column + out.width <= p.w_axis.out) [[likely]] {
        may_be_odd ? out.template write_vectors<true, true>(p, mine, column, bytes_before, lane)
                   : out.template write_vectors<true, false>(p, mine, column, bytes_before, lane);
      } else {
        out.template write_vectors<false, true>(p, mine, column, bytes_before, lane);
        out.write_ends(p, column, bytes_before, last, lane);
        __syncwarp();
        if (!last) out.template keep<true>(lane);
      }
      __syncwarp();
    }
    if (__any_sync(0xffffffffu, is_nan<Scalar>(any_nan) || is_nan<Scalar>(any_nan >> 16))) {
      out.repair(p, lane);
      __syncwarp();
    }
  }
}

template <class Scalar, int Row>
__global__ void __launch_bounds__(threads, 1) gemm_fold_rows_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const Shared<Row> shared{{device::dynamic_shared_address()}};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int start_barrier = 2;
  if (thread >= consumers) {
    device::fewer_registers<other_registers>();
    if (thread >= consumers + 32) return;
    if (thread == consumers) {
      device::prefetch_tensor_map(p.x_map);
      shared.template init<most_stages>((p.shares ? consumers : group_threads) / 32);
    }
    __syncwarp();
    device::named_barrier_arrive(start_barrier, consumers + 32);
    copy_patches<Row>(p, shared);
    return;
  }
  device::more_registers<consumer_registers>();
  device::named_barrier(start_barrier, consumers + 32);
  consume<Scalar, Row>(p, shared);
#endif
}

}  // namespace convt::gemm_fold_rows_sm90
