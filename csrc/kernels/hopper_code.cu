#include "hopper_code.h"

#include <cuda_runtime_api.h>

namespace convt {
namespace {

__global__ void which_code() {}

}  // namespace

bool compiled_for_hopper() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, which_code) == cudaSuccess && attributes.ptxVersion == 90;
}

}  // namespace convt
