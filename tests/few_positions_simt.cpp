// Random problems through the kernels for few positions on the CPU, by tests/simt: every configuration, element type,
// layout and width of the loads.
// Usage: few_positions_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>
#include <vector>

#include "kernels/few_positions/kernel.cuh"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

int wide = 0;

Problem random_problem() {
  Problem p;
  do {
    p.batch = pick(1, pick(0, 1) == 0 ? 1 : 12);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * pick(1, pick(0, 2) == 0 ? 600 : 70);
    p.out_channels = p.groups * (pick(0, 1) == 0 ? 8 * pick(1, 6) : pick(1, 30));
    p.in_h = pick(0, 1) == 0 ? 1 : pick(1, 5), p.in_w = pick(0, 1) == 0 ? 1 : pick(1, 9);
    p.kernel_h = pick(1, 5), p.kernel_w = pick(0, 6) == 0 ? pick(1, 12) : pick(1, 5);
    p.stride_h = pick(1, 4), p.stride_w = pick(1, 4);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 4) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 4) : 1;
    p.padding_h = pick(0, 3), p.padding_w = pick(0, 3);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, std::max(p.stride_h, p.dilation_h) - 1),
                          p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, std::max(p.stride_w, p.dilation_w) - 1),
                          p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0);
  return p;
}

// What a configuration does with a problem, against float64.
template <class Scalar>
bool run(int32_t row) {
  const few_positions::Config& config = few_positions::configs[row];
  Problem p = random_problem();
  p.dtype = data_type<Scalar>, p.precision = pick(0, 1) == 0 ? Precision::ieee : Precision::tf32;
  lay_out(p);
  const Case<Scalar> c(p);
  p = c.placed();

  const std::string name = std::string("few_positions/") + config.name;
  const std::optional<Plan> planned = plan_of_any(p, name);
  if (!planned) return false;
  Plan plan = *planned;
  // Any number of output channels a block, not only the planner's.
  const std::vector<int64_t> choices = few_positions::channel_choices(p);
  const int64_t out_channels = choices[pick(0, static_cast<int64_t>(choices.size()) - 1)];
  const int32_t vector = few_positions::vector_elements(p, out_channels);
  const few_positions::Division d = few_positions::divide(p, config, out_channels, vector);
  plan.cut = {static_cast<int32_t>(out_channels), vector};
  plan.grid = d.blocks, plan.shared_bytes = d.shared_bytes;
  if (vector * sizeof(Scalar) == 16) ++wide;
  const few_positions::Params params =
      few_positions::make_params(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data});
  const auto with = [&]<int Vector, int Positions>() {
    simt::launch(static_cast<unsigned>(plan.grid), few_positions::threads, static_cast<size_t>(plan.shared_bytes),
                 [&] { few_positions::few_positions_kernel<Scalar, Vector, Positions>(params); });
  };
  const auto with_vector = [&]<int Vector>() {
    config.positions == 1 ? with.template operator()<Vector, 1>() : with.template operator()<Vector, 4>();
  };
  if (vector * sizeof(Scalar) == 16) {
    with_vector.template operator()<16 / sizeof(Scalar)>();
  } else if (vector > 1) {
    with_vector.template operator()<2>();
  } else {
    with_vector.template operator()<1>();
  }

  return c.check(name.c_str(), [](float v) { return v; }, roundings_of_sums<false>);
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    constexpr int rows = convt::few_positions::config_count;
    return convt::run_type(number / rows, [&]<class Scalar>() { return convt::run<Scalar>(number % rows); });
  });
  std::printf("%d with loads of 16 bytes\n", convt::wide);
  return status;
}
