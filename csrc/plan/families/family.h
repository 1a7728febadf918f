// What the kernel families have in common for the planner. Each has one file here, with one function that lists its
// configurations for a problem: those that fit, with an estimate of their time, and the others with the reason.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "../planner.h"
#include "../refusal.h"
#include "../slower.h"

namespace convt {

inline std::string text(const Refusal& r) {
  if (r.empty()) return "";
  return r.after == nullptr ? r.before : r.before + std::to_string(r.number) + r.after;
}

inline constexpr double launch_seconds = 3e-6;

// A block may start this far beyond the last element before its threads compare themselves with the end.
inline constexpr int64_t slack = 4096;

// Of a copy of x in the workspace: a user does not expect to need more memory for it.
inline constexpr int64_t most_copied_bytes = int64_t{1} << 30;

// What csrc/kernels/copy_rows.cuh takes, beside a launch: fitted to copies of 5 to 150 MB on an H200.
inline double copying_seconds(const DeviceInfo& device, double bytes) {
  return 1.5e-6 + 2 * bytes / (0.77 * device.bandwidth);
}

inline Slower slower(const DeviceInfo& device) { return {4.8e12 / device.bandwidth, 132.0 / device.multiprocessors}; }

inline Candidate refuse(Algorithm algorithm, const std::string& configuration, const std::string& reason) {
  Candidate c;
  c.algorithm = algorithm;
  c.configuration = configuration;
  c.refusal = reason;
  return c;
}

inline Candidate fitting(Algorithm algorithm, const std::string& configuration, int32_t row) {
  Candidate c;
  c.algorithm = c.plan.algorithm = algorithm;
  c.configuration = configuration;
  c.plan.configuration = row;
  return c;
}

// The faster of those that fit; the first one, if none does.
inline const Candidate& faster(const Candidate& first, const Candidate& second) {
  const bool better = second.fits() && (!first.fits() || second.estimated_seconds < first.estimated_seconds);
  return better ? second : first;
}

// Why a family of the forward operation, of float32, float16 and bfloat16, does not take the problem; empty if it may.
inline std::string forward_refusal(const Problem& p) {
  if (p.operation != Operation::forward) return std::string("computes forward, not ") + name(p.operation);
  if (p.dtype != DataType::float32 && p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return std::string("has no ") + name(p.dtype);
  }
  return "";
}

// The same of one that computes every offset inside an output image in 32 bits, tiles that reach beyond its end
// included.
inline std::string image_refusal(const Problem& p) {
  constexpr int64_t limit = int64_t{1} << 30;
  for (int64_t size : {checked_mul(checked_mul(p.out_channels, p.out_h), p.out_w), p.in_channels, p.in_h, p.in_w,
                       p.padding_h, p.padding_w, checked_mul(p.kernel_h, p.dilation_h),
                       checked_mul(p.kernel_w, p.dilation_w), checked_mul(p.kernel_h, p.kernel_w)}) {
    if (size >= limit) return "takes images of less than 2^30 elements";
  }
  return "";
}

// Why no kernel of Hopper's instructions runs on the device; empty if one does.
inline std::string hopper_refusal(const DeviceInfo& device) {
  if (device.compute_capability != 90) return "needs sm_90";
  if (!device.hopper_code) return "was not built: the list of architectures had no 9.0a";
  return "";
}

// Tensor cores compute float32 without TF32 from operands split into two TF32 parts. Whatever the number of terms, that
// is off by 9e-8 of the result, which the sums of float32 instructions exceed only from about this many terms on.
inline constexpr double fewest_terms_of_split = 25;

// Of an output, in the mean over the phases that have taps.
inline double terms_of_output(const Problem& p) {
  const auto taps = [](int64_t kernel, int64_t stride) {
    return static_cast<double>(kernel) / static_cast<double>(std::min(kernel, stride));
  };
  return static_cast<double>(p.in_channels_per_group()) * taps(p.kernel_h, p.stride_h) * taps(p.kernel_w, p.stride_w);
}

using Candidates = void(const Problem&, const DeviceInfo&, std::vector<Candidate>&);

Candidates depthwise_candidates;
Candidates implicit_gemm_sm90_candidates;
Candidates implicit_gemm_nchw_sm90_candidates;
Candidates implicit_gemm_nhwc_sm90_candidates;
Candidates implicit_gemm_sm80_candidates;
Candidates gemm_scatter_sm90_candidates;
Candidates gemm_scatter_tf32_sm90_candidates;
Candidates gemm_scatter_rows_sm90_candidates;
Candidates gemm_fold_sm90_candidates;
Candidates gemm_fold_rows_sm90_candidates;
Candidates column_candidates;
Candidates large_stride_candidates;
Candidates large_stride_sm90_candidates;
Candidates direct_candidates;
Candidates grouped_candidates;
Candidates warp_rows_candidates;
Candidates rolling_rows_candidates;
Candidates few_positions_candidates;
Candidates few_channels_candidates;
Candidates aten_candidates;

// Whether a configuration of the warp_rows family takes the problem.
bool warp_rows_takes(const Problem&, const DeviceInfo&);

}  // namespace convt
