#pragma once

#include <stdexcept>

namespace convt {

// A size does not fit in 64 bits.
struct OverflowError : std::overflow_error {
  using std::overflow_error::overflow_error;
};

}  // namespace convt
