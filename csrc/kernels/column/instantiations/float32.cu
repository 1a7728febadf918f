#define CONVT_COLUMN_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::column {

template cudaError_t launch_scalar<float, false>(const Plan&, const Problem&, const Operands&, cudaStream_t);
template cudaError_t launch_scalar<float, true>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::column
