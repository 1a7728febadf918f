#define CONVT_GROUPED_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::grouped {

template cudaError_t launch_scalar<Float16, false>(const Plan&, const Problem&, const Operands&, cudaStream_t);
template cudaError_t launch_scalar<BFloat16, false>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::grouped
