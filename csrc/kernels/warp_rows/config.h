// Configurations of the warp_rows family: few input channels a group, on tensor cores, each warp for itself. x goes
// from global memory to registers, which keep the last rows of it, and y from registers to global memory, or through
// shared memory where the warps that have a row of it meet, to write whole sectors, or whole rows. In NCHW a lane has
// neighbouring columns of a channel, in channels_last pairs of channels.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../plan/problem.h"
#include "../../plan/slower.h"
#include "../phases.h"

namespace convt::warp_rows {

// How outputs leave.
enum class Writes {
  pieces,   // of rows, by each warp
  sectors,  // the same, in whole sectors of memory: the warps that have a row meet (sm_90)
  rows,     // whole ones, by the copy engine of sm_90
  pixels,   // channels_last
};

// Whether a warp may compute two tiles of channels in turn, of the same x in registers.
constexpr bool has_two_tiles(Writes writes) { return writes == Writes::rows || writes == Writes::sectors; }

// Rows and columns of x, beside each other, that the outputs of a row and a column of x read, at most; steps of 8 input
// channels of a group; and how rows of NCHW are written. Pieces are pixels in channels_last.
struct Config {
  const char* name;
  int32_t rows, columns;
  int32_t steps = 1;
  Writes writes = Writes::pieces;
  int32_t least_stride = 1, most_stride = 3;  // of a row: all its phases are in registers at a time

  constexpr bool whole() const { return writes == Writes::rows; }
  constexpr bool sectors() const { return writes == Writes::sectors; }
};
inline constexpr Config configs[] = {{"2x2", 2, 2},
                                     {"3x2", 3, 2},
                                     {"3x3", 3, 3},
                                     {"2x2_sectors", 2, 2, 1, Writes::sectors, 2, 3},
                                     {"3x2_sectors", 3, 2, 1, Writes::sectors, 2, 3},
                                     {"2x2_rows", 2, 2, 1, Writes::rows, 2, 3},
                                     {"3x2_rows", 3, 2, 1, Writes::rows, 2, 3},
                                     {"1x1_rows", 1, 1, 4, Writes::rows, 2, 5}};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t warps = 8;
inline constexpr int32_t block = 32 * warps;
inline constexpr int32_t most_stride = 5;  // of all configurations
inline constexpr int32_t most_rows = 3;
inline constexpr int32_t most_windows = 9;   // phases of a row x columns of x
inline constexpr int32_t step_channels = 8;  // of x and a group: those that an instruction multiplies

// Neighbouring columns of x whose outputs a lane has, two for each tile of 16 columns: 16 bytes of them where a stride
// divides that.
constexpr int32_t lane_columns(int64_t element_bytes, int64_t stride) {
  return stride > 3 ? 4 : static_cast<int32_t>(16 / element_bytes / (stride == 2 ? 2 : 1));
}

// Runs of so many columns that a lane has, a warp's columns apart. Strict float32 multiplies six parts one after the
// other, which another run's products fill.
constexpr int32_t lane_runs(int64_t element_bytes, bool strict, int64_t stride, int32_t rows) {
  return strict && lane_columns(element_bytes, stride) == 2 && rows == 2 ? 2 : 1;
}
constexpr int32_t warp_columns(int64_t element_bytes, bool strict, int64_t stride, int32_t rows) {
  return 8 * lane_columns(element_bytes, stride) * lane_runs(element_bytes, strict, stride, rows);
}
// Elements of a channel of a warp's staged outputs: lanes that write together have their channels in different banks.
constexpr int32_t stage_pitch(int64_t element_bytes, bool strict, int64_t stride, int32_t rows) {
  return static_cast<int32_t>(warp_columns(element_bytes, strict, stride, rows) * stride + 16 / element_bytes);
}
// Whether warps stage rows in channels_last, a tile's 16 bytes of a pixel being half a sector of memory: two of them,
// one of which is stored while the next one is computed.
constexpr bool stages_pixels(int64_t element_bytes) { return element_bytes == 2; }
// The next row of x comes by way of shared memory, where too few registers are left for it.
constexpr bool in_buffers(bool strict, int64_t stride) { return strict || stride > 2; }
// Words that a lane has of its two channels of a row of x, for its columns and those beside them: of 16 bits two
// columns each, which need not begin with the first one, or in channels_last both channels.
constexpr int32_t raw_words(int64_t element_bytes, int32_t of_lane, int32_t columns, bool last) {
  const int32_t count = of_lane + columns - 1;
  return element_bytes == 4 ? 2 * count : last ? count : 2 * (count / 2 + 1);
}

// Whether x and y are taken as channels_last: if either has no contiguous rows.
inline bool is_last(const Problem& p) {
  return (p.in_w > 1 && p.x_strides[3] != 1) || memory_format(p.y_sizes(), p.y_strides) != MemoryFormat::contiguous;
}

// Outputs counted so that those of phase 0 read what the kernel's first tap leads to: the axis from the last multiple
// of the stride on that is not behind its padding. The first `skipped` ones do not exist. Those of a stride then read
// as few inputs as can be.
struct Counted {
  Axis<int64_t> axis;
  int32_t skipped;
};
inline Counted counted(const Config& c, const Axis<int64_t>& axis) {
  if (!c.whole()) return {axis, 0};
  Counted result{axis, static_cast<int32_t>(axis.padding % axis.stride)};
  result.axis.padding -= result.skipped, result.axis.out += result.skipped;
  return result;
}

// Of a channel whose rows are written whole: what is copied of rows without taps at a time, at most, and the same where
// there is no bias; a sector of memory, which two rows may share; and rows in shared memory.
inline constexpr int32_t most_bias_bytes = 1024, most_zero_bytes = 4096, sector_bytes = 32, most_row_buffers = 3;
inline constexpr int32_t sector_buffers = 2;  // of rows whose sectors are written by warps

// How the problem is cut, for both sides of the launch.
struct Tiling {
  int32_t tiles;       // of 8 output channels of a group
  int32_t warp_tiles;  // that a warp computes in turn of a row of x: 2 or 1
  // A block's warps have some tiles of all groups, in channels_last, where these share lines of memory: those of a
  // pixel are written at about the same time. In NCHW it has one.
  int32_t block_tiles, tile_blocks;
  int32_t strips;        // of a row, a warp's
  int32_t block_strips;  // of a block; its other warps have other rows
  int32_t strip_blocks;
  int32_t rows;  // of x, of whose outputs a warp computes all phases
  int32_t chunks;
  int32_t buffers;     // of rows that are written whole
  int32_t lead_bytes;  // before the first of them
  int32_t bias_bytes;  // of what rows without taps are copied from, a channel's if there is a bias
  struct {
    int32_t bias, stages, rows, shared_sectors, bias_rows;
  } places;  // in shared memory, bytes; the weights are first
  // Of a tile; of a warp, or a channel of a whole row; of a warp.
  int64_t weight_bytes, stage_bytes, row_bytes, shared_bytes;
};

// Words of weights that a lane has of 8 channels in and out.
constexpr int32_t fragment_words(int64_t element_bytes, bool strict) { return strict ? 4 : element_bytes == 4 ? 2 : 1; }

// What a plan says of a tiling; the rest follows from the problem.
using Cut = std::array<int32_t, 8>;
inline Cut cut_of(const Tiling& t) { return {t.block_strips, t.rows, t.block_tiles, t.buffers, t.warp_tiles}; }

inline Tiling tiling(const Config& c, const Problem& p, const Cut& cut) {
  Tiling t{};
  const int64_t bytes = element_size(p.dtype), columns = warp_columns(bytes, p.strict_float32(), p.stride_w, c.rows);
  t.tiles = static_cast<int32_t>(ceil_div<int64_t>(p.out_channels_per_group(), 8));
  const Counted h = counted(c, p.axis_h()), w = counted(c, p.axis_w());
  t.strips = static_cast<int32_t>(ceil_div<int64_t>(w.axis.out, columns * p.stride_w));
  t.block_strips = cut[0], t.rows = cut[1], t.block_tiles = cut[2], t.buffers = cut[3];
  t.warp_tiles = has_two_tiles(c.writes) ? std::max(cut[4], 1) : 1;
  t.tile_blocks =
      static_cast<int32_t>(ceil_div<int64_t>(p.groups * ceil_div<int64_t>(t.tiles, t.warp_tiles), t.block_tiles));
  const int64_t row_warps = warps / (t.block_strips * t.block_tiles);
  t.strip_blocks = static_cast<int32_t>(ceil_div<int64_t>(t.strips, t.block_strips));
  t.chunks = static_cast<int32_t>(ceil_div<int64_t>(h.axis.out, p.stride_h * t.rows * row_warps));
  int64_t end = 0;
  const auto place = [&](int64_t size) {
    const int64_t at = end;
    end = ceil_div<int64_t>(at + size, 16) * 16;
    return static_cast<int32_t>(at);
  };
  t.weight_bytes = p.kernel_h * p.stride_w * c.columns * c.steps * 32 * fragment_words(bytes, p.strict_float32()) * 4;
  const int64_t tiles = t.block_tiles * t.warp_tiles;
  place(tiles * t.weight_bytes);
  t.places.bias = place(tiles * 8 * 4);
  const auto place_bias_rows = [&] {
    if (busy_phases(phases(h.axis), p.stride_h) < p.stride_h) {
      const int64_t row_bytes = ceil_div<int64_t>(p.out_w * bytes, 16) * 16;
      t.bias_bytes = static_cast<int32_t>(std::min<int64_t>(row_bytes, p.has_bias ? most_bias_bytes : most_zero_bytes));
    }
    t.places.bias_rows = place((p.has_bias ? tiles * 8 : 1) * t.bias_bytes);
  };
  if (c.whole()) {
    // Those that are skipped, then as many bytes behind a multiple of 16 as in y. Lanes that write together have their
    // channels, whose vectors are an odd number apart, in different banks.
    t.lead_bytes = static_cast<int32_t>(ceil_div<int64_t>(w.skipped * bytes, 16) * 16);
    t.stage_bytes = 16 * (ceil_div<int64_t>(t.lead_bytes + 16 + t.strips * columns * p.stride_w * bytes, 16) | 1);
    t.places.stages = place(row_warps * t.buffers * 8 * t.stage_bytes);
    t.places.shared_sectors = place(row_warps * tiles * 8 * sector_bytes);
    place_bias_rows();
  } else if (c.sectors()) {
    // A channel's row, with the sectors of its first and last output, as far behind a multiple of 16 bytes as in y.
    t.stage_bytes = 16 * (ceil_div<int64_t>(2 * sector_bytes + 16 + t.strips * columns * p.stride_w * bytes, 16) | 1);
    t.places.stages = place(row_warps * sector_buffers * 8 * t.stage_bytes);
    place_bias_rows();
  } else {
    t.stage_bytes = 8 * bytes *
                    (is_last(p) ? (stages_pixels(bytes) ? 2 * columns * p.stride_w : 0)
                                : stage_pitch(bytes, p.strict_float32(), p.stride_w, c.rows));
    t.places.stages = place(warps * t.stage_bytes);
  }
  t.row_bytes = lane_runs(bytes, p.strict_float32(), p.stride_w, c.rows) * c.steps *
                raw_words(bytes, lane_columns(bytes, p.stride_w), c.columns, is_last(p)) * 32 * 4;
  t.places.rows = place(in_buffers(p.strict_float32(), p.stride_w) ? warps * t.row_bytes : 0);
  t.shared_bytes = end;
  return t;
}

// The most warps that may have the strips of a row.
inline int32_t warps_up_to(int64_t n) {
  int32_t most = 1;
  while (most < warps && most < n) most *= 2;
  return most;
}
// Of the least shared memory.
inline Cut least_cut(const Config& c, const Problem& p) {
  if (!has_two_tiles(c.writes)) return {1, 1, 1, 0};
  const int32_t strips = tiling(c, p, {1, 1, 1, 1, 1}).strips;
  return {c.whole() ? warps_up_to(strips) : strips, 1, 1, 1, 1};
}

// Threads of a block: strips that meet may be of any number.
inline int32_t block_threads(const Config& c, const Tiling& t) {
  return c.sectors() ? 32 * (warps / t.block_strips * t.block_strips) : block;
}

inline int64_t blocks(const Tiling& t, const Problem& p) {
  return checked_mul(checked_mul(p.batch, t.tile_blocks), int64_t{t.strip_blocks} * t.chunks);
}

// Blocks of a multiprocessor, for which registers suffice.
constexpr int32_t resident_blocks(int32_t columns, bool strict, int64_t stride) {
  return stride == 2 && columns == 2 && !strict ? 3 : 2;
}

// What the models count, whatever the tiling: of a warp and a row of x, instructions from the machine code and
// positions of y that a lane has; and rows of y, with taps and without.
struct Work {
  double convert, products, positions, busy, bare;
};
inline Work work_of(const Config& c, const Problem& p) {
  const Phases h = phases(counted(c, p.axis_h()).axis), w = phases(counted(c, p.axis_w()).axis);
  const bool strict = p.strict_float32();
  const int64_t bytes = element_size(p.dtype);
  const int32_t of_lane = lane_columns(bytes, p.stride_w), runs = lane_runs(bytes, strict, p.stride_w, c.rows);
  double taps_h = 0, taps_w = 0;
  for (int64_t r = 0; r < p.stride_h; ++r) taps_h += h.of[r].count;
  for (int64_t r = 0; r < p.stride_w; ++r) taps_w += w.of[r].count;
  const int32_t x_columns = of_lane + c.columns - 1, x_tiles = of_lane / 2 + c.columns - 1;
  const double of_column = strict ? 13 : bytes == 4 ? 3.3 : 1.5, of_tile = strict ? 6 : static_cast<double>(bytes);
  const auto busy = static_cast<double>(busy_phases(h, p.stride_h));
  const int64_t steps = ceil_div<int64_t>(p.in_channels_per_group(), step_channels);
  return {static_cast<double>(steps * runs) * (x_columns * of_column + (c.rows - 1) * x_tiles * of_tile),
          static_cast<double>(steps) * taps_h * taps_w * (3 + runs * of_lane / 2 * (strict ? 10 : 1)),
          static_cast<double>(runs * of_lane * p.stride_w), busy, static_cast<double>(p.stride_h) - busy};
}

// A model of the time of a tiling, which ranks them: counted instructions; the clocks that they take and the rest are
// fitted to sweeps of cuts on an H200, of NCHW and of channels_last.
inline constexpr double clock = 1.75e9, multiprocessors = 132;

inline double seconds_of_rows(const Tiling& t, const Config& c, const Problem& p, const Work& work,
                              const Slower& on_device) {
  const bool strict = p.strict_float32();
  const int64_t bytes = element_size(p.dtype), whole = 16 / bytes, stride = p.stride_w;
  const int32_t of_lane = lane_columns(bytes, stride), runs = lane_runs(bytes, strict, stride, c.rows);
  int64_t width = whole;
  while (p.out_w % width != 0) width /= 2;
  const auto [convert, products, positions, busy, bare] = work;
  const double outputs = 2 * positions;
  const double copy =
      24 * static_cast<double>(ceil_div<int64_t>(warp_columns(bytes, strict, stride, c.rows) * stride / width, 32));
  const bool direct = width == whole && of_lane * stride == whole;
  const double store = bare * copy + busy * (direct ? runs * 16 : outputs * 1.3 + copy);
  const double row = 314 + 4.21 * convert + 4.56 * products + 1.34 * busy * outputs + 8.46 * store;  // clocks

  const auto grid = static_cast<double>(blocks(t, p));
  const double resident = resident_blocks(c.columns, strict, stride);
  const double waves = std::ceil(grid / (multiprocessors * resident));
  const double compute = waves * (6230 + (t.rows + 0.069 * c.rows) * row * resident) / clock * on_device.compute;
  // Planes of y that are written at a time: many of them have many places in memory.
  const double planes =
      std::min(multiprocessors * resident, grid) / (static_cast<double>(t.chunks) * t.strip_blocks) * 8;
  const double slower = 1 + 0.118 * std::log2(1 + planes / 64) * (width < whole ? 3.07 : 1);
  const double again = 1 + 0.146 * (c.rows - 1) / t.rows;
  const double memory = static_cast<double>(bytes) *
                        (static_cast<double>(p.x_elements()) * again + static_cast<double>(p.y_elements()) * slower) /
                        4.28e12 * on_device.memory / std::min(1.0, grid / 100);
  return std::max(compute, memory) + 1.5e-6;
}

// Of a multiprocessor's shared memory, what a block takes.
inline double shared_share(const Tiling& t) {
  constexpr double shared_bytes = 228 << 10, reserved_bytes = 1 << 10;
  return (static_cast<double>(t.shared_bytes) + reserved_bytes) / shared_bytes;
}
// Blocks of a multiprocessor, for which its shared memory suffices too.
inline double resident_of(const Tiling& t, const Config& c, bool strict, int64_t stride) {
  return std::min<double>(resident_blocks(c.columns, strict, stride), std::floor(1 / shared_share(t)));
}

// Of rows that the copy engine writes.
inline double seconds_of_whole_rows(const Tiling& t, const Config& c, const Problem& p, const Work& work,
                                    const Slower& on_device) {
  const int64_t bytes = element_size(p.dtype);
  const auto number = [](auto n) { return static_cast<double>(n); };
  const auto [convert, products, positions, busy, bare] = work;
  const int64_t run = lane_columns(bytes, p.stride_w) * p.stride_w;
  int64_t width = 16 / bytes;  // of what a lane puts into shared memory
  while ((p.out_w | counted(c, p.axis_w()).skipped | run) % width != 0) width /= 2;
  const bool shares = p.out_w * bytes % sector_bytes != 0;
  const double tile = 2.02 * products + bare * 26 +
                      busy * (142 + 13.2 * positions / number(width) + (t.buffers == 1 ? 172 : 0) + (shares ? 71 : 0));
  const double row = 361 + 0.29 * convert + t.warp_tiles * tile;  // clocks of a warp by itself
  const double begin = 612 + 24 * number(t.warp_tiles * p.kernel_h * p.stride_w * c.columns * c.steps);
  const double grid = number(blocks(t, p)), resident = resident_of(t, c, p.strict_float32(), p.stride_w);
  const auto clocks = [&](double of_multiprocessor) {
    return of_multiprocessor == 0 ? 0 : begin + (t.rows + 0.07 * c.rows) * row * (2.67 + of_multiprocessor);
  };
  const double waves = std::floor(grid / (multiprocessors * resident));
  const double last = std::ceil((grid - waves * multiprocessors * resident) / multiprocessors);
  // Several steps of channels are read from what shared memory leaves of the first level of cache.
  const double crowded = c.steps == 1 ? 0 : std::max(0.0, resident * shared_share(t) - 0.85);
  const double compute = (waves * clocks(resident) + clocks(last)) * (1 + 1.5 * crowded) / clock * on_device.compute;
  const double memory = number(p.x_elements() * bytes + p.y_elements() * bytes) * (1 + 0.083 / (resident * t.buffers)) *
                        (t.warp_tiles == 1 ? 1 : 1.008) / 3.28e12 * on_device.memory / std::min(1.0, grid / 100);
  constexpr double power = 6;
  return std::pow(std::pow(compute, power) + std::pow(memory, power), 1 / power) + 4e-6;
}

// Of rows that are written in whole sectors. Fitted to 2667 cuts of 33 layers, 32 of which are made up: the choice 1.01
// of the best cut.
inline double seconds_of_sectors(const Tiling& t, const Config& c, const Problem& p, const Work& work,
                                 const Slower& on_device) {
  const int64_t bytes = element_size(p.dtype);
  const auto number = [](auto n) { return static_cast<double>(n); };
  const auto [convert, products, positions, busy, bare] = work;
  int64_t width = 16 / bytes;  // of what a lane puts into shared memory
  while (p.out_w % width != 0) width /= 2;
  const double tile = 1.85 * products + bare * 241 + busy * (314 + 17 * positions / number(width));
  const double row = 152 + 1.82 * convert + t.warp_tiles * tile;  // clocks of a warp by itself
  const double begin = 2180 + 31.5 * number(t.warp_tiles * p.kernel_h * p.stride_w * c.columns);
  const double of_block = number(block_threads(c, t)) / block;  // of all warps that a block may have
  const double resident =
      std::floor(std::min(resident_blocks(c.columns, p.strict_float32(), p.stride_w) / of_block, 1 / shared_share(t)));
  const auto clocks = [&](double blocks) {
    return blocks == 0 ? 0 : begin + (t.rows + 0.07 * c.rows) * row * (1.99 + 1.1 * blocks * of_block);
  };
  const double grid = number(blocks(t, p)), at_once = multiprocessors * resident;
  const double waves = std::floor(grid / at_once), last = std::ceil((grid - waves * at_once) / multiprocessors);
  const double compute = (waves * clocks(resident) + clocks(last)) / clock * on_device.compute;
  // Planes of y that are written at a time: many of them have many places in memory.
  const double planes = std::min(at_once, grid) / t.chunks * 8 * t.warp_tiles;
  const double places = 1 + 0.0625 * std::log2(1 + planes / 64);
  const double memory = (number(p.x_elements() * bytes) + number(p.y_elements() * bytes) * places) / 3.64e12 *
                        on_device.memory / std::min(1.0, grid / 100);
  constexpr double power = 6;
  return std::pow(std::pow(compute, power) + std::pow(memory, power), 1 / power) + 4.7e-6;
}

inline double seconds_of_pixels(const Tiling& t, const Config& c, const Problem& p, const Work& work,
                                const Slower& on_device) {
  const bool strict = p.strict_float32();
  const int64_t bytes = element_size(p.dtype), channels = p.out_channels_per_group();
  const auto number = [](auto n) { return static_cast<double>(n); };
  const auto [convert, products, positions, busy, bare] = work;
  // Of a lane: its pairs of channels, or vectors, 32 lanes' of 8 channels.
  const bool has_vectors = channels % 8 == 0;
  const double pairs = positions * (channels % 2 == 0 ? 3 : 6), vectors = positions * number(bytes) / 8;
  const double store = busy * (stages_pixels(bytes) && has_vectors ? 2 * (positions + vectors) : pairs) +
                       bare * (has_vectors && !strict ? vectors : pairs);
  const double row = 80 + 5.15 * convert + 3.14 * products + 5.57 * busy * positions + 7.04 * store;  // clocks

  const double resident = resident_of(t, c, strict, p.stride_w);
  const double grid = number(blocks(t, p)), at_once = multiprocessors * resident;
  // A warp brings its share of a tile's weights, some at a time.
  const double weights = 65 * number(t.block_tiles * p.kernel_h * p.stride_w * c.columns);
  const double compute = std::ceil(grid / at_once) * (2144 + weights + (t.rows + 0.045 * c.rows) * row * resident) /
                         clock * on_device.compute;
  // The more of y is written at a time, the more places in memory that has; and what is written in parts of sectors is
  // read first, if it does not stay in the second level of cache.
  constexpr double cached = 32 << 20;
  const double y = number(p.y_elements() * bytes);
  const double places = 1 + 0.07 * std::log2(std::max(1.0, std::min(1.0, at_once / grid) * y / cached));
  const double together = number(std::min<int64_t>(8 * t.block_tiles, p.out_channels) * bytes);  // of a pixel
  const bool in_parts = stages_pixels(bytes) ? !has_vectors : channels < 8;
  const double written = in_parts                                ? 1 + 4 * std::min(1.0, y / cached)
                         : t.tile_blocks == 1 || together >= 128 ? 1
                                                                 : 1 + 0.116 * (128 / together - 1);
  const double again = 1 + 0.146 * (c.rows - 1) / t.rows;
  const double memory = (number(p.x_elements() * bytes) * again + y * written) * places / 4.24e12 * on_device.memory;
  constexpr double power = 1.79;
  return std::pow(std::pow(compute, power) + std::pow(memory, power), 1 / power) + 6e-6;
}

inline double seconds(const Tiling& t, const Config& c, const Problem& p, const Work& work, const Slower& on_device) {
  if (c.whole()) return seconds_of_whole_rows(t, c, p, work, on_device);
  if (c.sectors()) return seconds_of_sectors(t, c, p, work, on_device);
  return is_last(p) ? seconds_of_pixels(t, c, p, work, on_device) : seconds_of_rows(t, c, p, work, on_device);
}

// Of rows that are written whole, those that are tried: blocks that have as many rows each.
inline std::vector<Cut> cuts_of_rows(const Config& c, const Problem& p) {
  const Tiling one = tiling(c, p, {1, 1, 1, 1, 1});
  const int32_t strips = warps_up_to(one.strips);
  const int64_t rows = ceil_div<int64_t>(counted(c, p.axis_h()).axis.out, p.stride_h * (warps / strips));
  std::vector<Cut> result;
  for (int32_t tiles = std::min(2, one.tiles); tiles > 0; --tiles) {
    for (int32_t buffers = most_row_buffers; buffers > 0; --buffers) {
      for (int64_t chunks = 1; chunks < 2 * rows; chunks += chunks < 6 ? 1 : chunks / 3) {
        const auto of_chunk = static_cast<int32_t>(ceil_div<int64_t>(rows, std::min(chunks, rows)));
        result.push_back({strips, of_chunk, 1, buffers, tiles});
      }
    }
  }
  return result;
}

// The fastest tiling by the model of a problem that the configuration takes, and its time.
struct Choice {
  Tiling tiling;
  double seconds;
};
inline Choice choose(const Config& c, const Problem& p, const Slower& on_device, int64_t most_shared_bytes) {
  const Work work = work_of(c, p);
  Choice best{};
  const auto try_cut = [&](const Cut& cut) {
    const Tiling t = tiling(c, p, cut);
    if (t.shared_bytes > most_shared_bytes) return false;
    const double time = seconds(t, c, p, work, on_device);
    if (best.seconds == 0 || time < best.seconds) best = {t, time};
    return true;
  };
  if (c.whole()) {
    for (const Cut& cut : cuts_of_rows(c, p)) try_cut(cut);
    return best;
  }
  const Tiling one = tiling(c, p, {1, 1, 1});
  const int64_t most = ceil_div<int64_t>(p.out_h, p.stride_h);
  const auto try_rows = [&](int32_t block_strips, int32_t block_tiles, int32_t warp_tiles) {
    for (int32_t rows : {1, 2, 3, 4, 5, 6, 8, 11, 16, 22, 32, 44, 64, 90, 128}) {
      if (rows > 1 && rows >= 2 * most) break;
      if (!try_cut({block_strips, rows, block_tiles, 0, warp_tiles})) break;
    }
  };
  if (c.sectors()) {
    for (int32_t tiles = std::min(2, one.tiles); tiles > 0; --tiles) try_rows(one.strips, 1, tiles);
    return best;
  }
  for (int32_t block_tiles = is_last(p) ? warps_up_to(one.tile_blocks) : 1; block_tiles > 0; block_tiles /= 2) {
    // The warps of a block have strips beside each other as far as there are any; fewer, if some would have none.
    for (int32_t block_strips = std::min(warps_up_to(one.strips), warps / block_tiles); block_strips > 0;
         block_strips /= 2) {
      try_rows(block_strips, block_tiles, 1);
      if (one.strips % block_strips == 0) break;
    }
  }
  return best;
}

}  // namespace convt::warp_rows
