// The tile of one thread. The bias is added to whole sums, here and in the other forms: in sums that begin with it,
// each addition is rounded at the size of the result. Runs on the GPU in kernel.cuh and on the CPU in host.cpp.
#pragma once

#include "../scalar.h"
#include "params.h"

namespace convt::depthwise {

// Everything about a tile that is known at compile time.
template <int Row, class Scalar, Access Mode>
struct Shape {
  static constexpr Config config = configs[Row];
  static constexpr Window h{config.h}, w{config.w};
  static constexpr Tile tile = tile_of(config, sizeof(Scalar), Mode);
  static constexpr int stride_h = config.h.stride, stride_w = config.w.stride;
  static constexpr int kernel_h = config.h.kernel, kernel_w = config.w.kernel;
  static constexpr int out_rows = tile.rows * stride_h, out_columns = tile.columns * stride_w;
  static constexpr int in_rows = tile.rows + h.last() - h.first(), in_columns = tile.columns + w.last() - w.first();
  static constexpr int widest = widest_store(config, sizeof(Scalar), Mode);
  static constexpr int load_width = tile.columns;
  static_assert((tile.columns & (tile.columns - 1)) == 0, "an aligned piece of a row is a power of two");
  static_assert(sizeof(Scalar) * tile.columns <= 16, "no wider load exists");
  static_assert(config.h.padding >= 0 && config.w.padding >= 0);

  // The widest aligned load that starts at column `i` of the window and ends in it. Column w.first() + i is counted
  // from the tile's start, a multiple of load_width.
  static constexpr int piece(int i) {
    int width = load_width;
    while (i + width > in_columns || (w.first() + i) % width != 0) width /= 2;
    return width;
  }
};

// The last row of the window that row `r` of the output, or one before it, needs.
template <class S>
CONVT_HOST_DEVICE constexpr int last_input(int r) {
  constexpr Window h = S::h;
  int last = -1;
#pragma unroll
  for (int i = 0; i < S::out_rows; ++i) {
    const int phase = i % S::stride_h, row = i / S::stride_h + h.top(phase) - h.first();
    if (i <= r && h.taps(phase) > 0 && row > last) last = row;
  }
  return last;
}

// Where a thread's tile is in its slice, or in the plane if there is one: then it takes no registers to say so.
template <class S>
struct Place {
  static constexpr bool sliced = S::stride_h == 1;

  int32_t row, column;              // of the tile's first output
  int32_t input_row, input_column;  // of the first input of its window
  Slice rows;

  Place() = default;
  // x and y are moved to the first rows of the slice.
  template <class X, class Y>
  CONVT_HOST_DEVICE Place(const Params& p, uint32_t tile_row, uint32_t tile_column, X& x, Y& y) {
    if constexpr (sliced) {
      rows = slice_of<S::config.h.padding>(whole_axis(p.in_h, p.out_h, p.shift_h), p.slices_h, tile_row);
      x += rows.first_in * p.x_row_stride;
      y += rows.first_out * p.out_w;
    }
    const auto q_row = static_cast<int32_t>(tile_row) * S::tile.rows;
    const auto q_column = static_cast<int32_t>(tile_column) * S::tile.columns;
    row = q_row * S::stride_h, column = q_column * S::stride_w;
    input_row = q_row + shift(p) + S::h.first(), input_column = q_column + p.shift_w + S::w.first();
  }

  CONVT_HOST_DEVICE int32_t in(const Params& p) const { return sliced ? rows.in : p.in_h; }
  CONVT_HOST_DEVICE int32_t out(const Params& p) const { return sliced ? rows.out : p.out_h; }
  CONVT_HOST_DEVICE int32_t shift(const Params& p) const { return sliced ? rows.shift : p.shift_h; }
  CONVT_HOST_DEVICE int32_t x_row(const Params& p) const {
    return sliced ? rows.step * p.x_row_stride : p.x_row_stride;
  }
  CONVT_HOST_DEVICE int32_t y_row(const Params& p) const { return sliced ? rows.step * p.out_w : p.out_w; }
};

// A row of the window, which starts at `first`. Columns outside the input are zero. A piece is inside or outside as a
// whole: where pieces are wider than one element, in_w is a multiple of their width.
template <class S, int I, class Scalar>
CONVT_HOST_DEVICE void load_row(const Params& p, const Scalar* first, const Place<S>& at, int32_t row, float* to) {
  if constexpr (I < S::in_columns) {
    constexpr int width = S::piece(I);
    const int32_t column = at.input_column + I;
    const bool inside = static_cast<uint32_t>(row) < static_cast<uint32_t>(at.in(p)) &&
                        static_cast<uint32_t>(column) < static_cast<uint32_t>(p.in_w);
    load_if<width>(inside, first + I, to + I);
    load_row<S, I + width>(p, first, at, row, to);
  }
}

template <class S, int Width, class Scalar>
CONVT_HOST_DEVICE void store_rows(const Params& p, Scalar* first, const Place<S>& at,
                                  const float (&sums)[S::out_rows][S::out_columns]) {
  if constexpr (Width > 1) {
    if (p.store_width < Width) return store_rows<S, Width / 2>(p, first, at, sums);
  }
#pragma unroll
  for (int r = 0; r < S::out_rows; ++r) {
    if (at.row + r >= at.out(p)) break;
    Scalar* row = opaque(first + r * at.y_row(p));
#pragma unroll
    for (int c = 0; c < S::out_columns; c += Width) {
      if (at.column + c < p.out_w) store<Width>(row + c, sums[r] + c);
    }
  }
}

// The same outputs one by one, with inputs outside the tensor left out instead of taken as zeros: zero times a weight
// that is infinite or NaN would be NaN.
template <class S, class Scalar>
CONVT_HOST_DEVICE void exact_tile(const Params& p, const Scalar* x, const Scalar* w, float bias, Scalar* y,
                                  const Place<S>& at) {
  const int32_t rows = smaller<int32_t>(S::out_rows, at.out(p) - at.row);
  const int32_t columns = smaller<int32_t>(S::out_columns, p.out_w - at.column);
#pragma unroll 1
  for (int32_t i = 0; i < rows * columns; ++i) {
    const int32_t r = i / columns, c = i - r * columns;
    const int32_t u = r + S::config.h.padding, v = c + S::config.w.padding;
    float sum = 0;
#pragma unroll 1
    for (int32_t t = u % S::stride_h; t < S::kernel_h; t += S::stride_h) {
      const int32_t row = at.row / S::stride_h + at.shift(p) + (u - t) / S::stride_h;
      if (row < 0 || row >= at.in(p)) continue;
#pragma unroll 1
      for (int32_t s = v % S::stride_w; s < S::kernel_w; s += S::stride_w) {
        const int32_t column = at.column / S::stride_w + p.shift_w + (v - s) / S::stride_w;
        if (column < 0 || column >= p.in_w) continue;
        sum += to_float(x[row * at.x_row(p) + column]) * to_float(w[t * S::kernel_w + s]);
      }
    }
    sum += bias;
    store<1>(y + ((at.row + r) * at.y_row(p) + at.column + c), &sum);
  }
}

template <int Row, class Scalar, Access Mode>
CONVT_HOST_DEVICE void compute_tile(const Params& p, uint32_t index) {
  using S = Shape<Row, Scalar, Mode>;
  uint32_t tile_column = index;
  uint32_t tile_row = p.columns.divide(tile_column);
  uint32_t channel = p.rows.divide(tile_row);
  const uint32_t n = p.channels.divide(channel);
  uint32_t channel_of_group = channel;
  const uint32_t group = p.multiplier.divide(channel_of_group);

  const Scalar* x = static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + group * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + group * p.w_group_stride + channel_of_group * p.w_channel_stride;
  Scalar* y = static_cast<Scalar*>(p.y) + n * p.y_batch_stride + channel * p.y_channel_stride;

  const Place<S> at(p, tile_row, tile_column, x, y);

  constexpr Window h = S::h, v = S::w;
  float weights[S::kernel_h][S::kernel_w];
#pragma unroll
  for (int t = 0; t < S::kernel_h; ++t) {
#pragma unroll
    for (int s = 0; s < S::kernel_w; ++s) load<1>(w + (t * S::kernel_w + s), &weights[t][s]);
  }
  float bias = 0;
  if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + channel * p.bias_stride, &bias);

  float sums[S::out_rows][S::out_columns];
#pragma unroll
  for (int r = 0; r < S::out_rows; ++r) {
#pragma unroll
    for (int c = 0; c < S::out_columns; ++c) sums[r][c] = 0;
  }

  // Addresses once a row, not taken apart for each access.
  const Scalar* corner = opaque(x + (static_cast<int64_t>(at.input_row) * at.x_row(p) + at.input_column));
  // Input row by input row: each is in registers once, and adds to every output row that it reaches.
#pragma unroll
  for (int i = 0; i < S::in_rows; ++i) {
    float row[S::in_columns];
    load_row<S, 0>(p, opaque(corner + static_cast<int64_t>(i) * at.x_row(p)), at, at.input_row + i, row);
#pragma unroll
    for (int r = 0; r < S::out_rows; ++r) {
      const int j = r / S::stride_h + h.top(r % S::stride_h) - h.first() - i;
      if (j < 0 || j >= h.taps(r % S::stride_h)) continue;
      const int t = h.phase(r % S::stride_h) + j * S::stride_h;
#pragma unroll
      for (int c = 0; c < S::out_columns; ++c) {
        const int phase = v.phase(c % S::stride_w);
        const int column = c / S::stride_w + v.top(c % S::stride_w) - v.first();
#pragma unroll
        for (int k = 0; k < v.taps(c % S::stride_w); ++k) {
          sums[r][c] += row[column - k] * weights[t][phase + k * S::stride_w];
        }
      }
    }
  }

  const bool edge = at.input_row < 0 || at.input_row + S::in_rows > at.in(p) || at.input_column < 0 ||
                    at.input_column + S::in_columns > p.in_w;
  if (edge) {
    float zero = 0;
#pragma unroll
    for (int r = 0; r < S::out_rows; ++r) {
#pragma unroll
      for (int c = 0; c < S::out_columns; ++c) zero += sums[r][c] * 0.0f;
    }
    if (zero != 0) return exact_tile<S>(p, x, w, bias, y, at);
  }
#pragma unroll
  for (int r = 0; r < S::out_rows; ++r) {
#pragma unroll
    for (int c = 0; c < S::out_columns; ++c) sums[r][c] += bias;
  }
  store_rows<S, S::widest>(p, opaque(y + (at.row * at.y_row(p) + at.column)), at, sums);
}

}  // namespace convt::depthwise
