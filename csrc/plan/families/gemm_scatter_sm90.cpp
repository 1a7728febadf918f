// Kernels as large as their stride in 16-bit types, on Hopper's tensor cores. See csrc/kernels/gemm_scatter_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_scatter_sm90/tiling.h"
#include "family.h"

namespace convt {
namespace {

namespace family = gemm_scatter_sm90;

// Why no configuration of the family takes the problem; empty if all may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) return std::string("has no ") + name(p.dtype);
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
  if (checked_mul(p.batch, ceil_div<int64_t>(positions, family::block_side)) >= limit || positions >= limit) {
    return "takes less than 2^30 positions";
  }
  const bool last = family::is_channels_last(p);
  // Positions of an image at equal distances: by one stride alone.
  const Strides& x = p.x_strides;
  if (!dense(p.in_h, x[2], checked_mul(p.in_w, p.in_w > 1 ? x[3] : x[2])))
    return "takes images whose rows follow each other";
  if (last) {
    if (p.groups > 1) return "takes one group in channels_last";
    if (!p.x_aligned || !dense(p.in_channels, x[1], 1)) return "takes x in channels_last, aligned to 16 bytes, if y is";
    if (!dense(p.kernel_w, p.y_strides[3], p.out_channels) || p.kernel_h * p.kernel_w * p.out_channels != outputs) {
      return "takes outputs in channels_last whose columns follow each other";
    }
  } else {
    if (!dense(p.out_w, p.y_strides[3], 1)) return "takes outputs of which columns or channels are innermost";
    if (p.kernel_w > family::most_kernel_w || family::most_kernel_w % p.kernel_w != 0) {
      return "takes 1, 2, 4, 8, 16, 32 or 64 columns of a kernel";
    }
  }
  // The weights of an input channel, in the order in which y has its outputs.
  const Strides& w = p.w_strides;
  const int64_t channels = p.out_channels_per_group(), taps_w = p.kernel_w;
  const bool in_order =
      last ? dense(channels, w[1], 1) && dense(taps_w, w[3], channels) && dense(p.kernel_h, w[2], taps_w * channels)
           : dense(taps_w, w[3], 1) && dense(p.kernel_h, w[2], taps_w) && dense(channels, w[1], p.kernel_h * taps_w);
  if (!in_order) return "takes weights in the layout of y";
  if (!p.w_aligned) return "takes weights that are aligned to 16 bytes";
  if (!family::make_w_map(p, nullptr).valid() || (last && !family::make_channels_last_x_map(p, nullptr).valid())) {
    return "takes strides of weights, and of x in channels_last, that are multiples of 16 bytes";
  }
  return "";
}

// Whether the copy engine takes x as it is, and whether x may be copied to where it does.
bool takes_x(const Problem& p) {
  const bool innermost = p.in_w > 1 ? p.x_strides[3] == 1 : p.in_h == 1 || p.x_strides[2] == 1;
  return family::is_channels_last(p) || (innermost && p.x_aligned && family::make_x_map(p, nullptr, false).valid());
}
bool may_copy_x(const Problem& p) {
  const int64_t blocks = ceil_div<int64_t>(family::copied_row(p), family::align_positions);
  return !family::is_channels_last(p) && family::copied_row(p) < int64_t{1} << 30 &&
         family::copied_bytes(p) <= most_copied_bytes && checked_mul(blocks, p.in_channels) < int64_t{1} << 30;
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
                           (family::writes_whole_rows(p) ? 1.4 : 1);
  const double store = (1100 + number(config.group_rows() * config.columns) * of_output) * clock;
  const double work =
      config.alternate && waves > 1 ? waves * std::max(main, (main + store) / 2) + store / 2 : waves * (main + store);
  const double memory = number(p.compulsory_bytes()) / device.bandwidth;
  // Elements of positions that are not side by side are a sector of memory each.
  const double spread = (p.in_w > 1 ? p.x_strides[3] : p.x_strides[2]) > 1 ? 16 : 1;
  const double copying = copies_x ? 2e-6 + (spread + 1) * number(2 * p.x_elements()) / (0.7 * device.bandwidth) : 0;
  c.estimated_seconds =
      launch_seconds + 4e-6 + 1500 * clock + copying + std::pow(std::pow(work, 6) + std::pow(memory, 6), 1.0 / 6);
  return c;
}

}  // namespace

void gemm_scatter_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  std::string reason = refusal(p, device);
  const bool as_it_is = reason.empty() && takes_x(p), aligned = reason.empty() && may_copy_x(p);
  if (reason.empty() && !as_it_is && !aligned) reason = "takes x of at most 1 GiB where its rows begin anywhere";
  for (int32_t row = 0; row < family::config_count; ++row) {
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::gemm_scatter_sm90, family::configs[row].name, reason));
      continue;
    }
    Candidate best = candidate_of(p, device, row, !as_it_is);
    if (as_it_is && aligned) {
      // Images that do not fill their segments of positions do so if they follow each other.
      const Candidate other = candidate_of(p, device, row, true);
      if (other.fits() && other.estimated_seconds < best.estimated_seconds) best = other;
    }
    out.push_back(best);
  }
}

}  // namespace convt
