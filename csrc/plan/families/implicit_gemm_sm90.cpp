// Dense and grouped layers on Hopper's tensor cores. See csrc/kernels/implicit_gemm_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/implicit_gemm_sm90/tiling.h"
#include "family.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm90;
using family::Config;

std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  if (device.compute_capability != 90) return "needs sm_90";
  if (!family::has_mode(family::mode_of(p))) return "has no float32 without TF32";
  if (p.kernel_h > family::most_taps || p.kernel_w > family::most_taps || p.kernel_h * p.kernel_w > family::most_taps) {
    return "takes kernels of at most " + std::to_string(family::most_taps) + " taps";
  }
  if (p.stride_h > family::most_stride || p.stride_w > family::most_stride) {
    return "takes strides of at most " + std::to_string(family::most_stride);
  }
  // Inside an image of one channel, offsets are computed in 32 bits, tiles that reach beyond its end included; so are
  // the numbers of channels and blocks.
  constexpr int64_t limit = int64_t{1} << 30;
  const auto reach = [](int64_t rows, int64_t columns, const Strides& s) {
    return checked_add(checked_mul(rows, std::abs(s[2])), checked_mul(columns, std::abs(s[3])));
  };
  for (int64_t size : {reach(p.in_h, p.in_w, p.x_strides), p.padding_h, p.padding_w, p.dilation_h * p.kernel_h,
                       p.dilation_w * p.kernel_w, p.out_h, p.out_w, p.batch, p.in_channels, p.out_channels}) {
    if (size >= limit) return "takes sizes and images of less than 2^30";
  }
  return "";
}

struct Choice {
  GemmTile tile;
  int64_t grid = 0, shared_bytes = 0, workspace_bytes = 0;
  double seconds = INFINITY;
};

void consider(const Problem& p, const DeviceInfo& device, const Config& config, const family::Tables& t, GemmTile tile,
              Choice& best) {
  if (tile.images > 1 && checked_mul(tile.images, std::abs(p.x_strides[0])) >= int64_t{1} << 30) return;
  // As many channels at a time as shared memory has room for.
  tile.channel_groups = family::most_groups;
  family::Patch patch;
  family::SharedLayout shared;
  for (;; tile.channel_groups /= 2) {
    if (tile.channel_groups == 0) return;
    if (tile.channel_groups > 1 && tile.channel_groups / 2 >= family::channel_groups_of(p)) continue;
    patch = family::make_patch(p, t, tile);
    shared = family::shared_layout(config, t, patch);
    if (shared.bytes <= std::min<int64_t>(family::shared_bytes_limit, device.shared_memory_per_block)) break;
  }
  if (patch.plane_bytes >= 1 << 18) return;  // what a matrix descriptor holds
  const family::Counts n = family::make_counts(p, t, tile);
  double fragments = 0, steps = 0;
  for (int32_t i = 0; i < t.sets; ++i) fragments += t.set[i].fragments, steps += t.set[i].steps;
  // Of the tensor cores' rate, wgmma reaches .85; operands come from shared memory at 128 bytes a clock, and a
  // multiplication of 64 rows by N positions takes N / 2 clocks.
  const double clock = 4096 * 2 * device.multiprocessors / device.fp16_flops;  // of 64 x 8 x 16 products
  const double product =
      clock * config.width / 8 / 2 / 0.85 * std::max(1.0, (2048 + 32.0 * config.width) / 128 / (config.width / 2.0));
  const double products = fragments * config.groups_n * config.pieces;
  const double tiles = static_cast<double>(n.blocks) / t.sets;  // of one set
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
    // A tile's sums are written while its warpgroup multiplies nothing.
    const double written = 64.0 * config.rows() * config.columns() * element * (splits > 1 ? 4 : 1);
    const double store = written / (0.6 * device.bandwidth / device.multiprocessors);
    const double read = patch.pixels * groups * family::channels_of_fragment(family::mode_of(p)) * element +
                        fragments / t.sets * groups * family::fragment_bytes;
    const double fill = read / (1.5 * device.bandwidth / device.multiprocessors);
    const double seconds = launch_seconds + 3e-6 + waves * (std::max(one, fill) + store) +
                           std::max(0.0, static_cast<double>(p.compulsory_bytes()) / (0.8 * device.bandwidth) -
                                             waves * (std::max(one, fill) + store)) +
                           (splits > 1 ? 3e-6 : 0);
    if (seconds < best.seconds) {
      const auto grid = std::min<int64_t>(static_cast<int64_t>(blocks), device.multiprocessors);
      best = {tile, grid, shared.bytes, workspace.bytes, seconds};
    }
  }
  (void)tiles, (void)steps;
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
    Candidate c = fitting(Algorithm::implicit_gemm_sm90, config.name, row);
    c.unproven = true;
    c.plan.grid = best.grid;
    c.plan.block = family::threads;
    c.plan.tile = best.tile;
    c.plan.shared_bytes = best.shared_bytes;
    c.plan.workspace_bytes = best.workspace_bytes;
    c.estimated_seconds = best.seconds;
    out.push_back(c);
  }
}

}  // namespace convt
