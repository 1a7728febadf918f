// From a problem's element type to a template's.
#pragma once

#include <cuda_runtime_api.h>

#include "../plan/problem.h"
#include "scalar.h"

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

}  // namespace convt
