// Few input channels a group, each warp for itself. See csrc/kernels/warp_rows.
#include "../../kernels/warp_rows/config.h"

#include <algorithm>

#include "family.h"

namespace convt {
namespace {

// Why no configuration of the warp_rows family takes the problem; empty if one may.
std::string warp_rows_refusal(const Problem& p, const DeviceInfo& device) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (device.compute_capability < 80) return "needs tensor cores of sm_80";
  if (p.stride_h > most_phases) {
    return "takes strides of a column up to " + number(most_phases) + ", not " + number(p.stride_h);
  }
  if (warp_rows::is_last(p)) {
    if (!dense(p.in_channels, p.x_strides[1], 1)) {
      return "takes inputs whose columns or channels are neighbours in memory";
    }
    if (!has_pixels_of(p, 2) || !p.x_aligned) {
      return "takes inputs in channels_last of pairs of channels, the first one aligned to 16 bytes";
    }
  }
  if (std::string reason = image_refusal(p); !reason.empty()) return reason;
  // Products with the weights' strides are of 32 bits each.
  const auto w_sizes = p.w_sizes();
  for (int d = 0; d < 4; ++d) {
    if (w_sizes[d] > 1 && std::abs(p.w_strides[d]) > std::numeric_limits<int32_t>::max()) {
      return "takes strides of weights of less than 2^31 elements";
    }
  }
  return "";
}

// Why a configuration does not take the problem's channels, strides or windows of x.
std::string window_refusal(const warp_rows::Config& config, const Problem& p) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (p.in_channels_per_group() > config.steps * warp_rows::step_channels) {
    return "takes at most " + number(config.steps * warp_rows::step_channels) + " input channels a group, not " +
           number(p.in_channels_per_group());
  }
  if (p.stride_w < config.least_stride || p.stride_w > config.most_stride) {
    return "takes strides of a row of " + number(config.least_stride) + " to " + number(config.most_stride) + ", not " +
           number(p.stride_w);
  }
  const Phases h = phases(warp_rows::counted(config, p.axis_h()).axis);
  const Phases w = phases(warp_rows::counted(config, p.axis_w()).axis);
  const int64_t rows = int64_t{h.last} - h.first + 1, columns = int64_t{w.last} - w.first + 1;
  const auto most = [](int32_t n, const char* of, int64_t is) {
    return "takes outputs that read at most " + std::to_string(n) + of + ", not " + std::to_string(is);
  };
  if (rows > config.rows) return most(config.rows, " rows of the input beside each other", rows);
  if (columns > config.columns) return most(config.columns, " columns of the input beside each other", columns);
  return "";
}

// Why a configuration whose warps write rows together does not take the problem.
std::string rows_refusal(const warp_rows::Config& config, const Problem& p, const DeviceInfo& device) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (warp_rows::is_last(p)) return "writes rows of channels, takes no channels_last";
  const int64_t bytes = element_size(p.dtype), row_bytes = p.out_w * bytes;
  if (config.sectors() && row_bytes % warp_rows::sector_bytes == 0) {
    return "takes rows of outputs that are no whole sectors of memory";
  }
  constexpr int64_t least_bytes = 2 * warp_rows::sector_bytes;  // so that a row has a whole sector
  if (row_bytes < least_bytes) {
    return "takes rows of outputs of at least " + number(least_bytes) + " bytes, not " + number(row_bytes);
  }
  const int64_t columns =
      warp_rows::warps * p.stride_w * warp_rows::warp_columns(bytes, p.strict_float32(), p.stride_w, config.rows) -
      warp_rows::counted(config, p.axis_w()).skipped;
  if (p.out_w <= columns) return "";
  return "takes rows of at most " + number(columns) + " outputs, not " + number(p.out_w);
}

// Why a configuration does not take a problem that the family may take.
std::string configuration_refusal(const warp_rows::Config& config, const Problem& p, const DeviceInfo& device) {
  std::string reason = window_refusal(config, p);
  if (reason.empty() && (config.whole() || config.sectors())) reason = rows_refusal(config, p, device);
  if (!reason.empty()) return reason;
  const int64_t shared = warp_rows::tiling(config, p, warp_rows::least_cut(config, p)).shared_bytes;
  if (shared <= device.shared_memory_per_block) return "";
  return "needs " + std::to_string(shared) + " bytes of shared memory, more than the " +
         std::to_string(device.shared_memory_per_block) + " of a block";
}

}  // namespace

bool warp_rows_takes(const Problem& p, const DeviceInfo& device) {
  return warp_rows_refusal(p, device).empty() &&
         std::any_of(std::begin(warp_rows::configs), std::end(warp_rows::configs), [&](const warp_rows::Config& c) {
           return !c.whole() && !c.sectors() && configuration_refusal(c, p, device).empty();
         });
}

void warp_rows_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = warp_rows_refusal(p, device);
  for (int32_t row = 0; row < warp_rows::config_count; ++row) {
    const warp_rows::Config& config = warp_rows::configs[row];
    const auto refused = [&](const std::string& why) { out.push_back(refuse(Algorithm::warp_rows, config.name, why)); };
    std::string reason = refusal;
    if (reason.empty()) reason = configuration_refusal(config, p, device);
    if (!reason.empty()) {
      refused(reason);
      continue;
    }
    const Slower on_device = slower(device);
    const auto [t, seconds] = warp_rows::choose(config, p, on_device, device.shared_memory_per_block);
    const int64_t grid = warp_rows::blocks(t, p);
    if (grid > std::numeric_limits<int32_t>::max()) {
      refused("needs " + std::to_string(grid) + " blocks, more than a grid holds");
      continue;
    }
    Candidate c = fitting(Algorithm::warp_rows, config.name, row);
    c.plan.grid = grid;
    c.plan.block = warp_rows::block_threads(config, t);
    c.plan.cut = warp_rows::cut_of(t);
    c.estimated_seconds = launch_seconds + seconds;
    out.push_back(c);
  }
}

}  // namespace convt
