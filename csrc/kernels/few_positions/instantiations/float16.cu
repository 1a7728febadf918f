#define CONVT_FEW_POSITIONS_INSTANTIATE
#include "../launch_scalar.cuh"

namespace convt::few_positions {

template cudaError_t launch_scalar<Float16>(const Plan&, const Problem&, const Operands&, cudaStream_t);

}  // namespace convt::few_positions
