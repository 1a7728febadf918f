#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::depthwise {

// Launches `plan` (made by the planner for `problem`) on `stream` of the current device; pointers are device pointers.
// They may have any alignment: it decides how wide the accesses are, and where an exact shape is written for vectors
// only, that the kernel for any shape runs, with a grid of its own.
cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::depthwise
