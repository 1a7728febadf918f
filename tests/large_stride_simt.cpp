// Random problems through the large-stride kernels on the CPU, by tests/simt: every configuration, element type and
// layout. Usage: large_stride_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/large_stride/tile.cuh"
#include "kernels/visit_row.h"
#include "large_stride_problem.h"
#include "plan/planner.h"

namespace convt {
namespace {

int refused = 0;

Problem random_problem(const large_stride::Config& config, DataType dtype) {
  return random_large_stride(dtype, 4 * config.steps, [&](const Problem& p) {
    return large_stride::choose_tiling(p, config).depth <= config.steps * large_stride::step_pairs;
  });
}

// Of a configuration that cuts the product into tiles.
Problem random_tiled_problem() {
  Problem p;
  int64_t phases = 0, work = 0;
  do {
    p.batch = pick(1, 3);
    p.groups = pick(0, 3) == 0 ? 2 : 1;
    p.in_channels = p.groups * (pick(0, 1) == 0 ? 8 * pick(1, 12) : pick(1, 80));
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 5) : 4 * pick(1, 9));
    const bool flat = pick(0, 2) == 0;
    p.in_h = flat ? 1 : pick(1, 7), p.in_w = pick(1, 20);
    p.stride_h = flat ? 1 : pick(1, 9), p.stride_w = pick(0, 1) == 0 ? 4 * pick(1, 6) : pick(1, 25);
    const auto kernel = [](int64_t stride) {
      return pick(0, 1) == 0 ? stride * pick(1, 3) : pick(0, 2) == 0 ? 4 * pick(1, 6) : pick(1, 3 * stride + 3);
    };
    p.kernel_h = flat ? 1 : kernel(p.stride_h), p.kernel_w = kernel(p.stride_w);
    if (pick(0, 9) == 0) p.stride_h = p.stride_w = pick(1, 2), p.kernel_h = pick(11, 13), p.kernel_w = pick(12, 14);
    p.padding_h = pick(0, 1) * pick(0, 12), p.padding_w = pick(0, 1) == 0 ? 4 * pick(0, 4) : pick(0, 20);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, p.stride_h - 1), 1);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, 1) * pick(0, p.stride_w - 1), 1);
    phases = p.stride_h * p.stride_w;
    work = p.out_h * p.out_w * p.out_channels * p.batch * p.in_channels_per_group() *
           ceil_div<int64_t>(p.kernel_h * p.kernel_w, phases);
  } while (p.out_h <= 0 || p.out_w <= 0 || (phases < 8 && p.kernel_h * p.kernel_w <= 128) || work > 6000000);
  return p;
}

// What a configuration does with a problem, against float64.
template <class Scalar, bool Strict>
bool run(int32_t row) {
  const large_stride::Config& config = large_stride::configs[row];
  Problem p = config.tile_columns > 0 ? random_tiled_problem() : random_problem(config, data_type<Scalar>);
  p.dtype = data_type<Scalar>, p.precision = Strict ? Precision::ieee : Precision::tf32;
  lay_out(p);
  const Case<Scalar> c(p);

  const std::string name = std::string("large_stride/") + config.name;
  std::string reason;
  const std::optional<Plan> forced = forced_plan(p, name, &reason);
  if (!forced) {
    if (reason.find("bytes of shared memory") != std::string::npos ||
        !large_stride::compiled(config, Strict, sizeof(Scalar))) {
      ++refused;
      return true;
    }
    std::printf("%s\n%s\n", reason.c_str(), describe(p).c_str());
    return false;
  }
  Plan plan = *forced;
  const auto launch = [&]<int Row>() {
    constexpr large_stride::Config its = large_stride::configs[Row];
    if constexpr (its.tile_columns > 0 && large_stride::compiled(its, Strict, sizeof(Scalar))) {
      const large_stride::TileTiling tiling = large_stride::choose_tiles(p, its);
      if (pick(0, 1) == 1) plan.cut[0] = static_cast<int32_t>(pick(1, 5));
      plan.grid = tiling.tiles * plan.cut[0];
      plan.workspace_bytes = tiling.workspace_bytes(its, plan.cut[0]);
      simt::Buffer<uint32_t> workspace(std::max<int64_t>(1, plan.workspace_bytes / 4), -1);
      if (plan.cut[0] > 1) std::memset(workspace.data, 0, static_cast<size_t>(tiling.counter_bytes()));
      const Operands operands{c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data};
      const large_stride::TileParams params = large_stride::make_tile_params(p, tiling, plan.cut[0], operands);
      simt::launch(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
                   static_cast<size_t>(large_stride::tile_shared_bytes(its)), [&] {
                     params.x_channels ? large_stride::large_stride_tile_kernel<Scalar, Strict, Row, true>(params)
                                       : large_stride::large_stride_tile_kernel<Scalar, Strict, Row, false>(params);
                   });
    } else if constexpr (its.tile_columns == 0 && large_stride::compiled(its, Strict, sizeof(Scalar))) {
      const Operands operands{c.x.data, c.w.data, nullptr, c.bias.data, c.y.data};
      const large_stride::Tiling tiling = large_stride::choose_tiling(p, its);
      const large_stride::Params params = large_stride::make_params(its, p, tiling, operands);
      simt::launch(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
                   static_cast<size_t>(tiling.shared_bytes(its.steps)), [&] {
                     params.load_vectors ? large_stride::large_stride_kernel<Scalar, Strict, true, Row>(params)
                                         : large_stride::large_stride_kernel<Scalar, Strict, false, Row>(params);
                   });
    }
  };
  visit_row<large_stride::config_count>(row, launch);

  return c.template check_sums<Strict>(name.c_str());
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    constexpr int rows = convt::large_stride::config_count;
    return convt::run_precision(number / rows,
                                [&]<class Scalar, bool Strict>() { return convt::run<Scalar, Strict>(number % rows); });
  });
  std::printf("%d refused\n", convt::refused);
  return status;
}
