#include "overflow.h"

#include <string>

#include "geometry.h"

namespace convt {

void throw_overflow(const char* what, int64_t a, int64_t b) {
  throw OverflowError(std::string("the ") + what + " of " + std::to_string(a) + " and " + std::to_string(b) +
                      " does not fit in a 64-bit integer");
}

}  // namespace convt
