#include "launch.h"

#include "../dispatch.h"
#include "kernel.cuh"

namespace convt::depthwise {
namespace {

template <class Scalar>
cudaError_t launch_any_last(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const int32_t vector = any_last_vector(problem, operands);
  const LastParams params = make_any_last_params(plan, problem, operands, vector);
  const auto bytes = static_cast<size_t>(table_size(params, problem));
  switch (vector) {
    case 4:
      depthwise_any_last_kernel<Scalar, 4><<<params.blocks, block, bytes, stream>>>(params);
      break;
    case 2:
      depthwise_any_last_kernel<Scalar, 2><<<params.blocks, block, bytes, stream>>>(params);
      break;
    default:
      depthwise_any_last_kernel<Scalar, 1><<<params.blocks, block, bytes, stream>>>(params);
  }
  return cudaGetLastError();
}

template <class Scalar, int P = columns_of_any>
cudaError_t launch_any(const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const AnyParams params = make_any_params(problem, operands, P);
  depthwise_any_kernel<Scalar, P><<<ceil_div<uint32_t>(params.threads, block), block, 0, stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, int Row>
cudaError_t launch_configuration(const Plan& plan, const Problem& problem, const Operands& operands,
                                 cudaStream_t stream) {
  constexpr Config config = configs[Row];
  const dim3 grid(static_cast<unsigned>(plan.grid));
  if constexpr (config.form == Form::any) {
    return launch_any<Scalar>(problem, operands, stream);
  } else if constexpr (config.form == Form::any_one) {
    return launch_any<Scalar, 1>(problem, operands, stream);
  } else if constexpr (config.form == Form::one_tap) {
    const OneTapParams params = make_one_tap_params(plan, problem, operands);
    const auto bytes = static_cast<size_t>(one_tap_table_bytes(config, problem));
    if (takes_channels(problem)) {
      depthwise_one_tap_kernel<Scalar, Row, true><<<grid, block, bytes, stream>>>(params);
    } else {
      depthwise_one_tap_kernel<Scalar, Row, false><<<grid, block, bytes, stream>>>(params);
    }
  } else if constexpr (config.form == Form::any_last) {
    return launch_any_last<Scalar>(plan, problem, operands, stream);
  } else if constexpr (config.form == Form::rows) {
    if (!fits_rows(plan, problem, operands)) return launch_any<Scalar>(problem, operands, stream);
    depthwise_rows_kernel<Row, Scalar><<<grid, block, 0, stream>>>(make_params(plan, problem, operands));
  } else if constexpr (config.form == Form::last) {
    if (!fits_last(plan, problem, operands)) return launch_any_last<Scalar>(plan, problem, operands, stream);
    depthwise_last_kernel<Row, Scalar><<<grid, block, 0, stream>>>(make_last_params(plan, problem, operands));
  } else {
    const Access access = access_of(plan, problem, operands);
    const Params params = make_params(plan, problem, operands, access);
    const auto blocks = ceil_div<uint32_t>(params.threads, block);
    // Where a tile for vectors is one column wide, either is the same.
    if (access == Access::vectors || tile_of(config, sizeof(Scalar)).columns == 1) {
      depthwise_kernel<Row, Scalar, Access::vectors><<<blocks, block, 0, stream>>>(params);
    } else if (access == Access::tall) {
      if constexpr (has_tall(config, sizeof(Scalar))) {
        depthwise_kernel<Row, Scalar, Access::tall><<<blocks, block, 0, stream>>>(params);
      }
    } else if constexpr (tile_of(config, sizeof(Scalar)).columns > 1) {
      depthwise_kernel<Row, Scalar, Access::elements><<<blocks, block, 0, stream>>>(params);
    }
  }
  return cudaGetLastError();
}

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    return launch_configuration<Scalar, Row>(plan, problem, operands, stream);
  });
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  // Strict or not, products are float32's.
  return dispatch(problem,
                  [&]<class Scalar, bool Strict>() { return launch_scalar<Scalar>(plan, problem, operands, stream); });
}

}  // namespace convt::depthwise
