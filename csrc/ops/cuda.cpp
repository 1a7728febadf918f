// CUDA tensors: checks, allocation, plan, launch on the current stream of the input's device.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "../kernels/column/launch.h"
#include "../kernels/depthwise/launch.h"
#include "../kernels/direct/launch.h"
#include "../kernels/few_channels/launch.h"
#include "../kernels/few_positions/launch.h"
#include "../kernels/gemm_fold_rows_sm90/launch.h"
#include "../kernels/gemm_fold_sm90/launch.h"
#include "../kernels/gemm_scatter_rows_sm90/launch.h"
#include "../kernels/gemm_scatter_sm90/launch.h"
#include "../kernels/gemm_scatter_tf32_sm90/launch.h"
#include "../kernels/grouped/launch.h"
#include "../kernels/hopper_code.h"
#include "../kernels/implicit_gemm_nchw_sm90/launch.h"
#include "../kernels/implicit_gemm_nhwc_sm90/launch.h"
#include "../kernels/implicit_gemm_sm80/launch.h"
#include "../kernels/implicit_gemm_sm90/launch.h"
#include "../kernels/large_stride/launch.h"
#include "../kernels/large_stride_sm90/launch.h"
#include "../kernels/rolling_rows/launch.h"
#include "../kernels/warp_rows/launch.h"
#include "checks.h"
#include "devices.h"
#include "layout.h"
#include "schema.h"
#include "tensors.h"

namespace convt::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;

std::string& forced() {
  static std::string name;
  return name;
}

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, what, device));
  return value;
}

DeviceInfo query_device(int index) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  DeviceInfo d;
  d.name = properties.name;
  d.compute_capability = 10 * properties.major + properties.minor;
  d.multiprocessors = properties.multiProcessorCount;
  d.shared_memory_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  d.l2_bytes = properties.l2CacheSize;
  const double memory_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate, index);
  const double core_hz = 1e3 * attribute(cudaDevAttrClockRate, index);
  d.bandwidth = 2 * memory_hz * attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
  d = at_clock(d, core_hz, d.name.find("GeForce") != std::string::npos);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  d.hopper_code = d.compute_capability == 90 && compiled_for_hopper();
  return d;
}

const DeviceInfo& device_info(int index) {
  static std::mutex mutex;
  static std::unordered_map<int, DeviceInfo> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = devices.find(index);
  return found != devices.end() ? found->second : devices.emplace(index, query_device(index)).first->second;
}

struct PlanKey {
  Problem problem;
  int device;
  std::string forced;  // configuration, or empty
  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  size_t operator()(const PlanKey& k) const {
    return (hash(k.problem) * 31 + static_cast<size_t>(k.device)) * 31 + std::hash<std::string>{}(k.forced);
  }
};

// The problem as it is computed, and how.
struct Planned {
  Problem problem;
  Plan plan;
};

constexpr size_t plan_cache_entries = 4096;

Planned plan_for(const Problem& problem, int device) {
  thread_local std::unordered_map<PlanKey, Planned, PlanKeyHash> cache;
  const PlanKey key{problem, device, forced()};
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() >= plan_cache_entries) cache.clear();
  const Problem computed = coalesced(problem);
  const DeviceInfo& info = device_info(device);
  const Plan plan = key.forced.empty() ? make_plan(computed, info) : make_forced_plan(computed, info, key.forced);
  return cache.emplace(key, Planned{computed, plan}).first->second;
}

// The planner's own errors (no kernel takes the problem; a stride of memory overflows) reach the user as RuntimeErrors.
Planned checked_plan(const Problem& problem, int device) {
  try {
    return plan_for(problem, device);
  } catch (const std::exception& e) {
    TORCH_CHECK(false, "conv_transpose2d: ", e.what());
  }
}

void launch(const Plan& plan, const Problem& problem, Operands operands) {
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  // The caching allocator gives the memory to later work of this stream only, so it may go out of scope here.
  Tensor workspace;
  if (plan.workspace_bytes > 0) {
    workspace = at::empty({plan.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
    operands.workspace = workspace.mutable_data_ptr();
  }
  switch (plan.algorithm) {
    case Algorithm::empty:
      return;
    case Algorithm::direct:
      C10_CUDA_CHECK(direct::launch(plan, problem, operands, stream));
      return;
    case Algorithm::depthwise:
      C10_CUDA_CHECK(depthwise::launch(plan, problem, operands, stream));
      return;
    case Algorithm::implicit_gemm_sm90:
      C10_CUDA_CHECK(implicit_gemm_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::implicit_gemm_nchw_sm90:
      C10_CUDA_CHECK(implicit_gemm_nchw_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::implicit_gemm_nhwc_sm90:
      C10_CUDA_CHECK(implicit_gemm_nhwc_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::implicit_gemm_sm80:
      C10_CUDA_CHECK(implicit_gemm_sm80::launch(plan, problem, operands, stream));
      return;
    case Algorithm::gemm_scatter_sm90:
      C10_CUDA_CHECK(gemm_scatter_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::gemm_scatter_rows_sm90:
      C10_CUDA_CHECK(gemm_scatter_rows_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::gemm_scatter_tf32_sm90:
      C10_CUDA_CHECK(gemm_scatter_tf32_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::gemm_fold_rows_sm90:
      C10_CUDA_CHECK(gemm_fold_rows_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::gemm_fold_sm90:
      C10_CUDA_CHECK(gemm_fold_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::column:
      C10_CUDA_CHECK(column::launch(plan, problem, operands, stream));
      return;
    case Algorithm::large_stride:
      C10_CUDA_CHECK(large_stride::launch(plan, problem, operands, stream));
      return;
    case Algorithm::large_stride_sm90:
      C10_CUDA_CHECK(large_stride_sm90::launch(plan, problem, operands, stream));
      return;
    case Algorithm::grouped:
      C10_CUDA_CHECK(grouped::launch(plan, problem, operands, stream));
      return;
    case Algorithm::warp_rows:
      C10_CUDA_CHECK(warp_rows::launch(plan, problem, operands, stream));
      return;
    case Algorithm::rolling_rows:
      C10_CUDA_CHECK(rolling_rows::launch(plan, problem, operands, stream));
      return;
    case Algorithm::few_positions:
      C10_CUDA_CHECK(few_positions::launch(plan, problem, operands, stream));
      return;
    case Algorithm::few_channels:
      C10_CUDA_CHECK(few_channels::launch(plan, problem, operands, stream));
      return;
    case Algorithm::aten:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a plan of the ", name(plan.algorithm), " family has no launch here");
}

bool is_complex_half(const Tensor& t) { return t.scalar_type() == at::kComplexHalf; }

Tensor forward_cuda(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride,
                    IntArrayRef padding, IntArrayRef output_padding, int64_t groups, IntArrayRef dilation) {
  const auto g = check_forward<int64_t>(input, weight, bias, stride, padding, output_padding, groups, dilation);
  const c10::cuda::CUDAGuard guard(input.device());
  if (is_complex_half(input)) {
    return forward_cuda(input.to(at::kComplexFloat), weight.to(at::kComplexFloat),
                        bias ? std::make_optional(bias->to(at::kComplexFloat)) : std::nullopt, stride, padding,
                        output_padding, groups, dilation)
        .to(at::kComplexHalf);
  }
  const Tensor x = batched(input), w = resolved(weight);
  const std::optional<Tensor> b = bias ? std::make_optional(resolved(*bias)) : std::nullopt;
  const Strides y_strides = strides_of(g.y, result_format(input, weight));
  Problem asked = make_problem(Operation::forward, g, input.scalar_type(), strides(x), strides(w), y_strides, b);
  asked.x_aligned = is_aligned(x), asked.w_aligned = is_aligned(w);
  const auto [problem, plan] = checked_plan(asked, input.device().index());
  const Tensor y = at::empty_strided(g.y, y_strides, input.options());
  launch(plan, problem,
         {x.const_data_ptr(), w.const_data_ptr(), nullptr, b ? b->const_data_ptr() : nullptr, y.mutable_data_ptr()});
  return g.batched ? y : y.squeeze(0);
}

Tensor input_grad_cuda(const Tensor& grad_output, const Tensor& weight, IntArrayRef input_size, IntArrayRef stride,
                       IntArrayRef padding, int64_t groups, IntArrayRef dilation,
                       std::optional<c10::MemoryFormat> memory_format) {
  const auto g = check_input_grad<int64_t>(grad_output, weight, input_size, stride, padding, groups, dilation);
  const c10::cuda::CUDAGuard guard(grad_output.device());
  if (is_complex_half(grad_output)) {
    return input_grad_cuda(grad_output.to(at::kComplexFloat), weight.to(at::kComplexFloat), input_size, stride, padding,
                           groups, dilation, memory_format)
        .to(at::kComplexHalf);
  }
  const Tensor y = batched(grad_output), w = resolved(weight);
  const auto format = result_format(grad_output, weight, memory_format);
  const Strides x_strides = strides_of(g.x, format);
  const auto [problem, plan] =
      checked_plan(make_problem(Operation::input_grad, g, grad_output.scalar_type(), x_strides, strides(w), strides(y)),
                   grad_output.device().index());
  Tensor x;
  if (plan.algorithm == Algorithm::aten) {
    const auto& context = at::globalContext();
    x = at::_convolution(y, w, std::nullopt, g.stride, g.padding, g.dilation, /*transposed=*/false, {0, 0}, groups,
                         /*benchmark=*/false, /*deterministic=*/true, context.userEnabledCuDNN(),
                         problem.precision == Precision::tf32);
    // An output_padding of a stride or more lets the convolution reach further inputs, which do not exist.
    x = with_format(x.narrow(2, 0, g.x[2]).narrow(3, 0, g.x[3]), format);
  } else {
    x = at::empty_strided(g.x, x_strides, grad_output.options());
    launch(plan, problem, {nullptr, w.const_data_ptr(), y.const_data_ptr(), nullptr, x.mutable_data_ptr()});
  }
  return g.batched ? x : x.squeeze(0);
}

// convolution_backward takes its algorithms from the global context. The first of several threads that are in here
// sets the flags, and the last one restores them.
class DeterministicCuDNN {
 public:
  DeterministicCuDNN() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (users_++ == 0) {
      auto& context = at::globalContext();
      deterministic_ = context.deterministicCuDNN();
      benchmark_ = context.benchmarkCuDNN();
      context.setDeterministicCuDNN(true);
      context.setBenchmarkCuDNN(false);
    }
  }
  ~DeterministicCuDNN() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ == 0) {
      at::globalContext().setDeterministicCuDNN(deterministic_);
      at::globalContext().setBenchmarkCuDNN(benchmark_);
    }
  }
  DeterministicCuDNN(const DeterministicCuDNN&) = delete;
  DeterministicCuDNN& operator=(const DeterministicCuDNN&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int users_ = 0;
  static inline bool deterministic_ = false, benchmark_ = false;
};

Tensor weight_grad_cuda(const Tensor& input, const Tensor& grad_output, IntArrayRef kernel_size, IntArrayRef stride,
                        IntArrayRef padding, int64_t groups, IntArrayRef dilation,
                        std::optional<c10::MemoryFormat> memory_format) {
  const auto g = check_weight_grad<int64_t>(input, grad_output, kernel_size, stride, padding, groups, dilation);
  const c10::cuda::CUDAGuard guard(input.device());
  if (is_complex_half(input)) {
    return weight_grad_cuda(input.to(at::kComplexFloat), grad_output.to(at::kComplexFloat), kernel_size, stride,
                            padding, groups, dilation, memory_format)
        .to(at::kComplexHalf);
  }
  const Tensor x = batched(input), y = batched(grad_output);
  const auto format = result_format(input, grad_output, memory_format);
  const Strides w_strides = strides_of(g.w, format);
  const auto [problem, plan] =
      checked_plan(make_problem(Operation::weight_grad, g, input.scalar_type(), strides(x), w_strides, strides(y)),
                   input.device().index());
  if (plan.algorithm == Algorithm::aten) {
    const DeterministicCuDNN deterministic;
    // Of the weight, only the sizes are read.
    const auto grads =
        at::convolution_backward(y, x, at::empty(g.w, x.options()), std::nullopt, g.stride, g.padding, g.dilation,
                                 /*transposed=*/true, g.output_padding, groups, {false, true, false});
    return with_format(std::get<1>(grads), format);
  }
  const Tensor w = at::empty_strided(g.w, w_strides, input.options());
  launch(plan, problem, {x.const_data_ptr(), nullptr, y.const_data_ptr(), nullptr, w.mutable_data_ptr()});
  return w;
}

}  // namespace

std::optional<DeviceInfo> current_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return device_info(at::cuda::current_device());
}

void force_configuration(const std::string& name) { forced() = name; }
const std::string& forced_configuration() { return forced(); }

}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, CUDA, m) {
  m.impl("conv_transpose2d", convt::ops::forward_cuda);
  m.impl("conv_transpose2d_input_grad", convt::ops::input_grad_cuda);
  m.impl("conv_transpose2d_weight_grad", convt::ops::weight_grad_cuda);
}
