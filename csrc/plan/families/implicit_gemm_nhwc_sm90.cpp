// Implicit GEMM for channels_last with few outputs of a position on Hopper's tensor cores. See
// csrc/kernels/implicit_gemm_nhwc_sm90.
#include <algorithm>
#include <cmath>
#include <optional>

#include "../../kernels/implicit_gemm_nhwc_sm90/params.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_nhwc_sm90;

// Whether the copy engine takes x as it is.
bool takes_x(const Problem& p) {
  family::Tiling any;
  any.patch_rows = any.patch_columns = 1, any.chunk_bytes = family::most_chunk_bytes;
  return p.x_aligned && family::make_x_map(p, any, nullptr, false).valid();
}

// Why no configuration of the family takes the problem; empty if some may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  if (const std::string reason = implicit_gemm_refusal(p); !reason.empty()) return reason;
  if (!family::has_mode(family::mode_of(p))) return "computes float32 in TF32";
  if (std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  if (p.out_channels > 1 && p.y_strides[1] != 1) return "takes outputs whose channels are innermost";
  if (p.in_channels > 1 && p.x_strides[1] != 1) return "takes x whose channels are innermost";
  if (!takes_x(p) && !family::may_copy_x(p)) {
    return "takes x of less than 1 GiB, of one group or dense, where positions begin anywhere";
  }
  return "";
}

// With so many blocks side by side, and so many blocks of threads of a multiprocessor; a reason if it cannot be.
Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, const family::Tables& t,
                       int32_t block_rows, int32_t side_by_side, int32_t residents) {
  const family::Config& config = family::configs[row];
  const auto refused = [&](const char* reason) {
    return refuse(Algorithm::implicit_gemm_nhwc_sm90, config.name, reason);
  };
  const family::Tiling n = family::make_tiling(config, p, t, block_rows, side_by_side, residents);
  if (n.patch_stages == 0) return refused("has no room for two patches of x and the weights of two steps");
  constexpr int64_t limit = int64_t{1} << 30;
  if (n.tiles >= limit) return refused("takes less than 2^30 tiles");
  const int64_t packed = family::packed_bytes(config, p, t, n);
  if (packed >= limit) return refused("takes less than 1 GiB of packed weights");
  Candidate c = fitting(Algorithm::implicit_gemm_nhwc_sm90, config.name, row);
  c.plan.grid = std::min<int64_t>(n.tiles, residents * device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = n.shared_bytes();
  const int64_t copied = takes_x(p) ? 0 : family::copied_bytes(p);
  c.plan.workspace_bytes = packed + copied;
  c.plan.cut[0] = residents;
  GemmTile& tile = c.plan.tile;
  tile.piece_rows = block_rows, tile.images = 1, tile.rows = n.tile_rows, tile.columns = n.tile_columns;
  tile.row_phases = static_cast<int32_t>(p.stride_h), tile.column_phases = static_cast<int32_t>(p.stride_w);
  tile.channel_groups = n.chunk_bytes / family::k_bytes, tile.patch_stages = n.patch_stages;

  const int64_t channels = family::channels_of_tile(config, p);
  const auto number = [](auto v) { return static_cast<double>(v); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops;
  const double waves = std::ceil(number(n.tiles) / number(residents * device.multiprocessors));
  const double channels_of_product = 32 / number(element_size(p.dtype));
  const double products =
      std::ceil(number(p.in_channels_per_group()) / channels_of_product) * number(t.taps()) * number(config.blocks);
  // A product reads 2 KB of x and its weights, 128 bytes a clock. The constants are fitted to sweeps of all layers on
  // an H200. Blocks of threads of a multiprocessor hide what each waits for, but not what they write.
  const double multiply = 0.83 * products * std::max(number(config.columns) / 2, 17 + number(config.columns) / 4);
  const double read = number(n.chunks) *
                      (number(n.patch_bytes) + (n.resident ? 0 : t.taps() * family::tap_bytes(config, n.chunk_bytes)));
  const double accumulators = number(config.blocks * config.columns) / 2;
  const double alone = 38.5 * accumulators + number(n.chunks) * (94 + 77 * t.taps()) + 1.1 * multiply;
  const double there = number(channels * family::phases_of(p)) / config.columns;  // of the columns
  const int32_t together = family::written_together(config, p, nullptr);
  const double stores = family::warps * config.blocks * config.columns / 4.0 * there * (together > 1 ? 1 : 2);
  const double of_store = together == 8 ? 2.9 : together == 2 ? 6.2 : 20;
  const double of_tile = std::max(alone / residents, multiply) + read / 96 + of_store * stores;
  const double work = clock * of_tile * residents * waves;
  // A tile that has some of the channels shares sectors with others, and with those of other groups, which are of
  // another time, lines.
  constexpr double sector_bytes = 32, line_bytes = 128;
  const double written = number(channels) * number(element_size(p.dtype));
  const auto shared = [&](double bytes) { return std::max(bytes / written - 1, 0.0); };
  const double again =
      (channels < p.out_channels ? 1.29 * shared(sector_bytes) : 0) + (p.groups > 1 ? 0.3 * shared(line_bytes) : 0);
  const double memory =
      (0.825 * number(p.compulsory_bytes()) + again * number(p.y_elements() * element_size(p.dtype))) /
      device.bandwidth;
  c.estimated_seconds = launch_seconds + 5.15e-6 + packing_seconds(p, device, packed) +
                        (copied > 0 ? copying_seconds(device, number(copied)) : 0) +
                        std::pow(std::pow(work, 1.37) + std::pow(memory, 1.37), 1 / 1.37);
  return c;
}

}  // namespace

void implicit_gemm_nhwc_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  std::string reason = refusal(p, device);
  family::Tables t;
  if (reason.empty()) reason = text(family::make_tables(p, t));
  for (int32_t row = 0; row < family::config_count; ++row) {
    const family::Config& config = family::configs[row];
    const std::string why = !reason.empty()                            ? reason
                            : family::channels_of_tile(config, p) == 0 ? "has fewer columns than there are phases"
                                                                       : "";
    if (!why.empty()) {
      out.push_back(refuse(Algorithm::implicit_gemm_nhwc_sm90, config.name, why));
      continue;
    }
    std::optional<Candidate> best;
    for (const int32_t block_rows : {8, 1}) {
      for (int32_t side_by_side = config.blocks; side_by_side > 0; side_by_side /= 2) {
        for (int32_t residents = config.residents; residents > 0; --residents) {
          const Candidate other = candidate_of(p, device, row, t, block_rows, side_by_side, residents);
          best = best ? faster(*best, other) : other;
        }
      }
    }
    out.push_back(*best);
  }
}

}  // namespace convt
