#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::gemm_scatter_sm90 {

// Launches `plan` (made by the planner for `problem`) on `stream` of the current device; pointers are device pointers.
// The weights are aligned to 16 bytes, and x if it is channels_last; others may have any alignment.
cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::gemm_scatter_sm90
