// How the blocks of channels_last kernels share the work: pure functions of the problem, for the planner and the
// launch.
//
// A block has the weights of some channels in shared memory. Its threads are lanes along those channels times slots;
// a slot takes one tile of pixels after another.
#pragma once

#include <cstdlib>

#include "config.h"

namespace convt::depthwise {

// Vectors of channels in a block.
constexpr int32_t most_lanes(int32_t vector) { return vector == 1 ? 64 : 32; }
inline constexpr int32_t table_bytes = 48 * 1024;      // of shared memory, what every device has
inline constexpr int32_t columns_of_any = 4;           // outputs of a thread in form any_last, and mostly in any
inline constexpr int64_t most_inputs_of_a_group = 16;  // input channels of an output in forms any and any_last

struct Blocking {
  int32_t vector = 1;    // channels of a thread
  int32_t channels = 0;  // of a block
  int32_t pitch = 0;     // from tap to tap in the table of weights: a vector more than the channels spreads the banks
  int32_t lanes = 0, slots = 0;
  int64_t chunks = 0;  // of channels
  int64_t tiles = 0;   // of pixels
  int64_t groups = 0;  // of tiles, one for each slot
};

// `taps` rows of weights; no lanes if not even one vector of channels fits the table.
inline Blocking make_blocking(const Problem& p, int32_t vector, int64_t taps, int64_t tiles) {
  Blocking b;
  b.vector = vector;
  b.tiles = tiles;
  const int64_t row_bytes = taps * vector * element_size(p.dtype);
  const int64_t most = smaller<int64_t>(most_lanes(vector), table_bytes / row_bytes - 1);
  if (most < 1) return b;
  const int64_t vectors = p.out_channels / vector;
  int64_t lanes = ceil_div(vectors, ceil_div(vectors, most));
  // Blocks beside each other share no line if they start with one.
  if (lanes < vectors) lanes = smaller(ceil_div<int64_t>(lanes, 8) * 8, most);
  b.lanes = static_cast<int32_t>(lanes);
  b.slots = block / b.lanes;
  b.channels = b.lanes * vector;
  b.pitch = b.channels + vector;
  b.chunks = ceil_div(vectors, lanes);
  b.groups = ceil_div<int64_t>(tiles, b.slots);
  return b;
}

inline Blocking last_blocking(const Config& c, const Problem& p) {
  const Tile tile = tile_of(c, element_size(p.dtype));
  const int64_t tiles = checked_mul(
      p.batch, checked_mul(tiles_along(p.out_h, slices_of(p.kernel_h, p.dilation_h), tile.rows * c.h.stride),
                           tiles_along(p.out_w, slices_of(p.kernel_w, p.dilation_w), tile.columns * c.w.stride)));
  Blocking b = make_blocking(p, vector_of(c, element_size(p.dtype)), p.kernel_h * p.kernel_w, tiles);
  b.pitch = (most_lanes(b.vector) + 1) * b.vector;
  return b;
}

// The tiles of any_last along a row: some columns of each phase.
inline int64_t any_tiles(const Problem& p) { return ceil_div<int64_t>(ceil_div(p.out_w, p.stride_w), columns_of_any); }

inline Blocking any_last_blocking(const Problem& p, int32_t vector) {
  const int64_t taps = checked_mul(checked_mul(p.kernel_h, p.kernel_w), p.in_channels_per_group());
  const int64_t tiles = checked_mul(checked_mul(p.batch, p.out_h), checked_mul(p.stride_w, any_tiles(p)));
  return make_blocking(p, vector, taps, tiles);
}

// Whether neighbouring threads of form any have neighbouring channels, rather than columns.
inline bool channels_first(const Problem& p) {
  return p.out_channels > 1 && std::abs(p.y_strides[1]) < std::abs(p.y_strides[3]);
}

// Threads of form any along a column of outputs, `outputs` rows of a phase each; and all.
inline int64_t any_row_tiles(const Problem& p, int32_t outputs) {
  return ceil_div<int64_t>(ceil_div(p.out_h, p.stride_h), outputs);
}
inline int64_t any_threads(const Problem& p, int32_t outputs) {
  return checked_mul(checked_mul(checked_mul(any_row_tiles(p, outputs), p.stride_h), p.out_w),
                     checked_mul(p.batch, p.out_channels));
}

// Form one_tap: whether channels lie together in memory rather than columns, threads, and bytes of the table of
// weights and, as if of one more input channel, biases.
inline bool takes_channels(const Problem& p) {
  return p.in_channels > 1 && std::abs(p.x_strides[1]) < std::abs(p.x_strides[3]);
}
inline int64_t one_tap_threads(const Problem& p, int32_t pixels) {
  return checked_mul(checked_mul(p.batch, p.in_h), ceil_div<int64_t>(p.in_w, pixels));
}
inline int64_t one_tap_table_bytes(const Config& c, const Problem& p) {
  return checked_mul(p.in_channels + 1, int64_t{4} * c.h.stride * c.w.stride * c.channels);
}

// Whether channels can be read and written in vectors, as far as sizes and strides decide it.
inline bool takes_vectors(const Problem& p, int32_t vector) {
  if (vector == 1) return true;
  const auto whole = [&](const std::array<int64_t, 4>& sizes, const Strides& strides) {
    if (strides[1] != 1) return false;
    for (int d : {0, 2, 3}) {
      if (sizes[d] > 1 && strides[d] % vector != 0) return false;
    }
    return true;
  };
  return p.in_channels == p.groups && p.out_channels == p.groups && p.out_channels % vector == 0 &&
         whole(p.x_sizes(), p.x_strides) && whole(p.y_sizes(), p.y_strides);
}

// Channels of a thread in form any_last, where memory is aligned.
inline int32_t any_vector(const Problem& p) { return takes_vectors(p, 4) ? 4 : takes_vectors(p, 2) ? 2 : 1; }

// How many tiles a slot takes: more of them share the loading of the weights, as long as every multiprocessor has
// `blocks` enough to come out even with the others.
inline int64_t repeats_of(const Blocking& b, int64_t multiprocessors, int64_t blocks = 12) {
  return larger<int64_t>(1, smaller<int64_t>(4, b.groups * b.chunks / (multiprocessors * blocks)));
}

// The same for exact shapes. It pays where instructions bind: in 16 bits, for large kernels.
inline int64_t last_repeats(const Config& c, const Problem& p, const Blocking& b, int64_t multiprocessors) {
  const bool pays = element_size(p.dtype) == 2 && c.h.kernel * c.w.kernel >= 16 && !c.small;
  return pays ? repeats_of(b, multiprocessors, 5) : 1;
}

}  // namespace convt::depthwise
