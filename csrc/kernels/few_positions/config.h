// Configurations of the family for few input positions, where the weights are nearly all of the memory: the first layer
// of a generator, the innermost of an encoder and decoder, at small batches. Such a layer is a product of the matrix
// [output channel and tap][input channel] with few columns, on CUDA cores: a block has the taps of some output
// channels, its threads divide them and the input channels among them, and each weight goes from memory to registers
// once for `positions` positions. The outputs are then summed from the products in shared memory.
#pragma once

#include <cstdint>

namespace convt::few_positions {

struct Config {
  const char* name;
  int32_t positions;  // of a thread's sums
};

inline constexpr Config configs[] = {{"p1", 1}, {"p4", 4}};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

inline constexpr int32_t threads = 256;
inline constexpr int32_t blocks_of_multiprocessor = 2;  // as many as their registers allow
inline constexpr int32_t most_columns = 256;            // taps times output channels of a block
inline constexpr int32_t most_positions = 64;           // of an image: all its products are in shared memory

// Rows of weights that a thread has on their way, as its registers allow beside the sums.
constexpr int32_t rows_at_once(int32_t vector, int64_t element_bytes) { return vector * element_bytes < 16 ? 16 : 8; }

}  // namespace convt::few_positions
