// What the kernel families have in common for the planner. Each has one file here, with one function that lists its
// configurations for a problem: those that fit, with an estimate of their time, and the others with the reason.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "../plan.h"

namespace convt {

inline constexpr double launch_seconds = 3e-6;

// A block may start this far beyond the last element before its threads compare themselves with the end.
inline constexpr int64_t slack = 4096;

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

using Candidates = void(const Problem&, const DeviceInfo&, std::vector<Candidate>&);

Candidates depthwise_candidates;
Candidates implicit_gemm_sm90_candidates;
Candidates implicit_gemm_sm80_candidates;
Candidates column_candidates;
Candidates large_stride_candidates;
Candidates direct_candidates;
Candidates grouped_candidates;
Candidates aten_candidates;

}  // namespace convt
