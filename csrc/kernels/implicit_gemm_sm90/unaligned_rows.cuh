// Rows of 16-bit types, innermost in y, that begin anywhere: a warp's sums, converted, lie in shared memory at the same
// distance from a multiple of 16 bytes as in y, so that they leave 16 bytes at once. What is less than that, at both
// ends of a tile's part of a row, leaves by itself.
#pragma once

#include "epilogue.cuh"

namespace convt::implicit_gemm_sm90 {

// A warpgroup's blocks are all `Phases` of the columns, or there is one phase. `Twos`: rows begin and end at even
// elements.
template <Mode mode, int Row, int Phases, bool Twos>
struct UnalignedRows {
  using Scalar = typename Traits<mode>::Scalar;
  static constexpr Config config = configs[Row];
  static_assert(Phases == 1 || Phases == config.m_blocks);
  static constexpr int32_t bytes = 2, vector = unit_bytes / bytes;
  static_assert(sizeof(Scalar) == bytes);
  static constexpr int32_t blocks = config.m_blocks / Phases;  // of channels
  // Of a channel of a block, all that a warp has for its sums.
  static constexpr int32_t pitch = config.m_blocks * slab_pitch_of(config) * 4;
  static_assert(pitch % unit_bytes == 0);
  // Parts of a piece, of whole groups of eight positions.
  static constexpr int32_t most_positions = (pitch - unit_bytes) / (Phases * bytes) / 8 * 8;
  static constexpr int32_t parts = (config.width + most_positions - 1) / most_positions;
  static constexpr int32_t positions = (config.width / 8 + parts - 1) / parts * 8, outputs = positions * Phases;
  using Unit = std::conditional_t<Twos, uint32_t, uint16_t>;
  static constexpr int32_t of_unit = Twos ? 2 : 1;  // elements

  // A channel's row of a part.
  struct Line {
    Scalar* to;     // of the first channel of the warp's in a block
    int32_t count;  // outputs; none if there is no such row
    int32_t first;  // of channel 0, elements beyond a multiple of 16 bytes
    int32_t step;   // from a channel to the next
    CONVT_DEVICE int32_t beyond(int32_t channel) const { return (first + channel * step) & (vector - 1); }
  };

  CONVT_DEVICE static Line line(const Params& p, const Place& at, const WarpChannels& channels, int32_t warp,
                                int32_t piece, int32_t part) {
    const Slab slab(p, at, piece, part * positions, positions, false);
    int32_t image, row, column;
    const bool inside = slab.output(p, p.sets[at.set], stacked_of(p, warp), 0, image, row, column);
    const int32_t there = smaller(outputs, (config.width - part * positions) * Phases);
    const int64_t channel = static_cast<int64_t>(at.group) * p.out_channels + channels.first;
    Line l;
    l.to = static_cast<Scalar*>(p.y) + image * p.y_batch_stride + channel * p.y_channel_stride +
           static_cast<int64_t>(row) * p.y_row_stride + column;
    l.count = inside ? smaller(there, p.v.out - column) : 0;
    l.first = static_cast<int32_t>(reinterpret_cast<uintptr_t>(l.to) / bytes) & (vector - 1);
    l.step = static_cast<int32_t>(p.y_channel_stride) & (vector - 1);
    return l;
  }

  // fragment(j, m) are eight positions of a phase or block of channels.
  template <class Fragment>
  CONVT_DEVICE static void stage(const Line& l, const Fragment& fragment, int groups, unsigned char* to, int32_t lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t channel = lane / 4 + 8 * half;
      auto* const at =
          reinterpret_cast<Unit*>(to + channel * pitch + (l.beyond(channel) + lane % 4 * 2 * Phases) * bytes);
#pragma unroll
      for (int j = 0; j < positions / 8; ++j) {
        if (j >= groups) break;
        Unit* const group = at + j * (8 * Phases / of_unit);
        const float* const v = fragment(j, 0) + 2 * half;
        if constexpr (Phases == 1) {
          put(group, v[0], v[1]);
        } else {
          const float* const u = fragment(j, 1) + 2 * half;
          put(group, v[0], u[0]);
          put(group + 2 / of_unit, v[1], u[1]);
        }
      }
    }
  }

  CONVT_DEVICE static void write(const Line& l, int64_t channel_stride, int32_t channels, const unsigned char* from,
                                 int32_t lane) {
    if (channels <= 0) return;
    // Vectors that are whole: of two channels at a time, and then what is beyond the first sixteen of each.
    constexpr int32_t together = 16, more = outputs / vector - together;
    static_assert(more <= 2);
    const auto copy = [&](int32_t channel, int32_t i, Scalar* to, const unsigned char* staged) {
      const int32_t beyond = l.beyond(channel), at = (beyond != 0) + i;
      const uint4 v = *reinterpret_cast<const uint4*>(staged + at * unit_bytes);
      if (channel < channels && (at + 1) * vector <= beyond + l.count) {
        *reinterpret_cast<uint4*>(to + (at * vector - beyond)) = v;
      }
    };
    int32_t channel = lane / together;
    Scalar* to_channel = l.to + channel * channel_stride;
    const unsigned char* from_channel = from + channel * pitch;
#pragma unroll 4
    for (int32_t n = 0; n < 8; ++n) {
      copy(channel, lane % together, to_channel, from_channel);
      channel += 2, to_channel += 2 * channel_stride, from_channel += 2 * pitch;
    }
    if constexpr (more > 0) {
      channel = lane % 16;
      const int32_t i = lane / 16;
      copy(i < more ? channel : 16, together + (i < more ? i : 0), l.to + channel * channel_stride,
           from + channel * pitch);
    }
    // A lane for each end.
    channel = lane / 2;
    const int32_t beyond = l.beyond(channel), head = smaller((vector - beyond) & (vector - 1), l.count);
    const int32_t tail = larger(head, (beyond + l.count) / vector * vector - beyond);
    const int32_t first = lane % 2 == 0 ? 0 : tail, end = lane % 2 == 0 ? head : l.count;
    auto* const to = reinterpret_cast<Unit*>(l.to + channel * channel_stride + first);
    const auto* const staged = reinterpret_cast<const Unit*>(from + channel * pitch + (beyond + first) * bytes);
#pragma unroll
    for (int32_t e = 0; e < vector / of_unit - 1; ++e) {
      if (channel < channels && first + e * of_unit < end) to[e] = staged[e];
    }
  }

 private:
  CONVT_DEVICE static void put(Unit* to, float a, float b) {
    const uint32_t both = pack(Scalar{}, a, b);
    if constexpr (Twos) {
      to[0] = both;
    } else {
      to[0] = static_cast<uint16_t>(both), to[1] = static_cast<uint16_t>(both >> 16);
    }
  }
};

}  // namespace convt::implicit_gemm_sm90
