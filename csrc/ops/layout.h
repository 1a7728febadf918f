// Memory formats of results.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <array>
#include <optional>

namespace convt::ops {

// What aten's CUDA convolution answers: channels_last if either operand suggests it, except in float64, for which cuDNN
// has no such path.
c10::MemoryFormat result_format(const at::Tensor& a, const at::Tensor& b,
                                std::optional<c10::MemoryFormat> requested = std::nullopt);

// The strides of a new tensor of that format.
std::array<int64_t, 4> strides_of(const std::array<int64_t, 4>& sizes, c10::MemoryFormat format);

// The 4-D tensor `t` with exactly these strides; copied only if it lies differently in memory.
at::Tensor with_format(const at::Tensor& t, c10::MemoryFormat format);

}  // namespace convt::ops
