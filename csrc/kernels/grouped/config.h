// Configurations of the grouped family: few channels a group, or a dense layer of few channels, on tensor cores.
// Bounded by memory: a block reads each input row once, keeps it in shared memory for all output channels and phases,
// and writes neighbouring outputs at about the same time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "../../plan/problem.h"
#include "../../plan/slower.h"
#include "../phases.h"

namespace convt::grouped {

// What a warp computes at a time: tiles of 16 input columns by tiles of 8 output channels, of up to `most_residues`
// phases of a row.
struct Config {
  const char* name;
  int32_t pixel_tiles, tiles;  // but in strict float32
};

inline constexpr Config configs[] = {{"mma_n8", 4, 1}, {"mma_n16", 2, 2}};
// Strict float32 needs more registers a tile, and so do channels that are neighbours in memory.
constexpr int32_t pixel_tiles(const Config& c, int64_t element_bytes, bool strict, bool x_pixels) {
  return element_bytes == 4 && (strict || (!x_pixels && c.tiles == 1)) ? c.pixel_tiles / 2 : c.pixel_tiles;
}
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);
// Where rows of x are innermost, two tiles are no faster for any layer of the sweep.
constexpr bool takes_x(const Config& c, bool x_pixels) { return !x_pixels || c.tiles == 1; }

inline constexpr int32_t warps = 8;  // two blocks an SM leave 128 registers
inline constexpr int32_t block = 32 * warps;
inline constexpr int32_t line_bytes = 128;
inline constexpr int32_t block_bytes = 96;  // of what a block knows about itself
inline constexpr int32_t step_bytes = 32;   // of the description of a step
inline constexpr int32_t start_bytes = 32;  // of the description of a batch of phases
inline constexpr int32_t unit_bytes = 32;   // of the description of a unit of work
// Vectors of the next step's input that a thread holds while it multiplies, of each round, and those that it waits for
// together where there are more. A second round costs more in registers than it saves for channels of x that are
// neighbours in 16-bit types; strict float32 has none for it.
constexpr int32_t early_loads(bool strict) { return strict ? 1 : 2; }
constexpr int32_t early_rounds(int64_t element_bytes, bool strict, bool x_pixels) {
  return strict || (x_pixels && element_bytes == 2) ? 1 : 2;
}
constexpr int32_t held_vectors(int64_t element_bytes, bool strict, bool x_pixels) {  // of a block
  return early_rounds(element_bytes, strict, x_pixels) * early_loads(strict) * block;
}
constexpr int32_t late_loads(bool strict) { return strict ? 1 : 4; }
// Phases of a row that share what a warp reads of the input: so many sets of accumulators are kept.
inline constexpr int32_t most_residues = 3;
inline constexpr int32_t most_channels = 128;  // of a group, either side
inline constexpr int32_t most_planes = 32;     // of a block that has several groups

// Strict float32 multiplies three bfloat16 parts of every element, whose sum it is.
constexpr int32_t parts_of_word(bool strict) { return strict ? 3 : 1; }

// How the problem is cut, for both sides of the launch. A word is what an instruction takes of one or two channels: a
// TF32 element, or a pair of 16-bit elements; in strict float32, of each part of two elements.
struct Tiling {
  bool x_pixels, y_pixels;  // a row's columns (NCHW) or its channels (NHWC) are neighbours in memory
  bool staged;              // outputs meet in shared memory before they are stored
  int32_t words;            // of a group's input channels
  int32_t word_parts;       // words in shared memory for each of them
  int32_t step_words;       // multiplied by one instruction: 4 or 8
  int32_t steps;            // ceil(words / step_words)
  int32_t fragment_words;   // of a lane, for 8 output channels and step_words
  int32_t group_tiles;      // tiles of 8 output channels of a group
  int32_t block_groups;     // groups of a block
  int32_t block_tiles;      // tiles of each of them in a block
  int32_t block_channels;   // of a whole block
  int32_t channel_blocks;
  int32_t rows;           // output rows of a step
  int32_t batches;        // of phases of a row: those of a batch are computed together
  bool blanks;            // some phases of a row have no taps (NCHW), and are in no batch
  bool blank_rows;        // some rows have no taps (NCHW)
  int32_t unit_columns;   // units of work of a row of a step
  int32_t units;          // of a step: the work of one warp at a time
  int32_t kernel_rows;    // of a phase, at most
  int32_t strips;         // blocks of a row
  int32_t strip_columns;  // outputs of a strip, a multiple of those of a unit if there are several
  int32_t chunk_rows;     // output rows of a block
  int32_t chunks;
  int32_t ring;                                    // input rows in shared memory
  int32_t input_columns;                           // of a row in shared memory
  int32_t pixel_pitch, word_pitch, row_pitch;      // words, of shared memory
  int32_t stage_pitch;                             // elements of a plane of a warp's staged outputs (NCHW)
  int32_t image_pitch, image_step;                 // of a plane of the image of the bias; from a channel's to the next
  int64_t weight_bytes, input_bytes, stage_bytes;  // the last one of a warp
  struct {
    int32_t ring, stages, image, block, starts, steps, items, units, works, entries, order, bias;
  } places;  // in shared memory, bytes; the weights are first
  int64_t shared_bytes;
  double seconds;  // by the model
};

inline bool x_pixels(const Problem& p) { return p.in_w == 1 || p.x_strides[3] == 1; }
inline int32_t pixel_tiles(const Config& c, const Problem& p) {
  return pixel_tiles(c, element_size(p.dtype), p.strict_float32(), x_pixels(p));
}

// With everything else chosen, the sizes that follow.
inline void measure(Tiling& t, const Config& c, const Problem& p, const Phases& h, const Phases& w) {
  const int64_t bytes = element_size(p.dtype), pixels = 16 * pixel_tiles(c, p);
  const int64_t tiles = int64_t{t.block_groups} * t.block_tiles;
  const int64_t channels = t.block_groups > 1 ? t.block_groups * p.out_channels_per_group()
                                              : std::min<int64_t>(8 * t.block_tiles, p.out_channels_per_group());
  t.block_channels = static_cast<int32_t>(channels);
  t.channel_blocks =
      static_cast<int32_t>(t.block_groups > 1 ? ceil_div<int64_t>(p.groups, t.block_groups)
                                              : p.groups * ceil_div<int64_t>(t.group_tiles, t.block_tiles));
  t.strips = static_cast<int32_t>(ceil_div<int64_t>(p.out_w, t.strip_columns));
  const int64_t columns = ceil_div<int64_t>(std::min<int64_t>(t.strip_columns, p.out_w), p.stride_w);
  t.unit_columns = static_cast<int32_t>(ceil_div<int64_t>(columns, pixels));
  t.units = static_cast<int32_t>(int64_t{t.unit_columns} * t.rows * t.block_groups * (t.block_tiles / c.tiles));
  // Neighbouring channels start 4 banks apart.
  const int64_t plane_words = pixels * p.stride_w * bytes / 4;
  t.stage_pitch = static_cast<int32_t>((round_up(plane_words - 4, 16) + 4) * 4 / bytes);
  t.stage_bytes = 8 * c.tiles * t.stage_pitch * bytes;
  if (!t.staged) t.stage_bytes = 0;
  const int64_t busy = busy_phases(w, p.stride_w);
  t.blanks = t.staged && busy < p.stride_w;
  t.batches = static_cast<int32_t>(ceil_div<int64_t>(t.blanks ? busy : p.stride_w, most_residues));
  // The rows of two steps: one is read while the other one is loaded.
  t.ring = static_cast<int32_t>(
      std::min<int64_t>(ceil_div<int64_t>(2 * t.rows - 1, p.stride_h) + h.last - h.first + 1, p.in_h));
  // Vectors of 4 words start at a multiple of 4.
  t.input_columns = static_cast<int32_t>(round_up(t.unit_columns * pixels + w.last - w.first + 3, 4));
  const int64_t words = int64_t{t.block_groups} * t.steps * t.step_words * t.word_parts;
  if (t.x_pixels) {
    t.pixel_pitch = 1;
    // The four lanes that share a column have their words in different banks.
    t.word_pitch = static_cast<int32_t>(t.step_words == 8 ? round_up(t.input_columns - 4, 16) + 4
                                                          : round_up(t.input_columns - 8, 32) + 8);
    t.row_pitch = static_cast<int32_t>(words * t.word_pitch);
  } else {
    t.word_pitch = 1;
    t.pixel_pitch = static_cast<int32_t>(t.step_words == 8 ? round_up(words - 8, 16) + 8 : round_up(words - 4, 8) + 4);
    t.row_pitch = static_cast<int32_t>(round_up(int64_t{t.input_columns} * t.pixel_pitch, 4));
  }
  t.weight_bytes = p.kernel_h * p.kernel_w * t.steps * tiles * 32 * t.fragment_words * 4;
  t.input_bytes = round_up(int64_t{t.ring} * t.row_pitch * 4, line_bytes);
  t.kernel_rows = 0;
  for (int64_t r = 0; r < p.stride_h; ++r) t.kernel_rows = std::max(t.kernel_rows, h.of[r].count);
  int64_t end = 0;
  const auto place = [&](int64_t bytes) {
    const int64_t at = end;
    end = round_up(at + bytes, 16);
    return static_cast<int32_t>(at);
  };
  t.blank_rows = t.staged && busy_phases(h, p.stride_h) < p.stride_h;
  // Copies from it begin where they do in a line of y, and end there.
  t.image_pitch = static_cast<int32_t>(pixels * p.stride_w + 2 * line_bytes / bytes);
  t.image_step = p.has_bias ? t.image_pitch : 0;  // or all channels have the same plane
  place(t.weight_bytes);
  t.places.ring = place(t.input_bytes);
  t.places.stages = place(warps * t.stage_bytes);
  t.places.image = place(t.blank_rows ? (p.has_bias ? channels : 1) * t.image_pitch * bytes : 0);
  t.places.block = place(block_bytes);
  t.places.starts = place(start_bytes * t.batches);
  t.places.steps = place(4 * step_bytes);
  t.places.items = place(12 * held_vectors(element_size(p.dtype), p.strict_float32(), t.x_pixels));
  t.places.units = place(int64_t{unit_bytes} * t.units);
  t.places.works = place(int64_t{2 * 8} * t.rows * (t.kernel_rows + 1));
  t.places.entries = place(8 * (p.kernel_w * t.steps + 1));
  t.places.order = place(8 * p.kernel_w);
  t.places.bias = place(4 * channels);
  t.shared_bytes = round_up(end, line_bytes);
}

// What a plan says of a tiling; the rest follows from the problem.
using Cut = std::array<int32_t, 8>;
inline Cut cut_of(const Tiling& t) {
  return {t.block_groups, t.block_tiles, t.strip_columns, t.rows, t.chunk_rows, t.staged};
}

inline Tiling start(const Problem& p) {
  Tiling t{};
  const int64_t bytes = element_size(p.dtype), cin = p.in_channels_per_group();
  t.x_pixels = x_pixels(p);
  t.y_pixels = memory_format(p.y_sizes(), p.y_strides) == MemoryFormat::contiguous;
  const bool pairs = bytes == 2 || p.strict_float32();
  t.words = static_cast<int32_t>(pairs ? (cin + 1) / 2 : cin);
  t.word_parts = parts_of_word(p.strict_float32());
  t.step_words = p.strict_float32() || (bytes == 2 && t.words <= 4) ? 4 : 8;
  t.steps = static_cast<int32_t>(ceil_div<int64_t>(t.words, t.step_words));
  t.fragment_words = p.strict_float32() ? 4 : t.step_words / 4;
  t.group_tiles = static_cast<int32_t>(ceil_div<int64_t>(p.out_channels_per_group(), 8));
  return t;
}

inline Tiling tiling(const Config& c, const Problem& p, const Cut& cut) {
  Tiling t = start(p);
  t.block_groups = cut[0], t.block_tiles = cut[1], t.strip_columns = cut[2], t.rows = cut[3];
  t.chunk_rows = cut[4], t.staged = cut[5] != 0;
  measure(t, c, p, phases(p.axis_h()), phases(p.axis_w()));
  t.chunks = static_cast<int32_t>(ceil_div<int64_t>(p.out_h, t.chunk_rows));
  return t;
}

// How many columns of the input the batches of `residues` phases read, all in all: one that several phases of a batch
// read counts once.
inline int64_t shared_columns(const Axis<int64_t>& a, const Phases& w, int64_t residues) {
  if (residues == 1 || a.kernel > 64) return a.kernel;
  int64_t count = 0;
  for (int64_t first = 0; first < a.stride; first += residues) {
    std::array<int64_t, 64> seen{};
    size_t columns = 0;
    for (int64_t r = first; r < std::min(first + residues, a.stride); ++r) {
      for (int64_t i = 0; i < w.of[r].count; ++i) {
        const int64_t column = w.of[r].top - i * a.input_step;
        if (std::find(seen.begin(), seen.begin() + columns, column) == seen.begin() + columns) seen[columns++] = column;
      }
    }
    count += static_cast<int64_t>(columns);
  }
  return count;
}

// The numbers of the model of time: rates and what was fitted to sweeps of cuts on an H200.
struct Model {
  double rate, cycles;  // instructions that an SM issues in a cycle, and cycles of a warp for each of its own
  // Instructions: of a batch's entry; of a tile's tap in strict float32; of a vector that is stored; of a batch, and of
  // a tile of a residue; of 32 outputs without taps; of a plane; of what is loaded, over what is counted.
  double entry, strict_tap, copy, batch, residue, bare, plane, load;
  // Cycles: of a step that waits for inputs that no thread holds, and of each of their vectors; of a block, and of each
  // of its words of weights.
  double late, late_vector, begin, weight;
  // Of memory: the part of inputs that are read again that takes time; factors where strips end within lines and rows
  // begin within vectors; a byte's that has begun to be written, and a place's; bytes a second.
  double again, cut_lines, cut_vectors, begun, places, bandwidth;
  double overlap, power;  // of instructions and memory
};
// Of planes of y: fitted to 34 000 cuts of 54 layers, all but three made up, of which the choice takes 1.02 to 1.035
// times the best one's time. Bandwidth is at most what a copy has.
inline constexpr Model plane_models[] = {
    // TF32, strict float32, 16 bits
    {6.41, 3.04,     28.2, 4.78,  3.7,  389, 20.9,     2.7,      3.59,    0.473,  1.79e+03,
     471,  1.32e+04, 1.57, 0.117, 1.54, 1.1, 1.67e-09, 1.77e-05, 4.4e+12, 0.0905, 3.14},
    {6.21, 4.45,     27.2,  2.67,  2.9,  220,  13.9,    2.51,     2.79,     1.36,  47.4,
     303,  1.15e+04, 0.381, 0.287, 1.23, 1.07, 3.7e-09, 2.28e-05, 4.28e+12, 0.253, 7.45},
    {3.08, 5.7,      22,   4.71,   3.72, 106,  2.9,      0.859,    1.11,     0.0222, 1.66e+03,
     677,  9.88e+03, 2.98, 0.0485, 1.58, 1.01, 5.36e-09, 4.51e-05, 4.39e+12, 0.228,  3.51},
};
// Of pixels, of any type: cuts of 10 layers.
inline constexpr Model pixel_model = {4,   4.02, 27.5, 4.65, 2.2,  102,  4.1,       1.66,       5.1,     1,     1110,
                                      460, 6920, 1.6,  0.83, 1.58, 0.68, 1 / 191e6, 1 / 12.7e3, 5.51e12, 0.394, 4.74};
inline const Model& model(const Problem& p, const Tiling& t) {
  return t.y_pixels ? plane_models[element_size(p.dtype) == 2 ? 2 : p.strict_float32() ? 1 : 0] : pixel_model;
}

// The instructions of the warp that has most to do in a step, in the mean over the steps. A unit of a row that taps
// reach takes `row`, and as many `kernel_row` as there are rows of them; any other takes `bare`.
inline double busiest_warp(const Tiling& t, const Config& c, const Problem& p, const Phases& h, double row,
                           double kernel_row, double bare) {
  const int64_t passes = int64_t{t.block_groups} * (t.block_tiles / c.tiles), row_units = passes * t.unit_columns;
  const int64_t steps =
      std::min<int64_t>(p.stride_h / std::gcd(p.stride_h, int64_t{t.rows}), ceil_div<int64_t>(p.out_h, t.rows));
  double sum = 0;
  for (int64_t step = 0; step < steps; ++step) {
    double of_warp[warps]{};
    for (int32_t r = 0; r < t.rows; ++r) {
      const int32_t taps = h.of[(step * t.rows + r) % p.stride_h].count;
      const double unit = taps == 0 ? bare : row + taps * kernel_row;
      // As kernels deal them out: whole rounds of all warps, then the rest.
      const int64_t first = r * row_units, whole = row_units / warps;
      for (double& of : of_warp) of += static_cast<double>(whole) * unit;
      for (int64_t k = first + whole * warps; k < first + row_units; ++k) {
        const bool back = passes == 1 && k / warps % 2 == 1;
        of_warp[back ? std::min<int64_t>(warps, t.units - k / warps * warps) - 1 - k % warps : k % warps] += unit;
      }
    }
    sum += *std::max_element(of_warp, of_warp + warps);
  }
  return sum / static_cast<double>(steps);
}

// Instructions of a step's units, counted from the machine code: of one in the mean, and of the warp that has most.
// `columns` as shared_columns() counts them, for one phase and for most_residues in a batch.
struct Work {
  double unit, busiest;
};
inline Work work_of(const Tiling& t, const Config& c, const Problem& p, const Phases& h,
                    const std::array<int64_t, 2>& columns) {
  const Model& m = model(p, t);
  const double bytes = static_cast<double>(element_size(p.dtype));
  // Of a unit, for all phases of its columns in a row of outputs that taps reach.
  const int pixels = pixel_tiles(c, p), fragments = pixels * c.tiles;
  const double entry = m.entry + pixels * (p.strict_float32() ? 6 : t.x_pixels ? t.step_words / 2 : 2);
  const double tap = 1 + c.tiles + fragments * (p.strict_float32() ? m.strict_tap : 1);
  const double kernel_row =
      12 * t.batches + t.steps * (entry * columns[t.batches > 1 ? 1 : 0] + tap * static_cast<double>(p.kernel_w));
  const double busy = static_cast<double>(busy_phases(h, p.stride_h)) / static_cast<double>(p.stride_h);
  const double kernel_rows = static_cast<double>(p.kernel_h) / static_cast<double>(p.stride_h) / busy;
  // Of 32 outputs: to the staging buffer, where an odd stride's meet in banks, and from there, or from registers.
  const int64_t vector = 16 / static_cast<int64_t>(bytes);
  int64_t width = 1;
  while (width < vector && p.out_w % (2 * width) == 0) width *= 2;
  const double outputs = 4.0 * fragments * static_cast<double>(p.stride_w);
  // Lanes store a plane's outputs in rounds.
  const int64_t plane = 16 * pixels * p.stride_w, round = (plane <= 16 * width ? 16 : 32) * width;
  const double copies = 1 + m.copy * static_cast<double>(round_up(plane, round)) / static_cast<double>(plane * width);
  // A warp whose tiles have more channels than are left of a pixel stores them one by one.
  const bool partial = !t.y_pixels && p.out_channels_per_group() % (8 * c.tiles) != 0;
  const double store = t.staged                   ? copies + (p.stride_w % 2 == 0 ? 0 : 0.7)
                       : partial                  ? 21
                       : t.y_pixels || bytes == 2 ? 2.35
                                                  : 7.44;
  const double work =
      18 + t.batches * (m.batch + m.residue * most_residues * fragments) + kernel_rows * kernel_row + outputs * store;
  const double bare = t.y_pixels ? 4 + m.bare * outputs * copies : work - kernel_rows * kernel_row;
  const double unit = busy * work + (1 - busy) * bare;
  return {unit, busiest_warp(t, c, p, h, work - kernel_rows * kernel_row, kernel_row, bare)};
}

// A model of the time of a tiling, which ranks them.
inline double seconds(const Tiling& t, const Config& c, const Problem& p, const Phases& h, const Work& of_step,
                      int64_t chunk_rows, const Slower& on_device) {
  constexpr double multiprocessors = 132, clock = 1.75e9;
  const Model& m = model(p, t);
  const double bytes = static_cast<double>(element_size(p.dtype));
  const auto resident = static_cast<double>(std::clamp<int64_t>((227 << 10) / (t.shared_bytes + 1024), 1, 2));
  const int64_t chunks = ceil_div<int64_t>(p.out_h, chunk_rows);
  const auto blocks = static_cast<double>(p.batch * t.channel_blocks * t.strips * chunks);
  const double waves = std::ceil(blocks / (multiprocessors * resident));
  // Blocks that an SM has at a time.
  const double present = std::min(std::ceil(blocks / multiprocessors), resident);

  // Of a warp and a block's chunk.
  const double steps = static_cast<double>(ceil_div<int64_t>(chunk_rows, t.rows));
  const double planes = t.staged ? m.plane * t.block_channels : 0;
  const double input_rows = static_cast<double>(chunk_rows) / static_cast<double>(p.stride_h) + h.last - h.first;
  const double row_words = static_cast<double>(t.block_groups * t.words * std::min<int64_t>(t.input_columns, p.in_w)) *
                           (p.strict_float32() ? 2 : 1);
  const double vectors = input_rows * row_words /
                         (t.x_pixels           ? p.in_w % 4 == 0 ? 4 : 1
                          : p.strict_float32() ? 2
                                               : 4) /
                         block;
  const double loads = vectors * (p.strict_float32() ? 82 : 164) * m.load + std::min(steps, input_rows) * 60;
  // What threads do not hold of a step's input while they compute is waited for.
  const double step_vectors = vectors / input_rows * static_cast<double>(ceil_div<int64_t>(t.rows, p.stride_h));
  const int32_t rounds_held = t.y_pixels ? early_rounds(element_size(p.dtype), p.strict_float32(), t.x_pixels) : 1;
  const double late = std::max(0.0, step_vectors - rounds_held * early_loads(p.strict_float32()));
  const double waits = late > 0 ? m.late + m.late_vector * late : 0;
  // An SM issues the instructions of all its blocks; a block's warps wait for that which has the most units. Units of
  // fewer columns and more channels wait longer for their own instructions.
  const double issued = steps * (warps * (84 + planes) + t.units * of_step.unit) + warps * loads;
  const double longer = !t.staged || c.tiles == 1 ? 1 : p.strict_float32() ? 1.77 : 1.2;
  const double alone = steps * (70 + m.cycles * longer * (84 + planes + of_step.busiest)) + m.cycles * loads;
  const double begin = m.begin + static_cast<double>(t.weight_bytes) / 4 * m.weight;
  const double compute =
      waves * (begin + steps * waits + std::hypot(present * issued / m.rate, alone)) / clock * on_device.compute;

  const double y = static_cast<double>(p.y_elements()) * bytes;
  double x = static_cast<double>(p.x_elements()) * bytes;
  // Read again through L2 by other blocks of channels and at the edges of chunks and strips.
  const double again = blocks * input_rows * row_words * 4 - x;
  if (again > 0) x += m.again * again;
  // Blocks share lines of pixels if they have some of their channels only.
  const bool shared_lines = !t.y_pixels && t.block_channels < p.out_channels &&
                            t.block_channels * static_cast<int64_t>(bytes) % line_bytes != 0;
  // Rows begin within 16 bytes, or strips end within lines.
  const bool cut_vectors = t.y_pixels && p.out_w * element_size(p.dtype) % 16 != 0;
  const bool cut_lines = t.y_pixels && t.strips > 1;
  // Stores of 16 bytes of a pixel.
  const bool narrow = !t.y_pixels && 8 * c.tiles * bytes < 32;
  // What the blocks of a time have begun to write, of which L2 joins what it still holds, and in how many places.
  const double writers = std::min(blocks, multiprocessors * resident);
  const double begun =
      writers * t.block_channels * t.rows * static_cast<double>(std::min<int64_t>(t.strip_columns, p.out_w)) * bytes;
  const double places = t.y_pixels ? writers * t.block_channels : 0;
  const double slower = (narrow ? 3.4 : 1) * (shared_lines || cut_lines ? m.cut_lines : 1) *
                        (cut_vectors ? m.cut_vectors : 1) * (1 + m.begun * begun) * (1 + m.places * places);
  // Fewer SMs than these do not copy at the full rate.
  const double memory =
      (x + y * slower) / m.bandwidth * on_device.memory / std::min(1.0, blocks / (0.8 * multiprocessors));
  const double more = std::max(memory, compute), less = std::min(memory, compute);
  return more * (1 + m.overlap * std::pow(less / more, m.power)) + 1.5e-6;
}

// The fastest tiling by the model of a problem that the family takes. If its shared_bytes are more than the limit,
// there is none.
inline Tiling tiling(const Config& c, const Problem& p, int64_t most_shared_bytes, const Slower& on_device) {
  const int64_t pixels = 16 * pixel_tiles(c, p), cout = p.out_channels_per_group();
  const Phases h = phases(p.axis_h()), w = phases(p.axis_w());
  const int64_t batches = ceil_div<int64_t>(p.stride_w, most_residues);
  const std::array<int64_t, 2> columns{p.kernel_w,
                                       shared_columns(p.axis_w(), w, ceil_div<int64_t>(p.stride_w, batches))};
  Tiling t = start(p), best{};
  double best_seconds = 0;
  bool found = false;
  // Pixels of several groups fill a line together. Planes of several groups share what a block takes to begin.
  const int64_t line = line_bytes / element_size(p.dtype);
  const int64_t together = t.y_pixels ? most_planes : 2 * line;
  int64_t groups = 1;
  const int64_t tiles = t.y_pixels ? std::min<int64_t>(t.group_tiles, 8) : t.group_tiles;
  while (groups < p.groups && (t.y_pixels ? 2 * groups * cout <= together : groups * cout < together)) groups *= 2;
  groups = std::min(groups, p.groups);
  const int64_t most_strips = ceil_div<int64_t>(p.out_w, pixels * p.stride_w);
  for (const bool staged : {true, false}) {
    if (staged ? !t.y_pixels : found) continue;  // planes from registers only if there is no room
    t.staged = staged;
    for (int64_t g = groups, b = tiles; b > 0; g > 1 ? g /= 2 : b /= 2) {
      t.block_groups = static_cast<int32_t>(g);
      t.block_tiles = static_cast<int32_t>(round_up(g > 1 ? t.group_tiles : b, c.tiles));
      for (int64_t strips = 1; strips < 2 * most_strips; strips *= 2) {
        const int64_t units = ceil_div<int64_t>(most_strips, strips);
        t.strip_columns =
            static_cast<int32_t>(strips == 1 ? round_up(p.out_w, p.stride_w) : units * pixels * p.stride_w);
        // About as many units of work as warps, and several times as many.
        const int64_t row_units = units * g * (t.block_tiles / c.tiles);
        int64_t last_rows = 0;
        for (int64_t of_warp = 1; of_warp <= 16; of_warp *= 2) {
          int64_t rows = std::max<int64_t>(1, of_warp * warps / row_units);
          // Steps that all have the same rows with taps.
          if (2 * rows > p.stride_h) rows = round_up(rows, p.stride_h);
          rows = std::min(rows, p.out_h);
          if (rows == last_rows) continue;
          last_rows = rows;
          t.rows = static_cast<int32_t>(rows);
          measure(t, c, p, h, w);
          if (t.shared_bytes > most_shared_bytes) {
            if (!found) best = t, best.chunk_rows = static_cast<int32_t>(p.out_h), best.chunks = 1;
            break;
          }
          const Work of_step = work_of(t, c, p, h, columns);
          for (int64_t chunks = 1; chunks < 2 * p.out_h; chunks *= 2) {
            int64_t rows = ceil_div<int64_t>(p.out_h, std::min(chunks, p.out_h));
            rows = round_up(rows, t.rows);
            const double time = seconds(t, c, p, h, of_step, rows, on_device);
            if (!found || time < best_seconds) {
              found = true, best = t, best_seconds = time;
              best.chunk_rows = static_cast<int32_t>(rows);
              best.chunks = static_cast<int32_t>(ceil_div<int64_t>(p.out_h, rows));
            }
            if (rows == t.rows) break;
          }
        }
      }
    }
  }
  best.seconds = best_seconds;
  return best;
}

inline int64_t blocks(const Tiling& t, const Problem& p) {
  return checked_mul(checked_mul(p.batch, t.channel_blocks), int64_t{t.strips} * t.chunks);
}

}  // namespace convt::grouped
