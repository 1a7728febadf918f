// Random problems through the large-stride kernels of Hopper on the CPU, by tests/simt: every configuration, element
// type and layout. Usage: large_stride_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/large_stride_sm90/kernel.cuh"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = large_stride_sm90;

int vectors = 0, row_blocks = 0, idle = 0;

Problem random_problem(const family::Config& config, DataType dtype) {
  Problem p;
  family::Tiling t;
  do {
    p.dtype = dtype;
    p.batch = pick(1, 2);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * (pick(0, 2) == 0 ? pick(1, 8 * config.steps) : pick(1, 9));
    p.out_channels = p.groups * pick(1, 3);
    const bool flat = pick(0, 3) == 0;
    p.in_h = flat ? 1 : pick(1, 7), p.in_w = pick(0, 2) == 0 ? pick(10, 40) : pick(1, 9);
    p.stride_h = flat ? pick(1, 2) : pick(1, 12), p.stride_w = pick(0, 1) == 0 ? 4 * pick(1, 4) : pick(1, 18);
    if (p.stride_h < 8 && p.stride_w < 8) p.stride_w += 8;
    const auto kernel = [](int64_t stride) { return pick(0, 1) == 0 ? stride * pick(1, 2) : pick(1, 2 * stride + 3); };
    p.kernel_h = flat ? 1 : kernel(p.stride_h), p.kernel_w = kernel(p.stride_w);
    p.padding_h = pick(0, 1) * pick(0, 20), p.padding_w = pick(0, 1) == 0 ? 4 * pick(0, 4) : pick(0, 20);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, p.stride_h - 1), 1);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, 1) * pick(0, p.stride_w - 1), 1);
    if (p.out_h > 0 && p.out_w > 0) t = family::make_tiling(p, {1, 1});
  } while (p.out_h <= 0 || p.out_w <= 0 || p.out_h * p.out_w > 9000 || t.units > 2 * config.steps);
  return p;
}

// What a configuration does with a problem, against float64.
template <class Scalar>
bool run(int32_t row) {
  Problem p = random_problem(family::configs[row], data_type<Scalar>);
  p.precision = Precision::tf32;
  lay_out(p);
  const Case<Scalar> c(p);
  const std::string name = std::string("large_stride_sm90/") + family::configs[row].name;
  std::string reason;
  const std::optional<Plan> forced = forced_plan(p, name, &reason);
  if (!forced) {
    std::printf("%s\n%s\n", reason.c_str(), describe(p).c_str());
    return false;
  }
  // Of blocks of any number of warpgroups and rows.
  Plan plan = *forced;
  family::Cut cut = family::cut_of(plan);
  cut.groups = static_cast<int32_t>(pick(1, family::most_groups));
  cut.row_blocks = static_cast<int32_t>(pick(cut.row_blocks, cut.row_blocks + 2));
  const family::Tiling tiling = family::make_tiling(p, cut);
  plan.grid = tiling.blocks * tiling.row_blocks * p.batch * p.groups,
  plan.block = family::group_threads * tiling.groups;
  plan.shared_bytes = tiling.shared_bytes(family::configs[row].steps);
  const family::Params params = family::make_params(p, tiling, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data});
  vectors += params.load_vectors && params.store_vectors, row_blocks += tiling.row_blocks > 1;
  idle += tiling.blocks * tiling.groups > params.tasks;
  const auto launch = [&]<int Row>() {
    simt::launch(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
                 static_cast<size_t>(plan.shared_bytes), [&] {
                   params.load_vectors ? family::large_stride_sm90_kernel<Scalar, true, Row>(params)
                                       : family::large_stride_sm90_kernel<Scalar, false, Row>(params);
                 });
  };
  [&]<int... Rows>(std::integer_sequence<int, Rows...>) {
    ((row == Rows ? launch.template operator()<Rows>() : void()), ...);
  }(std::make_integer_sequence<int, family::config_count>());
  if constexpr (sizeof(Scalar) == 4) {
    return c.check(name.c_str(), [](float v) { return __uint_as_float(device::to_tf32(v)); }, roundings_of_sums<false>);
  } else {
    return c.check(name.c_str(), [](float v) { return v; }, roundings_of_sums<false>);
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    constexpr int rows = convt::family::config_count;
    const int type = number / rows % 3;
    return type == 0   ? convt::run<float>(number % rows)
           : type == 1 ? convt::run<convt::Float16>(number % rows)
                       : convt::run<convt::BFloat16>(number % rows);
  });
  std::printf("vectors: %d, several blocks of rows: %d, idle warpgroups: %d\n", convt::vectors, convt::row_blocks,
              convt::idle);
  return status;
}
