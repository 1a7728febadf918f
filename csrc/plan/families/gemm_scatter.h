// What the families for kernels as large as their stride have in common for the planner.
#pragma once

#include <algorithm>

#include "../../kernels/gemm_scatter/tiling.h"
#include "family.h"

namespace convt {

// Why no such family takes the problem; empty if one may. `has_type`: whether the family has the problem's.
inline std::string gemm_scatter_refusal(const Problem& p, const DeviceInfo& device, bool has_type) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (!has_type) return std::string("has no ") + name(p.dtype);
  if (p.strict_float32()) return "computes float32 in TF32";
  const auto apart = [](int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    return kernel == stride && padding == 0 && (dilation == 1 || kernel == 1) && out == checked_mul(in, stride);
  };
  if (!apart(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h) ||
      !apart(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w)) {
    return "takes kernels as large as their stride, of whose outputs nothing is cut or padded";
  }
  if (const std::string reason = hopper_refusal(device); !reason.empty()) return reason;
  if (p.in_channels == 0) return "takes at least one input channel";
  constexpr int64_t limit = int64_t{1} << 30;
  const int64_t outputs = gemm_scatter::outputs_of_position(p);
  for (const int64_t size : {p.batch, p.in_channels, p.out_channels, p.out_h, p.out_w, outputs}) {
    if (size >= limit) return "takes sizes of less than 2^30";
  }
  const int64_t positions = checked_mul(p.in_h, p.in_w);
  if (checked_mul(p.batch, ceil_div<int64_t>(positions, gemm_scatter::box_side(p))) >= limit || positions >= limit) {
    return "takes less than 2^30 positions";
  }
  // Positions of an image at equal distances: by one stride alone.
  const Strides& x = p.x_strides;
  if (!dense(p.in_h, x[2], checked_mul(p.in_w, gemm_scatter::position_stride(p))))
    return "takes images whose rows follow each other";
  if (gemm_scatter::is_channels_last(p)) {
    if (p.groups > 1) return "takes one group in channels_last";
    if (!p.x_aligned || !dense(p.in_channels, x[1], 1)) return "takes x in channels_last, aligned to 16 bytes, if y is";
  } else if (!dense(p.out_w, p.y_strides[3], 1)) {
    return "takes outputs of which columns or channels are innermost";
  }
  return "";
}

// Why the copy engine does not take weights of 16 bits where they lie, outputs of a position innermost; empty if it
// may.
inline std::string gemm_scatter_weights_refusal(const Problem& p) {
  // The weights of an input channel, in the order in which y has its outputs.
  const Strides& w = p.w_strides;
  const int64_t channels = p.out_channels_per_group(), taps_w = p.kernel_w;
  const bool in_order =
      gemm_scatter::is_channels_last(p)
          ? dense(channels, w[1], 1) && dense(taps_w, w[3], channels) && dense(p.kernel_h, w[2], taps_w * channels)
          : dense(taps_w, w[3], 1) && dense(p.kernel_h, w[2], taps_w) && dense(channels, w[1], p.kernel_h * taps_w);
  if (!in_order) return "takes weights in the layout of y";
  return p.w_aligned ? "" : "takes weights that are aligned to 16 bytes";
}

// The seconds, or clocks, of a block of several tiles: of each its products, `main`, and `store`, which one warpgroup
// does while the other one multiplies if they take tiles in turn.
inline double work_of_tiles(double tiles, double main, double store, bool alternate) {
  return alternate && tiles > 1 ? tiles * std::max(main, (main + store) / 2) + store / 2 : tiles * (main + store);
}

// Weights that are more than two fifths of L2 are taken a band of outputs after the other, a fifth of L2 each: they are
// read from memory once then, and x once a band. Otherwise they all stay there while x is read once. So many tiles of
// outputs are a band; the last one may have fewer.
inline int64_t band_of(const Problem& p, const DeviceInfo& device, const gemm_scatter::Tiling& t) {
  const int64_t w_bytes =
      checked_mul(p.in_channels_per_group(), gemm_scatter::outputs_of_position(p) * element_size(p.dtype));
  const int64_t bands =
      5 * w_bytes <= 2 * device.l2_bytes ? 1 : std::min(t.output_tiles, ceil_div(w_bytes, device.l2_bytes / 5));
  return ceil_div(t.output_tiles, bands);
}

// What memory transfers: each band of outputs reads x.
inline double transferred_bytes(const Problem& p, const gemm_scatter::Tiling& t, int64_t band) {
  const int64_t again = ceil_div(t.output_tiles, band) - 1;
  return static_cast<double>(p.compulsory_bytes()) +
         static_cast<double>(again) * static_cast<double>(element_size(p.dtype) * p.x_elements());
}

// The candidates of a family that takes the problem if `reason` is empty: each with x as it is or copied, whichever is
// faster.
template <class Config, int count, class CandidateOf>
void gemm_scatter_candidates(Algorithm algorithm, const Config (&configs)[count], const Problem& p, std::string reason,
                             const CandidateOf& candidate_of, std::vector<Candidate>& out) {
  bool as_it_is = false, copied = false;
  if (reason.empty()) {
    const bool last = gemm_scatter::is_channels_last(p);
    const bool innermost = dense(p.in_h * p.in_w, gemm_scatter::position_stride(p), 1);
    as_it_is = last || (innermost && p.x_aligned && gemm_scatter::make_x_map(p, nullptr, false).valid());
    copied = !last && gemm_scatter::copied_bytes(p) <= most_copied_bytes;
    if (!as_it_is && !copied) reason = "takes x of at most 1 GiB where its rows begin anywhere";
  }
  for (int32_t row = 0; row < count; ++row) {
    if (!reason.empty()) {
      out.push_back(refuse(algorithm, configs[row].name, reason));
    } else if (as_it_is && copied) {
      // Images that do not fill their segments of positions do so if they follow each other.
      out.push_back(faster(candidate_of(row, false), candidate_of(row, true)));
    } else {
      out.push_back(candidate_of(row, copied));
    }
  }
}

}  // namespace convt
