// The tile of one thread, row by row of the output: a row is stored when it is known, so that few sums are alive and
// the tile may be high, which spares loads of weights and of input rows that tiles share. Whether an infinity or a NaN
// among the weights may meet an input outside the tensor is known before. Aligned memory and whole vectors only. Runs
// on the GPU in kernel.cuh and on the CPU in host.cpp.
#pragma once

#include "tile.h"

namespace convt::depthwise {

// How many input rows are loaded before they are needed: as many as leave registers for the weights and the sums.
template <class S>
constexpr int rows_ahead(int resident) {
  const int span = S::h.last() - S::h.first() + 1;
  // More of them spill.
  const int budget = resident >= 4 ? 48 : resident == 3 ? 61 : 76;
  int ahead = 2;
  const auto needed = [&] {
    const int alive = span + ahead < S::in_rows ? span + ahead : S::in_rows;
    return S::kernel_h * S::kernel_w + S::out_columns + alive * S::in_columns;
  };
  while (ahead > 0 && needed() > budget) --ahead;
  return ahead;
}

// The tile of one thread in memory.
template <class S, class Scalar>
struct Spot {
  const Scalar* x;
  const Scalar* w;
  int64_t y_plane;
  uint32_t channel;
  Place<S> at;

  CONVT_HOST_DEVICE Spot(const Params& p, uint32_t index) {
    uint32_t tile_column = index;
    uint32_t tile_row = p.columns.divide(tile_column);
    channel = p.rows.divide(tile_row);
    const uint32_t n = p.channels.divide(channel);
    uint32_t channel_of_group = channel;
    const uint32_t group = p.multiplier.divide(channel_of_group);
    x = static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + group * p.x_channel_stride;
    w = static_cast<const Scalar*>(p.w) + group * p.w_group_stride + channel_of_group * p.w_channel_stride;
    y_plane = n * p.y_batch_stride + channel * p.y_channel_stride;
    at = Place<S>(p, tile_row, tile_column, x, y_plane);
  }
};

template <class Scalar>
CONVT_HOST_DEVICE float bias_of(const Params& p, uint32_t channel) {
  float bias = 0;
  if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);
  return bias;
}

template <int Row, class Scalar>
CONVT_HOST_DEVICE void compute_rows(const Params& p, uint32_t index) {
  using S = Shape<Row, Scalar, Access::vectors>;
  static_assert(S::widest == S::out_columns, "a thread stores whole rows");
  constexpr Window h = S::h, v = S::w;
  const Spot<S, Scalar> spot(p, index);
  const Place<S>& at = spot.at;

  constexpr int taps = S::kernel_h * S::kernel_w, piece = weight_piece(configs[Row], sizeof(Scalar));
  float weights[taps];
#pragma unroll
  for (int t = 0; t < taps; t += piece) load<piece>(spot.w + t, weights + t);
  const float bias = bias_of<Scalar>(p, spot.channel);

  const Scalar* corner = opaque(spot.x + (static_cast<int64_t>(at.input_row) * at.x_row(p) + at.input_column));
  char* y = static_cast<char*>(p.y) +
            opaque<int64_t>((spot.y_plane + (at.row * at.y_row(p) + at.column)) * static_cast<int64_t>(sizeof(Scalar)));
  constexpr int ahead = rows_ahead<S>(resident_blocks(S::config, sizeof(Scalar))) * S::stride_h;
  // Without branches, so that loads are not kept apart.
  const bool edge = (at.input_row < 0) | (at.input_row + S::in_rows > at.in(p)) | (at.input_column < 0) |
                    (at.input_column + S::in_columns > p.in_w);
  bool exact = false;
  float window[S::in_rows][S::in_columns];
#pragma unroll
  for (int r = 0; r < S::out_rows; ++r) {
    // The input rows that an output row further down needs first, so that they are under way with those of this one.
#pragma unroll
    for (int i = 0; i < S::in_rows; ++i) {
      if (i > last_input<S>(r + ahead) || (r > 0 && i <= last_input<S>(r + ahead - 1))) continue;
      load_row<S, 0>(p, opaque(corner + static_cast<int64_t>(i) * at.x_row(p)), at, at.input_row + i, window[i]);
    }
    float sums[S::out_columns];
#pragma unroll
    for (int c = 0; c < S::out_columns; ++c) sums[c] = 0;
#pragma unroll
    for (int j = 0; j < h.taps(r % S::stride_h); ++j) {
      const int i = r / S::stride_h + h.top(r % S::stride_h) - h.first() - j;
      const int t = h.phase(r % S::stride_h) + j * S::stride_h;
#pragma unroll
      for (int c = 0; c < S::out_columns; ++c) {
        const int phase = v.phase(c % S::stride_w);
        const int column = c / S::stride_w + v.top(c % S::stride_w) - v.first();
#pragma unroll
        for (int k = 0; k < v.taps(c % S::stride_w); ++k) {
          sums[c] += window[i][column - k] * weights[t * S::kernel_w + phase + k * S::stride_w];
        }
      }
    }
#pragma unroll
    for (int c = 0; c < S::out_columns; ++c) sums[c] += bias;
    if (at.row + r < at.out(p)) {
      const auto offset = static_cast<uint32_t>(r * at.y_row(p)) * static_cast<uint32_t>(sizeof(Scalar));
      store<S::out_columns>(reinterpret_cast<Scalar*>(y + offset), sums);
    }
    // Not before the first loads of the input, which would wait for the weights then. What is stored until then is
    // stored again.
    if (r == 0 && edge) {
      float zero = 0;
#pragma unroll
      for (int t = 0; t < taps; ++t) zero += weights[t] * 0.0f;
      exact = zero != 0;
    }
  }

  if (exact) {
    // Found again, so that it takes no registers until here.
    const Spot<S, Scalar> again(p, opaque(index));
    exact_tile<S>(p, again.x, again.w, bias_of<Scalar>(p, again.channel), static_cast<Scalar*>(p.y) + again.y_plane,
                  again.at);
  }
}

}  // namespace convt::depthwise
