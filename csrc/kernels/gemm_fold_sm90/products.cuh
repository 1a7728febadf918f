// The products of a tile, by a warpgroup: in 16-bit types by wgmma, in float32 by mma.sync.
#pragma once

#include "../device.h"
#include "../ring.h"
#include "../taps.h"
#include "../tf32.h"
#include "params.h"

namespace convt::gemm_fold_sm90 {

// Where things are in shared memory.
template <int Row>
struct Shared {
  static constexpr Config config = configs[Row];
  static constexpr int32_t stages_end = stages_of(config) * stage_bytes(config),
                           staged_at = config.cooperative ? 0 : stages_end,
                           tables_at = stages_end + staged_buffers(config) * staged_bytes(config),
                           biases_at = tables_at + config.tiles() * table_bytes,
                           barriers_at = biases_at + config.tiles() * bias_bytes(config);
  static_assert(!config.cooperative || staged_bytes(config) <= stages_end);

  device::SharedAddress start;
  unsigned char* memory;

  // Of a warpgroup's tile.
  CONVT_DEVICE device::SharedAddress staged(int32_t group) const {
    return start + static_cast<uint32_t>(staged_at + (staged_buffers(config) > 1 ? group * staged_bytes(config) : 0));
  }
  CONVT_DEVICE device::SharedAddress columns(int32_t group) const {
    return start + tables_at + static_cast<uint32_t>(tile_of(group) * table_bytes);
  }
  CONVT_DEVICE device::SharedAddress rows(int32_t group) const { return columns(group) + 4 * most_columns; }
  CONVT_DEVICE float* biases(int32_t group) const {
    return reinterpret_cast<float*>(memory + biases_at + tile_of(group) * bias_bytes(config));
  }
  CONVT_DEVICE device::SharedAddress address_of_biases(int32_t group) const {
    return start + static_cast<uint32_t>(biases_at + tile_of(group) * bias_bytes(config));
  }
  CONVT_DEVICE static int32_t tile_of(int32_t group) { return config.cooperative ? 0 : group; }
  CONVT_DEVICE device::SharedAddress full(uint32_t stage) const { return start + barriers_at + 8 * stage; }
  CONVT_DEVICE device::SharedAddress empty(uint32_t stage) const { return full(most_stages + stage); }
  CONVT_DEVICE device::SharedAddress multiplies(int32_t group) const {
    return full(2 * most_stages + static_cast<uint32_t>(group));
  }
  CONVT_DEVICE device::SharedAddress stages(int32_t group) const { return multiplies(2 + group); }
};

// Where a row of a tile is staged, which is channel by channel for each tap: bytes; negative if the row, of which
// `skipped` come before the tile's channels, is none of theirs, or one of channels or taps that do not exist.
template <int Row>
CONVT_DEVICE int32_t staged_row(const Params& p, int32_t row, int32_t skipped) {
  auto rest = static_cast<uint32_t>(larger(row - skipped, 0));
  const uint32_t whole = p.by_rows_of_w.divide(rest);
  const auto channel = static_cast<int32_t>(p.last_weights ? rest : whole);
  uint32_t tap = p.last_weights ? whole : rest;
  const bool exists = row >= skipped && channel < p.tile_channels && static_cast<int32_t>(tap) < p.taps;
  const auto kernel_row = static_cast<int32_t>(p.by_kernel_columns.divide(tap));
  return !exists ? -1
                 : kernel_row * p.kernel_row_pitch + static_cast<int32_t>(tap) * p.tap_pitch +
                       channel * 4 * configs[Row].columns;
}

// Sums of two columns of a row, to where a tile is staged.
CONVT_DEVICE void stage_pair(device::SharedAddress to, const float* v) {
  device::store_shared_8(to, __float_as_uint(v[0]), __float_as_uint(v[1]));
}

// `multiply` takes the chunks of a tile from the stages; the block had `before` chunks until then. It calls `issued`
// when the other warpgroup may multiply. `stage` writes the sums. `Last`: positions are rows of their channels.
template <class Scalar, bool Strict, int Row, bool Last>
struct Products {
  static constexpr Config config = configs[Row];
  static constexpr int stages = stages_of(config), blocks = config.blocks, columns = config.group_columns();
  static constexpr int k_of_product = 16, side = box_side(sizeof(Scalar));

  const Shared<Row>& shared;
  int32_t group, warp, lane;
  float sums[blocks][columns / 2];

  CONVT_DEVICE int32_t first_column() const { return config.cooperative ? group * columns : 0; }

  CONVT_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int e = 0; e < columns / 2; ++e) sums[m][e] = 0;
      device::wgmma_results(sums[m]);
    }
  }

  template <class F>
  CONVT_DEVICE void multiply(const Params& p, uint32_t before, const F& issued) {
    const int32_t chunks = p.chunks;  // a wait for a barrier would have it read again
    constexpr uint32_t step = k_of_product * row_bytes / 16, of_8_rows = 8 * row_bytes;
    const device::MatrixDescriptor a_of_stages = device::matrix_descriptor(shared.start, of_8_rows);
    // A half of a block's positions begins inside of its rows: the swizzle is of addresses.
    const int32_t first = first_column();
    constexpr device::Major b_major = Last ? device::Major::k : device::Major::mn;
    constexpr uint32_t b_step = Last ? k_of_product * 2 / 16 : step;
    const device::MatrixDescriptor b_of_stages = device::matrix_descriptor(
        shared.start + blocks * block_bytes +
            static_cast<uint32_t>(Last ? first * row_bytes : first / side * block_bytes + first % side * 2),
        of_8_rows, block_bytes);
    device::Ring ring = device::Ring::after(before, stages);
    int32_t used = stages;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      device::mbarrier_wait(shared.full(ring.stage), ring.parity);
      device::wgmma_fence();
      const uint32_t at = ring.stage * (stage_bytes(config) / 16);
#pragma unroll
      for (int k = 0; k < side / k_of_product; ++k) {
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          const auto a = device::with_start(
              a_of_stages, device::start_of(a_of_stages) + at + static_cast<uint32_t>(m * block_bytes / 16) + k * step);
          const auto b = device::with_start(b_of_stages, device::start_of(b_of_stages) + at + k * b_step);
          device::wgmma<device::wgmma_type<Scalar>, columns, device::Major::mn, b_major>(sums[m], a, b);
        }
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (used != stages) device::mbarrier_arrive_if(shared.empty(used), lane == 0);
      used = ring.stage;
      ring.advance(stages);
    }
    issued();
    device::wgmma_wait<0>();
    device::mbarrier_arrive_if(shared.empty(used), lane == 0);
  }

  CONVT_DEVICE void stage(const Params& p, int32_t skipped) {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      device::wgmma_results(sums[m]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t row = staged_row<Row>(p, m * block_rows + warp * 16 + half * 8 + lane / 4, skipped);
        if (row < 0) continue;
        const device::SharedAddress to =
            shared.staged(group) + static_cast<uint32_t>(row + 4 * first_column() + lane % 4 * 8);
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
          stage_pair(to + static_cast<uint32_t>(j * 32), &sums[m][j * 4 + half * 2]);
        }
      }
    }
  }
};

// A warp has so many rows and columns. Operands are rows of a channel with the swizzle of 128 bytes:
// element e of channel k is in vector (e / 4) ^ (k % 8). Which channel is which of a product does not matter: number t
// is 2 t, and t + 4 is 2 t + 1, so that the lanes of a load, 8 elements of 4 channels, read all banks. If positions are
// rows, those of the positions are to do so, which are more: then number t is t. The copy engine has rounded them to
// TF32, or, in strict float32, a lane splits them into two parts.
template <bool Strict, int Row, bool Last>
struct Products<float, Strict, Row, Last> {
  static constexpr Config config = configs[Row];
  static constexpr int stages = stages_of(config);
  static constexpr int32_t warps_n = config.cooperative   ? larger(2, config.group_columns() / box_side(4))
                                     : config.blocks == 2 ? 2
                                                          : 4,
                           warps_m = 4 / warps_n;
  static constexpr int32_t rows = config.rows() / warps_m, columns = config.group_columns() / warps_n,
                           side = box_side(4), bytes = box_bytes(4);
  static constexpr int m_tiles = rows / 16, n_tiles = columns / 8, quads = 4;  // eights of a row of a box
  static_assert(rows % side == 0 && (columns == 16 || columns % side == 0));

  const Shared<Row>& shared;
  int32_t group, warp, lane;
  float sums[m_tiles][n_tiles][4];

  CONVT_DEVICE int32_t first_row() const { return warp / warps_n * rows; }
  CONVT_DEVICE int32_t first_column() const {
    return (config.cooperative ? group * config.group_columns() : 0) + warp % warps_n * columns;
  }

  // A block's only tile may have fewer boxes of positions than there is room for. (Others may, too, but are not asked.)
  CONVT_DEVICE bool has_positions(int32_t boxes) const { return !config.cooperative || first_column() / side < boxes; }

  CONVT_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < n_tiles; ++j) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0;
    }
  }

  // From the start of a box to eight elements of a row, by their number: those of this lane, of channel 2 t + s. Others
  // of the box differ by their number's bits alone.
  CONVT_DEVICE uint32_t offset_of(int32_t eight, int32_t s) const {
    const int32_t channel = Last ? lane % 4 + 4 * s : 2 * (lane % 4) + s;
    return static_cast<uint32_t>(channel * row_bytes + ((2 * eight + lane / 16) ^ channel) * 16 + lane / 4 % 4 * 4);
  }
  static constexpr uint32_t bits_of(int eight) { return static_cast<uint32_t>(eight) * 32; }
  // From the start of the positions to this lane's elements of the first eight of its columns, if positions are rows:
  // those of channel t + 4 s.
  CONVT_DEVICE uint32_t offset_in_rows(int32_t s) const {
    const int32_t row = lane / 4;
    return static_cast<uint32_t>((first_column() + row) * row_bytes + (s ^ row) * 16 + lane % 4 * 4);
  }

  template <class F>
  CONVT_DEVICE void multiply(const Params& p, uint32_t before, const F& issued) {
    const int32_t chunks = p.chunks, boxes = p.boxes;  // a wait for a barrier would have them read again
    device::Ring ring = device::Ring::after(before, stages);
    uint32_t full = 0;
    uint32_t a_offset[2], b_offset[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      a_offset[s] = static_cast<uint32_t>(first_row() / side * bytes) + offset_of(0, s);
      b_offset[s] =
          static_cast<uint32_t>(config.blocks * block_bytes) +
          (Last ? offset_in_rows(s)
                : static_cast<uint32_t>(first_column() / side * bytes) + offset_of(first_column() % side / 8, s));
    }
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      device::mbarrier_wait_unless(full, shared.full(ring.stage), ring.parity);
      const device::SharedAddress start = shared.start + ring.stage * stage_bytes(config);
      device::Ring next = ring;
      next.advance(stages);
      // Asked for before the products, since the answer takes long. The stage after a tile's last one may be a turn
      // ahead.
      full = chunk + 1 < chunks ? device::mbarrier_test(shared.full(next.stage), next.parity) : 0;
      if (has_positions(boxes)) add_chunk(start, a_offset, b_offset);
      __syncwarp();
      device::mbarrier_arrive_if(shared.empty(ring.stage), lane == 0);
      ring = next;
    }
    issued();
  }

  // The products of a chunk. The operands of this lane are so far from its start.
  CONVT_DEVICE void add_chunk(device::SharedAddress start, const uint32_t (&a_offset)[2],
                              const uint32_t (&b_offset)[2]) {
    constexpr uint32_t of_product = 8 * row_bytes;
    // Strict float32 has no registers for several turns of operands.
#pragma unroll(Strict ? 1 : side / 8)
    for (int k = 0; k < side / 8; ++k) {
      const device::SharedAddress of_k = start + static_cast<uint32_t>(k) * of_product;
      const device::SharedAddress a_start[2] = {of_k + a_offset[0], of_k + a_offset[1]};
      const device::SharedAddress b_start[2] = {of_k + b_offset[0], of_k + b_offset[1]};
      const auto load_a = [&](int i, uint32_t (&a)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[e] = device::load_shared_4((a_start[e / 2] ^ bits_of(2 * (i % 2) + e % 2)) +
                                       static_cast<uint32_t>(i / 2 * bytes));
        }
      };
      uint32_t b[n_tiles][2];
      const auto load_b = [&] {
#pragma unroll
        for (int j = 0; j < n_tiles; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            b[j][e] = device::load_shared_4(
                Last ? ((start + b_offset[e]) ^ bits_of(k)) + static_cast<uint32_t>(j) * of_product
                     : (b_start[e] ^ bits_of(j % quads)) + static_cast<uint32_t>(j / quads * bytes));
          }
        }
      };
      if constexpr (Strict) {
        load_b();
        multiply_split(load_a, b);
      } else {
        uint32_t a[m_tiles][4];
#pragma unroll
        for (int i = 0; i < m_tiles; ++i) load_a(i, a[i]);
        load_b();
#pragma unroll
        for (int i = 0; i < m_tiles; ++i) {
#pragma unroll
          for (int j = 0; j < n_tiles; ++j) device::mma_m16n8k8_tf32(sums[i][j], a[i], b[j]);
        }
      }
    }
  }

  // The products of 8 channels in strict float32. A tensor core truncates its sums: it adds up these products only, the
  // small ones first; an instruction that rounds adds the rest.
  template <class LoadA>
  CONVT_DEVICE void multiply_split(const LoadA& load_a, const uint32_t (&b)[n_tiles][2]) {
    constexpr int together = n_tiles < 4 ? n_tiles : 4;  // products that do not wait for each other
    uint32_t a[4];
    load_a(0, a);
    uint32_t b_high[n_tiles][2], b_low[n_tiles][2];
#pragma unroll
    for (int j = 0; j < n_tiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) split_tf32_operand(b[j][e], b_high[j][e], b_low[j][e]);
    }
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) split_tf32_operand(a[e], high[e], low[e]);
      if (i + 1 < m_tiles) load_a(i + 1, a);
#pragma unroll
      for (int first = 0; first < n_tiles; first += together) {
        float part[together][4] = {};
#pragma unroll
        for (int j = 0; j < together; ++j) device::mma_m16n8k8_tf32(part[j], low, b_high[first + j]);
#pragma unroll
        for (int j = 0; j < together; ++j) device::mma_m16n8k8_tf32(part[j], high, b_low[first + j]);
#pragma unroll
        for (int j = 0; j < together; ++j) device::mma_m16n8k8_tf32(part[j], high, b_high[first + j]);
#pragma unroll
        for (int j = 0; j < together; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][first + j][e] += part[j][e];
        }
      }
    }
  }

  CONVT_DEVICE void stage(const Params& p, int32_t skipped) {
    if (!has_positions(p.boxes)) return;
#pragma unroll
    for (int i = 0; i < m_tiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t row = staged_row<Row>(p, first_row() + i * 16 + half * 8 + lane / 4, skipped);
        if (row < 0) continue;
        const device::SharedAddress to =
            shared.staged(group) + static_cast<uint32_t>(row + 4 * first_column() + lane % 4 * 8);
#pragma unroll
        for (int j = 0; j < n_tiles; ++j) stage_pair(to + static_cast<uint32_t>(j * 32), &sums[i][j][2 * half]);
      }
    }
  }
};

}  // namespace convt::gemm_fold_sm90
