// What a kernel is given, by value.
#pragma once

#include <bit>
#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::gemm_scatter_rows_sm90 {

struct Params {
  TensorMap w_map;
  const void* x;
  void* y;
  const void* bias;  // null if there is none
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, bias_stride;
  int32_t tiles, chunks, x_stages;
  int32_t rows, all_rows, width, height;  // of a tile; of all images; of an image
  int32_t in_channels, out_channels;      // of a group
  int32_t channels;                       // of a piece
  int32_t kernel_h, y_row;                // y_row: elements of a row of y
  int32_t pitch, staged_bytes, stages_at;
  bool words;          // what is staged of two columns of the kernel is a word
  bool whole_vectors;  // and so is what y has of rows of positions, in each channel
  int32_t log_taps, log_kernel_w;
  int32_t place_of_8[block_side / 8];  // of outputs of a piece in what is staged: bytes
  Divisor by_outputs, by_rows, by_height, by_width;
};

static_assert(std::is_trivially_copyable_v<Params>);

// Of an output of a piece in what is staged: bytes. That of 8 i + j is the sum of those of 8 i and of j < 8, since taps
// and columns of the kernel are powers of two.
CONVT_HOST_DEVICE int32_t place_of_output(const Params& p, int32_t output) {
  const int32_t channel = output >> p.log_taps, tap = output - (channel << p.log_taps);
  const int32_t kernel_row = tap >> p.log_kernel_w, kernel_column = tap - (kernel_row << p.log_kernel_w);
  return 2 * (channel * p.pitch + kernel_row * p.y_row + kernel_column);
}

struct Launch {
  Params params;
  TensorMapLayout w_map;  // of which the driver makes the map
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Tiling t = make_tiling(p, plan.cut[0]);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  q = {};
  launch.w_map = gemm_scatter::make_w_map(p, o.w);
  q.x = o.x, q.y = o.result, q.bias = p.has_bias ? o.bias : nullptr;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.bias_stride = p.bias_stride;
  q.tiles = narrow(t.tiles), q.chunks = narrow(t.chunks), q.x_stages = narrow(t.x_stages);
  q.rows = narrow(t.rows), q.all_rows = narrow(p.batch * p.in_h), q.width = narrow(p.in_w), q.height = narrow(p.in_h);
  q.in_channels = narrow(p.in_channels_per_group()), q.out_channels = narrow(p.out_channels_per_group());
  q.channels = narrow(t.channels);
  q.kernel_h = narrow(p.kernel_h), q.y_row = narrow(p.out_w);
  q.staged_bytes = narrow(t.staged_bytes), q.stages_at = narrow(t.stages_at);
  // Whether y, its images and channels begin at multiples of so many elements.
  const auto multiple = [&](int64_t elements) {
    return reinterpret_cast<uintptr_t>(o.result) % static_cast<uintptr_t>(2 * elements) == 0 &&
           p.y_strides[1] % elements == 0 && (p.batch == 1 || p.y_strides[0] % elements == 0);
  };
  q.words = multiple(2);
  q.whole_vectors = multiple(8) && p.kernel_h * p.out_w % 8 == 0;
  q.pitch = narrow(t.pitch);
  q.log_taps = std::countr_zero(static_cast<uint64_t>(p.kernel_h * p.kernel_w));
  q.log_kernel_w = std::countr_zero(static_cast<uint64_t>(p.kernel_w));
  for (int32_t i = 0; i < block_side / 8; ++i) q.place_of_8[i] = place_of_output(q, 8 * i);
  q.by_outputs = Divisor(t.output_tiles), q.by_rows = Divisor(t.row_tiles);
  q.by_height = Divisor(p.in_h), q.by_width = Divisor(p.in_w);
}

}  // namespace convt::gemm_scatter_rows_sm90
