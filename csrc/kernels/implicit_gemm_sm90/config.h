// Configurations of Hopper's tensor-core family (wgmma, sm_90a): an implicit GEMM with M = (phase, output channel), N =
// output positions of a phase, K = (input channel, tap).
#pragma once

#include <cstdint>
#include <optional>

#include "../implicit_gemm/mode.h"

namespace convt::implicit_gemm_sm90 {

using namespace implicit_gemm;

// Most of a small layer's time is waiting for instructions that have not been executed yet, a jump over others being
// the longest. So what most layers need is compiled for itself: the copy engine brings x, nothing is gathered or split,
// and y is written as boxes or by threads, in channels_last, or as rows, or as rows that begin anywhere. What few
// layers need are variants that do all else that the general one does: threads bring x as it lies, or that and steps
// that are shared out evenly.
enum class Variant { general, boxes, channels, rows, threads, balanced, unaligned_rows };
constexpr bool threads_bring(Variant v) { return v == Variant::threads || v == Variant::balanced; }
constexpr bool writes_rows(Variant v) { return v == Variant::rows || v == Variant::unaligned_rows; }
constexpr bool is_general(Variant v) { return v == Variant::general || threads_bring(v); }

// Sets of variants. What is missing of a configuration is what hardly any layer of the sweep needs: it takes a layer
// another way then, or another configuration does.
using Variants = uint32_t;
constexpr Variants set_of(Variant v) { return 1u << static_cast<uint32_t>(v); }
inline constexpr Variants with_general = set_of(Variant::general), with_boxes = set_of(Variant::boxes),
                          with_channels = set_of(Variant::channels), with_rows = set_of(Variant::rows),
                          with_threads = set_of(Variant::threads), with_balanced = set_of(Variant::balanced),
                          with_unaligned_rows = set_of(Variant::unaligned_rows);

// Two consumer warpgroups, groups_m by groups_n, multiply m_blocks blocks of 64 rows by `pieces` pieces of `width`
// positions each. Or they take a block's tiles in turn (ping-pong), if a tile is one warpgroup's: one multiplies while
// the other writes. The producers are a warpgroup: a warp that copies weights and three that bring the patch.
struct Config {
  const char* name;
  int32_t groups_m, groups_n, m_blocks, width, pieces;
  Variants tf32 = 0, half = 0;  // that are compiled for TF32 and for 16-bit types
  // For float32 without TF32, beside Variant::threads, which every configuration has there: threads split into two
  // parts what they bring.
  Variants ieee = 0;

  constexpr bool alternate() const { return groups_m * groups_n == 1; }
  constexpr int32_t tile_threads() const { return 128 * groups_m * groups_n; }      // that multiply a tile
  constexpr int32_t rows() const { return groups_m * m_blocks; }                    // blocks of 64
  constexpr int32_t columns() const { return groups_n * pieces * width; }           // positions
  constexpr int32_t accumulators() const { return m_blocks * pieces * width / 2; }  // registers of a thread
};

inline constexpr Config configs[] = {
    // Many channels, at one row of positions or 8 columns of 24 rows. Both warpgroups read the same patch: where inputs
    // are gathered, a step of this one reads the least.
    {"128x192", 2, 1, 1, 192, 1, with_general, with_general},
    // Two phases of 64 channels in a warpgroup, so that it writes both phases of a column.
    {"2x64x128", 1, 2, 2, 64, 1, with_general | with_channels | with_rows, with_boxes | with_rows},
    // Few positions.
    {"128x64", 2, 1, 1, 64, 1, with_general | with_boxes, with_general | with_boxes | with_channels | with_rows},
    // float32 without TF32, which needs as many registers again: 128 or 64 channels.
    {"128x128", 2, 1, 1, 128, 1, 0, 0, with_balanced},
    {"64x256", 1, 2, 1, 128, 1},
    {"64x128", 1, 2, 1, 64, 1, 0, 0, with_balanced},
    // Short reductions, whose sums take long to write; and 64 channels.
    {"64x128x2_pingpong", 1, 1, 1, 128, 2, with_threads | with_boxes | with_channels | with_rows,
     with_threads | with_boxes | with_channels | with_rows | with_unaligned_rows},
    {"2x64x128_pingpong", 1, 1, 2, 128, 1, with_channels | with_rows,
     with_general | with_boxes | with_channels | with_rows | with_unaligned_rows},
    // Rows of 8 in numbers that are no power of two: 17, since a kernel of 3 or 5 adds 2 or 4 to a power of two (130,
    // 260), 12 and 9.
    {"64x136x2_pingpong", 1, 1, 1, 136, 2, 0, with_channels | with_rows | with_unaligned_rows},
    {"2x64x136_pingpong", 1, 1, 2, 136, 1, with_channels | with_rows, with_channels | with_rows | with_unaligned_rows},
    {"64x96x2_pingpong", 1, 1, 1, 96, 2, with_general | with_boxes | with_channels},
    {"64x72x2_pingpong", 1, 1, 1, 72, 2, with_channels | with_rows},
};
inline constexpr int32_t most_rows = 2;  // blocks of a tile
// Rows of y whose channels share a block: each is a warp's 16 channels, at least.
inline constexpr int32_t most_stacked = 4;
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// How a tile gets x.
enum class Source {
  direct,  // from where it is: boxes of the copy engine if channels are innermost, or else what threads copy
  rows,    // boxes of its rows, which warps transpose
  copy,    // from a copy in channels_last in the workspace
};
// What of an image the positions of a product are.
enum class Form {
  lines,     // of one row
  squares,   // of as many rows of 8 as there are
  gathered,  // all of them, one row after the other: inputs are gathered, a tap is no shift
};
// The planner has a candidate of each of these, because what is between them is measured better than it is modelled.
struct Way {
  Source source;
  Form form;
};
inline constexpr Way ways[] = {
    {Source::direct, Form::lines}, {Source::direct, Form::squares}, {Source::direct, Form::gathered},
    {Source::rows, Form::lines},   {Source::rows, Form::squares},  // boxes of rows have no single positions
    {Source::copy, Form::lines},   {Source::copy, Form::squares},   {Source::copy, Form::gathered},
};
inline constexpr int32_t way_count = sizeof(ways) / sizeof(ways[0]);

inline constexpr int32_t consumers = 256, producers = 128, threads = consumers + producers;
// Of a thread: what 384 threads of a block get from 65536 by eights, and what the roles have of them afterwards.
inline constexpr int32_t launch_registers = 65536 / threads / 8 * 8;
inline constexpr int32_t consumer_registers = 208, producer_registers = 88;
inline constexpr int32_t fillers = producers - 32, rounders = producers - 64;

// Both operands are in shared memory as wgmma reads them with the 128-byte swizzle: a row of a block of weights, or a
// pixel of the patch, has 128 bytes of channels, whose units of 16 bytes change places within eight rows. A chunk of
// the reduction is these 128 bytes, and a product takes 32 of them.
inline constexpr int32_t row_bytes = 128, k_bytes = 32, unit_bytes = 16;
inline constexpr int32_t block_bytes = 64 * row_bytes;  // of weights: 64 output channels of a tap
inline constexpr int32_t swizzle_bytes = 1024;          // the pattern repeats, and stages begin at multiples of it
inline constexpr int32_t region_pixels = 16;            // of a patch, that a warp brings into order at a time

inline constexpr int32_t most_patch_stages = 8, most_weight_stages = 18;  // as many as there is room for
inline constexpr int32_t fewest_patch_stages = 2;
// Barriers: of a stage of the patch full, empty and read; of a stage of weights likewise; whose turn it is.
inline constexpr int32_t barrier_words = 3 * most_patch_stages + 3 * most_weight_stages + 2;  // of 8 bytes
// After them, whether an edge of the image is in each stage of the patch, in this tile and in the next one, and whether
// a split is the last one, by warpgroup.
inline constexpr int32_t words_at = 8 * barrier_words, shared_words = most_patch_stages + 4;
inline constexpr int32_t shared_bytes_limit = 227 * 1024;

// Where x is first brought into channels_last: threads of a block, and pixels of 128 bytes of channels.
inline constexpr int32_t channels_last_threads = 256, channels_last_pixels = 64;
inline constexpr int32_t channels_last_shared_bytes = channels_last_pixels * (row_bytes + 4);

// Positions that a warp stages at once, and words from a channel of them to the next.
constexpr int32_t slab_of(const Config& c) { return c.m_blocks > 1 ? 32 : 64; }
constexpr int32_t slab_pitch_of(const Config& c) { return slab_of(c) + 8; }
// Whether two pieces of 8 columns side by side are written as rows of 16. (136 positions of 16-bit types leave no
// registers for it.)
constexpr bool merges_pieces(const Config& c, int64_t element_bytes) {
  return c.pieces == 2 && (c.width <= 128 || element_bytes == 4);
}
// What a warpgroup stages, converted, where channels are innermost, in two buffers; and how many positions of all of
// its blocks a buffer has.
inline constexpr int32_t staged_bytes = 16384;
constexpr int32_t staged_positions(const Config& c, int64_t element_bytes) {
  return static_cast<int32_t>(staged_bytes / 2 / (64 * element_bytes * c.m_blocks));
}
// Boxes of fewer positions take longer than what threads write.
inline constexpr int32_t fewest_box_positions = 32;
// Phases of the columns of which the copy engine may write outputs, each by a map of its own.
inline constexpr int32_t most_y_maps = 2;
// Whether it may write a tile's, as far as the configuration says: where channels are innermost, and where rows are.
constexpr bool has_store_boxes(const Config& c, int64_t element_bytes) {
  const int32_t positions = staged_positions(c, element_bytes);
  return c.width % positions == 0 && positions >= fewest_box_positions;
}
// (Boxes of rows of float32 take longer than what threads write.)
constexpr bool has_row_boxes(const Config& c, int64_t element_bytes) {
  return element_bytes == 2 && c.width % staged_positions(c, element_bytes) == 0;
}
// So do those with shorter rows than a sector of memory.
inline constexpr int32_t fewest_row_bytes = 32;

// Parts of a float32: TF32 numbers whose sum it is. Both are in a stage, so that a step multiplies all of its products.
constexpr int32_t parts_of(Mode m) { return m == Mode::ieee ? 2 : 1; }
// A stage of both parts is twice as large, and keeps the tensor cores busy three times as long.
constexpr int32_t fewest_weight_stages(Mode m) { return m == Mode::ieee ? 2 : 3; }

// float32 without TF32 sums up a step in registers of its own.
constexpr bool fits_registers(const Config& c, Mode m) { return m != Mode::ieee || c.accumulators() <= 64; }
constexpr bool has_variant(const Config& c, Mode m, Variant v) {
  const Variants compiled = m == Mode::ieee   ? (fits_registers(c, m) ? with_threads | c.ieee : 0)
                            : m == Mode::tf32 ? c.tf32
                                              : c.half;
  return (compiled & set_of(v)) != 0;
}
// Whether it may read weights where they are: code for products of its own. Those of TF32 are transposed, which only
// the general one does; where y is written as rows, weights that may be read so are those of kernels of one tap.
constexpr bool takes_in_place(Mode m, Variant v) {
  if (is_general(v)) return m != Mode::ieee;
  return !writes_rows(v) && (m == Mode::float16 || m == Mode::bfloat16);
}
constexpr bool has_mode(const Config& c, Mode m) {
  return m == Mode::ieee ? has_variant(c, m, Variant::threads) : (m == Mode::tf32 ? c.tf32 : c.half) != 0;
}

// What decides it: how a tile gets x and how y is written.
struct Needs {
  bool x_boxes, x_rows;    // the copy engine brings x; and that as boxes of its rows
  bool special, balanced;  // inputs are gathered, or sums are split; by steps that are shared out evenly
  bool in_place;           // weights are read where they are
  bool y_boxes, y_pixels;  // the copy engine writes y; whose channels are innermost
  bool y_in_order;         // a tile's sums are all of its rows of y
  bool y_unaligned;        // these are rows of its positions, and begin at no multiples of 16 bytes
};
// The one that does what is needed with the fewest instructions; none if no one is compiled.
constexpr std::optional<Variant> variant_for(const Config& c, Mode m, const Needs& n) {
  if (n.balanced) {
    return has_variant(c, m, Variant::balanced) ? std::optional(Variant::balanced) : std::nullopt;
  }
  if (n.x_boxes && !n.special && (n.y_pixels ? !n.x_rows : n.y_in_order)) {
    const Variant rows =
        n.y_unaligned && has_variant(c, m, Variant::unaligned_rows) ? Variant::unaligned_rows : Variant::rows;
    const Variant v = !n.y_pixels ? rows : n.y_boxes ? Variant::boxes : Variant::channels;
    if (has_variant(c, m, v) && (!n.in_place || takes_in_place(m, v))) return v;
  }
  if (n.x_boxes && has_variant(c, m, Variant::general)) return Variant::general;
  if (has_variant(c, m, Variant::threads)) return Variant::threads;
  return std::nullopt;
}

}  // namespace convt::implicit_gemm_sm90
