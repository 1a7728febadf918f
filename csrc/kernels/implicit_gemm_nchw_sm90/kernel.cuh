#pragma once

#include "../implicit_gemm/epilogue.cuh"
#include "../load_if.h"
#include "../ring.h"
#include "params.h"

namespace convt::implicit_gemm_nchw_sm90 {

// Where things are in shared memory.
struct Shared {
  device::SharedAddress staged, patches, weights, barriers;

  CONVT_DEVICE explicit Shared(const Params& p) : staged(device::shared_address(device::dynamic_shared_memory())) {
    patches = staged + static_cast<uint32_t>(2 * p.staged_bytes);
    weights = patches + static_cast<uint32_t>(p.patch_stages * p.patch_bytes);
    barriers = weights + static_cast<uint32_t>(p.weight_stages * p.weight_bytes);
  }
  CONVT_DEVICE device::SharedAddress patch_full(uint32_t s) const { return barriers + 8 * s; }
  CONVT_DEVICE device::SharedAddress patch_empty(uint32_t s) const { return barriers + 8 * (most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_full(uint32_t s) const {
    return barriers + 8 * (2 * most_patch_stages + s);
  }
  CONVT_DEVICE device::SharedAddress weights_empty(uint32_t s) const {
    return barriers + 8 * (2 * most_patch_stages + most_weight_stages + s);
  }
};

struct Tile {
  int32_t channel_tile, column, row, set, group, image;  // columns and rows are positions

  CONVT_DEVICE static Tile of(const Params& p, int32_t number) {
    auto channels = static_cast<uint32_t>(number);
    uint32_t column = p.by_channels.divide(channels);
    uint32_t row = p.by_columns.divide(column);
    uint32_t set = p.by_rows.divide(row);
    uint32_t group = p.by_sets.divide(set);
    const uint32_t image = p.by_groups.divide(group);
    return {static_cast<int32_t>(channels),
            static_cast<int32_t>(column) * p.tile_columns,
            static_cast<int32_t>(row) * p.tile_rows,
            static_cast<int32_t>(set),
            static_cast<int32_t>(group),
            static_cast<int32_t>(image)};
  }
};

// The patches of x of a block, which are copied as soon as there is room for them.
template <class Scalar>
struct Patches {
  int32_t number, chunk = 0;  // of the next one
  int32_t at[tensor_map_rank];
  device::Ring ring = device::Ring::of_producer();

  CONVT_DEVICE explicit Patches(const Params& p) : number(static_cast<int32_t>(blockIdx.x)) { find(p); }
  CONVT_DEVICE bool done(const Params& p) const { return number >= p.tiles; }

  CONVT_DEVICE void copy(const Params& p, const Shared& shared) {
    const device::SharedAddress full = shared.patch_full(ring.stage);
    device::mbarrier_arrive_expect(full, static_cast<uint32_t>(p.patch_bytes));
    device::box_load(shared.patches + ring.stage * static_cast<uint32_t>(p.patch_bytes), p.x_map, at, full);
    ring.advance(p.patch_stages);
    at[2] += most_halves * k_bytes / static_cast<int32_t>(sizeof(Scalar));  // one half is all channels
    if (++chunk == p.chunks) {
      number += static_cast<int32_t>(gridDim.x), chunk = 0;
      find(p);
    }
  }

 private:
  // The first tile from `number` on whose outputs are reached by a tap.
  CONVT_DEVICE void find(const Params& p) {
    for (; number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
      const Tile tile = Tile::of(p, number);
      const DeviceSet& set = p.sets[tile.set];
      if (set.steps == 0) continue;
      at[0] = tile.column + set.column, at[1] = tile.row + set.row, at[2] = 0, at[3] = tile.group, at[4] = tile.image;
      return;
    }
  }
};

// By one lane: has the weights of each step copied, and x.
template <class Scalar, int Row>
CONVT_DEVICE void copy_operands(const Params& p, const Shared& shared) {
  constexpr Config config = configs[Row];
  const int32_t bytes_of_tap = tap_bytes(config, p.halves);
  Patches<Scalar> patches(p);
  if (!p.copies_x && !patches.done(p)) patches.copy(p, shared);
  device::wait_for_previous_kernel();
  if (p.copies_x && !patches.done(p)) patches.copy(p, shared);
  int32_t ahead = 1;  // patches that have been copied, from that of the next step on
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = Tile::of(p, number);
    const DeviceSet& set = p.sets[tile.set];
    if (set.steps == 0) continue;
    const unsigned char* w =
        p.packed + ((static_cast<int64_t>(tile.group) * p.by_channels.divisor + tile.channel_tile) * p.chunks * p.taps +
                    set.first_tap) *
                       bytes_of_tap;
#pragma unroll 1
    for (int32_t c = 0; c < p.chunks; ++c, w += (p.taps - set.taps) * bytes_of_tap) {
      if (ahead == 0) {
        device::mbarrier_wait(shared.patch_empty(patches.ring.stage), patches.ring.parity);
        patches.copy(p, shared);
        ++ahead;
      }
#pragma unroll 1
      for (int32_t s = set.first_step; s < set.first_step + set.steps; ++s) {
        const uint32_t bytes = taps_of(p.steps[s]) * bytes_of_tap;
        device::mbarrier_wait(shared.weights_empty(ring.stage), ring.parity);
        device::mbarrier_arrive_expect(shared.weights_full(ring.stage), bytes);
        device::bulk_load(shared.weights + ring.stage * static_cast<uint32_t>(p.weight_bytes), w, bytes,
                          shared.weights_full(ring.stage));
        w += bytes;
        ring.advance(p.weight_stages);
        // Nobody waits here for room: weights are wanted before the next patch.
        if (!patches.done(p) &&
            device::mbarrier_test(shared.patch_empty(patches.ring.stage), patches.ring.parity) != 0) {
          patches.copy(p, shared);
          ++ahead;
        }
      }
      --ahead;
    }
  }
}

// What a lane has of x for a product: of its two positions, in rows g and g + 8 of its warp's 16, with g = lane / 4,
// the channels t and t + 4, or of 16 bits 2t, 2t + 1, 2t + 8 and 2t + 9, with t = lane % 4. `from` is where the lane's
// first position is of its first channel, at an even column of the patch; `odd`: its positions begin a column further.
template <class Scalar>
CONVT_DEVICE void load_fragment(device::SharedAddress from, uint32_t channel_bytes, bool odd, uint32_t (&a)[4]) {
  if constexpr (sizeof(Scalar) == 4) {
    const device::SharedAddress further = from + 4 * channel_bytes;
    if (odd) {
      a[0] = device::load_shared_4(from + 4), a[1] = device::load_shared_4(from + 8);
      a[2] = device::load_shared_4(further + 4), a[3] = device::load_shared_4(further + 8);
    } else {
      const uint2 u = device::load_shared_8(from), v = device::load_shared_8(further);
      a[0] = u.x, a[1] = u.y, a[2] = v.x, a[3] = v.y;
    }
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const device::SharedAddress first = from + static_cast<uint32_t>(8 * k) * channel_bytes,
                                  second = first + channel_bytes;
      const uint32_t u = device::load_shared_4(first), v = device::load_shared_4(second);
      if (odd) {
        a[2 * k] = __byte_perm(u, v, 0x7632);
        a[2 * k + 1] = __byte_perm(device::load_shared_4(first + 4), device::load_shared_4(second + 4), 0x5410);
      } else {
        a[2 * k] = __byte_perm(u, v, 0x5410), a[2 * k + 1] = __byte_perm(u, v, 0x7632);
      }
    }
  }
}

// A warp's strip, and which one it is of those that lie on top of each other.
struct WarpPlace {
  int32_t strip, stack, lane;

  CONVT_DEVICE WarpPlace(const Params& p, int32_t warp, int32_t lane)
      : strip(warp & ((1 << p.log_strips) - 1)), stack(warp >> p.log_strips), lane(lane) {}
};

// What a lane writes of a tile: of each of the rows of its strip, two positions' outputs of all phases, which follow
// each other in y if the phases are all that there are.
template <Mode mode, int Row>
struct Outputs {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  static constexpr int values = 2 * config.phases;

  int32_t image, group, channel, channels;  // the lane's first channel of the group, and how many more there are
  int32_t row, rows, column, columns;       // its first outputs, and how many of them there are

  CONVT_DEVICE Outputs(const Params& p, const Tile& tile, const WarpPlace& w) {
    const DeviceSet& set = p.sets[tile.set];
    image = tile.image, group = tile.group;
    channel = tile.channel_tile * config.channels + w.lane % 4 * 2, channels = p.out_channels - channel;
    row = (tile.row + w.stack * config.rows) * p.h.stride + set.row_phase;
    rows = (p.h.out - row + p.h.stride - 1) / p.h.stride;
    column = (tile.column + w.strip * strip_columns + w.lane / 4 * 2) * p.v.stride + set.column_phase;
    columns = p.v.out - column;
  }

  // From the first output.
  CONVT_DEVICE int32_t column_of(const Params& p, int v) const {
    return v / config.phases * p.v.stride + v % config.phases;
  }

  // What a lane has of a row and a channel, which is c = 8 j + e.
  CONVT_DEVICE static void values_of(const float (&sums)[config.phases][config.rows][config.channels / 2], int r, int j,
                                     int e, float (&v)[values]) {
#pragma unroll
    for (int i = 0; i < values; ++i) v[i] = sums[i % config.phases][r][4 * j + i / config.phases * 2 + e];
  }

  // From registers. There is no branch among stores that follow each other: behind one the registers of an address are
  // written again before the store has read them, for which the next one waits.
  template <int Vector>
  CONVT_DEVICE void write(const Params& p, const float (&sums)[config.phases][config.rows][config.channels / 2]) const {
    Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                      (static_cast<int64_t>(group) * p.out_channels + channel) * p.y_channel_stride +
                      static_cast<int64_t>(row) * p.y_row_stride + column;
    const int64_t row_step = static_cast<int64_t>(p.h.stride) * p.y_row_stride;
    Scalar* to[2][config.rows];
#pragma unroll
    for (int r = 0; r < config.rows; ++r) to[0][r] = y + r * row_step, to[1][r] = to[0][r] + p.y_channel_stride;
#pragma unroll
    for (int j = 0; j < config.channels / 8; ++j) {
      if (8 * j >= channels) break;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int r = 0; r < config.rows; ++r) {
          float v[values];
          values_of(sums, r, j, e, v);
          const bool there = 8 * j + e < channels && r < rows;
#pragma unroll
          for (int i = 0; i < values; i += Vector) {
            const int32_t at = column_of(p, i);
            store_if<Vector>(there && at < columns, to[e][r] + at, v + i);
          }
          to[e][r] += 8 * p.y_channel_stride;
        }
      }
    }
  }

  // Those that are NaN again, by their definition. Beyond an edge of x are zeros, which times a weight that is not
  // finite are NaN. They are read from y, where this lane has written them.
  CONVT_DEVICE void correct(const Params& p) const {
#pragma unroll 1
    for (int32_t i = 0; i < config.channels / 4 * config.rows * values; ++i) {
      const int32_t v = i % values, r = i / values % config.rows, j = i / values / config.rows;
      const int32_t c = j / 2 * 8 + j % 2, at = column_of(p, v);
      if (c >= channels || r >= rows || at >= columns) continue;
      correct_output<mode, true>(p, group, image, channel + c, row + r * p.h.stride, column + at);
    }
  }
};

// The same where phases are merged: a lane has two neighbouring positions' outputs of two columns of the product that
// follow each other, which are channels or phases.
template <Mode mode, int Row>
struct MergedOutputs {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];

  // An output of the lane's first position, from the tile's first channel, and how far the second one's is from it.
  struct Place {
    int32_t channel, row, column;
  };

  const Params& p;
  int32_t image, group, channel, channels;  // the tile's first channel of the group, and how many it has
  int32_t row, column;                      // positions
  int32_t product_column;                   // the lane's first

  CONVT_DEVICE MergedOutputs(const Params& p, const Tile& tile, const WarpPlace& w) : p(p) {
    image = tile.image, group = tile.group;
    const auto of_tile = static_cast<int32_t>(config.channels / p.by_phases.divisor);
    channel = tile.channel_tile * of_tile, channels = smaller(of_tile, p.out_channels - channel);
    row = tile.row + w.stack * config.rows;
    column = tile.column + w.strip * strip_columns + w.lane / 4 * 2;
    product_column = w.lane % 4 * 2;
  }

  // Of a column of the product.
  CONVT_DEVICE Place place_of(int32_t n) const {
    auto phase = static_cast<uint32_t>(product_column + n);
    const auto of_channel = static_cast<int32_t>(p.by_phases.divide(phase));
    const auto row_phase = static_cast<int32_t>(p.by_column_phases.divide(phase));
    return {of_channel, row * p.h.stride + row_phase, column * p.v.stride + static_cast<int32_t>(phase)};
  }

  // `Vector` outputs side by side at once. Both columns of the product are of a row of y unless `Apart`.
  template <int Vector, bool Apart>
  CONVT_DEVICE void write(const float (&sums)[config.rows][config.channels / 2]) const {
    Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                      (static_cast<int64_t>(group) * p.out_channels + channel) * p.y_channel_stride;
    const int64_t row_step = static_cast<int64_t>(p.h.stride) * p.y_row_stride;
#pragma unroll
    for (int j = 0; j < config.channels / 8; ++j) {
#pragma unroll
      for (int e = 0; e < (Apart ? 2 : 1); ++e) {
        const Place at = place_of(8 * j + e);
        Scalar* const to =
            y + at.channel * p.y_channel_stride + static_cast<int64_t>(at.row) * p.y_row_stride + at.column;
#pragma unroll
        for (int r = 0; r < config.rows; ++r) {
          constexpr int values = Apart ? 2 : 4;
          float v[values];
#pragma unroll
          for (int i = 0; i < values; ++i) v[i] = sums[r][4 * j + (Apart ? 2 * i + e : i)];
          const bool there = at.channel < channels && at.row + r * p.h.stride < p.h.out;
#pragma unroll
          for (int i = 0; i < values; i += Vector) {
            const int32_t further = Apart ? i * p.v.stride : i / 2 * p.v.stride + i % 2;
            store_if<Vector>(there && at.column + further < p.v.out, to + (r * row_step + further), v + i);
          }
        }
      }
    }
  }

  // Those that are NaN again, by their definition: a phase that lacks a tap has a zero for it, which times an input
  // that is not finite is NaN.
  CONVT_DEVICE void correct() const {
#pragma unroll 1
    for (int32_t i = 0; i < config.channels / 2 * config.rows; ++i) {
      const int32_t half = i % 2, e = i / 2 % 2, r = i / 4 % config.rows, j = i / 4 / config.rows;
      const Place at = place_of(8 * j + e);
      const int32_t y_row = at.row + r * p.h.stride, y_column = at.column + half * p.v.stride;
      if (at.channel >= channels || y_row >= p.h.out || y_column >= p.v.out) continue;
      correct_output<mode, true>(p, group, image, channel + at.channel, y_row, y_column);
    }
  }
};

// A step of `Taps` taps: the products of a chunk's halves. Products read registers until they are done: those of
// one half are while the other's are loaded. Nothing is in flight from a step to the next: for registers of several
// numbers of taps in flight, ptxas has no room.
template <Mode mode, int Row, int Taps, int Halves>
CONVT_DEVICE void multiply(const Params& p, device::SharedAddress from, bool odd, device::MatrixDescriptor weights,
                           device::SharedAddress w, float (&sums)[configs[Row].rows][configs[Row].channels / 2]) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr uint32_t channels_of_half = k_bytes / sizeof(Scalar), weights_of_half = config.channels * k_bytes / 16;
  constexpr int rows = config.rows + Taps - 1;
  const auto row_bytes = static_cast<uint32_t>(p.row_bytes), channel_bytes = static_cast<uint32_t>(p.channel_bytes);
  uint32_t a[Halves][rows][4];
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    const device::SharedAddress x = from + static_cast<uint32_t>(half) * channels_of_half * channel_bytes;
    if (odd) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        load_fragment<Scalar>(x + static_cast<uint32_t>(r) * row_bytes, channel_bytes, true, a[half][r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        load_fragment<Scalar>(x + static_cast<uint32_t>(r) * row_bytes, channel_bytes, false, a[half][r]);
      }
    }
    device::wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < Taps; ++tap) {
      const auto b = device::with_start(weights, w + static_cast<uint32_t>(tap * Halves + half) * weights_of_half);
#pragma unroll
      for (int r = 0; r < config.rows; ++r) {
        device::wgmma_registers<config.channels, device::wgmma_type<Scalar>>(sums[r], a[half][r + tap], b);
      }
    }
    device::wgmma_commit();
  }
  device::wgmma_wait<0>();
}

CONVT_HOST_DEVICE constexpr int log2_of(int n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }

// Writes a tile through shared memory, row by row, so that its stores are whole lines but for a row's ends. A row of y
// begins anywhere, and lies in shared memory at the same distance from a multiple of 16 bytes. `slab` counts what has
// been staged.
template <Mode mode, int Row>
struct StagedWriter {
  using Scalar = typename Traits<mode>::Scalar;
  using Of = Outputs<mode, Row>;
  static constexpr Config config = configs[Row];
  static constexpr int element = static_cast<int>(sizeof(Scalar)), rows = staged_rows(config);
  static constexpr int parts = config.rows / rows, slabs = config.channels / staged_channels * parts;

  device::SharedAddress buffers;
  uint32_t slab = 0;

  // `Unit`: rows of y, and their ends, are at multiples of so many elements.
  template <int Unit>
  CONVT_DEVICE void write(const Params& p, const Tile& tile, const WarpPlace& w, int32_t thread,
                          const float (&sums)[config.phases][config.rows][config.channels / 2]) {
    const int32_t strips = 1 << p.log_strips;
    constexpr Config row_of_table = configs[Row];
    const int32_t pitch = staged_pitch(row_of_table, strips, element), line_bytes = pitch - vector_bytes;
    const int32_t log_vectors = p.log_strips + log2_of(strip_columns * config.phases * element / vector_bytes);
    const auto to_lane = static_cast<uint32_t>((w.stack * rows * staged_channels + w.lane % 4 * 2) * pitch +
                                               (w.strip * strip_columns + w.lane / 4 * 2) * config.phases * element);
    // Outputs of the tile, and their positions' rows.
    const int32_t column = tile.column * config.phases, columns = p.v.out - column;
    const int32_t row_phase = p.sets[tile.set].row_phase;
    const int32_t positions = (p.h.out - row_phase + p.h.stride - 1) / p.h.stride - tile.row;
    const int32_t channel = tile.channel_tile * config.channels;
    const int64_t row_step = static_cast<int64_t>(p.h.stride) * p.y_row_stride;
    Scalar* const y = static_cast<Scalar*>(p.y) + tile.image * p.y_batch_stride +
                      (static_cast<int64_t>(tile.group) * p.out_channels + channel) * p.y_channel_stride +
                      tile.row * row_step + static_cast<int64_t>(row_phase) * p.y_row_stride + column;
    const int32_t valid = smaller(columns, line_bytes / element) * element;  // a row may have 2^31 bytes
    const auto channel_bytes = static_cast<uint32_t>(p.y_channel_stride) * element,
               row_bytes = static_cast<uint32_t>(row_step) * element;
    const uint32_t lane_begins = address_of(y) + static_cast<uint32_t>(w.lane % 4 * 2) * channel_bytes +
                                 static_cast<uint32_t>(w.stack * config.rows) * row_bytes;
#pragma unroll 1
    for (int s = 0; s < slabs && channel + s / parts * staged_channels < p.out_channels; ++s, ++slab) {
      const device::SharedAddress buffer =
          buffers + static_cast<uint32_t>(slab % 2) * static_cast<uint32_t>(p.staged_bytes);
      const int32_t first_channel = s / parts * staged_channels, first_row = s % parts * rows;
      const uint32_t begins = lane_begins + static_cast<uint32_t>(first_channel) * channel_bytes +
                              static_cast<uint32_t>(first_row) * row_bytes;
      // Only what stages a slab is chosen by its number: sums are registers.
#pragma unroll
      for (int k = 0; k < slabs; ++k) {
        if (s != k) continue;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float v[Of::values];
            Of::values_of(sums, k % parts * rows + r, k / parts, e, v);
            const uint32_t line =
                begins + static_cast<uint32_t>(e) * channel_bytes + static_cast<uint32_t>(r) * row_bytes;
            stage<Unit>(
                buffer + to_lane + static_cast<uint32_t>((r * staged_channels + e) * pitch) + shift_of<Unit>(line), v);
          }
        }
      }
      device::named_barrier(1, consumers);
      // Of a line in shared memory, where its row begins in y; null beyond the end of y.
      const auto row_of_line = [&](int32_t line) -> unsigned char* {
        const int32_t c = line % staged_channels, r = line / staged_channels;
        const int32_t row = r / rows * config.rows + first_row + r % rows;
        if (row >= positions || channel + first_channel + c >= p.out_channels) return nullptr;
        return reinterpret_cast<unsigned char*>(y + (first_channel + c) * p.y_channel_stride + row * row_step);
      };
      const int32_t lines = staged_channels * rows << (log2_of(warps) - p.log_strips);
      constexpr int count =
          ceil_div(staged_channels * rows * warps * strip_columns * config.phases * element, vector_bytes * consumers);
#pragma unroll smaller(count, 4)
      for (int i = 0; i < count; ++i) {
        const int32_t n = thread + i * consumers, line = n >> log_vectors;
        unsigned char* const row = line < lines ? row_of_line(line) : nullptr;
        if (row == nullptr) continue;
        write_vector<Unit>(row, buffer + static_cast<uint32_t>(line * pitch),
                           (n - (line << log_vectors)) * vector_bytes, line_bytes, valid);
      }
      if constexpr (ends_apart<Unit>) {
        constexpr int units = vector_bytes / (Unit * element);
#pragma unroll 1
        for (int32_t n = thread; n < lines * units; n += consumers) {
          const int32_t line = n / units;
          unsigned char* const row = row_of_line(line);
          if (row == nullptr || shift_of_row<Unit>(row) == 0) continue;
          write_unit<Unit>(row, buffer + static_cast<uint32_t>(line * pitch), n % units * (Unit * element), line_bytes,
                           valid);
        }
      }
    }
  }

 private:
  static constexpr int vector_bytes = 16;

  CONVT_DEVICE static uint32_t address_of(const void* y) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(y));
  }
  template <int Unit>
  CONVT_DEVICE static uint32_t shift_of(uint32_t address) {
    return Unit * element == vector_bytes ? 0 : address % vector_bytes;
  }

  template <int Unit>
  CONVT_DEVICE static void stage(device::SharedAddress to, const float (&v)[Of::values]) {
    constexpr int together = Unit < Of::values ? Unit : Of::values;
#pragma unroll
    for (int i = 0; i < Of::values; i += together) {
      const device::SharedAddress at = to + static_cast<uint32_t>(i * element);
      if constexpr (element == 4) {
        if constexpr (together == 4) {
          device::store_shared_16(at, __float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]),
                                  __float_as_uint(v[i + 3]));
        } else if constexpr (together == 2) {
          device::store_shared_8(at, __float_as_uint(v[i]), __float_as_uint(v[i + 1]));
        } else {
          device::store_shared_4(at, v[i]);
        }
      } else if constexpr (together == 4) {
        device::store_shared_8(at, pack(Scalar{}, v[i], v[i + 1]), pack(Scalar{}, v[i + 2], v[i + 3]));
      } else if constexpr (together == 2) {
        device::store_shared_4(at, __uint_as_float(pack(Scalar{}, v[i], v[i + 1])));
      } else {
        device::store_shared_2(at, pack(Scalar{}, v[i], 0.0f));
      }
    }
  }

  template <int Unit>
  CONVT_DEVICE static int32_t shift_of_row(const unsigned char* row) {
    return static_cast<int32_t>(shift_of<Unit>(address_of(row)));
  }

  // Whether what vectors leave of rows is written by as many threads as there are units of it. (A few, the thread of
  // the row's first vector writes faster.)
  template <int Unit>
  static constexpr bool ends_apart = vector_bytes / (Unit * element) > 4;

  // A vector of a line, so many bytes from the multiple of 16 bytes before its row. The first one is the row's first
  // outputs, and its last ones, too: 16 bytes together.
  template <int Unit>
  CONVT_DEVICE static void write_vector(unsigned char* row, device::SharedAddress line, int32_t from,
                                        int32_t line_bytes, int32_t valid) {
    const int32_t first = from - shift_of_row<Unit>(row);
    if (first >= 0 && first + vector_bytes <= valid) {
      const uint4 v = device::load_shared_16(line + static_cast<uint32_t>(from));
      device::store_global_16(row + first, v.x, v.y, v.z, v.w);
    } else if (first >= 0 || !ends_apart<Unit>) {
#pragma unroll(ends_apart<Unit> ? 1 : vector_bytes)
      for (int at = 0; at < vector_bytes; at += Unit * element)
        write_unit<Unit>(row, line, from + at, line_bytes, valid);
    }
  }

  template <int Unit>
  CONVT_DEVICE static void write_unit(unsigned char* row, device::SharedAddress line, int32_t at, int32_t line_bytes,
                                      int32_t valid) {
    const int32_t shift = shift_of_row<Unit>(row);
    if (at < shift) at += line_bytes;
    if (at - shift < valid) copy<Unit * element>(row + (at - shift), line + static_cast<uint32_t>(at));
  }

  template <int Bytes>
  CONVT_DEVICE static void copy(unsigned char* to, device::SharedAddress from) {
    if constexpr (Bytes == 16) {
      const uint4 v = device::load_shared_16(from);
      device::store_global_16(to, v.x, v.y, v.z, v.w);
    } else if constexpr (Bytes == 8) {
      const uint2 v = device::load_shared_8(from);
      device::store_global_8(to, v.x, v.y);
    } else if constexpr (Bytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = device::load_shared_4(from);
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(device::load_shared_2(from));
    }
  }
};

// By the warpgroup that multiplies.
template <Mode mode, int Row>
CONVT_DEVICE void consume(const Params& p, const Shared& shared) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int rows = config.rows;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const WarpPlace w(p, static_cast<int32_t>(device::uniform(threadIdx.x / 32)), thread % 32);
  const auto row_bytes = static_cast<uint32_t>(p.row_bytes), channel_bytes = static_cast<uint32_t>(p.channel_bytes);
  const device::SharedAddress x_of_stages =
      shared.patches + static_cast<uint32_t>(w.stack * rows) * row_bytes +
      static_cast<uint32_t>((w.strip * strip_columns + w.lane / 4 * 2) * static_cast<int>(sizeof(Scalar))) +
      static_cast<uint32_t>(w.lane % 4 * (sizeof(Scalar) == 4 ? 1 : 2)) * channel_bytes;
  const device::MatrixDescriptor w_of_stages = device::plain_matrix_descriptor(shared.weights, 256, 128);
  device::Ring patch, weights;
  StagedWriter<mode, Row> staged{shared.staged};
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    Tile tile = Tile::of(p, number);
    const DeviceSet& set = p.sets[tile.set];
    const auto same_for_all = [](int32_t v) { return static_cast<int32_t>(device::uniform(static_cast<uint32_t>(v))); };
    const int32_t first_step = same_for_all(set.first_step), steps = same_for_all(set.steps),
                  first_steps = same_for_all(set.first_phase_steps);
    // Sums begin with the bias.
    float sums[config.phases][rows][config.channels / 2];
#pragma unroll
    for (int j = 0; j < config.channels / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float bias = 0;
        auto channel = static_cast<int32_t>(8 * j + w.lane % 4 * 2 + e);
        bool there = true;
        if constexpr (config.subpixel) {
          auto column = static_cast<uint32_t>(channel);
          channel = static_cast<int32_t>(p.by_phases.divide(column));
          const auto of_tile = static_cast<int32_t>(config.channels / p.by_phases.divisor);
          there = channel < of_tile, channel += tile.channel_tile * of_tile;
        } else {
          channel += tile.channel_tile * config.channels;
        }
        if (p.bias != nullptr && there && channel < p.out_channels) {
          load<1>(bias_at<Scalar>(p, static_cast<int64_t>(tile.group) * p.out_channels + channel), &bias);
        }
#pragma unroll
        for (int i = 0; i < config.phases; ++i) {
#pragma unroll
          for (int r = 0; r < rows; ++r) sums[i][r][4 * j + e] = sums[i][r][4 * j + 2 + e] = bias;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < config.phases; ++i) {
#pragma unroll
      for (int r = 0; r < rows; ++r) device::wgmma_results(sums[i][r]);
    }
    const int32_t chunks = steps == 0 ? 0 : p.chunks;
#pragma unroll 1
    for (int32_t c = 0; c < chunks; ++c) {
      device::mbarrier_wait(shared.patch_full(patch.stage), patch.parity);
      const device::SharedAddress x = x_of_stages + patch.stage * static_cast<uint32_t>(p.patch_bytes);
      int32_t s = first_step;
      const auto multiply_phase = [&](auto phase_of_this, int32_t end) {
        constexpr int phase = decltype(phase_of_this)::value;
#pragma unroll 1
        for (; s < end; ++s) {
          const uint32_t step = device::uniform(p.steps[s]);
          device::mbarrier_wait(shared.weights_full(weights.stage), weights.parity);
          const device::SharedAddress from = x + offset_of(step);
          const device::SharedAddress taps_at =
              device::start_of(w_of_stages) + weights.stage * static_cast<uint32_t>(p.weight_bytes / 16);
          const uint32_t taps = taps_of(step);
          // (A loop for each number of halves is twice the code, which short layers wait for.)
          const auto multiply_taps = [&]<int Taps>() {
            if (p.halves == most_halves) {
              multiply<mode, Row, Taps, most_halves>(p, from, is_odd(step), w_of_stages, taps_at, sums[phase]);
            } else {
              multiply<mode, Row, Taps, 1>(p, from, is_odd(step), w_of_stages, taps_at, sums[phase]);
            }
          };
          if (taps == 1) {
            multiply_taps.template operator()<1>();
          } else if (taps == 2) {
            multiply_taps.template operator()<2>();
          } else {
            multiply_taps.template operator()<3>();
          }
          device::mbarrier_arrive_if(shared.weights_empty(weights.stage), w.lane == 0);
          weights.advance(p.weight_stages);
        }
      };
      if constexpr (config.phases == 2) multiply_phase(std::integral_constant<int, 0>{}, first_step + first_steps);
      multiply_phase(std::integral_constant<int, config.phases - 1>{}, first_step + steps);
      // All lanes have loaded from it.
      device::mbarrier_arrive(shared.patch_empty(patch.stage));
      patch.advance(p.patch_stages);
    }
#pragma unroll
    for (int i = 0; i < config.phases; ++i) {
#pragma unroll
      for (int r = 0; r < rows; ++r) device::wgmma_results(sums[i][r]);
    }
    const auto any_nan = [&] {
      ZeroSum zeros;
#pragma unroll
      for (int i = 0; i < config.phases; ++i) {
#pragma unroll
        for (int r = 0; r < rows; ++r) zeros.add(sums[i][r]);
      }
      return zeros.is_nan();
    };
    // What follows from its place is not kept from tile to tile: there are no registers for it.
    WarpPlace place = w;
    device::forget(place.lane), device::forget(place.strip), device::forget(place.stack);
    if constexpr (config.subpixel) {
      const MergedOutputs<mode, Row> outputs(p, tile, place);
      const bool apart = p.v.stride % 2 != 0;
      if (apart && p.vector == 2) {
        outputs.template write<2, true>(sums[0]);
      } else if (apart) {
        outputs.template write<1, true>(sums[0]);
      } else if (p.vector == 4) {
        outputs.template write<4, false>(sums[0]);
      } else if (p.vector == 2) {
        outputs.template write<2, false>(sums[0]);
      } else {
        outputs.template write<1, false>(sums[0]);
      }
      if (any_nan()) outputs.correct();
    } else {
      const bool stages = p.staged_bytes > 0;
      if (stages) {
        if (p.vector * static_cast<int32_t>(sizeof(Scalar)) == 16) {
          staged.template write<16 / sizeof(Scalar)>(p, tile, place, thread, sums);
        } else if (p.vector * static_cast<int32_t>(sizeof(Scalar)) == 8) {
          staged.template write<8 / sizeof(Scalar)>(p, tile, place, thread, sums);
        } else if (sizeof(Scalar) == 4 || p.vector == 1) {
          staged.template write<1>(p, tile, place, thread, sums);
        } else {
          staged.template write<2>(p, tile, place, thread, sums);
        }
      } else {
        const Outputs<mode, Row> outputs(p, tile, place);
        if (p.vector == outputs.values) {
          outputs.template write<outputs.values>(p, sums);
        } else if (p.vector == 2) {
          outputs.template write<2>(p, sums);
        } else {
          outputs.template write<1>(p, sums);
        }
      }
      const int32_t row = tile.row + set.row, column = tile.column + set.column;
      if (row < 0 || column < 0 || row + p.channel_bytes / p.row_bytes > p.h.in ||
          column + p.row_bytes / static_cast<int32_t>(sizeof(Scalar)) > p.v.in) {
        const bool nan = any_nan();
        // What is looked at again has been written by others, too.
        if (!stages || device::named_barrier_or(1, consumers, nan)) {
          if (nan) Outputs<mode, Row>(p, tile, place).correct(p);
        }
      }
    }
  }
}

template <Mode mode, int Row>
__global__ void __launch_bounds__(threads, configs[Row].blocks)
    implicit_gemm_nchw_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const Shared shared(p);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == consumers) {
    device::prefetch_tensor_map(p.x_map);
    for (uint32_t s = 0; s < static_cast<uint32_t>(p.patch_stages); ++s) {
      device::mbarrier_init(shared.patch_full(s), 1), device::mbarrier_init(shared.patch_empty(s), consumers);
    }
    for (uint32_t s = 0; s < static_cast<uint32_t>(p.weight_stages); ++s) {
      device::mbarrier_init(shared.weights_full(s), 1), device::mbarrier_init(shared.weights_empty(s), warps);
    }
    device::mbarrier_init_fence();
  }
  __syncthreads();
  if (thread < consumers) {
    device::more_registers<consumer_registers>();
    consume<mode, Row>(p, shared);
  } else {
    device::fewer_registers<copier_registers>();
    if (thread < consumers + 32 && device::elect()) copy_operands<typename Traits<mode>::Scalar, Row>(p, shared);
  }
#endif
}

}  // namespace convt::implicit_gemm_nchw_sm90
