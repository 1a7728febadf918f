// Any problem. See csrc/kernels/direct.
#include <algorithm>
#include <array>

#include "../../kernels/direct/config.h"
#include "family.h"

namespace convt {
namespace {

constexpr int64_t threads_per_multiprocessor = 2048;
// A result's index arithmetic takes as long as so many multiply-adds: from a sweep.
constexpr double macs_of_index = 25;

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

}  // namespace

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
    Candidate c = fitting(Algorithm::direct, config.name, row);
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
    const double work =
        static_cast<double>(p.useful_macs()) * idle + macs_of_index * static_cast<double>(p.result_elements());
    c.estimated_seconds = launch_seconds + std::max(2 * work / (rate * filled),
                                                    static_cast<double>(p.compulsory_bytes()) / device.bandwidth);
    out.push_back(c);
  }
}

}  // namespace convt
