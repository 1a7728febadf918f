// Parameters of a kernel before they are needed.
#pragma once

#include "device.h"

namespace convt {

// Brings a kernel's parameters near, all their lines at once: an instruction that takes a parameter as its operand
// waits for its line, one line after another. `zero` must be 0 without the compiler's knowing. The result is to be
// kept where it costs nothing, so that the loads are not left out.
template <class Params>
CONVT_DEVICE uint32_t touch(const Params& p, uint32_t zero) {
  constexpr uint32_t line_words = 16;
  const auto* words = reinterpret_cast<const uint32_t*>(&p);
  uint32_t all = 0;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(Params) / 4; i += line_words) all ^= words[i + zero];
  return all;
}

}  // namespace convt
