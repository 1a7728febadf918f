// Random problems for kernels in the SIMT emulator, and their outputs by definition.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include "kernels/device.h"
#include "plan/planner.h"

namespace convt {

inline std::mt19937 generator;
inline int64_t pick(int64_t lowest, int64_t highest) {
  return std::uniform_int_distribution<int64_t>(lowest, highest)(generator);
}

inline Strides dense(const std::array<int64_t, 4>& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }
inline Strides channels_last(const std::array<int64_t, 4>& s) { return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]}; }
inline int64_t reach(const std::array<int64_t, 4>& sizes, const Strides& strides) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (sizes[d] - 1) * strides[d];
  return last + 1;
}

template <class Scalar>
inline constexpr DataType data_type = sizeof(Scalar) == 4               ? DataType::float32
                                      : std::is_same_v<Scalar, Float16> ? DataType::float16
                                                                        : DataType::bfloat16;

// How a problem's tensors are in memory: NCHW or channels_last, x and y mostly alike; x may be a slice of a larger
// tensor, and the bias every second element of one.
inline void lay_out(Problem& p) {
  const auto strides = [](const std::array<int64_t, 4>& sizes, bool last) {
    return last ? channels_last(sizes) : dense(sizes);
  };
  const bool last = pick(0, 1) == 1;
  p.x_strides = strides(p.x_sizes(), last);
  p.w_strides = strides(p.w_sizes(), pick(0, 2) == 0);
  p.y_strides = strides(p.y_sizes(), pick(0, 3) == 0 ? !last : last);
  if (pick(0, 3) == 0) {
    p.x_strides[last ? 3 : 2] += pick(0, 1) == 0 ? 4 : pick(1, 3);
    p.x_strides[last ? 2 : 1] += (last ? p.in_w : p.in_h) * 8, p.x_strides[0] *= 9;
  }
  p.has_bias = pick(0, 1) == 1, p.bias_stride = pick(1, 2);
}

// Small shapes of every kind: odd and vector-sized widths, one pixel, paddings beyond the kernel, empty phases, groups.
inline Problem random_problem(DataType dtype, Precision precision) {
  Problem p;
  p.dtype = dtype, p.precision = precision;
  do {
    p.batch = pick(1, 3);
    p.groups = pick(0, 3) == 0 ? pick(1, 3) : 1;
    p.in_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 20) : 8 * pick(1, 5));
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 20) : 8 * pick(1, 9));
    p.in_h = pick(1, 12), p.in_w = pick(0, 1) == 0 ? pick(1, 20) : 4 * pick(1, 8);
    p.kernel_h = pick(1, 5), p.kernel_w = pick(1, 5);
    p.stride_h = pick(1, 3), p.stride_w = pick(0, 3) == 0 ? pick(1, 6) : pick(1, 2);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 3) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 3) : 1;
    p.padding_h = pick(0, 3), p.padding_w = pick(0, 4);
    // Kernels and outputs of whole strides, whose columns' phases may be output channels.
    const bool whole = pick(0, 5) == 0;
    if (whole) {
      p.stride_w = pick(2, 6), p.kernel_w = p.stride_w * (p.stride_w > 3 ? 1 : pick(1, 3)), p.dilation_w = 1;
      p.padding_w = pick(0, 3) == 0 ? p.stride_w : 0;
    }
    const auto size = [](int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
      return output_size(in, kernel, stride, padding, pick(0, std::max(stride, dilation) - 1), dilation);
    };
    p.out_h = size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
    p.out_w = size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
    if (whole) p.out_w -= p.out_w % p.stride_w;
  } while (p.out_h <= 0 || p.out_w <= 0 || p.out_h * p.out_w > 2000 || p.useful_macs() > 4000000);
  const auto strides = [](const std::array<int64_t, 4>& sizes) {
    return pick(0, 1) == 0 ? dense(sizes) : channels_last(sizes);
  };
  p.x_strides = strides(p.x_sizes()), p.w_strides = strides(p.w_sizes()), p.y_strides = strides(p.y_sizes());
  if (pick(0, 7) == 0) {  // every second element of memory
    for (int64_t& s : p.x_strides) s *= 2;
  }
  p.has_bias = pick(0, 1) == 1;
  p.bias_stride = 1;
  return p;
}

// The same on few pixels, with input channels of several chunks, and outputs that all have taps.
inline Problem with_many_channels(Problem p) {
  const auto strides = [](const std::array<int64_t, 4>& sizes, const Strides& old) {
    return old[1] == 1 ? channels_last(sizes) : dense(sizes);
  };
  p.dilation_h = p.dilation_w = 1;
  p.stride_h = std::min(p.stride_h, p.kernel_h), p.stride_w = std::min(p.stride_w, p.kernel_w);
  do {
    p.groups = 1, p.in_channels = 8 * pick(9, 32), p.out_channels = pick(1, 80);
    p.batch = pick(1, 4), p.in_h = pick(1, 5), p.in_w = pick(1, 6), p.padding_h = p.padding_w = 0;
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, 0, 0, p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, 0, 0, p.dilation_w);
  } while (p.useful_macs() > 600000);
  p.x_strides = strides(p.x_sizes(), p.x_strides), p.w_strides = strides(p.w_sizes(), p.w_strides);
  p.y_strides = strides(p.y_sizes(), p.y_strides);
  return p;
}

// The same with one output channel, whose stride, which nothing is at a multiple of, may be that of channels_last.
inline Problem with_one_output_channel(Problem p) {
  p.groups = p.out_channels = 1;
  p.x_strides = p.x_strides[1] == 1 ? channels_last(p.x_sizes()) : dense(p.x_sizes());
  p.w_strides = dense(p.w_sizes());
  p.y_strides = pick(0, 1) == 0 ? dense(p.y_sizes()) : channels_last(p.y_sizes());
  return p;
}

// The same with a single row of outputs, which no tap reaches, and more channels than a block of 64 has.
inline Problem without_taps(Problem p) {
  p.groups = 1, p.in_h = p.kernel_h = p.out_h = p.padding_h = 1, p.stride_h = 3, p.out_channels = pick(60, 140);
  p.x_strides = dense(p.x_sizes()), p.w_strides = dense(p.w_sizes()), p.y_strides = dense(p.y_sizes());
  return p;
}

// Kernels as large as their stride, in NCHW or channels_last, of which rows of x may begin at any element, or at
// multiples of `unit`. The width of a kernel is kernel_w(whether the layout is channels_last).
template <class KernelWidth>
Problem random_patches(DataType dtype, int64_t unit, const KernelWidth& kernel_w) {
  Problem p;
  p.dtype = dtype;
  do {
    const bool last = pick(0, 1) == 1;
    p.batch = pick(1, 4);
    p.groups = !last && pick(0, 3) == 0 ? pick(1, 3) : 1;
    p.in_channels = p.groups * (pick(0, 3) == 0 ? pick(1, 20) : 8 * pick(1, pick(0, 2) == 0 ? 80 : 20));
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 12));
    p.in_h = pick(1, 14), p.in_w = pick(0, 1) == 0 ? pick(1, 20) : 4 * pick(1, 8);
    p.kernel_h = p.stride_h = pick(1, 4);
    p.kernel_w = p.stride_w = kernel_w(last);
    p.out_h = p.in_h * p.stride_h, p.out_w = p.in_w * p.stride_w;
    const auto strides = [&](const std::array<int64_t, 4>& sizes) {
      return last ? channels_last(sizes) : dense(sizes);
    };
    p.x_strides = strides(p.x_sizes()), p.w_strides = strides(p.w_sizes()), p.y_strides = strides(p.y_sizes());
    // Images or channels of a larger tensor.
    if (pick(0, 3) == 0) p.x_strides[0] += (pick(0, 1) == 0 ? unit : 1) * pick(1, 9);
    if (pick(0, 3) == 0) p.x_strides[last ? 0 : 1] += (pick(0, 1) == 0 ? unit : 1) * pick(1, 9), p.x_strides[0] *= 3;
    if (last && pick(0, 3) == 0) p.x_strides = channels_last({p.batch, p.in_channels + 8, p.in_h, p.in_w});
    if (pick(0, 7) == 0) p.y_strides[0] += pick(1, 9);
    p.has_bias = pick(0, 1) == 1;
    p.bias_stride = 1;
  } while (p.useful_macs() > 6000000);
  return p;
}

// A program's problems, SEED PROBLEMS on its command line: run(number) makes one and says whether it is right. Each is
// made of its number alone, so that one that is not can be repeated.
template <class Run>
int run_problems(int argc, char** argv, const Run& run) {
  if (argc != 3) return 2;
  const int seed = std::atoi(argv[1]), problems = std::atoi(argv[2]);
  for (int number = seed; number < seed + problems; ++number) {
    generator.seed(static_cast<unsigned>(number));
    simt::seed(static_cast<unsigned>(number));
    if (!run(number)) {
      std::printf("seed %d\n", number);
      return 1;
    }
  }
  std::printf("%d problems\n", problems);
  return 0;
}

// run.operator()<Scalar>() of a number's type.
template <class Run>
bool run_type(int number, const Run& run) {
  switch (number % 3) {
    case 0:
      return run.template operator()<float>();
    case 1:
      return run.template operator()<Float16>();
    default:
      return run.template operator()<BFloat16>();
  }
}

// run.operator()<Scalar, Strict>() of a number's precision: TF32, float32 without, 16 bits.
template <class Run>
bool run_precision(int number, const Run& run) {
  switch (number % 4) {
    case 0:
      return run.template operator()<float, false>();
    case 1:
      return run.template operator()<float, true>();
    case 2:
      return run.template operator()<Float16, false>();
    default:
      return run.template operator()<BFloat16, false>();
  }
}

// The plan of a configuration, none if it does not take the problem, and why not.
inline std::optional<Plan> forced_plan(const Problem& p, const std::string& configuration,
                                       std::string* reason = nullptr) {
  try {
    return make_forced_plan(p, *find_device("h200"), configuration);
  } catch (const std::invalid_argument& e) {
    if (reason != nullptr) *reason = e.what();
    return std::nullopt;
  }
}

// The same of a configuration that takes every problem: if it does not, its reason and the problem are printed.
inline std::optional<Plan> plan_of_any(const Problem& p, const std::string& configuration) {
  std::string reason;
  std::optional<Plan> plan = forced_plan(p, configuration, &reason);
  if (!plan) std::printf("%s\n%s\n", reason.c_str(), describe(p).c_str());
  return plan;
}

// Of so many taps and channels, at most so many roundings of a sum's magnitude.
using Roundings = double (*)(int64_t taps, int64_t channels);

// Where each sum rounds once; strict float32 loses another 2^-22 of each product.
template <bool Strict>
double roundings_of_sums(int64_t taps, int64_t channels) {
  return static_cast<double>(2 * taps + channels + 4 + (Strict ? 4 : 0));
}

template <class Scalar>
struct Case {
  Problem p;
  simt::Buffer<Scalar> x, w, bias, y;

  // Operands are aligned to 16 bytes, or begin at any element, or end where memory does.
  static int64_t offset() { return pick(0, 1) == 0 ? 0 : pick(-1, 9); }

  explicit Case(const Problem& problem)
      : p(problem),
        x(reach(p.x_sizes(), p.x_strides), offset(), pick(0, 1) == 1),
        w(reach(p.w_sizes(), p.w_strides), offset(), pick(0, 1) == 1),
        bias(p.out_channels * p.bias_stride, offset()),
        y(reach(p.y_sizes(), p.y_strides), offset(), pick(0, 1) == 1) {
    std::normal_distribution<float> normal;
    const auto fill = [&](const simt::Buffer<Scalar>& b, const std::array<int64_t, 4>& n, const Strides& s) {
      for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i) {
        b.data[i / (n[1] * n[2] * n[3]) * s[0] + i / (n[2] * n[3]) % n[1] * s[1] + i / n[3] % n[2] * s[2] +
               i % n[3] * s[3]] = from_float<Scalar>(normal(generator));
      }
    };
    fill(x, p.x_sizes(), p.x_strides), fill(w, p.w_sizes(), p.w_strides);
    for (int64_t i = 0; i < p.out_channels * p.bias_stride; ++i) {
      bias.data[i] = from_float<Scalar>(normal(generator));
    }
    if (pick(0, 5) == 0) {
      // One element that is not finite: it must reach exactly the outputs that a tap connects with it. Corners too.
      const bool of_x = pick(0, 1) == 0;
      const std::array<int64_t, 4> sizes = of_x ? p.x_sizes() : p.w_sizes();
      const Strides& strides = of_x ? p.x_strides : p.w_strides;
      int64_t at = 0;
      for (int d = 0; d < 4; ++d)
        at += (pick(0, 1) == 0 ? pick(0, 1) * (sizes[d] - 1) : pick(0, sizes[d] - 1)) * strides[d];
      (of_x ? x : w).data[at] = from_float<Scalar>(pick(0, 1) == 0 ? INFINITY : NAN);
    }
  }

  // With what is known of where the operands begin.
  Problem placed() const {
    Problem q = p;
    q.x_aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    q.w_aligned = reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
    return q;
  }

  // Each output against the sum of products of `rounded` operands in float64. `most`: a bound beside that of all sums.
  bool check(const char* what, float (*rounded)(float), Roundings most = nullptr) const {
    return check(what, rounded, rounded, most);
  }
  // The same of sums that round once each, in TF32 of operands that threads have rounded.
  template <bool Strict>
  bool check_sums(const char* what) const {
    const bool rounds = p.dtype == DataType::float32 && !Strict;
    const auto rounded = [](float v) { return __uint_as_float(device::to_tf32(v)); };
    const auto same = [](float v) { return v; };
    return rounds ? check(what, rounded, roundings_of_sums<Strict>) : check(what, same, roundings_of_sums<Strict>);
  }
  bool check(const char* what, float (*rounded_x)(float), float (*rounded_w)(float), Roundings most = nullptr) const {
    const double rounding = p.dtype == DataType::float32 ? 0x1p-24 : p.dtype == DataType::float16 ? 0x1p-11 : 0x1p-8;
    const double smallest = p.dtype == DataType::float16 ? 0x1p-25 : 0;
    const Axis<int64_t> h = p.axis_h(), v = p.axis_w();
    const auto at = [](const Strides& s, int64_t a, int64_t b, int64_t c, int64_t d) {
      return a * s[0] + b * s[1] + c * s[2] + d * s[3];
    };
    const int64_t in = p.in_channels_per_group(), out = p.out_channels_per_group();
    for (int64_t n = 0; n < p.batch; ++n) {
      for (int64_t co = 0; co < p.out_channels; ++co) {
        for (int64_t row = 0; row < p.out_h; ++row) {
          const Taps<int64_t> rows = transposed_taps(h, row);
          for (int64_t column = 0; column < p.out_w; ++column) {
            const Taps<int64_t> columns = transposed_taps(v, column);
            double sum = p.has_bias ? to_float(bias.data[co * p.bias_stride]) : 0, magnitude = std::abs(sum);
            for (int64_t ci = 0; ci < in; ++ci) {
              for (int64_t j = 0; j < rows.count; ++j) {
                for (int64_t k = 0; k < columns.count; ++k) {
                  const int64_t channel = co / out * in + ci;
                  const float a =
                      rounded_x(to_float(x.data[at(p.x_strides, n, channel, rows.position + j * rows.position_step,
                                                   columns.position + k * columns.position_step)]));
                  const float b =
                      rounded_w(to_float(w.data[at(p.w_strides, channel, co % out, rows.tap + j * rows.tap_step,
                                                   columns.tap + k * columns.tap_step)]));
                  sum += static_cast<double>(a) * b, magnitude += std::abs(static_cast<double>(a) * b);
                }
              }
            }
            const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
            const double result = to_float(y.data[at(p.y_strides, n, co, row, column)]);
            // Every addition rounds once. Of a product of two float32 that are the sums of two TF32 numbers, what the
            // second numbers leave out and their product are missing, 2^-21 of it at most.
            const double missing = p.strict_float32() ? 8 : 0;
            const double products = static_cast<double>(in * rows.count * columns.count);
            double roundings = 2 + missing + std::min(products, 16 + std::sqrt(products));
            if (most != nullptr) roundings = std::min(roundings, most(rows.count * columns.count, in));
            const double sums = roundings * 0x1p-24 * magnitude;
            if (!std::isfinite(sum)
                    ? !same(result, sum)
                    : !(std::abs(result - sum) <= sums + rounding * (std::abs(sum) + sums) + smallest)) {
              std::printf("%s: y[%lld, %lld, %lld, %lld] is %g, not %g\n%s\n", what, static_cast<long long>(n),
                          static_cast<long long>(co), static_cast<long long>(row), static_cast<long long>(column),
                          result, sum, describe(p).c_str());
              return false;
            }
          }
        }
      }
    }
    return true;
  }
};

}  // namespace convt
