#include "calibration.h"

#include <cmath>
#include <cstdlib>
#include <unordered_map>

namespace convt {
namespace {

// For float32 without TF32, TF32 and the 16-bit types: NCHW and NHWC.
struct Row {
  const char* configuration;
  Calibration of[3][2];
};

// Written by `python -m benchmarks calibrate`.
constexpr Row rows[] = {
#include "calibration.inc"
};

}  // namespace

Calibration calibration_of(const std::string& configuration, const Problem& p) {
  static const auto table = [] {
    std::unordered_map<std::string, const Row*> by_name;
    for (const Row& row : rows) by_name.emplace(row.configuration, &row);
    return by_name;
  }();
  if (p.operation != Operation::forward) return {};
  const auto found = table.find(configuration);
  if (found == table.end()) return {};
  int precision = 2;
  if (p.dtype == DataType::float32) {
    precision = p.precision == Precision::tf32 ? 1 : 0;
  } else if (p.dtype != DataType::float16 && p.dtype != DataType::bfloat16) {
    return {};
  }
  const bool channels_innermost = std::abs(p.x_strides[1]) < std::abs(p.x_strides[3]);
  return found->second->of[precision][channels_innermost ? 1 : 0];
}

double calibrated(const Calibration& c, double modelled_seconds) {
  return 1e-6 * c.scale * std::pow(1e6 * modelled_seconds, c.exponent);
}

}  // namespace convt
