#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::large_stride_sm90 {

// Launches `plan` (made by the planner for `problem`) on `stream` of the current device; pointers are device pointers.
// They may have any alignment: it decides how wide the accesses are.
cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::large_stride_sm90
