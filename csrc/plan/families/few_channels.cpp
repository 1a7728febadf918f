// Few output channels a group, by float32 instructions of CUDA cores. See csrc/kernels/few_channels.
#include <algorithm>
#include <cmath>
#include <limits>
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

// A configuration of which `splits` threads of a block share a position: its plan and time, or why not.
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
  const bool half = element_size(p.dtype) == 2;
  const int64_t taps = few_channels::taps(config), sums = config.rows * config.sums;
  const int64_t rows = config.rows + config.window_rows - 1;
  // Instructions of a warp for a channel and a window: products and their addition to the sums, loads, conversions,
  // addresses of rows, weights. All factors are fitted to 3000 measurements on an H200.
  const double loads = number(rows * config.window_columns);
  const double vectors = number(few_channels::window_weights(config)) / 4;
  const double of_window =
      number(sums * (taps + (half ? 0 : 1))) + loads * (half ? 5.3 : 3.7) + 2 * number(rows) + vectors + 28;
  // Clocks of a multiprocessor, which issues four instructions in each. Loads and vectors for all lanes have one path,
  // and lanes of a warp that share outputs read at several places.
  const double places = 1 + 0.21 * (std::max(1.0, splits / 8.0) - 1);
  const double clocks = std::max(of_window / 4, places * (2.5 * loads + 0.5 * vectors)) / 1.2;
  const double windows = number(d.window_rows * d.window_columns);
  const double turns = windows * number(ceil_div<int64_t>(p.in_channels_per_group(), splits));
  // Weights, four of a thread on their way at a time.
  const double weights = number(p.in_channels_per_group() * d.channel_weights) / few_channels::threads;
  const int64_t together = sums >= 32 ? 4 : sums >= 16 ? 2 : 1;
  const double outputs = splits == 1 ? 6 * number(sums) + 30 * number(config.sums)
                                     : number(sums) + std::ceil(number(sums / together) / splits) *
                                                          (40 + number(together) * (1.3 * splits + 6));
  const double once = 160 + 8 * weights + 100 * windows + 1.97 * outputs;
  const int64_t resident =
      std::clamp<int64_t>((device.shared_memory_per_block + 1024) / (d.shared_bytes + 1024), 1, config.blocks);
  // Of `blocks` at a time on a multiprocessor: a warp waits for its loads, for which those ahead leave less time.
  const auto wave = [&](int64_t blocks) {
    const double warps = number(blocks * few_channels::threads / 32), alone = 2.1 * of_window;
    const double wait = config.ahead ? std::max(0.0, 550 - alone / 2) : 550;
    return turns * std::max(warps * clocks, alone + wait) + std::max(warps * once / 4 / 0.63, 3 * once) +
           685 * std::ceil(weights / 4);
  };
  const int64_t at_once = device.multiprocessors * resident, rest = d.blocks % at_once;
  const double busy = number(d.blocks / at_once) * wave(resident) +
                      (rest > 0 ? wave(ceil_div<int64_t>(rest, device.multiprocessors)) : 0);
  constexpr double clock = 1.755e9;
  c.estimated_seconds = launch_seconds + 2.8e-6 + busy / clock + 0.75 * number(p.compulsory_bytes()) / device.bandwidth;
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
