#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../operands.h"

namespace convt::gemm_scatter_rows_sm90 {

// Launches `plan` (made by the planner for `problem`) on `stream` of the current device; pointers are device pointers.
// Weights are aligned as the problem says; others may have any alignment.
cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream);

}  // namespace convt::gemm_scatter_rows_sm90
