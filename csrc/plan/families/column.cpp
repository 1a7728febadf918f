// Few output channels a group. See csrc/kernels/column.
#include <algorithm>
#include <cmath>

#include "../../kernels/column/params.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the column family takes the problem; empty if one may.
std::string column_refusal(const Problem& p) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t limit = int64_t{1} << 30;
  if (p.kernel_h > column::most_columns || p.kernel_w > column::most_columns ||
      p.out_channels_per_group() > column::most_columns ||
      p.out_channels_per_group() * p.kernel_h * p.kernel_w > column::most_columns) {
    return "takes at most " + std::to_string(column::most_columns) + " taps times output channels of a group";
  }
  if (p.in_channels >= limit) return "takes less than 2^30 input channels";
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    if (a.stride >= 1 << 15 || a.dilation >= limit || a.dilation * a.kernel >= limit || a.padding >= limit ||
        a.in >= limit || a.out >= limit || a.in * a.stride >= limit || a.out + a.padding >= limit) {
      return "takes images of less than 2^30 rows and columns";
    }
  }
  if (!(p.in_w == 1 || p.x_strides[3] == 1) && !(p.in_channels_per_group() == 1 || p.x_strides[1] == 1)) {
    return "takes inputs whose rows or channels are contiguous in memory";
  }
  return "";
}

}  // namespace

void column_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = column_refusal(p);
  const bool channels_last = column::is_channels_last(p);
  for (int32_t row = 0; row < column::config_count; ++row) {
    const column::Config& config = column::configs[row];
    const auto refused = [&](const std::string& reason) {
      out.push_back(refuse(Algorithm::column, config.name, reason));
    };
    if (!refusal.empty()) {
      refused(refusal);
      continue;
    }
    if (device.compute_capability < 80) {
      refused("needs the tensor cores of sm_80");
      continue;
    }
    const column::Tiling tiling = column::choose_tiling(p, config.pixel_blocks, channels_last);
    if (!tiling.fits) {
      refused("has no tile of " + std::to_string(config.pixel_blocks * column::block_pixels) +
              " input pixels for a kernel that reaches this far");
      continue;
    }
    const column::Resources r = column::resources(p, config, tiling);
    if (r.shared_bytes(column::ring_steps[1]) > device.shared_memory_per_block) {
      refused("needs " + std::to_string(r.shared_bytes(column::ring_steps[1])) + " bytes of shared memory a block");
      continue;
    }
    const int64_t blocks = checked_mul(checked_mul(tiling.h.count, tiling.w.count), checked_mul(p.batch, p.groups));
    if (blocks > std::numeric_limits<int32_t>::max() / 2) {
      refused("needs " + std::to_string(blocks) + " tiles, more than are numbered in 32 bits");
      continue;
    }
    const auto resident_with = [&](int32_t ring) {
      return std::min<int64_t>(column::resident_warps(config.tiles) / config.warps,
                               (device.shared_memory_per_block + 1024) / (r.shared_bytes(ring) + 1024));
    };
    const bool deep = resident_with(column::ring_steps[0]) == resident_with(column::ring_steps[1]);
    const int32_t ring = column::ring_steps[deep ? 0 : 1];
    const int64_t resident = resident_with(ring);
    Candidate c = fitting(Algorithm::column, config.name, row);
    // A block takes tile after tile, and loads the next one's inputs while it sums up the last one's products.
    c.plan.grid = std::min(blocks, device.multiprocessors * resident);
    c.plan.block = 32 * config.warps;
    c.plan.cut[0] = ring;
    c.plan.shared_bytes = r.shared_bytes(ring);
    // A block loads, multiplies and gathers one after another: only other blocks of its multiprocessor overlap.
    const bool half = p.dtype != DataType::float32;
    const bool strict = !half && p.precision == Precision::ieee;
    const double multiprocessors = device.multiprocessors;
    const double pixels = static_cast<double>(tiling.pixel_blocks() * column::block_pixels);
    const double channels = static_cast<double>(p.in_channels_per_group());
    const double load = (pixels * channels * static_cast<double>(element_size(p.dtype)) +
                         static_cast<double>(p.out_channels_per_group() * p.kernel_h * p.kernel_w) * channels *
                             static_cast<double>(element_size(p.dtype))) /
                        (1.2 * device.bandwidth / multiprocessors);
    const double multiply = 2 * pixels * r.padded_columns * r.chunks * column::chunk_channels * r.passes *
                            config.warps / (r.splits * r.column_blocks * static_cast<double>(tiling.pixel_blocks())) /
                            (device.fp16_flops / multiprocessors *
                             (half     ? 0.5
                              : strict ? 0.05
                                       : 0.25));
    const double outputs = static_cast<double>(tiling.h.q * p.stride_h * tiling.w.q * p.stride_w);
    const double products = static_cast<double>(p.kernel_h * p.kernel_w) / static_cast<double>(p.stride_h * p.stride_w);
    const double gather = outputs * static_cast<double>(p.out_channels_per_group()) * (products + 4) * 0.05e-9;
    const double busy = load + multiply + gather;
    const double waves = std::ceil(static_cast<double>(blocks) / static_cast<double>(c.plan.grid));
    const double alone = std::ceil(static_cast<double>(c.plan.grid) / multiprocessors);
    c.estimated_seconds = launch_seconds + std::max(static_cast<double>(p.compulsory_bytes()) / device.bandwidth / 0.9,
                                                    waves * (1.5e-6 + alone * busy));
    out.push_back(c);
  }
}

}  // namespace convt
