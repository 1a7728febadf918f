#define CONVT_GEMM_SCATTER_TF32_SM90_INSTANTIATE
#include "../launch_unit.cuh"

namespace convt::gemm_scatter_tf32_sm90 {

template cudaError_t launch_unit<false, 2>(const Plan&, const Launch&, cudaStream_t);

}  // namespace convt::gemm_scatter_tf32_sm90
