// Kernels as large as their stride in 16-bit types, NCHW, whose rows begin anywhere, on Hopper's tensor cores. See
// csrc/kernels/gemm_scatter_rows_sm90.
#include <algorithm>
#include <cmath>

#include "../../kernels/gemm_scatter_rows_sm90/tiling.h"
#include "gemm_scatter.h"

namespace convt {
namespace {

namespace family = gemm_scatter_rows_sm90;

// Why no configuration of the family takes the problem; empty if one may.
std::string refusal(const Problem& p, const DeviceInfo& device) {
  const bool has_type = p.dtype == DataType::float16 || p.dtype == DataType::bfloat16;
  if (const std::string reason = gemm_scatter_refusal(p, device, has_type); !reason.empty()) return reason;
  if (gemm_scatter::is_channels_last(p)) return "takes outputs of which columns are innermost";
  const int64_t taps = p.kernel_h * p.kernel_w;
  if (p.kernel_w == 1 || 64 % taps != 0) return "takes kernels of several columns and 2, 4, 8, 16, 32 or 64 taps";
  if (const std::string reason = gemm_scatter_weights_refusal(p); !reason.empty()) return reason;
  if (!gemm_scatter::make_w_map(p, nullptr).valid()) {
    return "takes strides of weights that are multiples of 16 bytes";
  }
  if (!dense(p.in_h * p.in_w, gemm_scatter::position_stride(p), 1) || !dense(p.out_h, p.y_strides[2], p.out_w)) {
    return "takes x and y whose rows follow each other";
  }
  if (checked_mul(p.batch, p.in_h) >= int64_t{1} << 30) return "takes less than 2^30 rows of x";
  // Words of two positions.
  const auto even = [](int64_t size, int64_t stride) { return size == 1 || stride % 2 == 0; };
  if (!p.x_aligned || p.in_w % 2 != 0 || !even(p.in_channels, p.x_strides[1]) || !even(p.batch, p.x_strides[0])) {
    return "takes x of which rows begin at multiples of 4 bytes";
  }
  return "";
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device) {
  const char* const configuration = family::configs[0].name;
  const auto refused = [&](const std::string& reason) {
    return refuse(Algorithm::gemm_scatter_rows_sm90, configuration, reason);
  };
  const family::Tiling t = family::make_tiling(p);
  if (t.rows == 0) return refused("takes rows of at most " + std::to_string(family::positions) + " positions");
  if (t.images > family::most_images) {
    return refused("takes images of which at most " + std::to_string(family::most_images) + " fill a tile");
  }
  if (!t.fits()) return refused("has not enough shared memory for all input channels of a tile");
  if (t.tiles > std::numeric_limits<int32_t>::max() / 2) {
    return refused("needs more tiles than are numbered in 32 bits");
  }
  Candidate c = fitting(Algorithm::gemm_scatter_rows_sm90, configuration, 0);
  c.plan.grid = std::min<int64_t>(t.tiles, device.multiprocessors);
  c.plan.block = family::threads;
  c.plan.shared_bytes = t.shared_bytes();
  c.plan.cut[0] = static_cast<int32_t>(t.pitch);

  const auto number = [](auto n) { return static_cast<double>(n); };
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops, cores = number(device.multiprocessors);
  const double tiles = number(ceil_div(t.tiles, c.plan.grid)), chunks = number(t.chunks);
  // Fitted to fifteen layers on an H200. Of a tile the products; their weights, from the second level of cache; its
  // outputs, which one warpgroup stages while the other one multiplies; and its share of x. A warp has each channel of
  // a part of an image in a piece written.
  const double multiply = 400 + chunks * (number(family::outputs / 32 * family::positions) / 0.9 + 100);
  const double readers = std::min(number(t.tiles), cores);
  const double read = chunks * family::stage_bytes / device.bandwidth * std::max(cores / 3, readers / 2.7) / clock;
  const double stage = 800 + number(family::outputs * family::positions) * 0.1;
  const double bring = chunks * number(family::positions) * 17;
  const double parts = 1 + number(t.rows - 1) / number(p.in_h);
  const double write = 1.4 * family::pieces * (parts * (45 * number(t.channels) + 150) + 300);
  const double main = std::max({multiply, read, bring / number(t.output_tiles), write});
  const double work = (bring / chunks + 1000 + work_of_tiles(tiles, main, stage, true)) * clock;
  const double memory = number(p.compulsory_bytes()) / (0.85 * device.bandwidth);
  c.estimated_seconds = launch_seconds + 4e-6 + std::pow(std::pow(work, 6) + std::pow(memory, 6), 1.0 / 6);
  return c;
}

}  // namespace

void gemm_scatter_rows_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string reason = refusal(p, device);
  out.push_back(reason.empty() ? candidate_of(p, device)
                               : refuse(Algorithm::gemm_scatter_rows_sm90, family::configs[0].name, reason));
}

}  // namespace convt
