// The epilogue: what a warpgroup has summed up, its bias added, goes to y through shared memory.
#pragma once

#include "../implicit_gemm/epilogue.cuh"
#include "params.h"

namespace convt::implicit_gemm_sm90 {

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
// tile on, or of the batch, if they are gathered.
struct Slab {
  int32_t image, row, column;  // of the first
  int32_t log_columns, count, position;

  // From position `first` of a piece on, or of two that are side by side.
  CONVT_DEVICE Slab(const Params& p, const Place& at, int32_t piece, int32_t first, int32_t positions, bool merged)
      : count(positions), position(piece * p.piece_columns + first) {
    if (p.gather) {
      // Whole rows begin with the first column; of positions in im2col, `at.column` is the tile's first one.
      image = at.image, row = at.row, column = 0, log_columns = 0, position += at.column;
      return;
    }
    const PiecePlace place = piece_place(p, piece);
    const bool squares = p.piece_rows > 1;
    image = at.image + place.image, row = at.row + place.row, column = at.column + place.column;
    log_columns = squares ? 3 + merged : 30;
    (squares ? row : column) += squares ? first >> log_columns : first;
  }

  // The output of position `n`, of the first phase of `set` and that of its rows that are stacked; false if there is
  // none.
  CONVT_DEVICE bool output(const Params& p, const DeviceSet& set, int32_t stacked, int32_t n, int32_t& out_image,
                           int32_t& out_row, int32_t& out_column) const {
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
    out_row = out_row * p.y_row_step + set.row_phase + stacked, out_column = out_column * p.v.stride + set.column_phase;
    return in_tile && out_row < p.h.out && out_column < p.v.out && out_image < p.batch;
  }
};

// The words of a warp's sums of a block: of channels, then of positions.
template <int Row>
constexpr int32_t block_words = 16 * slab_pitch_of(configs[Row]);

// Of the rows of y that share a block of rows, the one that a warp has.
CONVT_DEVICE int32_t stacked_of(const Params& p, int32_t warp) { return warp >> p.log_warps_of_row; }

// The channels of a block of rows, as a warp has them.
struct WarpChannels {
  int32_t first, count;  // of the group

  CONVT_DEVICE WarpChannels(const Params& p, const Place& at, const WarpPlace& w, int32_t channel_block)
      : first((at.channel_tile * p.channel_blocks + channel_block) * 64 +
              (w.warp & ((1 << p.log_warps_of_row) - 1)) * 16),
        count(smaller<int32_t>(16, p.out_channels - first)) {}
};

// The bias of the two channels of which a lane has sums; zeros unless there is one that is `wanted`.
template <Mode mode>
CONVT_DEVICE void load_bias(const Params& p, const Place& at, const WarpPlace& w, int32_t channel_block, bool wanted,
                            float (&bias)[2]) {
  using Scalar = typename Traits<mode>::Scalar;
  const WarpChannels channels(p, at, w, channel_block);
  const int32_t first = at.group * p.out_channels + channels.first;
  wanted = wanted && p.bias != nullptr;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t channel = w.lane / 4 + 8 * half;
    bias[half] = 0;
    if (wanted && channel < channels.count) load<1>(bias_at<Scalar>(p, first + channel), &bias[half]);
  }
}

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
    const Sums sums{block, slab_pitch_of(config), p.channel_blocks * block_words<Row>, slab_of(config), true};
    const int32_t vectors = slab.count * p.column_phases / Width;
    write_rows<mode, Width, words>(
        p, set, sums, group_channel, channels.count, 0, 32, vectors, w.lane, [&](int32_t i, Outputs& o) {
          auto phase = static_cast<uint32_t>(i * Width);
          o.position = static_cast<int32_t>(p.by_column_phases.divide(phase));
          o.phase = static_cast<int32_t>(phase), o.words = 0;
          const bool inside = slab.output(p, set, stacked_of(p, w.warp), o.position, o.image, o.row, o.column);
          o.column += o.phase;
          return inside && o.column < p.v.out && set.column_phase + o.phase < p.v.stride;
        });
  }
}

template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_slab_at_width(const Params& p, const Place& at, const WarpPlace& w, const Slab& slab,
                                      const float* staged) {
  if constexpr (Width > 1) {
    // Eight elements of any number of phases would need more registers than the sums leave.
    if (p.store_width < Width || (Width == 8 && p.column_phases > 2)) {
      return write_slab_at_width<mode, Row, Width / 2>(p, at, w, slab, staged);
    }
  }
  write_slab<mode, Row, Width>(p, at, w, slab, staged);
}

// Where a lane's vectors of the next slab of a piece go, one of each channel that it writes. Computed once a piece.
template <class Scalar>
struct RowWriter {
  Scalar* to;  // of the first of its channels
  int32_t row, column;
  bool inside;  // of the batch; or of y, if positions are gathered
};

// Rows innermost, where a warpgroup's blocks are all phases of the columns that a set has, or there is one: a warp's
// sums, converted and in the order of y, as [block of channels][16 channels][outputs]. Writing them is copying.
template <Mode mode, int Row, int Phases>
struct RowsInOrder {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  using Writer = RowWriter<Scalar>;
  static_assert(Phases == 1 || Phases == config.m_blocks);
  static constexpr int32_t blocks = config.m_blocks / Phases;   // of channels
  static constexpr int32_t outputs = slab_of(config) * Phases;  // of a channel
  static constexpr int32_t bytes = outputs * sizeof(Scalar);
  // So that neither fragments, when they are staged, nor rows, when they are read, have many bank conflicts.
  static constexpr int32_t pitch = bytes + 8 * Phases * static_cast<int32_t>(sizeof(Scalar));
  static constexpr int32_t staged_block_bytes = 16 * pitch;
  static_assert(blocks * staged_block_bytes <= 4 * config.m_blocks * block_words<Row>);

  // Fragments of eight positions, one after the other: fragment(j, m) is of block m.
  template <class Fragment>
  CONVT_DEVICE static void stage(const Fragment& fragment, int count, unsigned char* to, int32_t lane) {
    constexpr int groups = slab_of(config) / 8;
    if constexpr (sizeof(Scalar) == 2 && Phases == 1) {
      const device::SharedAddress row =
          device::shared_address(to) + static_cast<uint32_t>((lane / 8 % 2 * 8 + lane % 8) * pitch + lane / 16 * 16);
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int j = 0; j < groups; j += 2) {
          if (j >= count) break;
          uint32_t r[4] = {};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (j + e / 2 >= count) break;
            const float* const v = fragment(j + e / 2, m) + e % 2 * 2;
            r[e] = pack(Scalar{}, v[0], v[1]);
          }
          device::stmatrix_x4(row + static_cast<uint32_t>(m * staged_block_bytes + j * 16), r);
        }
      }
    } else {
      unsigned char* const row = to + lane / 4 * pitch + lane % 4 * (2 * Phases * static_cast<int32_t>(sizeof(Scalar)));
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int j = 0; j < groups; ++j) {
          if (j >= count) break;
          unsigned char* const at =
              row + m * staged_block_bytes + j * (8 * Phases * static_cast<int32_t>(sizeof(Scalar)));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float* const v = fragment(j, m) + 2 * half;
            auto* const words = at + half * 8 * pitch;
            if constexpr (Phases == 1) {
              *reinterpret_cast<float2*>(words) = make_float2(v[0], v[1]);
            } else {
              const float* const u = fragment(j, m + 1) + 2 * half;
              if constexpr (sizeof(Scalar) == 4) {
                *reinterpret_cast<float4*>(words) = make_float4(v[0], u[0], v[1], u[1]);
              } else {
                *reinterpret_cast<uint2*>(words) = make_uint2(pack(Scalar{}, v[0], u[0]), pack(Scalar{}, v[1], u[1]));
              }
            }
          }
        }
      }
    }
  }

  template <int Width>
  static constexpr int32_t channels_together = outputs / Width < 32 ? 32 / (outputs / Width) : 1;  // by a warp
  template <int Width, int Bytes = Width * static_cast<int>(sizeof(Scalar))>
  using VectorOf =
      std::conditional_t<Bytes == 16, uint4,
                         std::conditional_t<Bytes == 8, uint2, std::conditional_t<Bytes == 4, uint32_t, uint16_t>>>;

  // Of a lane, so many that they hide how long shared memory takes.
  template <int Width>
  static constexpr int on_their_way = sizeof(VectorOf<Width>) < 16 ? 8 : 4;

  // A slab that is staged, to y.
  template <int Width>
  CONVT_DEVICE static void write_slab(const Params& p, const Place& at, const WarpPlace& w, const Slab& slab,
                                      const unsigned char* from) {
    using Vector = VectorOf<Width>;
    constexpr int32_t vectors = outputs / Width, together = channels_together<Width>;
    const DeviceSet& set = p.sets[at.set];
    const int32_t sub = together > 1 ? w.lane / vectors : 0;
    from += sub * pitch;
#pragma unroll
    for (int32_t first = 0; first < vectors; first += 32) {
      const int32_t i = first + (together > 1 ? w.lane % vectors : w.lane);
      const int32_t position = i * Width / Phases, phase = i * Width % Phases;
      int32_t image, row, column;
      if (position >= slab.count || !slab.output(p, set, stacked_of(p, w.warp), position, image, row, column)) continue;
      column += phase;
      if (column >= p.v.out) continue;
      Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                        static_cast<int64_t>(row) * p.y_row_stride + static_cast<int64_t>(column) * p.y_column_stride;
#pragma unroll 1
      for (int32_t m = 0; m < blocks; ++m) {
        const int32_t block = w.group_m * blocks + m;
        if (block >= p.channel_blocks) break;
        const WarpChannels channels(p, at, w, block);
        Scalar* to = y + (static_cast<int64_t>(at.group) * p.out_channels + channels.first + sub) * p.y_channel_stride;
        const unsigned char* vector = from + m * staged_block_bytes + i * static_cast<int32_t>(sizeof(Vector));
#pragma unroll on_their_way < Width>
        for (int32_t channel = sub; channel < channels.count; channel += together) {
          *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(vector);
          to += together * p.y_channel_stride, vector += together * pitch;
        }
      }
    }
  }

  // The same of the slabs of a piece, or of two that are side by side, one after the other. What the first one computes
  // stays for the others.
  template <int Width>
  CONVT_DEVICE static void write_next(const Params& p, const Place& at, const WarpPlace& w, int32_t piece,
                                      int32_t first, bool merged, Writer& writer, const unsigned char* from) {
    using Vector = VectorOf<Width>;
    constexpr int32_t vectors = outputs / Width, together = channels_together<Width>, slab = slab_of(config);
    const int32_t i = w.lane % vectors, sub = w.lane / vectors;
    if (first == 0) {
      int32_t image;
      Slab(p, at, piece, 0, slab, merged)
          .output(p, p.sets[at.set], stacked_of(p, w.warp), i * Width / Phases, image, writer.row, writer.column);
      writer.column += i * Width % Phases, writer.inside = image < p.batch;
      const WarpChannels channels(p, at, w, w.group_m * blocks);
      writer.to = static_cast<Scalar*>(p.y) + image * p.y_batch_stride +
                  static_cast<int64_t>(writer.row) * p.y_row_stride +
                  static_cast<int64_t>(writer.column) * p.y_column_stride +
                  (static_cast<int64_t>(at.group) * p.out_channels + channels.first + sub) * p.y_channel_stride;
    }
    const int32_t positions = (merged ? 2 : 1) * config.width;
    if ((config.width % slab == 0 || first + i * Width / Phases < positions) && writer.inside && writer.row < p.h.out &&
        writer.column < p.v.out) {
      const int64_t next = together * p.y_channel_stride;
#pragma unroll 1
      for (int32_t m = 0; m < blocks; ++m) {
        const int32_t block = w.group_m * blocks + m;
        if (block >= p.channel_blocks) break;
        const WarpChannels channels(p, at, w, block);
        Scalar* to = writer.to + m * 64 * p.y_channel_stride;
        const unsigned char* vector =
            from + sub * pitch + m * staged_block_bytes + i * static_cast<int>(sizeof(Vector));
        if (channels.count == 16) {
#pragma unroll on_their_way < Width>
          for (int32_t k = 0; k < 16 / together; ++k, to += next) {
            *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(vector + k * together * pitch);
          }
          continue;
        }
#pragma unroll 1
        for (int32_t channel = sub; channel < channels.count; channel += together, to += next) {
          *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(vector);
          vector += together * pitch;
        }
      }
    }
    const bool squares = p.piece_rows > 1;
    const int32_t rows = squares ? slab / (merged ? 16 : 8) * p.y_row_step : 0,
                  columns = squares ? 0 : slab * p.v.stride;
    writer.row += rows, writer.column += columns;
    writer.to += static_cast<int64_t>(rows) * p.y_row_stride + static_cast<int64_t>(columns) * p.y_column_stride;
  }

  template <int Width>
  CONVT_DEVICE static void write(const Params& p, const Place& at, const WarpPlace& w, int32_t piece, int32_t first,
                                 bool merged, Writer& writer, const unsigned char* from) {
    // Beside many sums of two pieces or blocks there are no registers for what stays.
    if constexpr ((config.pieces * config.m_blocks == 1 || config.accumulators() < 128) && outputs / Width <= 32) {
      if (!p.gather) return write_next<Width>(p, at, w, piece, first, merged, writer, from);
    }
    constexpr int32_t slab = slab_of(config);
    write_slab<Width>(p, at, w,
                      Slab(p, at, piece, first, smaller(slab, (merged ? 2 : 1) * config.width - first), merged), from);
  }

  CONVT_DEVICE static void write_at_width(const Params& p, const Place& at, const WarpPlace& w, int32_t piece,
                                          int32_t first, bool merged, Writer& writer, const unsigned char* from) {
    if (sizeof(Scalar) == 2 && p.store_width == 8) {
      write<sizeof(Scalar) == 2 ? 8 : 4>(p, at, w, piece, first, merged, writer, from);
    } else if (p.store_width == 4) {
      write<4>(p, at, w, piece, first, merged, writer, from);
    } else if (p.store_width == 2) {
      write<2>(p, at, w, piece, first, merged, writer, from);
    } else {
      write<1>(p, at, w, piece, first, merged, writer, from);
    }
  }
};

// Channels innermost: a warpgroup's sums, converted, as [block of rows][128 bytes of channels][position]. The units of
// 16 bytes of a position change places within eight positions, so that neither fragments, when they are staged, nor
// units, when they are read, have bank conflicts: boxes of y, as the copy engine writes them. There are two buffers:
// the warpgroup meets once for each that it has staged.
template <Mode mode, int Row>
struct ChannelsLast {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  static constexpr int32_t vector = unit_bytes / sizeof(Scalar), units = 64 / vector;  // of a position
  static constexpr int32_t position_bytes = 64 * sizeof(Scalar);
  static constexpr int32_t positions = staged_positions(config, sizeof(Scalar));  // of a buffer
  static constexpr int32_t parts = position_bytes / row_bytes, part_bytes = positions * row_bytes;
  static constexpr int32_t staged_block_bytes = positions * position_bytes;
  static constexpr int32_t slabs = (config.width + positions - 1) / positions;  // of a piece
  static constexpr int32_t threads = 128, together = threads / units;           // positions that are written at once
  static_assert(positions % 16 == 0 && together % 8 == 0);
  static_assert(4 * slab_pitch_of(config) * 16 * config.m_blocks * 4 >= staged_bytes);

  CONVT_DEVICE static uint32_t at(int32_t position, int32_t unit) {
    return static_cast<uint32_t>(unit / 8 * part_bytes) + unit_at(position, unit % 8);
  }

  // A warp's part of slab `k` of the warpgroup's: sums[block][piece] are as wgmma leaves them.
  template <class Sums>
  CONVT_DEVICE static void stage(const Params&, const Sums& sums, int k, device::SharedAddress to, int32_t warp,
                                 int32_t lane) {
    constexpr int groups = config.width / 8, groups_of_slab = positions / 8;
    const int piece = k / slabs, first = k % slabs * groups_of_slab;
#pragma unroll
    for (int m = 0; m < config.m_blocks; ++m) {
      const device::SharedAddress block = to + static_cast<uint32_t>(m * staged_block_bytes);
      if constexpr (sizeof(Scalar) == 2) {
        const uint32_t row = at(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
        for (int j = 0; j < groups_of_slab; j += 2) {
          if (first + j >= groups) break;
          uint32_t r[4] = {};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int group = first + j + e / 2;
            if (group >= groups) break;
            const float* const v = &sums[m][piece][group * 4 + e % 2 * 2];
            r[e] = pack(Scalar{}, v[0], v[1]);
          }
          device::stmatrix_x4_trans(block + row + static_cast<uint32_t>(j * 8 * row_bytes), r);
        }
      } else {
        const uint32_t word = at(lane % 4 * 2, 4 * warp + lane / 16) + static_cast<uint32_t>(lane / 4 % 4 * 4);
#pragma unroll
        for (int j = 0; j < groups_of_slab; ++j) {
          if (first + j >= groups) break;
          const float* const v = &sums[m][piece][(first + j) * 4];
          // The next position's unit is its neighbour, and eight channels further is two units.
          const device::SharedAddress group = block + static_cast<uint32_t>(j * 8 * row_bytes);
          const device::SharedAddress next = group + row_bytes;
          device::store_shared_4(group + word, v[0]);
          device::store_shared_4(next + (word ^ 16), v[1]);
          device::store_shared_4(group + (word ^ 32), v[2]);
          device::store_shared_4(next + (word ^ 48), v[3]);
        }
      }
    }
  }

  // The boxes of a piece of a tile, a slab at a time, to y by the copy engine. The other warps wait for the warp that
  // tells it: where they go is computed once, alike in all lanes, and one lane issues.
  struct Boxes {
    int32_t place[tensor_map_rank];
    int32_t rank;        // of the first block's phase of the columns
    int32_t next, rows;  // positions, or rows of y, from a slab to the next; boxes of a slab

    // From slab `s` of the warpgroup's on.
    CONVT_DEVICE Boxes(const Params& p, const Place& at_tile, int32_t m_group, int32_t first_piece, int32_t s) {
      const DeviceSet& set = p.sets[at_tile.set];
      const Slab slab(p, at_tile, first_piece + s / slabs, s % slabs * positions, positions, false);
      const bool squares = p.piece_rows > 1;
      const int32_t block = m_group * config.m_blocks;
      rank = p.channel_blocks > 1 ? 0 : block;
      place[0] = (at_tile.channel_tile * p.channel_blocks + (p.channel_blocks > 1 ? block : 0)) * 64;
      place[1] = slab.column, next = squares ? positions / 8 : positions, rows = 1;
      if (p.phases_in_boxes) {
        place[2] = set.row_phase, place[3] = slab.row, place[4] = slab.image;
      } else {
        place[2] = slab.row * p.y_row_step + set.row_phase, place[3] = slab.image, place[4] = at_tile.group;
        // Rows of positions that are rows of y are one box.
        if (squares && p.h.stride > 1) rows = positions / 8;
      }
    }

    // The slab that is next. By a warp, of which one lane issues, or by one thread.
    template <bool ByWarp>
    CONVT_DEVICE void store(const Params& p, const DeviceSet& set, device::SharedAddress from) {
#pragma unroll 1
      for (int32_t i = 0; i < rows; ++i) {
        if (!ByWarp || device::elect()) {
#pragma unroll
          for (int m = 0; m < config.m_blocks; ++m) {
            // Blocks are of several phases, or of several times 64 channels.
            const bool channel_blocks = p.channel_blocks > 1;
            const int32_t first = place[0] + (channel_blocks ? 64 * m : 0), its = rank + (channel_blocks ? 0 : m);
            if (its >= set.columns) break;
#pragma unroll
            for (int part = 0; part < parts; ++part) {
              const int32_t there[tensor_map_rank] = {first + part * (64 / parts), place[1], place[2], place[3],
                                                      place[4]};
              if (there[0] >= p.out_channels) break;
              const device::SharedAddress box =
                  from + static_cast<uint32_t>(m * staged_block_bytes + part * part_bytes);
              device::box_store(p.y_maps[set.column_phase + its], there, box, p.y_policy);
            }
          }
        }
        if (rows > 1) place[2] += p.y_row_step, from += 8 * row_bytes;
      }
      if (p.piece_rows == 1) {
        place[1] += next;
      } else if (p.phases_in_boxes) {
        place[3] += next;
      } else if (rows == 1) {
        place[2] += next * p.y_row_step;
      }
    }
  };

  // The outputs of a tile that a thread of the warpgroup writes: 16 bytes of channels of every `together`-th position.
  // What is the same for all of them is computed once.
  struct Writer {
    int32_t group_m, thread;
    // Of each block of rows: from the address of its position, and beyond which column there are no outputs of its
    // phase.
    int64_t block_offset[config.m_blocks];
    int32_t columns[config.m_blocks];
    int32_t left_of_first;  // channels from its first one, of the first block
    // Of the position that is next.
    Scalar* to;
    int32_t row, column;
    bool inside;

    CONVT_DEVICE Writer(const Params& p, const Place& at_tile, int32_t m_group, int32_t group_thread)
        : group_m(m_group), thread(group_thread) {
      const DeviceSet& set = p.sets[at_tile.set];
#pragma unroll
      for (int m = 0; m < config.m_blocks; ++m) {
        const int32_t block = group_m * config.m_blocks + m;
        // Blocks are of several phases, or of several times 64 channels.
        const int32_t rank = p.channel_blocks > 1 ? 0 : block, channel_block = p.channel_blocks > 1 ? block : 0;
        const bool there = rank < set.columns && channel_block < p.channel_blocks;
        const int32_t phase = there ? column_phase_of(p, set, rank) - set.column_phase : 0;
        const int32_t its = (at_tile.channel_tile * p.channel_blocks + channel_block) * 64 + channel_of(p);
        if (m == 0) left_of_first = p.out_channels - its;
        columns[m] = there && its < p.out_channels ? p.v.out - phase : 0;
        block_offset[m] = its + static_cast<int64_t>(phase) * p.y_column_stride;
      }
    }

    CONVT_DEVICE int32_t left(const Params& p, int m) const {
      return left_of_first - (p.channel_blocks > 1 ? 64 * m : 0);
    }

    // Its units of channels, and its first position of a piece.
    CONVT_DEVICE int32_t unit() const { return opaque(thread) % units; }
    // The first of its channels of a block of rows, and of the rows of y that share the block, the one that it has.
    CONVT_DEVICE int32_t channel_of(const Params& p) const {
      return (unit() * vector) & ((16 << p.log_warps_of_row) - 1);
    }
    CONVT_DEVICE int32_t stacked(const Params& p) const { return stacked_of(p, unit() * vector / 16); }
    CONVT_DEVICE int32_t first_position() const { return opaque(thread) / units; }

    CONVT_DEVICE void locate(const Params& p, const Place& at_tile, const Slab& slab, int32_t position) {
      int32_t image;
      inside = slab.output(p, p.sets[at_tile.set], stacked(p), position, image, row, column);
      to = static_cast<Scalar*>(p.y) + static_cast<int64_t>(at_tile.group) * p.out_channels + image * p.y_batch_stride +
           static_cast<int64_t>(row) * p.y_row_stride + static_cast<int64_t>(column) * p.y_column_stride;
      if (p.gather) return;
      // Rows and columns are looked at when they are written, as they advance: rows of 8, or one row.
      inside = image < p.batch;
    }

    // From a position to the next one.
    CONVT_DEVICE static int64_t advances(const Params& p, int32_t& rows, int32_t& columns) {
      const bool squares = p.piece_rows > 1;
      rows = squares ? together / 8 * p.y_row_step : 0, columns = squares ? 0 : together * p.v.stride;
      return static_cast<int64_t>(rows) * p.y_row_stride + static_cast<int64_t>(columns) * p.y_column_stride;
    }

    // A slab that is staged, its first position of a piece being `first_of_slab`, to y.
    template <int Width>
    CONVT_DEVICE void write(const Params& p, const Place& at_tile, int32_t piece, int32_t first_of_slab,
                            device::SharedAddress from) {
      const int32_t first = first_position();
      from += at(first, unit());
      int32_t next_row, next_column;
      const int64_t next = advances(p, next_row, next_column);
      // Lanes that have no channels would keep the others of their warp from the short way below.
      bool nothing = true;
#pragma unroll
      for (int m = 0; m < config.m_blocks; ++m) nothing = nothing && columns[m] == 0;
      if (nothing) return;
      // Whether all of the slab's positions are outputs, and all of their channels: then it is some ten instructions.
      // (Beside two pieces there are no registers for it.)
      constexpr int32_t further = positions / together - 1;
      constexpr bool may_be_whole = Width == vector && config.pieces == 1 && config.width % positions == 0;
      bool whole = may_be_whole && !p.gather && inside && row + further * next_row < p.h.out;
#pragma unroll
      for (int m = 0; m < config.m_blocks; ++m) {
        whole = whole && column + further * next_column < columns[m] && left(p, m) >= vector;
      }
      if (whole) [[likely]] {
        row += positions / together * next_row, column += positions / together * next_column;
#pragma unroll
        for (int i = 0; i < positions / together; ++i, to += next) {
#pragma unroll
          for (int m = 0; m < config.m_blocks; ++m) {
            *reinterpret_cast<uint4*>(to + block_offset[m]) =
                device::load_shared_16(from + static_cast<uint32_t>(m * staged_block_bytes + i * together * row_bytes));
          }
        }
        return;
      }
      const auto write_one = [&](int i) {
#pragma unroll
        for (int m = 0; m < config.m_blocks; ++m) {
          const uint4 words =
              device::load_shared_16(from + static_cast<uint32_t>(m * staged_block_bytes + i * together * row_bytes));
          const uint32_t v[4] = {words.x, words.y, words.z, words.w};
          if (inside && row < p.h.out && column < columns[m]) {
#pragma unroll
            for (int e = 0; e < vector; e += Width) {
              if (Width == vector || e < left(p, m)) store_bits<Width>(to + block_offset[m] + e, v, e);
            }
          }
        }
      };
      const int32_t end = smaller(positions, config.width - first_of_slab);
      if (p.gather) {
        const Slab slab(p, at_tile, piece, first_of_slab, positions, false);
#pragma unroll 1
        for (int i = 0; first + i * together < end; ++i) {
          locate(p, at_tile, slab, first + i * together);
          write_one(i);
        }
        return;
      }
#pragma unroll
      for (int i = 0; i < positions / together; ++i) {
        if (config.width % positions != 0 && first + i * together >= end) break;
        write_one(i);
        to += next, row += next_row, column += next_column;
      }
    }

    // The bias alone, to the outputs of phases of the columns that no tap reaches, at the positions of the slab that is
    // next.
    template <int Width>
    CONVT_DEVICE void write_tapless(const Params& p, const Place& at_tile, const Slab& slab) {
      const DeviceSet& set = p.sets[at_tile.set];
      const int32_t first_block = group_m * config.m_blocks;
#pragma unroll 1
      for (int32_t cb = first_block; cb < smaller(p.channel_blocks, first_block + config.m_blocks); ++cb) {
        const int32_t channel = (at_tile.channel_tile * p.channel_blocks + cb) * 64 + channel_of(p);
        const int32_t channels_left = p.out_channels - channel;
        if (channels_left <= 0) continue;
        uint32_t v[4] = {};
        if (p.bias != nullptr) {
          float bias[vector] = {};
          const int32_t first = at_tile.group * p.out_channels + channel;
#pragma unroll
          for (int e = 0; e < vector; ++e) {
            if (e < channels_left) load<1>(bias_at<Scalar>(p, first + e), &bias[e]);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if constexpr (sizeof(Scalar) == 4) {
              v[e] = __float_as_uint(bias[e]);
            } else {
              v[e] = pack(Scalar{}, bias[2 * e], bias[2 * e + 1]);
            }
          }
        }
#pragma unroll 1
        for (int32_t phase = 0; phase < smaller(p.column_phases, p.v.stride - set.column_phase); ++phase) {
          if (p.column_rank[set.column_phase + phase] >= 0) continue;
#pragma unroll 1
          for (int32_t position = first_position(); position < slab.count; position += together) {
            int32_t image, at_row, at_column;
            if (!slab.output(p, set, stacked(p), position, image, at_row, at_column)) continue;
            if (at_column + phase >= p.v.out) continue;
            Scalar* const y = static_cast<Scalar*>(p.y) + static_cast<int64_t>(at_tile.group) * p.out_channels +
                              channel + image * p.y_batch_stride + static_cast<int64_t>(at_row) * p.y_row_stride +
                              static_cast<int64_t>(at_column + phase) * p.y_column_stride;
#pragma unroll
            for (int e = 0; e < vector; e += Width) {
              if (Width == vector || e < channels_left) store_bits<Width>(y + e, v, e);
            }
          }
        }
      }
    }

    CONVT_DEVICE void write_at_width(const Params& p, const Place& at_tile, int32_t piece, int32_t first_of_slab,
                                     device::SharedAddress from) {
      const DeviceSet& set = p.sets[at_tile.set];
      const bool tapless = set.columns < smaller(p.column_phases, p.v.stride - set.column_phase);
      const auto write_both = [&](auto width) {
        constexpr int elements = decltype(width)::value;
        if (tapless) [[unlikely]] {
          const int32_t count = smaller<int32_t>(positions, config.width - first_of_slab);
          // (Of vectors, or of elements: such phases are rare.)
          write_tapless<elements == vector ? vector : 1>(p, at_tile,
                                                         Slab(p, at_tile, piece, first_of_slab, count, false));
        }
        write<elements>(p, at_tile, piece, first_of_slab, from);
      };
      if (p.store_width == vector) [[likely]] {
        write_both(std::integral_constant<int, vector>{});
      } else if (vector == 8 && p.store_width == 4) {
        write_both(std::integral_constant<int, 4>{});
      } else if (p.store_width == 2) {
        write_both(std::integral_constant<int, 2>{});
      } else {
        write_both(std::integral_constant<int, 1>{});
      }
    }
  };

 private:
  // `Width` of the elements in 16 bytes, from element `first` on.
  template <int Width>
  CONVT_DEVICE static void store_bits(Scalar* to, const uint32_t (&v)[4], int first) {
    constexpr int bytes = Width * static_cast<int>(sizeof(Scalar));
    const int word = first * static_cast<int>(sizeof(Scalar)) / 4;
    if constexpr (bytes == 16) {
      *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
    } else if constexpr (bytes == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(v[word], v[word + 1]);
    } else if constexpr (bytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = v[word];
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(v[word] >> (first % 2 * 16));
    }
  }
};

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
      if (channel >= channels.count || !slab.output(p, set, stacked_of(p, w.warp), n, image, row, column) ||
          column + phase >= p.v.out) {
        continue;
      }
      correct_output<mode>(p, at.group, image, channels.first + channel, row, column + phase);
    }
  }
}

}  // namespace convt::implicit_gemm_sm90
