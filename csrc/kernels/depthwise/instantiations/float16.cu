#define CONVT_DEPTHWISE_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::depthwise {

template cudaError_t launch_scalar<Float16>(const Plan&, const Problem&, const Operands&, cudaStream_t);
template cudaError_t launch_scalar<BFloat16>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::depthwise
