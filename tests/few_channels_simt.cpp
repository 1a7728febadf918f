// Random problems through the kernels for few output channels on the CPU, by tests/simt: every configuration, element
// type and number of threads that share outputs.
// Usage: few_channels_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>
#include <vector>

#include "kernels/few_channels/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

int shared_outputs = 0, windows = 0, weights_in_parts = 0, pixels = 0, in_two_stages = 0, in_turns = 0;

Problem random_problem() {
  Problem p;
  do {
    p.batch = pick(1, 3);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * pick(1, pick(0, 7) == 0 ? 300 : 20);
    p.out_channels = p.groups * pick(1, pick(0, 3) == 0 ? 12 : 4);
    p.in_h = pick(1, 30), p.in_w = pick(1, 30);
    p.kernel_h = pick(1, pick(0, 3) == 0 ? 9 : 5), p.kernel_w = pick(1, pick(0, 3) == 0 ? 9 : 5);
    p.stride_h = pick(1, pick(0, 3) == 0 ? 5 : 2), p.stride_w = pick(1, pick(0, 3) == 0 ? 5 : 2);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 4) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 4) : 1;
    p.padding_h = pick(0, 4), p.padding_w = pick(0, 4);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, std::max(p.stride_h, p.dilation_h) - 1),
                          p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, std::max(p.stride_w, p.dilation_w) - 1),
                          p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.useful_macs() > 3000000);
  return p;
}

// What a configuration does with a problem, against float64.
template <class Scalar>
bool run(int32_t row) {
  const few_channels::Config& config = few_channels::configs[row];
  Problem p = random_problem();
  p.dtype = data_type<Scalar>, p.precision = pick(0, 1) == 0 ? Precision::ieee : Precision::tf32;
  const bool last = pick(0, 1) == 1;
  // Pixels are words of 4 bytes, and begin at a multiple of them.
  constexpr int64_t of_word = 4 / static_cast<int64_t>(sizeof(Scalar));
  if (last) p.in_channels = p.groups * round_up(p.in_channels_per_group(), of_word);
  lay_out(p);
  const int64_t more = last ? of_word * pick(0, 2) : pick(0, 2);
  p.x_strides = last ? channels_last({p.batch, p.in_channels + more, p.in_h, p.in_w + pick(0, 2)})
                     : dense({p.batch, p.in_channels, p.in_h, p.in_w + more});
  if (pick(0, 1) == 0) p.x_strides[0] += 6;
  std::optional<Case<Scalar>> made;
  do {
    made.emplace(p);
  } while (last && of_word > 1 && !made->placed().x_aligned);
  const Case<Scalar>& c = *made;
  p = c.placed();

  const std::string name = std::string("few_channels/") + config.name;
  const std::optional<Plan> planned = plan_of_any(p, name);
  if (!planned) return false;
  Plan plan = *planned;
  // Any number of threads may share outputs, not only the planner's.
  int64_t splits = int64_t{1} << pick(0, 5);
  few_channels::Division d = few_channels::divide(p, few_channels::cells_of(p), config, splits);
  if (d.shared_bytes > find_device("h200")->shared_memory_per_block) {
    splits = planned->cut[0], d = few_channels::divide(p, few_channels::cells_of(p), config, splits);
  }
  plan.cut = {static_cast<int32_t>(splits)};
  plan.grid = d.blocks, plan.shared_bytes = d.shared_bytes;
  shared_outputs += splits > 1, windows += d.window_rows * d.window_columns > 1;
  weights_in_parts += d.channels < p.in_channels_per_group();
  pixels += few_channels::has_pixels(p), in_two_stages += d.staging.stages == 2;
  in_turns += d.staging.stages > 0 && d.staging.words * d.staging.stages * of_word < p.in_channels_per_group();
  const few_channels::Params params =
      few_channels::make_params(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data});
  visit_row<few_channels::config_count>(row, [&]<int Row>() {
    simt::launch(static_cast<unsigned>(plan.grid), few_channels::threads, static_cast<size_t>(plan.shared_bytes), [&] {
      if (few_channels::has_pixels(p)) {
        few_channels::few_channels_kernel<Scalar, Row, true>(params);
      } else {
        few_channels::few_channels_kernel<Scalar, Row, false>(params);
      }
    });
  });
  return c.check(name.c_str(), [](float v) { return v; }, roundings_of_sums<false>);
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    constexpr int rows = convt::few_channels::config_count;
    return convt::run_type(number / rows, [&]<class Scalar>() { return convt::run<Scalar>(number % rows); });
  });
  std::printf("%d with several threads for an output, %d with several windows, %d with weights in parts\n",
              convt::shared_outputs, convt::windows, convt::weights_in_parts);
  std::printf("%d in channels_last, %d with two stages in shared memory, %d with inputs in turns\n", convt::pixels,
              convt::in_two_stages, convt::in_turns);
  return status;
}
