#include "host.h"

#include <stdexcept>

#include "tile.h"

namespace convt::depthwise {
namespace {

template <int Row, class Scalar, int LoadWidth>
void run_threads(const Params& params) {
  for (uint32_t i = 0; i < params.threads; ++i) compute_tile<Row, Scalar, LoadWidth>(params, i);
}

template <class Scalar, int Row = 0>
void run_row(const Plan& plan, const Problem& problem, const Operands& operands) {
  if constexpr (Row == config_count) {
    throw std::invalid_argument("run_on_host: no such configuration");
  } else {
    if (plan.configuration != Row) return run_row<Scalar, Row + 1>(plan, problem, operands);
    const Params params = make_params(plan, problem, operands);
    if (loads_vectors(plan, problem, operands)) {
      run_threads<Row, Scalar, tile_of(configs[Row], sizeof(Scalar)).columns>(params);
    } else {
      run_threads<Row, Scalar, 1>(params);
    }
  }
}

}  // namespace

void run_on_host(const Plan& plan, const Problem& problem, const Operands& operands) {
  if (plan.algorithm != Algorithm::depthwise) {
    throw std::invalid_argument("run_on_host takes plans of the depthwise family");
  }
  switch (problem.dtype) {
    case DataType::float16:
      return run_row<Float16>(plan, problem, operands);
    case DataType::bfloat16:
      return run_row<BFloat16>(plan, problem, operands);
    case DataType::float32:
      return run_row<float>(plan, problem, operands);
    default:
      throw std::invalid_argument(std::string("no host arithmetic for ") + name(problem.dtype));
  }
}

}  // namespace convt::depthwise
