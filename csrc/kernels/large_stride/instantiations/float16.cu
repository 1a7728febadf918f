#define CONVT_LARGE_STRIDE_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::large_stride {

template cudaError_t launch_scalar<Float16, false>(const Plan&, const Problem&, const Operands&, cudaStream_t);
template cudaError_t launch_scalar<BFloat16, false>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::large_stride
