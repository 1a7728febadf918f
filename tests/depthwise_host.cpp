// Random problems through every depthwise configuration on the CPU, in buffers of exactly their size: built with
// AddressSanitizer and UBSan by test_depthwise.py, so that a read or write outside them or a misaligned vector stops
// it. Usage: depthwise_host SEED PROBLEMS
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/depthwise/blocking.h"
#include "kernels/depthwise/host.h"
#include "kernels/scalar.h"
#include "plan/planner.h"

namespace convt {
namespace {

std::mt19937 generator;
int64_t pick(int64_t lowest, int64_t highest) {
  return std::uniform_int_distribution<int64_t>(lowest, highest)(generator);
}

// `count` elements, the first of them `offset` elements into an aligned allocation that ends with the last.
template <class Scalar>
struct Buffer {
  std::unique_ptr<unsigned char[]> memory;
  Scalar* data;

  Buffer(int64_t count, int64_t offset) {
    const size_t bytes = static_cast<size_t>(count + offset) * sizeof(Scalar);
    memory.reset(new unsigned char[bytes]);
    std::memset(memory.get(), 0xff, bytes);  // NaN
    data = reinterpret_cast<Scalar*>(memory.get()) + offset;
  }
};

template <class Scalar>
void fill(Buffer<Scalar>& b, int64_t count) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) b.data[i] = from_float<Scalar>(normal(generator));
}

// A problem that the configuration takes, but for the strides of its tensors.
Problem random_problem(const depthwise::Config& c, DataType dtype) {
  const int64_t bytes = element_size(dtype);
  const bool last = c.form == depthwise::Form::last;
  const bool rows = c.form == depthwise::Form::rows;
  const int64_t columns = rows ? depthwise::tile_of(c, bytes).columns : 1;
  const int64_t store = rows ? depthwise::widest_store(c, bytes) : 1;
  Problem p;
  p.dtype = dtype;
  do {
    p.batch = pick(1, 2);
    p.in_h = pick(1, 12), p.in_w = pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 5);
    if (c.form == depthwise::Form::one_tap) {
      p.in_channels = pick(0, 1) == 0 ? 8 * pick(1, 8) : pick(1, 40), p.out_channels = pick(1, c.channels);
      p.kernel_h = p.stride_h = c.h.stride, p.kernel_w = p.stride_w = c.w.stride;
      p.out_h = p.in_h * p.stride_h, p.out_w = p.in_w * p.stride_w;
      return p;
    }
    if (c.exact()) {
      p.groups = p.in_channels =
          last ? depthwise::vector_of(c, bytes) * (pick(0, 3) == 0 ? pick(30, 70) : pick(1, 9)) : pick(1, 3);
      if (p.groups > 100) p.in_h = 1 + p.in_h / 4, p.in_w = 1 + p.in_w / 4;
      p.out_channels = last ? p.groups : p.groups * pick(1, 2);
      p.kernel_h = c.h.kernel, p.kernel_w = c.w.kernel;
      p.stride_h = c.h.stride, p.stride_w = c.w.stride;
      const auto padding = [](const depthwise::AxisConfig& a) {
        return pick(0, 2) != 0 ? a.padding : a.padding % a.stride + a.stride * pick(0, 8 / a.stride);
      };
      p.padding_h = padding(c.h), p.padding_w = padding(c.w);
    } else {
      p.groups = pick(0, 4) == 0 ? pick(30, 70) : pick(0, 1) == 0 ? 4 * pick(1, 4) : pick(1, 9);
      if (p.groups > 20) p.in_h = 1 + p.in_h / 3, p.in_w = 1 + p.in_w / 3;
      const int64_t inputs = pick(0, 3) == 0 ? pick(2, 5) : 1;
      p.in_channels = p.groups * inputs;
      p.out_channels = p.groups * (inputs == 1 && pick(0, 2) == 0 ? pick(2, 3) : 1);
      p.kernel_h = pick(1, 6), p.kernel_w = pick(1, 6);
      p.stride_h = pick(0, 9) == 0 ? pick(5, 12) : pick(1, 4), p.stride_w = pick(0, 9) == 0 ? pick(5, 12) : pick(1, 4);
      if (pick(0, 1) == 0) p.dilation_h = pick(1, 5), p.dilation_w = pick(1, 5);
      p.padding_h = pick(0, 6), p.padding_w = pick(0, 6);
    }
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, p.stride_h - 1), p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, p.stride_w - 1), p.dilation_w);
  } while (p.out_h <= 0 || p.out_w <= 0 || p.in_w % columns != 0 || p.out_w % store != 0 ||
           (rows && (p.padding_w - c.w.padding) / c.w.stride % columns != 0));
  return p;
}

template <class Scalar>
bool run(int32_t row, DataType dtype) {
  const depthwise::Config& c = depthwise::configs[row];
  Problem p = random_problem(c, dtype);
  const auto dense = [](const std::array<int64_t, 4>& s) { return Strides{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; };
  const auto last = [](const std::array<int64_t, 4>& s) { return Strides{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]}; };
  const bool channels_last =
      c.form == depthwise::Form::last || c.form == depthwise::Form::any_last || (!c.exact() && pick(0, 1) == 0);
  const auto strides = [&](const std::array<int64_t, 4>& s) { return channels_last ? last(s) : dense(s); };
  p.x_strides = strides(p.x_sizes()), p.y_strides = strides(p.y_sizes());
  p.w_strides = c.exact() || pick(0, 1) == 0 ? dense(p.w_sizes()) : last(p.w_sizes());
  p.has_bias = pick(0, 1) == 1;
  p.bias_stride = 1;
  const bool aligned = pick(0, 1) == 0;
  const auto offset = [&] { return aligned ? 0 : pick(0, 9); };
  Buffer<Scalar> x(p.x_elements(), offset()), w(p.w_elements(), offset()), b(p.out_channels, offset()),
      y(p.y_elements(), offset());
  fill(x, p.x_elements()), fill(w, p.w_elements()), fill(b, p.out_channels);
  Plan plan = make_forced_plan(p, *find_device("h200"), std::string("depthwise/") + c.name);
  // Cuts that the planner makes of large problems only.
  if (c.form == depthwise::Form::tile) plan.cut[0] = static_cast<int32_t>(pick(0, 1));
  if (c.form == depthwise::Form::last && !c.small) {
    const depthwise::Blocking blocking = depthwise::last_blocking(c, p);
    plan.grid = blocking.chunks * ceil_div<int64_t>(blocking.groups, pick(1, 4));
  }
  depthwise::run_on_host(plan, p, {x.data, w.data, nullptr, b.data, y.data});

  const Axis<int64_t> h = p.axis_h(), v = p.axis_w();
  // Half a unit in the last place of the output, and of the smallest float16 if that is larger.
  const double rounding = dtype == DataType::float32 ? 0x1p-24 : dtype == DataType::float16 ? 0x1p-11 : 0x1p-8;
  const double smallest = dtype == DataType::float16 ? 0x1p-25 : 0;
  const auto at = [](const Strides& s, int64_t a, int64_t b, int64_t c, int64_t d) {
    return a * s[0] + b * s[1] + c * s[2] + d * s[3];
  };
  const int64_t inputs = p.in_channels_per_group(), outputs = p.out_channels_per_group();
  for (int64_t i = 0; i < p.y_elements(); ++i) {
    const int64_t column = i % p.out_w, r = i / p.out_w % p.out_h, plane = i / p.out_w / p.out_h;
    const int64_t co = plane % p.out_channels, n = plane / p.out_channels;
    double sum = p.has_bias ? to_float(b.data[co]) : 0, magnitude = std::abs(sum);
    const Taps<int64_t> rows = transposed_taps(h, r), columns = transposed_taps(v, column);
    for (int64_t ci = co / outputs * inputs; ci < (co / outputs + 1) * inputs; ++ci) {
      for (int64_t j = 0; j < rows.count; ++j) {
        for (int64_t k = 0; k < columns.count; ++k) {
          const int64_t ih = rows.position + j * rows.position_step, iw = columns.position + k * columns.position_step;
          const int64_t th = rows.tap + j * rows.tap_step, tw = columns.tap + k * columns.tap_step;
          const double product = static_cast<double>(to_float(x.data[at(p.x_strides, n, ci, ih, iw)])) *
                                 to_float(w.data[at(p.w_strides, ci, co % outputs, th, tw)]);
          sum += product, magnitude += std::abs(product);
        }
      }
    }
    const double result = to_float(y.data[at(p.y_strides, n, co, r, column)]);
    // Each product and each addition of float32 rounds once.
    const double sums = static_cast<double>(2 * inputs * rows.count * columns.count + 1) * 0x1p-24 * magnitude;
    if (!(std::abs(result - sum) <= sums + rounding * (std::abs(sum) + sums) + smallest)) {
      std::printf("%s: y[%lld] is %g, not %g\n%s\n", c.name, static_cast<long long>(i), result, sum,
                  describe(p).c_str());
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  convt::generator.seed(static_cast<unsigned>(std::atoi(argv[1])));
  const int problems = std::atoi(argv[2]);
  for (int i = 0; i < problems; ++i) {
    const int32_t row = i % convt::depthwise::config_count;
    const int dtype = i / convt::depthwise::config_count % 3;
    const bool right = dtype == 0   ? convt::run<float>(row, convt::DataType::float32)
                       : dtype == 1 ? convt::run<convt::Float16>(row, convt::DataType::float16)
                                    : convt::run<convt::BFloat16>(row, convt::DataType::bfloat16);
    if (!right) return 1;
  }
  std::printf("%d problems\n", problems);
  return 0;
}
