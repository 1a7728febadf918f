// Random problems through the kernels for few positions on the CPU, by tests/simt: every configuration, element type,
// layout and width of the loads.
// Usage: few_positions_simt SEED PROBLEMS
#define SIMT_MAIN
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/few_positions/kernel.cuh"
#include "plan/planner.h"

namespace convt {
namespace {

std::mt19937 generator;
int wide = 0;
int64_t pick(int64_t lowest, int64_t highest) {
  return std::uniform_int_distribution<int64_t>(lowest, highest)(generator);
}

Strides dense(const std::array<int64_t, 4>& s, bool channels_last) {
  return channels_last ? Strides{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]}
                       : Strides{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

// The elements of a tensor with this stride pattern, gaps included.
int64_t reach(const std::array<int64_t, 4>& sizes, const Strides& strides) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (sizes[d] - 1) * strides[d];
  return last + 1;
}

int64_t at(const Strides& s, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * s[0] + b * s[1] + c * s[2] + d * s[3];
}

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
  const few_positions::Config& c = few_positions::configs[row];
  constexpr bool single = sizeof(Scalar) == 4;
  Problem p = random_problem();
  p.dtype = single ? DataType::float32 : std::is_same_v<Scalar, Float16> ? DataType::float16 : DataType::bfloat16;
  p.precision = pick(0, 1) == 0 ? Precision::ieee : Precision::tf32;
  const bool channels_last = pick(0, 1) == 1;
  p.x_strides = dense(p.x_sizes(), channels_last);
  p.w_strides = dense(p.w_sizes(), pick(0, 2) == 0);
  p.y_strides = dense(p.y_sizes(), pick(0, 3) == 0 ? !channels_last : channels_last);
  // A slice of a larger tensor.
  if (pick(0, 3) == 0)
    p.x_strides[channels_last ? 3 : 2] += pick(0, 1) == 0 ? 4 : pick(1, 3),
        p.x_strides[2] += channels_last ? p.in_w * 8 : 0, p.x_strides[1] += channels_last ? 0 : p.in_h * 8,
        p.x_strides[0] *= 9;
  p.has_bias = pick(0, 1) == 1;
  p.bias_stride = pick(1, 2);
  p.w_aligned = pick(0, 3) != 0;
  const int64_t x_reach = reach(p.x_sizes(), p.x_strides), w_reach = reach(p.w_sizes(), p.w_strides),
                y_reach = reach(p.y_sizes(), p.y_strides), b_reach = p.out_channels * p.bias_stride;
  const auto low = [] { return pick(0, 3) == 0; };
  simt::Buffer<Scalar> x(x_reach, pick(0, 5), low()), w(w_reach, p.w_aligned ? pick(-1, 0) : pick(1, 5), low()),
      b(b_reach, pick(0, 5)), y(y_reach, pick(0, 5), low());
  std::normal_distribution<float> normal;
  const auto fill = [&](Scalar* data, const std::array<int64_t, 4>& n, const Strides& s) {
    for (int64_t i = 0; i < n[0]; ++i) {
      for (int64_t j = 0; j < n[1]; ++j) {
        for (int64_t k = 0; k < n[2]; ++k) {
          for (int64_t l = 0; l < n[3]; ++l) data[at(s, i, j, k, l)] = from_float<Scalar>(normal(generator));
        }
      }
    }
  };
  fill(x.data, p.x_sizes(), p.x_strides), fill(w.data, p.w_sizes(), p.w_strides);
  for (int64_t i = 0; i < b_reach; ++i) b.data[i] = from_float<Scalar>(normal(generator));
  // Now and then a value that is not finite: it must reach exactly what a tap connects it with.
  const bool spoilt = pick(0, 3) == 0;
  if (spoilt) {
    Scalar* data = pick(0, 1) == 0 ? x.data : w.data;
    const auto sizes = data == x.data ? p.x_sizes() : p.w_sizes();
    const auto& strides = data == x.data ? p.x_strides : p.w_strides;
    int64_t i[4];
    for (int d = 0; d < 4; ++d) i[d] = pick(0, 1) == 0 ? pick(0, 1) * (sizes[d] - 1) : pick(0, sizes[d] - 1);
    data[at(strides, i[0], i[1], i[2], i[3])] = from_float<Scalar>(pick(0, 1) == 0 ? HUGE_VALF : NAN);
  }

  const std::string name = std::string("few_positions/") + c.name;
  Plan plan;
  try {
    plan = make_forced_plan(p, *find_device("h200"), name);
  } catch (const std::invalid_argument& e) {
    std::printf("%s\n%s\n", e.what(), describe(p).c_str());
    return false;
  }
  // Any number of output channels a block, not only the planner's.
  const std::vector<int64_t> choices = few_positions::channel_choices(p);
  const int64_t out_channels = choices[pick(0, static_cast<int64_t>(choices.size()) - 1)];
  const int32_t vector = few_positions::vector_elements(p, out_channels);
  const few_positions::Division d = few_positions::divide(p, c, out_channels, vector);
  plan.cut = {static_cast<int32_t>(out_channels), vector};
  plan.grid = d.blocks, plan.shared_bytes = d.shared_bytes;
  if (vector * sizeof(Scalar) == 16) ++wide;
  const few_positions::Params params = few_positions::make_params(plan, p, {x.data, w.data, nullptr, b.data, y.data});
  const auto with = [&]<int Vector, int Positions>() {
    simt::launch(static_cast<unsigned>(plan.grid), few_positions::threads, static_cast<size_t>(plan.shared_bytes),
                 [&] { few_positions::few_positions_kernel<Scalar, Vector, Positions>(params); });
  };
  const auto with_vector = [&]<int Vector>() {
    c.positions == 1 ? with.template operator()<Vector, 1>() : with.template operator()<Vector, 4>();
  };
  if (vector * sizeof(Scalar) == 16) {
    with_vector.template operator()<16 / sizeof(Scalar)>();
  } else if (vector > 1) {
    with_vector.template operator()<2>();
  } else {
    with_vector.template operator()<1>();
  }

  const auto operand = [&](Scalar v) { return static_cast<double>(to_float(v)); };
  const Axis<int64_t> h = p.axis_h(), v = p.axis_w();
  const double rounding = single ? 0x1p-24 : std::is_same_v<Scalar, Float16> ? 0x1p-11 : 0x1p-8;
  const double smallest = std::is_same_v<Scalar, Float16> ? 0x1p-25 : 0;
  const int64_t cin = p.in_channels_per_group(), cout = p.out_channels_per_group();
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t co = 0; co < p.out_channels; ++co) {
      for (int64_t r = 0; r < p.out_h; ++r) {
        const Taps<int64_t> rows = transposed_taps(h, r);
        for (int64_t s = 0; s < p.out_w; ++s) {
          const Taps<int64_t> columns = transposed_taps(v, s);
          double sum = p.has_bias ? to_float(b.data[co * p.bias_stride]) : 0, magnitude = std::abs(sum);
          for (int64_t j = 0; j < rows.count; ++j) {
            for (int64_t k = 0; k < columns.count; ++k) {
              for (int64_t i = 0; i < cin; ++i) {
                const int64_t ci = co / cout * cin + i;
                const double product = operand(x.data[at(p.x_strides, n, ci, rows.position + j * rows.position_step,
                                                         columns.position + k * columns.position_step)]) *
                                       operand(w.data[at(p.w_strides, ci, co % cout, rows.tap + j * rows.tap_step,
                                                         columns.tap + k * columns.tap_step)]);
                sum += product, magnitude += std::abs(product);
              }
            }
          }
          const double result = to_float(y.data[at(p.y_strides, n, co, r, s)]);
          if (!std::isfinite(sum)) {
            if (!std::isfinite(result)) continue;
          }
          // Of float32's sums each rounds once.
          const double terms = static_cast<double>(2 * rows.count * columns.count + cin + 4);
          const double sums = terms * 0x1p-24 * magnitude;
          if (!(std::abs(result - sum) <= sums + rounding * (std::abs(sum) + sums) + smallest)) {
            std::printf("%s: y[%lld, %lld, %lld, %lld] is %g, not %g%s\n%s\n", name.c_str(), static_cast<long long>(n),
                        static_cast<long long>(co), static_cast<long long>(r), static_cast<long long>(s), result, sum,
                        spoilt ? ", spoilt" : "", describe(p).c_str());
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
  const auto seed = static_cast<unsigned>(std::atoi(argv[1]));
  const int problems = std::atoi(argv[2]);
  for (int i = 0; i < problems; ++i) {
    // Each problem by itself, so that a failing one can be repeated alone: SEED + i, 1.
    const unsigned number = seed + static_cast<unsigned>(i);
    convt::generator.seed(number), simt::seed(number);
    const auto row = static_cast<int32_t>(number % convt::few_positions::config_count);
    const unsigned type = number / convt::few_positions::config_count % 3;
    const bool right = type == 0   ? convt::run<float>(row)
                       : type == 1 ? convt::run<convt::Float16>(row)
                                   : convt::run<convt::BFloat16>(row);
    if (!right) {
      std::printf("problem %u\n", number);
      return 1;
    }
  }
  std::printf("%d problems, %d of them with loads of 16 bytes\n", problems, convt::wide);
  return 0;
}
