// Few output channels a group, each warp for itself. See csrc/kernels/rolling_rows.
#include "../../kernels/rolling_rows/config.h"

#include "family.h"

namespace convt {
namespace {

// Why no configuration of the rolling_rows family takes the problem; empty if one may.
std::string rolling_rows_refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (device.compute_capability < 80) return "needs tensor cores of sm_80";
  if (p.in_channels == 0) return "takes at least one input channel";
  if (std::string reason = image_refusal(p); !reason.empty()) return reason;
  const bool last = rolling_rows::channels_last(p);
  if (last && p.in_channels_per_group() > 1 && p.x_strides[1] != 1) {
    return "takes inputs whose rows or channels are contiguous in memory";
  }
  if (last) {
    if (p.groups > 1) return "takes several groups only where rows are contiguous in memory";
    if (memory_format(p.y_sizes(), p.y_strides) != MemoryFormat::channels_last &&
        !(p.out_channels == 1 && dense(p.out_w, p.y_strides[3], 1))) {
      return "writes outputs in the format of its inputs only";
    }
  } else if (!dense(p.out_w, p.y_strides[3], 1)) {
    return "writes outputs in the format of its inputs only";
  }
  return "";
}

// Why a configuration does not take a problem that the family may take.
std::string configuration_refusal(const rolling_rows::Config& config, const Problem& p) {
  const auto most = [](int64_t n, const char* of, int64_t is) {
    return "takes at most " + std::to_string(n) + of + ", not " + std::to_string(is);
  };
  const int64_t rows = rolling_rows::frames(p.axis_h()).reach, columns = rolling_rows::frames(p.axis_w()).reach;
  if (rows > config.rows) return most(config.rows, " rows of the input beside each other for a row", rows);
  if (columns > config.columns) {
    return most(config.columns, " columns of the input beside each other for a column", columns);
  }
  const int64_t outputs = checked_mul(p.out_channels_per_group(), checked_mul(p.stride_h, p.stride_w));
  if (outputs > 8 * config.tiles) return most(8 * config.tiles, " output channels times strides of a group", outputs);
  return "";
}

}  // namespace

void rolling_rows_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = rolling_rows_refusal(p, device);
  for (int32_t row = 0; row < rolling_rows::config_count; ++row) {
    const rolling_rows::Config& config = rolling_rows::configs[row];
    const auto refused = [&](const std::string& why) {
      out.push_back(refuse(Algorithm::rolling_rows, config.name, why));
    };
    std::string reason = refusal;
    if (reason.empty()) reason = configuration_refusal(config, p);
    if (!reason.empty()) {
      refused(reason);
      continue;
    }
    const int64_t shared = device.shared_memory_per_block;
    const bool copy_engine = hopper_refusal(device).empty() && p.x_aligned;
    const auto [t, seconds] =
        rolling_rows::choose(config, p, device.multiprocessors, shared, slower(device), copy_engine);
    if (seconds == 0) {
      refused("needs " + std::to_string(rolling_rows::tiling(config, p, {1, 1, 1}).shared_bytes) +
              " bytes of shared memory, more than the " + std::to_string(shared) + " of a block");
      continue;
    }
    if (t.units > std::numeric_limits<int32_t>::max() / 2) {
      refused("needs " + std::to_string(t.units) + " parts, more than are numbered in 32 bits");
      continue;
    }
    Candidate c = fitting(Algorithm::rolling_rows, config.name, row);
    c.plan.grid = rolling_rows::blocks(t, p, device.multiprocessors, shared);
    c.plan.block = 32 * t.warps;
    c.plan.cut = rolling_rows::cut_of(t);
    c.plan.shared_bytes = t.shared_bytes;
    c.estimated_seconds = launch_seconds + seconds;
    out.push_back(c);
  }
}

}  // namespace convt
