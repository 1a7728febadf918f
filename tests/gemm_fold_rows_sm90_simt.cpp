// Random problems through the kernels of gemm_fold_rows_sm90 in the SIMT emulator, in every configuration and element
// type, against float64. Built and run by test_gemm_fold_rows.py. Usage: gemm_fold_rows_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/gemm_fold_rows_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = gemm_fold_rows_sm90;

int several_steps = 0, several_chunks = 0, several_sets = 0, shared_patches = 0;

// Of the configuration's columns; rows of x begin at multiples of 16 bytes, those of y anywhere.
Problem random_rows(const family::Config& config, DataType dtype) {
  Problem p;
  p.dtype = dtype;
  do {
    p.batch = pick(1, 3), p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 40) : 16 * pick(1, 9));
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 12));
    p.in_h = pick(1, 9), p.in_w = pick(0, 2) == 0 ? pick(1, 140) : 8 * pick(1, 18);
    p.kernel_h = pick(1, 4), p.kernel_w = config.taps, p.stride_w = config.stride;
    p.stride_h = pick(1, 3), p.dilation_h = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.padding_h = pick(0, 3), p.padding_w = pick(0, 4);
    const int64_t more_h = pick(0, std::max(p.stride_h, p.dilation_h) - 1), more_w = pick(0, p.stride_w - 1);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, more_h, p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, more_w, 1);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.useful_macs() > 3000000);
  // x as rows, channels and images of larger tensors.
  const int64_t row = round_up(p.in_w, 8) + 8 * pick(0, 1), channel = row * (p.in_h + pick(0, 1));
  p.x_strides = {channel * p.in_channels + 8 * pick(0, 1), channel, row, 1};
  p.w_strides = pick(0, 3) == 0 ? channels_last(p.w_sizes()) : dense(p.w_sizes());
  p.y_strides = dense(p.y_sizes());
  if (pick(0, 3) == 0) p.y_strides[1] += pick(1, 9);
  p.y_strides[0] = p.y_strides[1] * p.out_channels + pick(0, 1) * pick(1, 9);
  p.has_bias = pick(0, 1) == 1, p.bias_stride = pick(1, 2);
  return p;
}

template <class Scalar>
bool run(int32_t row) {
  const std::string name = std::string("gemm_fold_rows_sm90/") + family::configs[row].name;
  for (;;) {
    const Problem random = random_rows(family::configs[row], data_type<Scalar>);
    const Case<Scalar> c(random);
    const Problem p = c.placed();
    const std::optional<Plan> forced = forced_plan(p, name);
    if (!forced) continue;
    Plan plan = *forced;
    // A block has several pairs of stripes.
    plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data}, launch);
    launch.params.x_map = device::make_tensor_map(launch.x_map);
    const family::Tiling t = family::make_tiling(family::configs[row], p);
    several_steps += t.steps > 1, several_chunks += t.chunks > 1, several_sets += t.sets > 1;
    shared_patches += t.shares;
    visit_row<family::config_count>(row, [&]<int Row>() {
      simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads),
                   static_cast<size_t>(plan.shared_bytes),
                   [&] { family::gemm_fold_rows_sm90_kernel<Scalar, Row>(launch.params); });
    });
    return c.check(name.c_str(), [](float v) { return v; });
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    const int row = number / 2 % convt::family::config_count;
    return number % 2 == 0 ? convt::run<convt::Float16>(row) : convt::run<convt::BFloat16>(row);
  });
  std::printf("several tiles of a row: %d, chunks: %d, sets: %d; patches of two stripes: %d\n", convt::several_steps,
              convt::several_chunks, convt::several_sets, convt::shared_patches);
  return status;
}
