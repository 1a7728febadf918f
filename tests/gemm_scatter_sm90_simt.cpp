// Random problems through the kernels of gemm_scatter_sm90 in the SIMT emulator, in every configuration, element type
// and layout, against float64. Built and run by test_gemm_scatter.py. Usage: gemm_scatter_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/copy_rows.cuh"
#include "kernels/gemm_scatter_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = gemm_scatter_sm90;

Problem patches(DataType dtype) {
  return random_patches(dtype, 8, [](bool last) {
    return last ? pick(1, 5) : pick(0, 4) == 0 ? int64_t{1} << pick(3, 6) : int64_t{1} << pick(0, 2);
  });
}

template <class Scalar>
void launch_row(const Plan& plan, const Problem& p, const family::Launch& launch) {
  visit_row<family::config_count>(plan.configuration, [&]<int Row>() {
    const auto layout = [&]<bool channels_last>() {
      if constexpr (family::has_boxes(family::configs[Row], channels_last)) {
        if (launch.boxes) return family::gemm_scatter_sm90_kernel<Scalar, Row, channels_last, true>(launch.params);
      }
      family::gemm_scatter_sm90_kernel<Scalar, Row, channels_last, false>(launch.params);
    };
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] {
                   if (family::is_channels_last(p)) {
                     layout.template operator()<true>();
                   } else {
                     layout.template operator()<false>();
                   }
                 });
  });
}

int copied = 0, boxes = 0, whole_rows = 0, vectors[9] = {};

template <class Scalar>
bool run(DataType dtype, int32_t row) {
  // Few problems have an output that is boxes by chance.
  const bool boxed = pick(0, 2) == 0;
  for (;;) {
    const Problem random = patches(dtype);
    if (boxed && !(family::stores_boxes(random, false) && family::make_y_map(random, nullptr).valid())) continue;
    const Case<Scalar> c(random);
    Problem p = c.placed();
    if (pick(0, 1) == 0) p = coalesced(p);
    const std::string configuration = std::string("gemm_scatter_sm90/") + family::configs[row].name;
    const std::optional<Plan> forced = forced_plan(p, configuration);
    if (!forced) continue;
    Plan plan = *forced;
    // A block takes several tiles.
    plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    family::Launch launch;
    // Copied though it need not be.
    const bool last = family::is_channels_last(p);
    if (plan.workspace_bytes == 0 && !last && pick(0, 2) == 0) {
      plan.workspace_bytes = family::copied_bytes(p);
      plan.grid = 1;
    }
    const family::Tiling tiling = family::make_tiling(family::configs[row], p, plan.workspace_bytes > 0);
    if (pick(0, 1) == 0) plan.cut[0] = static_cast<int32_t>(pick(1, tiling.output_tiles));
    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    family::Params& params = launch.params;
    if (params.copies_x) {
      simt::launch(dim3(static_cast<unsigned>(copy_blocks(launch.copy))), dim3(copy_threads), 0,
                   [&] { copy_rows_kernel<uint16_t>(launch.copy); });
      ++copied;
    }
    params.x_map = device::make_tensor_map(launch.x_map), params.w_map = device::make_tensor_map(launch.w_map);
    // Written otherwise though the copy engine would.
    launch.boxes = launch.boxes && pick(0, 2) != 0;
    if (launch.boxes) params.y_map = device::make_tensor_map(launch.y_map);
    launch_row<Scalar>(plan, p, launch);
    if (launch.boxes) {
      ++boxes;
    } else {
      ++vectors[params.vector], whole_rows += params.whole_rows;
    }
    const std::string what = configuration + (params.copies_x ? ", copied" : "") + (launch.boxes ? ", boxes" : "") +
                             ", vectors of " + std::to_string(params.vector);
    return c.check(what.c_str(), [](float v) { return v; });
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  using convt::DataType, convt::vectors;
  const int status = convt::run_problems(argc, argv, [](int number) {
    const int row = number / 2 % convt::family::config_count;
    return number % 2 == 0 ? convt::run<convt::Float16>(DataType::float16, row)
                           : convt::run<convt::BFloat16>(DataType::bfloat16, row);
  });
  std::printf("copied: %d, boxes: %d, whole rows: %d; vectors of 1: %d, 2: %d, 4: %d, 8: %d\n", convt::copied,
              convt::boxes, convt::whole_rows, vectors[1], vectors[2], vectors[4], vectors[8]);
  return status;
}
