#include "tensors.h"

#include <ATen/Context.h>

namespace convt::ops {

DataType data_type(at::ScalarType t) {
  switch (t) {
    case at::kHalf:
      return DataType::float16;
    case at::kBFloat16:
      return DataType::bfloat16;
    case at::kFloat:
      return DataType::float32;
    case at::kDouble:
      return DataType::float64;
    case at::kComplexHalf:  // computed as complex64
    case at::kComplexFloat:
      return DataType::complex64;
    case at::kComplexDouble:
      return DataType::complex128;
    default:
      TORCH_CHECK(false, "\"conv_transpose2d\" not implemented for '", t, "'");
  }
}

Precision convolution_precision() {
  return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV) ? Precision::tf32 : Precision::ieee;
}

at::Tensor resolved(const at::Tensor& t) {
  // Each of the two is a call through the dispatcher, for nothing in nearly every case.
  return t.is_conj() || t.is_neg() ? t.resolve_conj().resolve_neg() : t;
}

at::Tensor batched(const at::Tensor& activation) {
  const at::Tensor t = resolved(activation);
  return t.dim() == 3 ? t.unsqueeze(0) : t;
}

bool is_aligned(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_python_dispatch() || reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

Problem make_problem(Operation operation, const Geometry<int64_t>& g, at::ScalarType dtype, const Strides& x_strides,
                     const Strides& w_strides, const Strides& y_strides, const std::optional<at::Tensor>& bias) {
  Problem p;
  p.operation = operation;
  p.dtype = data_type(dtype);
  p.precision = p.dtype == DataType::float32 ? convolution_precision() : Precision::ieee;
  p.batch = g.x[0];
  p.in_channels = g.x[1];
  p.out_channels = g.y[1];
  p.groups = g.groups;
  p.in_h = g.x[2], p.in_w = g.x[3];
  p.out_h = g.y[2], p.out_w = g.y[3];
  p.kernel_h = g.w[2], p.kernel_w = g.w[3];
  p.stride_h = g.stride[0], p.stride_w = g.stride[1];
  p.padding_h = g.padding[0], p.padding_w = g.padding[1];
  p.dilation_h = g.dilation[0], p.dilation_w = g.dilation[1];
  p.x_strides = x_strides;
  p.w_strides = w_strides;
  p.y_strides = y_strides;
  p.has_bias = bias.has_value();
  p.bias_stride = bias ? bias->stride(0) : 0;
  return p;
}

}  // namespace convt::ops
