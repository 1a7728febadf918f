// The consumers: two warpgroups multiply, and write their sums.
#pragma once

#include "../implicit_gemm/epilogue.cuh"
#include "producer.cuh"

namespace convt::implicit_gemm_sm90 {

template <Mode mode>
constexpr device::WgmmaType wgmma_type = mode == Mode::tf32      ? device::WgmmaType::tf32
                                         : mode == Mode::float16 ? device::WgmmaType::float16
                                                                 : device::WgmmaType::bfloat16;

// Where a warp's part of a tile is: its pieces' positions, and the output channels of its 16 rows.
struct WarpPlace {
  int32_t group_m, group_n, warp, lane;  // warp of the warpgroup
};

struct PiecePlace {
  int32_t image, row, column;  // of its first position, in the tile
};

CONVT_DEVICE PiecePlace piece_place(const Params& p, int32_t piece) {
  auto column = static_cast<uint32_t>(piece);
  uint32_t row = p.by_pieces_columns.divide(column);
  const uint32_t image = p.by_pieces_rows.divide(row);
  return {static_cast<int32_t>(image), static_cast<int32_t>(row) * p.piece_rows,
          static_cast<int32_t>(column) * p.piece_columns};
}

// Positions that a warp has staged, as rows of 1 << log_columns of them; or one after the other, from `position` of the
// tile on, if they are gathered.
struct Slab {
  int32_t image, row, column;  // of the first
  int32_t log_columns, count, position;

  // From position `first` of a piece on, or of two that are side by side.
  CONVT_DEVICE Slab(const Params& p, const Place& at, int32_t piece, int32_t first, int32_t positions, bool merged)
      : count(positions), position(piece * p.piece_columns + first) {
    if (p.gather) {
      image = at.image, row = at.row, column = at.column, log_columns = 0;
      return;
    }
    const PiecePlace place = piece_place(p, piece);
    const bool squares = p.piece_rows > 1;
    image = at.image + place.image, row = at.row + place.row, column = at.column + place.column;
    log_columns = squares ? 3 + merged : 30;
    (squares ? row : column) += squares ? first >> log_columns : first;
  }

  // The output of position `n`, of the first phase of `set`; false if there is none.
  CONVT_DEVICE bool output(const Params& p, const DeviceSet& set, int32_t n, int32_t& out_image, int32_t& out_row,
                           int32_t& out_column) const {
    out_image = image;
    bool in_tile = true;
    if (p.gather) {
      auto c = static_cast<uint32_t>(position + n);
      uint32_t r = p.by_patch_columns.divide(c);
      const auto i = static_cast<int32_t>(p.by_patch_rows.divide(r));
      in_tile = i < p.tile_images;
      out_image += i, out_row = row + static_cast<int32_t>(r), out_column = column + static_cast<int32_t>(c);
    } else {
      out_row = row + (n >> log_columns), out_column = column + (n & ((1 << log_columns) - 1));
    }
    out_row = out_row * p.h.stride + set.row_phase, out_column = out_column * p.v.stride + set.column_phase;
    return in_tile && out_row < p.h.out && out_column < p.v.out && out_image < p.batch;
  }
};

// Where channels are innermost, a block's sums are [position][16 channels], in an order that has no bank conflicts
// when fragments are written (8 channels of 4 positions) and when vectors are read: neighbouring slots are positions
// 2 apart, and a position's 4 groups of channels change places.
CONVT_DEVICE int32_t slot_of(int32_t n) { return (n & ~3) | (n & 1) << 1 | (n >> 1 & 1); }
CONVT_DEVICE int32_t word_of(int32_t slot, int32_t channel) {
  return slot * 16 + (channel ^ ((slot >> 2 & 1) * 8 + (slot >> 1 & 1) * 4));
}

// The words of a warp's sums: of blocks, then of channels or of positions.
template <int Row>
constexpr int32_t block_words = 16 * slab_pitch_of(configs[Row]);

// The channels of a block of rows, as a warp has them.
struct WarpChannels {
  int32_t first, count;  // of the group

  CONVT_DEVICE WarpChannels(const Params& p, const Place& at, const WarpPlace& w, int32_t channel_block)
      : first((at.channel_tile * p.channel_blocks + channel_block) * 64 + w.warp * 16),
        count(smaller<int32_t>(16, p.out_channels - first)) {}
};

// A warp's 16 channels of each of its blocks at the positions of a slab, to y.
template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_slab(const Params& p, const Place& at, const WarpPlace& w, const Slab& slab,
                             const float* staged) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  const DeviceSet& set = p.sets[at.set];
  const int32_t first_block = w.group_m * config.m_blocks;
  // What may be on its way in the registers that the sums leave.
  constexpr int unrolled = config.accumulators() > 128 ? 1 : 2, words = 4 * unrolled;
#pragma unroll 1
  for (int32_t cb = 0; cb < p.channel_blocks; ++cb) {
    // A set has as many phases as a warpgroup has blocks, at most: all phases of these channels are in one warpgroup.
    if (cb < first_block || cb >= first_block + config.m_blocks) continue;
    const WarpChannels channels(p, at, w, cb);
    if (channels.count <= 0) continue;
    const int64_t group_channel = static_cast<int64_t>(at.group) * p.out_channels + channels.first;
    const float* const block = staged + (cb - first_block) * block_words<Row>;
    if (!p.channels_innermost) {
      const Sums sums{block, slab_pitch_of(config), p.channel_blocks * block_words<Row>, slab_of(config), true};
      const int32_t vectors = slab.count * p.column_phases / Width;
      write_rows<mode, Width, words>(p, set, sums, group_channel, channels.count, 0, 32, vectors, w.lane,
                                     [&](int32_t i, Outputs& o) {
                                       auto phase = static_cast<uint32_t>(i * Width);
                                       o.position = static_cast<int32_t>(p.by_column_phases.divide(phase));
                                       o.phase = static_cast<int32_t>(phase), o.words = 0;
                                       const bool inside = slab.output(p, set, o.position, o.image, o.row, o.column);
                                       o.column += o.phase;
                                       return inside && o.column < p.v.out && set.column_phase + o.phase < p.v.stride;
                                     });
      continue;
    }
    constexpr int32_t vectors = 16 / Width, together = 32 / vectors;  // of a position; positions at once
    const int32_t channel = w.lane % vectors * Width, first_slot = w.lane / vectors;
    if (channel >= channels.count) continue;
    Scalar* const y = static_cast<Scalar*>(p.y) + (group_channel + channel) * p.y_channel_stride;
    // From a slot to the next one of this lane: rows of 8 positions, or one row.
    const bool squares = slab.log_columns == 3, regular = together % 8 == 0 && !p.gather;
    const int32_t next_row = squares ? together / 8 * p.h.stride : 0;
    const int32_t next_column = squares ? 0 : together * p.v.stride;
    const int64_t next =
        static_cast<int64_t>(next_row) * p.y_row_stride + static_cast<int64_t>(next_column) * p.y_column_stride;
#pragma unroll 1
    for (int32_t phase = 0; phase < p.column_phases && set.column_phase + phase < p.v.stride; ++phase) {
      const int32_t rank = p.column_rank[set.column_phase + phase];
      const float* const sums = block + rank * p.channel_blocks * block_words<Row>;
      float v[Width];
      if (rank < 0) {
#pragma unroll
        for (int e = 0; e < Width; ++e) {
          v[e] = 0;
          if (p.bias != nullptr) {
            load<1>(static_cast<const Scalar*>(p.bias) + (group_channel + channel + e) * p.bias_stride, &v[e]);
          }
        }
      }
      bool inside = false;
      int32_t row = 0, column = 0;
      Scalar* to = y;
      const auto locate = [&](int32_t slot) {
        int32_t image;
        inside = slab.output(p, set, slot_of(slot), image, row, column);
        if (regular) inside = image < p.batch;
        column += phase;
        to = y + image * p.y_batch_stride + static_cast<int64_t>(row) * p.y_row_stride +
             static_cast<int64_t>(column) * p.y_column_stride;
      };
      locate(first_slot);
#pragma unroll unrolled
      for (int32_t slot = first_slot; slot < slab.count; slot += together) {
        if (!regular) locate(slot);
        if (rank >= 0) {
          // The order within eight slots is that of the first.
          if constexpr (together % 8 == 0) {
            read_words<4, true>(sums + word_of(first_slot, channel) + (slot - first_slot) * 16, v);
            if constexpr (Width == 8) {
              read_words<4, true>(sums + word_of(first_slot, channel + 4) + (slot - first_slot) * 16, v + 4);
            }
          } else {
            read_words<Width, true>(sums + word_of(slot, channel), v);
          }
        }
        if (inside && row < p.h.out && column < p.v.out) store<Width>(to, v);
        to += next, row += next_row, column += next_column;
      }
    }
  }
}

template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_slab_at_width(const Params& p, const Place& at, const WarpPlace& w, const Slab& slab,
                                      const float* staged) {
  if constexpr (Width > 1) {
    // Eight elements of any number of phases would need more registers than the sums leave.
    if (p.store_width < Width || (Width == 8 && !p.channels_innermost && p.column_phases > 2)) {
      return write_slab_at_width<mode, Row, Width / 2>(p, at, w, slab, staged);
    }
  }
  write_slab<mode, Row, Width>(p, at, w, slab, staged);
}

// Computes those of a warp's outputs again that are NaN. They are read from y, where the warp has written them: this
// needs no sums.
template <Mode mode, int Row>
CONVT_DEVICE void correct_edges(const Params& p, const Place& at, const WarpPlace& w) {
  constexpr Config config = configs[Row];
  const DeviceSet& set = p.sets[at.set];
#pragma unroll 1
  for (int32_t i = 0; i < config.m_blocks * config.pieces; ++i) {
    const int32_t m = i / config.pieces, piece = i - m * config.pieces;
    const int32_t block = w.group_m * config.m_blocks + m, rank = block / p.channel_blocks;
    if (rank >= set.columns) return;
    const WarpChannels channels(p, at, w, block - rank * p.channel_blocks);
    const int32_t phase = column_phase_of(p, set, rank) - set.column_phase;
    const Slab slab(p, at, w.group_n * config.pieces + piece, 0, config.width, false);
#pragma unroll 1
    for (int32_t k = w.lane; k < 16 * config.width; k += 32) {
      const int32_t n = k >> 4, channel = k & 15;
      int32_t image, row, column;
      if (channel >= channels.count || !slab.output(p, set, n, image, row, column) || column + phase >= p.v.out) {
        continue;
      }
      correct_output<mode>(p, at.group, image, channels.first + channel, row, column + phase);
    }
  }
}

template <Mode mode, int Row>
CONVT_DEVICE void consume(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int width = config.width, pieces = config.pieces, blocks = config.m_blocks;
  constexpr int slab = slab_of(config), slab_pitch = slab_pitch_of(config);
  constexpr int most_count = row_bytes / k_bytes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // The same for all threads of a warp, and the compiler has to see that: products in a branch that might diverge are
  // done one after another.
  const int32_t group = __shfl_sync(0xffffffffu, thread / 128, 0);
  constexpr bool alternate = config.alternate();
  const WarpPlace w{alternate ? 0 : group / config.groups_n, alternate ? 0 : group % config.groups_n, thread / 32 % 4,
                    thread % 32};
  const auto* const edges = reinterpret_cast<const uint32_t*>(shared + words_at);
  const device::SharedAddress patches = device::dynamic_shared_address() + static_cast<uint32_t>(p.patches_at);
  const device::SharedAddress weights = device::dynamic_shared_address() + static_cast<uint32_t>(p.weights_at);
  auto* const last_split =
      reinterpret_cast<uint32_t*>(shared + words_at) + most_patch_stages + 2 + (alternate ? group : 0);
  const auto staged_by = [&](int32_t t) {
    return reinterpret_cast<float*>(shared + p.sums_at) + t / 32 * (blocks * block_words<Row>);
  };
  Ring patch, ring;
  // Where this warpgroup's pieces begin in a patch, and how far it is from 8 positions to the next 8.
  device::SharedAddress piece_bytes[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const int32_t piece = w.group_n * pieces + i;
    const PiecePlace at = piece_place(p, piece);
    const int32_t pixel = p.gather ? piece * width : (at.image * p.patch_rows + at.row) * p.patch_columns + at.column;
    piece_bytes[i] = static_cast<uint32_t>(row_bytes * pixel);
  }
  const auto stride_bytes = static_cast<uint32_t>(p.piece_rows > 1 ? row_bytes * p.patch_columns : 8 * row_bytes);

  // Warpgroups that take tiles in turn: the one whose turn it is, and how often it was this one's.
  int32_t turn = 0, turns = 0;
  const int32_t tiles = p.units * p.reuse, next_unit = (static_cast<int32_t>(gridDim.x) - 1) * p.reuse + 1;
  // Of the tiles that share a patch, how many are left.
  int32_t left = p.reuse;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x) * p.reuse; tile < tiles;) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    // The patch is given back by the last tile of each warpgroup that reads it.
    const bool shared_patch = p.reuse > 1, gives_back = left <= (alternate && shared_patch ? 2 : 1);
    const bool unit_ends = left == 1;
    tile += unit_ends ? next_unit : 1, left = unit_ends ? p.reuse : left - 1;
    const int32_t steps = set.steps;
    if constexpr (alternate) {
      const bool mine = turn == group;
      turn ^= 1;
      if (!mine) {
        const int32_t count = chunks.last - chunks.first;
        if (unit_ends) patch.skip(p.gather ? count * steps : count, p.stages);
        ring.skip(count * steps, p.weight_stages);
        continue;
      }
      // A barrier knows the parity of its turn only: nobody may wait for a stage before the turn that precedes its own.
      device::mbarrier_wait(barriers.order(group), static_cast<uint32_t>(turns + 1 - group) & 1);
      ++turns;
    }
    float sums[blocks][pieces][width / 2];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < width / 2; ++e) sums[m][i][e] = 0;
      }
    }
    bool edge = false;
    // The stage whose products have been issued but may not have been read: that of the weights, counted from 1, and
    // 256 times that of the patch.
    int32_t used = 0;
    const auto release = [&] {
      if (w.lane == 0) {
        if ((used & 255) != 0) device::mbarrier_arrive(barriers.weights_empty((used & 255) - 1));
        if (used >= 256) device::mbarrier_arrive(barriers.patch_empty((used >> 8) - 1));
      }
      used = 0;
    };
    static_assert(config.rows() <= 2, "blocks of weights are counted without a loop");
    Ring from_ring = patch;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const int32_t count = count_of(p, chunk);
      device::SharedAddress from = 0;
#pragma unroll 1
      for (int32_t step = 0; step < steps; ++step) {
        DeviceStep now = p.steps[set.first_step + step];
        if (p.gather) now.offset = 0;
        if (p.gather || step == 0) {
          device::mbarrier_wait(barriers.patch_full(from_ring.stage), from_ring.parity);
          if (chunk == chunks.first && step == 0) edge = edges[from_ring.stage] != 0;
          from = patches + static_cast<uint32_t>(from_ring.stage * p.patch_bytes);
        }
        const device::SharedAddress stage = weights + static_cast<uint32_t>(ring.stage * (block_bytes * config.rows()));
        device::mbarrier_wait(barriers.weights_full(ring.stage), p.weights_stay ? 0 : ring.parity);
        device::wgmma_fence();
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          const int32_t block = w.group_m * blocks + m;
          if ((now.mask >> block & 1) == 0) continue;
          const uint32_t before = now.mask & static_cast<uint32_t>(block);
          const auto a = device::matrix_descriptor(stage + before * block_bytes, swizzle_bytes);
          const auto b = device::matrix_descriptor(from + now.offset, stride_bytes);
          const auto multiply = [&](uint32_t bytes) {
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
              device::wgmma<wgmma_type<mode>, width>(sums[m][i], device::advance(a, bytes),
                                                     device::advance(b, piece_bytes[i] + bytes));
            }
          };
          if (count == most_count) {
#pragma unroll
            for (int k = 0; k < most_count; ++k) multiply(static_cast<uint32_t>(k * k_bytes));
          } else {
#pragma unroll 1
            for (int32_t k = 0; k < count; ++k) multiply(static_cast<uint32_t>(k * k_bytes));
          }
        }
        device::wgmma_commit();
        device::wgmma_wait<1>();
        release();
        if (!p.weights_stay) used = ring.stage + 1;
        ring.advance(p.weight_stages);
        if (p.gather || step == steps - 1) {
          if (gives_back) used += (from_ring.stage + 1) * 256;
          from_ring.advance(p.stages);
        }
      }
    }
    if (unit_ends) patch = from_ring;
    if constexpr (alternate) {
      // All lanes have seen their own turn: without steps nothing else brings them together.
      __syncwarp();
      if (w.lane == 0) device::mbarrier_arrive(barriers.order(group ^ 1));
    }
    device::wgmma_wait<0>();
    release();

    if (p.splits > 1 && set.steps == 0) {
      // There is nothing to add up, and nobody has waited for the counters' zeros.
      if (at.split > 0) continue;
    } else if (p.splits > 1) {
      // Every split leaves its sums; the one that is last adds them all, in the order of the splits.
      constexpr int32_t elements = 64 * config.rows() * config.columns(), tile_threads = config.tile_threads();
      const int32_t barrier = 2 + (alternate ? group : 0);
      float* const partials =
          p.partials + static_cast<int64_t>(at.reduction) * p.splits * elements + thread % tile_threads;
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
          for (int e = 0; e < width / 2; ++e) {
            partials[static_cast<int64_t>(at.split) * elements + ((m * pieces + i) * (width / 2) + e) * tile_threads] =
                sums[m][i][e];
          }
        }
      }
      __threadfence();
      device::named_barrier(barrier, tile_threads);
      if (thread % tile_threads == 0) {
        *last_split = atomicAdd(p.counters + at.reduction, 1u) + 1 == static_cast<uint32_t>(p.splits);
      }
      device::named_barrier(barrier, tile_threads);
      const bool last = *last_split != 0;
      device::named_barrier(barrier, tile_threads);
      if (!last) continue;
      __threadfence();
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
          for (int e = 0; e < width / 2; ++e) sums[m][i][e] = 0;
        }
      }
      for (int32_t k = 0; k < p.splits; ++k) {
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e) {
              sums[m][i][e] += __ldcg(partials + static_cast<int64_t>(k) * elements +
                                      ((m * pieces + i) * (width / 2) + e) * tile_threads);
            }
          }
        }
      }
    }

    // Sums that are infinite make it search, but no more than that.
    if (edge) {
      float zeros[4] = {};
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
          for (int e = 0; e < width / 2; ++e) zeros[e % 4] = fmaf(sums[m][i][e], 0.0f, zeros[e % 4]);
        }
      }
      const float zero = zeros[0] + zeros[1] + zeros[2] + zeros[3];
      edge = __any_sync(0xffffffffu, zero != zero) != 0;
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      const int32_t block = w.group_m * blocks + m;
      const WarpChannels channels(p, at, w, block % p.channel_blocks);
      const auto bias_of = [&](int32_t channel) {
        float b = 0;
        if (p.bias != nullptr && channel < channels.count) {
          load<1>(static_cast<const Scalar*>(p.bias) +
                      (static_cast<int64_t>(at.group) * p.out_channels + channels.first + channel) * p.bias_stride,
                  &b);
        }
        return b;
      };
      const float bias[2] = {bias_of(w.lane / 4), bias_of(w.lane / 4 + 8)};
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < width / 2; ++e) sums[m][i][e] += bias[e / 2 % 2];
      }
      if (!p.channels_innermost) {
        // Beyond the positions, for outputs that no tap reaches.
        float* const to = staged_by(thread) + m * block_words<Row> + w.lane / 4 * slab_pitch + slab + w.lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(bias[0], bias[0]);
        *reinterpret_cast<float2*>(to + 8 * slab_pitch) = make_float2(bias[1], bias[1]);
      }
    }

    // A slab at a time through shared memory of the warp's own. One code writes all: only what stages them differs.
    // Two pieces of 8 columns side by side are written as rows of 16.
    // (136 positions of the 16-bit types leave no registers for it.)
    constexpr bool may_merge = pieces == 2 && (width <= 128 || sizeof(Scalar) == 4);
    const bool merged = may_merge && !p.channels_innermost && p.piece_rows > 1 && p.by_pieces_columns.divisor % 2 == 0;
    constexpr int slabs = (width + slab - 1) / slab, merged_slabs = (2 * width + slab - 1) / slab;
#pragma unroll 1
    for (int s = 0; s < (merged ? merged_slabs : pieces * slabs); ++s) {
      // Nothing that writing a slab computes is kept for the next one: registers are full of sums.
      const int32_t now_thread = recomputed(thread);
      const WarpPlace now_w{w.group_m, w.group_n, now_thread / 32 % 4, now_thread % 32};
      float* const staged = staged_by(now_thread);
      Place now_at = at;
      now_at.set = recomputed(at.set), now_at.channel_tile = recomputed(at.channel_tile);
      const int first = merged ? s * slab : s % slabs * slab;
      const Slab now(p, at, w.group_n * pieces + (merged ? 0 : s / slabs), first,
                     smaller(slab, (merged ? 2 * width : width) - first), merged);
      const auto stage = [&](auto side_by_side, auto innermost) {
        constexpr bool two = decltype(side_by_side)::value;
        float* const to = staged + (innermost.value ? 0 : now_w.lane / 4 * slab_pitch + now_w.lane % 4 * 2);
        const int32_t word = word_of(slot_of(now_w.lane % 4 * 2), now_w.lane / 4);
#pragma unroll
        for (int k = 0; k < (two ? merged_slabs : pieces * slabs); ++k) {
          if (s != k) continue;
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
#pragma unroll
            for (int j = 0; j < slab / 8; ++j) {
              const int piece = two ? j % 2 : k / slabs;
              const int group_of_8 = two ? k * (slab / 16) + j / 2 : k % slabs * (slab / 8) + j;
              if (group_of_8 >= width / 8) break;
              const float* v = &sums[m][piece][group_of_8 * 4];
              if constexpr (decltype(innermost)::value) {
                float* const block = to + m * block_words<Row> + j * 128;
                block[word] = v[0], block[word ^ 8] = v[2];
                block[32 + (word ^ 4)] = v[1], block[32 + (word ^ 12)] = v[3];
              } else {
                float* const block = to + m * block_words<Row> + j * 8;
                *reinterpret_cast<float2*>(block) = make_float2(v[0], v[1]);
                *reinterpret_cast<float2*>(block + 8 * slab_pitch) = make_float2(v[2], v[3]);
              }
            }
          }
        }
      };
      const auto stage_in_order = [&](auto side_by_side) {
        if (p.channels_innermost) {
          stage(side_by_side, std::true_type{});
        } else {
          stage(side_by_side, std::false_type{});
        }
      };
      __syncwarp();
      if constexpr (may_merge) {
        if (merged) {
          stage_in_order(std::true_type{});
        } else {
          stage_in_order(std::false_type{});
        }
      } else {
        stage_in_order(std::false_type{});
      }
      __syncwarp();
      write_slab_at_width<mode, Row, static_cast<int>(16 / sizeof(Scalar))>(p, now_at, now_w, now, staged);
    }
    if (edge) {
      __syncwarp();
      correct_edges<mode, Row>(p, at, {w.group_m, w.group_n, w.warp, recomputed(w.lane)});
    }
  }
}

}  // namespace convt::implicit_gemm_sm90
