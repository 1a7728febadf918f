#include "launch.h"

#include "../early_launch.h"
#include "../encode_tensor_map.h"
#include "../scalar.h"
#include "kernel.cuh"

namespace convt::gemm_scatter_rows_sm90 {
namespace {

template <class Scalar>
cudaError_t launch_scalar(const Plan& plan, const Launch& launch, cudaStream_t stream) {
  static Prepared prepared;
  return launch_kernel(prepared, gemm_scatter_rows_sm90_kernel<Scalar>, launch.params, static_cast<uint32_t>(plan.grid),
                       threads, plan.shared_bytes, stream, false);
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  Launch launch;
  make_launch(plan, problem, operands, launch);
  if (!make_tensor_map(launch.w_map, launch.params.w_map)) return cudaErrorNotSupported;
  return problem.dtype == DataType::float16 ? launch_scalar<Float16>(plan, launch, stream)
                                            : launch_scalar<BFloat16>(plan, launch, stream);
}

}  // namespace convt::gemm_scatter_rows_sm90
