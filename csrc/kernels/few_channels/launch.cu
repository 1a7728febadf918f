#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::few_channels {

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Params params = make_params(plan, problem, operands);
  // Strict or not, products are float32's.
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return dispatch_row<config_count>(plan.configuration, [&]<int Row>() {
      const auto launch_kernel = [&](auto kernel, Prepared& prepared) {
        const cudaError_t error = prepared.prepare(kernel);
        if (error != cudaSuccess) return error;
        kernel<<<static_cast<unsigned>(plan.grid), threads, static_cast<size_t>(plan.shared_bytes), stream>>>(params);
        return cudaGetLastError();
      };
      static Prepared of_pixels, of_columns;
      return has_pixels(problem) ? launch_kernel(few_channels_kernel<Scalar, Row, true>, of_pixels)
                                 : launch_kernel(few_channels_kernel<Scalar, Row, false>, of_columns);
    });
  });
}

}  // namespace convt::few_channels
