// ATen's convolution, for the gradients.
#include <algorithm>

#include "family.h"

namespace convt {
void aten_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const char* configuration = "convolution";
  if (p.operation == Operation::forward) {
    out.push_back(refuse(Algorithm::aten, configuration, "the forward is always computed by convt's own kernels"));
    return;
  }
  if (is_complex(p.dtype)) {
    out.push_back(refuse(Algorithm::aten, configuration, "has no complex convolution; it would run three real ones"));
    return;
  }
  if (p.y_elements() == 0 || p.x_elements() == 0) {
    out.push_back(refuse(Algorithm::aten, configuration, "refuses empty operands"));
    return;
  }
  Candidate c = fitting(Algorithm::aten, configuration, 0);
  // Heuristics, layout passes and several launches; then a fraction of the unit that does the products.
  const double rate = p.dtype == DataType::float16 || p.dtype == DataType::bfloat16
                          ? device.fp16_flops / 8
                          : (p.precision == Precision::tf32 && p.dtype == DataType::float32 ? device.fp16_flops / 16
                                                                                            : device.fp32_flops / 4);
  c.estimated_seconds = 40e-6 + std::max(2.0 * static_cast<double>(p.useful_macs()) / rate,
                                         3.0 * static_cast<double>(p.compulsory_bytes()) / device.bandwidth);
  out.push_back(c);
}

}  // namespace convt
