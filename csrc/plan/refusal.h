#pragma once

#include <cstdint>

namespace convt {

// Why something cannot be: a sentence, with a number in it or without. What translation units of device code read has
// no strings of the library's, which take two seconds of each.
struct Refusal {
  const char* before = nullptr;  // null: it can be
  int64_t number = 0;
  const char* after = nullptr;  // null: there is no number

  constexpr bool empty() const { return before == nullptr; }
};

}  // namespace convt
