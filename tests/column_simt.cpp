// Random problems through the column kernels on the CPU, by tests/simt: every configuration, element type and layout.
// Usage: column_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/column/kernel.cuh"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

int refused = 0, divided = 0;

Problem random_problem(const column::Config& config) {
  Problem p;
  do {
    p.batch = pick(1, 2);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * (pick(0, 3) == 0 ? pick(1, 70) : pick(1, 24));
    p.out_channels = p.groups * pick(1, pick(0, 4) == 0 ? 6 : 4);
    p.in_h = pick(0, 4) == 0 ? 1 : pick(1, 12), p.in_w = pick(0, 1) == 0 ? pick(1, 40) : 4 * pick(1, 10);
    p.kernel_h = pick(1, 5), p.kernel_w = pick(0, 6) == 0 ? pick(1, 12) : pick(1, 5);
    p.stride_h = pick(1, 4), p.stride_w = pick(1, 4);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 4) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 4) : 1;
    p.padding_h = pick(0, 6), p.padding_w = pick(0, pick(0, 3) == 0 ? 15 : 4);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, std::max(p.stride_h, p.dilation_h) - 1),
                          p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, std::max(p.stride_w, p.dilation_w) - 1),
                          p.dilation_w);
    if (pick(0, 7) == 0)
      p.in_h *= 3, p.in_w *= 2, p.out_h += 2 * p.in_h / 3 * p.stride_h, p.out_w += p.in_w / 2 * p.stride_w;
  } while (p.out_h <= 0 || p.out_w <= 0 ||
           p.out_channels_per_group() * p.kernel_h * p.kernel_w > (pick(0, 7) == 0 ? 256 : 16 * config.tiles));
  // Few positions, and output channels that blocks divide among them.
  if (pick(0, 3) == 0) {
    p.in_h = pick(1, 3), p.in_w = pick(1, 4), p.in_channels = p.groups * pick(1, 70);
    p.out_channels *= pick(0, 1) == 0 ? 256 : pick(30, 130);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, 0, 0, p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, 0, 0, p.dilation_w);
    p.padding_h = p.padding_w = 0;
  }
  return p;
}

// What a configuration does with a problem, against float64.
template <class Scalar, bool Strict>
bool run(int32_t row) {
  const column::Config& config = column::configs[row];
  Problem p = random_problem(config);
  p.dtype = data_type<Scalar>, p.precision = Strict ? Precision::ieee : Precision::tf32;
  lay_out(p);
  const Case<Scalar> c(p);
  p = c.placed();

  const std::string name = std::string("column/") + config.name;
  std::string reason;
  const std::optional<Plan> forced = forced_plan(p, name, &reason);
  if (!forced) {
    // Large tiles of many columns do not fit, nor kernels that reach further than a small tile.
    if (reason.find("bytes of shared memory") != std::string::npos || reason.find("has no tile") != std::string::npos ||
        reason.find("where most of the memory is weights") != std::string::npos) {
      ++refused;
      return true;
    }
    std::printf("%s\n%s\n", reason.c_str(), describe(p).c_str());
    return false;
  }
  Plan plan = *forced;
  if (pick(0, 2) == 0) plan.cut[0] = 2;
  if (plan.cut[1] < p.out_channels_per_group()) ++divided;
  // Blocks take tile after tile.
  if (pick(0, 1) == 0) plan.grid = pick(1, std::min<int64_t>(plan.grid, 4));
  const Operands operands{c.x.data, c.w.data, nullptr, c.bias.data, c.y.data};
  const column::Params params = column::make_params(plan, p, operands);
  const bool last = column::is_channels_last(p);
  const int64_t shared = column::resources(p, config, column::choose_tiling(p, config.pixel_blocks, last), plan.cut[1])
                             .shared_bytes(plan.cut[0]);
  const auto with_tiles = [&]<int Tiles>() {
    simt::launch(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block), static_cast<size_t>(shared), [&] {
      constexpr column::Load alone = column::load_of(sizeof(Scalar), false);
      if (column::load_of(p) == column::Load::vectors) {
        last ? column::column_kernel<Scalar, Strict, true, column::Load::vectors, Tiles>(params)
             : column::column_kernel<Scalar, Strict, false, column::Load::vectors, Tiles>(params);
      } else {
        last ? column::column_kernel<Scalar, Strict, true, alone, Tiles>(params)
             : column::column_kernel<Scalar, Strict, false, alone, Tiles>(params);
      }
    });
  };
  switch (config.tiles) {
    case 2:
      with_tiles.template operator()<2>();
      break;
    case 4:
      with_tiles.template operator()<4>();
      break;
    default:
      with_tiles.template operator()<6>();
  }

  return c.template check_sums<Strict>(name.c_str());
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    constexpr int rows = convt::column::config_count;
    return convt::run_precision(number / rows,
                                [&]<class Scalar, bool Strict>() { return convt::run<Scalar, Strict>(number % rows); });
  });
  std::printf("%d refused, %d with output channels divided\n", convt::refused, convt::divided);
  return status;
}
