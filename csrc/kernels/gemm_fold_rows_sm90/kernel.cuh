#pragma once

#include "../exact_output.h"
#include "../gemm_scatter/device.cuh"
#include "params.h"

namespace convt::gemm_fold_rows_sm90 {

// The set of tiles that has a pair of stripes.
struct Set {
  int32_t number, pair;  // the pair's number in it
  int32_t group, channel, phase;  // the first channel
  int32_t phase_rows, row_tiles, stripes;

  template <int Row>
  CONVT_DEVICE static Set of(const Params& p, int32_t pair) {
    Set s{};
#pragma unroll 1
    for (;; ++s.number) {
      s.phase = s.number % p.h.stride;
      s.phase_rows = (larger(p.h.out - s.phase, 0) + p.h.stride - 1) / p.h.stride;
      s.row_tiles = (s.phase_rows + configs[Row].rows - 1) / configs[Row].rows;
      s.stripes = p.batch * s.row_tiles;
      const int32_t pairs = (s.stripes + 1) / 2;
      if (pair < pairs) break;
      pair -= pairs;
    }
    s.pair = pair;
    const int32_t block = s.number / p.h.stride;
    s.group = block / p.channel_blocks, s.channel = block % p.channel_blocks * configs[Row].channels;
    return s;
  }

  CONVT_DEVICE int32_t first_stripe() const { return 2 * pair; }
  // Stripes of the pair: the last one of a set may lack the second.
  CONVT_DEVICE int32_t present() const { return smaller(2, stripes - first_stripe()); }
};

// Rows of an image, from one of those of the phase on.
struct Stripe {
  int32_t image, row;

  template <int Row>
  CONVT_DEVICE static Stripe of(const Set& set, int32_t number) {
    const int32_t image = number / set.row_tiles;
    return {image, (number - image * set.row_tiles) * configs[Row].rows};
  }
};

// Where things are in shared memory.
template <int Row>
struct Shared : gemm_scatter::Barriers {
  static constexpr Config config = configs[Row];

  CONVT_DEVICE device::SharedAddress staged_full(int32_t group) const {
    return barriers + static_cast<uint32_t>(8 * (2 * most_stages + 2 + group));
  }
  CONVT_DEVICE device::SharedAddress staged_empty(int32_t group) const {
    return barriers + static_cast<uint32_t>(8 * (2 * most_stages + 4 + group));
  }
  CONVT_DEVICE device::SharedAddress biases() const { return barriers + biases_at; }
  // Of a warpgroup: what it stages, of a row and a channel; and what is added to the next columns.
  CONVT_DEVICE device::SharedAddress staged(int32_t group, int32_t number) const {
    return barriers + staged_at(config) +
           static_cast<uint32_t>(group * group_bytes(config) + number * staged_pitch(config));
  }
  CONVT_DEVICE device::SharedAddress carried(int32_t group, int32_t tap, int32_t number) const {
    return staged(group, staged_rows(config)) +
           static_cast<uint32_t>(4 * ((tap - config.stride) * staged_rows(config) + number));
  }
  CONVT_DEVICE device::SharedAddress weights() const { return barriers + weights_at(config); }
  CONVT_DEVICE device::SharedAddress stages(const Params& p) const {
    return weights() + static_cast<uint32_t>(p.weight_bytes);
  }

  // By one thread, before any other uses a barrier.
  CONVT_DEVICE void init_all() const {
    for (int32_t group = 0; group < 2; ++group) {
      device::mbarrier_init(staged_full(group), group_threads / 32);
      device::mbarrier_init(staged_empty(group), writers);
    }
    this->template init<most_stages>(group_threads / 32);
  }
};

// By one lane: the patches of every tile, in the order in which warpgroups take them.
template <int Row>
CONVT_DEVICE void copy_patches(const Params& p, const Shared<Row>& shared) {
  if (!device::elect()) return;
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto pair = static_cast<int32_t>(blockIdx.x); pair < p.pairs; pair += static_cast<int32_t>(gridDim.x)) {
    const Set set = Set::of<Row>(p, pair);
    const Phase phase = p.phases.of[set.phase];
    const int32_t present = set.present(), first = set.first_stripe();
    const int32_t before = phase.top - (phase.count - 1) * p.h.input_step;
    const int32_t rows = configs[Row].rows + (phase.count - 1) * p.h.input_step;
    const Stripe stripes[] = {Stripe::of<Row>(set, first), Stripe::of<Row>(set, first + 1)};
#pragma unroll 1
    for (int32_t step = 0; step < p.steps; ++step) {
#pragma unroll 1
      for (int32_t g = 0; g < present; ++g) {
        const int32_t image = g == 0 ? stripes[0].image : stripes[1].image;
        const int32_t row = (g == 0 ? stripes[0].row : stripes[1].row) + before;
#pragma unroll 1
        for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
          device::mbarrier_wait(shared.empty(ring.stage), ring.parity);
          const device::SharedAddress full = shared.full(ring.stage);
          device::mbarrier_arrive_expect(full, static_cast<uint32_t>(rows * p.patch_row_bytes));
          device::SharedAddress to = shared.stages(p) + static_cast<uint32_t>(ring.stage * p.stage_bytes);
#pragma unroll 1
          for (int32_t r = 0; r < rows; ++r, to += static_cast<uint32_t>(p.patch_row_bytes)) {
            const int32_t at[] = {step * segment, chunk * p.chunk_products * k_of_product, row + r, set.group, image};
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
CONVT_DEVICE void bring_weights(const Params& p, const Shared<Row>& shared, const Set& set, int32_t thread) {
  constexpr Config config = configs[Row];
  constexpr int taps = config.taps, channels = config.channels, together = taps > 4 ? 2 : 4;
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
          device::store_shared_2(of_channel + static_cast<uint32_t>(t / of_block * product_bytes +
                                                                    (row / 8 ^ in % 8) * 16 + row % 8 * 2),
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

// Where a stripe is in y.
struct Place {
  int32_t image, channel, row;         // the first ones of y
  int32_t channels_there, rows_there;  // from those on
  uint64_t first;                      // of those, where the first column of x has its first output

  CONVT_DEVICE Place(const Params& p, const Set& set, const Stripe& stripe)
      : image(stripe.image),
        channel(set.group * p.out_channels + set.channel),
        row(stripe.row * p.h.stride + set.phase),
        channels_there(p.out_channels - set.channel),
        rows_there(set.phase_rows - stripe.row),
        first(reinterpret_cast<uint64_t>(p.y) +
              2 * static_cast<uint64_t>(image * p.y_batch_stride + channel * p.y_channel_stride + row * p.y_row_stride -
                                        p.w_axis.padding)) {}

  // Of a channel and a row of the stripe.
  CONVT_DEVICE uint64_t at(const Params& p, int32_t of_channel, int32_t of_row) const {
    return first + 2 * static_cast<uint64_t>(of_channel * p.y_channel_stride + of_row * p.h.stride * p.y_row_stride);
  }
  CONVT_DEVICE bool there(int32_t of_channel, int32_t of_row) const {
    return of_channel < channels_there && of_row < rows_there;
  }
};

// Elements from the multiple of 16 bytes before a row's first element. The last one of an odd number does not count
// where the row is staged, in words: who reads it shifts it.
CONVT_DEVICE int32_t misalignment(uint64_t place) { return static_cast<int32_t>(place >> 1 & 7); }

// By the warps that write: every tile that is staged.
template <int Row>
CONVT_DEVICE void write_tiles(const Params& p, const Shared<Row>& shared, int32_t warp, int32_t lane) {
  constexpr Config config = configs[Row];
  constexpr int32_t width = segment * config.stride, vectors = width / 8, together = 32 / vectors;
  static_assert(vectors <= 32 && config.channels % together == 0);
  uint32_t parity[2] = {0, 0};
#pragma unroll 1
  for (auto pair = static_cast<int32_t>(blockIdx.x); pair < p.pairs; pair += static_cast<int32_t>(gridDim.x)) {
    const Set set = Set::of<Row>(p, pair);
#pragma unroll 1
    for (int32_t step = 0; step < p.steps; ++step) {
#pragma unroll 1
      for (int32_t group = 0; group < set.present(); ++group) {
        const Place place(p, set, Stripe::of<Row>(set, set.first_stripe() + group));
        const bool last = step == p.steps - 1;
        const int32_t column = step * width - p.w_axis.padding;
        device::mbarrier_wait(shared.staged_full(group), group == 0 ? parity[0] : parity[1]);
        (group == 0 ? parity[0] : parity[1]) ^= 1;
#pragma unroll 1
        for (int32_t n = warp; n < staged_rows(config) / together; n += writers) {
          const int32_t number = n * together + lane / vectors, channel = number % config.channels,
                        r = number / config.channels;
          const uint64_t first =
              place.at(p, channel, r) + 2 * static_cast<uint64_t>(static_cast<int64_t>(step) * width);
          const int32_t misaligned = misalignment(first);
          const device::SharedAddress from = shared.staged(group, number);
          const uint32_t which = (misaligned & 1) != 0 ? 0x5432 : 0x7654;
          // 16 bytes of y, the vector `v` from the multiple before the row's beginning on.
          const auto load = [&](int32_t v, uint32_t (&to)[4]) {
            const device::SharedAddress at = from + static_cast<uint32_t>(2 * (8 * v + before));
            const uint4 w = device::load_shared_16(at);
            const uint32_t left = device::load_shared_4(at - 4);
            to[0] = __byte_perm(left, w.x, which), to[1] = __byte_perm(w.x, w.y, which);
            to[2] = __byte_perm(w.y, w.z, which), to[3] = __byte_perm(w.z, w.w, which);
          };
          const auto store = [&](int32_t v, const uint32_t (&w)[4]) {
            const int32_t begin = column - misaligned + 8 * v;  // of y
            auto* const to = reinterpret_cast<uint16_t*>((first & ~uint64_t{15}) + 16 * static_cast<uint64_t>(v));
            if (begin >= 0 && begin + 8 <= p.w_axis.out) [[likely]] {
              device::store_global_16(to, w, p.y_policy);
            } else {
#pragma unroll
              for (int32_t e = 0; e < 8; ++e) {
                if (begin + e >= 0 && begin + e < p.w_axis.out) to[e] = static_cast<uint16_t>(w[e / 2] >> 16 * (e % 2));
              }
            }
          };
          const bool there = place.there(channel, r);
          uint32_t words[4];
          load(lane % vectors, words);
          if (there) store(lane % vectors, words);
          if (last) {
            if (there && lane % vectors < 2) {
              load(vectors + lane % vectors, words);
              store(vectors + lane % vectors, words);
            }
          } else {
            // What has no whole vector stays for the next columns.
            __syncwarp();
            if (lane % vectors < 2) {
              const device::SharedAddress to = from + static_cast<uint32_t>(16 * (lane % vectors));
              const uint4 w = device::load_shared_16(to + 2 * width);
              device::store_shared_16(to, w.x, w.y, w.z, w.w);
            }
          }
        }
        __syncwarp();
        device::mbarrier_arrive_if(shared.staged_empty(group), lane == 0);
      }
    }
  }
}

// By a consuming warp, after a stripe: what a zero outside of x, or of another tap, has made NaN of its channels is
// computed by its definition.
template <class Scalar, int Row>
CONVT_DEVICE void repair(const Params& p, int32_t pair, int32_t group, int32_t warp, int32_t lane) {
  constexpr Config config = configs[Row];
  constexpr int32_t channels = config.channels / (group_threads / 32);
#pragma unroll 1
  for (int32_t number = lane; number < channels * config.rows; number += 32) {
    const int32_t of_channel = warp * channels + number % channels, of_row = number / channels;
    uint64_t y = 0;
    {
      device::forget(pair);
      const Set set = Set::of<Row>(p, pair);
      const Place place(p, set, Stripe::of<Row>(set, set.first_stripe() + group));
      if (!place.there(of_channel, of_row)) continue;
      y = place.at(p, of_channel, of_row) + 2 * static_cast<uint64_t>(p.w_axis.padding);
    }
#pragma unroll 1
    for (int32_t column = 0; column < p.w_axis.out; ++column, y += 2) {
      auto* const to = reinterpret_cast<volatile uint16_t*>(y);
      if (!is_nan<Scalar>(*to)) continue;
      // (Computed once more: registers are few.)
      device::forget(pair);
      const Set set = Set::of<Row>(p, pair);
      const Stripe stripe = Stripe::of<Row>(set, set.first_stripe() + group);
      const int32_t channel = set.channel + of_channel;
      const auto* const x =
          static_cast<const Scalar*>(p.x) +
          (stripe.image * p.x_batch_stride + static_cast<int64_t>(set.group) * p.channels * p.x_channel_stride);
      const auto* const w =
          static_cast<const Scalar*>(p.w) +
          (static_cast<int64_t>(set.group) * p.channels * p.w_in_stride + channel * p.w_out_stride);
      float bias = 0;
      if (p.bias != nullptr)
        bias = to_float(static_cast<const Scalar*>(p.bias)[(set.group * p.out_channels + channel) * p.bias_stride]);
      const int32_t row = (stripe.row + of_row) * p.h.stride + set.phase;
      const float sum = exact_output<Scalar, false>(p, x, w, bias, row, column);
      *to = static_cast<uint16_t>(pack(Scalar{}, sum, sum));
    }
  }
}

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
  const device::MatrixDescriptor a_of_weights = device::matrix_descriptor(shared.weights(), of_8_rows);
  const device::MatrixDescriptor b_of_stages =
      device::matrix_descriptor(shared.stages(p), of_8_rows, static_cast<uint32_t>(p.patch_row_bytes));
  // The parity of the turn before: the first warpgroup's first one is not waited for.
  auto turn = static_cast<uint32_t>(group ^ 1);
  int32_t set_number = -1;
  uint32_t staged = 1;  // the parity of what was staged last, of which there is nothing at first
  device::Ring ring;
#pragma unroll 1
  for (auto pair = static_cast<int32_t>(blockIdx.x); pair < p.pairs; pair += static_cast<int32_t>(gridDim.x)) {
    const Set set = Set::of<Row>(p, pair);
    if (set.number != set_number) {
      set_number = set.number;
      device::named_barrier(1, consumers);
      bring_weights<Scalar, Row>(p, shared, set, thread);
      device::fence_async_proxy();
      device::named_barrier(1, consumers);
    }
    const Phase phase = p.phases.of[set.phase];
    const int32_t present = set.present();
    if (group >= present) {  // nothing but turns
#pragma unroll 1
      for (int32_t step = 0; step < p.steps; ++step, turn ^= 1) {
        device::mbarrier_wait(shared.order(group), turn);
        __syncwarp();
        device::mbarrier_arrive_if(shared.order(group ^ 1), lane == 0);
        ring.advance_by(p.chunks, p.stages);
      }
      continue;
    }
    device::forget(lane);
    const Stripe stripe = Stripe::of<Row>(set, set.first_stripe() + group);
    uint32_t misaligned = 0;  // words of the lane's rows, 2 bits each
    {
      const Place place(p, set, stripe);
#pragma unroll
      for (int n = 0; n < halves * rows; ++n) {
        const int32_t channel = warp * (config.channels / 4) + n / rows * 8 + lane / 4;
        misaligned |= static_cast<uint32_t>(misalignment(place.at(p, channel, n % rows)) / 2) << 2 * n;
        if (lane % 4 == 3) {
#pragma unroll
          for (int t = stride; t < taps; ++t)
            device::store_shared_4(shared.carried(group, t, n % rows * config.channels + channel), 0);
        }
      }
    }
    uint32_t any_nan = 0;
#pragma unroll 1
    for (int32_t step = 0; step < p.steps; ++step) {
      float sums[blocks][columns / 2];
      if (group == 1) ring.advance_by(p.chunks, p.stages);
      device::mbarrier_wait(shared.order(group), turn);
      turn ^= 1;
      int32_t used = -1;
      uint32_t added_to = 0;
#pragma unroll 1
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
        device::mbarrier_wait(shared.full(ring.stage), ring.parity);
        const int32_t products = smaller(p.chunk_products, p.products - chunk * p.chunk_products);
        auto a_at = static_cast<uint32_t>(chunk * p.chunk_products * blocks * product_bytes) / 16;
        auto b_at = static_cast<uint32_t>(ring.stage * p.stage_bytes +
                                          (phase.count - 1) * p.h.input_step * p.patch_row_bytes) /
                    16;
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
      if (group == 0 && present == 2) ring.advance_by(p.chunks, p.stages);
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
      // What was staged before has been written.
      device::mbarrier_wait(shared.staged_empty(group), staged);
      staged ^= 1;
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        const float bias = __uint_as_float(device::load_shared_4(
            shared.biases() + static_cast<uint32_t>(4 * (warp * (config.channels / 4) + half * 8 + lane / 4))));
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const int32_t number = r * config.channels + warp * (config.channels / 4) + half * 8 + lane / 4;
#pragma unroll
          for (int t = taps - 1; t >= stride; --t) {
            const device::SharedAddress carried = shared.carried(group, t, number);
            const float before_all = __uint_as_float(device::load_shared_4(carried));
#pragma unroll
            for (int j = 8 * r; j < 8 * r + 8; ++j) {
              const float before_8 = j % 8 == 0 ? before_all : at(t, half, j % 8 == 0 ? j : j - 1, 1);
              const float got = device::shuffle(quad == 3 ? before_8 : at(t, half, j, 1), left);
              at(t - stride, half, j, 0) += got, at(t - stride, half, j, 1) += at(t, half, j, 0);
            }
            if (quad == 3) device::store_shared_4(carried, at(t, half, 8 * r + 7, 1));
          }
          // Where its first element is, rounded down to a word.
          const device::SharedAddress row = shared.staged(group, number) + 2 * before +
                                            4 * (misaligned >> 2 * (half * rows + r) & 3),
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
            for (int i = 0; i < before; i += 2) {
              stage(row + static_cast<uint32_t>(2 * (segment * stride + i)), of_last(i), of_last(i + 1));
            }
          }
        }
      }
      __syncwarp();
      device::mbarrier_arrive_if(shared.staged_full(group), lane == 0);
    }
    if (__any_sync(0xffffffffu, is_nan<Scalar>(any_nan) || is_nan<Scalar>(any_nan >> 16))) {
      device::mbarrier_wait(shared.staged_empty(group), staged);
      repair<Scalar, Row>(p, pair, group, warp, lane);
      __syncwarp();
    }
  }
}

template <class Scalar, int Row>
__global__ void __launch_bounds__(threads, 1) gemm_fold_rows_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int start_barrier = 4;
  // (Each role asks for it: registers are not the same before and after.)
  const auto shared_memory = [] {
    device::SharedAddress start = device::dynamic_shared_address();
    device::forget(start);
    return Shared<Row>{{start}};
  };
  if (thread >= consumers) {
    device::fewer_registers<other_registers>();
    const Shared<Row> shared = shared_memory();
    const auto warp = static_cast<int32_t>(device::uniform(threadIdx.x / 32)) - consumers / 32;
    if (warp == 0) {
      if (thread == consumers) {
        device::prefetch_tensor_map(p.x_map);
        shared.init_all();
      }
      __syncwarp();
      device::named_barrier_arrive(start_barrier, threads);
      copy_patches<Row>(p, shared);
    } else {
      device::named_barrier(start_barrier, threads);
      write_tiles<Row>(p, shared, warp - 1, thread % 32);
    }
    return;
  }
  device::more_registers<consumer_registers>();
  device::named_barrier(start_barrier, threads);
  consume<Scalar, Row>(p, shared_memory());
#endif
}

}  // namespace convt::gemm_fold_rows_sm90
