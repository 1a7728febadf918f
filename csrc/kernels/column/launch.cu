#include "launch.h"

#include "../dispatch.h"
#include "../prepared.h"
#include "kernel.cuh"

namespace convt::column {
namespace {

template <class Scalar, bool Strict, bool ChannelsLast, Load How, int Tiles>
cudaError_t launch_kernel(const Plan& plan, const Params& params, int64_t shared_bytes, cudaStream_t stream) {
  const auto kernel = column_kernel<Scalar, Strict, ChannelsLast, How, Tiles>;
  const auto bytes = static_cast<int>(shared_bytes);
  static Prepared prepared;
  const cudaError_t error = prepared.prepare(kernel);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block), bytes, stream>>>(params);
  return cudaGetLastError();
}

template <class Scalar, bool Strict>
cudaError_t launch_scalar(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  const Config& config = configs[plan.configuration];
  const bool channels_last = is_channels_last(problem);
  const Tiling tiling = choose_tiling(problem, config.pixel_blocks, channels_last);
  const int64_t bytes = resources(problem, config, tiling, plan.cut[1]).shared_bytes(plan.cut[0]);
  const Params params = make_params(plan, problem, operands);
  const auto with_layout = [&]<bool ChannelsLast, int Tiles>() {
    constexpr Load alone = load_of(sizeof(Scalar), false);
    return load_of(problem) == Load::vectors
               ? launch_kernel<Scalar, Strict, ChannelsLast, Load::vectors, Tiles>(plan, params, bytes, stream)
               : launch_kernel<Scalar, Strict, ChannelsLast, alone, Tiles>(plan, params, bytes, stream);
  };
  const auto with_tiles = [&]<int Tiles>() {
    return channels_last ? with_layout.template operator()<true, Tiles>()
                         : with_layout.template operator()<false, Tiles>();
  };
  switch (config.tiles) {
    case 2:
      return with_tiles.template operator()<2>();
    case 4:
      return with_tiles.template operator()<4>();
    case 6:
      return with_tiles.template operator()<6>();
    default:
      return cudaErrorInvalidConfiguration;
  }
}

}  // namespace

cudaError_t launch(const Plan& plan, const Problem& problem, const Operands& operands, cudaStream_t stream) {
  return dispatch(problem, [&]<class Scalar, bool Strict>() {
    return launch_scalar<Scalar, Strict>(plan, problem, operands, stream);
  });
}

}  // namespace convt::column
