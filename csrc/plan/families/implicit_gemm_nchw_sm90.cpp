// Implicit GEMM for NCHW on Hopper's tensor cores, x from registers. See csrc/kernels/implicit_gemm_nchw_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/implicit_gemm_nchw_sm90/tiling.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_nchw_sm90;

// Why no configuration of the family takes the problem; empty if some may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (const std::string reason = implicit_gemm_refusal(p); !reason.empty()) return reason;
  if (!family::has_mode(family::mode_of(p))) return "computes float32 in TF32";
  if (device.compute_capability != 90) return "needs sm_90";
  if (!device.hopper_code) return "was not built: the list of architectures had no 9.0a";
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

// With strips of so many side by side; a reason if it cannot be.
Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, const family::Tables& t,
                       int32_t strips) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const char* reason) {
    return refuse(Algorithm::implicit_gemm_nchw_sm90, config.name, reason);
  };
  const family::Tiling n = family::make_tiling(config, p, t, strips);
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
  tile.row_phases = 1, tile.column_phases = config.phases;
  tile.channel_groups = family::halves, tile.patch_stages = n.patch_stages;

  const auto number = [](auto v) { return static_cast<double>(v); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops, cores = number(config.blocks * device.multiprocessors);
  // A set's tile: its products, the reads of shared memory, or what comes from the second level of cache; then its
  // outputs, from registers.
  const double product = config.channels / 2.0;  // clocks of a wgmma
  double clocks = 0;
  for (int32_t i = 0; i < t.sets; ++i) {
    const family::Set& set = t.set[i];
    double chunk = 0;
    for (int32_t s = set.first_step; s < set.first_step + set.steps; ++s) {
      const double taps = t.step[s].taps, products = 4 * config.rows * taps;
      const double loads = 4 * (config.rows + taps - 1) * 24, reads = products * product / 2;
      chunk += 120 + std::max(products * product, loads + reads);
    }
    const double read = (n.patch_bytes + set.taps * family::tap_bytes(config)) / 35.0;
    clocks += 1500 + number(n.chunks) * std::max(chunk, set.steps == 0 ? 0 : read) + 40.0 * config.accumulators();
  }
  const double waves = std::ceil(number(n.tiles) / cores);
  const double work = clock * clocks / t.sets * waves;
  const double parts = sectors_of_parts(p, n.tile_columns * static_cast<int32_t>(p.stride_w));
  const double memory = 1.2 * number(p.compulsory_bytes()) * parts / device.bandwidth;
  const double copying = copies_x ? 1.2e-6 + 2.5 * number(family::copied_bytes(p)) / (0.6 * device.bandwidth) : 0;
  c.estimated_seconds = launch_seconds + 2e-6 + packing_seconds(p, device, packed) + copying +
                        std::pow(std::pow(work, 2.8) + std::pow(memory, 2.8), 1 / 2.8);
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
    if (const std::string why = family::make_tables(family::configs[row], p, t); !why.empty()) {
      refused(why);
      continue;
    }
    Candidate best = candidate_of(p, device, row, t, family::warps);
    for (int32_t strips = family::warps / 2; strips > 0; strips /= 2) {
      const Candidate other = candidate_of(p, device, row, t, strips);
      if (other.fits() && (!best.fits() || other.estimated_seconds < best.estimated_seconds)) best = other;
    }
    out.push_back(best);
  }
}

}  // namespace convt
