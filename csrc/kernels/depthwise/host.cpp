// All instances are compiled here once more, for tests: their speed is nothing beside the compiler's.
#pragma GCC optimize("Og")

#include "host.h"

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "../visit_row.h"
#include "any.h"
#include "last.h"
#include "one_tap.h"
#include "rows.h"
#include "tile.h"

namespace convt::depthwise {
namespace {

template <int Row, class Scalar, Access Mode>
void run_threads(const Params& params) {
  for (uint32_t i = 0; i < params.threads; ++i) compute_tile<Row, Scalar, Mode>(params, i);
}

// A block at a time: its table, then its tiles. The barrier between is the end of a loop.
template <class Scalar, class Fill, class Compute>
void run_blocks(const LastParams& params, int64_t table_elements, const Fill& fill, const Compute& compute) {
  constexpr std::align_val_t alignment{16};
  const auto free = [&](Scalar* p) { ::operator delete(p, alignment); };
  const size_t bytes = static_cast<size_t>(table_elements) * sizeof(Scalar);
  for (uint32_t b = 0; b < params.blocks; ++b) {
    // A new one a block, so that a sanitizer sees what is read before it is written.
    const std::unique_ptr<Scalar, decltype(free)> table(static_cast<Scalar*>(::operator new(bytes, alignment)), free);
    std::memset(static_cast<void*>(table.get()), 0xff, bytes);  // NaN
    bool spoilt = false;
    for (uint32_t i = 0; i < block; ++i) spoilt = fill(table.get(), b, i) || spoilt;
    for (uint32_t i = 0; i < block; ++i) compute(table.get(), spoilt, b, i);
  }
}

template <class Scalar>
void run_any_last(const Plan& plan, const Problem& problem, const Operands& operands) {
  const int32_t vector = any_last_vector(problem, operands);
  const LastParams params = make_any_last_params(plan, problem, operands, vector);
  const int64_t elements = table_size(params, problem) / static_cast<int64_t>(sizeof(Scalar));
  const auto fill = [&](Scalar* table, uint32_t b, uint32_t i) { return fill_table(params, table, b, i); };
  run_blocks<Scalar>(params, elements, fill, [&](const Scalar* table, bool, uint32_t b, uint32_t i) {
    switch (vector) {
      case 4:
        return compute_any_last<Scalar, 4>(params, table, b, i);
      case 2:
        return compute_any_last<Scalar, 2>(params, table, b, i);
      default:
        return compute_any_last<Scalar, 1>(params, table, b, i);
    }
  });
}

template <class Scalar, int P = columns_of_any>
void run_any(const Problem& problem, const Operands& operands) {
  const AnyParams params = make_any_params(problem, operands, P);
  for (uint32_t i = 0; i < params.threads; ++i) compute_any<Scalar, P>(params, i);
}

template <class Scalar, int Row>
void run_one_tap(const Plan& plan, const Problem& problem, const Operands& operands) {
  const OneTapParams params = make_one_tap_params(plan, problem, operands);
  constexpr size_t vector = 4;  // floats that are read at once
  const auto size = static_cast<size_t>(one_tap_table_bytes(configs[Row], problem)) / (sizeof(float) * vector);
  const std::unique_ptr<Vector<float, vector>[]> table(new Vector<float, vector>[size]);
  for (uint32_t i = 0; i < block; ++i) fill_one_tap_table<Scalar, Row>(params, table[0].v, i);
  for (uint32_t i = 0; i < params.threads; ++i) {
    takes_channels(problem) ? compute_one_tap<Scalar, Row, true>(params, table[0].v, i)
                            : compute_one_tap<Scalar, Row, false>(params, table[0].v, i);
  }
}

template <class Scalar, int Row>
void run_configuration(const Plan& plan, const Problem& problem, const Operands& operands) {
  constexpr Config config = configs[Row];
  if constexpr (config.form == Form::any) {
    run_any<Scalar>(problem, operands);
  } else if constexpr (config.form == Form::any_one) {
    run_any<Scalar, 1>(problem, operands);
  } else if constexpr (config.form == Form::one_tap) {
    run_one_tap<Scalar, Row>(plan, problem, operands);
  } else if constexpr (config.form == Form::any_last) {
    run_any_last<Scalar>(plan, problem, operands);
  } else if constexpr (config.form == Form::rows) {
    if (!fits_rows(plan, problem, operands)) return run_any<Scalar>(problem, operands);
    const Params params = make_params(plan, problem, operands);
    for (uint32_t i = 0; i < params.threads; ++i) compute_rows<Row, Scalar>(params, i);
  } else if constexpr (config.form == Form::last) {
    if (!fits_last(plan, problem, operands)) return run_any_last<Scalar>(plan, problem, operands);
    using S = LastShape<Row, Scalar>;
    const LastParams params = make_last_params(plan, problem, operands);
    alignas(16) float biases[S::most_channels];
    using Entry = typename S::Entry;
    const auto fill = [&](Entry* table, uint32_t b, uint32_t i) {
      return fill_exact_table<S, Scalar>(params, table, b, i);
    };
    run_blocks<Entry>(params, S::table, fill, [&](const Entry* table, bool spoilt, uint32_t b, uint32_t i) {
      if (i == 0) {
        for (uint32_t k = 0; k < S::most_channels; ++k) {
          biases[k] = to_float(load_block_bias<Scalar>(params, b, k));
        }
      }
      compute_last<Row, Scalar>(params, table, biases, spoilt, LastStart<Row, Scalar>(params, b, i));
    });
  } else {
    const Access access = access_of(plan, problem, operands);
    const Params params = make_params(plan, problem, operands, access);
    if (access == Access::vectors) {
      run_threads<Row, Scalar, Access::vectors>(params);
    } else if (access == Access::tall) {
      if constexpr (has_tall(config, sizeof(Scalar))) run_threads<Row, Scalar, Access::tall>(params);
    } else {
      run_threads<Row, Scalar, Access::elements>(params);
    }
  }
}

template <class Scalar>
void run_scalar(const Plan& plan, const Problem& problem, const Operands& operands) {
  if (!visit_row<config_count>(plan.configuration,
                               [&]<int Row>() { run_configuration<Scalar, Row>(plan, problem, operands); })) {
    throw std::invalid_argument("run_on_host: no such configuration");
  }
}

}  // namespace

void run_on_host(const Plan& plan, const Problem& problem, const Operands& operands) {
  if (plan.algorithm != Algorithm::depthwise) {
    throw std::invalid_argument("run_on_host takes plans of the depthwise family");
  }
  switch (problem.dtype) {
    case DataType::float16:
      return run_scalar<Float16>(plan, problem, operands);
    case DataType::bfloat16:
      return run_scalar<BFloat16>(plan, problem, operands);
    case DataType::float32:
      return run_scalar<float>(plan, problem, operands);
    default:
      throw std::invalid_argument(std::string("no host arithmetic for ") + name(problem.dtype));
  }
}

}  // namespace convt::depthwise
