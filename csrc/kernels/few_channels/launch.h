#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::few_channels {

// Launches `plan` (made by the planner for `problem`) on `stream` of the current device; pointers are device pointers,
// and aligned as the problem says.
cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::few_channels
