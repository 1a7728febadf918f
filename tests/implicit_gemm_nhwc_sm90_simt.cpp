// Random problems through the kernels of implicit_gemm_nhwc_sm90 in the SIMT emulator, in every configuration and type,
// against float64. Built and run by test_implicit_gemm_nhwc.py. Usage: implicit_gemm_nhwc_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/implicit_gemm/prepare.cuh"
#include "kernels/implicit_gemm_nhwc_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = implicit_gemm_nhwc_sm90;
using family::Mode;

template <Mode mode>
void launch_row(const Plan& plan, const family::Params& params) {
  visit_row<family::config_count>(plan.configuration, [&]<int Row>() {
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] { family::implicit_gemm_nhwc_sm90_kernel<mode, Row>(params); });
  });
}

int flat = 0, resident = 0, copied = 0, half = 0, together[9] = {}, side_by_side[5] = {};

template <Mode mode>
bool run(int32_t row) {
  using Scalar = typename family::Traits<mode>::Scalar;
  constexpr DataType dtype = mode == Mode::tf32      ? DataType::float32
                             : mode == Mode::float16 ? DataType::float16
                                                     : DataType::bfloat16;
  for (;;) {
    Problem drawn = random_problem(dtype, Precision::tf32);
    drawn.y_strides = channels_last(drawn.y_sizes());
    if (pick(0, 3) == 0) drawn.y_strides[0] += pick(1, 9);
    drawn.x_strides = channels_last(drawn.x_sizes());
    const Case<Scalar> c(drawn);
    const Problem p = c.placed();
    const std::string configuration = std::string("implicit_gemm_nhwc_sm90/") + family::configs[row].name;
    const std::optional<Plan> forced = forced_plan(p, configuration);
    if (!forced) continue;
    Plan plan = *forced;
    family::Tables t;
    family::make_tables(p, t);
    // Blocks as they may lie, if there is room.
    const int32_t block_rows = pick(0, 2) == 0 ? 1 : 8;
    const int32_t across = std::min(family::configs[row].blocks, 1 << pick(0, 2));
    const int32_t residents = pick(1, family::configs[row].residents);
    const family::Tiling n = family::make_tiling(family::configs[row], p, t, block_rows, across, residents);
    if (n.patch_stages > 0) {
      plan.tile.piece_rows = block_rows, plan.tile.rows = n.tile_rows, plan.tile.columns = n.tile_columns;
      plan.shared_bytes = n.shared_bytes(), plan.grid = n.tiles, plan.cut[0] = residents;
    }
    // A block takes several tiles.
    plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    simt::launch(dim3(static_cast<unsigned>(launch.prepare_grid)), dim3(family::prepare_threads), 0,
                 [&] { family::prepare_kernel<Scalar>(launch.prepare); });
    launch.params.x_map = device::make_tensor_map(launch.x_map);
    launch_row<mode>(plan, launch.params);
    resident += launch.params.resident, ++together[launch.params.together], copied += launch.params.copies_x,
        half += launch.params.chunk_bytes == 64, ++side_by_side[plan.tile.columns * plan.tile.piece_rows / 64],
        flat += plan.tile.piece_rows == 1;
    const std::string what = configuration + ", " + std::to_string(plan.tile.columns) + " columns";
    if constexpr (mode == Mode::tf32) {
      const auto nearest = [](float v) { return float_of_bits(simt::nearest_tf32(bits_of_float(v))); };
      const auto away = [](float v) {
        return std::isfinite(v) ? float_of_bits(bits_of_float(v) + 0x1000 & ~0x1fffu) : v;
      };
      return c.check(what.c_str(), nearest, away);
    } else {
      return c.check(what.c_str(), [](float v) { return v; });
    }
  }
}

bool run_number(int number) {
  const int32_t row = number / 3 % family::config_count;
  return number % 3 == 0 ? run<Mode::tf32>(row) : number % 3 == 1 ? run<Mode::float16>(row) : run<Mode::bfloat16>(row);
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  using convt::flat, convt::resident, convt::copied, convt::half, convt::together, convt::side_by_side;
  const int status = convt::run_problems(argc, argv, convt::run_number);
  std::printf(
      "blocks of a row: %d; weights stay: %d; x copied: %d; half chunks: %d; written together, 1: %d, 2: %d, "
      "8: %d; blocks side by side, 1: %d, 2: %d, 4: %d\n",
      flat, resident, copied, half, together[1], together[2], together[8], side_by_side[1], side_by_side[2],
      side_by_side[4]);
  return status;
}
