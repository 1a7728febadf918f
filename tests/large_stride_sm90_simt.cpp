// Random problems through the large-stride kernels of Hopper on the CPU, by tests/simt: every configuration, element
// type and layout. Usage: large_stride_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/large_stride_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "large_stride_problem.h"
#include "plan/planner.h"

namespace convt {
namespace {

namespace family = large_stride_sm90;

int vectors = 0, row_blocks = 0, idle = 0, copied = 0;

Problem random_problem(const family::Config& config, DataType dtype) {
  return random_large_stride(dtype, 8 * config.steps, [&](const Problem& p) {
    return family::make_tiling(p, {1, 1}).units <= 2 * config.steps;
  });
}

// What a configuration does with a problem, against float64.
template <class Scalar>
bool run(int32_t row) {
  Problem p = random_problem(family::configs[row], data_type<Scalar>);
  p.precision = Precision::tf32;
  lay_out(p);
  const Case<Scalar> c(p);
  const std::string name = std::string("large_stride_sm90/") + family::configs[row].name;
  const std::optional<Plan> forced = plan_of_any(p, name);
  if (!forced) return false;
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
  idle += tiling.blocks * tiling.groups > params.tasks, copied += params.copies_x;
  visit_row<family::config_count>(row, [&]<int Row>() {
    simt::launch(static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.block),
                 static_cast<size_t>(plan.shared_bytes), [&] {
                   const auto run_kernel = [&]<bool Vectors>() {
                     params.copies_x ? family::large_stride_sm90_kernel<Scalar, Vectors, Row, true>(params)
                                     : family::large_stride_sm90_kernel<Scalar, Vectors, Row, false>(params);
                   };
                   params.load_vectors ? run_kernel.template operator()<true>()
                                       : run_kernel.template operator()<false>();
                 });
  });
  return c.template check_sums<false>(name.c_str());
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
  std::printf("vectors: %d, several blocks of rows: %d, idle warpgroups: %d, rows copied as they are: %d\n",
              convt::vectors, convt::row_blocks, convt::idle, convt::copied);
  return status;
}
