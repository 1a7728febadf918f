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

#include "kernels/depthwise/config.h"
#include "kernels/depthwise/host.h"
#include "kernels/scalar.h"
#include "plan/plan.h"

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

template <class Scalar>
bool run(int32_t row, DataType dtype) {
  const depthwise::Config& c = depthwise::configs[row];
  Problem p;
  p.dtype = dtype;
  do {
    p.batch = pick(1, 2);
    p.groups = p.in_channels = pick(1, 3);
    p.out_channels = p.groups * pick(1, 2);
    p.in_h = pick(1, 12), p.in_w = pick(0, 1) == 0 ? pick(1, 40) : 8 * pick(1, 5);
    p.kernel_h = c.h.kernel, p.kernel_w = c.w.kernel;
    p.stride_h = c.h.stride, p.stride_w = c.w.stride;
    const auto padding = [](const depthwise::AxisConfig& a) {
      return pick(0, 2) != 0 ? a.padding : a.padding % a.stride + a.stride * pick(0, 8 / a.stride);
    };
    p.padding_h = padding(c.h), p.padding_w = padding(c.w);
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, pick(0, p.stride_h - 1), 1);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, pick(0, p.stride_w - 1), 1);
  } while (p.out_h <= 0 || p.out_w <= 0);
  const auto dense = [](const std::array<int64_t, 4>& s) { return Strides{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; };
  p.x_strides = dense(p.x_sizes()), p.w_strides = dense(p.w_sizes()), p.y_strides = dense(p.y_sizes());
  p.has_bias = pick(0, 1) == 1;
  p.bias_stride = 1;
  const bool aligned = pick(0, 1) == 0;
  const auto offset = [&] { return aligned ? 0 : pick(0, 9); };
  Buffer<Scalar> x(p.x_elements(), offset()), w(p.w_elements(), offset()), b(p.out_channels, offset()),
      y(p.y_elements(), offset());
  fill(x, p.x_elements()), fill(w, p.w_elements()), fill(b, p.out_channels);
  const Plan plan = make_forced_plan(p, *find_device("h200"), std::string("depthwise/") + c.name);
  depthwise::run_on_host(plan, p, {x.data, w.data, nullptr, b.data, y.data});

  const Axis<int64_t> h = p.axis_h(), v = p.axis_w();
  // Half a unit in the last place of the output, and of the smallest float16 if that is larger.
  const double rounding = dtype == DataType::float32 ? 0x1p-24 : dtype == DataType::float16 ? 0x1p-11 : 0x1p-8;
  const double smallest = dtype == DataType::float16 ? 0x1p-25 : 0;
  for (int64_t i = 0; i < p.y_elements(); ++i) {
    const int64_t column = i % p.out_w, r = i / p.out_w % p.out_h, plane = i / p.out_w / p.out_h;
    const int64_t co = plane % p.out_channels, ci = co / p.out_channels_per_group(), n = plane / p.out_channels;
    double sum = p.has_bias ? to_float(b.data[co]) : 0, magnitude = std::abs(sum);
    const Taps<int64_t> rows = transposed_taps(h, r), columns = transposed_taps(v, column);
    for (int64_t j = 0; j < rows.count; ++j) {
      for (int64_t k = 0; k < columns.count; ++k) {
        const int64_t ih = rows.position + j * rows.position_step, iw = columns.position + k * columns.position_step;
        const int64_t th = rows.tap + j * rows.tap_step, tw = columns.tap + k * columns.tap_step;
        const double product =
            static_cast<double>(to_float(x.data[((n * p.in_channels + ci) * p.in_h + ih) * p.in_w + iw])) *
            to_float(w.data[(co * p.kernel_h + th) * p.kernel_w + tw]);
        sum += product, magnitude += std::abs(product);
      }
    }
    const double result = to_float(y.data[i]);
    // Each product and each addition of float32 rounds once.
    const double sums = static_cast<double>(2 * rows.count * columns.count + 1) * 0x1p-24 * magnitude;
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
