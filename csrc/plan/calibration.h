// What configurations take by measurement, from what their families' models say.
#pragma once

#include <string>

#include "problem.h"

namespace convt {

// seconds = scale * (modelled seconds / 1 us)^exponent us. The scale holds what a model leaves out, the exponent how
// that changes with the size of the problem.
struct Calibration {
  double scale = 1, exponent = 1;
};

// That of `configuration` ("family/name") for the problem's precision and layout; without a measurement, the model is
// taken as it is. The table was measured on one device; models are in terms of a device's rates, so that on another one
// the same share of them is assumed.
Calibration calibration_of(const std::string& configuration, const Problem& p);

double calibrated(const Calibration& c, double modelled_seconds);

}  // namespace convt
