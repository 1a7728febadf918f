// Large strides with few input pixels. See csrc/kernels/large_stride.
#include <algorithm>
#include <cmath>

#include "../../kernels/large_stride/config.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the large-stride family takes the problem; empty if one may.
std::string large_stride_refusal(const Problem& p, const DeviceInfo& device) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  if (device.compute_capability < 80) return "needs the tensor cores of sm_80";
  if (p.in_channels == 0) return "takes at least one input channel";
  if ((p.dilation_h != 1 && p.kernel_h > 1) || (p.dilation_w != 1 && p.kernel_w > 1)) return "takes dilation 1 only";
  if (p.stride_h < 8 && p.stride_w < 8) {
    return "takes strides of 8 or more, not " + std::to_string(std::max(p.stride_h, p.stride_w));
  }
  constexpr int64_t limit = int64_t{1} << 28;
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    if (a.stride >= 1 << 14 || a.kernel >= limit || a.padding >= limit || a.in >= limit || a.out >= limit ||
        a.in * a.stride >= limit) {
      return "takes images of less than 2^28 rows and columns";
    }
  }
  if (p.in_channels >= limit || p.out_channels >= limit) return "takes less than 2^28 channels";
  return "";
}

}  // namespace

void large_stride_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = large_stride_refusal(p, device);
  const large_stride::Tiling t = refusal.empty() ? large_stride::choose_tiling(p) : large_stride::Tiling{};
  for (int32_t row = 0; row < large_stride::config_count; ++row) {
    const large_stride::Config& config = large_stride::configs[row];
    const auto refused = [&](const std::string& reason) {
      out.push_back(refuse(Algorithm::large_stride, config.name, reason));
    };
    if (!refusal.empty()) {
      refused(refusal);
      continue;
    }
    const int64_t most = int64_t{config.steps} * large_stride::step_words;
    const int64_t channels = p.dtype == DataType::float32 ? 1 : 2;
    const bool half = p.dtype != DataType::float32, strict = !half && p.precision == Precision::ieee;
    if (!large_stride::compiled(config, strict)) {
      refused("has no strict float32");
      continue;
    }
    if (t.depth > most) {
      refused("takes at most " + std::to_string(most * channels) + " input channels times taps of a phase, not " +
              std::to_string(t.depth * channels));
      continue;
    }
    if (t.shared_bytes() > device.shared_memory_per_block || t.plane * (t.words + 1) >= 1 << 26) {
      refused("needs " + std::to_string(t.shared_bytes()) + " bytes of shared memory for one row of positions");
      continue;
    }
    const int64_t blocks = checked_mul(checked_mul(t.blocks, t.row_blocks), checked_mul(p.batch, p.groups));
    if (blocks > std::numeric_limits<int32_t>::max()) {
      refused("needs " + std::to_string(blocks) + " blocks, more than a grid holds");
      continue;
    }
    Candidate c = fitting(Algorithm::large_stride, config.name, row);
    c.plan.grid = blocks;
    c.plan.block = large_stride::block;
    const double multiprocessors = device.multiprocessors;
    // Of the issue slots of a multiprocessor, at 1.7 GHz: staging its inputs, a round of 32 positions for each warp.
    const double steps = std::ceil(static_cast<double>(t.depth) / large_stride::step_words);
    const double rounds = static_cast<double>(t.positions()) / large_stride::loop_positions;
    const double instructions = static_cast<double>(t.words * t.in_rows * t.in_columns) / 32 * 25 +
                                4 * rounds * (120 + steps * (strict ? 90 : 22)) + 4 * 40 * steps;
    const double busy = instructions / 4 / 1.7e9;
    const double waves = std::max(
        1.0, static_cast<double>(blocks) / (multiprocessors * large_stride::resident_blocks(config.steps, strict)));
    c.estimated_seconds =
        launch_seconds + 1e-6 +
        std::max(static_cast<double>(p.compulsory_bytes()) / device.bandwidth / 0.8,
                 std::max(waves * 1.5e-6, std::ceil(static_cast<double>(blocks) / multiprocessors) * busy)) +
        // More registers, fewer warps.
        1e-7 * config.steps / 6;
    out.push_back(c);
  }
}

}  // namespace convt
