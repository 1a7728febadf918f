// Problem -> Plan. A kernel family is one function that lists its configurations for a problem, and one row of
// `families`.
#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "../kernels/depthwise/config.h"
#include "../kernels/direct/config.h"
#include "plan.h"

namespace convt {
namespace {

constexpr double launch_seconds = 3e-6;
constexpr int64_t threads_per_multiprocessor = 2048;

// The widest value that the index arithmetic of a kernel can meet: offsets into every operand, coordinates, and the
// products inside `transposed_taps`. Throws OverflowError if 64 bits do not hold it.
int64_t largest_index(const Problem& p) {
  int64_t largest = 0;
  const auto meet = [&largest](int64_t v) { largest = std::max(largest, v); };
  const auto operand = [&](const std::array<int64_t, 4>& sizes, const Strides& strides) {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    int64_t last = 0;
    for (int d = 0; d < 4; ++d) last = checked_add(last, checked_mul(sizes[d] - 1, std::abs(strides[d])));
    meet(last);
  };
  operand(p.x_sizes(), p.x_strides);
  operand(p.w_sizes(), p.w_strides);
  operand(p.y_sizes(), p.y_strides);
  for (const Strides* strides : {&p.x_strides, &p.w_strides, &p.y_strides}) {
    for (int64_t s : *strides) meet(std::abs(s));
  }
  meet(checked_mul(p.out_channels, std::abs(p.bias_stride)));
  meet(p.result_elements());
  meet(checked_mul(checked_mul(p.batch, p.in_h), p.in_w));
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    const int64_t reach = checked_mul(a.dilation, a.kernel);
    meet(checked_add(checked_add(checked_mul(a.in, a.stride), reach), checked_add(a.out, a.padding)));
    meet(checked_mul(std::min(a.tap_step, checked_add(a.out, a.padding)), a.tap_step));
    meet(checked_mul(std::min(a.tap_step, a.kernel), a.dilation));
  }
  return largest;
}

// A block may start this far beyond the last element before its threads compare themselves with the end.
constexpr int64_t slack = 4096;

Candidate refuse(Algorithm algorithm, const std::string& configuration, const std::string& reason) {
  Candidate c;
  c.algorithm = algorithm;
  c.configuration = configuration;
  c.refusal = reason;
  return c;
}

void direct_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const int64_t largest = largest_index(p);
  for (int32_t row = 0; row < direct::config_count; ++row) {
    const direct::Config& config = direct::configs[row];
    if (config.operation != p.operation) {
      out.push_back(refuse(Algorithm::direct, config.name,
                           std::string("computes ") + name(config.operation) + ", not " + name(p.operation)));
      continue;
    }
    const int64_t threads = checked_mul(p.result_elements(), config.threads_per_result);
    const int64_t blocks = ceil_div<int64_t>(threads, config.block);
    if (blocks > std::numeric_limits<int32_t>::max()) {
      out.push_back(refuse(Algorithm::direct, config.name,
                           "needs " + std::to_string(blocks) + " blocks, more than a grid holds"));
      continue;
    }
    Candidate c;
    c.algorithm = Algorithm::direct;
    c.configuration = config.name;
    c.plan.algorithm = Algorithm::direct;
    c.plan.configuration = row;
    c.plan.index_bits = largest < std::numeric_limits<int32_t>::max() - slack ? 32 : 64;
    c.plan.grid = blocks;
    c.plan.block = config.block;
    // Two loads from L1 a multiply-add on top of index arithmetic: about a twentieth of the FMA rate.
    const double rate = device.fp32_flops / 20 * (p.dtype == DataType::float64 ? 0.5 : 1) *
                        (p.dtype == DataType::complex64 ? 0.5 : 1) * (p.dtype == DataType::complex128 ? 0.25 : 1);
    const double filled =
        std::min(1.0, static_cast<double>(threads) / (device.multiprocessors * threads_per_multiprocessor));
    double idle = 1;
    if (config.threads_per_result > 1) {
      const int64_t reduced = std::max<int64_t>(1, p.useful_macs() / std::max<int64_t>(1, p.w_elements()));
      idle = static_cast<double>(ceil_div<int64_t>(reduced, config.threads_per_result) * config.threads_per_result) /
             static_cast<double>(reduced);
    }
    c.estimated_seconds = launch_seconds + std::max(2.0 * static_cast<double>(p.useful_macs()) * idle / (rate * filled),
                                                    static_cast<double>(p.compulsory_bytes()) / device.bandwidth);
    out.push_back(c);
  }
}

// Why no configuration of the depthwise family takes the problem; empty if one may.
std::string depthwise_refusal(const Problem& p) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  if (p.in_channels_per_group() != 1) {
    return "takes 1 input channel a group, not " + std::to_string(p.in_channels_per_group());
  }
  if ((p.dilation_h != 1 && p.kernel_h > 1) || (p.dilation_w != 1 && p.kernel_w > 1)) return "takes dilation 1 only";
  if (p.in_w > 1 && p.x_strides[3] != 1) return "takes input rows that are contiguous in memory";
  if ((p.kernel_w > 1 && p.w_strides[3] != 1) || (p.kernel_h > 1 && p.w_strides[2] != p.kernel_w)) {
    return "takes kernels that are contiguous in memory";
  }
  if ((p.out_w > 1 && p.y_strides[3] != 1) || (p.out_h > 1 && p.y_strides[2] != p.out_w)) {
    return "writes contiguous outputs only";
  }
  // Every offset inside an image of one channel is computed in 32 bits, tiles that reach beyond its end included.
  constexpr int64_t limit = int64_t{1} << 30;
  for (int64_t size : {p.in_h, p.in_w, p.padding_h, p.padding_w, checked_mul(p.out_h, p.out_w),
                       checked_add(checked_mul(p.in_h - 1, std::abs(p.x_strides[2])), p.in_w)}) {
    if (size >= limit) return "takes images of less than 2^30 elements a channel";
  }
  return "";
}

void depthwise_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = depthwise_refusal(p);
  const auto mismatch = [](const char* axis, const depthwise::AxisConfig& c, int64_t kernel, int64_t stride,
                           int64_t padding) -> std::string {
    const auto differs = [&](const char* what, int64_t wanted, int64_t given) {
      return std::string("has ") + what + " " + std::to_string(wanted) + " along " + axis + ", not " +
             std::to_string(given);
    };
    if (kernel != c.kernel) return differs("kernel", c.kernel, kernel);
    if (stride != c.stride) return differs("stride", c.stride, stride);
    if (padding % stride != c.padding % c.stride) {
      return differs("padding modulo stride", c.padding % c.stride, padding % stride);
    }
    return "";
  };
  for (int32_t row = 0; row < depthwise::config_count; ++row) {
    const depthwise::Config& config = depthwise::configs[row];
    std::string reason = refusal;
    if (reason.empty()) reason = mismatch("the height", config.h, p.kernel_h, p.stride_h, p.padding_h);
    if (reason.empty()) reason = mismatch("the width", config.w, p.kernel_w, p.stride_w, p.padding_w);
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::depthwise, config.name, reason));
      continue;
    }
    const depthwise::Tile tile = depthwise::tile_of(config, element_size(p.dtype));
    const int64_t tiles = checked_mul(ceil_div<int64_t>(p.out_w, tile.columns * config.w.stride),
                                      ceil_div<int64_t>(p.out_h, tile.rows * config.h.stride));
    const int64_t threads = checked_mul(tiles, checked_mul(p.batch, p.out_channels));
    if (threads >= std::numeric_limits<int32_t>::max() - slack) {
      out.push_back(refuse(Algorithm::depthwise, config.name,
                           "needs " + std::to_string(threads) + " threads, more than it can number"));
      continue;
    }
    Candidate c;
    c.algorithm = Algorithm::depthwise;
    c.configuration = config.name;
    c.plan.algorithm = Algorithm::depthwise;
    c.plan.configuration = row;
    c.plan.grid = ceil_div<int64_t>(threads, depthwise::block);
    c.plan.block = depthwise::block;
    // At the rate of a copy: no other family is faster.
    c.estimated_seconds = launch_seconds + static_cast<double>(p.compulsory_bytes()) / device.bandwidth;
    out.push_back(c);
  }
}

void aten_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const char* configuration = "convolution";
  if (p.operation == Operation::forward) {
    out.push_back(refuse(Algorithm::aten, configuration, "the forward is always computed by convt's own kernels"));
    return;
  }
  if (is_complex(p.dtype)) {
    out.push_back(refuse(Algorithm::aten, configuration, "has no complex convolution; it would run three real ones"));
    return;
  }
  if (p.y_elements() == 0 || p.x_elements() == 0) {
    out.push_back(refuse(Algorithm::aten, configuration, "refuses empty operands"));
    return;
  }
  Candidate c;
  c.algorithm = Algorithm::aten;
  c.configuration = configuration;
  c.plan.algorithm = Algorithm::aten;
  // Heuristics, layout passes and several launches; then a fraction of the unit that does the products.
  const double rate = p.dtype == DataType::float16 || p.dtype == DataType::bfloat16
                          ? device.fp16_flops / 8
                          : (p.precision == Precision::tf32 && p.dtype == DataType::float32 ? device.fp16_flops / 16
                                                                                            : device.fp32_flops / 4);
  c.estimated_seconds = 40e-6 + std::max(2.0 * static_cast<double>(p.useful_macs()) / rate,
                                         3.0 * static_cast<double>(p.compulsory_bytes()) / device.bandwidth);
  out.push_back(c);
}

struct Family {
  Algorithm algorithm;
  void (*candidates)(const Problem&, const DeviceInfo&, std::vector<Candidate>&);
};

constexpr Family families[] = {
    {Algorithm::depthwise, depthwise_candidates},
    {Algorithm::direct, direct_candidates},
    {Algorithm::aten, aten_candidates},
};

std::vector<Candidate> all_candidates(const Problem& p, const DeviceInfo& device) {
  std::vector<Candidate> candidates;
  for (const Family& family : families) family.candidates(p, device, candidates);
  return candidates;
}

Candidate choose(const Problem& p, const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  for (const Candidate& c : candidates) {
    if (c.fits() && (best == nullptr || c.estimated_seconds < best->estimated_seconds)) best = &c;
  }
  if (best == nullptr) throw std::invalid_argument("no kernel of convt takes this problem: " + describe(p));
  return *best;
}

Candidate nothing_to_do() {
  Candidate c;
  c.configuration = "fill";
  return c;
}

std::string full_name(const Candidate& c) { return std::string(name(c.algorithm)) + "/" + c.configuration; }

std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f us", seconds * 1e6);
  return text;
}

}  // namespace

const char* name(Algorithm a) {
  switch (a) {
    case Algorithm::empty:
      return "empty";
    case Algorithm::direct:
      return "direct";
    case Algorithm::depthwise:
      return "depthwise";
    case Algorithm::aten:
      return "aten";
  }
  return "?";
}

Plan make_plan(const Problem& p, const DeviceInfo& device) {
  if (p.result_elements() == 0) return nothing_to_do().plan;
  return choose(p, all_candidates(p, device)).plan;
}

Plan make_forced_plan(const Problem& p, const DeviceInfo& device, const std::string& configuration) {
  for (const Candidate& c : all_candidates(p, device)) {
    if (full_name(c) != configuration) continue;
    if (!c.fits()) throw std::invalid_argument(configuration + " " + c.refusal);
    return c.plan;
  }
  throw std::invalid_argument("there is no configuration named " + configuration);
}

Explanation explain(const Problem& p, const DeviceInfo& device) {
  Explanation e{p, device, nothing_to_do(), {}};
  if (p.result_elements() == 0) return e;
  e.candidates = all_candidates(p, device);
  e.chosen = choose(p, e.candidates);
  return e;
}

std::vector<std::string> configuration_names() {
  std::vector<std::string> names;
  for (const depthwise::Config& c : depthwise::configs) {
    names.push_back(std::string(name(Algorithm::depthwise)) + "/" + c.name);
  }
  for (const direct::Config& c : direct::configs) names.push_back(std::string(name(Algorithm::direct)) + "/" + c.name);
  names.push_back(std::string(name(Algorithm::aten)) + "/convolution");
  return names;
}

std::string Explanation::to_string() const {
  std::string s = describe(problem) + "\n";
  s += "on " + device.name + " (sm_" + std::to_string(device.compute_capability) + ", " +
       std::to_string(device.multiprocessors) + " multiprocessors)\n";
  s += "useful work " + std::to_string(2 * problem.useful_macs()) + " FLOP, compulsory traffic " +
       std::to_string(problem.compulsory_bytes()) + " bytes\n";
  const Plan& plan = chosen.plan;
  s += "chosen: " + full_name(chosen);
  if (plan.block > 0) {
    s += ", " + std::to_string(plan.grid) + " blocks of " + std::to_string(plan.block) + " threads, " +
         std::to_string(plan.index_bits) + "-bit indices";
  }
  s += ", workspace " + std::to_string(plan.workspace_bytes) + " bytes\n";
  for (const Candidate& c : candidates) {
    if (c.plan == plan && c.fits()) continue;
    s += "  not " + full_name(c) + ": ";
    s += c.fits() ? "estimated " + microseconds(c.estimated_seconds) + ", the choice " +
                        microseconds(chosen.estimated_seconds)
                  : c.refusal;
    s += "\n";
  }
  return s;
}

}  // namespace convt
