// Writing sums that lie in shared memory, the bias added, to y. What depends on a position is computed once for all
// channels, so that a vector costs its reads, its conversion, its store and two additions.
#pragma once

#include "device.cuh"

namespace convt::implicit_gemm {

// Consecutive words: as wide as they may be read, if `Aligned`.
template <int Count, bool Aligned>
CONVT_DEVICE void read_words(const float* from, float* to) {
  if constexpr (Aligned && Count % 4 == 0) {
#pragma unroll
    for (int e = 0; e < Count; e += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + e);
      to[e] = v.x, to[e + 1] = v.y, to[e + 2] = v.z, to[e + 3] = v.w;
    }
  } else if constexpr (Aligned && Count % 2 == 0) {
#pragma unroll
    for (int e = 0; e < Count; e += 2) {
      const float2 v = *reinterpret_cast<const float2*>(from + e);
      to[e] = v.x, to[e + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int e = 0; e < Count; ++e) to[e] = from[e];
  }
}

// One vector of outputs of each of `count` channels; their sums lie `pitch` words apart. The vector's elements are
// from[at[e]]; of one or two phases (Phases), those of a phase lie next to each other.
template <class Scalar, int Width, int Words, int Phases>
CONVT_DEVICE void write_vectors(const float* from, int32_t pitch, const int32_t (&at)[Width], Scalar* y,
                                int64_t y_pitch, int32_t count) {
  const auto read = [&](const float* row, float (&v)[Width]) {
    if constexpr (Phases == 1) {
      read_words<Width, true>(row + at[0], v);
    } else if constexpr (Phases == 2 && Width >= 4) {
      float halves[2][Width / 2];
      read_words<Width / 2, true>(row + at[0], halves[0]), read_words<Width / 2, true>(row + at[1], halves[1]);
#pragma unroll
      for (int e = 0; e < Width; ++e) v[e] = halves[e % 2][e / 2];
    } else {
#pragma unroll
      for (int e = 0; e < Width; ++e) v[e] = row[at[e]];
    }
  };
  // `Words` are on their way, or a vector: a warp has few others beside it.
  constexpr int batch = Words >= 4 * Width ? 4 : Words > Width ? Words / Width : 1;
#pragma unroll 1
  for (; count >= batch; count -= batch, from += batch * pitch) {
    float v[batch][Width];
#pragma unroll
    for (int b = 0; b < batch; ++b) read(from + b * pitch, v[b]);
#pragma unroll
    for (int b = 0; b < batch; ++b, y += y_pitch) store<Width>(y, v[b]);
  }
#pragma unroll 1
  for (; count > 0; --count, from += pitch, y += y_pitch) {
    float v[Width];
    read(from, v);
    store<Width>(y, v);
  }
}

// Sums in shared memory as [phase][channel][position].
struct Sums {
  const float* words;  // of the first channel
  int32_t pitch;       // words from a channel to the next
  int32_t phase;       // words from a phase of the columns to the next
  int32_t tapless;     // where a channel has its bias alone, eight times
  bool aligned;        // whether vectors of a phase are
};

// Where a vector of outputs is, in y and among the sums.
struct Outputs {
  int32_t image, row, column;
  int32_t phase, position;  // of its first element
  int32_t words;            // from Sums::words to those of its row's phase; negative if no tap reaches the row
};

// The vectors `first`, first + step, ... of each channel's `vectors`, of channels whose first is `first_channel` of
// all groups'. `Words` registers hold what has been read; vectors of 8 need more of them if phases are more than two. A
// warp writes 32 vectors of a channel at once, or all of several channels. `locate(i, outputs)` says
// where vector i is and whether there is such an output.
template <Mode mode, int Width, int Words, class Locate>
CONVT_DEVICE void write_rows(const CommonParams& p, const DeviceSet& set, const Sums& sums, int64_t first_channel,
                             int32_t channels, int32_t first, int32_t step, int32_t vectors, int32_t lane,
                             const Locate& locate) {
  using Scalar = typename Traits<mode>::Scalar;
  const int32_t together = vectors < 32 ? static_cast<int32_t>(32u / static_cast<uint32_t>(vectors)) : 1;
  int32_t sub = 0;
  if (together > 1) {
    sub = static_cast<int32_t>(static_cast<uint32_t>(lane) / static_cast<uint32_t>(vectors));
    if (sub >= together) return;
    lane -= sub * vectors;
  }
  const int32_t count = (channels - sub + together - 1) / together;
  if (count <= 0) return;
  const int64_t y_pitch = together * p.y_channel_stride;
#pragma unroll 1
  for (int32_t i = first + lane; i < vectors; i += step) {
    Outputs o;
    if (!locate(i, o)) continue;
    const auto word_at = [&](int32_t phase, int32_t position) {
      const int32_t rank = p.column_rank[set.column_phase + phase];
      return rank < 0 || o.words < 0 ? sums.tapless : o.words + rank * sums.phase + position;
    };
    int32_t at[Width];
    const float* const from = sums.words + sub * sums.pitch;
    Scalar* const y = static_cast<Scalar*>(p.y) + o.image * p.y_batch_stride +
                      (first_channel + sub) * p.y_channel_stride + static_cast<int64_t>(o.row) * p.y_row_stride +
                      static_cast<int64_t>(o.column) * p.y_column_stride;
    const int32_t pitch = together * sums.pitch;
    // Only the first elements of each phase are asked for where the others lie next to them.
    if (Width == 1 || (p.column_phases == 1 && sums.aligned)) {
      at[0] = word_at(o.phase, o.position);
      write_vectors<Scalar, Width, Words, 1>(from, pitch, at, y, y_pitch, count);
    } else if (Width >= 4 && p.column_phases == 2 && sums.aligned) {
      at[0] = word_at(0, o.position), at[Width > 1] = word_at(1, o.position);
      write_vectors<Scalar, Width, Words, 2>(from, pitch, at, y, y_pitch, count);
    } else if constexpr (Width < 8 || Words > 8) {
      int32_t phase = o.phase, position = o.position;
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        at[e] = word_at(phase, position);
        if (++phase == p.column_phases) phase = 0, ++position;
      }
      write_vectors<Scalar, Width, Words, 0>(from, pitch, at, y, y_pitch, count);
    }
  }
}

// Where the bias of a channel is.
template <typename Scalar, class Params>
CONVT_DEVICE const Scalar* bias_at(const Params& p, int64_t group_channel) {
  auto channel = static_cast<uint32_t>(group_channel);
  p.by_bias_period.divide(channel);
  return static_cast<const Scalar*>(p.bias) + channel * p.bias_stride;
}

// Zero, or NaN if any of what is added is not finite: zero times each of it. In four sums, because in one each addition
// would wait for the one before.
struct ZeroSum {
  float sums[4] = {};

  template <int N>
  CONVT_DEVICE void add(const float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i % 4] = fmaf(v[i], 0.0f, sums[i % 4]);
  }
  CONVT_DEVICE bool is_nan() const {
    const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return sum != sum;
  }
};

// Computes an output by its definition if what the same warp has written is NaN, as an edge may make it.
template <Mode mode, bool ties_to_even = false, class Params>
CONVT_DEVICE void correct_output(const Params& p, int32_t group, int32_t image, int32_t channel, int32_t row,
                                 int32_t column) {
  using Scalar = typename Traits<mode>::Scalar;
  const int64_t group_channel = static_cast<int64_t>(group) * p.out_channels + channel;
  Scalar* const y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride + group_channel * p.y_channel_stride +
                    static_cast<int64_t>(row) * p.y_row_stride + static_cast<int64_t>(column) * p.y_column_stride;
  const float written = to_float(*y);
  if (written == written) return;
  float value = exact_output<mode, ties_to_even>(p, group, image, channel, row, column), bias = 0;
  if (p.bias != nullptr) load<1>(bias_at<Scalar>(p, group_channel), &bias);
  value += bias;
  store<1>(y, &value);
}

// The phase of the columns of a set that has rank `rank`.
CONVT_DEVICE int32_t column_phase_of(const CommonParams& p, const DeviceSet& set, int32_t rank) {
  int32_t phase = set.column_phase;
  while (p.column_rank[phase] != rank) ++phase;
  return phase;
}

}  // namespace convt::implicit_gemm
