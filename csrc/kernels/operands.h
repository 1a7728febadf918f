// What every kernel family is launched with.
#pragma once

namespace convt {

// Pointers of one call; the operand that is computed is `result`, and its own pointer is not read.
struct Operands {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;
  void* result = nullptr;
  void* workspace = nullptr;  // Plan::workspace_bytes, aligned to 512 bytes
};

}  // namespace convt
