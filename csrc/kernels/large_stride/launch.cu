#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"
#include "tile.cuh"

namespace convt::large_stride {
namespace {

template <class Scalar, bool Strict, int Row>
cudaError_t launch_configuration(const Plan& plan, const Problem& problem, const Operands& operands,
                                 cudaStream_t stream) {
  if constexpr (!compiled(configs[Row], Strict, sizeof(Scalar))) {
    return cudaErrorInvalidConfiguration;
  } else {
    constexpr Config config = configs[Row];
    const auto grid = static_cast<unsigned>(plan.grid);
    static Prepared prepared;
    if constexpr (config.tile_columns > 0) {
      const TileTiling tiling = choose_tiles(problem, config);
      const TileParams params = make_tile_params(problem, tiling, plan.cut[0], operands);
      const auto kernel = params.x_channels ? large_stride_tile_kernel<Scalar, Strict, Row, true>
                                            : large_stride_tile_kernel<Scalar, Strict, Row, false>;
      static Prepared of_elements;
      cudaError_t error = (params.x_channels ? prepared : of_elements).prepare(kernel);
      if (error != cudaSuccess) return error;
      if (plan.cut[0] > 1) {
        error = cudaMemsetAsync(params.counters, 0, static_cast<size_t>(tiling.counter_bytes()), stream);
        if (error != cudaSuccess) return error;
      }
      kernel<<<grid, block, tile_shared_bytes(config), stream>>>(params);
    } else {
      const Tiling tiling = choose_tiling(problem, config);
      const Params params = make_params(config, problem, tiling, operands);
      const auto kernel = params.load_vectors ? large_stride_kernel<Scalar, Strict, true, Row>
                                              : large_stride_kernel<Scalar, Strict, false, Row>;
      static Prepared of_single;
      const cudaError_t error = (params.load_vectors ? prepared : of_single).prepare(kernel);
      if (error != cudaSuccess) return error;
      kernel<<<grid, static_cast<unsigned>(plan.block), static_cast<size_t>(tiling.shared_bytes(config.steps)),
               stream>>>(params);
    }
    return cudaGetLastError();
  }
}

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
    return launch_configuration<Scalar, Strict, Row>(plan, problem, operands, stream);
  });
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return launch_scalar<Scalar, Strict>(plan, problem, operands, stream);
  });
}

}  // namespace convt::large_stride
