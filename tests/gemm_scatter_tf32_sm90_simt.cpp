// Random problems through the kernels of gemm_scatter_tf32_sm90 in the SIMT emulator, in every configuration and width
// of a kernel, against float64. Built and run by test_gemm_scatter_tf32.py. Usage: gemm_scatter_tf32_sm90_simt SEED
// PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/gemm_scatter_tf32_sm90/kernel.cuh"
#include "kernels/gemm_scatter_tf32_sm90/prepare.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = gemm_scatter_tf32_sm90;

Problem patches() {
  Problem p = random_patches(DataType::float32, 4,
                             [](bool last) { return pick(0, 2) == 0 ? 4 * pick(1, 5) : pick(1, last ? 3 : 2); });
  p.precision = Precision::tf32;
  // Weights are packed from any layout; channels of x that are innermost are copied, if those of y are not.
  if (pick(0, 1) == 0) p.w_strides = pick(0, 1) == 0 ? channels_last(p.w_sizes()) : dense(p.w_sizes());
  if (pick(0, 7) == 0) p.x_strides = channels_last(p.x_sizes());
  return p;
}

template <bool channels_last, int Unit, int Neighbours = 4 / Unit>
void launch_row(const Plan& plan, const family::Params& params) {
  visit_row<family::config_count>(plan.configuration, [&]<int Row>() {
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] { family::gemm_scatter_tf32_sm90_kernel<channels_last, Unit, Neighbours, Row>(params); });
  });
}

int copied = 0, vectors[5] = {}, units[5] = {};

bool run(int32_t row) {
  for (;;) {
    const Case<float> c(patches());
    Problem p = c.placed();
    if (pick(0, 1) == 0) p = coalesced(p);
    const std::string configuration = std::string("gemm_scatter_tf32_sm90/") + family::configs[row].name;
    const std::optional<Plan> forced = forced_plan(p, configuration);
    if (!forced) continue;
    Plan plan = *forced;
    // A block takes several tiles.
    plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    // Copied though it need not be.
    const int64_t packed = family::packed_bytes(p, family::make_tiling(family::configs[row], p, false));
    if (plan.workspace_bytes == packed && !family::is_channels_last(p) && pick(0, 2) == 0) {
      plan.workspace_bytes += family::copied_bytes(p);
      plan.grid = 1;
    }
    const bool copies = plan.workspace_bytes > packed;
    const family::Tiling tiling = family::make_tiling(family::configs[row], p, copies);
    if (pick(0, 1) == 0) plan.cut[0] = static_cast<int32_t>(pick(1, tiling.output_tiles));
    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    simt::launch(dim3(static_cast<unsigned>(launch.prepare_grid)), dim3(family::prepare_threads),
                 family::prepare_shared_bytes, [&] { family::prepare_kernel(launch.prepare); });
    family::Params& params = launch.params;
    params.x_map = device::make_tensor_map(launch.x_map);
    const int32_t unit = family::unit_of(p.kernel_w);
    const bool last = family::is_channels_last(p);
    if (last) {
      launch_row<true, 4>(plan, params);
    } else if (launch.neighbours < 4 / unit) {
      unit == 1 ? launch_row<false, 1, 1>(plan, params) : launch_row<false, 2, 1>(plan, params);
    } else if (unit == 1) {
      launch_row<false, 1>(plan, params);
    } else if (unit == 2) {
      launch_row<false, 2>(plan, params);
    } else {
      launch_row<false, 4>(plan, params);
    }
    copied += copies, ++vectors[params.vector], ++units[last ? 0 : unit];
    const std::string what = configuration + (copies ? ", copied" : "") + (last ? ", channels_last" : "") +
                             ", units of " + std::to_string(unit) + ", vectors of " + std::to_string(params.vector);
    const auto nearest = [](float v) { return float_of_bits(simt::nearest_tf32(bits_of_float(v))); };
    const auto away = [](float v) {
      return std::isfinite(v) ? float_of_bits(bits_of_float(v) + 0x1000 & ~0x1fffu) : v;
    };
    return c.check(what.c_str(), nearest, away);
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  using convt::copied, convt::vectors, convt::units;
  const int status =
      convt::run_problems(argc, argv, [](int number) { return convt::run(number % convt::family::config_count); });
  std::printf("copied: %d; vectors of 1: %d, 2: %d, 4: %d; units of 1: %d, 2: %d, 4: %d, channels: %d\n", copied,
              vectors[1], vectors[2], vectors[4], units[1], units[2], units[4], units[0]);
  return status;
}
