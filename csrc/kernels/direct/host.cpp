#include "host.h"

#include <stdexcept>
#include <vector>

#include "element.h"

namespace convt::direct {
namespace {

template <class Scalar, class Index>
void run(const Plan& plan, const Problem& problem, const Operands& operands) {
  const Params<Index> p = make_params<Index>(problem, operands);
  Scalar* result = static_cast<Scalar*>(p.result);
  for (Index i = 0; i < p.results; ++i) {
    if (problem.operation == Operation::forward) {
      const auto at = coordinates(i, p.out_channels, p.h.out, p.w_axis.out, p.channels_innermost);
      store(result + offset(at, p.y_strides), output_element<Scalar>(p, at.n, at.channel, at.row, at.column));
    } else if (problem.operation == Operation::input_grad) {
      const auto at = coordinates(i, p.in_channels, p.h.in, p.w_axis.in, p.channels_innermost);
      store(result + offset(at, p.x_strides), input_element<Scalar>(p, at.n, at.channel, at.row, at.column));
    } else {
      const auto at = coordinates<Index>(i, p.out_channels_per_group, p.h.kernel, p.w_axis.kernel, false);
      const Index threads = configs[plan.configuration].threads_per_result;
      auto sum = zero<Accumulator<Scalar>>();
      for (Index t = 0; t < threads; ++t) {
        sum = add(sum, weight_element_part<Scalar>(p, at.n, at.channel, at.row, at.column, t, threads));
      }
      store(result + offset(at, p.w_strides), sum);
    }
  }
}

template <class Scalar>
void run_scalar(const Plan& plan, const Problem& problem, const Operands& operands) {
  if (plan.index_bits == 32) {
    run<Scalar, int32_t>(plan, problem, operands);
  } else {
    run<Scalar, int64_t>(plan, problem, operands);
  }
}

}  // namespace

void run_on_host(const Plan& plan, const Problem& problem, const Operands& operands) {
  if (plan.algorithm != Algorithm::direct) throw std::invalid_argument("run_on_host takes plans of the direct family");
  switch (problem.dtype) {
    case DataType::float32:
      return run_scalar<float>(plan, problem, operands);
    case DataType::float64:
      return run_scalar<double>(plan, problem, operands);
    case DataType::complex64:
      return run_scalar<Complex<float>>(plan, problem, operands);
    case DataType::complex128:
      return run_scalar<Complex<double>>(plan, problem, operands);
    default:
      throw std::invalid_argument(std::string("no host arithmetic for ") + name(problem.dtype));
  }
}

}  // namespace convt::direct
