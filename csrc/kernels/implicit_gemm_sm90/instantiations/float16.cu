#define CONVT_IMPLICIT_GEMM_SM90_INSTANTIATE
#include "../launch_mode.cuh"

namespace convt::implicit_gemm_sm90 {

template cudaError_t launch_mode<Mode::float16>(const Plan&, const Launch&, cudaStream_t);

}  // namespace convt::implicit_gemm_sm90
