// What a column kernel is given, by value.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "config.h"

namespace convt::column {

// Where the tiles of an axis are: tile i has the outputs from first_u + i * outs - padding on, and the inputs from
// first_in + i * q on, up to `halo` behind the next tile's first or to the end.
struct Placement {
  int32_t first_u, outs, q, first_in, halo, end_in;
};

struct Params : StridedParams {
  int32_t columns, padded_columns;  // output channels x taps; padded to whole blocks of the warps' accumulators
  Placement place_h, place_w;
  Divisor tiles_w, tiles_h, taps, kernel_w, stride_h, stride_w;
  Divisor group_count, channel_blocks;  // of all images; of a group's output channels
  Divisor stage_width;                  // columns of weights that the threads have at a time, and
  int32_t stage_quads;                  // fours of channels
  Divisor pitch_groups;                 // of 4 pixels, in a column in shared memory
  Divisor column_blocks, splits;        // of the accumulators of a warp; of the channels, over warps
  int32_t tiles, passes;                // of all images and blocks of channels; of a tile
  int32_t chunks, stage_chunks;         // of 16 input channels
  int32_t table_bytes;                  // of one tile
  int32_t pitch;                        // of a column in shared memory
  int32_t weight_offset, low_weight_offset, column_offset;  // in shared memory, bytes; the tile is at 0
  int32_t ring_offset, ring;                                // inputs on their way; of how many steps
  int32_t align;                                            // of a tile's first input column
  bool channels_of_row;  // whether threads run over the output channels of a pixel first
  bool keeps_weights;    // whether all tiles of a block have the same weights, at once in shared memory
};

static_assert(std::is_trivially_copyable_v<Params>);

// Shared memory and the division of work of blocks of `out_channels`, known without the operands.
struct Resources {
  int32_t column_blocks, padded_columns, splits, passes, chunks, stage_chunks, pitch;
  int64_t low_weight_bytes, weight_bytes, table_bytes, column_bytes, step_bytes;

  // With room for the inputs of `ring` steps of each warp.
  int64_t shared_bytes(int32_t ring) const {
    return table_offset + 2 * table_bytes + weight_bytes + column_bytes + ring * step_bytes;
  }
};

// Sixteen bytes (16-bit types: 8) for each 4 channels of a column; a quarter (half) warp reads them without conflicts.
constexpr int32_t weight_pitch(int32_t padded_columns, int64_t element_bytes) {
  return padded_columns + (element_bytes == 4 ? 2 : 4);
}

inline bool is_channels_last(const Problem& p) {
  const bool rows = p.in_w == 1 || p.x_strides[3] == 1;
  const bool channels = p.in_channels_per_group() == 1 || p.x_strides[1] == 1;
  return channels && (!rows || memory_format(p.x_sizes(), p.x_strides) == MemoryFormat::channels_last);
}

// Vectors, if all rows (in channels_last pixels) start at a multiple of 4 elements, and are a multiple long.
inline Load load_of(const Problem& p) {
  const bool rows = p.in_w % 4 == 0 && used_stride(p.batch, p.x_strides[0]) % 4 == 0 &&
                    used_stride(p.in_h, p.x_strides[2]) % 4 == 0 && used_stride(p.in_channels, p.x_strides[1]) % 4 == 0;
  const bool vectors = p.x_aligned && (is_channels_last(p) ? has_pixels_of(p, 4) : rows);
  return load_of(element_size(p.dtype), vectors);
}

inline Resources resources(const Problem& p, const Config& c, const Tiling& t, int64_t out_channels) {
  Resources r{};
  const int64_t size = element_size(p.dtype);
  const auto columns = static_cast<int32_t>(out_channels * p.kernel_h * p.kernel_w);
  const auto blocks = static_cast<int32_t>(t.pixel_blocks());
  r.column_blocks = ceil_div<int32_t>(columns, 8 * c.tiles);
  r.padded_columns = r.column_blocks * 8 * c.tiles;
  r.chunks = static_cast<int32_t>(ceil_div<int64_t>(p.in_channels_per_group(), chunk_channels));
  r.splits = std::clamp(c.warps / (blocks * r.column_blocks), 1, std::min(r.chunks, most_splits));
  r.splits = ceil_div<int32_t>(r.chunks, ceil_div<int32_t>(r.chunks, r.splits));
  r.passes = ceil_div<int32_t>(blocks * r.column_blocks * r.splits, c.warps);
  const bool strict = p.strict_float32();
  const int64_t panel = chunk_channels * size * weight_pitch(r.padded_columns, size);
  // Whole rounds of all splits and of the inputs on their way in registers.
  const int32_t round = r.splits * depth_of(strict);
  const int64_t most = std::max<int64_t>(1, most_weight_bytes / (panel * (strict ? 2 : 1)) / round) * round;
  r.stage_chunks = static_cast<int32_t>(std::min<int64_t>(ceil_div<int32_t>(r.chunks, round) * round, most));
  const int64_t staged = panel * std::min(r.stage_chunks, r.chunks);
  r.low_weight_bytes = strict ? staged : 0;
  r.weight_bytes = staged * (strict ? 2 : 1);
  r.table_bytes = ceil_div<int64_t>(8 * (t.h.q * p.stride_h + t.w.q * p.stride_w), 128) * 128;
  // Multiples of 4, not of 8: accumulators are written without conflicts.
  r.pitch = blocks * block_pixels + 4;
  r.column_bytes = int64_t{4} * columns * r.pitch * r.splits;
  r.step_bytes = int64_t{c.warps} * step_bytes(slot_bytes(size));
  return r;
}

inline Params make_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const bool channels_last = is_channels_last(p);
  const Tiling t = choose_tiling(p, c.pixel_blocks, channels_last);
  const int64_t out_channels = plan.cut[1], channel_blocks = p.out_channels_per_group() / out_channels;
  const Resources r = resources(p, c, t, out_channels);
  Params q{};
  set_strided(q, p, o);
  q.out_channels = static_cast<int32_t>(out_channels);
  q.columns = static_cast<int32_t>(out_channels * p.kernel_h * p.kernel_w);
  q.padded_columns = r.padded_columns;
  const auto placement = [](const TileAxis& a, int64_t stride, int64_t in, int64_t last_u) {
    return Placement{static_cast<int32_t>(a.first_u), static_cast<int32_t>(a.q * stride),
                     static_cast<int32_t>(a.q),       static_cast<int32_t>(a.first_u / stride - a.halo),
                     static_cast<int32_t>(a.halo),    static_cast<int32_t>(std::min(in, last_u / stride + 1))};
  };
  q.place_h = placement(t.h, p.stride_h, p.in_h, p.out_h + p.padding_h - 1);
  q.place_w = placement(t.w, p.stride_w, p.in_w, p.out_w + p.padding_w - 1);
  q.tiles_w = Divisor(t.w.count), q.tiles_h = Divisor(t.h.count);
  q.group_count = Divisor(p.groups * channel_blocks), q.channel_blocks = Divisor(channel_blocks);
  q.stride_h = Divisor(p.stride_h), q.stride_w = Divisor(p.stride_w);
  q.taps = Divisor(p.kernel_h * p.kernel_w), q.kernel_w = Divisor(p.kernel_w);
  q.stage_width = Divisor(std::min(r.padded_columns, 32 * c.warps));
  q.stage_quads = 32 * c.warps / static_cast<int32_t>(q.stage_width.divisor);
  q.column_blocks = Divisor(r.column_blocks), q.splits = Divisor(r.splits);
  q.tiles = static_cast<int32_t>(t.h.count * t.w.count * p.batch * p.groups * channel_blocks);
  q.keeps_weights = p.groups * channel_blocks == 1 && r.stage_chunks >= r.chunks;
  q.passes = r.passes, q.chunks = r.chunks, q.stage_chunks = r.stage_chunks, q.pitch = r.pitch;
  q.pitch_groups = Divisor(r.pitch / group_pixels);
  q.table_bytes = static_cast<int32_t>(r.table_bytes);
  q.weight_offset = static_cast<int32_t>(table_offset + 2 * r.table_bytes);
  q.low_weight_offset = q.weight_offset + static_cast<int32_t>(r.low_weight_bytes);
  q.column_offset = q.weight_offset + static_cast<int32_t>(r.weight_bytes);
  q.ring_offset = q.column_offset + static_cast<int32_t>(r.column_bytes), q.ring = plan.cut[0];
  q.align = static_cast<int32_t>(alignment(channels_last));
  q.channels_of_row = p.out_channels_per_group() > 1 && p.y_strides[1] == 1 && p.y_strides[3] != 1;
  return q;
}

}  // namespace convt::column
