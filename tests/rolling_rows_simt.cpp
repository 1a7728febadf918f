// Random problems through the rolling_rows kernels' own source on the CPU, by tests/simt: every configuration, layout
// and type, cut in every way. Built by test_rolling_rows.py.
// Usage: rolling_rows_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/rolling_rows/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

int several_blocks = 0, split = 0, narrow = 0, narrow_y = 0, elements = 0, again = 0, boxes = 0;

Problem random_problem(const rolling_rows::Config& c) {
  Problem p;
  do {
    p.batch = pick(1, 3);
    p.groups = pick(0, 3) == 0 ? pick(2, 3) : 1;
    p.in_channels = p.groups * (pick(0, 1) == 0 ? 8 * pick(1, 6) : pick(1, 40));
    p.out_channels = p.groups * pick(1, 8);
    p.in_h = pick(1, 9), p.in_w = pick(0, 1) == 0 ? pick(1, 90) : 8 * pick(1, 11);
    p.stride_h = pick(1, 4), p.stride_w = pick(1, 4);
    p.kernel_h = pick(1, c.rows * p.stride_h), p.kernel_w = pick(1, c.columns * p.stride_w);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 3) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 3) : 1;
    p.padding_h = pick(0, 4), p.padding_w = pick(0, 9);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, std::max(p.stride_h, p.dilation_h) - 1),
                          p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, std::max(p.stride_w, p.dilation_w) - 1),
                          p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.useful_macs() > 1'000'000 || p.y_elements() > 40'000 ||
           p.out_channels / p.groups * p.stride_h * p.stride_w > 8 * c.tiles);
  return p;
}

float rounded(float v) { return float_of_bits(device::to_tf32(v)); }
float nearest(float v) { return float_of_bits(simt::nearest_tf32(bits_of_float(v))); }
float same(float v) { return v; }

// What a configuration does with a problem that it takes, against float64.
template <class Scalar, bool Strict, int Row, bool Last>
bool run() {
  constexpr rolling_rows::Config config = rolling_rows::configs[Row];
  const std::string name = std::string("rolling_rows/") + config.name;
  Problem p;
  std::optional<Plan> plan;
  while (!plan || rolling_rows::channels_last(p) != Last) {
    p = random_problem(config);
    p.dtype = data_type<Scalar>, p.precision = Strict || sizeof(Scalar) == 2 ? Precision::ieee : Precision::tf32;
    lay_out(p);
    if (!Last && pick(0, 9) == 0) p.x_strides[pick(0, 2)] = 0;
    plan = forced_plan(p, name);
  }
  const Case<Scalar> c(p);
  p = c.placed();
  if (pick(0, 2) != 0) {
    // As other problems are cut, by few blocks or many.
    const int32_t warps = 1 << pick(0, 4);
    const rolling_rows::Cut cut{warps, 1 << pick(0, 4), static_cast<int32_t>(pick(1, 5)),
                                static_cast<int32_t>(pick(3, 5))};
    if (cut[1] <= warps && rolling_rows::tiling(config, p, cut).shared_bytes <= 227 << 10) {
      plan->cut = cut, plan->block = 32 * warps;
      const rolling_rows::Tiling t = rolling_rows::tiling(config, p, cut);
      plan->grid = p.groups * (pick(0, 1) == 0 ? 1 : pick(1, rolling_rows::blocks_of_all(t)));
    }
  }
  // Boxes wherever the copy engine takes them, but for some.
  plan->cut[4] = !Last && pick(0, 3) != 0 ? 1 : 0;
  const rolling_rows::Tiling t = rolling_rows::tiling(config, p, plan->cut);
  rolling_rows::Params params =
      rolling_rows::make_params(*plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data});
  several_blocks += plan->grid > p.groups, split += t.splits > 1, narrow += params.copied_bytes < 16;
  elements += params.copied_bytes == 2, narrow_y += params.store_width * sizeof(Scalar) < 16;
  again += plan->grid / p.groups * rolling_rows::block_units(t) < t.units;
  const auto launch = [&]<rolling_rows::Source From>() {
    simt::launch(dim3(static_cast<unsigned>(plan->grid)), static_cast<unsigned>(plan->block),
                 static_cast<size_t>(t.shared_bytes),
                 [&] { rolling_rows::rolling_rows_kernel<Scalar, Strict, Row, From>(params); });
  };
  bool by_engine = false;
  if constexpr (Last) {
    launch.template operator()<rolling_rows::Source::pixels>();
  } else {
    const TensorMapLayout x_map = rolling_rows::make_x_map(config, p, t, c.x.data);
    params.box_pitch = x_map.inner_bytes();
    by_engine = x_map.valid() && t.boxes;
    if (by_engine) {
      ++boxes;
      params.x_map = device::make_tensor_map(x_map);
      launch.template operator()<rolling_rows::Source::boxes>();
    } else {
      launch.template operator()<rolling_rows::Source::rows>();
    }
  }
  return c.check(name.c_str(), Strict || sizeof(Scalar) == 2 ? same : by_engine ? nearest : rounded);
}

template <class Scalar, bool Strict>
bool run(int row, bool last) {
  bool right = false;
  visit_row<rolling_rows::config_count>(
      row, [&]<int Row>() { right = last ? run<Scalar, Strict, Row, true>() : run<Scalar, Strict, Row, false>(); });
  return right;
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    const int row = number / 8 % convt::rolling_rows::config_count;
    const bool last = number / 4 % 2 == 1;
    return convt::run_precision(number,
                                [&]<class Scalar, bool Strict>() { return convt::run<Scalar, Strict>(row, last); });
  });
  std::printf(
      "%d of several blocks, %d split, %d with narrow rows of x, %d by elements, %d with narrow rows of y, "
      "%d with several parts a warp, %d with boxes of x\n",
      convt::several_blocks, convt::split, convt::narrow, convt::elements, convt::narrow_y, convt::again, convt::boxes);
  return status;
}
