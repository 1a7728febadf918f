// What the kernels of both families do alike.
#pragma once

#include "../device.h"
#include "../ring.h"
#include "config.h"

namespace convt::gemm_scatter {

// In shared memory: full and empty of each stage, and whose turn it is to multiply.
struct Barriers {
  device::SharedAddress barriers;

  CONVT_DEVICE device::SharedAddress full(uint32_t stage) const { return barriers + 8 * stage; }
  CONVT_DEVICE device::SharedAddress empty(uint32_t stage) const { return barriers + 8 * (most_stages + stage); }
  CONVT_DEVICE device::SharedAddress order(int32_t group) const { return barriers + 8 * (2 * most_stages + group); }

  // By one thread, before any other uses a barrier. `readers`: arrivals that give a stage back.
  template <int stages>
  CONVT_DEVICE void init(uint32_t readers) const {
#pragma unroll
    for (uint32_t stage = 0; stage < stages; ++stage) {
      device::mbarrier_init(full(stage), 1);
      device::mbarrier_init(empty(stage), readers);
    }
    for (int32_t group = 0; group < 2; ++group) device::mbarrier_init(order(group), group_threads / 32);
    device::mbarrier_init_fence();
  }

  // Until it is the warpgroup's turn. A barrier knows the parity of its turn only: nobody may wait for a stage before
  // the turn that precedes its own.
  CONVT_DEVICE void wait_for_turn(int32_t group, uint32_t turn) const {
    if (turn + static_cast<uint32_t>(group) > 0)
      device::mbarrier_wait(order(group), (turn + 1 - static_cast<uint32_t>(group)) & 1);
  }
};

// A tile: the first of its outputs of a position, and of its segments.
struct Tile {
  int32_t group, output, segment;

  // `outputs`, `segments`: of a tile.
  template <class Params>
  CONVT_DEVICE static Tile of(const Params& p, int32_t number, int32_t outputs, int32_t segments) {
    auto rest = static_cast<uint32_t>(number);
    const uint32_t group = p.group_tiles.divide(rest), band = p.band_tiles.divide(rest);
    const uint32_t segment_tile = band == p.last_band ? p.last_outputs.divide(rest) : p.band_outputs.divide(rest);
    return {static_cast<int32_t>(group), static_cast<int32_t>(band * p.band_outputs.divisor + rest) * outputs,
            static_cast<int32_t>(segment_tile) * segments};
  }
};

// The boxes of x that a tile has of a chunk: one of each of its segments, of so many positions and channels.
template <bool channels_last, int count, int side>
struct Segments {
  int32_t row[count], position[count];

  template <class Params>
  CONVT_DEVICE Segments(const Params& p, const Tile& tile) {
#pragma unroll
    for (int s = 0; s < count; ++s) {
      auto segment = static_cast<uint32_t>(tile.segment + s);
      row[s] = static_cast<int32_t>(p.segments.divide(segment));
      position[s] = static_cast<int32_t>(segment) * side;
    }
  }

  template <class Params>
  CONVT_DEVICE void load(const Params& p, device::SharedAddress to, int32_t channel, int32_t group,
                         device::SharedAddress full) const {
#pragma unroll
    for (int s = 0; s < count; ++s) {
      if constexpr (channels_last) {
        const int32_t at[] = {channel, position[s], row[s], 0, 0};
        device::box_load(to + s * side * row_bytes, p.x_map, at, full);
      } else {
        const int32_t at[] = {position[s], channel, group, row[s], 0};
        device::box_load(to + s * side * row_bytes, p.x_map, at, full);
      }
    }
  }
};

// Tables in shared memory of where things are in y.
CONVT_DEVICE void put_place(device::SharedAddress table, int32_t number, int64_t place) {
  device::store_shared_8(table + static_cast<uint32_t>(8 * number), static_cast<uint32_t>(place),
                         static_cast<uint32_t>(place >> 32));
}
CONVT_DEVICE int64_t get_place(device::SharedAddress table, int32_t number) {
  const uint2 v = device::load_shared_8(table + static_cast<uint32_t>(8 * number));
  return static_cast<int64_t>(static_cast<uint64_t>(v.y) << 32 | v.x);
}

}  // namespace convt::gemm_scatter
