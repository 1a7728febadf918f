// Rows innermost in y, written by the copy engine: a warpgroup's sums, converted and in the order of y, as boxes.
#pragma once

#include "epilogue.cuh"

namespace convt::implicit_gemm_sm90 {

// The units of 16 bytes of a row change places by the swizzle for rows of so many bytes, so that channels that are
// staged together are in different banks. As ChannelsLast, there are two buffers.
template <Mode mode, int Row>
struct RowsInBoxes {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  static constexpr int32_t positions = staged_positions(config, sizeof(Scalar));  // of a buffer
  static constexpr int32_t slabs = config.width / positions;                      // of a piece
  static constexpr int32_t threads = 128, groups = positions / 8;
  static constexpr int32_t staged_block_bytes = positions * 64 * static_cast<int32_t>(sizeof(Scalar));
  static_assert(4 * slab_pitch_of(config) * 16 * config.m_blocks * 4 >= staged_bytes);

  // Whether a group of eight positions and the next one are of two pieces side by side.
  CONVT_DEVICE static bool merged(const Params& p) { return p.piece_rows > 1 && p.row_boxes.groups > 1; }

  // A warp's part of slab `k` of the warpgroup's: sums[block][piece] are as wgmma leaves them.
  template <class Sums>
  CONVT_DEVICE static void stage(const Params& p, const Sums& sums, int k, device::SharedAddress to, int32_t warp,
                                 int32_t lane) {
    if constexpr (config.m_blocks > 1) {
      if (p.column_phases > 1) return stage_blocks<config.m_blocks, false>(p, sums, k, to, warp, lane);
    }
    if constexpr (merges_pieces(config, sizeof(Scalar))) {
      if (merged(p)) return stage_blocks<1, true>(p, sums, k, to, warp, lane);
    }
    stage_blocks<1, false>(p, sums, k, to, warp, lane);
  }

  // The boxes of a tile, a slab at a time, as those of ChannelsLast.
  struct Boxes {
    int32_t place[tensor_map_rank];  // of the first row of y
    int32_t blocks;                  // of 64 channels that the warpgroup has

    CONVT_DEVICE Boxes(const Params& p, const Place& at, int32_t m_group, int32_t first_piece, int32_t s) {
      const DeviceSet& set = p.sets[at.set];
      const bool together = merged(p);
      const Slab slab(p, at, first_piece + (together ? 0 : s / slabs), (together ? s : s % slabs) * positions,
                      positions, together);
      place[0] = slab.column * p.v.stride;
      const int32_t first = m_group * config.m_blocks;
      place[1] = (at.channel_tile * p.channel_blocks + first) * 64;
      blocks = smaller(config.m_blocks, p.channel_blocks - first);
      if (p.phases_in_boxes) {
        place[2] = slab.row, place[3] = set.row_phase, place[4] = slab.image;
      } else {
        place[2] = slab.row * p.y_row_step + set.row_phase, place[3] = slab.image, place[4] = at.group;
      }
    }

    // The slab that is next. By a warp, of which one lane issues, or by one thread.
    template <bool ByWarp>
    CONVT_DEVICE void store(const Params& p, const DeviceSet&, device::SharedAddress from) {
      const RowBoxes& b = p.row_boxes;
      // Rows of positions that are no rows of the map are boxes for themselves.
      const bool one = p.phases_in_boxes || p.y_row_step == 1;
      const int32_t boxes = one ? 1 : b.rows;
      const auto box_bytes = static_cast<uint32_t>(b.channels * b.bytes * (one ? b.rows : 1));
#pragma unroll 1
      for (int32_t i = 0; i < p.stacked; ++i) {
#pragma unroll 1
        for (int32_t r = 0; r < boxes; ++r, from += box_bytes) {
          if (ByWarp && !device::elect()) continue;
#pragma unroll
          for (int m = 0; m < config.m_blocks; ++m) {
            const int32_t there[tensor_map_rank] = {place[0], place[1] + 64 * m,
                                                    place[2] + r * p.y_row_step + (p.phases_in_boxes ? 0 : i),
                                                    place[3] + (p.phases_in_boxes ? i : 0), place[4]};
            if (m >= blocks || there[1] >= p.out_channels) break;
            device::box_store(p.y_maps[0], there, from + static_cast<uint32_t>(m * staged_block_bytes));
          }
        }
      }
      if (p.piece_rows == 1) {
        place[0] += positions * p.v.stride;
      } else {
        place[2] += b.rows * (p.phases_in_boxes ? 1 : p.y_row_step);
      }
    }
  };

 private:
  // Blocks of rows are all phases of the columns, or each of other channels. `Merged`: the slab is of two pieces.
  template <int Phases, bool Merged, class Sums>
  CONVT_DEVICE static void stage_blocks(const Params& p, const Sums& sums, int k, device::SharedAddress to,
                                        int32_t warp, int32_t lane) {
    constexpr int32_t group_bytes = 8 * Phases * static_cast<int32_t>(sizeof(Scalar));
    constexpr bool matrices = group_bytes == unit_bytes;  // fragments that are staged by stmatrix
    const RowBoxes& b = p.row_boxes;
    const int32_t together = b.groups - 1, log_groups = __popc(static_cast<uint32_t>(together));
    // Of a row of y that is stacked; of a row of positions; and of this lane's channel in it.
    const int32_t stacked = warp >> p.log_warps_of_row, first = (warp & ((1 << p.log_warps_of_row) - 1)) * 16;
    const int32_t channel = matrices ? lane % 16 : lane / 4, row = b.channels * b.bytes;
    const device::SharedAddress base = to + static_cast<uint32_t>(stacked * b.rows * row + (first + channel) * b.bytes);
    const int32_t swizzle = (channel * b.bytes >> 3) & (b.bytes - unit_bytes);
    const auto at = static_cast<uint32_t>((matrices ? lane / 16 * unit_bytes : lane % 4 * (group_bytes / 4)) ^ swizzle);
    const auto group_at = [&](int j) {
      return base + static_cast<uint32_t>((j >> log_groups) * row) +
             (static_cast<uint32_t>((j & together) * group_bytes) ^ at);
    };
#pragma unroll
    for (int m = 0; m < config.m_blocks; m += Phases) {
      const auto block = static_cast<uint32_t>(m * staged_block_bytes);
      const auto fragment = [&](int j, int phase) -> const float* {
        return Merged ? &sums[m + phase][j % 2][(k * (groups / 2) + j / 2) * 4]
                      : &sums[m + phase][k / slabs][(k % slabs * groups + j) * 4];
      };
#pragma unroll
      for (int j = 0; j < groups; j += matrices ? 2 : 1) {
        const device::SharedAddress there = group_at(j) + block;
        if constexpr (matrices) {
          const float *const v = fragment(j, 0), *const next = fragment(j + 1, 0);
          const uint32_t r[4] = {pack(Scalar{}, v[0], v[1]), pack(Scalar{}, v[2], v[3]),
                                 pack(Scalar{}, next[0], next[1]), pack(Scalar{}, next[2], next[3])};
          device::stmatrix_x4(there, r);
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float *const v = fragment(j, 0) + 2 * half, *const u = fragment(j, Phases - 1) + 2 * half;
            const device::SharedAddress its = there + static_cast<uint32_t>(half * 8 * b.bytes);
            if constexpr (sizeof(Scalar) == 2) {
              device::store_shared_8(its, pack(Scalar{}, v[0], u[0]), pack(Scalar{}, v[1], u[1]));
            } else if constexpr (Phases == 1) {
              device::store_shared_8(its, __float_as_uint(v[0]), __float_as_uint(v[1]));
            } else {
              device::store_shared_16(its, __float_as_uint(v[0]), __float_as_uint(u[0]), __float_as_uint(v[1]),
                                      __float_as_uint(u[1]));
            }
          }
        }
      }
    }
  }
};

}  // namespace convt::implicit_gemm_sm90
