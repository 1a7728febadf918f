#define CONVT_DEPTHWISE_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::depthwise {

template cudaError_t launch_scalar<float>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::depthwise
