// Configurations of the family for few output channels a group, on CUDA cores: the last layer of a decoder, where each
// input meets so few weights that float32 instructions keep up with memory, or are no more than three products of TF32.
//
// The outputs of an axis are cells of as many as its stride, cell q the outputs o with q s <= o + p < (q + 1) s. All
// outputs of a cell, whichever phase they are of, read the same inputs, q, q - 1 ..., each by its own weight: a
// *window* of `ceil(kernel / stride)` inputs, and as many sums a cell as phases times output channels. So strides and
// paddings are data, a phase without a tap is a weight of zero, and nothing is known of them when a kernel is compiled.
//
// A thread has the sums of some cells below each other and reads the window's inputs to registers, channel by channel.
// Neighbouring lanes have neighbouring columns: where these are neighbours in memory, too, inputs are read as they lie
// there. Of channels_last, they pass through shared memory, in words of 4 bytes: one channel or two. Threads of a block
// may divide the channels, or words, among them.
#pragma once

#include <cstdint>

namespace convt::few_channels {

struct Config {
  const char* name;
  int32_t window_rows, window_columns;  // of inputs that are in registers; larger windows are several of these
  int32_t sums;                         // of a cell; cells of more are computed in several blocks
  int32_t rows;                         // cells of a thread, below each other
  int32_t blocks;                       // of a multiprocessor, at least, by their registers
  bool ahead;                           // whether the next channel's inputs are loaded before a channel's products
};

inline constexpr Config configs[] = {
    {"1x1_n4_r8", 1, 1, 4, 8, 3, true},   {"1x1_n16_r4", 1, 1, 16, 4, 2, true}, {"1x3_n4_r8", 1, 3, 4, 8, 2, true},
    {"1x3_n16_r4", 1, 3, 16, 4, 2, true}, {"2x2_n4_r8", 2, 2, 4, 8, 2, true},   {"2x2_n12_r4", 2, 2, 12, 4, 2, true},
    {"3x2_n2_r4", 3, 2, 2, 4, 3, true},   {"3x2_n2_r8", 3, 2, 2, 8, 2, true},   {"3x3_n1_r8", 3, 3, 1, 8, 2, true},
    {"3x3_n4_r4", 3, 3, 4, 4, 2, true},   {"3x3_n4_r8", 3, 3, 4, 8, 2, true},   {"3x3_n12_r4", 3, 3, 12, 4, 2, false},
    {"4x4_n4_r4", 4, 4, 4, 4, 2, true},   {"7x1_n1_r8", 7, 1, 1, 8, 3, true},   {"7x1_n1_r16", 7, 1, 1, 16, 3, false},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t threads = 256;
inline constexpr int32_t most_splits = 32;              // of the channels, among the threads of a block
inline constexpr int64_t most_weight_bytes = 48 << 10;  // in shared memory at a time
// The same, where they share it with inputs, which there are new ones of for each weight.
inline constexpr int64_t most_weight_bytes_beside_inputs = 16 << 10;
inline constexpr int64_t multiprocessor_bytes = 228 << 10;  // of shared memory: that of sm_90, of which inputs take all
inline constexpr int64_t reserved_bytes = 1 << 10;          // of a block, by the system
inline constexpr int32_t sector_words = 8;                  // what memory is read by
inline constexpr int32_t line_words = 32;                   // what it is cached by

// Blocks of a multiprocessor, at least. Vectors of inputs that pass to shared memory take registers beside the sums.
constexpr int32_t resident_blocks(const Config& c, bool pixels) {
  return pixels && c.rows * c.sums >= 16 && c.blocks > 2 ? 2 : c.blocks;
}
constexpr int32_t input_rows(const Config& c) { return c.rows + c.window_rows - 1; }  // of a thread
// Outputs below each other that a thread adds and writes at a time, where threads divide the channels.
constexpr int32_t together(const Config& c) { return c.rows * c.sums >= 32 ? 4 : c.rows * c.sums >= 16 ? 2 : 1; }
// Outputs of a position that are written at once, if their channels lie together.
constexpr int32_t written_channels(const Config& c) { return c.sums % 4 == 0 ? 4 : 1; }
constexpr int32_t taps(const Config& c) { return c.window_rows * c.window_columns; }
// Of an input channel's window: the weights of each sum follow those of the one before, whole vectors of 16 bytes in
// all.
constexpr int32_t window_weights(const Config& c) { return (c.sums * taps(c) + 3) / 4 * 4; }

}  // namespace convt::few_channels
