// Implicit GEMM for NCHW on Hopper's tensor cores, x from registers. See csrc/kernels/implicit_gemm_nchw_sm90.
#include <algorithm>
#include <cmath>
#include <optional>

#include "../../kernels/implicit_gemm_nchw_sm90/params.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_nchw_sm90;

// Why no configuration of the family takes the problem; empty if some may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (const std::string reason = implicit_gemm_refusal(p); !reason.empty()) return reason;
  if (!family::has_mode(family::mode_of(p))) return "computes float32 in TF32";
  if (std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  if (!dense(p.out_w, p.y_strides[3], 1)) return "takes outputs whose columns are innermost";
  return "";
}

// Whether the copy engine takes x as it is, and whether x may be copied to where it does.
bool takes_x(const Problem& p, const family::Tiling& n) {
  return dense(p.in_w, p.x_strides[3], 1) && p.x_aligned && family::make_x_map(p, n, nullptr, false).valid();
}
bool may_copy_x(const Problem& p) {
  return family::copied_bytes(p) <= most_copied_bytes && family::copied_bytes(p) < int64_t{1} << 30;
}

// Clocks of a multiprocessor for a tile, in the mean over the sets of phases, of so many outputs of a channel.
// Constants are fitted to sweeps of all layers on an H200 and of 117 on an H100.
double clocks_of_tile(const family::Config& config, const Problem& p, const family::Tables& t, const family::Tiling& n,
                      bool staged) {
  const auto number = [](auto v) { return static_cast<double>(v); };
  const double channels = number(config.channels), rows = number(config.rows), chunks = number(n.chunks);
  // The products, what shared memory is read for them, what comes from the second level of cache, and what a step takes
  // beside: waiting for its weights and for its fragments.
  double products = 0, shared = 0, read = 0, steps = 0;
  for (int32_t i = 0; i < t.sets; ++i) {
    const family::Set& set = t.set[i];
    if (set.steps == 0) continue;
    for (int32_t s = set.first_step; s < set.first_step + set.steps; ++s) {
      const double taps = number(t.step[s].taps), wgmmas = n.halves * rows * taps;
      // Fragments of positions that begin at an odd column are loaded element by element, or twice.
      const double words = (t.step[s].column - set.column) % 2 != 0 ? 8 : 4;
      products += wgmmas * channels / 2;
      shared += family::warps * n.halves * (rows + taps - 1) * words + wgmmas * channels / 4;
    }
    shared += number(n.patch_bytes) / 128,
        read += number(n.patch_bytes + set.taps * family::tap_bytes(config, n.halves));
    steps += number(set.steps);
  }
  const double sets = number(t.sets);
  const double main = std::pow(std::pow(std::max(0.79 * products, 1.09 * shared), 4) + std::pow(read / 33, 4), 0.25);
  // Stores: to memory, where each touches so many sectors; or to shared memory, from where rows go as whole lines.
  const int32_t values = family::outputs_side_by_side(config, p),
                vector = std::min(values, family::vector_of(config, p, nullptr, staged));
  const int64_t of_tile = family::channels_of_tile(config, p), phases = family::column_phases(config, p);
  const double there =
      number(std::min(p.out_channels_per_group(), of_tile) * family::merged_phases(config, p)) / channels;
  const double stores = family::warps * number(config.accumulators()) * there / vector;
  // Of 16 bits, two positions are packed, and brought into order.
  const bool half = element_size(p.dtype) == 2;
  double of_store = half ? 18 : 12;
  if (!staged) {
    const double run = 16 * number(phases * element_size(p.dtype));  // of the lanes of a channel, bytes
    const bool whole = vector == values && family::whole_sectors(p);
    of_store = 0.1 * (phases != p.stride_w ? 32 : 4 * (std::ceil(run / 32) + (whole ? 0 : 1)));
  }
  // Merged phases that are odd in number are written one by one, in sectors that other lanes and stores have too.
  if (config.subpixel && values == 1) of_store *= half ? 9 : 7;
  return (half ? 1660 : 1160) + chunks / sets * (main + (half ? 140 : 50) * steps) + of_store * stores;
}

// With strips of so many side by side, written from registers or through shared memory; a reason if it cannot be.
Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, const family::Tables& t, int32_t strips,
                       bool staged) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const char* reason) {
    return refuse(Algorithm::implicit_gemm_nchw_sm90, config.name, reason);
  };
  const family::Tiling n = family::make_tiling(config, p, t, strips, staged);
  if (n.patch_stages == 0) return refused("has no room for two patches of x and the weights of two steps");
  constexpr int64_t limit = int64_t{1} << 30;
  if (n.tiles >= limit) return refused("takes less than 2^30 tiles");
  const int64_t packed = family::packed_bytes(config, p, t, n);
  if (packed >= limit) return refused("takes less than 1 GiB of packed weights");
  const bool copies_x = !takes_x(p, n);
  if (copies_x && !may_copy_x(p)) return refused("takes x of less than 1 GiB where its rows begin anywhere");

  Candidate c = fitting(Algorithm::implicit_gemm_nchw_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(n.tiles, config.blocks * device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = n.shared_bytes();
  c.plan.workspace_bytes = packed + (copies_x ? family::copied_bytes(p) : 0);
  GemmTile& tile = c.plan.tile;
  tile.images = 1, tile.rows = n.tile_rows, tile.columns = n.tile_columns;
  const int64_t phases = family::column_phases(config, p);
  tile.row_phases = config.subpixel ? static_cast<int32_t>(p.stride_h) : 1;
  tile.column_phases = static_cast<int32_t>(phases);
  tile.channel_groups = n.halves, tile.patch_stages = n.patch_stages, tile.rows_staged = staged;

  const auto number = [](auto v) { return static_cast<double>(v); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops;
  const double waves = std::ceil(number(n.tiles) / number(config.blocks * device.multiprocessors));
  const double work = clock * clocks_of_tile(config, p, t, n, staged) * config.blocks * waves;
  // Of phases that are apart, and of sectors that tiles or stores share, memory is written several times; more if rows
  // begin anywhere.
  const double element = number(element_size(p.dtype)), y_bytes = number(p.y_elements()) * element;
  const bool anywhere = !family::whole_sectors(p);
  double again = (anywhere ? 6.2 : 4.7) * family::sector_bytes / (number(n.tile_columns * p.stride_w) * element);
  if (phases != p.stride_w) {
    again += (anywhere ? 6.5 : 3.1) * std::pow(number(p.stride_w) / number(phases) - 1, 0.9);
  } else if (anywhere && !staged) {
    const int32_t side_by_side = family::outputs_side_by_side(config, p);
    const double stores = number(side_by_side) / family::vector_of(config, p, nullptr, false);  // of a lane
    again += 3 / (number(phases) * element) * (1 + 3.8 * (stores - 1));
  }
  const double memory = (0.9 * number(p.compulsory_bytes()) + again * y_bytes) / device.bandwidth;
  const double copying = copies_x ? copying_seconds(device, number(family::copied_bytes(p))) : 0;
  c.estimated_seconds = launch_seconds + 4.7e-6 + 1.8 * packing_seconds(p, device, packed) + copying +
                        std::pow(std::pow(work, 1.8) + std::pow(memory, 1.8), 1 / 1.8);
  return c;
}

}  // namespace

void implicit_gemm_nchw_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  for (int32_t row = 0; row < family::config_count; ++row) {
    const auto refused = [&](const std::string& why) {
      out.push_back(refuse(Algorithm::implicit_gemm_nchw_sm90, family::configs[row].name, why));
    };
    if (!reason.empty()) {
      refused(reason);
      continue;
    }
    family::Tables t;
    if (const std::string why = text(family::make_tables(family::configs[row], p, t)); !why.empty()) {
      refused(why);
      continue;
    }
    const family::Config& config = family::configs[row];
    // Of several phases, outputs of a lane that are written one by one are too far apart.
    const bool may_stage = family::may_stage(config, p);
    const bool from_registers = !may_stage || family::vector_of(config, p, nullptr, false) > 1;
    std::optional<Candidate> best;
    for (int32_t strips = family::warps; strips > 0; strips /= 2) {
      for (const bool staged : {false, true}) {
        if (staged ? !may_stage : !from_registers) continue;
        const Candidate other = candidate_of(p, device, row, t, strips, staged);
        best = best ? faster(*best, other) : other;
      }
    }
    out.push_back(*best);
  }
}

}  // namespace convt
