#include "problem.h"

#include <algorithm>
#include <functional>
#include <string>

namespace convt {
namespace {

int64_t product(const std::array<int64_t, 4>& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) {
    if (s == 0) return 0;
  }
  for (int64_t s : sizes) n = checked_mul(n, s);
  return n;
}

std::string join(const std::array<int64_t, 4>& sizes) {
  std::string s;
  for (int64_t size : sizes) s += (s.empty() ? "" : "x") + std::to_string(size);
  return s;
}

std::string pair(int64_t a, int64_t b) { return "(" + std::to_string(a) + ", " + std::to_string(b) + ")"; }

// Whether no output has inputs of two rows, or columns.
bool apart(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return kernel == stride && padding == 0 && (dilation == 1 || kernel == 1) && out == checked_mul(in, stride);
}

}  // namespace

const char* name(Operation op) {
  switch (op) {
    case Operation::forward:
      return "forward";
    case Operation::input_grad:
      return "input_grad";
    case Operation::weight_grad:
      return "weight_grad";
  }
  return "?";
}

const char* name(DataType t) {
  switch (t) {
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::float32:
      return "float32";
    case DataType::float64:
      return "float64";
    case DataType::complex64:
      return "complex64";
    case DataType::complex128:
      return "complex128";
  }
  return "?";
}

const char* name(Precision p) { return p == Precision::tf32 ? "tf32" : "ieee"; }

const char* name(MemoryFormat f) {
  switch (f) {
    case MemoryFormat::contiguous:
      return "contiguous";
    case MemoryFormat::channels_last:
      return "channels_last";
    case MemoryFormat::strided:
      return "strided";
  }
  return "?";
}

int64_t Problem::x_elements() const { return product(x_sizes()); }
int64_t Problem::w_elements() const { return product(w_sizes()); }
int64_t Problem::y_elements() const { return product(y_sizes()); }

int64_t Problem::result_elements() const {
  switch (operation) {
    case Operation::forward:
      return y_elements();
    case Operation::input_grad:
      return x_elements();
    case Operation::weight_grad:
      return w_elements();
  }
  return 0;
}

int64_t Problem::useful_macs() const {
  const std::array<int64_t, 4> factors = {checked_mul(batch, in_channels), out_channels_per_group(),
                                          useful_pairs(axis_h()), useful_pairs(axis_w())};
  return product(factors);
}

int64_t Problem::compulsory_bytes() const {
  int64_t elements = checked_add(checked_add(x_elements(), w_elements()), y_elements());
  if (has_bias) elements = checked_add(elements, out_channels);
  return checked_mul(elements, element_size(dtype));
}

bool folds(const Problem& p) {
  const auto follow = [&](const Strides& s) {
    return p.out_channels == 1 || (s[1] > 0 && s[3] == checked_mul(p.out_channels, s[1]));
  };
  const int64_t s = p.stride_w;
  return p.operation == Operation::forward && p.groups == 1 && p.bias_period == 0 && s > 1 && p.kernel_w % s == 0 &&
         p.padding_w % s == 0 && p.out_w % s == 0 && p.dilation_w == 1 && follow(p.y_strides) && follow(p.w_strides);
}

Problem folded(const Problem& p) {
  Problem q = p;
  q.bias_period = p.out_channels;
  q.out_channels = checked_mul(p.out_channels, p.stride_w);
  if (p.out_channels == 1) q.y_strides[1] = p.y_strides[3], q.w_strides[1] = p.w_strides[3];
  for (Strides* strides : {&q.y_strides, &q.w_strides}) (*strides)[3] = checked_mul((*strides)[3], p.stride_w);
  for (int64_t* size : {&q.out_w, &q.kernel_w, &q.padding_w}) *size /= p.stride_w;
  q.stride_w = 1;
  return q;
}

// Whether a kernel's taps and a group's output channels lie in y as they do in w, without gaps, and groups after each
// other.
static bool kernels_in_one_piece(const Problem& p) {
  const std::array<int64_t, 3> sizes{p.out_channels_per_group(), p.kernel_h, p.kernel_w};
  int64_t strides[3], order[3] = {0, 1, 2}, elements = 1;
  for (int d = 0; d < 3; ++d) {
    strides[d] = p.w_strides[d + 1];
    if (sizes[d] > 1 && p.y_strides[d + 1] != strides[d]) return false;
  }
  std::sort(order, order + 3, [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  for (const int64_t d : order) {
    if (sizes[d] == 1) continue;
    if (strides[d] != elements) return false;
    elements *= sizes[d];
  }
  return p.groups == 1 || p.y_strides[1] * p.out_channels_per_group() == elements;
}

Problem coalesced(const Problem& p) {
  Problem q = p;
  if (p.operation != Operation::forward || p.result_elements() == 0 || p.x_elements() == 0) return q;
  // Of one position no other one is a stride away. Depthwise kernels, which are compiled for strides, gain nothing.
  const auto alone = [&](int64_t in, int64_t out, int64_t kernel, int64_t padding, int64_t dilation) {
    return in == 1 && out == kernel && padding == 0 && dilation == 1 && q.in_channels_per_group() > 1;
  };
  const bool one_row = alone(q.in_h, q.out_h, q.kernel_h, q.padding_h, q.dilation_h),
             one_column = alone(q.in_w, q.out_w, q.kernel_w, q.padding_w, q.dilation_w);
  if (one_row) q.stride_h = q.kernel_h;
  if (one_column) q.stride_w = q.kernel_w;
  if (!q.has_bias && one_row && one_column && kernels_in_one_piece(q)) {
    q.out_channels = checked_mul(q.out_channels, q.kernel_h * q.kernel_w);
    q.kernel_h = q.kernel_w = q.stride_h = q.stride_w = q.out_h = q.out_w = 1;
    q.w_strides[1] = q.y_strides[1] = 1;
    q.x_strides[2] = q.x_strides[3] = q.x_strides[0], q.y_strides[2] = q.y_strides[3] = q.y_strides[0];
  }
  constexpr int64_t most_elements = int64_t{1} << 30;
  const auto follow = [](int64_t outer, int64_t size, int64_t inner) {
    return inner > 0 && outer == checked_mul(size, inner);
  };
  const bool rows_apart = apart(q.in_h, q.out_h, q.kernel_h, q.stride_h, q.padding_h, q.dilation_h);
  if (rows_apart && follow(q.x_strides[0], q.in_h, q.x_strides[2]) && follow(q.y_strides[0], q.out_h, q.y_strides[2])) {
    const int64_t largest = std::max(q.x_strides[0], q.y_strides[0]);
    int64_t together = q.batch;
    const auto too_many = [&] {
      return checked_mul(together, q.in_h) > most_coalesced_rows || checked_mul(together, largest) >= most_elements;
    };
    while (together > 1 && too_many()) together = together % 2 == 0 ? together / 2 : 1;
    q.batch /= together, q.in_h *= together, q.out_h *= together;
    q.x_strides[0] *= together, q.y_strides[0] *= together;
  }
  // Rows of a kernel of one row and stride 1.
  if (rows_apart && q.kernel_h == 1 && q.in_h > 1 &&
      apart(q.in_w, q.out_w, q.kernel_w, q.stride_w, q.padding_w, q.dilation_w) &&
      follow(q.x_strides[2], q.in_w, q.x_strides[3]) && follow(q.y_strides[2], q.out_w, q.y_strides[3]) &&
      checked_mul(q.in_h, std::max(q.x_strides[2], q.y_strides[2])) < most_elements) {
    q.in_w *= q.in_h, q.out_w *= q.out_h;
    q.x_strides[2] *= q.in_h, q.y_strides[2] *= q.out_h;
    q.in_h = q.out_h = 1;
  }
  return q;
}

size_t hash(const Problem& p) {
  size_t h = 0;
  const auto add = [&h](int64_t v) { h ^= std::hash<int64_t>{}(v) + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); };
  for (int64_t v : {static_cast<int64_t>(p.operation),
                    static_cast<int64_t>(p.dtype),
                    static_cast<int64_t>(p.precision),
                    p.batch,
                    p.in_channels,
                    p.out_channels,
                    p.groups,
                    p.in_h,
                    p.in_w,
                    p.out_h,
                    p.out_w,
                    p.kernel_h,
                    p.kernel_w,
                    p.stride_h,
                    p.stride_w,
                    p.padding_h,
                    p.padding_w,
                    p.dilation_h,
                    p.dilation_w,
                    static_cast<int64_t>(p.has_bias),
                    static_cast<int64_t>(p.x_aligned),
                    static_cast<int64_t>(p.w_aligned),
                    p.bias_stride}) {
    add(v);
  }
  for (const Strides* strides : {&p.x_strides, &p.w_strides, &p.y_strides}) {
    for (int64_t v : *strides) add(v);
  }
  return h;
}

MemoryFormat memory_format(const std::array<int64_t, 4>& sizes, const Strides& strides) {
  const auto dense_in_order = [&](const std::array<int, 4>& innermost_first) {
    int64_t expected = 1;
    for (int d : innermost_first) {
      if (sizes[d] != 1 && strides[d] != expected) return false;
      expected = checked_mul(expected, sizes[d]);
    }
    return true;
  };
  if (dense_in_order({3, 2, 1, 0})) return MemoryFormat::contiguous;
  if (dense_in_order({1, 3, 2, 0})) return MemoryFormat::channels_last;
  return MemoryFormat::strided;
}

std::string describe(const Problem& p) {
  const auto operand = [](const char* what, const std::array<int64_t, 4>& sizes, const Strides& strides) {
    return std::string(what) + " " + join(sizes) + " " + name(memory_format(sizes, strides));
  };
  std::string s = std::string(name(p.operation)) + ", " + name(p.dtype);
  if (p.dtype == DataType::float32) s += std::string(" (") + name(p.precision) + ")";
  s += ", " + operand("input", p.x_sizes(), p.x_strides) + ", " + operand("weight", p.w_sizes(), p.w_strides) + ", " +
       operand("output", p.y_sizes(), p.y_strides);
  s += ", stride " + pair(p.stride_h, p.stride_w) + ", padding " + pair(p.padding_h, p.padding_w) + ", dilation " +
       pair(p.dilation_h, p.dilation_w) + ", groups " + std::to_string(p.groups) +
       (p.has_bias ? ", bias" : ", no bias");
  return s;
}

}  // namespace convt
