// channels_last: the tables of weights, and the tiles of one thread. Runs on the GPU in kernel.cuh and on the CPU in
// host.cpp.
#pragma once

#include "../scalar.h"
#include "blocking.h"
#include "params.h"

namespace convt::depthwise {

// The taps of an output, inside the input or not: tap + j * tap_step at position - j * input_step, j < count.
struct AllTaps {
  int32_t tap, position, count;
};

// u: the output's coordinate and the padding.
CONVT_HOST_DEVICE AllTaps divided_taps(const Axis<int32_t>& a, int32_t u) {
  const int32_t whole = u / a.stride, phase = u - whole * a.stride;
  const int32_t q = phase / a.divisor;
  if (q * a.divisor != phase) return {0, 0, 0};
  const int32_t tap = q * a.tap_inverse % a.tap_step;
  if (tap >= a.kernel) return {0, 0, 0};
  // u - tap * d is a multiple of s, so this division is exact.
  return {tap, (u - tap * a.dilation) / a.stride, ceil_div(a.kernel - tap, a.tap_step)};
}

// The taps of the first outputs of the first phases: those of all others are a shift away, without divisions.
struct Phases {
  static constexpr int32_t most = 8;
  Divisor stride;
  AllTaps taps[most];
};

inline Phases make_phases(const Axis<int32_t>& a) {
  Phases phases{};
  phases.stride = Divisor(a.stride);
  for (int32_t phase = 0; phase < Phases::most && phase < a.stride; ++phase) {
    phases.taps[phase] = divided_taps(a, phase);
  }
  return phases;
}

CONVT_HOST_DEVICE AllTaps all_taps(const Axis<int32_t>& a, const Phases& phases, int32_t o) {
  if (a.stride > Phases::most) return divided_taps(a, o + a.padding);
  auto phase = static_cast<uint32_t>(o + a.padding);
  const auto whole = static_cast<int32_t>(phases.stride.divide(phase));
  const AllTaps& first = phases.taps[phase];
  return {first.tap, first.position + whole, first.count};
}

// Strides in elements. Inside an image 32 bits hold every offset.
struct LastParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, y_batch_stride, bias_stride;
  int64_t w_input_stride, w_channel_stride, w_row_stride, w_column_stride;
  int32_t x_row_stride, x_column_stride, y_row_stride, y_column_stride;
  int32_t in_h, in_w, out_h, out_w;
  int32_t shift_h, shift_w;  // exact shapes: of the input, by the padding beyond the configuration's
  Axis<int32_t> h, v;        // any shape
  Phases h_phases, v_phases;
  int32_t out_channels, channels;  // of the output, and of a block
  int32_t in_per_group, out_per_group;
  int32_t pitch, slots, repeats;
  uint32_t tiles, blocks;
  Divisor chunks, lanes, taps, kernel_w, multiplier;
  Divisor rows, columns, phases;  // tiles of a column and of a row; any shape: of a phase of a row, and phases
  Divisor slices_h, slices_w;     // exact shapes
};

static_assert(std::is_trivially_copyable_v<LastParams>);

inline LastParams make_last_params(const Blocking& b, int64_t blocks, const Problem& p, const Operands& o) {
  LastParams q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.y_batch_stride = p.y_strides[0];
  q.bias_stride = p.bias_stride;
  q.w_input_stride = p.w_strides[0], q.w_channel_stride = p.w_strides[1];
  q.w_row_stride = p.w_strides[2], q.w_column_stride = p.w_strides[3];
  q.x_row_stride = used_stride_32(p.in_h, p.x_strides[2]);
  q.x_column_stride = used_stride_32(p.in_w, p.x_strides[3]);
  q.y_row_stride = used_stride_32(p.out_h, p.y_strides[2]);
  q.y_column_stride = used_stride_32(p.out_w, p.y_strides[3]);
  q.in_h = static_cast<int32_t>(p.in_h), q.in_w = static_cast<int32_t>(p.in_w);
  q.out_h = static_cast<int32_t>(p.out_h), q.out_w = static_cast<int32_t>(p.out_w);
  q.out_channels = static_cast<int32_t>(p.out_channels), q.channels = b.channels;
  q.in_per_group = static_cast<int32_t>(p.in_channels_per_group());
  q.out_per_group = static_cast<int32_t>(p.out_channels_per_group());
  q.pitch = b.pitch, q.slots = b.slots;
  const int64_t blocks_of_a_chunk = blocks / b.chunks;
  q.repeats = static_cast<int32_t>(ceil_div(b.groups, blocks_of_a_chunk));
  q.tiles = static_cast<uint32_t>(b.tiles), q.blocks = static_cast<uint32_t>(blocks);
  q.chunks = Divisor(b.chunks), q.lanes = Divisor(b.lanes);
  q.taps = Divisor(p.kernel_h * p.kernel_w), q.kernel_w = Divisor(p.kernel_w);
  q.multiplier = Divisor(p.out_channels_per_group());
  return q;
}

inline bool aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Exact shapes: whether the tensors lie in memory as the vectors want. The kernel for any shape computes it if not.
inline bool fits_last(const Plan& plan, const Problem& p, const Operands& o) {
  const int64_t bytes = configs[plan.configuration].positions(element_size(p.dtype)).bytes;
  return aligned(o.x, bytes) && aligned(o.result, bytes);
}

inline LastParams make_last_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const Blocking b = last_blocking(c, p);
  LastParams q = make_last_params(b, plan.grid, p, o);
  const Tile tile = tile_of(c, element_size(p.dtype));
  q.shift_h = static_cast<int32_t>((p.padding_h - c.h.padding) / c.h.stride);
  q.shift_w = static_cast<int32_t>((p.padding_w - c.w.padding) / c.w.stride);
  const int64_t slices_h = slices_of(p.kernel_h, p.dilation_h), slices_w = slices_of(p.kernel_w, p.dilation_w);
  q.slices_h = Divisor(slices_h), q.slices_w = Divisor(slices_w);
  q.rows = Divisor(tiles_along(p.out_h, slices_h, tile.rows * c.h.stride));
  q.columns = Divisor(tiles_along(p.out_w, slices_w, tile.columns * c.w.stride));
  return q;
}

inline int32_t any_last_vector(const Problem& p, const Operands& o) {
  int32_t vector = any_vector(p);
  const int64_t bytes = element_size(p.dtype);
  while (vector > 1 && !(aligned(o.x, vector * bytes) && aligned(o.result, vector * bytes))) vector /= 2;
  return vector;
}

inline LastParams make_any_last_params(const Plan& plan, const Problem& p, const Operands& o, int32_t vector) {
  const Blocking b = any_last_blocking(p, vector);
  // The plan counts the blocks of aligned memory and of its own configuration.
  const bool planned = configs[plan.configuration].form == Form::any_last && vector == any_vector(p);
  LastParams q = make_last_params(b, planned ? plan.grid : b.chunks * b.groups, p, o);
  q.h = make_axis<int32_t>(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  q.v = make_axis<int32_t>(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  q.h_phases = make_phases(q.h), q.v_phases = make_phases(q.v);
  q.rows = Divisor(p.out_h);
  q.columns = Divisor(any_tiles(p)), q.phases = Divisor(p.stride_w);
  return q;
}

// Bytes of shared memory, in form any_last.
inline int64_t table_size(const LastParams& p, const Problem& problem) {
  return int64_t{p.in_per_group} * problem.kernel_h * problem.kernel_w * p.pitch * element_size(problem.dtype);
}

template <int N, class Entry>
CONVT_HOST_DEVICE void load_table(const Entry* from, float* to) {
  constexpr int whole = static_cast<int>(16 / sizeof(Entry)), piece = N < whole ? N : whole;
#pragma unroll
  for (int i = 0; i < N; i += piece) {
#if defined(__CUDA_ARCH__)
    // Not the read-only path of `load`: this is shared memory.
    using Type = typename Words<static_cast<int>(sizeof(Entry)) * piece>::Type;
    from_words<piece, Entry>(*reinterpret_cast<const Type*>(from + i), to + i);
#else
    load<piece>(from + i, to + i);
#endif
  }
}

template <class Entry, class Scalar>
CONVT_HOST_DEVICE Entry entry_of(Scalar v) {
  if constexpr (std::is_same_v<Entry, Scalar>) {
    return v;
  } else {
    return to_float(v);
  }
}

// Copies the weights of a block's channels into `table`, by tap and channel. Returns whether one of those that this
// thread copied is infinite or NaN.
template <class Scalar>
CONVT_HOST_DEVICE bool fill_table(const LastParams& p, Scalar* table, uint32_t block_index, uint32_t thread) {
  uint32_t chunk = block_index;
  p.chunks.divide(chunk);
  const auto first = static_cast<int32_t>(chunk) * p.channels;
  const int32_t channels = smaller(p.channels, p.out_channels - first);
  const auto taps = static_cast<int32_t>(p.taps.divisor);
  bool spoilt = false;
#pragma unroll 1
  for (int32_t ci = 0; ci < p.in_per_group; ++ci) {
#pragma unroll 2
    for (auto i = static_cast<int32_t>(thread); i < channels * taps; i += block) {
      auto tap = static_cast<uint32_t>(i);
      const uint32_t channel = p.taps.divide(tap);
      auto column = tap, channel_of_group = channel + static_cast<uint32_t>(first);
      const uint32_t row = p.kernel_w.divide(column);
      const uint32_t group = p.multiplier.divide(channel_of_group);
      const int64_t input = static_cast<int64_t>(group) * p.in_per_group + ci;
      const Scalar v =
          static_cast<const Scalar*>(p.w)[input * p.w_input_stride + channel_of_group * p.w_channel_stride +
                                          row * p.w_row_stride + column * p.w_column_stride];
      spoilt = spoilt || !(to_float(v) * 0.0f == 0);
      table[(ci * taps + static_cast<int32_t>(tap)) * p.pitch + static_cast<int32_t>(channel)] = v;
    }
  }
  return spoilt;
}

template <int Row, class Scalar>
struct LastShape {
  static constexpr Config config = configs[Row];
  static constexpr Window h{config.h}, w{config.w};
  static constexpr Tile tile = tile_of(config, sizeof(Scalar));
  static constexpr int V = vector_of(config, sizeof(Scalar));
  static constexpr int stride_h = config.h.stride, stride_w = config.w.stride;
  static constexpr int kernel_h = config.h.kernel, kernel_w = config.w.kernel;
  static constexpr int out_rows = tile.rows * stride_h, out_columns = tile.columns * stride_w;
  static constexpr int in_rows = tile.rows + h.last() - h.first(), in_columns = tile.columns + w.last() - w.first();
  using Entry = std::conditional_t<config.positions(sizeof(Scalar)).floats, float, Scalar>;  // of the table
  static constexpr int most_channels = most_lanes(V) * V;                                    // of a block
  static constexpr int pitch = most_channels + V, table = kernel_h * kernel_w * pitch;
  static_assert(sizeof(Scalar) * V <= 16, "no wider load exists");
  static_assert(sizeof(Entry) * table <= table_bytes);
};

// The same for exact shapes, whose kernels are contiguous in memory and one a channel.
template <class S, class Scalar>
CONVT_HOST_DEVICE bool fill_exact_table(const LastParams& p, typename S::Entry* table, uint32_t block_index,
                                        uint32_t thread) {
  constexpr int32_t taps = S::kernel_h * S::kernel_w;
  uint32_t chunk = block_index;
  p.chunks.divide(chunk);
  const auto first = static_cast<int32_t>(chunk) * p.channels;
  const int32_t channels = smaller(p.channels, p.out_channels - first);
  const Scalar* w = static_cast<const Scalar*>(p.w) + static_cast<int64_t>(first) * taps;
  bool spoilt = false;
#pragma unroll 4
  for (auto i = static_cast<int32_t>(thread); i < channels * taps; i += block) {
    const int32_t channel = i / taps, tap = i - channel * taps;
    const Scalar v = w[i];
    spoilt = spoilt || !(to_float(v) * 0.0f == 0);
    table[tap * S::pitch + channel] = entry_of<typename S::Entry>(v);
  }
  return spoilt;
}

// The bias of a thread's channel of the block's, as it comes from memory, zero if there is none: nobody waits for it
// before the weights have been asked for, too.
template <class Scalar>
CONVT_HOST_DEVICE Scalar load_block_bias(const LastParams& p, uint32_t block_index, uint32_t thread) {
  uint32_t chunk = block_index;
  p.chunks.divide(chunk);
  const auto channel = static_cast<int32_t>(chunk) * p.channels + static_cast<int32_t>(thread);
  const bool is = p.bias != nullptr && static_cast<int32_t>(thread) < p.channels && channel < p.out_channels;
  return is ? static_cast<const Scalar*>(p.bias)[channel * p.bias_stride] : Scalar{};
}

// What a thread has to do with all its tiles.
struct Lane {
  uint32_t group, slot;
  int32_t channel;        // of the output, the first of the vector
  int32_t table_channel;  // the same, in the table
};

template <int V>
CONVT_HOST_DEVICE Lane lane_of(const LastParams& p, uint32_t block_index, uint32_t thread) {
  uint32_t chunk = block_index, lane = thread;
  const uint32_t group = p.chunks.divide(chunk);
  const uint32_t slot = p.lanes.divide(lane);
  const auto channel = static_cast<int32_t>(lane) * V;
  return {group, slot, static_cast<int32_t>(chunk) * p.channels + channel, channel};
}

template <int V, class Scalar>
CONVT_HOST_DEVICE void load_bias(const LastParams& p, int32_t channel, float (&bias)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    bias[v] = 0;
    if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + (channel + v) * p.bias_stride, &bias[v]);
  }
}

// The outputs of a tile one by one, with inputs outside the tensor left out instead of taken as zeros: zero times a
// weight that is infinite or NaN would be NaN. x and y begin where the slices do.
template <class S, class Scalar>
CONVT_HOST_DEVICE void exact_last_tile(const LastParams& p, const Slice& h, const Slice& w, const Scalar* x,
                                       const typename S::Entry* table, const float* bias, Scalar* y, int32_t first_row,
                                       int32_t first_column) {
  const int32_t rows = smaller<int32_t>(S::out_rows, h.out - first_row);
  const int32_t columns = smaller<int32_t>(S::out_columns, w.out - first_column);
#pragma unroll 1
  for (int32_t i = 0; i < rows * columns; ++i) {
    const int32_t r = i / columns, c = i - r * columns;
    const int32_t u = r + S::config.h.padding, v = c + S::config.w.padding;
    float sums[S::V];
#pragma unroll
    for (int k = 0; k < S::V; ++k) sums[k] = 0;
#pragma unroll 1
    for (int32_t t = u % S::stride_h; t < S::kernel_h; t += S::stride_h) {
      const int32_t row = first_row / S::stride_h + h.shift + (u - t) / S::stride_h;
      if (row < 0 || row >= h.in) continue;
#pragma unroll 1
      for (int32_t s = v % S::stride_w; s < S::kernel_w; s += S::stride_w) {
        const int32_t column = first_column / S::stride_w + w.shift + (v - s) / S::stride_w;
        if (column < 0 || column >= w.in) continue;
        float values[S::V], weights[S::V];
        load<S::V>(x + (row * h.step * p.x_row_stride + column * w.step * p.x_column_stride), values);
        load_table<S::V>(table + (t * S::kernel_w + s) * S::pitch, weights);
#pragma unroll
        for (int k = 0; k < S::V; ++k) sums[k] += values[k] * weights[k];
      }
    }
#pragma unroll
    for (int k = 0; k < S::V; ++k) sums[k] += bias[k];
    store<S::V>(y + ((first_row + r) * h.step * p.y_row_stride + (first_column + c) * w.step * p.y_column_stride),
                sums);
  }
}

// Where a tile is, and the slices that it is in.
template <class S, class Scalar>
struct LastPlace {
  bool exists;
  Slice rows, columns;
  const Scalar* x;  // where the slices begin, in this thread's first channel
  Scalar* y;
  int32_t out_row, out_column, in_row, in_column;

  CONVT_HOST_DEVICE LastPlace(const LastParams& p, const Lane& lane, int32_t repeat) {
    const uint32_t index = (lane.group * p.repeats + repeat) * p.slots + lane.slot;
    exists = index < p.tiles;
    uint32_t tile_column = index;
    uint32_t tile_row = p.columns.divide(tile_column);
    const uint32_t n = p.rows.divide(tile_row);
    rows = whole_axis(p.in_h, p.out_h, p.shift_h), columns = whole_axis(p.in_w, p.out_w, p.shift_w);
    if constexpr (S::stride_h == 1) rows = slice_of<S::config.h.padding>(rows, p.slices_h, tile_row);
    if constexpr (S::stride_w == 1) columns = slice_of<S::config.w.padding>(columns, p.slices_w, tile_column);
    x = static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + lane.channel +
        (rows.first_in * p.x_row_stride + columns.first_in * p.x_column_stride);
    y = static_cast<Scalar*>(p.y) + n * p.y_batch_stride + lane.channel +
        (rows.first_out * p.y_row_stride + columns.first_out * p.y_column_stride);
    const int32_t q_row = static_cast<int32_t>(tile_row) * S::tile.rows;
    const int32_t q_column = static_cast<int32_t>(tile_column) * S::tile.columns;
    out_row = q_row * S::stride_h, out_column = q_column * S::stride_w;
    in_row = q_row + rows.shift + S::h.first(), in_column = q_column + columns.shift + S::w.first();
  }

  // Of the window: its first input, and where the others are from there.
  CONVT_HOST_DEVICE const Scalar* corner(const LastParams& p) const {
    return x + (static_cast<int64_t>(in_row) * (rows.step * p.x_row_stride) +
                static_cast<int64_t>(in_column) * (columns.step * p.x_column_stride));
  }
  CONVT_HOST_DEVICE int32_t offset(const LastParams& p, int32_t row, int32_t column) const {
    return row * rows.step * p.x_row_stride + column * columns.step * p.x_column_stride;
  }
  CONVT_HOST_DEVICE bool is_inside(int32_t row, int32_t column) const {
    return static_cast<uint32_t>(in_row + row) < static_cast<uint32_t>(rows.in) &&
           static_cast<uint32_t>(in_column + column) < static_cast<uint32_t>(columns.in);
  }
};

// What a thread of an exact shape has before its block waits for the weights. Small tiles load their windows: nobody
// waits for two loads one after the other.
template <int Row, class Scalar>
struct LastStart {
  using S = LastShape<Row, Scalar>;
  static constexpr bool has_window = S::config.small;

  Lane lane;
  bool exists;
  LastPlace<S, Scalar> at;  // of the first tile
  Loaded<S::V, Scalar> window[has_window ? S::in_rows : 1][has_window ? S::in_columns : 1];

  CONVT_HOST_DEVICE LastStart(const LastParams& p, uint32_t block_index, uint32_t thread)
      : lane(lane_of<S::V>(p, block_index, thread)), at(p, lane, 0) {
    exists = static_cast<int32_t>(lane.slot) < p.slots && lane.channel < p.out_channels && at.exists;
    if constexpr (has_window) {
      const Scalar* corner = at.corner(p);
#pragma unroll
      for (int i = 0; i < S::in_rows; ++i) {
#pragma unroll
        for (int c = 0; c < S::in_columns; ++c) {
          window[i][c] = loaded_if<S::V>(exists && at.is_inside(i, c), corner + at.offset(p, i, c));
        }
      }
    }
  }

  // Of larger tiles, asks for the inputs in the middle of the window, once the weights have been asked for: what lies
  // around them is the neighbours'. One by one, elements are too many to be asked for twice.
  CONVT_HOST_DEVICE void prefetch(const LastParams& p) const {
#if defined(__CUDA_ARCH__)
    if (has_window || S::V == 1 || p.repeats > 1 || !exists) return;
    const Scalar* corner = at.corner(p);
#pragma unroll
    for (int i = -S::h.first(); i < S::tile.rows - S::h.first(); ++i) {
#pragma unroll
      for (int c = -S::w.first(); c < S::tile.columns - S::w.first(); ++c) {
        if (at.is_inside(i, c)) asm volatile("prefetch.global.L2 [%0];" ::"l"(corner + at.offset(p, i, c)));
      }
    }
#endif
  }
};

// Exact shapes. `spoilt`: the table has an infinity or a NaN.
template <int Row, class Scalar>
CONVT_HOST_DEVICE void compute_last(const LastParams& p, const typename LastShape<Row, Scalar>::Entry* table,
                                    const float* biases, bool spoilt, const LastStart<Row, Scalar>& start) {
  using S = LastShape<Row, Scalar>;
  constexpr int V = S::V;
  constexpr Window h = S::h, w = S::w;
  constexpr bool has_window = LastStart<Row, Scalar>::has_window;
  if (!start.exists) return;

#pragma unroll 1
  for (int32_t repeat = 0; repeat < (has_window ? 1 : p.repeats); ++repeat) {
    LastPlace<S, Scalar> at = start.at;
    if constexpr (!has_window) at = LastPlace<S, Scalar>(p, start.lane, repeat);
    if (!at.exists) return;
    const Slice &rows = at.rows, &columns = at.columns;
    const Scalar* x = at.x;
    Scalar* y = at.y;
    const int32_t out_row = at.out_row, out_column = at.out_column, in_row = at.in_row, in_column = at.in_column;
    const bool edge =
        in_row < 0 || in_row + S::in_rows > rows.in || in_column < 0 || in_column + S::in_columns > columns.in;
    // Weights and offsets are to be found again for each tile, not kept in registers from one to the next.
    const int32_t table_channel = opaque(start.lane.table_channel);
    const int32_t x_row_stride = opaque(rows.step * p.x_row_stride),
                  x_column_stride = opaque(columns.step * p.x_column_stride);
    const int32_t y_row_stride = opaque(rows.step * p.y_row_stride),
                  y_column_stride = opaque(columns.step * p.y_column_stride);
    constexpr int bias_part = V < 4 ? V : 4;
    if (edge && spoilt) {
      float bias[V];
#pragma unroll
      for (int k = 0; k < V; k += bias_part) load_table<bias_part>(biases + table_channel + k, bias + k);
      exact_last_tile<S>(p, rows, columns, x, table + table_channel, bias, y, out_row, out_column);
      continue;
    }

    float sums[S::out_rows][S::out_columns][V];
#pragma unroll
    for (int r = 0; r < S::out_rows; ++r) {
#pragma unroll
      for (int c = 0; c < S::out_columns; ++c) {
#pragma unroll
        for (int k = 0; k < V; ++k) sums[r][c][k] = 0;
      }
    }

    const Scalar* corner =
        opaque(x + (static_cast<int64_t>(in_row) * x_row_stride + static_cast<int64_t>(in_column) * x_column_stride));
    // Of the output, in bytes: in 32 bits from the tile's first.
    char* y_corner =
        reinterpret_cast<char*>(y) +
        opaque<int64_t>((out_row * y_row_stride + out_column * y_column_stride) * static_cast<int64_t>(sizeof(Scalar)));
#pragma unroll
    for (int i = 0; i < S::in_rows; ++i) {
      float row[S::in_columns][V];
#pragma unroll
      for (int c = 0; c < S::in_columns; ++c) {
        if constexpr (has_window) {
          values_of<V, Scalar>(start.window[i][c], row[c]);
        } else {
          load_if<V>(at.is_inside(i, c), corner + (i * x_row_stride + c * x_column_stride), row[c]);
        }
      }
#pragma unroll
      for (int r = 0; r < S::out_rows; ++r) {
        const int j = r / S::stride_h + h.top(r % S::stride_h) - h.first() - i;
        if (j < 0 || j >= h.taps(r % S::stride_h)) continue;
        const int t = h.phase(r % S::stride_h) + j * S::stride_h;
#pragma unroll
        for (int s = 0; s < S::kernel_w; ++s) {
          float weights[V];
          load_table<V>(table + (table_channel + (t * S::kernel_w + s) * S::pitch), weights);
#pragma unroll
          for (int c = 0; c < S::out_columns; ++c) {
            if (w.phase(c % S::stride_w) != s % S::stride_w) continue;
            const int column = c / S::stride_w + w.top(c % S::stride_w) - w.first() - s / S::stride_w;
#pragma unroll
            for (int k = 0; k < V; ++k) sums[r][c][k] += row[column][k] * weights[k];
          }
        }
      }
      // Output rows that no further input row reaches.
#pragma unroll
      for (int r = 0; r < S::out_rows; ++r) {
        const int phase = r % S::stride_h;
        const int last = h.taps(phase) > 0 ? r / S::stride_h + h.top(phase) - h.first() : 0;
        if (last != i || out_row + r >= rows.out) continue;
#pragma unroll
        for (int first = 0; first < V; first += bias_part) {
          float bias[bias_part];
          load_table<bias_part>(biases + table_channel + first, bias);
#pragma unroll
          for (int c = 0; c < S::out_columns; ++c) {
#pragma unroll
            for (int k = 0; k < bias_part; ++k) sums[r][c][first + k] += bias[k];
          }
        }
#pragma unroll
        for (int c = 0; c < S::out_columns; ++c) {
          if (out_column + c >= columns.out) continue;
          const auto offset = static_cast<uint32_t>(r * y_row_stride + c * y_column_stride);
          store<V>(reinterpret_cast<Scalar*>(y_corner + offset * static_cast<uint32_t>(sizeof(Scalar))), sums[r][c]);
        }
      }
    }
  }
}

}  // namespace convt::depthwise
