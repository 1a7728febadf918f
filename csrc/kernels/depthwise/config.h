// Configurations of the depthwise family: one input channel a group, one or more output channels of it, and by the
// kernels for any shape also few input channels and one output channel. Bounded by memory: a thread of an exact shape
// reads its window of the input once and writes all phases of its output tile in full lines.
#pragma once

#include <cstdint>

#include "../../plan/problem.h"

namespace convt::depthwise {

struct AxisConfig {
  int32_t kernel, stride, padding;
};

// What a thread computes.
enum class Form : int32_t {
  tile,      // contiguous images, exact shapes: a tile of one plane, stored when all of it is known
  rows,      // the same, but each output row is stored as soon as it is known, and nothing is checked afterwards
  last,      // channels_last, exact shapes: a vector of channels, or one, of a tile
  any_last,  // channels_last, any kernel, stride and dilation: a vector of channels of some columns
  any,       // any kernel, stride, dilation and strides of memory: some rows of a column of one plane
  any_one,   // the same for problems of few outputs: one of them
  one_tap,   // kernels as large as the stride, few output channels: all outputs of some pixels
};

// Kernel and stride are exact, so that no tap is multiplied by a zero that stands for nothing. Of the padding only the
// remainder modulo the stride must agree: the rest is a shift of the input. Vector loads need a shift that is a
// multiple of the thread's columns, so the padding here is the one that real layers have.
struct Config {
  const char* name;
  Form form;
  AxisConfig h, w;
  // Forms rows and last, for 4-byte and for 2-byte elements: input positions of a thread, rows by columns; bytes that
  // it stores at a time; blocks an SM, as many as do without spills; form last: whether weights are float32 in the
  // table, so that none is converted for each tile.
  struct Positions {
    int32_t rows, columns, bytes, resident;
    bool floats = false;
  } wide = {}, narrow = {};
  int32_t channels = 0;  // form one_tap: of the output, at most
  bool small = false;    // form last: for problems whose larger tiles leave multiprocessors without work

  constexpr Positions positions(int64_t element_bytes) const { return element_bytes == 4 ? wide : narrow; }
  constexpr bool exact() const { return form == Form::tile || form == Form::rows || form == Form::last; }
};

inline constexpr Config configs[] = {
    {"nchw_3x3_s1", Form::tile, {3, 1, 1}, {3, 1, 1}},
    {"nchw_5x5_s1", Form::tile, {5, 1, 2}, {5, 1, 2}},
    {"nchw_7x7_s1", Form::tile, {7, 1, 3}, {7, 1, 3}},
    {"nchw_1x5_s1", Form::tile, {1, 1, 0}, {5, 1, 2}},
    {"nchw_2x2_s2_p0", Form::tile, {2, 2, 0}, {2, 2, 0}},
    {"nchw_3x3_s2_p0", Form::tile, {3, 2, 0}, {3, 2, 0}},
    {"nchw_3x3_s2_p1", Form::tile, {3, 2, 1}, {3, 2, 1}},
    {"nchw_4x4_s2_p0", Form::tile, {4, 2, 2}, {4, 2, 2}},
    {"nchw_4x4_s2_p1", Form::tile, {4, 2, 1}, {4, 2, 1}},
    {"nchw_5x5_s2_p0", Form::tile, {5, 2, 2}, {5, 2, 2}},
    {"nchw_6x6_s2_p0", Form::tile, {6, 2, 2}, {6, 2, 2}},
    {"nchw_7x7_s2_p1", Form::tile, {7, 2, 3}, {7, 2, 3}},
    {"nchw_1x3_s1_s2_p1", Form::tile, {1, 1, 0}, {3, 2, 1}},
    {"nchw_2x3_s1_s2_p1", Form::tile, {2, 1, 1}, {3, 2, 1}},
    {"nchw_4x1_s1", Form::tile, {4, 1, 0}, {1, 1, 0}},
    {"nchw_6x1_s2_s1_p0", Form::tile, {6, 2, 4}, {1, 1, 0}},
    {"nchw_3x3_s3_p0", Form::tile, {3, 3, 0}, {3, 3, 0}},
    {"nchw_5x5_s3_p1", Form::tile, {5, 3, 1}, {5, 3, 1}},
    {"nchw_4x4_s4_p0", Form::tile, {4, 4, 0}, {4, 4, 0}},
    {"nchw_7x7_s4_p2", Form::tile, {7, 4, 2}, {7, 4, 2}},
    {"nchw_8x8_s4_p2", Form::tile, {8, 4, 2}, {8, 4, 2}},

    // More rows a thread, where rows are whole vectors.
    {"nchw_3x3_s1_rows", Form::rows, {3, 1, 1}, {3, 1, 1}, {4, 4, 16, 4}, {4, 8, 16, 3}},
    {"nchw_3x3_s2_p1_rows", Form::rows, {3, 2, 1}, {3, 2, 1}, {4, 2, 16, 4}, {4, 4, 16, 4}},
    {"nchw_4x4_s2_p1_rows", Form::rows, {4, 2, 1}, {4, 2, 1}, {2, 2, 16, 4}, {4, 4, 16, 4}},
    {"nchw_5x5_s2_p0_rows", Form::rows, {5, 2, 2}, {5, 2, 2}, {4, 2, 16, 3}, {4, 4, 16, 3}},
    {"nchw_5x5_s1_rows", Form::rows, {5, 1, 2}, {5, 1, 2}, {4, 4, 16, 2}, {4, 8, 16, 2}},
    {"nchw_8x8_s4_p2_rows", Form::rows, {8, 4, 2}, {8, 4, 2}, {4, 1, 16, 2}, {4, 2, 16, 2}},

    {"nhwc_2x2_s2_p0", Form::last, {2, 2, 0}, {2, 2, 0}, {1, 2, 16, 4}, {1, 2, 16, 3}},
    {"nhwc_3x3_s1", Form::last, {3, 1, 1}, {3, 1, 1}, {8, 1, 16, 2}, {8, 1, 8, 3, true}},
    {"nhwc_3x3_s2_p1", Form::last, {3, 2, 1}, {3, 2, 1}, {1, 2, 16, 3}, {1, 2, 8, 4}},
    {"nhwc_4x4_s2_p1", Form::last, {4, 2, 1}, {4, 2, 1}, {2, 2, 16, 2}, {1, 4, 8, 2, true}},
    {"nhwc_5x5_s2_p0", Form::last, {5, 2, 2}, {5, 2, 2}, {1, 4, 16, 2}, {1, 4, 8, 2, true}},
    {"nhwc_1x3_s1_s2_p1", Form::last, {1, 1, 0}, {3, 2, 1}, {1, 2, 16, 4}, {1, 2, 16, 3}},
    {"nhwc_2x3_s1_s2_p1", Form::last, {2, 1, 1}, {3, 2, 1}, {4, 1, 16, 3}, {4, 1, 8, 4, true}},
    {"nhwc_1x5_s1", Form::last, {1, 1, 0}, {5, 1, 2}, {1, 4, 16, 2}, {2, 4, 8, 3, true}},
    {"nhwc_6x1_s2_s1_p0", Form::last, {6, 2, 4}, {1, 1, 0}, {2, 1, 16, 3}, {4, 1, 8, 4, true}},

    // Channels one by one, where their number is no multiple of a vector.
    {"nhwc_4x1_s1_elements", Form::last, {4, 1, 0}, {1, 1, 0}, {8, 1, 4, 4}, {8, 1, 2, 4, true}},
    {"nhwc_4x4_s2_p1_elements", Form::last, {4, 2, 1}, {4, 2, 1}, {4, 1, 4, 4}, {4, 1, 2, 4, true}},

    // Smaller tiles, whose windows are loaded before anything else is waited for.
    {"nhwc_3x3_s1_small", Form::last, {3, 1, 1}, {3, 1, 1}, {1, 2, 16, 3}, {1, 2, 8, 2, true}, 0, true},
    {"nhwc_5x5_s2_p0_small", Form::last, {5, 2, 2}, {5, 2, 2}, {1, 2, 16, 2}, {1, 2, 8, 2, true}, 0, true},
    {"nhwc_1x3_s1_s2_p1_small", Form::last, {1, 1, 0}, {3, 2, 1}, {1, 2, 16, 4}, {1, 2, 8, 4, true}, 0, true},
    {"nhwc_2x3_s1_s2_p1_small", Form::last, {2, 1, 1}, {3, 2, 1}, {1, 1, 16, 3}, {1, 1, 8, 4, true}, 0, true},
    {"nhwc_1x5_s1_small", Form::last, {1, 1, 0}, {5, 1, 2}, {1, 1, 16, 4}, {1, 1, 8, 4, true}, 0, true},
    {"nhwc_4x4_s2_p1_small_elements", Form::last, {4, 2, 1}, {4, 2, 1}, {1, 2, 4, 4}, {1, 2, 2, 4, true}, 0, true},

    {"nhwc_any", Form::any_last, {}, {}},
    {"any", Form::any, {}, {}},
    {"any_one", Form::any_one, {}, {}},

    {"one_tap_s1_c4", Form::one_tap, {1, 1, 0}, {1, 1, 0}, {}, {}, 4},
    {"one_tap_s1_c16", Form::one_tap, {1, 1, 0}, {1, 1, 0}, {}, {}, 16},
    {"one_tap_s2_c4", Form::one_tap, {2, 2, 0}, {2, 2, 0}, {}, {}, 4},
    {"one_tap_s4_c1", Form::one_tap, {4, 4, 0}, {4, 4, 0}, {}, {}, 1},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// Of form last: whether they are tiles of the same kernels, and vectors of the same widths.
constexpr bool same_shape(const Config& a, const Config& b) {
  const auto same = [](const AxisConfig& c, const AxisConfig& d) {
    return c.kernel == d.kernel && c.stride == d.stride && c.padding == d.padding;
  };
  return same(a.h, b.h) && same(a.w, b.w) && (a.wide.bytes == 4) == (b.wide.bytes == 4);
}

inline constexpr int32_t block = 256;  // threads

// Output o = q * stride + r of an axis reads inputs q + top(r) - j by taps phase(r) + j * stride, for j = 0 ...
// taps(r) - 1.
struct Window {
  AxisConfig a;

  constexpr int32_t top(int32_t r) const { return (r + a.padding) / a.stride; }
  constexpr int32_t phase(int32_t r) const { return (r + a.padding) % a.stride; }
  constexpr int32_t taps(int32_t r) const { return phase(r) < a.kernel ? (a.kernel - 1 - phase(r)) / a.stride + 1 : 0; }
  // The inputs of all phases, relative to q.
  constexpr int32_t first() const {
    int32_t lowest = top(a.stride - 1);
    for (int32_t r = 0; r < a.stride; ++r) {
      if (taps(r) > 0 && top(r) - taps(r) + 1 < lowest) lowest = top(r) - taps(r) + 1;
    }
    return lowest;
  }
  constexpr int32_t last() const {
    int32_t highest = first();
    for (int32_t r = 0; r < a.stride; ++r) {
      if (taps(r) > 0 && top(r) > highest) highest = top(r);
    }
    return highest;
  }
};

// The tile of one thread: rows * stride by columns * stride outputs.
struct Tile {
  int32_t rows, columns;
};

// Accesses of memory in form tile. Lanes that load or store one element each of wide tiles reach as many lines as their
// tiles span, and write parts of sectors: where vectors do not fit, tiles are one column wide instead, and high.
// `tall`: twice as high, where outputs are many: fewer inputs are read twice, and a thread's start is shared by more
// outputs.
enum class Access : int32_t { vectors, elements, tall };

constexpr Tile tile_of(const Config& c, int64_t element_bytes, Access access = Access::vectors) {
  if (c.form != Form::tile) return {c.positions(element_bytes).rows, c.positions(element_bytes).columns};
  const auto vector = static_cast<int32_t>(16 / element_bytes);
  // A lane writes 16 bytes of a row, next to those of its neighbours. A stride that does not divide them takes more.
  // So would the window of a wide kernel take more registers than there are.
  const bool whole = vector % c.w.stride == 0 && c.w.kernel < 7 * c.w.stride;
  const int32_t wide = whole ? vector / c.w.stride : 4;
  const int32_t columns = access == Access::vectors ? wide : 1;
  // Enough rows to use an input row for several output rows while accumulators, weights and window fit the registers.
  const int32_t accumulators = c.h.kernel == 1                         ? 32
                               : c.h.kernel >= 7 * c.h.stride          ? 4
                               : c.h.kernel >= 5 * c.h.stride          ? 8
                               : element_bytes == 4 || c.h.stride == 1 ? 16
                                                                       : 32;
  int32_t rows = accumulators / (columns * c.w.stride * c.h.stride);
  // Higher ones would leave more of their rows below small images.
  if (columns < wide && rows * c.h.stride > 8) rows = 8 / c.h.stride;
  if (access == Access::tall) rows *= 2;
  return {rows < 1 ? 1 : rows, columns};
}

// Whether form tile has tall tiles: of kernels that read much twice, unless their weights and window take the
// registers.
constexpr bool has_tall(const Config& c, int64_t element_bytes) {
  return c.form == Form::tile && tile_of(c, element_bytes).columns > 1 && c.h.stride == 2 &&
         (c.h.kernel == 5 || c.h.kernel == 6) && c.w.kernel > 1;
}

// The largest power of two of elements in which a thread's output row can be stored.
constexpr int32_t widest_store(const Config& c, int64_t element_bytes, Access access = Access::vectors) {
  const int32_t columns = tile_of(c, element_bytes, access).columns * c.w.stride;
  auto width = static_cast<int32_t>(16 / element_bytes);
  while (columns % width != 0) width /= 2;
  return width;
}

// Of a thread in form one_tap: a row of its outputs is 16 bytes, if its sums fit the registers. Channels that lie
// together are read for one pixel.
constexpr int32_t pixels_of_one_tap(const Config& c, int64_t element_bytes, bool channels_last) {
  const auto row = static_cast<int32_t>(16 / element_bytes) / c.w.stride;
  const int32_t most = 64 / (c.h.stride * c.w.stride * c.channels);
  return channels_last ? 1 : row < most ? row : most;
}

// Channels of a thread's vectors in forms last.
constexpr int32_t vector_of(const Config& c, int64_t element_bytes) {
  return static_cast<int32_t>(c.positions(element_bytes).bytes / element_bytes);
}

// The widest vectors that a kernel's weights are whole numbers of.
constexpr int32_t weight_piece(const Config& c, int64_t element_bytes) {
  auto width = static_cast<int32_t>(16 / element_bytes);
  while (c.h.kernel * c.w.kernel % width != 0) width /= 2;
  return width;
}

// Blocks an SM: as many as leave registers for the accumulators, the weights and two rows of the window.
constexpr int32_t resident_blocks(const Config& c, int64_t element_bytes, Access access = Access::vectors) {
  const Tile tile = tile_of(c, element_bytes, access);
  if (c.form != Form::tile) return c.positions(element_bytes).resident;
  const int32_t outputs = tile.columns * c.w.stride * tile.rows * c.h.stride;
  const int32_t window = tile.columns + Window{c.w}.last() - Window{c.w}.first();
  // At stride 1 an input row reaches all kernel rows, and as much again is in flight.
  const int32_t weights = c.h.kernel * c.w.kernel * (c.h.stride == 1 ? 2 : 1);
  const int32_t needed = outputs + weights + 2 * window;
  return needed <= 49 ? 4 : needed <= 73 ? 3 : 2;
}

// Outputs of an axis of stride 1 whose kernel is dilated are as many axes as the dilation, each with a kernel that is
// not dilated: a slice of the tensors (params.h). Of a kernel of one tap, the dilation does not matter.
inline int64_t slices_of(int64_t kernel, int64_t dilation) { return kernel > 1 ? dilation : 1; }

// Tiles of `outputs` outputs along an axis, none of which is in two slices.
inline int64_t tiles_along(int64_t out, int64_t slices, int64_t outputs) {
  return checked_mul(slices, ceil_div(ceil_div(out, slices), outputs));
}

}  // namespace convt::depthwise
