// Configurations of the direct family: one thread, warp or block computes one element of the result. It takes every
// dtype, every stride of memory and tensors of any size; the faster families are compared with it.
#pragma once

#include <cstdint>

#include "../../plan/problem.h"

namespace convt::direct {

struct Config {
  const char* name;
  Operation operation;
  int32_t block;               // threads
  int32_t threads_per_result;  // how many share the reduction of one element
};

// 256 threads at up to 64 registers keep every scheduler of an SM busy; nothing here needs more of a block.
inline constexpr Config configs[] = {
    // One tap's channels are summed by one thread. Limited by the loads of x and w from L1, two a multiply-add.
    {"thread_per_output", Operation::forward, 256, 1},
    {"thread_per_input", Operation::input_grad, 256, 1},
    // The reduction runs over N * H * W. A warp when there are many weights or little to reduce, a block when there
    // are too few weights to fill the machine with warps.
    {"warp_per_weight", Operation::weight_grad, 256, 32},
    {"block_per_weight", Operation::weight_grad, 256, 256},
};
inline constexpr int32_t config_count = sizeof(configs) / sizeof(configs[0]);

// Partial sums of this many products are added up separately, which keeps the rounding error of a float32 sum of
// n products near sqrt(n / chunk) + sqrt(chunk) units instead of sqrt(n).
inline constexpr int32_t summation_chunk = 32;

}  // namespace convt::direct
