// Random problems through the grouped kernels' own source, run by the emulator of tests/simt: built by test_grouped.py.
// Usage: grouped_simt SEED PROBLEMS
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

#define SIMT_MAIN
#include "kernels/grouped/kernel.cuh"
#include "plan/planner.h"

namespace convt {
namespace {

std::mt19937 generator;
int64_t pick(int64_t lowest, int64_t highest) {
  return std::uniform_int_distribution<int64_t>(lowest, highest)(generator);
}

template <class Scalar>
void fill(const simt::Buffer<Scalar>& b, int64_t count) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) b.data[i] = from_float<Scalar>(normal(generator));
}

template <class Scalar>
double operand(Scalar v, bool tf32) {
  const float f = to_float(v);
  return sizeof(Scalar) == 4 && tf32 ? float_of_bits(device::to_tf32(f)) : f;
}

Strides strides_of(const std::array<int64_t, 4>& s, bool last) {
  return last ? Strides{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : Strides{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

Problem problem(DataType dtype, Precision precision) {
  Problem p;
  p.dtype = dtype, p.precision = precision;
  const int shape = static_cast<int>(pick(0, 9));
  do {
    p.batch = pick(1, 2);
    p.groups = pick(0, 1) == 0 ? 1 : pick(1, 5);
    p.in_channels = p.groups * (pick(0, 3) == 0 ? 8 : pick(1, p.groups == 1 ? 40 : 12));
    p.out_channels = p.groups * (pick(0, 3) == 0 ? 8 * pick(1, 2) : pick(1, p.groups == 1 ? 36 : 20));
    p.in_h = pick(1, 7), p.in_w = pick(0, 1) == 0 ? pick(1, 20) : 4 * pick(1, 12);
    if (shape == 0) p.in_h = p.in_w = 1;
    if (shape == 1) p.in_h = 1, p.in_w = pick(100, 700);
    p.kernel_h = pick(1, 5), p.kernel_w = pick(1, 5);
    p.stride_h = pick(1, 5), p.stride_w = pick(0, 7) == 0 ? pick(6, 32) : pick(1, 5);
    p.dilation_h = pick(0, 1) == 0 ? 1 : pick(1, 4), p.dilation_w = pick(0, 1) == 0 ? 1 : pick(1, 4);
    p.padding_h = pick(0, 6), p.padding_w = pick(0, 6);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, 3), p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, 3), p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.useful_macs() > 400'000 || p.y_elements() > 60'000);
  return p;
}

// How often a way to cut a problem was met.
int64_t met[9];
void count(const grouped::Tiling& t) {
  const bool groups = t.block_groups > 1;
  const bool ways[] = {t.staged,   t.y_pixels && !t.staged, t.blanks,    t.strips > 1, groups && t.y_pixels, groups,
                       t.rows > 1, t.chunk_rows > t.rows,   t.blank_rows};
  for (int i = 0; i < 9; ++i) met[i] += ways[i];
}

std::string line(const Problem& p) {
  char text[256];
  std::snprintf(text, sizeof(text), "batch %d channels %d -> %d groups %d image %dx%d kernel %dx%d out %dx%d",
                static_cast<int>(p.batch), static_cast<int>(p.in_channels), static_cast<int>(p.out_channels),
                static_cast<int>(p.groups), static_cast<int>(p.in_h), static_cast<int>(p.in_w),
                static_cast<int>(p.kernel_h), static_cast<int>(p.kernel_w), static_cast<int>(p.out_h),
                static_cast<int>(p.out_w));
  return text + (" " + describe(p));
}

template <class Scalar, bool Strict, int StepWords, int Row>
void launch_row(const Problem& p, const grouped::Params& params) {
  const auto run = [&]<bool XPixels>() {
    constexpr grouped::Config c = grouped::configs[Row];
    simt::launch(dim3(static_cast<unsigned>(grouped::blocks(params.t, p))), grouped::block,
                 static_cast<size_t>(params.t.shared_bytes), [&] {
                   grouped::grouped_kernel<Scalar, Strict, StepWords, c.tiles,
                                           grouped::pixel_tiles(c, sizeof(Scalar), Strict, XPixels), XPixels>(params);
                 });
  };
  if constexpr (grouped::takes_x(grouped::configs[Row], true)) {
    if (params.t.x_pixels) return run.template operator()<true>();
  }
  run.template operator()<false>();
}

template <class Scalar, bool Strict, int StepWords>
void launch(const Plan& plan, const Problem& p, const grouped::Params& params) {
  if (plan.configuration == 0) {
    launch_row<Scalar, Strict, StepWords, 0>(p, params);
  } else {
    launch_row<Scalar, Strict, StepWords, 1>(p, params);
  }
}

template <class Scalar, bool Strict>
bool run(DataType dtype) {
  constexpr bool tf32 = sizeof(Scalar) == 4 && !Strict;
  Problem p = problem(dtype, tf32 ? Precision::tf32 : Precision::ieee);
  const bool x_last = pick(0, 1) == 1, y_last = pick(0, 3) == 0 ? !x_last : x_last;
  p.x_strides = strides_of(p.x_sizes(), x_last), p.y_strides = strides_of(p.y_sizes(), y_last);
  p.w_strides = strides_of(p.w_sizes(), pick(0, 3) == 0);
  // Rows and images of the input further apart than they are long.
  int64_t x_elements = p.x_elements();
  if (pick(0, 3) == 0) {
    const int64_t more = pick(1, 9);
    const int axis = x_last ? 3 : 2;  // of the columns, or of the rows
    p.x_strides[axis] += more;
    if (x_last) {
      p.x_strides[2] = p.x_strides[3] * p.in_w, p.x_strides[0] = p.x_strides[2] * p.in_h;
    } else {
      p.x_strides[1] = p.x_strides[2] * p.in_h, p.x_strides[0] = p.x_strides[1] * p.in_channels;
    }
    x_elements = 1;
    for (int d = 0; d < 4; ++d) x_elements += (p.x_sizes()[d] - 1) * p.x_strides[d];
  }
  // Channels and rows that are expanded: all the same memory.
  if (!x_last && pick(0, 7) == 0) p.x_strides[1] = p.x_strides[2] = 0;
  p.has_bias = pick(0, 1) == 1;
  p.bias_stride = pick(1, 2);
  const auto offset = [&]() -> int64_t { return pick(0, 2) == 0 ? 0 : pick(-1, 40); };
  const bool low = pick(0, 3) == 0;
  const simt::Buffer<Scalar> x(x_elements, low ? 0 : offset(), low), w(p.w_elements(), offset()),
      b(p.out_channels * p.bias_stride, offset()), y(p.y_elements(), low ? 0 : offset(), low);
  fill(x, x_elements), fill(w, p.w_elements()), fill(b, p.out_channels * p.bias_stride);
  // Infinities and NaN reach what a tap connects them with, and nothing else.
  const int spoil = static_cast<int>(pick(0, 5));
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {inf, -inf, std::numeric_limits<float>::quiet_NaN()};
  if (spoil == 0) w.data[pick(0, p.w_elements() - 1)] = from_float<Scalar>(values[pick(0, 2)]);
  if (spoil == 1) x.data[pick(0, x_elements - 1)] = from_float<Scalar>(values[pick(0, 2)]);
  int32_t row = static_cast<int32_t>(pick(0, 1));
  if (p.out_channels_per_group() <= 8 || !grouped::takes_x(grouped::configs[row], grouped::x_pixels(p))) row = 0;
  const std::string configuration = std::string("grouped/") + grouped::configs[row].name;
  Plan plan = make_forced_plan(p, *find_device("h200"), configuration);
  if (pick(0, 2) != 0) {
    // As other problems are cut: groups and channels of a block, strips, parts of a row, rows.
    const grouped::Config& c = grouped::configs[row];
    const auto least = [](int64_t n, int64_t m) { return static_cast<int32_t>(std::min(n, m)); };
    const int64_t tiles = (p.out_channels_per_group() + 7) / 8;
    grouped::Cut cut{};
    cut[0] = pick(0, 2) == 0 ? least(pick(1, 4), p.groups) : 1;
    cut[1] = static_cast<int32_t>(round_up(cut[0] > 1 ? tiles : pick(1, tiles), c.tiles));
    const int64_t unit = 16 * grouped::pixel_tiles(c, p) * p.stride_w;
    cut[2] = static_cast<int32_t>(pick(0, 1) == 0 ? round_up(p.out_w, p.stride_w) : pick(1, 3) * unit);
    cut[3] = least(pick(1, 6), p.out_h);
    cut[4] = static_cast<int32_t>(round_up(least(pick(1, 20), p.out_h), cut[3]));
    cut[5] = y_last ? 0 : static_cast<int32_t>(pick(0, 4) > 0);
    if (grouped::tiling(c, p, cut).shared_bytes <= 226 << 10) plan.cut = cut;
  }
  grouped::Params params = grouped::make_params(plan, p, {x.data, w.data, nullptr, b.data, y.data});
  count(params.t);
  simt::seed(static_cast<unsigned>(generator()));
  device::has_copy_engine = pick(0, 3) != 0;
  if constexpr (sizeof(Scalar) == 2) {
    if (params.t.step_words == 4) {
      launch<Scalar, Strict, 4>(plan, p, params);
    } else {
      launch<Scalar, Strict, Strict ? 4 : 8>(plan, p, params);
    }
  } else {
    launch<Scalar, Strict, Strict ? 4 : 8>(plan, p, params);
  }

  const Axis<int64_t> h = p.axis_h(), v = p.axis_w();
  const double rounding = dtype == DataType::float32 ? 0x1p-24 : dtype == DataType::float16 ? 0x1p-11 : 0x1p-8;
  const double smallest = dtype == DataType::float16 ? 0x1p-25 : 0;
  const int64_t cin = p.in_channels_per_group(), cout = p.out_channels_per_group();
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t c = 0; c < p.out_channels; ++c) {
      for (int64_t r = 0; r < p.out_h; ++r) {
        for (int64_t o = 0; o < p.out_w; ++o) {
          double sum = p.has_bias ? to_float(b.data[c * p.bias_stride]) : 0, magnitude = std::abs(sum);
          const Taps<int64_t> rows = transposed_taps(h, r), columns = transposed_taps(v, o);
          for (int64_t j = 0; j < rows.count; ++j) {
            for (int64_t k = 0; k < columns.count; ++k) {
              const int64_t ih = rows.position + j * rows.position_step,
                            iw = columns.position + k * columns.position_step;
              const int64_t th = rows.tap + j * rows.tap_step, tw = columns.tap + k * columns.tap_step;
              for (int64_t i = 0; i < cin; ++i) {
                const int64_t ci = c / cout * cin + i;
                const double product =
                    operand(
                        x.data[n * p.x_strides[0] + ci * p.x_strides[1] + ih * p.x_strides[2] + iw * p.x_strides[3]],
                        tf32) *
                    operand(w.data[ci * p.w_strides[0] + c % cout * p.w_strides[1] + th * p.w_strides[2] +
                                   tw * p.w_strides[3]],
                            tf32);
                sum += product, magnitude += std::abs(product);
              }
            }
          }
          const double result =
              to_float(y.data[n * p.y_strides[0] + c * p.y_strides[1] + r * p.y_strides[2] + o * p.y_strides[3]]);
          // The emulator rounds once an instruction; in strict float32 a product loses its lowest part.
          const double terms = static_cast<double>(rows.count * columns.count * ((cin + 7) / 8) + 2);
          const double sums = (terms + (Strict ? 4 : 0)) * 0x1p-24 * magnitude;
          const bool right = std::isnan(sum) ? std::isnan(result)
                             : std::isinf(sum)
                                 ? result == sum
                                 : std::abs(result - sum) <= sums + rounding * (std::abs(sum) + sums) + smallest;
          if (!right) {
            std::printf("%s: y[%d, %d, %d, %d] is %g, not %g\n%s\n%s\n", configuration.c_str(), static_cast<int>(n),
                        static_cast<int>(c), static_cast<int>(r), static_cast<int>(o), result, sum, line(p).c_str(),
                        ("strips " + std::to_string(params.t.strips) + " of " + std::to_string(params.t.strip_columns) +
                         " rows " + std::to_string(params.t.rows) + " chunk " + std::to_string(params.t.chunk_rows))
                            .c_str());
            return false;
          }
        }
      }
    }
  }
  return true;
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int seed = std::atoi(argv[1]), problems = std::atoi(argv[2]);
  for (int i = 0; i < problems; ++i) {
    convt::generator.seed(static_cast<unsigned>(seed + i));
    const bool right = i % 4 == 0   ? convt::run<float, false>(convt::DataType::float32)
                       : i % 4 == 1 ? convt::run<float, true>(convt::DataType::float32)
                       : i % 4 == 2 ? convt::run<convt::Float16, false>(convt::DataType::float16)
                                    : convt::run<convt::BFloat16, false>(convt::DataType::bfloat16);
    if (!right) {
      std::printf("problem %d\n", i);
      return 1;
    }
  }
  std::printf(
      "%d problems; staged, planes from registers, blanks, strips, groups of planes, groups, rows, steps, blank "
      "rows:",
      problems);
  for (int64_t n : convt::met) std::printf(" %d", static_cast<int>(n));
  std::printf("\n");
  return 0;
}
