// Random problems through the kernels of gemm_scatter_rows_sm90 in the SIMT emulator, in every configuration and
// element type, against float64. Built and run by test_gemm_scatter_rows.py. Usage: gemm_scatter_rows_sm90_simt SEED
// PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/gemm_scatter_rows_sm90/kernel.cuh"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = gemm_scatter_rows_sm90;

int two_images = 0, many_images = 0, several_rows = 0, several_outputs = 0, waits = 0, vectors = 0, words[2] = {};

// x, and y, of images and channels that begin anywhere.
Problem patches(DataType dtype) {
  Problem p;
  p.dtype = dtype;
  do {
    p.batch = pick(0, 2) == 0 ? pick(1, 40) : pick(1, 6), p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * pick(1, 270);
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 12));
    p.in_h = pick(1, 9), p.in_w = 2 * (pick(0, 2) == 0 ? pick(1, 96) : pick(1, 20));
    p.kernel_h = p.stride_h = int64_t{1} << pick(0, 3), p.kernel_w = p.stride_w = int64_t{1} << pick(1, 3);
    p.out_h = p.in_h * p.kernel_h, p.out_w = p.in_w * p.kernel_w;
  } while (p.useful_macs() > 3000000);
  const auto channels = [](int64_t image, int64_t count) -> Strides {
    const int64_t multiple = int64_t{1} << pick(0, 4), channel = image + pick(0, 1) * pick(1, 9) * multiple;
    return {channel * count + pick(0, 1) * pick(1, 9) * multiple, channel, 0, 1};
  };
  do p.x_strides = channels(p.in_h * p.in_w, p.in_channels);
  while (p.x_strides[0] % 2 != 0 || p.x_strides[1] % 2 != 0);
  p.x_strides[2] = p.in_w;
  p.y_strides = channels(p.out_h * p.out_w, p.out_channels), p.y_strides[2] = p.out_w;
  p.w_strides = dense(p.w_sizes());
  p.has_bias = pick(0, 1) == 1, p.bias_stride = pick(1, 2);
  return p;
}

template <class Scalar>
bool run() {
  const std::string name = std::string("gemm_scatter_rows_sm90/") + family::configs[0].name;
  for (;;) {
    const Problem random = patches(data_type<Scalar>);
    const Case<Scalar> c(random);
    const Problem p = c.placed();
    const std::optional<Plan> forced = forced_plan(p, name);
    if (!forced) continue;
    Plan plan = *forced;
    // A block has several tiles.
    plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data}, launch);
    launch.params.w_map = device::make_tensor_map(launch.w_map);
    vectors += launch.params.whole_vectors;
    const family::Tiling t = family::make_tiling(p);
    two_images += t.images == 2, many_images += t.images > 2;
    several_rows += t.row_tiles > 1, several_outputs += t.output_tiles > 1, waits += t.x_stages < 2 * t.chunks;
    ++words[launch.params.words];
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] { family::gemm_scatter_rows_sm90_kernel<Scalar>(launch.params); });
    return c.check(name.c_str(), [](float v) { return v; });
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    return number % 2 == 0 ? convt::run<convt::Float16>() : convt::run<convt::BFloat16>();
  });
  std::printf("two images: %d, more: %d, several tiles of rows: %d, of outputs: %d, x that waits for room: %d; ",
              convt::two_images, convt::many_images, convt::several_rows, convt::several_outputs, convt::waits);
  std::printf("whole vectors: %d; words: %d, elements: %d\n", convt::vectors, convt::words[1], convt::words[0]);
  return status;
}
