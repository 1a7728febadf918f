// The operators: their schemas, the handles that call them, and autocast, in one unit: torch's headers are most of it.
#include "schema.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

TORCH_LIBRARY(convt, m) {
  // aten::conv_transpose2d.input, to the letter.
  m.def(
      "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, "
      "SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1) -> Tensor");
  // The adjoints. `memory_format` is that of the result; by default it follows the operands, as the forward's does.
  m.def(
      "conv_transpose2d_input_grad(Tensor grad_output, Tensor weight, SymInt[2] input_size, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt groups=1, SymInt[2] dilation=1, *, MemoryFormat? memory_format=None) -> Tensor");
  m.def(
      "conv_transpose2d_weight_grad(Tensor input, Tensor grad_output, SymInt[2] kernel_size, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt groups=1, SymInt[2] dilation=1, *, MemoryFormat? memory_format=None) -> Tensor");
}

namespace convt::ops {
namespace {

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

const c10::TypedOperatorHandle<ForwardSignature>& forward_op() {
  static const auto op = find<ForwardSignature>("convt::conv_transpose2d");
  return op;
}

const c10::TypedOperatorHandle<InputGradSignature>& input_grad_op() {
  static const auto op = find<InputGradSignature>("convt::conv_transpose2d_input_grad");
  return op;
}

const c10::TypedOperatorHandle<WeightGradSignature>& weight_grad_op() {
  static const auto op = find<WeightGradSignature>("convt::conv_transpose2d_weight_grad");
  return op;
}

namespace {

// Under autocast, aten's conv_transpose2d runs in the autocast dtype; float64 and complex tensors stay as they are.
template <c10::DeviceType Device>
at::Tensor autocast_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                            c10::SymInt groups, c10::SymIntArrayRef dilation) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(Device));
  const auto dtype = at::autocast::get_autocast_dtype(Device);
  const auto cast = [&](const at::Tensor& t) { return at::autocast::cached_cast(dtype, t, Device); };
  return forward_op().call(cast(input), cast(weight), bias ? std::make_optional(cast(*bias)) : std::nullopt, stride,
                           padding, output_padding, groups, dilation);
}

}  // namespace

}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, AutocastCUDA, m) {
  m.impl("conv_transpose2d", convt::ops::autocast_forward<c10::DeviceType::CUDA>);
}

TORCH_LIBRARY_IMPL(convt, AutocastCPU, m) {
  m.impl("conv_transpose2d", convt::ops::autocast_forward<c10::DeviceType::CPU>);
}
