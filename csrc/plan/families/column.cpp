// Few output channels a group, or few positions. See csrc/kernels/column.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "../../kernels/column/params.h"
#include "family.h"

namespace convt {
namespace {

// The output channels of a group that a block computes: all of them, or as many as divide them. A block of a part of
// them reads all of its tile's inputs again, so there are parts only where the weights are most of the memory.
std::vector<int64_t> channel_choices(const Problem& p) {
  const int64_t channels = p.out_channels_per_group(), taps = p.kernel_h * p.kernel_w;
  if (channels * taps <= column::most_columns) return {channels};
  const int64_t inputs = p.batch * p.in_channels * p.in_h * p.in_w,
                outputs = p.batch * p.out_channels * p.out_h * p.out_w;
  std::vector<int64_t> choices;
  if (p.in_channels * channels * taps < inputs + outputs) return choices;
  // Of weights whose output channels are innermost, whole sectors of memory.
  const int64_t fewest = taps > 1 && p.w_strides[1] == 1 ? 32 / element_size(p.dtype) : 1;
  for (int64_t c = fewest; c < channels && c * taps <= column::most_columns; ++c) {
    if (channels % c == 0) choices.push_back(c);
  }
  return choices;
}

// Why no configuration of the column family takes the problem; empty if one may.
std::string column_refusal(const Problem& p) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t limit = int64_t{1} << 30;
  if (p.kernel_h > column::most_columns || p.kernel_w > column::most_columns ||
      p.kernel_h * p.kernel_w > column::most_columns) {
    return "takes at most " + std::to_string(column::most_columns) + " taps";
  }
  if (p.in_channels >= limit) return "takes less than 2^30 input channels";
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    if (a.stride >= 1 << 15 || a.dilation >= limit || a.dilation * a.kernel >= limit || a.padding >= limit ||
        a.in >= limit || a.out >= limit || a.in * a.stride >= limit || a.out + a.padding >= limit) {
      return "takes images of less than 2^30 rows and columns";
    }
  }
  if (!(p.in_w == 1 || p.x_strides[3] == 1) && !(p.in_channels_per_group() == 1 || p.x_strides[1] == 1)) {
    return "takes inputs whose rows or channels are contiguous in memory";
  }
  return "";
}

// What the warps of a block issue for the outputs of a tile, from their products in shared memory. A thread takes two
// rows of up to four output channels at a time, or four rows of one channel: as many if the tile has fewer rows, as
// where an image is one row, or a pixel's channels are the lanes of a warp.
double gather_instructions(const Problem& p, const column::Config& config, const column::Tiling& t, int64_t channels,
                           int32_t pitch, double taps) {
  const int64_t kernel = p.kernel_h * p.kernel_w;
  const bool channels_of_row = channels > 1 && p.y_strides[1] == 1 && p.y_strides[3] != 1;
  const int64_t threads = 32 * config.warps, rows = t.h.q * p.stride_h;
  const int64_t elements = t.w.q * p.stride_w * (channels_of_row ? channels : 1);
  const int64_t line = std::min<int64_t>(ceil_div<int64_t>(elements, 32) * 32, threads), lines = threads / line;
  const int64_t of_thread = channels_of_row ? 1 : channels;
  const int64_t alone = of_thread % 4 == 1 ? 1 : 0, fours = ceil_div<int64_t>(of_thread - alone, 4);
  const auto times = [&](int64_t rows_at_once) {
    return static_cast<double>(ceil_div(elements, line) * ceil_div(rows, rows_at_once * lines) * lines * line / 32);
  };
  // The lanes of a warp that read a bank of shared memory, where they run over channels.
  int32_t conflicts = 1;
  if (channels_of_row) {
    std::array<int32_t, 32> lanes_of_bank{};
    for (int64_t lane = 0; lane < 32; ++lane) {
      const int64_t pixel = lane / channels, tap = pixel % p.stride_w;
      const int64_t at = (lane % channels * kernel + tap) * pitch + pixel / p.stride_w;
      conflicts = std::max(conflicts, ++lanes_of_bank[at % 32]);
    }
  }
  return static_cast<double>(fours) * times(2) * (119 + 8 * 28 + taps * (14.5 + 8 * 0.9)) +
         static_cast<double>(alone) * times(4) * (99 + 4 * 28 + taps * (14.5 + 4 * 0.9 * conflicts));
}

// A configuration whose blocks compute `out_channels` each: its plan and time, or why not.
Candidate column_candidate(const Problem& p, const DeviceInfo& device, int32_t row, const column::Tiling& tiling,
                           int64_t out_channels) {
  const column::Config& config = column::configs[row];
  const auto refused = [&](const std::string& reason) { return refuse(Algorithm::column, config.name, reason); };
  const column::Resources r = column::resources(p, config, tiling, out_channels);
  if (r.shared_bytes(column::ring_steps[1]) > device.shared_memory_per_block) {
    return refused("needs " + std::to_string(r.shared_bytes(column::ring_steps[1])) +
                   " bytes of shared memory a block");
  }
  const int64_t groups = checked_mul(p.groups, p.out_channels_per_group() / out_channels);
  const int64_t blocks = checked_mul(checked_mul(tiling.h.count, tiling.w.count), checked_mul(p.batch, groups));
  if (blocks > std::numeric_limits<int32_t>::max() / 2) {
    return refused("needs " + std::to_string(blocks) + " tiles, more than are numbered in 32 bits");
  }
  const auto resident_with = [&](int32_t ring) {
    return std::min<int64_t>(column::resident_warps(config.tiles) / config.warps,
                             (device.shared_memory_per_block + 1024) / (r.shared_bytes(ring) + 1024));
  };
  const bool deep = resident_with(column::ring_steps[0]) == resident_with(column::ring_steps[1]);
  const int32_t ring = column::ring_steps[deep ? 0 : 1];
  const int64_t resident = resident_with(ring);
  Candidate c = fitting(Algorithm::column, config.name, row);
  // A block takes tile after tile, and loads the next one's inputs while it sums up the last one's products.
  c.plan.grid = std::min(blocks, device.multiprocessors * resident);
  c.plan.block = 32 * config.warps;
  c.plan.cut = {ring, static_cast<int32_t>(out_channels)};
  c.plan.shared_bytes = r.shared_bytes(ring);
  // Measured: instructions of a warp, of which a multiprocessor issues 4 a cycle, at 1.7 GHz; and the times that a
  // block waits, which other blocks of its multiprocessor do not shorten.
  const bool half = p.dtype != DataType::float32;
  const bool strict = p.strict_float32();
  const auto number = [](auto n) { return static_cast<double>(n); };
  const bool vectors = column::load_of(p) == column::Load::vectors;
  // Elements that are loaded one by one come from L1 four times. It has what shared memory leaves of 256 KB, and that
  // is cut in few sizes: 28 KB above 196 KB, else 60 KB or more.
  const int64_t shared_of_all = resident * (r.shared_bytes(ring) + 1024);
  const bool little_l1 = shared_of_all > 196 * (device.shared_memory_per_block + 1024) / 228;
  const double one_by_one = (half ? 132 : (strict ? 225 : 150) * (little_l1 ? 1.65 : 1));
  const double of_chunk = (half || strict ? 90 : 110) +
                          config.tiles * (half     ? 26
                                          : strict ? 97
                                                   : 36) +
                          (vectors ? 0 : one_by_one);
  const double chunks = number(tiling.pixel_blocks() * r.column_blocks * r.chunks);
  const double taps = number(p.kernel_h * p.kernel_w) / number(p.stride_h * p.stride_w);
  const double issue = 1 / (4 * 1.7e9), rate = device.bandwidth;
  const double product =
      (chunks * of_chunk + gather_instructions(p, config, tiling, out_channels, r.pitch, taps)) * issue;
  const double weights = number(r.chunks * column::chunk_channels * r.padded_columns) / 32 * 15 * issue;
  const double rounds = r.passes * std::ceil(number(r.chunks) / r.splits);
  const bool keeps = groups == 1 && r.stage_chunks >= r.chunks;
  const double together = std::ceil(number(c.plan.grid) / device.multiprocessors);
  // Parts of the channels are added up in turn.
  const double of_tile = 1.9e-6 + 0.4e-6 * rounds + (r.splits > 1 ? 0.9e-6 : 0) + together * product +
                         (keeps ? 0 : r.passes * (together * weights + 0.15e-6));
  const double tiles = std::ceil(number(blocks) / number(c.plan.grid));
  // The second level of cache gives a little more than memory.
  const double loaded = number(blocks * tiling.pixel_blocks() * column::block_pixels * r.chunks) *
                        column::chunk_channels * number(element_size(p.dtype));
  c.estimated_seconds = launch_seconds + std::max({number(p.compulsory_bytes()) / rate / 0.9, loaded / rate / 1.3,
                                                   2.9e-6 + weights + tiles * of_tile});
  // Measured: blocks of a part of the channels wait for more stages of weights than the model says. Neighbouring
  // threads have neighbouring taps: a load of weights whose output channels are innermost takes a sector for each of
  // them.
  if (out_channels < p.out_channels_per_group()) {
    c.estimated_seconds *= half ? 1.25 : strict ? 1.12 : 1;
    if (p.w_strides[1] == 1) {
      const double sectors = number(p.w_elements()) / 32 * number(std::min<int64_t>(32, p.kernel_h * p.kernel_w));
      c.estimated_seconds += 4 * sectors / (1.7e9 * number(device.multiprocessors));
    }
  }
  return c;
}

}  // namespace

void column_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = column_refusal(p);
  const std::vector<int64_t> choices = refusal.empty() ? channel_choices(p) : std::vector<int64_t>{};
  for (int32_t row = 0; row < column::config_count; ++row) {
    const column::Config& config = column::configs[row];
    const auto refused = [&](const std::string& reason) {
      out.push_back(refuse(Algorithm::column, config.name, reason));
    };
    if (!refusal.empty()) {
      refused(refusal);
      continue;
    }
    if (choices.empty()) {
      refused("takes more than " + std::to_string(column::most_columns) +
              " taps times output channels of a group only where most of the memory is weights");
      continue;
    }
    if (device.compute_capability < 80) {
      refused("needs the tensor cores of sm_80");
      continue;
    }
    const column::Tiling tiling = column::choose_tiling(p, config.pixel_blocks, column::is_channels_last(p));
    if (!tiling.fits) {
      refused("has no tile of " + std::to_string(config.pixel_blocks * column::block_pixels) +
              " input pixels for a kernel that reaches this far");
      continue;
    }
    std::optional<Candidate> best;
    for (int64_t out_channels : choices) {
      const Candidate c = column_candidate(p, device, row, tiling, out_channels);
      best = best ? faster(*best, c) : c;
    }
    out.push_back(*best);
  }
}

}  // namespace convt
