// Random problems through the kernels of implicit_gemm_nchw_sm90 in the SIMT emulator, in every configuration and type,
// against float64. Built and run by test_implicit_gemm_nchw.py. Usage: implicit_gemm_nchw_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/implicit_gemm/prepare.cuh"
#include "kernels/implicit_gemm_nchw_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = implicit_gemm_nchw_sm90;
using family::Mode;

template <Mode mode>
void launch_row(const Plan& plan, const family::Params& params) {
  visit_row<family::config_count>(plan.configuration, [&]<int Row>() {
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] { family::implicit_gemm_nchw_sm90_kernel<mode, Row>(params); });
  });
}

int copied = 0, through = 0, vectors[9] = {}, strips[5] = {}, merged[6] = {};

template <Mode mode>
bool run(int32_t row) {
  using Scalar = typename family::Traits<mode>::Scalar;
  constexpr DataType dtype = mode == Mode::tf32      ? DataType::float32
                             : mode == Mode::float16 ? DataType::float16
                                                     : DataType::bfloat16;
  for (;;) {
    Problem drawn = random_problem(dtype, Precision::tf32);
    drawn.y_strides = dense(drawn.y_sizes());
    if (pick(0, 3) == 0) drawn.y_strides[0] += pick(1, 9);
    if (pick(0, 2) > 0) drawn.x_strides = dense(drawn.x_sizes());
    const Case<Scalar> c(drawn);
    const Problem p = c.placed();
    const std::string configuration = std::string("implicit_gemm_nchw_sm90/") + family::configs[row].name;
    const std::optional<Plan> forced = forced_plan(p, configuration);
    if (!forced) continue;
    Plan plan = *forced;
    family::Tables t;
    family::make_tables(family::configs[row], p, t);
    // Strips as they may lie, if there is room.
    const int32_t side_by_side = 1 << pick(0, 2);
    const bool staged = family::may_stage(family::configs[row], p) && pick(0, 1) == 0;
    const family::Tiling n = family::make_tiling(family::configs[row], p, t, side_by_side, staged);
    if (n.patch_stages > 0) {
      plan.tile.rows = n.tile_rows, plan.tile.columns = n.tile_columns, plan.tile.rows_staged = staged;
      plan.shared_bytes = n.shared_bytes(), plan.grid = n.tiles;
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
    if (family::configs[row].subpixel) ++merged[std::min<int64_t>(5, p.stride_w)];
    copied += launch.params.copies_x, through += plan.tile.rows_staged, ++vectors[launch.params.vector],
        ++strips[plan.tile.columns / 16];
    const std::string what = configuration + (launch.params.copies_x ? ", copied" : "") + ", vectors of " +
                             std::to_string(launch.params.vector) + ", " + std::to_string(plan.tile.columns) +
                             " columns";
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
  using convt::copied, convt::through, convt::vectors, convt::strips, convt::merged;
  const int status = convt::run_problems(argc, argv, convt::run_number);
  std::printf(
      "copied: %d; rows by shared memory: %d; vectors of 1: %d, 2: %d, 4: %d, 8: %d; strips side by side, 1: %d, 2: "
      "%d, 4: %d; phases merged, of strides 1: %d, 2: %d, 3: %d, 4: %d\n",
      copied, through, vectors[1], vectors[2], vectors[4], vectors[8], strips[1], strips[2], strips[4], merged[1],
      merged[2], merged[3], merged[4]);
  return status;
}
