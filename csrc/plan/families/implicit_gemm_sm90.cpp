// Dense and grouped layers on Hopper's tensor cores. See csrc/kernels/implicit_gemm_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/implicit_gemm_sm90/tiling.h"
#include "family.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm90;
using family::Config;

std::string refusal(const Problem& p, const DeviceInfo& device) {
  const std::string reason = implicit_gemm_refusal(p);
  if (!reason.empty()) return reason;
  if (device.compute_capability != 90) return "needs sm_90";
  if (!device.hopper_code) return "was not built: the list of architectures had no 9.0a";
  if (!family::has_mode(family::mode_of(p))) return "has no float32 without TF32";
  return "";
}

void consider(const Problem& p, const DeviceInfo& device, const Config& config, const family::Tables& t, GemmTile tile,
              Choice& best) {
  if (tile.images > 1 && checked_mul(tile.images, std::abs(p.x_strides[0])) >= int64_t{1} << 30) return;
  // As many channels at a time as shared memory has room for.
  tile.channel_groups = family::most_groups;
  family::Patch patch;
  family::SharedLayout shared;
  // A third stage lets a patch arrive while the one before it is put in order; without it, two of as many channels as
  // possible.
  for (int32_t stages = family::fewest_patch_stages + 1;; tile.channel_groups /= 2) {
    if (tile.channel_groups == 0) {
      if (--stages < family::fewest_patch_stages) return;
      tile.channel_groups = family::most_groups;
    }
    if (tile.channel_groups > 1 && tile.channel_groups / 2 >= family::channel_groups_of(p)) continue;
    patch = family::make_patch(p, t, tile);
    shared = family::shared_layout(config, t, patch);
    if (shared.patch_stages >= stages &&
        shared.bytes <= std::min<int64_t>(family::shared_bytes_limit, device.shared_memory_per_block)) {
      break;
    }
  }
  if (patch.plane_bytes >= 1 << 18) return;  // what a matrix descriptor holds
  const family::Counts n = family::make_counts(p, t, tile);
  double fragments = 0;
  for (int32_t i = 0; i < t.sets; ++i) fragments += t.set[i].fragments;
  // Of the tensor cores' rate, wgmma reaches .85; operands come from shared memory at 128 bytes a clock, and a
  // multiplication of 64 rows by N positions takes N / 2 clocks.
  const double clock = 4096 * 2 * device.multiprocessors / device.fp16_flops;  // of 64 x 8 x 16 products
  const double product =
      clock * config.width / 8 / 2 / 0.85 * std::max(1.0, (2048 + 32.0 * config.width) / 128 / (config.width / 2.0));
  const double products = fragments * config.groups_n * config.pieces;
  const double element = static_cast<double>(element_size(p.dtype));
  for (int32_t splits = 1; splits <= 8; splits *= 2) {
    if (splits > n.chunks || (splits > 1 && n.blocks * splits > device.multiprocessors)) break;
    tile.splits = splits;
    const family::Workspace workspace = family::make_workspace(config, n, tile);
    const double blocks = static_cast<double>(n.blocks) * splits;
    if (blocks >= std::numeric_limits<int32_t>::max() || n.fragments >= std::numeric_limits<int32_t>::max()) return;
    const double waves = std::ceil(blocks / device.multiprocessors);
    const double groups = static_cast<double>(n.channel_groups) / splits;
    const double one = products / t.sets * groups * product;
    // A tile's sums are written while its warpgroup multiplies nothing. If warpgroups take tiles in turn, the other one
    // multiplies, and only the last tile's store is waited for.
    const double written = 64.0 * config.rows() * config.columns() * element * (splits > 1 ? 4 : 1);
    const double store = written / (0.6 * device.bandwidth / device.multiprocessors);
    const double read = patch.pixels * groups * family::channels_of_fragment(family::mode_of(p)) * element +
                        fragments / t.sets * groups * family::fragment_bytes;
    const double fill = read / (1.5 * device.bandwidth / device.multiprocessors);
    const double multiply = std::max(one, fill), both = multiply + store;
    const double work =
        config.alternate() ? waves * std::max(multiply, both / 2) + std::min(store, both / 2) : waves * both;
    const double seconds = launch_seconds + 3e-6 +
                           std::max(work, static_cast<double>(p.compulsory_bytes()) / (0.8 * device.bandwidth)) +
                           (splits > 1 ? 3e-6 : 0);
    if (seconds < best.seconds) {
      const auto grid = std::min<int64_t>(static_cast<int64_t>(blocks), device.multiprocessors);
      best = {tile, grid, shared.bytes, workspace.bytes, seconds};
    }
  }
}

}  // namespace

void implicit_gemm_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  for (int32_t row = 0; row < family::config_count; ++row) {
    const Config& config = family::configs[row];
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::implicit_gemm_sm90, config.name, reason));
      continue;
    }
    // All phases of the columns in a warpgroup, so that it writes whole lines, or as many as it has blocks for.
    family::Tables t;
    const auto cannot_hold = [&](int32_t column_phases) -> std::string {
      const std::string cannot = family::make_tables(config, p, 1, column_phases, t);
      if (!cannot.empty()) return cannot;
      for (int32_t i = 0; i < t.sets; ++i) {
        if (t.set[i].columns > config.m_blocks) return "has too few blocks for the phases";
      }
      return "";
    };
    auto column_phases = static_cast<int32_t>(p.stride_w);
    std::string cannot = cannot_hold(column_phases);
    while (!cannot.empty() && column_phases > 1) {
      column_phases = (column_phases + 1) / 2;
      cannot = cannot_hold(column_phases);
    }
    if (!cannot.empty()) {
      out.push_back(refuse(Algorithm::implicit_gemm_sm90, config.name, cannot));
      continue;
    }
    Choice best;
    const int32_t pieces = config.groups_n * config.pieces;
    for (int32_t piece_rows : {1, config.width / 8}) {
      for (int32_t columns = 1; columns <= pieces; columns *= 2) {
        for (int32_t rows = 1; rows * columns <= pieces; rows *= 2) {
          GemmTile tile;
          tile.piece_rows = piece_rows;
          tile.columns = columns * (config.width / piece_rows), tile.rows = rows * piece_rows;
          tile.images = pieces / (columns * rows);
          tile.row_phases = 1, tile.column_phases = column_phases;
          consider(p, device, config, t, tile, best);
        }
      }
    }
    if (best.grid == 0) {
      out.push_back(refuse(Algorithm::implicit_gemm_sm90, config.name, "needs more shared memory than a block has"));
      continue;
    }
    out.push_back(chosen_tile(Algorithm::implicit_gemm_sm90, config.name, row, family::threads, best));
  }
}

}  // namespace convt
