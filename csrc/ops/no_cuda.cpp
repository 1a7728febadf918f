// The CUDA entry points of a build without CUDA: they say so.
#include <torch/library.h>

#include "devices.h"

namespace convt::ops {
namespace {

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, op.operator_name(),
              ": this convt was built without CUDA and cannot compute on a GPU. Reinstall it where nvcc is found (in "
              "CUDA_HOME, on PATH, or from pip install \"cuda-toolkit[nvcc,crt,nvvm,cccl]\"); with CONVT_CUDA=1 in the "
              "environment the build stops with the reason if CUDA cannot be used.");
}

}  // namespace

std::optional<DeviceInfo> current_device() { return std::nullopt; }

void force_configuration(const std::string& name) {
  TORCH_CHECK(name.empty(), "this convt was built without CUDA and has no configurations to force");
}

const std::string& forced_configuration() {
  static const std::string none;
  return none;
}

}  // namespace convt::ops

TORCH_LIBRARY_IMPL(convt, CUDA, m) {
  m.impl("conv_transpose2d", torch::CppFunction::makeFromBoxedFunction<&convt::ops::refuse>());
  m.impl("conv_transpose2d_input_grad", torch::CppFunction::makeFromBoxedFunction<&convt::ops::refuse>());
  m.impl("conv_transpose2d_weight_grad", torch::CppFunction::makeFromBoxedFunction<&convt::ops::refuse>());
}
