// CPU tensors are computed by ATen. Checks, empty problems and the strides of the results are convt's own, so that the
// answers are those of a GPU.
#include <ATen/ops/complex.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "checks.h"
#include "layout.h"
#include "schema.h"
#include "tensors.h"

namespace convt::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;

int64_t elements(const std::array<int64_t, 4>& sizes) { return c10::multiply_integers(sizes); }

Tensor finish(const Tensor& result, c10::MemoryFormat format, bool keep_batch) {
  const Tensor t = with_format(result, format);
  return keep_batch ? t : t.squeeze(0);
}

// ATen's convolutions are real. The operators are bilinear, so a complex one is four of them; its half-precision is
// computed in single.
template <class Bilinear>
Tensor bilinear(const Tensor& a, const Tensor& b, const Bilinear& real) {
  if (!a.is_complex()) return real(a, b);
  if (a.scalar_type() == at::kComplexHalf) {
    return bilinear(a.to(at::kComplexFloat), b.to(at::kComplexFloat), real).to(at::kComplexHalf);
  }
  const Tensor ar = at::real(a).contiguous(), ai = at::imag(a).contiguous();
  const Tensor br = at::real(b).contiguous(), bi = at::imag(b).contiguous();
  return at::complex(real(ar, br).sub_(real(ai, bi)), real(ar, bi).add_(real(ai, br)));
}

// In half precision oneDNN crashes, or returns what was in memory before, for some sizes of the gradients, and on CPUs
// with AMX it is wrong for some forwards: half precision is computed in single.
bool is_half(const Tensor& t) { return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16; }

template <class Bilinear>
Tensor adjoint(const Tensor& a, const Tensor& b, const Bilinear& real) {
  if (!is_half(a)) return bilinear(a, b, real);
  return real(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

Tensor forward_cpu(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef output_padding, int64_t groups, IntArrayRef dilation) {
  const auto g = check_forward<int64_t>(input, weight, bias, stride, padding, output_padding, groups, dilation);
  const auto format = result_format(input, weight);
  if (elements(g.y) == 0) return finish(at::empty(g.y, input.options()), format, g.batched);
  const bool complex = input.is_complex();
  if (is_half(input) || (bias && input.scalar_type() == at::kComplexHalf)) {
    // Rounded once, after the bias.
    const auto type = input.is_complex() ? at::kComplexFloat : at::kFloat;
    return forward_cpu(input.to(type), weight.to(type), bias ? std::make_optional(bias->to(type)) : std::nullopt,
                       stride, padding, output_padding, groups, dilation)
        .to(input.scalar_type());
  }
  Tensor y = bilinear(batched(input), resolved(weight), [&](const Tensor& x, const Tensor& w) {
    return at::convolution(x, w, complex ? std::nullopt : bias, g.stride, g.padding, g.dilation, /*transposed=*/true,
                           g.output_padding, groups);
  });
  if (complex && bias) y = y.add(bias->view({-1, 1, 1}));
  return finish(y, format, g.batched);
}

Tensor input_grad_cpu(const Tensor& grad_output, const Tensor& weight, IntArrayRef input_size, IntArrayRef stride,
                      IntArrayRef padding, int64_t groups, IntArrayRef dilation,
                      std::optional<c10::MemoryFormat> memory_format) {
  const auto g = check_input_grad<int64_t>(grad_output, weight, input_size, stride, padding, groups, dilation);
  const auto format = result_format(grad_output, weight, memory_format);
  if (elements(g.x) == 0 || elements(g.y) == 0) {
    return finish(at::zeros(g.x, grad_output.options()), format, g.batched);
  }
  const Tensor x = adjoint(batched(grad_output), resolved(weight), [&](const Tensor& y, const Tensor& w) {
    // Of the input, only the sizes are read. As an ordinary convolution this would be the same function, but oneDNN's
    // crashes where the padding is larger than the image.
    return std::get<0>(at::convolution_backward(y, at::empty(g.x, y.options()), w, std::nullopt, g.stride, g.padding,
                                                g.dilation, /*transposed=*/true, g.output_padding, groups,
                                                {true, false, false}));
  });
  return finish(x, format, g.batched);
}

Tensor weight_grad_cpu(const Tensor& input, const Tensor& grad_output, IntArrayRef kernel_size, IntArrayRef stride,
                       IntArrayRef padding, int64_t groups, IntArrayRef dilation,
                       std::optional<c10::MemoryFormat> memory_format) {
  const auto g = check_weight_grad<int64_t>(input, grad_output, kernel_size, stride, padding, groups, dilation);
  const auto format = result_format(input, grad_output, memory_format);
  if (elements(g.w) == 0 || elements(g.x) == 0 || elements(g.y) == 0) {
    return with_format(at::zeros(g.w, input.options()), format);
  }
  // Of a kernel of one tap, oneDNN writes beyond its memory if channels are innermost in the input, on CPUs without
  // AVX-512 and in one thread.
  const bool one_tap = g.w[2] * g.w[3] == 1;
  const Tensor operand = one_tap ? batched(input).contiguous() : batched(input);
  const Tensor w = adjoint(operand, batched(grad_output), [&](const Tensor& x, const Tensor& y) {
    // Of the weight, only the sizes are read.
    return std::get<1>(at::convolution_backward(y, x, at::empty(g.w, x.options()), std::nullopt, g.stride, g.padding,
                                                g.dilation, /*transposed=*/true, g.output_padding, groups,
                                                {false, true, false}));
  });
  return with_format(w, format);
}

}  // namespace
}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, CPU, m) {
  m.impl("conv_transpose2d", convt::ops::forward_cpu);
  m.impl("conv_transpose2d_input_grad", convt::ops::input_grad_cpu);
  m.impl("conv_transpose2d_weight_grad", convt::ops::weight_grad_cpu);
}
