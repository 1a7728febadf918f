// Rows of inputs in NCHW in 16-bit types, on Hopper's tensor cores. See csrc/kernels/gemm_fold_rows_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_fold_rows_sm90/tiling.h"
#include "family.h"

namespace convt {
namespace {

namespace family = gemm_fold_rows_sm90;

// Why no configuration of the family takes the problem; empty if one may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) return std::string("has no ") + name(p.dtype);
  if (const std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (std::string reason = image_refusal(p); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  if (p.stride_h > most_phases) return "takes strides of at most " + std::to_string(most_phases) + " rows";
  if (p.dilation_w > 1) return "takes kernels whose columns are not dilated";
  if (busy_phases(phases(p.axis_h()), p.stride_h) < p.stride_h) {
    return "takes kernels with taps of every row of the output";
  }
  if (!dense(p.out_w, p.y_strides[3], 1)) return "takes outputs of which columns are innermost";
  const Strides& x = p.x_strides;
  const bool aligned = p.x_aligned && dense(p.in_w, x[3], 1) && used_stride(p.in_h, x[2]) % 8 == 0 &&
                       used_stride(p.in_channels, x[1]) % 8 == 0 && used_stride(p.batch, x[0]) % 8 == 0;
  if (!aligned) return "takes x of which columns are innermost and rows begin at multiples of 16 bytes";
  return "";
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const std::string& reason) {
    return refuse(Algorithm::gemm_fold_rows_sm90, config.name, reason);
  };
  if (p.kernel_w != config.taps || p.stride_w != config.stride) {
    return refused("takes kernels of " + std::to_string(config.taps) + " columns and strides of " +
                   std::to_string(config.stride));
  }
  const family::Tiling t = family::make_tiling(config, p);
  if (!t.fits()) {
    return refused("needs " + std::to_string(t.weight_bytes) +
                   " bytes of shared memory for weights, and has not enough beside them for patches of x");
  }
  if (!family::make_x_map(p, t, nullptr).valid()) return refused("takes strides that the copy engine takes");
  constexpr int64_t limit = int64_t{1} << 30;
  if (t.pairs >= limit || t.sets >= limit || p.batch >= limit) {
    return refused("needs more tiles than are numbered in 32 bits");
  }
  Candidate c = fitting(Algorithm::gemm_fold_rows_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(t.pairs, device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = t.shared_bytes(config);
  const auto number = [](auto n) { return static_cast<double>(n); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops;
  // Fitted to layers on an H200 (a standard deviation of .06 of the logarithm). Of a tile the products, whose operands
  // shared memory gives at that rate; then the sums, which one warpgroup folds and writes while the other multiplies.
  const double taps = number(p.kernel_h) / number(std::min(p.kernel_h, p.stride_h));
  const double main = 1.8 * taps * number(t.products * config.blocks() * config.positions()) / 2;
  const double fold = config.stride > 1 ? 3520 : config.channels == 64 ? 2690 : 1850;
  const double of_stripe = 1500 / number(t.steps);
  const double tile = std::max(2 * main, main + fold + of_stripe);
  // Of a block: its pairs of stripes; and of each set that it has any of, weights.
  const int64_t pairs = ceil_div(t.pairs, c.plan.grid);
  const double weights = number(std::min(t.sets, pairs) * t.weight_bytes) / 4.5;
  const double work = (number(pairs * t.steps) * tile + fold + weights) * clock;
  const double reads = number(p.x_elements() * t.channel_blocks), writes = number(p.y_elements());
  const double memory = 1.25 * 2 * (reads + writes) / device.bandwidth;
  c.estimated_seconds = launch_seconds + std::pow(std::pow(work, 4) + std::pow(memory, 4), 0.25);
  return c;
}

}  // namespace

void gemm_fold_rows_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  for (int32_t row = 0; row < family::config_count; ++row) {
    out.push_back(reason.empty() ? candidate_of(p, device, row)
                                 : refuse(Algorithm::gemm_fold_rows_sm90, family::configs[row].name, reason));
  }
}

}  // namespace convt
