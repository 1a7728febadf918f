// Kernels as large as their stride, in TF32, on Hopper's tensor cores. See csrc/kernels/gemm_scatter_tf32_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_scatter_tf32_sm90/tiling.h"
#include "family.h"

namespace convt {
namespace {

namespace family = gemm_scatter_tf32_sm90;

// Why no configuration of the family takes the problem; empty if all may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32) return std::string("has no ") + name(p.dtype);
  if (p.precision == Precision::ieee) return "computes float32 in TF32";
  const auto apart = [](int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    return kernel == stride && padding == 0 && (dilation == 1 || kernel == 1) && out == checked_mul(in, stride);
  };
  if (!apart(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h) ||
      !apart(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w)) {
    return "takes kernels as large as their stride, of whose outputs nothing is cut or padded";
  }
  if (device.compute_capability != 90) return "needs sm_90";
  if (!device.hopper_code) return "was not built: the list of architectures had no 9.0a";
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t limit = int64_t{1} << 30;
  const int64_t outputs = family::outputs_of_position(p);
  for (const int64_t size : {p.batch, p.in_channels, p.out_channels, p.out_h, p.out_w, outputs}) {
    if (size >= limit) return "takes sizes of less than 2^30";
  }
  const int64_t positions = checked_mul(p.in_h, p.in_w);
  if (checked_mul(p.batch, ceil_div<int64_t>(positions, family::segment_rows)) >= limit || positions >= limit) {
    return "takes less than 2^30 positions";
  }
  // Positions of an image at equal distances: by one stride alone.
  const Strides& x = p.x_strides;
  if (!dense(p.in_h, x[2], checked_mul(p.in_w, p.in_w > 1 ? x[3] : x[2])))
    return "takes images whose rows follow each other";
  if (family::is_channels_last(p)) {
    if (p.groups > 1) return "takes one group in channels_last";
    if (!p.x_aligned || !dense(p.in_channels, x[1], 1)) return "takes x in channels_last, aligned to 16 bytes, if y is";
    if (!family::make_channels_last_x_map(p, nullptr).valid()) {
      return "takes strides of x in channels_last that are multiples of 16 bytes";
    }
    if (!dense(p.kernel_w, p.y_strides[3], p.out_channels)) {
      return "takes outputs in channels_last whose columns follow each other";
    }
    if (family::row_outputs(p) % 4 != 0) return "takes multiples of 4 outputs in a row, of a position in channels_last";
    return "";
  }
  if (!dense(p.out_w, p.y_strides[3], 1)) return "takes outputs of which columns or channels are innermost";
  if (p.kernel_w > 2 && p.kernel_w % 4 != 0) return "takes 1 or 2 columns of a kernel, or a multiple of 4";
  return "";
}

// Whether the copy engine takes x as it is, and whether x may be copied to where it does.
bool takes_x(const Problem& p) {
  const bool innermost = p.in_w > 1 ? p.x_strides[3] == 1 : p.in_h == 1 || p.x_strides[2] == 1;
  return family::is_channels_last(p) || (innermost && p.x_aligned && family::make_x_map(p, nullptr, false).valid());
}
bool may_copy_x(const Problem& p) {
  const int64_t blocks = ceil_div<int64_t>(family::copied_row(p), family::copied_positions);
  return !family::is_channels_last(p) && family::copied_row(p) < int64_t{1} << 30 &&
         family::copied_bytes(p) <= most_copied_bytes && checked_mul(blocks, p.in_channels) < int64_t{1} << 30;
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
  const double work = clock * (config.alternate && waves > 1 ? waves * std::max(main, (main + store) / 2) + store / 2
                                                             : waves * (main + store));
  const double memory = 1.25 * number(p.compulsory_bytes()) / device.bandwidth;
  // Elements of positions that are not side by side are a sector of memory each.
  const double spread = (p.in_w > 1 ? p.x_strides[3] : p.x_strides[2]) > 1 ? 8 : 1;
  const double copying = copies_x ? 1.2e-6 + (spread + 1) * number(4 * p.x_elements()) / (0.6 * device.bandwidth) : 0;
  const double packing = 3.4e-6 + number(2 * family::packed_bytes(p, t)) / (1.17 * device.bandwidth);
  c.estimated_seconds =
      launch_seconds + packing + copying + std::pow(std::pow(work, 2.8) + std::pow(memory, 2.8), 1 / 2.8);
  return c;
}

}  // namespace

void gemm_scatter_tf32_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  std::string reason = refusal(p, device);
  const bool as_it_is = reason.empty() && takes_x(p), copied = reason.empty() && may_copy_x(p);
  if (reason.empty() && !as_it_is && !copied) reason = "takes x of at most 1 GiB where its rows begin anywhere";
  for (int32_t row = 0; row < family::config_count; ++row) {
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::gemm_scatter_tf32_sm90, family::configs[row].name, reason));
      continue;
    }
    Candidate best = candidate_of(p, device, row, !as_it_is);
    if (as_it_is && copied) {
      // Images that do not fill their segments of positions do so if they follow each other.
      const Candidate other = candidate_of(p, device, row, true);
      if (other.fits() && (!best.fits() || other.estimated_seconds < best.estimated_seconds)) best = other;
    }
    out.push_back(best);
  }
}

}  // namespace convt
