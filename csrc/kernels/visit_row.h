// From the row of a table of configurations to a template's argument, with or without CUDA.
#pragma once

#include <utility>

namespace convt {

// visit.operator()<Row>() of the row of `count` that is `row`; whether there is one.
template <int count, class Visit>
bool visit_row(int row, const Visit& visit) {
  return [&]<int... rows>(std::integer_sequence<int, rows...>) {
    return ((row == rows && (visit.template operator()<rows>(), true)) || ...);
  }(std::make_integer_sequence<int, count>());
}

}  // namespace convt
