// The operators' C++ signatures, and typed handles that call them through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>

namespace convt::ops {

using ForwardSignature = at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                                    c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding, c10::SymInt groups,
                                    c10::SymIntArrayRef dilation);
using InputGradSignature = at::Tensor(const at::Tensor& grad_output, const at::Tensor& weight,
                                      c10::SymIntArrayRef input_size, c10::SymIntArrayRef stride,
                                      c10::SymIntArrayRef padding, c10::SymInt groups, c10::SymIntArrayRef dilation,
                                      std::optional<c10::MemoryFormat> memory_format);
using WeightGradSignature = at::Tensor(const at::Tensor& input, const at::Tensor& grad_output,
                                       c10::SymIntArrayRef kernel_size, c10::SymIntArrayRef stride,
                                       c10::SymIntArrayRef padding, c10::SymInt groups, c10::SymIntArrayRef dilation,
                                       std::optional<c10::MemoryFormat> memory_format);

const c10::TypedOperatorHandle<ForwardSignature>& forward_op();
const c10::TypedOperatorHandle<InputGradSignature>& input_grad_op();
const c10::TypedOperatorHandle<WeightGradSignature>& weight_grad_op();

}  // namespace convt::ops
