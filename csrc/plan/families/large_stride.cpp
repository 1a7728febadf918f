// Large strides with few input pixels. See csrc/kernels/large_stride.
#include <algorithm>
#include <cmath>

#include "../../kernels/large_stride/tiling.h"
#include "large_strides.h"

namespace convt {
namespace {

// Why no configuration of the large-stride family takes the problem; empty if one may.
std::string large_stride_refusal(const Problem& p, const DeviceInfo& device) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (device.compute_capability < 80) return "needs the tensor cores of sm_80";
  return large_strides_refusal(p);
}

// A way to cut a problem into tiles, and what it may cost.
struct Cut {
  int32_t splits = 1;
  double seconds = 0;
};

// How many taps of an axis a tile reads in the mean, if it has outputs of `phases` neighbouring phases: only where a
// phase has one, and none where a kernel is shorter than its stride.
double mean_taps(int64_t kernel, int64_t stride, int64_t phases) {
  const int64_t last = kernel % stride;  // phases that have one more
  const double meets = last == 0 ? 0 : static_cast<double>(last + phases - 1) / static_cast<double>(stride);
  return static_cast<double>(kernel / stride) + std::min(1.0, meets);
}

Cut best_cut(const Problem& p, const DeviceInfo& device, const large_stride::TileTiling& t,
             const large_stride::Config& config, bool strict) {
  const int32_t tile_columns = config.tile_columns;
  const auto phases_of = [&](int64_t stride, int64_t columns) {
    return std::min(stride, ceil_div<int64_t>(tile_columns, columns));
  };
  const int64_t phases_w = t.channels_innermost ? phases_of(p.stride_w, t.inner) : p.stride_w;
  const double chunks = mean_taps(p.kernel_h, p.stride_h, phases_of(p.stride_h, t.row_columns)) *
                        mean_taps(p.kernel_w, p.stride_w, phases_w) * static_cast<double>(t.chunks);
  // Of a chunk of a tile on a multiprocessor, at 1.7 GHz: 8 words of 64 positions and 8 columns, or the time from
  // memory to shared memory, which other blocks hide. Measured.
  const bool half = p.dtype != DataType::float32, last = p.x_strides[1] == 1;
  const int64_t vector = 16 / element_size(p.dtype);
  const bool large = config.tile_positions > 64, small = tile_columns == 64;
  const bool whole = p.in_channels_per_group() % vector == 0;  // else channels of a pixel are loaded one by one
  const double of_pixels = whole ? (half ? 12.5 : strict ? 40 : 12.6) : (half ? 19 : strict ? 40 : 14.4);
  const double wider = large ? (last && !whole ? 1.1 : 1.35) : small && strict ? 1.15 : 1;
  const double of_step = (last ? of_pixels : half ? 13 : strict ? 39 : 5.5) * wider;
  const double latency = small && half ? 0.8e-6 : large || small ? 1.2e-6 : 1.6e-6;
  // Outputs whose channels are innermost are stored by fours, or one by one.
  const int64_t channels = p.out_channels_per_group();
  const double store = t.channels_innermost && channels > 1 && channels % 4 != 0 ? 4.1e-6 : 1.4e-6;
  const double steps = std::min<double>(config.chunk_words / large_stride::step_words,
                                        std::ceil(static_cast<double>(t.words) / large_stride::step_words));
  const double product = steps * tile_columns / 8 * config.tile_positions / 64 * of_step / 1.7e9;
  // Of a block, before and after.
  const double area = config.tile_positions * tile_columns / 8192.0;
  const double resident = large_stride::tile_resident_blocks(tile_columns, element_size(p.dtype)),
               multiprocessors = device.multiprocessors;
  Cut best;
  for (int32_t splits = 1; splits == 1 || (splits <= 16 && 2 * splits <= chunks); splits *= 2) {
    const double blocks = static_cast<double>(t.tiles) * splits,
                 each = splits > 1 ? std::ceil(chunks / splits) : chunks;
    const double of_one = std::min(resident, std::ceil(blocks / multiprocessors));
    // Blocks of the last wave have the multiprocessor for themselves.
    const double fraction = std::max(1.0, blocks / (multiprocessors * of_one));
    const double waves = fraction + 0.65 * (std::ceil(fraction) - fraction);
    const double busy = waves * (each * std::max(of_one * product, latency) + 1.9e-6 + store * of_one * area);
    const double bytes = static_cast<double>(p.compulsory_bytes());
    double seconds = launch_seconds + std::max(bytes / device.bandwidth / 0.8, busy);
    if (splits > 1) {
      // Zeros for the counters, and the partial sums, which the second level of cache holds.
      seconds += 6.3e-6 + 8.0 * blocks * config.tile_positions * tile_columns / 3.6e12;
    }
    if (splits == 1 || seconds < 0.95 * best.seconds) best = {splits, seconds};
  }
  return best;
}

// Why a tiled configuration does not take the problem, or its plan in `c`.
std::string tiled_candidate(const Problem& p, const DeviceInfo& device, const large_stride::Config& config,
                            Candidate& c) {
  constexpr int64_t limit = int64_t{1} << 30;
  const int64_t phases = p.stride_h * p.stride_w, taps = checked_mul(p.kernel_h, p.kernel_w);
  if (phases < 8 && taps <= 128) {
    return "takes strides of 8 phases or kernels of more than 128 taps, not " + std::to_string(phases) + " and " +
           std::to_string(taps);
  }
  const large_stride::TileTiling t = large_stride::choose_tiles(p, config);
  if (t.positions >= limit || t.columns >= limit) return "takes less than 2^30 positions and columns";
  const int64_t depth = checked_mul(checked_mul(t.taps_h, t.taps_w), t.chunks);
  if (depth >= limit) return "takes less than 2^30 pieces of a reduction";
  const int64_t shared_bytes = large_stride::tile_shared_bytes(config);
  if (shared_bytes > device.shared_memory_per_block) {
    return "needs " + std::to_string(shared_bytes) + " bytes of shared memory";
  }
  const bool strict = p.strict_float32();
  const Cut cut = best_cut(p, device, t, config, strict);
  const int64_t blocks = checked_mul(t.tiles, cut.splits);
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return "needs " + std::to_string(blocks) + " blocks, more than a grid holds";
  }
  c.plan.grid = blocks;
  c.plan.block = large_stride::block;
  c.plan.cut[0] = cut.splits;
  c.plan.shared_bytes = shared_bytes;
  c.plan.workspace_bytes = t.workspace_bytes(config, cut.splits);
  c.estimated_seconds = cut.seconds;
  return "";
}

}  // namespace

void large_stride_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = large_stride_refusal(p, device);
  for (int32_t row = 0; row < large_stride::config_count; ++row) {
    const large_stride::Config& config = large_stride::configs[row];
    const auto refused = [&](const std::string& reason) {
      out.push_back(refuse(Algorithm::large_stride, config.name, reason));
    };
    if (!refusal.empty()) {
      refused(refusal);
      continue;
    }
    const bool half = p.dtype != DataType::float32, strict = p.strict_float32();
    if (!large_stride::compiled(config, strict, element_size(p.dtype))) {
      refused(strict ? "has no strict float32" : half ? "has no 16-bit types" : "has no TF32");
      continue;
    }
    if (config.tile_columns > 0) {
      Candidate c = fitting(Algorithm::large_stride, config.name, row);
      const std::string reason = tiled_candidate(p, device, config, c);
      if (reason.empty()) {
        out.push_back(c);
      } else {
        refused(reason);
      }
      continue;
    }
    if (const std::string reason = small_stride_refusal(p); !reason.empty()) {
      refused(reason);
      continue;
    }
    const large_stride::Tiling t = large_stride::choose_tiling(p, config);
    const int64_t most = int64_t{config.steps} * large_stride::step_pairs;
    const int64_t channels = p.dtype == DataType::float32 ? 2 : 4;
    if (t.depth > most) {
      refused("takes at most " + std::to_string(most * channels) + " input channels, padded to " +
              std::to_string(channels) + ", times taps of a phase, not " + std::to_string(t.depth * channels));
      continue;
    }
    if (t.shared_bytes(config.steps) > device.shared_memory_per_block || t.plane * (t.pairs + 1) >= 1 << 26) {
      refused("needs " + std::to_string(t.shared_bytes(config.steps)) +
              " bytes of shared memory for one row of positions");
      continue;
    }
    const int64_t blocks = checked_mul(checked_mul(t.blocks, t.row_blocks), checked_mul(p.batch, p.groups));
    if (blocks > std::numeric_limits<int32_t>::max()) {
      refused("needs " + std::to_string(blocks) + " blocks, more than a grid holds");
      continue;
    }
    Candidate c = fitting(Algorithm::large_stride, config.name, row);
    c.plan.grid = blocks;
    c.plan.block = 32 * t.warps;
    const double multiprocessors = device.multiprocessors;
    // Of the issue slots of a multiprocessor, at 1.7 GHz: staging its inputs, a round of 32 positions for each warp.
    const double steps = config.steps, warps = static_cast<double>(t.warps);
    const double rounds = static_cast<double>(t.positions() / t.parts) / large_stride::loop_positions;
    const double staging = static_cast<double>(2 * t.pairs * t.in_rows * t.in_columns) / 32 * 12;
    const double step = strict ? 90 : 8 + 0.3 * config.phases;
    const double instructions = staging + warps * (rounds * (110 + 3 * config.phases + steps * step) + 30 * steps);
    const double resident = std::max(1.0, std::floor(large_stride::resident_warps(config, strict) / warps));
    const double waves = std::max(1.0, static_cast<double>(blocks) / (multiprocessors * resident));
    // Few warps wait for memory: half of the issue slots are used.
    const double busy = instructions / 4 / 1.7e9 * 2;
    // Phases of a row are 4 neighbours that a lane stores at once, unless channels lie between them: then each output
    // is a sector of its own, which the second level of cache takes at less than half of the memory's rate.
    const bool scattered = p.y_strides[3] != 1;
    // Nor are channels that lie next to each other: each block reads a sector for each of their words.
    const bool gathered = p.x_strides[1] == 1 && p.x_strides[3] != 1;
    const double words = static_cast<double>(p.x_elements() * element_size(p.dtype) / 4 * t.blocks);
    const double gathering = gathered ? words * 32 / (0.4 * device.bandwidth) : 0;
    const double sectors = scattered ? static_cast<double>(p.y_elements()) * 32 / (0.4 * device.bandwidth) : 0;
    c.estimated_seconds =
        launch_seconds + 3e-6 + sectors + gathering +
        std::max(static_cast<double>(p.compulsory_bytes()) / device.bandwidth / 0.8,
                 std::max(waves * 1.5e-6, std::ceil(static_cast<double>(blocks) / multiprocessors) * busy)) +
        // More registers, more code.
        5e-7 * config.steps / 6;
    out.push_back(c);
  }
}

}  // namespace convt
