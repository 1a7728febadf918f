// The direct kernels' per-element functions, run on the CPU. For tests.
#pragma once

#include "../../plan/plan.h"
#include "params.h"

namespace convt::direct {

// Pointers are host pointers. float32, float64 and the complex types; throws std::invalid_argument otherwise.
void run_on_host(const Plan& plan, const Problem& problem, const Operands& operands);

}  // namespace convt::direct
