#define CONVT_DIRECT_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::direct {

template cudaError_t launch_scalar<float>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::direct
