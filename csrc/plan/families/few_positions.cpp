// Few input positions: the weights are nearly all of the memory. See csrc/kernels/few_positions.
#include <algorithm>
#include <cmath>
#include <optional>

#include "../../kernels/few_positions/params.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the family takes the problem; empty if one may.
std::string few_positions_refusal(const Problem& p) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t most = few_positions::most_positions, taps = few_positions::most_columns, limit = int64_t{1} << 30;
  if (p.in_h > most || p.in_w > most || p.in_h * p.in_w > most) {
    return "takes images of at most " + std::to_string(most) + " pixels";
  }
  if (p.kernel_h > taps || p.kernel_w > taps || p.kernel_h * p.kernel_w > taps) {
    return "takes at most " + std::to_string(taps) + " taps";
  }
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    if (a.stride >= 1 << 15 || a.dilation >= limit || a.padding >= limit || a.dilation * a.kernel >= limit ||
        a.out + a.padding >= limit) {
      return "takes images of less than 2^30 rows and columns";
    }
  }
  const int64_t of_channel = checked_mul(checked_mul(std::min(p.batch, most), p.out_h), p.out_w);
  if (of_channel >= limit / few_positions::most_columns) {
    return "takes outputs of less than 2^22 elements a channel";
  }
  if (p.batch >= limit || p.in_channels >= limit) return "takes less than 2^30 images and input channels";
  return "";
}

// A configuration whose blocks compute `out_channels` each: its plan and time, or why not.
Candidate few_positions_candidate(const Problem& p, const DeviceInfo& device, int32_t row, int64_t out_channels) {
  const few_positions::Config& config = few_positions::configs[row];
  const auto refused = [&](const std::string& reason) { return refuse(Algorithm::few_positions, config.name, reason); };
  const int32_t vector = few_positions::vector_elements(p, out_channels);
  const few_positions::Division d = few_positions::divide(p, config, out_channels, vector);
  if (d.shared_bytes > device.shared_memory_per_block) {
    return refused("needs " + std::to_string(d.shared_bytes) + " bytes of shared memory a block");
  }
  if (d.blocks > std::numeric_limits<int32_t>::max() / 2) {
    return refused("needs " + std::to_string(d.blocks) + " blocks, more than are numbered in 32 bits");
  }
  Candidate c = fitting(Algorithm::few_positions, config.name, row);
  c.plan.grid = d.blocks;
  c.plan.block = few_positions::threads;
  c.plan.shared_bytes = d.shared_bytes;
  c.plan.cut = {static_cast<int32_t>(out_channels), vector};

  const auto number = [](auto n) { return static_cast<double>(n); };
  const int64_t resident = std::min<int64_t>(few_positions::blocks_of_multiprocessor,
                                             (device.shared_memory_per_block + 1024) / (d.shared_bytes + 1024));
  const double rounds = std::ceil(number(d.blocks) / number(device.multiprocessors * resident));
  const double together = std::ceil(std::min(number(d.blocks) / number(device.multiprocessors), number(resident)));
  // Instructions of a warp for a row of its lanes: loads and their predicates, inputs from shared memory, conversions,
  // products. A multiprocessor issues four a cycle, at 1.7 GHz. The factors and times are fitted to measurements.
  const int64_t size = element_size(p.dtype);
  const double of_row =
      5 + std::ceil(config.positions / 4.0) + (size == 4 ? 0 : 1.5 * vector) + number(config.positions) * vector;
  const double issue = 1 / (4 * 1.7e9);
  const double rows = number(ceil_div<int64_t>(p.in_channels_per_group(), d.row_lanes));
  const double product = together * few_positions::threads / 32 * rows * of_row * issue;
  const double sums = together * number(config.positions * d.columns * d.row_lanes) / 32 * 2 * issue;
  // Each batch of rows, and each of inputs, waits for memory.
  const double batches = std::ceil(rows / few_positions::rows_at_once(vector, size));
  const double inputs = std::ceil(number(p.in_channels_per_group() * config.positions) / (4 * few_positions::threads));
  const double of_pass = 0.92 * product + 5.0 * sums + 0.33e-6 * batches + 0.75e-6 * inputs;
  const double outputs = number(d.images * out_channels * p.out_h * p.out_w) / few_positions::threads;
  // Weights come from memory once, and in other passes from the second level of cache: lines of which a block reads a
  // part, more than once.
  const double weights = number(p.w_elements() * size) / device.bandwidth, times = number(d.image_blocks * d.passes);
  const double run = number(few_positions::taps_innermost(p) ? d.columns : out_channels) * number(size);
  const double parts = 0.39 * (32 / std::min(32.0, run) - 1) + 0.1 * (128 / std::min(128.0, run) - 1);
  c.estimated_seconds = launch_seconds + 5.9e-6 + rounds * (number(d.passes) * of_pass + 1.0e-6 * outputs) +
                        0.64 * number(p.compulsory_bytes()) / device.bandwidth +
                        (0.16 * (times - 1) + parts * times) * weights;
  return c;
}

}  // namespace

void few_positions_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = few_positions_refusal(p);
  for (int32_t row = 0; row < few_positions::config_count; ++row) {
    if (!refusal.empty()) {
      out.push_back(refuse(Algorithm::few_positions, few_positions::configs[row].name, refusal));
      continue;
    }
    std::optional<Candidate> best;
    for (const int64_t out_channels : few_positions::channel_choices(p)) {
      const Candidate c = few_positions_candidate(p, device, row, out_channels);
      best = best ? faster(*best, c) : c;
    }
    out.push_back(*best);
  }
}

}  // namespace convt
