#define CONVT_GEMM_FOLD_SM90_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::gemm_fold_sm90 {

template cudaError_t launch_scalar<float>(const Plan&, const Launch&, cudaStream_t);

}  // namespace convt::gemm_fold_sm90
