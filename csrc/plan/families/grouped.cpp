// Few channels a group, or few channels in all, on tensor cores. See csrc/kernels/grouped.
#include <algorithm>

#include "../../kernels/grouped/config.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the grouped family takes the problem; empty if one may.
std::string grouped_refusal(const Problem& p, const DeviceInfo& device) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (device.compute_capability < 80) return "needs tensor cores of sm_80";
  const int64_t most = grouped::most_channels;
  if (p.in_channels_per_group() > most) {
    return "takes at most " + number(most) + " input channels a group, not " + number(p.in_channels_per_group());
  }
  if (p.out_channels_per_group() > most) {
    return "takes at most " + number(most) + " output channels a group, not " + number(p.out_channels_per_group());
  }
  if (std::max(p.stride_h, p.stride_w) > most_phases) {
    return "takes strides up to " + number(most_phases) + ", not " + number(std::max(p.stride_h, p.stride_w));
  }
  if (p.in_w > 1 && p.x_strides[3] != 1 && p.in_channels > 1 && p.x_strides[1] != 1) {
    return "takes inputs whose rows or channels are contiguous in memory";
  }
  const auto format = memory_format(p.y_sizes(), p.y_strides);
  if (format == MemoryFormat::strided) return "writes contiguous outputs only";
  return image_refusal(p);
}

}  // namespace

void grouped_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = grouped_refusal(p, device);
  for (int32_t row = 0; row < grouped::config_count; ++row) {
    const grouped::Config& config = grouped::configs[row];
    std::string reason = refusal;
    if (reason.empty() && !grouped::takes_x(config, grouped::x_pixels(p))) {
      reason = "takes inputs whose channels are contiguous in memory";
    }
    if (reason.empty() && config.tiles > 1 && p.out_channels_per_group() <= 8 * (config.tiles - 1)) {
      reason = "takes more than " + std::to_string(8 * (config.tiles - 1)) + " output channels a group, not " +
               std::to_string(p.out_channels_per_group());
    }
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::grouped, config.name, reason));
      continue;
    }
    const Slower on_device = slower(device);
    const grouped::Tiling t =
        grouped::tiling(config, p, std::min<int64_t>(device.shared_memory_per_block, 227 << 10), on_device);
    if (t.shared_bytes > device.shared_memory_per_block) {
      out.push_back(refuse(Algorithm::grouped, config.name,
                           "needs " + std::to_string(t.shared_bytes) + " bytes of shared memory, more than the " +
                               std::to_string(device.shared_memory_per_block) + " of a block"));
      continue;
    }
    const int64_t grid = grouped::blocks(t, p);
    if (grid > std::numeric_limits<int32_t>::max()) {
      out.push_back(
          refuse(Algorithm::grouped, config.name, "needs " + std::to_string(grid) + " blocks, more than a grid holds"));
      continue;
    }
    Candidate c = fitting(Algorithm::grouped, config.name, row);
    c.plan.grid = grid;
    // Errors of up to 2.3 times those of float32 instructions have been measured.
    if (p.strict_float32() && terms_of_output(p) > 128) {
      c.reservation = "is less accurate than float32 in sums of so many terms";
    }
    // With 144 KB of weights it took 1.6 to 1.9 times the model's time, which is fitted to fewer.
    constexpr int64_t most_weights = 96 << 10;
    if (t.weight_bytes > most_weights) {
      c.reservation = "has a model for at most " + std::to_string(most_weights) + " bytes of a block's weights, not " +
                      std::to_string(t.weight_bytes);
    }
    if (t.x_pixels && t.y_pixels && warp_rows_takes(p, device)) {
      c.reservation = "is slower than warp_rows, which takes the problem";
    }
    c.plan.block = grouped::block;
    c.plan.cut = grouped::cut_of(t);
    c.estimated_seconds = launch_seconds + t.seconds;
    out.push_back(c);
  }
}

}  // namespace convt
