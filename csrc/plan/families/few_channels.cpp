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
  if (!has_pixels_of(p, channels) || (channels > 1 && !p.x_aligned)) {
    return "takes inputs in channels_last whose pixels are whole words of 4 bytes, the first one aligned to 16";
  }
  return "";
}

// What all models count of a problem that a configuration divides so. Numbers of instructions are a warp's; all factors
// are fitted to measurements on an H200: 3000 of inputs as they are in memory, 1900 of pixels.
struct Counts {
  double windows, turns;     // of the configuration; and of words of channels that a thread takes
  double products, vectors;  // of a turn: with their addition to the sums; 16 bytes of weights
  double loads;              // of a turn, each for conversions too
  double weights;            // that a thread brings, four on their way at a time
  double once;               // of a thread: its weights and outputs
  int64_t resident;          // blocks of a multiprocessor
};

Counts counts_of(const Problem& p, const DeviceInfo& device, const few_channels::Config& config,
                 const few_channels::Division& d, int32_t splits) {
  const auto number = [](auto n) { return static_cast<double>(n); };
  const int64_t channels = few_channels::word_channels(p), sums = config.rows * config.sums;
  const bool half = element_size(p.dtype) == 2;
  Counts c{};
  c.windows = number(d.window_rows * d.window_columns);
  c.turns = c.windows * number(ceil_div<int64_t>(p.in_channels_per_group() / channels, splits));
  c.products = number(channels * sums * (few_channels::taps(config) + (half ? 0 : 1)));
  c.vectors = number(channels) * number(few_channels::window_weights(config)) / 4;
  c.loads = number(few_channels::input_rows(config) * config.window_columns);
  c.weights = number(p.in_channels_per_group() * d.channel_weights) / few_channels::threads;
  const int64_t together = few_channels::together(config);
  const double outputs = splits == 1 ? 6 * number(sums) + 30 * number(config.sums)
                                     : number(sums) + std::ceil(number(sums / together) / splits) *
                                                          (40 + number(together) * (1.3 * splits + 6));
  c.once = 160 + 8 * c.weights + 100 * c.windows + 1.97 * outputs;
  c.resident = std::clamp<int64_t>((device.shared_memory_per_block + 1024) / (d.shared_bytes + 1024), 1,
                                   few_channels::resident_blocks(config, few_channels::has_pixels(p)));
  return c;
}

// Seconds of all blocks, of which `wave(n)` are the clocks of n on a multiprocessor.
template <class Wave>
double busy_seconds(const DeviceInfo& device, const few_channels::Division& d, int64_t resident, const Wave& wave) {
  constexpr double clock = 1.755e9;
  const int64_t at_once = device.multiprocessors * resident, rest = d.blocks % at_once;
  return (static_cast<double>(d.blocks / at_once) * wave(resident) +
          (rest > 0 ? wave(ceil_div<int64_t>(rest, device.multiprocessors)) : 0)) /
         clock;
}

constexpr int32_t block_warps = few_channels::threads / 32;

// Lanes that share outputs read at several places in shared memory.
double places_of(int32_t splits) { return 1 + 0.21 * (std::max(1.0, splits / 8.0) - 1); }

double seconds_as_it_is(const Problem& p, const DeviceInfo& device, const few_channels::Config& config,
                        const few_channels::Division& d, int32_t splits) {
  const Counts c = counts_of(p, device, config, d, splits);
  const bool half = element_size(p.dtype) == 2;
  const double of_turn = c.products + c.vectors + c.loads * (half ? 5.3 : 3.7) +
                         2 * static_cast<double>(few_channels::input_rows(config)) + 28;
  // Clocks of a multiprocessor, which issues four instructions in each. Loads and vectors for all lanes have one path.
  const double clocks = std::max(of_turn / 4, places_of(splits) * (2.5 * c.loads + 0.5 * c.vectors)) / 1.2;
  // A warp waits for its loads, for which those ahead leave less time.
  const double alone = 2.1 * of_turn, wait = config.ahead ? std::max(0.0, 550 - alone / 2) : 550;
  const double busy = busy_seconds(device, d, c.resident, [&](int64_t blocks) {
    const auto warps = static_cast<double>(blocks * block_warps);
    return c.turns * std::max(warps * clocks, alone + wait) + std::max(warps * c.once / 4 / 0.63, 3 * c.once) +
           685 * std::ceil(c.weights / 4);
  });
  return launch_seconds + 2.8e-6 + busy + 0.75 * static_cast<double>(p.compulsory_bytes()) / device.bandwidth;
}

double seconds_of_pixels(const Problem& p, const DeviceInfo& device, const few_channels::Config& config,
                         const few_channels::Division& d, int32_t splits) {
  const Counts c = counts_of(p, device, config, d, splits);
  const auto number = [](auto n) { return static_cast<double>(n); };
  const few_channels::Staging& stage = d.staging;
  const auto bytes = number(element_size(p.dtype)), word_channels = number(few_channels::word_channels(p));
  const double words = number(p.in_channels_per_group()) / word_channels;
  // Of a thread: words that it copies to shared memory, and stages that it waits for.
  const double copies =
      c.windows * words * number(stage.columns * few_channels::input_rows(config)) / few_channels::threads;
  const double at_once = number(d.channels) / word_channels;
  const double stages =
      c.windows * std::ceil(words / at_once) * std::ceil(std::min(words, at_once) / number(stage.words));
  const double instructions =
      c.turns * (c.products + c.vectors + c.loads * (bytes == 2 ? 3 : 1) + 8) + 19.4 * copies + c.once;
  const double path = places_of(splits) * c.turns * (1.63 * c.loads + 0.5 * c.vectors) + 4 * copies;
  const double clocks = std::max({block_warps * instructions / 4 / 1.17, block_warps * path, 18 * copies});
  const double waits = stages * (stage.stages > 1 ? 510 : 1030) + 806 * std::ceil(c.weights / 4);
  const double busy = busy_seconds(device, d, c.resident, [&](int64_t blocks) {
    return std::max(number(blocks) * clocks, 2.1 * instructions) + waits;
  });
  // Of lines of memory that are read in several stages, sectors come anew; those of which threads write parts, in
  // parts.
  const double again =
      1.01 * std::max(0.0, 1 - number(stage.words) / std::min<double>(few_channels::line_words, words));
  const double sector = 4 * few_channels::sector_words;
  const double stored = few_channels::writes_channels(p, config, nullptr) ? few_channels::written_channels(config) : 1;
  const double written = std::min(sector, number(std::abs(p.y_strides[3]) * p.stride_w) * bytes) / stored - bytes;
  const double moved =
      0.81 * (1 + again) * number(p.compulsory_bytes()) + 1.22 * std::max(0.0, written) * number(p.y_elements());
  return launch_seconds + 3e-6 + busy + moved / device.bandwidth;
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
  c.estimated_seconds = few_channels::has_pixels(p) ? seconds_of_pixels(p, device, config, d, splits)
                                                    : seconds_as_it_is(p, device, config, d, splits);
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
