// Kernels as large as their stride in 16-bit types, on Hopper's tensor cores. See csrc/kernels/gemm_scatter_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_scatter_sm90/tiling.h"
#include "gemm_scatter.h"

namespace convt {
namespace {

namespace family = gemm_scatter_sm90;

// Why no configuration of the family takes the problem; empty if all may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  const bool has_type = p.dtype == DataType::float16 || p.dtype == DataType::bfloat16;
  if (const std::string reason = gemm_scatter_refusal(p, device, has_type); !reason.empty()) return reason;
  const bool last = family::is_channels_last(p);
  if (last) {
    if (!dense(p.kernel_w, p.y_strides[3], p.out_channels) ||
        p.kernel_h * p.kernel_w * p.out_channels != family::outputs_of_position(p)) {
      return "takes outputs in channels_last whose columns follow each other";
    }
  } else if (p.kernel_w > family::most_kernel_w || family::most_kernel_w % p.kernel_w != 0) {
    return "takes 1, 2, 4, 8, 16, 32 or 64 columns of a kernel";
  }
  if (const std::string reason = gemm_scatter_weights_refusal(p); !reason.empty()) return reason;
  if (!family::make_w_map(p, nullptr).valid() || (last && !family::make_channels_last_x_map(p, nullptr).valid())) {
    return "takes strides of weights, and of x in channels_last, that are multiples of 16 bytes";
  }
  return "";
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, bool copies_x) {
  const family::Config& config = family::configs[row];
  const family::Tiling t = family::make_tiling(config, p, copies_x);
  if (t.tiles > std::numeric_limits<int32_t>::max() / 2) {
    return refuse(Algorithm::gemm_scatter_sm90, config.name, "needs more tiles than are numbered in 32 bits");
  }
  Candidate c = fitting(Algorithm::gemm_scatter_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(t.tiles, device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = family::shared_bytes(config);
  const int64_t band = band_of(p, device, t);
  c.plan.cut[0] = static_cast<int32_t>(band);
  c.plan.workspace_bytes = copies_x ? family::copied_bytes(p) : 0;

  const auto number = [](auto n) { return static_cast<double>(n); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops, cores = number(device.multiprocessors);
  const double waves = std::ceil(number(t.tiles) / cores), chunks = number(t.chunks);
  // The constants are fitted to a sweep of all such layers on an H200. A tile: its products, of which wgmma reaches .9
  // of the tensor cores' rate; what they are of, from the second level of cache; its outputs, by the threads of a
  // warpgroup, of which those of narrow rows take longer.
  const double multiply = chunks * (number(config.rows * config.columns) / 32 / 0.9 + 100) * clock;
  const double readers = std::min(number(t.tiles), cores);
  const double read = chunks * family::stage_bytes(config) / device.bandwidth * std::max(cores / 3, readers / 2.7);
  const double main = std::max(multiply, read);
  const double there = std::min(1.0, number(family::outputs_of_position(p)) / config.rows);
  const double of_output = (0.15 + 0.9 / family::store_width(p, nullptr) * (family::is_channels_last(p) ? 1 : there)) *
                           (family::writes_whole_rows(p) ? 1.1 : 1);
  const double store = (1100 + number(config.group_rows() * config.columns) * of_output) * clock;
  const double work = work_of_tiles(waves, main, store, config.alternate);
  const double memory = transferred_bytes(p, t, band) / device.bandwidth;
  // Elements of positions that are not side by side are a sector of memory each.
  const double spread = family::position_stride(p) > 1 ? 16 : 1;
  const double copying = copies_x ? copying_seconds(device, (spread + 1) / 2 * number(2 * p.x_elements())) : 0;
  c.estimated_seconds =
      launch_seconds + 4e-6 + 1500 * clock + copying + std::pow(std::pow(work, 6) + std::pow(memory, 6), 1.0 / 6);
  return c;
}

}  // namespace

void gemm_scatter_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  gemm_scatter_candidates(
      Algorithm::gemm_scatter_sm90, family::configs, p, refusal(p, device),
      [&](int32_t row, bool copies_x) { return candidate_of(p, device, row, copies_x); }, out);
}

}  // namespace convt
