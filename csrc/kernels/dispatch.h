// From what a problem or a plan says to a template's arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "../plan/problem.h"
#include "scalar.h"
#include "visit_row.h"

namespace convt {

// launch.operator()<Scalar, Strict>(), where Strict is float32 without TF32.
template <class Launch>
cudaError_t dispatch(const Problem& problem, const Launch& launch) {
  switch (problem.dtype) {
    case DataType::float16:
      return launch.template operator()<Float16, false>();
    case DataType::bfloat16:
      return launch.template operator()<BFloat16, false>();
    case DataType::float32:
      return problem.precision == Precision::tf32 ? launch.template operator()<float, false>()
                                                  : launch.template operator()<float, true>();
    default:
      return cudaErrorInvalidValue;
  }
}

// launch.operator()<Row>(), where Row is the row of a table of `count` configurations that a plan names.
template <int count, class Launch>
cudaError_t dispatch_row(int row, const Launch& launch) {
  cudaError_t error = cudaErrorInvalidConfiguration;
  visit_row<count>(row, [&]<int Row>() { error = launch.template operator()<Row>(); });
  return error;
}

}  // namespace convt
