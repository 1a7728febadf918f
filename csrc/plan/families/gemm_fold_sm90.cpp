// Kernels of any size in float32 and 16-bit types on Hopper's tensor cores. See csrc/kernels/gemm_fold_sm90.
#include <algorithm>
#include <cmath>
#include <utility>

#include "../../kernels/gemm_fold_sm90/tiling.h"
#include "family.h"

namespace convt {
namespace {

namespace family = gemm_fold_sm90;

// Why no configuration of the family takes the problem; empty if all may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (const std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t limit = int64_t{1} << 30;
  const int64_t taps = checked_mul(p.kernel_h, p.kernel_w), outputs = family::outputs_of_position(p);
  for (const int64_t size : {p.batch, p.in_channels, p.out_channels, p.in_h, p.in_w, p.out_h, p.out_w, p.stride_h,
                             p.stride_w, p.padding_h, p.padding_w, p.dilation_h, p.dilation_w, outputs}) {
    if (size >= limit / family::block_rows) return "takes sizes of less than 2^24";
  }
  // Such sizes, the output's too, leave a kernel no reach of 2^30. Rows and images of a copy end at up to 8 elements.
  if (checked_mul(p.batch, checked_mul(p.in_h + 8, p.in_w + 8)) >= limit) return "takes less than 2^30 positions";
  if (!family::is_last(p) && !dense(p.out_w, p.y_strides[3], 1)) return "takes outputs of which columns are innermost";
  const Strides& w = p.w_strides;
  const bool of_channels = dense(p.kernel_w, w[3], 1) && dense(p.kernel_h, w[2], p.kernel_w) &&
                           dense(p.out_channels_per_group(), w[1], taps);
  if (!of_channels && !family::has_last_weights(p)) return "takes weights that are contiguous, or channels_last";
  if (!p.w_aligned) return "takes weights that are aligned to 16 bytes";
  if (!family::make_w_map(p, nullptr).valid()) return "takes strides of weights that are multiples of 16 bytes";
  return "";
}

// Whether the copy engine takes x as it is.
bool takes_x(const Problem& p, const family::Tiling& t) {
  const int64_t column = family::is_last(p) ? family::position_stride(p) : 1;
  return dense(p.in_w, p.x_strides[3], column) && dense(p.in_h, p.x_strides[2], checked_mul(p.in_w, column)) &&
         p.x_aligned && family::make_x_map(p, t, nullptr, false).valid();
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, bool copies, const family::Cut& cut) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const char* reason) { return refuse(Algorithm::gemm_fold_sm90, config.name, reason); };
  const bool strict = p.strict_float32();
  if (!family::compiled(config, strict, family::is_last(p)))
    return refused("has no registers for two parts of float32");
  if (family::channels_of_tile(config, p) == 0) {
    return refused(family::has_last_weights(p) ? "has fewer rows than channels_last weights have outputs of a position"
                                               : "has fewer rows than a channel has taps");
  }
  const family::Tiling t = family::make_tiling(config, p, copies, cut);
  if (t.tiles == 0) return refused("takes kernels and dilations of which a tile has all inputs of some outputs");
  if (t.tiles > std::numeric_limits<int32_t>::max() / 2)
    return refused("needs more tiles than are numbered in 32 bits");
  if (config.cooperative && t.tiles > device.multiprocessors) return refused("has more tiles than multiprocessors");
  if (copies && !family::may_copy(p)) {
    return refused("copies channels_last of groups whose channels are a multiple of 16 bytes only");
  }
  if (copies && family::copied_bytes(p, t) > most_copied_bytes) {
    return refused("takes x of at most 1 GiB where its images or channels begin anywhere");
  }
  if (!copies && !takes_x(p, t)) {
    return refused(family::is_last(p) ? "takes channels_last whose positions begin at multiples of 16 bytes"
                                      : "takes x of at most 1 GiB where its images or channels begin anywhere");
  }
  Candidate c = fitting(Algorithm::gemm_fold_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(t.tiles, device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = family::shared_bytes(config);
  family::set_cut(c.plan, cut);
  c.plan.workspace_bytes = copies ? family::copied_bytes(p, t) : 0;

  const auto number = [](auto n) { return static_cast<double>(n); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops, cores = number(device.multiprocessors);
  const double waves = std::ceil(number(t.tiles) / cores), chunks = number(t.chunks);
  // Constants are fitted to a sweep of all layers on an H200. A tile: its products, or what they are of, of which a
  // multiprocessor gets 36.8 bytes a clock from the second level of cache; then its sums, by a warp of each scheduler
  // or two, which wait for each turn's.
  const double rate = strict ? 3.3 : p.dtype == DataType::float32 ? 15.4 : 38.7;
  // By mma.sync, warps without positions have nothing to do, which helps more if a scheduler has none that does.
  const auto most_boxes = number(family::most_boxes(config, p));
  const double filled = number(t.boxes) / most_boxes;
  const double busy = config.cooperative && p.dtype == DataType::float32 ? (filled + std::ceil(2 * filled) / 2) / 2 : 1;
  const double multiply = chunks * (number(config.rows() * config.columns) * busy / rate + 330);
  const double readers = std::max(0.4, std::min(number(t.tiles) / cores, 1.0));
  const auto brought = number(family::brought_bytes(config, element_size(p.dtype), static_cast<int32_t>(t.boxes)));
  const double read = chunks * brought / 36.8 * readers;
  const double main = 1280 + std::max(multiply, read);
  const int64_t threads = config.tile_threads();
  const double rows = number(p.kernel_h * p.kernel_w * t.channels),
               turns = number(family::turns_of(t, threads, family::slices_of(t, threads))),
               taps = number(ceil_div(p.kernel_h, p.stride_h) * ceil_div(p.kernel_w, p.stride_w));
  // (Strict float32 looks for what is not finite.)
  const double turn = (490 + 87 * taps) * (strict ? 1.3 : 1);
  const double store = 1160 + rows * config.group_columns() / 7.2 + turns * turn;
  const double together = family::staged_buffers(config) > 1 ? 0 : store;  // what both warpgroups do in turn
  const double work =
      (waves > 1 ? waves * std::max({main, together, (main + store) / 2}) + store / 2 : main + store) * clock;
  const double memory = 0.94 * number(p.compulsory_bytes()) / device.bandwidth;
  const double copying = copies ? copying_seconds(device, number(family::copied_bytes(p, t))) : 0;
  constexpr double power = 1.55;
  c.estimated_seconds =
      launch_seconds + 2.55e-6 + copying + std::pow(std::pow(work, power) + std::pow(memory, power), 1 / power);
  return c;
}

}  // namespace

void gemm_fold_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  for (int32_t row = 0; row < family::config_count; ++row) {
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::gemm_fold_sm90, family::configs[row].name, reason));
      continue;
    }
    const family::Config& config = family::configs[row];
    const auto best_of = [&](bool copies, bool ahead) {
      int32_t boxes = family::most_boxes(config, p);
      Candidate best = candidate_of(p, device, row, copies, {ahead, boxes});
      // A block's only tile may have fewer positions, as long as there are multiprocessors for more tiles.
      while (config.cooperative && --boxes > 0) {
        const Candidate next = candidate_of(p, device, row, copies, {ahead, boxes});
        if (!next.fits()) break;
        best = faster(best, next);
      }
      return best;
    };
    Candidate best = best_of(false, false);
    for (const auto& [copies, ahead] : {std::pair{true, false}, {false, true}, {true, true}}) {
      best = faster(best, best_of(copies, ahead));
    }
    out.push_back(std::move(best));
  }
}

}  // namespace convt
