// Rows innermost in y, written by the copy engine: a warpgroup's sums, converted and in the order of y, as boxes.
#pragma once

#include "epilogue.cuh"

namespace convt::implicit_gemm_sm90 {

// Units of 16 bytes of a row change places by the swizzle for rows of so many bytes, so that channels that are staged
// together are in different banks. As in ChannelsLast, there are two buffers.
template <Mode mode, int Row>
struct RowsInBoxes {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  static constexpr int32_t positions = staged_positions(config, sizeof(Scalar));  // of a buffer
  static constexpr int32_t slabs = config.width / positions;                      // of a piece
  static constexpr int32_t threads = 128, groups = positions / 8;
  static constexpr int32_t staged_block_bytes = positions * 64 * static_cast<int32_t>(sizeof(Scalar));
  static_assert(has_row_boxes(config, sizeof(Scalar)) && sizeof(Scalar) == 2);
  static_assert(4 * slab_pitch_of(config) * 16 * config.m_blocks * 4 >= staged_bytes);

  // Whether a row has eight positions of each of two pieces side by side.
  CONVT_DEVICE static bool merged(const Params& p) { return p.piece_rows > 1 && p.row_boxes.log_groups > 0; }

  // A warp's part of slab `k` of the warpgroup's: sums[block][piece] are as wgmma leaves them.
  template <class Sums>
  CONVT_DEVICE static void stage(const Params& p, const Sums& sums, int k, device::SharedAddress to, int32_t warp,
                                 int32_t lane) {
    if constexpr (config.m_blocks > 1) {
      if (p.column_phases > 1) return stage_phases(p, sums, k, to, warp, lane);
    }
    if constexpr (merges_pieces(config, sizeof(Scalar))) {
      if (merged(p)) return stage_phase<true>(p, sums, k, to, warp, lane);
    }
    stage_phase<false>(p, sums, k, to, warp, lane);
  }

  // The boxes of a tile, a slab at a time, as those of ChannelsLast.
  struct Boxes {
    int32_t place[tensor_map_rank];  // of the slab that is next
    int32_t blocks;                  // of 64 channels that the warpgroup has

    // From slab `s` of the warpgroup's on.
    CONVT_DEVICE Boxes(const Params& p, const Place& at, int32_t m_group, int32_t first_piece, int32_t s) {
      const DeviceSet& set = p.sets[at.set];
      const bool two = merged(p);
      const Slab slab(p, at, first_piece + (two ? 0 : s / slabs), (two ? s : s % slabs) * positions, positions, two);
      const int32_t first = m_group * config.m_blocks;
      place[0] = slab.column * p.v.stride, place[1] = (at.channel_tile * p.channel_blocks + first) * 64;
      if (p.phases_in_boxes) {
        place[2] = slab.row, place[3] = set.row_phase, place[4] = slab.image;
      } else {
        place[2] = slab.row * p.y_row_step + set.row_phase, place[3] = slab.image, place[4] = at.group;
      }
      blocks = smaller(config.m_blocks, p.channel_blocks - first);
    }

    // The slab that is next. By a warp, of which one lane issues, or by one thread.
    template <bool ByWarp>
    CONVT_DEVICE void store(const Params& p, const DeviceSet&, device::SharedAddress from) {
      const RowBoxes& b = p.row_boxes;
      // Rows of positions that are no rows of the map are boxes for themselves.
      const bool one = p.phases_in_boxes || p.y_row_step == 1;
      const int32_t row_step = p.phases_in_boxes ? 1 : p.y_row_step;
      if (!ByWarp || device::elect()) {
#pragma unroll 1
        for (int32_t r = 0; r < (one ? 1 : b.rows); ++r, from += static_cast<uint32_t>(64 * b.bytes)) {
#pragma unroll
          for (int m = 0; m < config.m_blocks; ++m) {
            const int32_t there[tensor_map_rank] = {place[0], place[1] + 64 * m, place[2] + r * row_step, place[3],
                                                    place[4]};
            if (m >= blocks || there[1] >= p.out_channels) break;
            device::box_store(p.y_maps[0], there, from + static_cast<uint32_t>(m * staged_block_bytes), p.y_policy);
          }
        }
      }
      if (p.piece_rows == 1) {
        place[0] += positions * p.v.stride;
      } else {
        place[2] += b.rows * row_step;
      }
    }
  };

 private:
  // Where a lane's part of a group of eight positions is: of a channel of its warp's, `unit` bytes into the group.
  struct Staged {
    device::SharedAddress base;
    uint32_t in_row;
    int32_t next_row, log_groups;

    CONVT_DEVICE Staged(const Params& p, device::SharedAddress to, int32_t warp, int32_t channel, int32_t unit)
        : base(to + static_cast<uint32_t>((16 * warp + channel) * p.row_boxes.bytes)),
          in_row(static_cast<uint32_t>(unit ^ ((channel * p.row_boxes.bytes >> 3) & (p.row_boxes.bytes - unit_bytes)))),
          next_row(64 * p.row_boxes.bytes),
          log_groups(p.row_boxes.log_groups) {}

    template <int GroupBytes>
    CONVT_DEVICE device::SharedAddress group(int j) const {
      return base + static_cast<uint32_t>((j >> log_groups) * next_row) +
             (static_cast<uint32_t>((j & ((1 << log_groups) - 1)) * GroupBytes) ^ in_row);
    }
  };

  // One phase of the columns; blocks of rows are of other channels. `Merged`: of two pieces.
  template <bool Merged, class Sums>
  CONVT_DEVICE static void stage_phase(const Params& p, const Sums& sums, int k, device::SharedAddress to, int32_t warp,
                                       int32_t lane) {
    const Staged staged(p, to, warp, lane % 16, lane / 16 * unit_bytes);
#pragma unroll
    for (int m = 0; m < config.m_blocks; ++m) {
      const auto fragment = [&](int j) -> const float* {
        return Merged ? &sums[m][j % 2][(k * (groups / 2) + j / 2) * 4]
                      : &sums[m][k / slabs][(k % slabs * groups + j) * 4];
      };
#pragma unroll
      for (int j = 0; j < groups; j += 2) {
        const float *const v = fragment(j), *const next = fragment(j + 1);
        const uint32_t r[4] = {pack(Scalar{}, v[0], v[1]), pack(Scalar{}, v[2], v[3]), pack(Scalar{}, next[0], next[1]),
                               pack(Scalar{}, next[2], next[3])};
        device::stmatrix_x4(staged.template group<unit_bytes>(j) + static_cast<uint32_t>(m * staged_block_bytes), r);
      }
    }
  }

  // Two phases of the columns, which are the blocks of rows, of the same channels.
  template <class Sums>
  CONVT_DEVICE static void stage_phases(const Params& p, const Sums& sums, int k, device::SharedAddress to,
                                        int32_t warp, int32_t lane) {
    static_assert(config.m_blocks == 2);
    const Staged staged(p, to, warp, lane / 4, lane % 4 * 8);
#pragma unroll
    for (int j = 0; j < groups; ++j) {
      const int at = (k % slabs * groups + j) * 4;
      const device::SharedAddress there = staged.template group<2 * unit_bytes>(j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float *const v = &sums[0][k / slabs][at + 2 * half], *const u = &sums[1][k / slabs][at + 2 * half];
        device::store_shared_8(there + static_cast<uint32_t>(half * 8 * p.row_boxes.bytes), pack(Scalar{}, v[0], u[0]),
                               pack(Scalar{}, v[1], u[1]));
      }
    }
  }
};

}  // namespace convt::implicit_gemm_sm90
