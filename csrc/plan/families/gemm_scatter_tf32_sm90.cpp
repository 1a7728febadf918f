// Kernels as large as their stride, in TF32, on Hopper's tensor cores. See csrc/kernels/gemm_scatter_tf32_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_scatter_tf32_sm90/tiling.h"
#include "gemm_scatter.h"

namespace convt {
namespace {

namespace family = gemm_scatter_tf32_sm90;

// Why no configuration of the family takes the problem; empty if all may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  const std::string reason = gemm_scatter_refusal(p, device, p.dtype == DataType::float32);
  if (!reason.empty()) return reason;
  if (family::is_channels_last(p)) {
    if (!family::make_channels_last_x_map(p, nullptr).valid()) {
      return "takes strides of x in channels_last that are multiples of 16 bytes";
    }
    if (!dense(p.kernel_w, p.y_strides[3], p.out_channels)) {
      return "takes outputs in channels_last whose columns follow each other";
    }
    if (family::row_outputs(p) % 4 != 0) return "takes multiples of 4 outputs in a row, of a position in channels_last";
    return "";
  }
  if (p.kernel_w > 2 && p.kernel_w % 4 != 0) return "takes 1 or 2 columns of a kernel, or a multiple of 4";
  return "";
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, bool copies_x) {
  const family::Config& config = family::configs[row];
  const family::Tiling t = family::make_tiling(config, p, copies_x);
  const auto refused = [&](const char* reason) {
    return refuse(Algorithm::gemm_scatter_tf32_sm90, config.name, reason);
  };
  if (t.tiles > std::numeric_limits<int32_t>::max() / 2)
    return refused("needs more tiles than are numbered in 32 bits");
  if (checked_mul(checked_mul(p.groups, t.blocks), t.chunks) >= int64_t{1} << 30) {
    return refused("takes less than 2^30 blocks of weights");
  }
  Candidate c = fitting(Algorithm::gemm_scatter_tf32_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(t.tiles, device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = family::shared_bytes(config);
  const int64_t band = band_of(p, device, t);
  c.plan.cut[0] = static_cast<int32_t>(band);
  c.plan.workspace_bytes = family::packed_bytes(p, t) + (copies_x ? family::copied_bytes(p) : 0);

  const auto number = [](auto n) { return static_cast<double>(n); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops, cores = number(device.multiprocessors);
  const double waves = std::ceil(number(t.tiles) / cores), chunks = number(t.chunks);
  // Constants are fitted to a sweep of all such layers on an H100. A tile: its products, or what they are of, of which
  // a multiprocessor gets 35.5 bytes a clock from the second level of cache; then its outputs, from registers.
  const double elements = number(config.rows * config.columns);
  const double multiply = chunks * (elements / 32 + 220), read = chunks * family::stage_bytes(config) / 35.5;
  const double main = 450 + std::max(multiply, read);
  const double of_output = family::is_channels_last(p) ? 0.02 : family::store_width(p, nullptr) == 4 ? 0.1 : 0.26;
  const double there = std::min(1.0, number(family::outputs_of_position(p)) / config.columns);
  const double store = 520 + elements * of_output * there;
  const double work = clock * work_of_tiles(waves, main, store, config.alternate);
  const double memory = 1.25 * transferred_bytes(p, t, band) / device.bandwidth;
  // Elements of positions that are not side by side are a sector of memory each.
  const double spread = family::position_stride(p) > 1 ? 8 : 1;
  const double copying = copies_x ? copying_seconds(device, (spread + 1) / 2 * number(4 * p.x_elements())) : 0;
  const double packing = 3.4e-6 + number(2 * family::packed_bytes(p, t)) / (1.17 * device.bandwidth);
  c.estimated_seconds =
      launch_seconds + packing + copying + std::pow(std::pow(work, 2.8) + std::pow(memory, 2.8), 1 / 2.8);
  return c;
}

}  // namespace

void gemm_scatter_tf32_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  gemm_scatter_candidates(
      Algorithm::gemm_scatter_tf32_sm90, family::configs, p, refusal(p, device),
      [&](int32_t row, bool copies_x) { return candidate_of(p, device, row, copies_x); }, out);
}

}  // namespace convt
