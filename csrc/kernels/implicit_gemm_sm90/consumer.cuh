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

// Positions that a warp has staged, as rows of 1 << log_columns of them.
struct Slab {
  int32_t image, row, column;  // of the first
  int32_t log_columns, count;

  // From position `first` of a piece on, or of two that are side by side.
  CONVT_DEVICE Slab(const Params& p, const Place& at, int32_t piece, int32_t first, int32_t positions, bool merged)
      : count(positions) {
    const PiecePlace place = piece_place(p, piece);
    const bool squares = p.piece_rows > 1;
    image = at.image + place.image, row = at.row + place.row, column = at.column + place.column;
    log_columns = squares ? 3 + merged : 30;
    (squares ? row : column) += squares ? first >> log_columns : first;
  }

  // The output of position `n`, of the first phase of `set`; false if there is none.
  CONVT_DEVICE bool output(const Params& p, const DeviceSet& set, int32_t n, int32_t& out_row,
                           int32_t& out_column) const {
    out_row = (row + (n >> log_columns)) * p.h.stride + set.row_phase;
    out_column = (column + (n & ((1 << log_columns) - 1))) * p.v.stride + set.column_phase;
    return out_row < p.h.out && out_column < p.v.out && image < p.batch;
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
inline constexpr int32_t block_words = 16 * slab_pitch;

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
    const float* const block = staged + (cb - first_block) * block_words;
    if (!p.channels_innermost) {
      const Sums sums{block, slab_pitch, p.channel_blocks * block_words, implicit_gemm_sm90::slab, true};
      const int32_t vectors = slab.count * p.column_phases / Width;
      write_rows<mode, Width, words>(p, set, sums, group_channel, channels.count, 0, 32, vectors, w.lane,
                                     [&](int32_t i, Outputs& o) {
                                       auto phase = static_cast<uint32_t>(i * Width);
                                       o.position = static_cast<int32_t>(p.by_column_phases.divide(phase));
                                       o.phase = static_cast<int32_t>(phase), o.words = 0, o.image = slab.image;
                                       const bool inside = slab.output(p, set, o.position, o.row, o.column);
                                       o.column += o.phase;
                                       return inside && o.column < p.v.out && set.column_phase + o.phase < p.v.stride;
                                     });
      continue;
    }
    constexpr int32_t vectors = 16 / Width, together = 32 / vectors;  // of a position; positions at once
    const int32_t channel = w.lane % vectors * Width, first_slot = w.lane / vectors;
    if (channel >= channels.count) continue;
    Scalar* const y =
        static_cast<Scalar*>(p.y) + slab.image * p.y_batch_stride + (group_channel + channel) * p.y_channel_stride;
#pragma unroll 1
    for (int32_t phase = 0; phase < p.column_phases && set.column_phase + phase < p.v.stride; ++phase) {
      const int32_t rank = p.column_rank[set.column_phase + phase];
      const float* const sums = block + rank * p.channel_blocks * block_words;
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
#pragma unroll unrolled
      for (int32_t slot = first_slot; slot < slab.count; slot += together) {
        int32_t row, column;
        const bool inside = slab.output(p, set, slot_of(slot), row, column);
        column += phase;
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
        if (inside && column < p.v.out) {
          store<Width>(
              y + static_cast<int64_t>(row) * p.y_row_stride + static_cast<int64_t>(column) * p.y_column_stride, v);
        }
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
      int32_t row, column;
      if (channel >= channels.count || !slab.output(p, set, n, row, column) || column + phase >= p.v.out) continue;
      correct_output<mode>(p, at.group, slab.image, channels.first + channel, row, column + phase);
    }
  }
}

template <Mode mode, int Row>
CONVT_DEVICE void consume(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int width = config.width, pieces = config.pieces, blocks = config.m_blocks;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // The same for all threads of a warp, and the compiler has to see that: products in a branch that might diverge are
  // done one after another.
  const int32_t group = __shfl_sync(0xffffffffu, thread / 128, 0);
  constexpr bool alternate = config.alternate();
  const WarpPlace w{alternate ? 0 : group / config.groups_n, alternate ? 0 : group % config.groups_n, thread / 32 % 4,
                    thread % 32};
  const auto* const edges = reinterpret_cast<const uint32_t*>(shared + words_at);
  const device::SharedAddress patches = device::shared_address(shared + p.patches_at);
  const device::SharedAddress weights = device::shared_address(shared + p.weights_at);
  auto* const last_split = reinterpret_cast<uint32_t*>(shared + words_at) + patch_stages + 2 + (alternate ? group : 0);
  const auto staged_by = [&](int32_t t) {
    return reinterpret_cast<float*>(shared + p.sums_at) + t / 32 * (blocks * block_words);
  };
  Ring patch, ring;
  // Where this warpgroup's pieces begin in a patch, and how far it is from 8 positions to the next 8.
  device::SharedAddress piece_bytes[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const PiecePlace at = piece_place(p, w.group_n * pieces + i);
    piece_bytes[i] = static_cast<uint32_t>(16 * ((at.image * p.patch_rows + at.row) * p.patch_columns + at.column));
  }
  const uint32_t stride_bytes = p.piece_rows > 1 ? static_cast<uint32_t>(16 * p.patch_columns) : 128;
  const auto plane_bytes = static_cast<uint32_t>(p.patch_plane);

  // Warpgroups that take tiles in turn: the one whose turn it is, and how often it was this one's.
  int32_t turn = 0, turns = 0;
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    if constexpr (alternate) {
      const bool mine = turn == group;
      turn ^= 1;
      if (!mine) {
        // Only the last chunk may have fewer groups.
        const int32_t count = chunks.last - chunks.first;
        if (count > 0) {
          patch.skip(count, p.stages);
          ring.skip((count - 1) * stages_of_chunk<Row>(set, groups_of(p, chunks.first)) +
                        stages_of_chunk<Row>(set, groups_of(p, chunks.last - 1)),
                    weight_stages);
        }
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
    // Stages whose products have been issued but may not have been read.
    // In one register: that of the weights, counted from 1, and 256 times that of the patch.
    int32_t used = 0;
    const auto release = [&] {
      if (w.lane == 0) {
        if ((used & 255) != 0) device::mbarrier_arrive(barriers.weights_empty((used & 255) - 1));
        if (used >= 256) device::mbarrier_arrive(barriers.patch_empty((used >> 8) - 1));
      }
      used = 0;
    };
    // Where products are short, a step is read while the one before it is issued. Elsewhere that costs registers and
    // gains nothing.
    static_assert(config.rows() <= 2, "fragments are counted without a loop");
    constexpr bool brief = blocks * pieces * width <= 128;
    DeviceStep next{};
    if (brief && chunks.first < chunks.last) next = p.steps[set.first_step];
    int32_t step = 0, groups = 0, run = 0;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      if (!brief || groups != groups_of(p, chunk)) {
        groups = groups_of(p, chunk);
        run = steps_of_stage<Row>(set, groups);
      }
      device::mbarrier_wait(barriers.patch_full(patch.stage), patch.parity);
      if (chunk == chunks.first) edge = edges[patch.stage] != 0;
      device::SharedAddress from = patches + static_cast<uint32_t>(patch.stage * p.patch_bytes);
      for (int32_t left = set.steps * groups; left > 0; left -= run) {
        device::mbarrier_wait(barriers.weights_full(ring.stage), ring.parity);
        device::SharedAddress fragment = weights + static_cast<uint32_t>(ring.stage * weight_stage_bytes);
#pragma unroll 1
        for (int32_t s = smaller(left, run); s > 0; --s) {
          const DeviceStep now = brief ? next : p.steps[set.first_step + step];
          if (++step == set.steps) step = 0;
          if constexpr (brief) next = p.steps[set.first_step + step];
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            const int32_t block = w.group_m * blocks + m;
            if ((now.mask >> block & 1) == 0) continue;
            device::wgmma_fence();
            const uint32_t before = now.mask & static_cast<uint32_t>(block);
            const auto a = device::matrix_descriptor(fragment + before * fragment_bytes, 1024, 128);
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
              const auto b = device::matrix_descriptor(from + now.offset + piece_bytes[i], plane_bytes, stride_bytes);
              device::wgmma<wgmma_type<mode>, width>(sums[m][i], a, b);
            }
          }
          fragment += (now.mask - (now.mask >> 1)) * fragment_bytes;
          if (step == 0) from += 2 * plane_bytes;
        }
        device::wgmma_commit();
        device::wgmma_wait<1>();
        release();
        used = ring.stage + 1;
        ring.advance(weight_stages);
      }
      used += (patch.stage + 1) * 256;
      patch.advance(p.stages);
    }
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
        float* const to = staged_by(thread) + m * block_words + w.lane / 4 * slab_pitch + slab + w.lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(bias[0], bias[0]);
        *reinterpret_cast<float2*>(to + 8 * slab_pitch) = make_float2(bias[1], bias[1]);
      }
    }

    // A slab at a time through shared memory of the warp's own. One code writes all: only what stages them differs.
    // Two pieces of 8 columns side by side are written as rows of 16.
    // (136 positions of the 16-bit types leave no registers for it.)
    constexpr bool may_merge = pieces == 2 && (width <= 128 || sizeof(Scalar) == 4);
    const bool merged = may_merge && p.piece_rows > 1 && p.by_pieces_columns.divisor % 2 == 0;
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
                float* const block = to + m * block_words + j * 128;
                block[word] = v[0], block[word ^ 8] = v[2];
                block[32 + (word ^ 4)] = v[1], block[32 + (word ^ 12)] = v[3];
              } else {
                float* const block = to + m * block_words + j * 8;
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
