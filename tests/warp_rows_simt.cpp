// Random problems through the warp_rows kernels' own source on the CPU, by tests/simt: every stride, configuration and
// type, cut in every way. Built by test_warp_rows.py.
// Usage: warp_rows_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cstdio>

#include "kernels/visit_row.h"
#include "kernels/warp_rows/kernel.cuh"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

int together = 0, narrow = 0, odd = 0, bare = 0, several = 0, last = 0, meeting = 0, whole = 0, begun = 0, two = 0,
    sectors = 0, meeting_strips = 0;

Problem random_problem(int64_t stride_w, const warp_rows::Config& config) {
  const int64_t most_channels = config.steps * warp_rows::step_channels;
  const bool one = config.rows == 1;  // outputs that read one input
  Problem p;
  do {
    p.batch = pick(1, 2);
    p.groups = pick(0, 1) == 0 ? 1 : pick(2, 4);
    p.in_channels = p.groups * (pick(0, 1) == 0 ? most_channels : pick(1, most_channels));
    p.out_channels = p.groups * (pick(0, 2) == 0 ? 8 : pick(1, 20));
    p.in_h = pick(1, 9), p.in_w = pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 9);
    p.stride_h = pick(0, 4) == 0 ? pick(4, 7) : pick(1, 3), p.stride_w = stride_w;
    p.kernel_h = pick(1, one ? p.stride_h : 2 * p.stride_h + 1);
    p.kernel_w = pick(1, one ? p.stride_w : 2 * p.stride_w + 1);
    p.dilation_h = pick(0, 2) == 0 ? pick(1, 3) : 1, p.dilation_w = pick(0, 2) == 0 ? pick(1, 3) : 1;
    p.padding_h = pick(0, 4), p.padding_w = pick(0, 6);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, std::max(p.stride_h, p.dilation_h) - 1),
                          p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, std::max(p.stride_w, p.dilation_w) - 1),
                          p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.useful_macs() > 400'000 || p.y_elements() > 60'000);
  return p;
}

float rounded(float v) { return float_of_bits(device::to_tf32(v)); }
float same(float v) { return v; }

// What a configuration does with a problem that it takes, against float64.
template <class Scalar, bool Strict, int Stride, int Row>
bool run() {
  constexpr warp_rows::Config config = warp_rows::configs[Row];
  const std::string name = std::string("warp_rows/") + config.name;
  for (;;) {
    Problem p = random_problem(Stride, config);
    p.dtype = data_type<Scalar>, p.precision = Strict || sizeof(Scalar) == 2 ? Precision::ieee : Precision::tf32;
    lay_out(p);
    if (config.writes == warp_rows::Writes::pieces && pick(0, 1) == 0) {
      p.x_strides = channels_last(p.x_sizes());
      p.y_strides = pick(0, 7) == 0 ? dense(p.y_sizes()) : channels_last(p.y_sizes());
      // Channels of a larger tensor, rows and images that are the same.
      if (pick(0, 3) == 0) {
        p.x_strides[3] += 2 * pick(0, 3), p.x_strides[2] = pick(0, 1) * (p.in_w * p.x_strides[3] + 2 * pick(0, 3));
        p.x_strides[0] = pick(0, 1) * p.in_h * p.x_strides[2];
      }
    } else {
      // Rows may be any distance apart, even none, where they are contiguous.
      p.x_strides[3] = 1, p.x_strides[2] = pick(0, 9) == 0 ? 0 : p.in_w + (pick(0, 2) == 0 ? pick(1, 5) : 0);
      p.x_strides[1] = pick(0, 9) == 0 ? 0 : p.x_strides[2] * p.in_h + (pick(0, 3) == 0 ? pick(1, 8) : 0);
      p.x_strides[0] = p.x_strides[1] * p.in_channels;
      p.y_strides = dense(p.y_sizes());
    }
    if (!forced_plan(p, name)) continue;
    const Case<Scalar> c(p);
    p = c.placed();
    std::optional<Plan> plan = forced_plan(p, name);
    if (!plan) continue;
    const Plan chosen = *plan;
    if (pick(0, 2) != 0) {
      // As other problems are cut.
      const int tile_bits = warp_rows::is_last(p) ? static_cast<int>(pick(0, 3)) : 0;
      const int32_t strips = config.writes == warp_rows::Writes::pieces ? 1 << pick(0, 3 - tile_bits) : chosen.cut[0];
      plan->cut = {strips, static_cast<int32_t>(pick(1, 5)), 1 << tile_bits};
      if (config.whole()) plan->cut[3] = static_cast<int32_t>(pick(1, warp_rows::most_row_buffers));
      if (warp_rows::has_two_tiles(config.writes)) plan->cut[4] = static_cast<int32_t>(pick(1, 2));
      constexpr int64_t most_shared_bytes = 227 << 10;
      if (warp_rows::tiling(config, p, plan->cut).shared_bytes > most_shared_bytes) plan = chosen;
    }
    const warp_rows::Tiling t = warp_rows::tiling(config, p, plan->cut);
    together += plan->cut[0] > 1, several += t.strips > 1;
    bare += busy_phases(phases(p.axis_h()), p.stride_h) < p.stride_h;
    const warp_rows::Params params =
        warp_rows::make_params(*plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data});
    whole += config.whole(), begun += config.whole() && !params.whole_sectors, two += t.warp_tiles > 1;
    sectors += config.sectors(), meeting_strips += config.sectors() && t.strips > 1;
    if (params.last) {
      ++last, meeting += params.store_width * sizeof(Scalar) == 16;
    } else {
      narrow += params.store_width * sizeof(Scalar) < 16, odd += !params.aligned;
    }
    simt::launch(dim3(static_cast<unsigned>(warp_rows::blocks(t, p))),
                 static_cast<unsigned>(warp_rows::block_threads(config, t)), static_cast<size_t>(t.shared_bytes), [&] {
                   constexpr warp_rows::Writes rows = config.writes;
                   const auto launched = [&]<bool Aligned, warp_rows::Writes writes>() {
                     warp_rows::warp_rows_kernel<Scalar, Strict, Stride, config.rows, config.columns, config.steps,
                                                 Aligned, writes>(params);
                   };
                   if constexpr (rows == warp_rows::Writes::pieces) {
                     if (params.last) return launched.template operator()<true, warp_rows::Writes::pixels>();
                   }
                   if constexpr (sizeof(Scalar) == 2) {
                     if (!params.aligned) return launched.template operator()<false, rows>();
                   }
                   launched.template operator()<true, rows>();
                 });
    return c.check(name.c_str(), Strict || sizeof(Scalar) == 2 ? same : rounded, roundings_of_sums<Strict>);
  }
}

template <class Scalar, bool Strict>
bool run(int stride, int row) {
  bool right = false;
  visit_row<warp_rows::config_count>(row, [&]<int Row>() {
    constexpr int32_t least = warp_rows::configs[Row].least_stride,
                      count = warp_rows::configs[Row].most_stride - least + 1;
    visit_row<count>(stride % count, [&]<int More>() {
      right = run<Scalar, Strict, warp_rows::configs[Row].least_stride + More, Row>();
    });
  });
  return right;
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    const int row = number / 4 % convt::warp_rows::config_count, stride = number / 4 / convt::warp_rows::config_count;
    return convt::run_precision(number,
                                [&]<class Scalar, bool Strict>() { return convt::run<Scalar, Strict>(stride, row); });
  });
  std::printf(
      "%d with strips side by side, %d whose rows are not whole vectors, %d whose rows of x begin within words, "
      "%d with rows without taps, %d of several strips, %d in channels_last, %d of them by 16 bytes, "
      "%d with whole rows, %d of which share sectors, %d with two tiles a warp, "
      "%d in whole sectors, %d of them of several strips\n",
      convt::together, convt::narrow, convt::odd, convt::bare, convt::several, convt::last, convt::meeting,
      convt::whole, convt::begun, convt::two, convt::sectors, convt::meeting_strips);
  return status;
}
