#pragma once

namespace convt {

// How much longer than on an H200, where models of time were fitted, a device takes for memory, and for instructions.
struct Slower {
  double memory = 1, compute = 1;
};

}  // namespace convt
