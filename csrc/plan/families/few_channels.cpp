// Few output channels a group, by float32 instructions of CUDA cores. See csrc/kernels/few_channels.
#include <algorithm>
#include <cmath>
#include <optional>

#include "../../kernels/few_channels/params.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the family takes the problem; empty if one may.
std::string few_channels_refusal(const Problem& p) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  if (std::string reason = image_refusal(p); !reason.empty()) return reason;
  if (!dense(p.in_w, p.x_strides[3], 1)) return "takes inputs whose columns are neighbours in memory";
  constexpr int64_t limit = int64_t{1} << 15;
  if (p.stride_h >= limit || p.stride_w >= limit) return "takes strides of less than 2^15";
  return "";
}

// A configuration of which `splits` threads of a block share outputs: its plan and time, or why not.
Candidate few_channels_candidate(const Problem& p, const DeviceInfo& device, int32_t row, int32_t splits) {
  const few_channels::Config& config = few_channels::configs[row];
  const auto refused = [&](const std::string& reason) { return refuse(Algorithm::few_channels, config.name, reason); };
  const few_channels::Division d = few_channels::divide(p, config, splits);
  if (d.shared_bytes > device.shared_memory_per_block) {
    return refused("needs " + std::to_string(d.shared_bytes) + " bytes of shared memory a block");
  }
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / 2;
  if (d.blocks > most || d.all_positions > most) {
    return refused("needs " + std::to_string(std::max(d.blocks, d.all_positions)) +
                   " blocks or threads of a group, more than are numbered in 32 bits");
  }
  Candidate c = fitting(Algorithm::few_channels, config.name, row);
  c.plan.grid = d.blocks;
  c.plan.block = few_channels::threads;
  c.plan.shared_bytes = d.shared_bytes;
  c.plan.cut = {splits};

  const auto number = [](auto n) { return static_cast<double>(n); };
  const int64_t size = element_size(p.dtype), taps = config.window_rows * config.window_columns;
  // Of a warp, for a channel and a window: products and their addition to the sums, loads with a predicate and the
  // addresses of their rows, conversions, weights from shared memory.
  const double loads = number((config.rows + config.window_rows - 1) * config.window_columns);
  const double vectors = number(config.sums * few_channels::padded_taps(config)) / 4;
  const double instructions = number(config.rows * config.sums) * number(taps + 1) + loads * (size == 4 ? 2 : 3) +
                              2 * number(config.rows + config.window_rows) + vectors + 10;
  // Clocks of a multiprocessor, which issues four instructions in each; a load takes one and a half of its path to
  // shared memory and the first cache, a vector for all lanes two.
  const double of_channel = std::max(instructions / 4, 1.5 * loads + 2 * vectors);
  const double channels = number(ceil_div<int64_t>(p.in_channels_per_group(), splits));
  const double windows = number(d.window_rows * d.window_columns), warps = few_channels::threads / 32;
  const double fill = number(p.in_channels_per_group() * d.channel_weights) / few_channels::threads * 12 + 150;
  const double outputs = number(config.rows * config.sums) * (2 + 45.0 / splits + 6);
  const double of_block = warps * (channels * windows * of_channel + (fill + outputs) / 4);
  constexpr double clock = 1.7e9;
  const double blocks = number(d.blocks) / number(device.multiprocessors);
  // A single block of a multiprocessor waits for what it loads, channel by channel.
  const double alone = (channels * windows * (of_channel * 2 + 700) + 2500) / clock;
  const double busy = std::max(std::ceil(blocks) * 0.5 + blocks * 0.5, 1.0) * of_block / clock;
  const double memory = number(p.compulsory_bytes()) / (0.9 * device.bandwidth);
  c.estimated_seconds =
      launch_seconds + 2e-6 + std::max({busy * slower(device).compute, alone, memory}) + 0.3 * std::min(busy, memory);
  return c;
}

}  // namespace

void few_channels_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = few_channels_refusal(p);
  for (int32_t row = 0; row < few_channels::config_count; ++row) {
    if (!refusal.empty()) {
      out.push_back(refuse(Algorithm::few_channels, few_channels::configs[row].name, refusal));
      continue;
    }
    std::optional<Candidate> best;
    for (int32_t splits = 1; splits <= few_channels::most_splits; splits *= 2) {
      if (splits > 1 && splits > p.in_channels_per_group()) break;
      const Candidate c = few_channels_candidate(p, device, row, splits);
      best = best ? faster(*best, c) : c;
    }
    out.push_back(*best);
  }
}

}  // namespace convt
