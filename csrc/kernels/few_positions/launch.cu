#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::few_positions {
namespace {

template <class Scalar, int Vector, int Positions>
cudaError_t launch_kernel(const Plan& plan, const Params& params, cudaStream_t stream) {
  const auto kernel = few_positions_kernel<Scalar, Vector, Positions>;
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), threads, static_cast<size_t>(plan.shared_bytes), stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(plan, problem, operands);
  const auto with_vector = [&]<int Vector>() {
    switch (configs[plan.configuration].positions) {
      case 1:
        return launch_kernel<Scalar, Vector, 1>(plan, params, stream);
      case 4:
        return launch_kernel<Scalar, Vector, 4>(plan, params, stream);
      default:
        return cudaErrorInvalidConfiguration;
    }
  };
  switch (plan.cut[1] * sizeof(Scalar)) {
    case 16:
      return with_vector.template operator()<16 / sizeof(Scalar)>();
    case 4:
      return with_vector.template operator()<4 / sizeof(Scalar)>();
    case 2:
      if constexpr (sizeof(Scalar) == 2) return with_vector.template operator()<1>();
      [[fallthrough]];
    default:
      return cudaErrorInvalidConfiguration;
  }
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  // Strict or not, products are float32's.
  return dispatch(problem,
                  [&]<class Scalar, bool Strict>() { return launch_scalar<Scalar>(plan, problem, operands, stream); });
}

}  // namespace convt::few_positions
