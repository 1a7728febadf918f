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
std::string few_channels_refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  if (std::string reason = image_refusal(p); !reason.empty()) return reason;
  constexpr int64_t limit = int64_t{1} << 15, dilation_limit = int64_t{1} << 24;
  if (p.stride_h >= limit || p.stride_w >= limit) return "takes strides of less than 2^15";
  // A thread numbers rows that are so far from each other, beyond the image too.
  if (p.kernel_h > 1 && p.dilation_h >= dilation_limit) return "takes dilations of rows of less than 2^24";
  if (!few_channels::has_pixels(p)) return "";
  if (!dense(p.in_channels, p.x_strides[1], 1)) {
    return "takes inputs whose columns or channels are neighbours in memory";
  }
  if (device.compute_capability < 80) return "needs the asynchronous copies of sm_80 for inputs in channels_last";
  const int64_t channels = few_channels::word_channels(p);
  const auto whole = [&](int64_t size, int64_t stride) { return size == 1 || stride % channels == 0; };
  if (p.in_channels_per_group() % channels != 0 || !whole(p.batch, p.x_strides[0]) || !whole(p.in_h, p.x_strides[2]) ||
      !whole(p.in_w, p.x_strides[3]) || (channels > 1 && !p.x_aligned)) {
    return "takes inputs in channels_last whose pixels are whole words of 4 bytes, the first one aligned to 16";
  }
  return "";
}

// A configuration of which `splits` threads of a block share a position: its plan and time, or why not.
Candidate few_channels_candidate(const Problem& p, const DeviceInfo& device, const few_channels::Image& image,
                                 int32_t row, int32_t splits) {
  const few_channels::Config& config = few_channels::configs[row];
  const auto refused = [&](const std::string& reason) { return refuse(Algorithm::few_channels, config.name, reason); };
  const few_channels::Division d = few_channels::divide(p, image, config, splits);
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
  const int64_t words = p.in_channels_per_group() / few_channels::word_channels(p);
  const int64_t taps = few_channels::taps(config), sums = config.rows * config.sums;
  const int64_t rows = few_channels::input_rows(config);
  // Instructions of a warp for a channel, or a word of them, and a window: products and their addition to the sums,
  // loads, conversions, addresses of rows, weights. All factors are fitted to 3000 measurements on an H200.
  const bool pixels = few_channels::has_pixels(p);
  const double channels = number(few_channels::word_channels(p));
  const double loads = number(rows * config.window_columns);
  const double vectors = channels * number(few_channels::window_weights(config)) / 4;
  const double products = channels * number(sums * (taps + (half ? 0 : 1)));
  // What a thread copies to shared memory for each word that it multiplies: not fitted yet, as all of `pixels`.
  const bool in_vectors = d.staging.vector > 1;
  const double copying = in_vectors ? 1.5 + 1 / number(d.staging.vector) : 4;
  const double copied = pixels ? number(d.staging.columns) / number(d.positions) : 0;
  const double of_window = products + vectors +
                           (pixels ? loads * (half ? 3 : 1) + copied * (copying * number(rows) + 16) + 8
                                   : loads * (half ? 5.3 : 3.7) + 2 * number(rows) + 28);
  // Clocks of a multiprocessor, which issues four instructions in each. Loads and vectors for all lanes have one path,
  // and lanes of a warp that share outputs read at several places.
  const double places = 1 + 0.21 * (std::max(1.0, splits / 8.0) - 1);
  const double path = places * ((pixels ? 1 : 2.5) * loads + 0.5 * vectors) + copied * 2 * number(rows);
  const double clocks = std::max(of_window / 4, path) / 1.2;
  const double windows = number(d.window_rows * d.window_columns);
  const double turns = windows * number(ceil_div<int64_t>(words, splits));
  // Weights, four of a thread on their way at a time.
  const double weights = number(p.in_channels_per_group() * d.channel_weights) / few_channels::threads;
  const int64_t together = few_channels::together(config);
  const double outputs = splits == 1 ? 6 * number(sums) + 30 * number(config.sums)
                                     : number(sums) + std::ceil(number(sums / together) / splits) *
                                                          (40 + number(together) * (1.3 * splits + 6));
  const double once = 160 + 8 * weights + 100 * windows + 1.97 * outputs;
  const int64_t resident = std::clamp<int64_t>((device.shared_memory_per_block + 1024) / (d.shared_bytes + 1024), 1,
                                               few_channels::resident_blocks(config, pixels));
  // A stage's inputs come once for all words of it that a thread multiplies, and from the second stage on while the one
  // before is multiplied, if there is room for two.
  constexpr double latency = 1000, shared_latency = 40;
  const auto of_stage = [&](double alone) {
    const double each = latency / std::ceil(number(d.staging.words) / splits);
    return shared_latency + (d.staging.stages == 1 || in_vectors ? each : std::max(0.0, each - alone));
  };
  const double pieces = number(ceil_div<int64_t>(p.in_channels_per_group(), d.channels));
  const double first_stages = pixels && d.staging.stages > 1 && !in_vectors ? latency * windows * pieces : 0;
  // Of `blocks` at a time on a multiprocessor: a warp waits for its loads, for which those ahead leave less time.
  const auto wave = [&](int64_t blocks) {
    const double warps = number(blocks * few_channels::threads / 32), alone = 2.1 * of_window;
    const double wait = pixels ? of_stage(alone) : config.ahead ? std::max(0.0, 550 - alone / 2) : 550;
    return turns * std::max(warps * clocks, alone + wait) + std::max(warps * once / 4 / 0.63, 3 * once) +
           685 * std::ceil(weights / 4) + first_stages;
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
  const std::string refusal = few_channels_refusal(p, device);
  if (!refusal.empty()) {
    for (const few_channels::Config& config : few_channels::configs) {
      out.push_back(refuse(Algorithm::few_channels, config.name, refusal));
    }
    return;
  }
  const few_channels::Image image = few_channels::cells_of(p);
  const int64_t words = p.in_channels_per_group() / few_channels::word_channels(p);
  for (int32_t row = 0; row < few_channels::config_count; ++row) {
    std::optional<Candidate> best;
    for (int32_t splits = 1; splits <= few_channels::most_splits; splits *= 2) {
      if (splits > 1 && splits > words) break;
      const Candidate c = few_channels_candidate(p, device, image, row, splits);
      best = best ? faster(*best, c) : c;
    }
    out.push_back(*best);
  }
}

}  // namespace convt
