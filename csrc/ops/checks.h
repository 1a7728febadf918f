// What every operator checks before anything is computed, once for eager tensors (Int = int64_t) and once for traced
// ones (Int = c10::SymInt). The same faults give the same RuntimeError on every device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <array>
#include <optional>

namespace convt::ops {

// A checked problem. Sizes are those of the batched tensors: an unbatched input has batch 1.
template <class Int>
struct Geometry {
  std::array<Int, 2> stride, padding, output_padding, dilation;
  Int groups;
  std::array<Int, 4> x, w, y;
  bool batched;
};

// T(input, weight): y is computed.
template <class Int>
Geometry<Int> check_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, c10::ArrayRef<Int> output_padding,
                            Int groups, c10::ArrayRef<Int> dilation);

// C(grad_output, weight): x of spatial size `input_size` is computed.
template <class Int>
Geometry<Int> check_input_grad(const at::Tensor& grad_output, const at::Tensor& weight, c10::ArrayRef<Int> input_size,
                               c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, Int groups,
                               c10::ArrayRef<Int> dilation);

// W(input, grad_output): w of spatial size `kernel_size` is computed.
template <class Int>
Geometry<Int> check_weight_grad(const at::Tensor& input, const at::Tensor& grad_output, c10::ArrayRef<Int> kernel_size,
                                c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding, Int groups,
                                c10::ArrayRef<Int> dilation);

}  // namespace convt::ops
