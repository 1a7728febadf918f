// Autocast: under it, aten's conv_transpose2d runs in the autocast dtype; float64 and complex tensors stay as they are.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "schema.h"

namespace convt::ops {
namespace {

using at::Tensor;

template <c10::DeviceType Device>
Tensor forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
               c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding, c10::SymInt groups,
               c10::SymIntArrayRef dilation) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(Device));
  const auto dtype = at::autocast::get_autocast_dtype(Device);
  const auto cast = [&](const Tensor& t) { return at::autocast::cached_cast(dtype, t, Device); };
  return forward_op().call(cast(input), cast(weight), bias ? std::make_optional(cast(*bias)) : std::nullopt, stride,
                           padding, output_padding, groups, dilation);
}

}  // namespace
}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, AutocastCUDA, m) { m.impl("conv_transpose2d", convt::ops::forward<c10::DeviceType::CUDA>); }

TORCH_LIBRARY_IMPL(convt, AutocastCPU, m) { m.impl("conv_transpose2d", convt::ops::forward<c10::DeviceType::CPU>); }
