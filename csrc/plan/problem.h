// What is to be computed, with no reference to how: the input of the planner.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>

#include "geometry.h"

namespace convt {

// The operation is bilinear; the three operators are closed under differentiation.
enum class Operation : int32_t {
  forward,      // T(x, w) -> y
  input_grad,   // C(y, w) -> x, an ordinary strided convolution
  weight_grad,  // W(x, y) -> w, a correlation reduced over N, H, W
};

enum class DataType : int32_t { float16, bfloat16, float32, float64, complex64, complex128 };

// What a float32 product may be rounded to.
enum class Precision : int32_t { ieee, tf32 };

enum class MemoryFormat : int32_t { contiguous, channels_last, strided };

const char* name(Operation);
const char* name(DataType);
const char* name(Precision);
const char* name(MemoryFormat);

constexpr int64_t element_size(DataType t) {
  switch (t) {
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::float32:
      return 4;
    case DataType::float64:
    case DataType::complex64:
      return 8;
    case DataType::complex128:
      return 16;
  }
  return 0;
}

constexpr bool is_complex(DataType t) { return t == DataType::complex64 || t == DataType::complex128; }

using Strides = std::array<int64_t, 4>;

// x is (batch, in_channels, in_h, in_w), w is (in_channels, out_channels / groups, kernel_h, kernel_w), y is
// (batch, out_channels, out_h, out_w), whichever of the three the operation computes. Strides are in elements.
struct Problem {
  Operation operation = Operation::forward;
  DataType dtype = DataType::float32;
  Precision precision = Precision::ieee;
  int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int64_t kernel_h = 0, kernel_w = 0;
  int64_t stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  Strides x_strides{}, w_strides{}, y_strides{};
  bool has_bias = false;
  bool x_aligned = true, w_aligned = true;  // they begin at a multiple of 16 bytes; of a forward
  int64_t bias_stride = 0;
  int64_t bias_period = 0;  // channels after which the bias repeats; 0: each has its own

  bool operator==(const Problem&) const = default;

  // Whether float32 is multiplied as float32: on tensor cores, in parts.
  bool strict_float32() const { return dtype == DataType::float32 && precision == Precision::ieee; }
  Axis<int64_t> axis_h() const { return make_axis(in_h, out_h, kernel_h, stride_h, padding_h, dilation_h); }
  Axis<int64_t> axis_w() const { return make_axis(in_w, out_w, kernel_w, stride_w, padding_w, dilation_w); }
  int64_t in_channels_per_group() const { return in_channels / groups; }
  int64_t out_channels_per_group() const { return out_channels / groups; }
  std::array<int64_t, 4> x_sizes() const { return {batch, in_channels, in_h, in_w}; }
  std::array<int64_t, 4> w_sizes() const { return {in_channels, out_channels_per_group(), kernel_h, kernel_w}; }
  std::array<int64_t, 4> y_sizes() const { return {batch, out_channels, out_h, out_w}; }
  int64_t x_elements() const;
  int64_t w_elements() const;
  int64_t y_elements() const;
  int64_t result_elements() const;

  // Multiply-accumulates that reach a result: taps that land outside the output do not count.
  int64_t useful_macs() const;
  // Every operand read once, the result written once.
  int64_t compulsory_bytes() const;
};

// The same forward problem with fewer or taller images, and, unless it is depthwise, with a stride as large as the
// kernel where an image has one position, of which no other is a stride away. Such images are rows of a product of
// matrices, whose columns are (channel, tap), where there is no bias and weights lie in the order of y: then the kernel
// is 1x1. Images become rows of one, and rows one row, where no output has inputs of two of them (the kernel is as
// large as the stride, nothing is cut) and they follow each other in memory in x and y. Tiles of small images are then
// full. Images become at most `most_coalesced_rows` rows of one, and have less than 2^30 elements from their first to
// their last.
Problem coalesced(const Problem& p);
inline constexpr int64_t most_coalesced_rows = 1 << 13;

// The same forward problem with a horizontal stride of one: the column phases become output channels, each phase's with
// the same bias, and those of all phases of a column of x are one pixel of y. Where kernel, padding and output have
// whole strides, and a column's channels follow those of the one before in y and w. Blocks of channels are then full
// however few a column has, and there is no phase for each of many columns.
Problem folded(const Problem& p);
bool folds(const Problem& p);

// Whether the elements of a dimension are `expected` apart, as far as it has several.
inline bool dense(int64_t size, int64_t stride, int64_t expected) { return size == 1 || stride == expected; }

// A stride that is never used may be any number, which would decide how wide accesses are: it counts as 0.
constexpr int64_t used_stride(int64_t size, int64_t stride) { return size > 1 ? stride : 0; }

// Whether x's pixels, and in them the groups, begin at multiples of `channels` elements, if x is in channels_last.
inline bool has_pixels_of(const Problem& p, int64_t channels) {
  return p.in_channels_per_group() % channels == 0 && used_stride(p.batch, p.x_strides[0]) % channels == 0 &&
         used_stride(p.in_h, p.x_strides[2]) % channels == 0 && used_stride(p.in_w, p.x_strides[3]) % channels == 0;
}

size_t hash(const Problem&);
MemoryFormat memory_format(const std::array<int64_t, 4>& sizes, const Strides& strides);
std::string describe(const Problem&);

}  // namespace convt
