// Large strides with few input channels on Hopper. See csrc/kernels/large_stride_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/large_stride_sm90/params.h"
#include "large_strides.h"

namespace convt {
namespace {

namespace family = large_stride_sm90;

// Why no configuration of the family takes the problem; empty if one may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (const std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (p.strict_float32()) return "has no strict float32";
  if (std::string reason = small_stride_refusal(p); !reason.empty()) return reason;
  return large_strides_refusal(p);
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const std::string& reason) {
    return refuse(Algorithm::large_stride_sm90, config.name, reason);
  };
  const int64_t units = family::make_tiling(p, {1, 1}).units, unit = family::unit_bytes / element_size(p.dtype);
  if (units > 2 * config.steps) {
    return refused("takes at most " + std::to_string(2 * config.steps * unit) + " input channels, padded to " +
                   std::to_string(unit) + ", times taps of a phase, not " + std::to_string(units * unit));
  }
  const family::Cut cut = family::choose_cut(p, config);
  const family::Tiling t = family::make_tiling(p, cut);
  const int64_t shared_bytes = t.shared_bytes(config.steps);
  if (shared_bytes > device.shared_memory_per_block) {
    return refused("needs " + std::to_string(shared_bytes) + " bytes of shared memory for one row of positions");
  }
  const int64_t blocks = checked_mul(checked_mul(t.blocks, t.row_blocks), checked_mul(p.batch, p.groups));
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return refused("needs " + std::to_string(blocks) + " blocks, more than a grid holds");
  }
  Candidate c = fitting(Algorithm::large_stride_sm90, config.name, row);
  c.plan.grid = blocks;
  c.plan.block = family::group_threads * t.groups;
  c.plan.shared_bytes = shared_bytes;
  family::set_cut(c.plan, cut);
  const auto number = [](auto n) { return static_cast<double>(n); };
  // Measured on an H200. A block: its inputs by one warpgroup, some at a time; its weights; then products of 64
  // positions, whose outputs are the memory's.
  const int64_t elements = family::unit_bytes / element_size(p.dtype) * t.planes * t.plane_pixels();
  const double batches = std::ceil(number(elements) / (family::group_threads * family::inputs_at_once));
  const double of_product = number(t.groups * family::group_phases * family::columns * element_size(p.dtype));
  const double store = of_product * device.multiprocessors / (0.74 * device.bandwidth);
  const double products = number(t.positions() / family::columns) * std::max(6e-7 + 4e-8 * config.steps, store);
  const double block = 2.4e-6 + 6e-7 * batches + products;
  // (Blocks of several waves overlap.)
  const double waves = 0.25 + 0.75 * std::ceil(number(blocks) / device.multiprocessors);
  const double weights = number(p.w_elements() * element_size(p.dtype)) / device.bandwidth;
  // Outputs of which channels are innermost are a sector each, which the second level of cache takes at less than half
  // of the memory's rate; so are such inputs, for each block.
  const double of_sector = 32 / (0.4 * device.bandwidth);
  const double scattered = p.y_strides[3] != 1 ? number(p.y_elements()) * of_sector : 0;
  const double gathered =
      p.x_strides[3] != 1 && p.in_w > 1 ? number(p.x_elements() * t.blocks) / 4 * element_size(p.dtype) * of_sector : 0;
  c.estimated_seconds = launch_seconds + waves * block + weights + scattered + gathered;
  return c;
}

}  // namespace

void large_stride_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  for (int32_t row = 0; row < family::config_count; ++row) {
    out.push_back(reason.empty() ? candidate_of(p, device, row)
                                 : refuse(Algorithm::large_stride_sm90, family::configs[row].name, reason));
  }
}

}  // namespace convt
