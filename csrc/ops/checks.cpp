#include "checks.h"

#include <algorithm>
#include <type_traits>

#include "../plan/geometry.h"
#include "../plan/overflow.h"

namespace convt::ops {
namespace {

using at::Tensor;

int64_t multiply(int64_t a, int64_t b) { return checked_mul(a, b); }
int64_t plus(int64_t a, int64_t b) { return checked_add(a, b); }

// A traced size may be a plain number, which overflows like one.
c10::SymInt multiply(const c10::SymInt& a, const c10::SymInt& b) {
  const auto x = a.maybe_as_int(), y = b.maybe_as_int();
  return x && y ? c10::SymInt(checked_mul(*x, *y)) : a * b;
}
c10::SymInt plus(const c10::SymInt& a, const c10::SymInt& b) {
  const auto x = a.maybe_as_int(), y = b.maybe_as_int();
  return x && y ? c10::SymInt(checked_add(*x, *y)) : a + b;
}

template <class Int>
c10::ArrayRef<Int> sizes(const Tensor& t) {
  if constexpr (std::is_same_v<Int, int64_t>) {
    return t.sizes();
  } else {
    return t.sym_sizes();
  }
}

template <class Int>
std::array<Int, 2> expand_pair(c10::ArrayRef<Int> values, const char* name) {
  TORCH_CHECK(values.size() == 1 || values.size() == 2, "expected ", name,
              " to be a single integer value or a list of 2 values to match the convolution dimensions, but got ", name,
              "=", values);
  return {values[0], values[values.size() - 1]};
}

void check_dtype(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return;
    default:
      TORCH_CHECK(false, "\"conv_transpose2d\" not implemented for '", t.scalar_type(), "'");
  }
}

void check_same(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
  TORCH_CHECK(a.layout() == at::kStrided && b.layout() == at::kStrided, "Expected dense (strided) tensors, but got ",
              a_name, " of layout ", a.layout(), " and ", b_name, " of layout ", b.layout());
  TORCH_CHECK(a.device() == b.device(), "Expected all tensors to be on the same device, but got ", a_name, " on ",
              a.device(), " and ", b_name, " on ", b.device());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Input type (", a.scalar_type(), ") and ", b_name, " type (",
              b.scalar_type(), ") should be the same");
}

// An activation is (C, H, W) or (N, C, H, W); the unbatched form is one image.
template <class Int>
std::array<Int, 4> activation_sizes(const Tensor& t, const char* name) {
  const auto s = sizes<Int>(t);
  TORCH_CHECK(s.size() == 3 || s.size() == 4, "Expected 3D (unbatched) or 4D (batched) ", name,
              " to conv_transpose2d, but got ", name, " of size: ", s);
  if (s.size() == 3) return {Int(1), s[0], s[1], s[2]};
  return {s[0], s[1], s[2], s[3]};
}

template <class Int>
std::array<Int, 4> weight_sizes(const Tensor& weight) {
  const auto s = sizes<Int>(weight);
  TORCH_CHECK(s.size() == 4,
              "Expected 4-dimensional weight (in_channels, out_channels / groups, kernel_height, kernel_width) for "
              "conv_transpose2d, but got weight of size ",
              s);
  return {s[0], s[1], s[2], s[3]};
}

template <class Int>
void check_parameters(const Geometry<Int>& g) {
  TORCH_CHECK(g.groups > 0, "non-positive groups is not supported");
  for (int i = 0; i < 2; ++i) {
    TORCH_CHECK(g.padding[i] >= 0, "negative padding is not supported");
    TORCH_CHECK(g.output_padding[i] >= 0, "negative output_padding is not supported");
    TORCH_CHECK(g.stride[i] > 0, "non-positive stride is not supported");
    TORCH_CHECK(g.dilation[i] > 0, "dilation should be greater than zero, but got dilation_height: ", g.dilation[0],
                " dilation_width: ", g.dilation[1]);
  }
}

template <class Int>
void check_kernel(const Geometry<Int>& g) {
  TORCH_CHECK(g.w[2] > 0 && g.w[3] > 0, "kernel size should be greater than zero, but got kernel_height: ", g.w[2],
              " kernel_width: ", g.w[3]);
}

template <class Int>
void check_groups(const Geometry<Int>& g) {
  TORCH_CHECK(g.w[0] >= g.groups, "Given groups=", g.groups, ", expected weight to be at least ", g.groups,
              " at dimension 0, but got weight of size ", c10::ArrayRef<Int>(g.w), " instead");
  TORCH_CHECK(g.w[0] % g.groups == 0, "Given groups=", g.groups, ", expected weight to be divisible by ", g.groups,
              " at dimension 0, but got weight of size ", c10::ArrayRef<Int>(g.w), " instead");
}

template <class Int>
void check_image(const Geometry<Int>& g, const char* name, c10::ArrayRef<Int> shape) {
  TORCH_CHECK(g.x[2] > 0 && g.x[3] > 0, "Only zero batch or zero channel inputs are supported, but got ", name,
              " shape: ", shape);
}

// The size of y without output padding, of axis 0 (height) or 1 (width).
template <class Int>
Int base_size(const Geometry<Int>& g, int axis) {
  const Int spread = multiply(plus(g.x[2 + axis], Int(-1)), g.stride[axis]);
  const Int reach = multiply(g.dilation[axis], plus(g.w[2 + axis], Int(-1)));
  return plus(plus(spread, multiply(Int(-2), g.padding[axis])), plus(reach, Int(1)));
}

template <class Int>
void check_output_padding(const Geometry<Int>& g) {
  for (int i = 0; i < 2; ++i) {
    TORCH_CHECK(g.output_padding[i] < g.stride[i] || g.output_padding[i] < g.dilation[i],
                "output padding must be smaller than either stride or dilation, but got output_padding_height: ",
                g.output_padding[0], " output_padding_width: ", g.output_padding[1], " stride_height: ", g.stride[0],
                " stride_width: ", g.stride[1], " dilation_height: ", g.dilation[0],
                " dilation_width: ", g.dilation[1]);
  }
}

// Every tensor must have a number of bytes that 64 bits hold.
template <class Int>
void check_elements(const Geometry<Int>& g) {
  constexpr int64_t largest_element = 16;
  for (const auto* sizes : {&g.x, &g.w, &g.y}) {
    if constexpr (std::is_same_v<Int, int64_t>) {
      // An empty tensor has no bytes, however large its other sizes are.
      if (std::find(sizes->begin(), sizes->end(), 0) != sizes->end()) continue;
    }
    Int bytes = largest_element;
    for (const Int& size : *sizes) bytes = multiply(bytes, size);
  }
}

template <class Check>
auto overflow_as_error(const Check& check) {
  try {
    return check();
  } catch (const OverflowError& e) {
    TORCH_CHECK(false, "conv_transpose2d: a size overflows: ", e.what());
  }
}

template <class Int>
void check_y_positive(const Geometry<Int>& g) {
  TORCH_CHECK(g.y[2] >= 0 && g.y[3] >= 0, "Given input size per channel: [", g.x[2], ", ", g.x[3],
              "]. Calculated output size per channel: [", g.y[2], ", ", g.y[3], "]. Output size is too small");
}

// A given grad_output must be one that some legal output_padding gives; sets that output_padding.
template <class Int>
void check_y_matches(Geometry<Int>& g, c10::ArrayRef<Int> shape) {
  std::array<Int, 2> base = {base_size(g, 0), base_size(g, 1)};
  for (int i = 0; i < 2; ++i) g.output_padding[i] = g.y[2 + i] - base[i];
  const auto legal = [&](int i) {
    return g.output_padding[i] >= 0 && (g.output_padding[i] < g.stride[i] || g.output_padding[i] < g.dilation[i]);
  };
  TORCH_CHECK(legal(0) && legal(1), "Expected grad_output of spatial size [", base[0], ", ", base[1],
              "] plus a valid output_padding, but got grad_output of size ", shape);
}

}  // namespace

template <class Int>
Geometry<Int> check_forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                            c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, c10::ArrayRef<Int> output_padding,
                            Int groups, c10::ArrayRef<Int> dilation) {
  return overflow_as_error([&] {
    Geometry<Int> g;
    g.batched = input.dim() == 4;
    g.x = activation_sizes<Int>(input, "input");
    g.w = weight_sizes<Int>(weight);
    check_same(input, "input", weight, "weight");
    if (bias) check_same(input, "input", *bias, "bias");
    check_dtype(input);
    g.stride = expand_pair(stride, "stride");
    g.padding = expand_pair(padding, "padding");
    g.output_padding = expand_pair(output_padding, "output_padding");
    g.dilation = expand_pair(dilation, "dilation");
    g.groups = groups;
    check_parameters(g);
    check_groups(g);
    const auto input_shape = sizes<Int>(input), weight_shape = sizes<Int>(weight);
    TORCH_CHECK(g.x[1] == g.w[0], "Given transposed=1, weight of size ", weight_shape, ", expected input", input_shape,
                " to have ", g.w[0], " channels, but got ", g.x[1], " channels instead");
    const Int out_channels = multiply(g.w[1], g.groups);
    if (bias) {
      const auto bias_shape = sizes<Int>(*bias);
      TORCH_CHECK(bias_shape.size() == 1 && bias_shape[0] == out_channels, "Given transposed=1, weight of size ",
                  weight_shape, ", expected bias to be 1-dimensional with ", out_channels,
                  " elements, but got bias of size ", bias_shape, " instead");
    }
    check_kernel(g);
    check_image(g, "input", input_shape);
    check_output_padding(g);
    g.y = {g.x[0], out_channels, plus(base_size(g, 0), g.output_padding[0]),
           plus(base_size(g, 1), g.output_padding[1])};
    check_y_positive(g);
    check_elements(g);
    return g;
  });
}

template <class Int>
Geometry<Int> check_input_grad(const Tensor& grad_output, const Tensor& weight, c10::ArrayRef<Int> input_size,
                               c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, Int groups,
                               c10::ArrayRef<Int> dilation) {
  return overflow_as_error([&] {
    Geometry<Int> g;
    g.batched = grad_output.dim() == 4;
    g.y = activation_sizes<Int>(grad_output, "grad_output");
    g.w = weight_sizes<Int>(weight);
    check_same(grad_output, "grad_output", weight, "weight");
    check_dtype(grad_output);
    const auto image = expand_pair(input_size, "input_size");
    g.stride = expand_pair(stride, "stride");
    g.padding = expand_pair(padding, "padding");
    g.output_padding = {Int(0), Int(0)};
    g.dilation = expand_pair(dilation, "dilation");
    g.groups = groups;
    check_parameters(g);
    check_groups(g);
    const auto shape = sizes<Int>(grad_output);
    const Int out_channels = multiply(g.w[1], g.groups);
    TORCH_CHECK(g.y[1] == out_channels, "Given transposed=1, weight of size ", sizes<Int>(weight),
                ", expected grad_output", shape, " to have ", out_channels, " channels, but got ", g.y[1],
                " channels instead");
    check_kernel(g);
    g.x = {g.y[0], g.w[0], image[0], image[1]};
    check_image(g, "input", c10::ArrayRef<Int>(g.x));
    check_y_matches(g, shape);
    check_elements(g);
    return g;
  });
}

template <class Int>
Geometry<Int> check_weight_grad(const Tensor& input, const Tensor& grad_output, c10::ArrayRef<Int> kernel_size,
                                c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, Int groups,
                                c10::ArrayRef<Int> dilation) {
  return overflow_as_error([&] {
    Geometry<Int> g;
    g.batched = input.dim() == 4;
    g.x = activation_sizes<Int>(input, "input");
    g.y = activation_sizes<Int>(grad_output, "grad_output");
    const auto input_shape = sizes<Int>(input), shape = sizes<Int>(grad_output);
    TORCH_CHECK(input.dim() == grad_output.dim() && g.x[0] == g.y[0],
                "Expected input and grad_output of the same batch, but got input of size ", input_shape,
                " and grad_output of size ", shape);
    check_same(input, "input", grad_output, "grad_output");
    check_dtype(input);
    const auto kernel = expand_pair(kernel_size, "kernel_size");
    g.stride = expand_pair(stride, "stride");
    g.padding = expand_pair(padding, "padding");
    g.output_padding = {Int(0), Int(0)};
    g.dilation = expand_pair(dilation, "dilation");
    g.groups = groups;
    check_parameters(g);
    TORCH_CHECK(g.x[1] >= g.groups && g.x[1] % g.groups == 0 && g.y[1] % g.groups == 0,
                "Expected the channels of input and grad_output to be divisible by groups=", g.groups,
                ", but got input of size ", input_shape, " and grad_output of size ", shape);
    g.w = {g.x[1], g.y[1] / g.groups, kernel[0], kernel[1]};
    check_kernel(g);
    check_image(g, "input", input_shape);
    check_y_matches(g, shape);
    check_elements(g);
    return g;
  });
}

#define CONVT_INSTANTIATE(Int)                                                                                        \
  template Geometry<Int> check_forward<Int>(const Tensor&, const Tensor&, const std::optional<Tensor>&,               \
                                            c10::ArrayRef<Int>, c10::ArrayRef<Int>, c10::ArrayRef<Int>, Int,          \
                                            c10::ArrayRef<Int>);                                                      \
  template Geometry<Int> check_input_grad<Int>(const Tensor&, const Tensor&, c10::ArrayRef<Int>, c10::ArrayRef<Int>,  \
                                               c10::ArrayRef<Int>, Int, c10::ArrayRef<Int>);                          \
  template Geometry<Int> check_weight_grad<Int>(const Tensor&, const Tensor&, c10::ArrayRef<Int>, c10::ArrayRef<Int>, \
                                                c10::ArrayRef<Int>, Int, c10::ArrayRef<Int>);
CONVT_INSTANTIATE(int64_t)
CONVT_INSTANTIATE(c10::SymInt)
#undef CONVT_INSTANTIATE

}  // namespace convt::ops
