// Configurations of the rolling_rows family: few output channels a group, on tensor cores, each warp for itself. A warp
// goes down the rows of x; the rows of y that a row of x adds to are in its accumulators, and leave them one after the
// other. x is read once but for the rows at the ends of a warp's part, and y written once.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "../../plan/problem.h"
#include "../../plan/slower.h"
#include "../access_width.h"
#include "../tensor_map.h"

namespace convt::rolling_rows {

// With u = o + padding, the outputs of an axis with u / stride = q make frame q; output t of it (u modulo the stride)
// reads inputs q - i, by the tap whose distance from the first one is t + i * stride. The outputs of a frame of rows
// and a frame of columns are the columns of a product, in tiles of 8, and its rows are frames of columns.
struct Config {
  const char* name;
  int32_t rows, columns;  // most values of i, of each axis
  int32_t tiles;          // of 8 outputs
  int32_t pixel_tiles;    // of 16 frames of columns, a warp's
};
inline constexpr Config configs[] = {
    {"2x2_n8", 2, 2, 1, 4}, {"2x2_n16", 2, 2, 2, 4}, {"2x2_n32", 2, 2, 4, 2},
    {"3x3_n8", 3, 3, 1, 4}, {"3x3_n16", 3, 3, 2, 2},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t most_warps = 16;  // of a block, and of a multiprocessor
inline constexpr int32_t step_bytes = 32;  // of channels of a pixel, that are multiplied at a time
// Steps of x that a warp has in shared memory: at least, and where the copy engine brings them, which takes longer.
inline constexpr int32_t least_stages = 3, box_stages = 4;
inline constexpr int32_t halo_bytes = 16;  // of a row of x in front of a warp's first frame
inline constexpr int32_t halo_pixels = 4;  // the same of channels_last

// Strict float32 has three words of a pixel where others have two: fewer pixels fit into registers.
constexpr int32_t pixel_tiles(const Config& c, bool strict) { return strict ? 2 : c.pixel_tiles; }
constexpr int32_t pixels(const Config& c, bool strict) { return 16 * pixel_tiles(c, strict); }
// Neighbouring frames of columns that a lane has; of several runs of them the same lane has one each.
constexpr int32_t lane_pixels(int32_t pixel_tiles, int64_t element_bytes) {
  return element_bytes == 2 && pixel_tiles == 4 ? 8 : 4;
}
constexpr int32_t step_channels(int64_t element_bytes) { return static_cast<int32_t>(step_bytes / element_bytes); }
// Of a channel's row in shared memory: 4 channels are in different banks. Rows of 16-bit elements may begin with half a
// word.
constexpr int32_t row_pitch(int32_t pixels, int64_t element_bytes) {
  const auto bytes = static_cast<int32_t>(halo_bytes + pixels * element_bytes + (element_bytes == 2 ? 4 : 0));
  return step_bytes + ceil_div(bytes - step_bytes, 64) * 64;
}
constexpr int32_t stage_bytes(int32_t pixels, int64_t element_bytes, bool channels_last) {
  return channels_last ? (pixels + halo_pixels) * step_bytes
                       : step_channels(element_bytes) * row_pitch(pixels, element_bytes);
}
// Words that a lane has of the weights of a tile and a step.
constexpr int32_t weight_words(bool strict) { return strict ? 4 : 2; }

inline bool channels_last(const Problem& p) { return p.x_strides[3] != 1 && p.in_w > 1; }

// The frames of an axis.
struct Frames {
  int64_t first, count;  // those with outputs
  int64_t reach;         // inputs that a frame reads
};
inline Frames frames(const Axis<int64_t>& a) {
  const int64_t first = a.padding / a.stride, last = (a.out - 1 + a.padding) / a.stride;
  return {first, last - first + 1, (a.kernel - 1) * a.dilation / a.stride + 1};
}

// How the problem is cut, for both sides of the launch.
struct Tiling {
  int32_t warps, splits, rows;    // of a block; of the same outputs; frames of rows that a warp computes
  int32_t stages;                 // steps of x that a warp has in shared memory
  bool boxes;                     // of x by the copy engine
  int32_t first_row, frame_rows;  // the first frame of rows that has outputs, and how many there are
  int32_t first_column;           // the frame of columns that a row's first strip begins with
  int32_t strip_frames;           // of columns, from one strip to the next
  int32_t strips, chunks;         // of a row, of rows
  int32_t steps;                  // of channels
  int32_t outputs;                // of a frame, of a group
  int32_t segments;               // of memory that a frame of rows has of y: rows, of each channel or of all
  int32_t pixel_outputs;          // of a frame of columns, in one of them
  int32_t lead, segment_pitch;    // of a segment in shared memory, elements: those before a strip's first output, all
  int64_t units;                  // warps' parts of a group
  struct {
    int32_t outputs, segments_of_y, barriers, sums, stages, segments;
  } places;                                                    // in shared memory, bytes; the weights are first
  int32_t weight_bytes, warp_bytes, warp_segments, warp_sums;  // of a warp: its stages, segments and sums
  int64_t shared_bytes;
};

// What a plan says of a tiling; the rest follows from the problem.
using Cut = std::array<int32_t, 8>;
inline Cut cut_of(const Tiling& t) { return {t.warps, t.splits, t.rows, t.stages, t.boxes ? 1 : 0}; }

// Nothing else follows from how many frames of rows a warp computes.
inline void set_rows(Tiling& t, const Problem& p, int32_t rows) {
  t.rows = rows;
  t.chunks = ceil_div(t.frame_rows, t.rows);
  t.units = p.batch * t.chunks * t.strips;
}

inline Tiling tiling(const Config& c, const Problem& p, const Cut& cut) {
  Tiling t{};
  const int64_t bytes = element_size(p.dtype), vector = 16 / bytes;
  const bool last = channels_last(p), is_strict = p.strict_float32();
  const int64_t width = pixels(c, is_strict), channels = p.out_channels_per_group(), inner = last ? channels : 1;
  t.warps = cut[0], t.splits = cut[1], t.rows = cut[2], t.stages = std::max(cut[3], least_stages),
  t.boxes = cut[4] != 0;
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  const Frames h = frames(p.axis_h());
  t.first_row = narrow(h.first), t.frame_rows = narrow(h.count);
  t.steps = narrow(ceil_div<int64_t>(p.in_channels_per_group(), step_channels(bytes)));
  t.outputs = narrow(channels * p.stride_h * p.stride_w);
  t.segments = narrow(p.stride_h * (last ? 1 : channels));
  t.pixel_outputs = narrow(p.stride_w * inner);
  // Strips begin with whole vectors of y, and of rows of x. In front of a strip's first output are those of frames that
  // it does not begin with.
  const int64_t before = last ? 0 : p.padding_w / p.stride_w % vector, cut_off = p.padding_w % p.stride_w;
  const int64_t unit = last ? vector / std::gcd(vector, int64_t{t.pixel_outputs}) : vector;
  t.first_column = narrow(p.padding_w / p.stride_w - before);
  t.strip_frames = narrow((width - before - (cut_off != 0 ? 1 : 0)) / unit * unit);
  t.strips = narrow(ceil_div<int64_t>(p.out_w, t.strip_frames * p.stride_w));
  // Strips alike, so that their rows of x are no longer than they need be; of 16-bit types whole sectors of memory
  // matter more.
  if (!last) {
    const int64_t even = round_up(ceil_div<int64_t>(p.out_w, t.strips * p.stride_w), bytes == 4 ? unit : 64 / bytes);
    t.strip_frames = narrow(std::min<int64_t>(t.strip_frames, even));
  }
  set_rows(t, p, t.rows);
  t.lead = narrow(round_up((before * p.stride_w + cut_off) * inner, vector));
  t.segment_pitch = narrow(round_up(t.lead + width * t.pixel_outputs, vector));
  int64_t end = 0;
  const auto place = [&](int64_t size) {
    const int64_t at = end;
    end = round_up(at + size, 128);
    return narrow(at);
  };
  const int64_t weight_bytes = int64_t{t.steps} * c.rows * c.columns * c.tiles * 32 * weight_words(is_strict) * 4;
  place(weight_bytes);
  t.weight_bytes = narrow(weight_bytes);
  t.places.outputs = place(c.tiles * 8 * 8);
  t.places.segments_of_y = place(t.segments * 8);
  t.places.barriers = place(int64_t{t.warps} * t.stages * 8);
  t.warp_sums = t.splits > 1 ? c.tiles * pixel_tiles(c, is_strict) * 512 : 0;
  t.places.sums = place(int64_t{t.warps} * t.warp_sums);
  t.warp_bytes = t.stages * stage_bytes(static_cast<int32_t>(width), bytes, last);
  t.places.stages = place(int64_t{t.warps} * t.warp_bytes);
  t.warp_segments = narrow(t.segments * t.segment_pitch * bytes);
  t.places.segments = place(int64_t{t.warps} / t.splits * t.warp_segments);
  t.shared_bytes = end;
  return t;
}

// A block's parts are of one group.
inline int64_t block_units(const Tiling& t) { return t.warps / t.splits; }
inline int64_t blocks_of_all(const Tiling& t) { return ceil_div<int64_t>(t.units, block_units(t)); }
// Blocks of a multiprocessor, by their warps and shared memory.
inline int64_t resident_blocks(const Tiling& t, int64_t shared_memory) {
  return std::max<int64_t>(1,
                           std::min<int64_t>(most_warps / t.warps, (shared_memory + 1024) / (t.shared_bytes + 1024)));
}
// Blocks stay, and take part after part.
inline int64_t blocks(const Tiling& t, const Problem& p, int64_t multiprocessors, int64_t shared_memory) {
  const int64_t most = std::max<int64_t>(1, multiprocessors * resident_blocks(t, shared_memory) / p.groups);
  return p.groups * std::min(blocks_of_all(t), most);
}

// Bytes of x that can be copied at once from `x` on: 16, 4 or, of 16-bit elements that begin anywhere, 2. Rows, or the
// channels of a pixel, are whole copies.
inline int32_t copied_bytes(const Problem& p, const void* x) {
  const int64_t bytes = element_size(p.dtype);
  const int64_t batch = used_stride(p.batch, p.x_strides[0]), row = used_stride(p.in_h, p.x_strides[2]);
  const auto widest = static_cast<int32_t>(16 / bytes);
  const int32_t width =
      channels_last(p)
          ? common_width(x, bytes, {batch, row, used_stride(p.in_w, p.x_strides[3]), p.in_channels_per_group()}, widest)
          : common_width(x, bytes, {batch, row, used_stride(p.in_channels, p.x_strides[1]), p.in_w}, widest);
  const auto result = static_cast<int32_t>(width * bytes);
  return result == 8 ? 4 : result;
}

// Columns of a box of x: the copy engine takes as long for what is outside of the image, so that boxes have those of
// the frames that a strip has outputs of, and what follows to a pitch of rows.
inline int32_t box_columns(const Config& c, const Problem& p, const Tiling& t) {
  const auto bytes = static_cast<int32_t>(element_size(p.dtype));
  const Frames w = frames(p.axis_w());
  const int64_t before = w.first - t.first_column, cut_off = p.padding_w % p.stride_w != 0 ? 1 : 0;
  const int64_t used =
      std::min({before + t.strip_frames + cut_off, before + w.count, int64_t{pixels(c, p.strict_float32())}});
  return row_pitch(static_cast<int32_t>(used), bytes) / bytes;
}

// x, of which the copy engine of sm_90 brings boxes of a row of a step's channels, as they lie in shared memory: what
// it cannot do is not valid().
inline TensorMapLayout make_x_map(const Config& c, const Problem& p, const Tiling& t, const void* x) {
  const auto bytes = static_cast<int32_t>(element_size(p.dtype));
  const int64_t row = used_stride(p.in_h, p.x_strides[2]), channel = used_stride(p.in_channels, p.x_strides[1]),
                image = used_stride(p.batch, p.x_strides[0]);
  // A dimension of one element needs a stride, too.
  const auto stride = [&](int64_t size, int64_t elements) { return size > 1 ? elements * bytes : 16; };
  TensorMapLayout map{x,
                      bytes,
                      {p.in_w, p.in_h, p.in_channels, p.batch, 1},
                      {stride(p.in_h, row), stride(p.in_channels, channel), stride(p.batch, image), 16},
                      {box_columns(c, p, t), 1, step_channels(bytes), 1, 1}};
  map.swizzle_bytes = 0, map.rounds_to_tf32 = bytes == 4 && !p.strict_float32();
  return map;
}

// Whether the copy engine brings x, if there is one and x begins at a multiple of 16 bytes.
inline bool takes_boxes(const Config& c, const Problem& p, const Tiling& t) {
  return !channels_last(p) && make_x_map(c, p, t, nullptr).valid();
}

// Where lanes store rows of y as they have them: the stride of a row, 1 or 2. 0 where outputs meet in shared memory.
inline int32_t lane_stride(const Problem& p, int32_t store_bytes) {
  const bool whole = p.padding_w / p.stride_w % (16 / element_size(p.dtype)) == 0 && store_bytes == 16;
  return !channels_last(p) && whole && p.stride_w <= 2 ? static_cast<int32_t>(p.stride_w) : 0;
}

// A model of the time of a tiling, which ranks them: its form is that of the loops, its numbers are fitted to 26 000
// cuts of 26 layers on an H200: of the fast ones they are within 12 %, and the chosen takes 1.02 times the best.
struct Model {
  double start, weights, weights_alone;  // us; us a KB of weights, and more of them the fewer warps a block has
  // Clocks: of a step of channels, of one of its products, of 16 frames of columns, of what is copied 4 bytes at a
  // time, in words that begin anywhere, or by elements; of a row that leaves, and 8 of its outputs of 16 frames, and
  // their part where lanes store them; of warps that add up; of a part.
  double step, product, pixels, narrow, words, elements, row, outputs, direct, split, part;
  double alone;    // warps of a scheduler up to which they do not make each other wait
  double rate;     // of memory, TB/s: of what is not hidden behind the clocks, with
  double overlap;  // the part of the shorter one of the two that is not
  double read;     // clocks of a multiprocessor for 16 bytes of x
};
inline constexpr Model models[] = {
    // TF32, strict float32, 16 bits
    {5.83, 0.0898, 0, 68.7, 1.82, 50.3, 57.8, 23.1, 2.14, 302, 51.3, 0, 53.8, 257, 3.41, 2.99, 0.354, 0},
    {4.3, 0.0689, 0, 0, 14.5, 103, 42.5, 5.94, 19.2, 253, 71.7, 0, 50.1, 78.7, 3.84, 1.95, 0.356, 0},
    {6.66, 0.0837, 0.0156, 109, 0.776, 26.5, 51.5, 381, 1074, 281, 32.2, 0.393, 87.1, 307, 3.32, 6.1, 1.03, 0.697},
};
// The same where the copy engine brings x.
inline constexpr Model box_models[] = {
    {6.47, 0.0455, 0.0177, 36.1, 3.02, 37.3, 0, 0, 0, 274, 36.9, 0.283, 56, 91.4, 2.62, 3, 0.208, 0},
    {4.72, 0.0431, 0, 28.9, 13.3, 92.6, 0, 0, 0, 374, 87.6, 0.663, 74.9, 0, 3.59, 11.1, 0, 0},
    {6.61, 0.046, 0.0325, 67.4, 3.24, 4.85, 0, 0, 0, 434, 9.9, 0.193, 103, 198, 2.45, 2.34, 0.207, 0.608},
};
// What it needs of a problem that tilings with boxes, or without, have alike.
struct Counts {
  const Model& m;
  double step, leave;             // clocks: of a step of channels, of a frame of rows
  double reach, x_rows, x_bytes;  // rows of x that a frame reads, of an image, and bytes of a row that a part reads
  double x, y;                    // us of memory
};
inline Counts count(const Config& c, const Problem& p, const Tiling& t, const Slower& on_device) {
  const bool is_strict = p.strict_float32();
  const int64_t bytes = element_size(p.dtype), reach = frames(p.axis_h()).reach;
  const Model& m = (t.boxes ? box_models : models)[bytes == 2 ? 2 : is_strict ? 1 : 0];
  const auto number = [](auto n) { return static_cast<double>(n); };
  const double tiles = pixel_tiles(c, is_strict);
  const double products = number(reach * frames(p.axis_w()).reach) * c.tiles * tiles;
  const int32_t copied = copied_bytes(p, nullptr);
  const double copies = copied == 16 ? 0 : copied == 4 ? m.narrow : channels_last(p) ? m.elements : m.words;
  const bool direct = lane_stride(p, p.out_w * bytes % 16 == 0 ? 16 : 0) != 0;
  const int64_t row_bytes = (t.boxes ? box_columns(c, p, t) : pixels(c, is_strict)) * bytes;
  const auto memory = [&](int64_t elements) { return number(bytes * elements) / (1e6 * m.rate) * on_device.memory; };
  return {m,
          m.step + products * m.product + tiles * m.pixels + copies,
          m.row + c.tiles * tiles * m.outputs * (direct ? m.direct : 1),
          number(reach),
          number(p.in_h),
          number(t.steps * step_channels(bytes) * row_bytes),
          memory(p.x_elements()),
          memory(p.y_elements())};
}

inline double seconds(const Tiling& t, const Counts& n, const Problem& p, int64_t multiprocessors,
                      int64_t shared_memory, const Slower& on_device) {
  constexpr double clocks_of_us = 1750;
  constexpr double again = 0.5;  // of a part's first rows, which others read too, that come from memory
  const Model& m = n.m;
  const auto number = [](auto v) { return static_cast<double>(v); };
  const double rows = number(std::min(t.rows, t.frame_rows));
  const double leave = n.leave + (t.splits > 1 ? m.split * (1 + 0.2 * t.splits) : 0);
  const double grid = number(blocks(t, p, multiprocessors, shared_memory));
  const double rounds = std::ceil(number(t.units * p.groups) / (grid * number(block_units(t))));
  const double x_rows = std::min(rows + n.reach - 1, n.x_rows);
  const double of_warp = rounds * (m.part + x_rows * std::ceil(number(t.steps) / t.splits) * n.step + rows * leave);
  const double of_multiprocessor = std::ceil(grid / number(multiprocessors));
  const double warps = std::min(of_multiprocessor, number(resident_blocks(t, shared_memory))) * t.warps / 4;
  // What a multiprocessor reads, though not from memory: the parts of the one that has most.
  const double reads = rounds * number(block_units(t)) * of_multiprocessor * x_rows * n.x_bytes / 16 * m.read;
  const double compute = std::max(of_warp * std::max(warps, m.alone), reads) / clocks_of_us * on_device.compute;
  const double memory = n.x * (1 + again * (n.reach - 1) / rows) + n.y;
  const double start = m.start + number(t.weight_bytes) / 1000 * (m.weights + m.weights_alone * 16 / t.warps);
  return 1e-6 * (start + std::max(compute, memory) + m.overlap * std::min(compute, memory));
}
inline double seconds(const Tiling& t, const Config& c, const Problem& p, int64_t multiprocessors,
                      int64_t shared_memory, const Slower& on_device) {
  return seconds(t, count(c, p, t, on_device), p, multiprocessors, shared_memory, on_device);
}

// The fastest tiling by the model of a problem that the configuration takes, and its time; no time, if none fits into
// shared memory.
struct Choice {
  Tiling tiling;
  double seconds;
};
inline Choice choose(const Config& c, const Problem& p, int64_t multiprocessors, int64_t shared_memory,
                     const Slower& on_device, bool copy_engine) {
  Choice best{};
  const int64_t most_rows = frames(p.axis_h()).count;
  const Tiling all = tiling(c, p, {1, 1, 1});
  const int32_t ways = copy_engine && takes_boxes(c, p, all) ? 2 : 1;
  for (int32_t by_engine = 0; by_engine < ways; ++by_engine) {
    const auto cut = [&](int32_t warps, int32_t splits) {
      return Cut{warps, splits, 1, by_engine != 0 ? box_stages : least_stages, by_engine};
    };
    const Counts counts = count(c, p, tiling(c, p, cut(1, 1)), on_device);
    // Fewer warps would not have all schedulers of a multiprocessor.
    for (int32_t warps = most_warps; warps >= 4; warps /= 2) {
      for (int32_t splits = 1; splits <= warps && splits < 2 * all.steps; splits *= 2) {
        Tiling t = tiling(c, p, cut(warps, splits));
        if (t.shared_bytes > shared_memory) continue;
        for (int32_t rows : {1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 40, 52, 64, 80, 104, 128, 192, 256, 512}) {
          if (rows > 1 && rows >= 2 * most_rows) break;
          set_rows(t, p, rows);
          const double time = seconds(t, counts, p, multiprocessors, shared_memory, on_device);
          if (best.seconds == 0 || time < best.seconds) best = {t, time};
        }
      }
    }
  }
  return best;
}

}  // namespace convt::rolling_rows
