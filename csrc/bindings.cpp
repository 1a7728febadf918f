// The Python module convt._C: loads the operators, and gives Python what tensors alone cannot ask of them.
// It comes first in the translation unit that it shares with the operators (setup.py), because what it defines here is
// for all of torch's headers.

// torch's headers format their messages with fmt, which is not exported from its libraries.
#define FMT_HEADER_ONLY 1
// As in torch itself: its argument parser takes NumPy's integers too.
#define USE_NUMPY 1
#include <ATen/ops/empty_strided.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pycfunction_helpers.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include "build_info.h"
#include "kernels/depthwise/host.h"
#include "kernels/direct/host.h"
#include "ops/checks.h"
#include "ops/devices.h"
#include "ops/layout.h"
#include "ops/schema.h"
#include "ops/tensors.h"
#include "plan/overflow.h"
#include "plan/planner.h"

namespace py = pybind11;

namespace convt {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::vector<int64_t>;

// The three operators' checks and sizes, for a problem of any operation: `a` and `b` are its operands in the order of
// the operator's arguments, `size` the input_size or kernel_size of an adjoint.
template <class Int>
ops::Geometry<Int> check(Operation operation, const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                         c10::ArrayRef<Int> size, c10::ArrayRef<Int> stride, c10::ArrayRef<Int> padding,
                         c10::ArrayRef<Int> output_padding, Int groups, c10::ArrayRef<Int> dilation) {
  switch (operation) {
    case Operation::forward:
      return ops::check_forward<Int>(a, b, bias, stride, padding, output_padding, groups, dilation);
    case Operation::input_grad:
      return ops::check_input_grad<Int>(a, b, size, stride, padding, groups, dilation);
    case Operation::weight_grad:
      return ops::check_weight_grad<Int>(a, b, size, stride, padding, groups, dilation);
  }
  throw std::invalid_argument("unknown operation");
}

// For fake tensors: the sizes of the result and whether it is channels_last.
std::pair<std::vector<c10::SymInt>, bool> infer(Operation operation, const Tensor& a, const Tensor& b,
                                                const OptionalTensor& bias, c10::SymIntArrayRef size,
                                                c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                                c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
                                                c10::SymIntArrayRef dilation, std::optional<c10::MemoryFormat> format) {
  const auto g = check<c10::SymInt>(operation, a, b, bias, size, stride, padding, output_padding, groups, dilation);
  const auto& result = operation == Operation::forward ? g.y : operation == Operation::input_grad ? g.x : g.w;
  return {{result.begin(), result.end()}, ops::result_format(a, b, format) == c10::MemoryFormat::ChannelsLast};
}

// The 4-D operands of a call, and the problem that they are.
struct Call {
  ops::Geometry<int64_t> geometry;
  Tensor a, b;
  OptionalTensor bias;
  Problem problem;
};

Call make_call(Operation operation, const Tensor& a, const Tensor& b, const OptionalTensor& bias, const Pair& size,
               const Pair& stride, const Pair& padding, const Pair& output_padding, int64_t groups,
               const Pair& dilation) {
  Call call{check<int64_t>(operation, a, b, bias, size, stride, padding, output_padding, groups, dilation),
            operation == Operation::weight_grad || a.dim() == 3 ? ops::batched(a) : ops::resolved(a),
            operation == Operation::weight_grad ? ops::batched(b) : ops::resolved(b),
            bias ? OptionalTensor(ops::resolved(*bias)) : std::nullopt,
            {}};
  const auto& g = call.geometry;
  const auto format = ops::result_format(a, b);
  const Strides first = ops::strides(call.a), second = ops::strides(call.b);
  switch (operation) {
    case Operation::forward:
      call.problem =
          ops::make_problem(operation, g, a.scalar_type(), first, second, ops::strides_of(g.y, format), call.bias);
      call.problem.x_aligned = ops::is_aligned(call.a), call.problem.w_aligned = ops::is_aligned(call.b);
      break;
    case Operation::input_grad:
      call.problem = ops::make_problem(operation, g, a.scalar_type(), ops::strides_of(g.x, format), second, first);
      break;
    case Operation::weight_grad:
      call.problem = ops::make_problem(operation, g, a.scalar_type(), first, ops::strides_of(g.w, format), second);
      break;
  }
  call.problem = coalesced(call.problem);
  return call;
}

DeviceInfo device_for(const std::optional<std::string>& device) {
  if (!device) {
    const auto current = ops::current_device();
    if (!current) throw py::value_error("there is no GPU here: name a device, for example device=\"h200\"");
    return *current;
  }
  const DeviceInfo* found = find_device(*device);
  if (found != nullptr) return *found;
  std::string names;
  for (const DeviceInfo& d : known_devices()) names += (names.empty() ? "" : ", ") + d.name;
  throw py::value_error("unknown device \"" + *device + "\"; known are " + names);
}

Explanation explain_call(Operation operation, const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                         const Pair& size, const Pair& stride, const Pair& padding, const Pair& output_padding,
                         int64_t groups, const Pair& dilation, const std::optional<std::string>& device) {
  const Call call = make_call(operation, a, b, bias, size, stride, padding, output_padding, groups, dilation);
  const DeviceInfo info = device_for(device);
  try {
    return explain(call.problem, info);
  } catch (const std::exception& e) {
    // As the call itself reports it.
    TORCH_CHECK(false, "conv_transpose2d: ", e.what());
  }
}

void run_family_on_host(const Plan& plan, const Problem& problem, const Operands& operands) {
  switch (plan.algorithm) {
    case Algorithm::direct:
      return direct::run_on_host(plan, problem, operands);
    case Algorithm::depthwise:
      return depthwise::run_on_host(plan, problem, operands);
    default:
      throw std::invalid_argument(std::string("the ") + name(plan.algorithm) + " family does not run on the host");
  }
}

// One configuration of a family whose kernels also run on the host, on CPU tensors.
Tensor run_on_host(Operation operation, const Tensor& a, const Tensor& b, const OptionalTensor& bias, const Pair& size,
                   const Pair& stride, const Pair& padding, const Pair& output_padding, int64_t groups,
                   const Pair& dilation, const std::string& configuration, std::optional<int32_t> index_bits) {
  TORCH_CHECK(a.device().is_cpu(), "run_on_host takes CPU tensors");
  const Call call = make_call(operation, a, b, bias, size, stride, padding, output_padding, groups, dilation);
  const auto& g = call.geometry;
  Plan plan = make_forced_plan(call.problem, known_devices().back(), configuration);
  if (index_bits) plan.index_bits = *index_bits;
  const void *first = call.a.const_data_ptr(), *second = call.b.const_data_ptr();
  const auto make = [&](const std::array<int64_t, 4>& sizes, const Strides& strides) {
    // Poisoned, so that an element that is not written shows.
    return at::empty_strided(sizes, strides, a.options()).fill_(std::numeric_limits<double>::quiet_NaN());
  };
  Tensor result;
  if (operation == Operation::forward) {
    result = make(g.y, ops::strides_of(g.y, ops::result_format(a, b)));
    run_family_on_host(
        plan, call.problem,
        {first, second, nullptr, call.bias ? call.bias->const_data_ptr() : nullptr, result.mutable_data_ptr()});
  } else if (operation == Operation::input_grad) {
    result = make(g.x, call.problem.x_strides);
    run_family_on_host(plan, call.problem, {nullptr, second, first, nullptr, result.mutable_data_ptr()});
  } else {
    result = make(g.w, call.problem.w_strides);
    run_family_on_host(plan, call.problem, {first, nullptr, second, nullptr, result.mutable_data_ptr()});
  }
  return g.batched || operation == Operation::weight_grad ? result : result.squeeze(0);
}

// (tap, position) pairs, for tests.
using TapList = std::vector<std::pair<int64_t, int64_t>>;

TapList expand(const Taps<int64_t>& taps) {
  TapList list;
  for (int64_t j = 0; j < taps.count; ++j) {
    list.emplace_back(taps.tap + j * taps.tap_step, taps.position + j * taps.position_step);
  }
  return list;
}

TapList reduction_list(const Axis<int64_t>& axis, int64_t tap) {
  const auto range = reduction_range(axis, tap);
  TapList list;
  for (int64_t i = range.first; i < range.first + range.count; ++i) {
    list.emplace_back(i, i * axis.stride + range.offset);
  }
  return list;
}

py::dict build_info_dict() {
  const BuildInfo& info = convt::build_info();
  py::dict d;
  d["version"] = info.version;
  d["torch"] = info.torch;
  d["cuda"] = info.cuda.empty() ? py::object(py::none()) : py::str(info.cuda);
  d["cuda_note"] = info.cuda_note;
  d["archs"] = info.archs;
  d["source_digest"] = info.source_digest;
  return d;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceInfo& d : known_devices()) names.push_back(d.name);
  return names;
}

// The eager call. The same call through torch.ops takes several microseconds longer, which is more than many layers
// need on a GPU, and does not take an int for a pair.
PyObject* conv_transpose2d(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static torch::PythonArgParser parser({
      "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, SymIntArrayRef[2] stride=1, "
      "SymIntArrayRef[2] padding=0, SymIntArrayRef[2] output_padding=0, SymInt groups=1, SymIntArrayRef[2] dilation=1)",
  });
  torch::ParsedArgs<8> parsed;
  auto r = parser.parse(nullptr, args, kwargs, parsed);
  if (r.has_torch_function()) {
    static PyObject* const functional = PyImport_ImportModule("convt.functional");
    THPObjectPtr function(PyObject_GetAttrString(functional, "conv_transpose2d"));
    return torch::handle_torch_function_no_python_arg_parser(r.overloaded_args, args, kwargs, "conv_transpose2d",
                                                             function.get(), "convt.functional");
  }
  const auto call = [&](const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        const std::vector<c10::SymInt>& stride, const std::vector<c10::SymInt>& padding,
                        const std::vector<c10::SymInt>& output_padding, const c10::SymInt& groups,
                        const std::vector<c10::SymInt>& dilation) {
    const py::gil_scoped_release no_gil;
    return ops::forward_op().call(input, weight, bias, stride, padding, output_padding, groups, dilation);
  };
  return THPVariable_Wrap(call(r.tensor(0), r.tensor(1), r.optionalTensor(2), r.symintlist(3), r.symintlist(4),
                               r.symintlist(5), r.toSymInt(6), r.symintlist(7)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"conv_transpose2d", castPyCFunctionWithKeywords(conv_transpose2d), METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind(py::module_& m) {
  py::enum_<Operation>(m, "Operation")
      .value("forward", Operation::forward)
      .value("input_grad", Operation::input_grad)
      .value("weight_grad", Operation::weight_grad);

  py::class_<GemmTile>(m, "GemmTile", "What a block of threads of an implicit GEMM computes.")
      .def_readonly("images", &GemmTile::images)
      .def_readonly("rows", &GemmTile::rows)
      .def_readonly("columns", &GemmTile::columns)
      .def_readonly("row_phases", &GemmTile::row_phases)
      .def_readonly("column_phases", &GemmTile::column_phases)
      .def_readonly("channel_groups", &GemmTile::channel_groups)
      .def_readonly("splits", &GemmTile::splits)
      .def_readonly("stacked_rows", &GemmTile::stacked_rows)
      .def_readonly("piece_rows", &GemmTile::piece_rows)
      .def_readonly("reuse", &GemmTile::reuse)
      .def_readonly("balanced_blocks", &GemmTile::balanced_blocks)
      .def_readonly("im2col", &GemmTile::im2col)
      .def_readonly("rows_in_boxes", &GemmTile::rows_in_boxes)
      .def_readonly("channels_last", &GemmTile::channels_last)
      .def_readonly("weights_in_place", &GemmTile::weights_in_place)
      .def_readonly("columns_folded", &GemmTile::columns_folded)
      .def("__str__", &GemmTile::to_string);

  py::class_<Plan>(m, "LaunchPlan", "How one candidate would be launched.")
      .def_readonly("grid", &Plan::grid, "blocks")
      .def_readonly("block", &Plan::block, "threads")
      .def_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def_readonly("shared_bytes", &Plan::shared_bytes, "dynamic shared memory of a block")
      .def_readonly("result_exceeds_l2", &Plan::result_exceeds_l2,
                    "outputs that implicit_gemm_sm90's copy engine writes are then the first to leave the cache")
      .def_readonly("weights_stay_in_l2", &Plan::weights_stay_in_l2,
                    "weights that implicit_gemm_sm90's copy engine reads are then the last to leave the cache")
      .def_readonly("tile", &Plan::tile, "of the implicit GEMMs; zeros in other families");

  py::class_<Candidate>(m, "Candidate", "One way to compute a problem, or the reason why not.")
      .def_property_readonly("algorithm", [](const Candidate& c) { return name(c.algorithm); })
      .def_readonly("configuration", &Candidate::configuration)
      .def_readonly("reservation", &Candidate::reservation, "why only a forced plan uses it although it fits")
      .def_readonly("modelled_seconds", &Candidate::modelled_seconds, "what the family's model says")
      .def_readonly("estimated_seconds", &Candidate::estimated_seconds, "ranks candidates; not a measurement")
      .def_readonly("plan", &Candidate::plan, "if the candidate fits")
      .def_readonly("refusal", &Candidate::refusal, "empty if the candidate fits")
      .def_property_readonly("fits", &Candidate::fits)
      .def("__repr__", [](const Candidate& c) {
        return std::string("<Candidate ") + name(c.algorithm) + "/" + c.configuration +
               (c.fits() ? "" : ": " + c.refusal) + ">";
      });

  py::class_<Explanation>(m, "Plan", "What convt runs for a problem on a device, and why nothing else.")
      .def_property_readonly("algorithm", [](const Explanation& e) { return name(e.chosen.algorithm); })
      .def_property_readonly("configuration", [](const Explanation& e) { return e.chosen.configuration; })
      .def_property_readonly(
          "grid", [](const Explanation& e) { return e.chosen.plan.grid; }, "blocks")
      .def_property_readonly(
          "block", [](const Explanation& e) { return e.chosen.plan.block; }, "threads")
      .def_property_readonly("index_bits", [](const Explanation& e) { return e.chosen.plan.index_bits; })
      .def_property_readonly("workspace_bytes", [](const Explanation& e) { return e.chosen.plan.workspace_bytes; })
      .def_property_readonly("device", [](const Explanation& e) { return e.device.name; })
      .def_property_readonly("useful_flops", [](const Explanation& e) { return 2 * e.problem.useful_macs(); })
      .def_property_readonly("compulsory_bytes", [](const Explanation& e) { return e.problem.compulsory_bytes(); })
      .def_readonly("candidates", &Explanation::candidates)
      .def("__eq__",
           [](const Explanation& a, const Explanation& b) {
             return a.problem == b.problem && a.device == b.device && a.chosen.plan == b.chosen.plan;
           })
      .def("__str__", &Explanation::to_string)
      .def("__repr__", [](const Explanation& e) {
        return std::string("<Plan ") + name(e.chosen.algorithm) + "/" + e.chosen.configuration + " on " +
               e.device.name + ">";
      });

  m.def("build_info", &build_info_dict);
  m.def("device_names", &device_names);
  m.def("configuration_names", &configuration_names);
  m.def("force_configuration", &ops::force_configuration);
  m.def("forced_configuration", &ops::forced_configuration);
  m.def("infer", &infer);
  m.def("explain", &explain_call);
  m.def("run_on_host", &run_on_host);

  m.def("output_size", &output_size);
  m.def("transposed_taps", [](int64_t in, int64_t out, int64_t k, int64_t s, int64_t p, int64_t d, int64_t o) {
    return expand(transposed_taps(make_axis(in, out, k, s, p, d), o));
  });
  m.def("convolution_taps", [](int64_t in, int64_t out, int64_t k, int64_t s, int64_t p, int64_t d, int64_t i) {
    return expand(convolution_taps(make_axis(in, out, k, s, p, d), i));
  });
  m.def("reduction_range", [](int64_t in, int64_t out, int64_t k, int64_t s, int64_t p, int64_t d, int64_t t) {
    return reduction_list(make_axis(in, out, k, s, p, d), t);
  });
  m.def("useful_pairs", [](int64_t in, int64_t out, int64_t k, int64_t s, int64_t p, int64_t d) {
    return useful_pairs(make_axis(in, out, k, s, p, d));
  });
  py::register_exception<OverflowError>(m, "SizeOverflowError", PyExc_OverflowError);
}

}  // namespace convt

PYBIND11_MODULE(_C, m) {
  m.doc() = "The native part of convt.";
  if (PyModule_AddFunctions(m.ptr(), convt::functions) != 0) throw pybind11::error_already_set();
  convt::bind(m);
}
