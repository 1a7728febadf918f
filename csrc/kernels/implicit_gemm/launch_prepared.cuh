// The launches of the families that prepare_kernel runs before; their kernel begins before it is done.
#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/plan.h"
#include "../dispatch.h"
#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "prepare.cuh"

namespace convt::implicit_gemm {

// product.operator()<mode, Row>() is the family's kernel of a mode and of a row of its table of `count` configurations.
template <int count, class Launch, class Product>
cudaError_t launch_prepared(const Plan& plan, const Problem& problem, Launch& launch, int32_t threads,
                            cudaStream_t stream, const Product& product) {
  if (!make_tensor_map(launch.x_map, launch.params.x_map)) return cudaErrorNotSupported;
  return dispatch_mode(problem, [&]<Mode mode>() -> cudaError_t {
    if constexpr (mode == Mode::ieee) {
      return cudaErrorInvalidConfiguration;
    } else {
      prepare_kernel<typename Traits<mode>::Scalar>
          <<<static_cast<unsigned>(launch.prepare_grid), prepare_threads, 0, stream>>>(launch.prepare);
      const cudaError_t error = cudaGetLastError();
      if (error != cudaSuccess) return error;
      return dispatch_row<count>(plan.configuration, [&]<int Row>() {
        static Prepared prepared;
        return launch_kernel(prepared, product.template operator()<mode, Row>(), launch.params,
                             static_cast<uint32_t>(plan.grid), threads, plan.shared_bytes, stream);
      });
    }
  });
}

}  // namespace convt::implicit_gemm
