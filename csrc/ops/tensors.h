// From ATen tensors to a Problem of the planner.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "../plan/problem.h"
#include "checks.h"

namespace convt::ops {

DataType data_type(at::ScalarType);

// What torch's flags allow a float32 convolution on CUDA to be rounded to, now.
Precision convolution_precision();

// An unbatched activation as a batch of one, with the conjugate and negative bits worked in.
at::Tensor batched(const at::Tensor& activation);
at::Tensor resolved(const at::Tensor& t);

inline Strides strides(const at::Tensor& t) { return {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}; }

// Whether its memory begins at a multiple of 16 bytes. What has no memory, as a fake tensor, is taken to.
bool is_aligned(const at::Tensor& t);

Problem make_problem(Operation operation, const Geometry<int64_t>& geometry, at::ScalarType dtype,
                     const Strides& x_strides, const Strides& w_strides, const Strides& y_strides,
                     const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace convt::ops
