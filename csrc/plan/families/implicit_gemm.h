// What the implicit-GEMM families have in common for the planner.
#pragma once

#include <cmath>
#include <cstdlib>

#include "../../kernels/implicit_gemm/params.h"
#include "family.h"

namespace convt {

// Why no implicit GEMM takes the problem, whatever the device; empty if one may.
inline std::string implicit_gemm_refusal(const Problem& p) {
  if (std::string reason = forward_refusal(p); !reason.empty()) return reason;
  if (p.kernel_h > implicit_gemm::most_taps || p.kernel_w > implicit_gemm::most_taps ||
      p.kernel_h * p.kernel_w > implicit_gemm::most_taps) {
    return "takes kernels of at most " + std::to_string(implicit_gemm::most_taps) + " taps";
  }
  if (p.stride_h > implicit_gemm::most_stride || p.stride_w > implicit_gemm::most_stride) {
    return "takes strides of at most " + std::to_string(implicit_gemm::most_stride);
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

// What packing the weights takes: they are read, and with their channels up to whole blocks written.
inline double packing_seconds(const Problem& p, const DeviceInfo& device, int64_t packed_bytes) {
  const double bytes = static_cast<double>(checked_mul(p.w_elements(), element_size(p.dtype)) + packed_bytes);
  return bytes / (0.6 * device.bandwidth);
}

// Of the sectors of memory, of 32 bytes, that parts of rows of y touch, how many times as many as their bytes fill,
// where rows are innermost: a tile writes so many columns side by side, and shares a sector at both ends if rows begin
// anywhere.
inline double sectors_of_parts(const Problem& p, int32_t columns) {
  const double bytes = static_cast<double>(columns * element_size(p.dtype));
  const bool aligned = p.y_strides[2] * element_size(p.dtype) % 32 == 0;
  return (aligned ? std::ceil(bytes / 32) * 32 : bytes + 32 - static_cast<double>(element_size(p.dtype))) / bytes;
}

// The best way to cut a problem for a configuration; none yet if the grid is empty.
struct Choice {
  GemmTile tile;
  int64_t grid = 0, shared_bytes = 0, workspace_bytes = 0;
  double seconds = INFINITY;
};

inline Candidate chosen_tile(Algorithm algorithm, const std::string& configuration, int32_t row, int32_t block,
                             const Choice& best) {
  Candidate c = fitting(algorithm, configuration, row);
  c.plan.grid = best.grid;
  c.plan.block = block;
  c.plan.tile = best.tile;
  c.plan.shared_bytes = best.shared_bytes;
  c.plan.workspace_bytes = best.workspace_bytes;
  c.estimated_seconds = best.seconds;
  return c;
}

// For each configuration the better of the problem as it is and with its columns folded into channels, of which
// candidates_of(q) are as many.
template <typename CandidatesOf>
void add_better_foldings(const Problem& p, const CandidatesOf& candidates_of, std::vector<Candidate>& out) {
  std::vector<Candidate> candidates = candidates_of(p);
  if (folds(p)) {
    std::vector<Candidate> others = candidates_of(folded(p));
    for (size_t i = 0; i < candidates.size(); ++i) {
      others[i].plan.tile.columns_folded = true;
      candidates[i] = faster(candidates[i], others[i]);
    }
  }
  out.insert(out.end(), candidates.begin(), candidates.end());
}

}  // namespace convt
