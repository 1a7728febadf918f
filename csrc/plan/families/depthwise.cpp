// One input channel a group. See csrc/kernels/depthwise.
#include "../../kernels/depthwise/config.h"
#include "family.h"

namespace convt {
namespace {

// Why no configuration of the depthwise family takes the problem; empty if one may.
std::string depthwise_refusal(const Problem& p) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  if (p.in_channels_per_group() != 1) {
    return "takes 1 input channel a group, not " + std::to_string(p.in_channels_per_group());
  }
  if ((p.dilation_h != 1 && p.kernel_h > 1) || (p.dilation_w != 1 && p.kernel_w > 1)) return "takes dilation 1 only";
  if (p.in_w > 1 && p.x_strides[3] != 1) return "takes input rows that are contiguous in memory";
  if ((p.kernel_w > 1 && p.w_strides[3] != 1) || (p.kernel_h > 1 && p.w_strides[2] != p.kernel_w)) {
    return "takes kernels that are contiguous in memory";
  }
  if ((p.out_w > 1 && p.y_strides[3] != 1) || (p.out_h > 1 && p.y_strides[2] != p.out_w)) {
    return "writes contiguous outputs only";
  }
  // Every offset inside an image of one channel is computed in 32 bits, tiles that reach beyond its end included.
  constexpr int64_t limit = int64_t{1} << 30;
  for (int64_t size : {p.in_h, p.in_w, p.padding_h, p.padding_w, checked_mul(p.out_h, p.out_w),
                       checked_add(checked_mul(p.in_h - 1, std::abs(p.x_strides[2])), p.in_w)}) {
    if (size >= limit) return "takes images of less than 2^30 elements a channel";
  }
  return "";
}

}  // namespace

void depthwise_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = depthwise_refusal(p);
  const auto mismatch = [](const char* axis, const depthwise::AxisConfig& c, int64_t kernel, int64_t stride,
                           int64_t padding) -> std::string {
    const auto differs = [&](const char* what, int64_t wanted, int64_t given) {
      return std::string("has ") + what + " " + std::to_string(wanted) + " along " + axis + ", not " +
             std::to_string(given);
    };
    if (kernel != c.kernel) return differs("kernel", c.kernel, kernel);
    if (stride != c.stride) return differs("stride", c.stride, stride);
    if (padding % stride != c.padding % c.stride) {
      return differs("padding modulo stride", c.padding % c.stride, padding % stride);
    }
    return "";
  };
  for (int32_t row = 0; row < depthwise::config_count; ++row) {
    const depthwise::Config& config = depthwise::configs[row];
    std::string reason = refusal;
    if (reason.empty()) reason = mismatch("the height", config.h, p.kernel_h, p.stride_h, p.padding_h);
    if (reason.empty()) reason = mismatch("the width", config.w, p.kernel_w, p.stride_w, p.padding_w);
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::depthwise, config.name, reason));
      continue;
    }
    const depthwise::Tile tile = depthwise::tile_of(config, element_size(p.dtype));
    const int64_t tiles = checked_mul(ceil_div<int64_t>(p.out_w, tile.columns * config.w.stride),
                                      ceil_div<int64_t>(p.out_h, tile.rows * config.h.stride));
    const int64_t threads = checked_mul(tiles, checked_mul(p.batch, p.out_channels));
    if (threads >= std::numeric_limits<int32_t>::max() - slack) {
      out.push_back(refuse(Algorithm::depthwise, config.name,
                           "needs " + std::to_string(threads) + " threads, more than it can number"));
      continue;
    }
    Candidate c = fitting(Algorithm::depthwise, config.name, row);
    c.plan.grid = ceil_div<int64_t>(threads, depthwise::block);
    c.plan.block = depthwise::block;
    // At the rate of a copy: no other family is faster.
    c.estimated_seconds = launch_seconds + static_cast<double>(p.compulsory_bytes()) / device.bandwidth;
    out.push_back(c);
  }
}

}  // namespace convt
