// The depthwise kernels' per-thread function, run on the CPU. For tests.
#pragma once

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::depthwise {

// Pointers are host pointers. float32, float16 and bfloat16; throws std::invalid_argument otherwise.
void run_on_host(const Plan& plan, const Problem& problem, const Operands& operands);

}  // namespace convt::depthwise
