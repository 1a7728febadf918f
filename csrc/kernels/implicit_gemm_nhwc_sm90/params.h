// What the kernels of the family are given, by value. Strides in elements.
#pragma once

#include <bit>
#include <type_traits>

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../divisor.h"
#include "../implicit_gemm/prepare.h"
#include "../operands.h"
#include "tiling.h"

namespace convt::implicit_gemm_nhwc_sm90 {

// Where the outputs of a lane's position are from those of its first one of a tile: the same for all lanes, so that
// what remains for an output is a sum and two comparisons, with constants.
struct Further {
  int64_t bytes;
  int32_t rows, columns;
};

struct Params {
  TensorMap x_map;
  CachePolicy x_policy;
  const unsigned char* packed;
  // An output by its definition (implicit_gemm/device.cuh).
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, y_batch_stride, y_channel_stride, bias_stride;
  int64_t w_strides[4];
  int32_t x_row_stride, x_column_stride, y_row_stride, y_column_stride;
  int32_t batch, in_channels, out_channels;  // channels of a group
  Axis<int32_t> h, v;
  Divisor by_bias_period;

  bool copies_x;     // the kernel before does
  bool resident;     // all weights stay in shared memory
  bool one_bias;     // of all tiles
  int32_t together;  // columns of the product that are written at once: 8, 2 or 1
  int32_t tiles, chunks, taps, steps, taps_of_step, products, last_products;
  int32_t row, column;  // of the patch, from the tile's first position
  int32_t tile_rows, tile_columns, log_side_by_side, block_rows, block_columns;
  int32_t chunk_bytes, pitch, patch_rows;  // bytes of a position of a patch, and of a row; rows
  int32_t patch_bytes, patch_stages, tap_bytes, weight_bytes, weight_stages;
  int32_t channels_of_tile, columns_of_row;  // columns of the product of a row of y
  Divisor by_channels, by_columns, by_rows, by_groups;
  Divisor by_columns_of_row, by_channels_of_tile;
  Further further[most_blocks][2];                      // a block's two positions of a lane
  uint16_t tap_row[most_taps], step_column[most_taps];  // from the patch's first
};

static_assert(std::is_trivially_copyable_v<Params>);
static_assert(sizeof(Params) <= 4096, "the parameters of a kernel");

struct Launch {
  Params params;
  TensorMapLayout x_map;
  PrepareParams prepare;
  int64_t prepare_grid;
};

// Whether so many columns of the product that follow each other do so in y, at a multiple of as many elements, as far
// as strides tell: of a position's channels, or of its phases' if y is dense and a tile has all channels.
inline bool follow_each_other(const Config& c, const Problem& p, const void* y, int64_t count) {
  const int64_t channels = channels_of_tile(c, p), element = element_size(p.dtype);
  const bool dense = p.groups == 1 && channels == p.out_channels && p.y_strides[3] == channels;
  const bool straddling = channels % count != 0;
  if (p.out_channels > 1 && p.y_strides[1] != 1) return false;
  if (straddling && (!dense || p.stride_w * channels % count != 0 || p.out_w % p.stride_w != 0)) return false;
  if (reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(count * element) != 0) return false;
  if (!straddling && (p.out_channels_per_group() % count != 0 || (p.out_w > 1 && p.y_strides[3] % count != 0))) {
    return false;
  }
  return (p.out_h == 1 || p.y_strides[2] % count == 0) && (p.batch == 1 || p.y_strides[0] % count == 0);
}
// How many are written at once: those of a lane, or, of 16 bits, those that its neighbours have of 16 bytes.
inline int32_t written_together(const Config& c, const Problem& p, const void* y) {
  if (element_size(p.dtype) == 2 && follow_each_other(c, p, y, 8)) return 8;
  return follow_each_other(c, p, y, 2) ? 2 : 1;
}

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  Tables t;
  make_tables(p, t);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  const int32_t block_rows = plan.tile.piece_rows, block_columns = block_positions / block_rows;
  const int32_t side_by_side = plan.tile.columns / block_columns;
  const Tiling n = make_tiling(config, p, t, block_rows, side_by_side, plan.cut[0]);
  const int64_t w_bytes = packed_bytes(config, p, t, n);
  const bool copies_x = plan.workspace_bytes > w_bytes;
  unsigned char* const copy = static_cast<unsigned char*>(o.workspace) + w_bytes;
  launch.x_map = make_x_map(p, n, copies_x ? copy : o.x, copies_x);

  Params& q = launch.params;
  q = {};
  const bool reads_once = n.channel_tiles == 1 && n.patch_rows == n.tile_rows && n.patch_columns == n.tile_columns;
  q.x_policy = once_policy(reads_once);
  set_common(q, p, o);
  q.copies_x = copies_x, q.resident = n.resident, q.one_bias = n.channel_tiles * p.groups == 1;
  q.together = written_together(config, p, o.result);
  q.tiles = narrow(n.tiles), q.chunks = t.taps() > 0 ? narrow(n.chunks) : 0, q.taps = t.taps();
  q.steps = t.columns, q.taps_of_step = t.rows;
  const int64_t channels_of_product = k_bytes / element_size(p.dtype);
  q.products = n.chunk_bytes / k_bytes;
  q.last_products = narrow(ceil_div(p.in_channels_per_group(), channels_of_product) - (n.chunks - 1) * q.products);
  if (t.taps() > 0) q.row = t.row[0], q.column = t.column[0];
  for (int32_t i = 0; i < t.rows; ++i) q.tap_row[i] = static_cast<uint16_t>(t.row[i] - t.row[0]);
  for (int32_t i = 0; i < t.columns; ++i) q.step_column[i] = static_cast<uint16_t>(t.column[i] - t.column[0]);
  q.tile_rows = n.tile_rows, q.tile_columns = n.tile_columns;
  q.block_rows = block_rows, q.block_columns = block_columns;
  q.log_side_by_side = std::countr_zero(static_cast<uint32_t>(side_by_side));
  q.chunk_bytes = n.chunk_bytes, q.pitch = n.patch_columns * n.chunk_bytes, q.patch_rows = n.patch_rows;
  q.patch_bytes = n.patch_bytes, q.patch_stages = n.patch_stages, q.tap_bytes = tap_bytes(config, n.chunk_bytes);
  q.weight_bytes = n.weight_bytes, q.weight_stages = n.weight_stages;
  q.channels_of_tile = narrow(channels_of_tile(config, p)), q.columns_of_row = narrow(p.stride_w) * q.channels_of_tile;
  q.by_channels = Divisor(n.channel_tiles), q.by_columns = Divisor(n.column_tiles), q.by_rows = Divisor(n.row_tiles);
  q.by_columns_of_row = Divisor(q.columns_of_row), q.by_channels_of_tile = Divisor(q.channels_of_tile);

  for (int32_t m = 0; m < config.blocks; ++m) {
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t rows = m / side_by_side * block_rows + (block_rows > 1 ? half : 0),
                    columns = m % side_by_side * block_columns + (block_rows > 1 ? 0 : 8 * half);
      Further& f = q.further[m][half];
      f.rows = rows * q.h.stride, f.columns = columns * q.v.stride;
      f.bytes = (int64_t{f.rows} * q.y_row_stride + int64_t{f.columns} * q.y_column_stride) * element_size(p.dtype);
    }
  }

  PrepareParams& r = launch.prepare;
  r = make_prepare(p, o,
                   {config.columns, n.channel_tiles, q.channels_of_tile, p.stride_h, p.stride_w, false, n.chunks,
                    n.chunk_bytes / 16},
                   t.taps(), t.kernel_row, t.kernel_column);
  for (int32_t i = 0; i < t.taps(); ++i) {
    r.tap_row[i] = static_cast<uint8_t>(i % t.rows), r.tap_column[i] = static_cast<uint8_t>(i / t.rows);
  }
  launch.prepare_grid = std::max(1, r.packing);
  if (copies_x) {
    const int64_t group = copied_group(p), column = p.groups * group, row = p.in_w * column;
    const CopiedDimension images{p.batch, p.x_strides[0], p.in_h * row};
    const int64_t channels = p.in_channels_per_group();
    r.copy = p.groups == 1 ? make_copy(p, o.x, copy, images, {p.in_h, p.x_strides[2], row},
                                       {p.in_w, p.x_strides[3], column}, channels, p.x_strides[1])
                           : make_copy(p, o.x, copy, images, {p.in_h * p.in_w, position_stride(p), column},
                                       {p.groups, channels, group}, channels, p.x_strides[1]);
    launch.prepare_grid = r.packing + copy_blocks(r.copy);
  }
}

}  // namespace convt::implicit_gemm_nhwc_sm90
