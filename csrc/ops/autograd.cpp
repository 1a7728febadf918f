// Differentiation. The operation is bilinear and its three operators are closed under differentiation: with the tensors
// named by role (x the input, w the weight, y the output), each operator computes one role from the other two, and the
// derivative by an operand is the operator that computes that operand's role, from the result's gradient and the
// conjugate of the other operand. So one node serves all of them, to any order.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include <array>

#include "layout.h"
#include "schema.h"

namespace convt::ops {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

enum Role : int { X, W, Y };

// The roles that an operator takes, in the order of its arguments.
constexpr std::array<std::array<Role, 2>, 3> operands_of = {{{Y, W}, {X, Y}, {X, W}}};

using Pair = std::array<c10::SymInt, 2>;

struct Convolution {
  Pair stride, padding, output_padding, dilation;
  Pair input_size, kernel_size;  // spatial
  c10::SymInt groups;

  // All of it, in one order.
  template <class Self, class Visit>
  static void visit(Self& self, const Visit& visit) {
    for (auto* pair :
         {&self.stride, &self.padding, &self.output_padding, &self.dilation, &self.input_size, &self.kernel_size}) {
      visit((*pair)[0]);
      visit((*pair)[1]);
    }
    visit(self.groups);
  }
};

// A format is given to an adjoint only: the forward's is always that of its operands.
Tensor compute(Role result, const Tensor& a, const Tensor& b, const Convolution& c,
               std::optional<c10::MemoryFormat> format) {
  switch (result) {
    case X:
      return input_grad_op().call(a, b, c.input_size, c.stride, c.padding, c.groups, c.dilation, format);
    case W:
      return weight_grad_op().call(a, b, c.kernel_size, c.stride, c.padding, c.groups, c.dilation, format);
    case Y:
      return forward_op().call(a, b, std::nullopt, c.stride, c.padding, c.output_padding, c.groups, c.dilation);
  }
  TORCH_INTERNAL_ASSERT(false);
}

bool suggests_channels_last(const Tensor& t) {
  return (t.dim() == 3 ? t.unsqueeze(0) : t).suggest_memory_format() == c10::MemoryFormat::ChannelsLast;
}

// Whether `t.contiguous(format)` suggests channels_last. It leaves alone what is contiguous in both formats.
bool suggests_channels_last_in(const Tensor& activation, c10::MemoryFormat format) {
  const Tensor t = activation.dim() == 3 ? activation.unsqueeze(0) : activation;
  constexpr std::array<int, 4> contiguous = {3, 2, 1, 0}, channels_last = {1, 3, 2, 0};
  const bool wanted = format == c10::MemoryFormat::ChannelsLast;
  const auto sizes = t.sym_sizes(), strides = t.sym_strides();
  c10::SymInt step = 1;
  for (int d : wanted ? channels_last : contiguous) {
    if (sizes[d] == 1) continue;
    if (strides[d] != step) return wanted;
    step *= sizes[d];
  }
  return suggests_channels_last(t);
}

bool follows_cudnn(const Tensor& t) {
  return t.device().is_cuda() && t.scalar_type() != at::kDouble && t.scalar_type() != at::kComplexDouble;
}

// Memory formats of the forward's gradients. On the CPU, aten gives them that of the output. On CUDA it makes the input
// contiguous in that format, the incoming gradient in the one that this input suggests, and gives each gradient the
// format that its two operands then suggest; which is another one only where an operand is contiguous in both.
c10::MemoryFormat format_for_gradients(const Tensor& x, const Tensor& w) {
  const auto format = result_format(x, w);
  if (!follows_cudnn(x)) return format;
  return suggests_channels_last_in(x, format) ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::Contiguous;
}

c10::MemoryFormat gradient_format(Role wanted, c10::MemoryFormat format, const Tensor& grad, const Tensor& other) {
  if (!follows_cudnn(grad)) return format;
  const bool other_suggests = wanted == W ? format == c10::MemoryFormat::ChannelsLast : suggests_channels_last(other);
  return other_suggests || suggests_channels_last_in(grad, format) ? c10::MemoryFormat::ChannelsLast
                                                                   : c10::MemoryFormat::Contiguous;
}

// The derivative by `wanted`, one of the operands of the operator that computes `result`: `grad` takes the place of the
// result and the other operand, conjugated, its own.
Tensor adjoint(Role wanted, Role result, const Tensor& grad, const Tensor& other, const Convolution& c,
               std::optional<c10::MemoryFormat> format_for_gradients) {
  const auto& [first, second] = operands_of[wanted];
  std::optional<c10::MemoryFormat> format;
  if (format_for_gradients) format = gradient_format(wanted, *format_for_gradients, grad, other);
  const Tensor other_conj = other.is_complex() ? other.conj() : other;
  return first == result ? compute(wanted, grad, other_conj, c, format) : compute(wanted, other_conj, grad, c, format);
}

Tensor bias_grad(const Tensor& grad) {
  // Not every device sums half-precision complex numbers.
  if (grad.scalar_type() == at::kComplexHalf) return bias_grad(grad.to(at::kComplexFloat)).to(at::kComplexHalf);
  return grad.dim() == 3 ? grad.sum({1, 2}) : grad.sum({0, 2, 3});
}

// What a gradient is computed from, besides the gradient of the result.
struct Backward {
  Role result = Y;
  Convolution convolution;
  // Of the forward; the gradients of the adjoints follow their operands.
  std::optional<c10::MemoryFormat> format;

  variable_list gradients(const Tensor& grad, const Tensor& a, const Tensor& b, const std::array<bool, 3>& wanted,
                          size_t count) const {
    variable_list grads(count);
    if (!grad.defined()) return grads;
    const auto& [a_role, b_role] = operands_of[result];
    if (wanted[0]) grads[0] = adjoint(a_role, result, grad, b, convolution, format);
    if (wanted[1]) grads[1] = adjoint(b_role, result, grad, a, convolution, format);
    if (wanted[2]) grads[2] = bias_grad(grad);
    return grads;
  }
};

struct ConvTranspose2dBackward : public torch::autograd::TraceableFunction {
  Backward backward;
  SavedVariable first, second;

  std::string name() const override {
    static constexpr const char* names[] = {"ConvTranspose2dInputGradBackward", "ConvTranspose2dWeightGradBackward",
                                            "ConvTranspose2dBackward"};
    return names[backward.result];
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    first.reset_data();
    second.reset_data();
  }

  std::array<bool, 3> wanted() const {
    std::array<bool, 3> outputs{};
    for (size_t i = 0; i < num_outputs(); ++i) outputs[i] = task_should_compute_output(i);
    return outputs;
  }

  // An operand is saved only if the other's gradient was asked for when the graph was built.
  Tensor unpack_first(const std::array<bool, 3>& wanted) { return wanted[1] ? first.unpack(getptr()) : Tensor(); }
  Tensor unpack_second(const std::array<bool, 3>& wanted) { return wanted[0] ? second.unpack(getptr()) : Tensor(); }

  variable_list apply(variable_list&& inputs) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto outputs = wanted();
    return backward.gradients(inputs[0], unpack_first(outputs), unpack_second(outputs), outputs, num_outputs());
  }

  int64_t packed_format() const { return backward.format ? static_cast<int64_t>(*backward.format) : -1; }

  // Compiled autograd: what the node depends on, and the node as a function of it.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(static_cast<uint64_t>(backward.result));
    args.collect(static_cast<uint64_t>(packed_format()));
    Convolution::visit(backward.convolution, [&](const c10::SymInt& v) { args.collect(v); });
    args.collect(first, /*is_output=*/false);
    args.collect(second, /*is_output=*/false);
  }

  static variable_list apply_functional(const variable_list& inputs, const std::vector<c10::IValue>& values) {
    torch::dynamo::autograd::PackedArgs args(values);
    Backward backward;
    backward.result = static_cast<Role>(args.unpack<int64_t>());
    const auto format = args.unpack<int64_t>();
    if (format >= 0) backward.format = static_cast<c10::MemoryFormat>(format);
    const auto symints = args.unpack<std::vector<c10::SymInt>>();
    size_t next = 0;
    Convolution::visit(backward.convolution, [&](c10::SymInt& v) { v = symints[next++]; });
    const auto outputs = args.unpack<std::array<bool, 3>>();
    const auto count = args.unpack<int64_t>();
    const Tensor a = outputs[1] ? args.unpack<Tensor>() : Tensor();
    const Tensor b = outputs[0] ? args.unpack<Tensor>() : Tensor();
    return backward.gradients(inputs[0], a, b, outputs, static_cast<size_t>(count));
  }

  variable_list apply_with_saved(const variable_list& inputs,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    using namespace torch::dynamo::autograd;
    Convolution::visit(backward.convolution, [&](c10::SymInt& v) { saved.before(v); });
    saved.before(first);
    saved.before(second);

    const auto outputs = wanted();
    PackedArgs args;
    args.pack(static_cast<int64_t>(backward.result));
    args.pack(packed_format());
    std::vector<c10::SymInt> symints;
    Convolution::visit(backward.convolution, [&](c10::SymInt& v) { symints.push_back(v); });
    args.pack(symints);
    args.pack(outputs);
    args.pack(static_cast<int64_t>(num_outputs()));
    if (outputs[1]) args.pack(unpack_first(outputs));
    if (outputs[0]) args.pack(unpack_second(outputs));
    std::vector<at::TypePtr> schema;
    for (const auto& value : args.vec()) {
      schema.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
    }
    const auto& compiler = getPyCompilerInterface();
    const auto function = compiler->bind_function(saved.get_py_compiler(), name(), apply_functional, schema,
                                                  /*is_custom_function=*/true, /*is_traceable=*/true);
    const auto output_metadata = IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        get_input_metadata(next_edges()));
    auto result = compiler->call_function(saved.get_py_compiler(), "apply_functional", function, inputs, args.vec(),
                                          output_metadata);

    Convolution::visit(backward.convolution, [&](c10::SymInt& v) { saved.after(v); });
    saved.after(first);
    saved.after(second);
    return result;
  }
};

// The engine owns its nodes through a std::shared_ptr in some versions of torch and a c10::intrusive_ptr in later ones.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class T, class Ptr = NodePtr>
auto new_node() {
  if constexpr (std::is_same_v<Ptr, std::shared_ptr<torch::autograd::Node>>) {
    // Found by its argument's namespace, where it exists: destroys long graphs without recursion.
    return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>();
  }
}

using BackwardPtr = decltype(new_node<ConvTranspose2dBackward>());

bool requires_grad(const Tensor& t) { return t.defined() && t.requires_grad(); }

BackwardPtr make_node(Role result, const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                      const Convolution& c) {
  using namespace torch::autograd;
  const BackwardPtr node = new_node<ConvTranspose2dBackward>();
  node->set_next_edges(result == Y ? collect_next_edges(a, b, bias) : collect_next_edges(a, b));
  node->backward = {result, c, result == Y ? std::make_optional(format_for_gradients(a, b)) : std::nullopt};
  if (requires_grad(b)) node->first = SavedVariable(a, /*is_output=*/false);
  if (requires_grad(a)) node->second = SavedVariable(b, /*is_output=*/false);
  return node;
}

// Forward mode: the operators are linear in each operand.
void set_tangent(Tensor& y, Role result, const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                 const Convolution& c) {
  const auto tangent_of = [](const Tensor& t) { return t._fw_grad(/*level=*/0); };
  const auto primal_of = [](const Tensor& t) { return t._fw_primal(/*level=*/0); };
  Tensor tangent;
  const auto accumulate = [&tangent](const Tensor& t) { tangent = tangent.defined() ? tangent.add(t) : t; };
  if (tangent_of(a).defined()) accumulate(compute(result, tangent_of(a), primal_of(b), c, std::nullopt));
  if (tangent_of(b).defined()) accumulate(compute(result, primal_of(a), tangent_of(b), c, std::nullopt));
  if (bias && tangent_of(*bias).defined()) {
    accumulate(tangent_of(*bias).view({-1, 1, 1}).expand_as(y));
  }
  if (tangent.defined()) y._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}

// `convolution` is only called if something is to be differentiated: an eager inference call must not pay for it.
template <class MakeConvolution, class Redispatch>
Tensor differentiable(Role result, const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                      const MakeConvolution& convolution, const Redispatch& redispatch) {
  using namespace torch::autograd;
  const bool has_tangent = isFwGradDefined(a) || isFwGradDefined(b) || isFwGradDefined(bias);
  const bool needs_grad = compute_requires_grad(a, b, bias);
  if (!has_tangent && !needs_grad) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return redispatch();
  }
  const Convolution c = convolution();
  const BackwardPtr node = needs_grad ? make_node(result, a, b, bias, c) : nullptr;
  Tensor y = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return redispatch();
  }();
  if (node) set_history(y, node);
  if (has_tangent) set_tangent(y, result, a, b, bias, c);
  return y;
}

// Lists and tensors of a wrong length are left to the operator's own check.
Pair pair(c10::SymIntArrayRef values) {
  if (values.empty()) return {};
  return {values[0], values[values.size() == 1 ? 0 : 1]};
}

Pair spatial(const Tensor& t) {
  const auto s = t.sym_sizes();
  if (s.size() < 2) return {};
  return {s[s.size() - 2], s[s.size() - 1]};
}

Tensor forward(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
               c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
               c10::SymInt groups, c10::SymIntArrayRef dilation) {
  const auto convolution = [&] {
    return Convolution{pair(stride),    pair(padding), pair(output_padding), pair(dilation), spatial(input),
                       spatial(weight), groups};
  };
  return differentiable(Y, input, weight, bias, convolution, [&] {
    return forward_op().redispatch(keys & c10::after_autograd_keyset, input, weight, bias, stride, padding,
                                   output_padding, groups, dilation);
  });
}

// The convolution of an adjoint: the forward's output_padding is what gives y of this size from x of that size.
Convolution adjoint_convolution(const Pair& x, const Pair& w, const Pair& y, c10::SymIntArrayRef stride,
                                c10::SymIntArrayRef padding, const c10::SymInt& groups, c10::SymIntArrayRef dilation) {
  Convolution c{pair(stride), pair(padding), {}, pair(dilation), x, w, groups};
  for (size_t i = 0; i < 2; ++i) {
    c.output_padding[i] = y[i] - ((x[i] - 1) * c.stride[i] - c.padding[i] * 2 + c.dilation[i] * (w[i] - 1) + 1);
  }
  return c;
}

Tensor input_grad(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& weight,
                  c10::SymIntArrayRef input_size, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                  c10::SymInt groups, c10::SymIntArrayRef dilation, std::optional<c10::MemoryFormat> format) {
  const auto convolution = [&] {
    return adjoint_convolution(pair(input_size), spatial(weight), spatial(grad_output), stride, padding, groups,
                               dilation);
  };
  return differentiable(X, grad_output, weight, std::nullopt, convolution, [&] {
    return input_grad_op().redispatch(keys & c10::after_autograd_keyset, grad_output, weight, input_size, stride,
                                      padding, groups, dilation, format);
  });
}

Tensor weight_grad(c10::DispatchKeySet keys, const Tensor& input, const Tensor& grad_output,
                   c10::SymIntArrayRef kernel_size, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymInt groups, c10::SymIntArrayRef dilation, std::optional<c10::MemoryFormat> format) {
  const auto convolution = [&] {
    return adjoint_convolution(spatial(input), pair(kernel_size), spatial(grad_output), stride, padding, groups,
                               dilation);
  };
  return differentiable(W, input, grad_output, std::nullopt, convolution, [&] {
    return weight_grad_op().redispatch(keys & c10::after_autograd_keyset, input, grad_output, kernel_size, stride,
                                       padding, groups, dilation, format);
  });
}

}  // namespace
}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, Autograd, m) {
  m.impl("conv_transpose2d", convt::ops::forward);
  m.impl("conv_transpose2d_input_grad", convt::ops::input_grad);
  m.impl("conv_transpose2d_weight_grad", convt::ops::weight_grad);
}
