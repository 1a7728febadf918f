// How a problem is cut into tiles.
#pragma once

#include "../gemm_scatter/maps.h"
#include "../phases.h"
#include "config.h"

namespace convt::gemm_fold_rows_sm90 {

// A set of tiles has the same weights, which stay in shared memory: those of a block of output channels and a phase of
// the rows. Its tiles are walked by stripes, all columns of some rows of an image.
struct Tiling {
  int64_t channel_blocks = 0, sets = 0;
  int64_t chunk = 0, chunks = 0;     // channels of a patch, a multiple of 16
  int64_t products = 0;              // of 16 channels, in all
  int64_t steps = 0;                 // tiles of a stripe
  int64_t patch_rows = 0, taps = 0;  // of the phase that has most
  bool shares = false;               // both stripes of a pair have one patch
  int64_t weight_bytes = 0, stage_bytes = 0, stages = 0;
  int64_t block_pairs = 0, pairs = 0;  // of stripes: of all phases of a block of channels, and in all

  int64_t shared_bytes(const Config& c) const { return weights_at(c) + weight_bytes + stages * stage_bytes; }
  bool fits() const { return stages >= 2; }
};

// Of a phase of the rows: y's rows, tiles of them in an image, which are stripes, and pairs of stripes, one for each
// warpgroup, in an image and in all. The first phases may have a row more than the others.
struct PhaseTiling {
  int64_t rows, row_tiles, row_pairs, pairs;

  PhaseTiling(const Config& c, const Problem& p, bool more)
      : rows(p.out_h / p.stride_h + (more ? 1 : 0)),
        row_tiles(ceil_div<int64_t>(rows, c.rows)),
        row_pairs(ceil_div<int64_t>(row_tiles, 2)),
        pairs(checked_mul(p.batch, row_pairs)) {}
};
inline int64_t phases_with_more(const Problem& p) { return p.out_h % p.stride_h; }

// Of a stride of at most most_phases.
inline Tiling make_tiling(const Config& c, const Problem& p) {
  Tiling t;
  const Axis<int64_t> h = p.axis_h();
  const Phases all = phases(h);
  t.channel_blocks = ceil_div<int64_t>(p.out_channels_per_group(), c.channels);
  t.sets = checked_mul(checked_mul(p.groups, t.channel_blocks), p.stride_h);
  for (int64_t r = 0; r < p.stride_h; ++r) t.taps = std::max<int64_t>(t.taps, all.of[r].count);
  const int64_t more = phases_with_more(p);
  t.block_pairs =
      checked_mul(more, PhaseTiling(c, p, true).pairs) + checked_mul(p.stride_h - more, PhaseTiling(c, p, false).pairs);
  t.pairs = checked_mul(t.block_pairs, p.groups * t.channel_blocks);
  t.products = ceil_div<int64_t>(p.in_channels_per_group(), k_of_product);
  t.steps = ceil_div<int64_t>(p.in_w, segment);
  t.weight_bytes = t.taps * t.products * c.blocks() * product_bytes;
  const int64_t room = shared_bytes_limit - weights_at(c) - t.weight_bytes;
  const int64_t halo = std::max<int64_t>(t.taps - 1, 0) * h.input_step;
  const auto fits = [&](int64_t stripes, int64_t chunks, int64_t least) {
    t.shares = stripes == 2;
    t.patch_rows = stripes * c.rows + halo;
    t.chunk = ceil_div<int64_t>(t.products, chunks) * k_of_product;
    t.chunks = ceil_div<int64_t>(t.products * k_of_product, t.chunk);
    t.stage_bytes = t.patch_rows * t.chunk * row_bytes;
    t.stages = std::min<int64_t>(most_stages, room / t.stage_bytes);
    return t.chunk <= tensor_map_most_box && t.stages >= least;
  };
  // Patches of all channels for both stripes of a pair, if that reads a quarter less; otherwise one for each, of as
  // many channels as let three be there, or else two. (Of several chunks the second stripe would need the first ones
  // when the first stripe has left no room for them.)
  if (halo >= c.rows && fits(2, 1, 2)) return t;
  for (const int64_t least : {3, 2}) {
    for (int64_t chunks = 1; chunks <= t.products; ++chunks) {
      if (fits(1, chunks, least)) return t;
    }
  }
  t.stages = 0;
  return t;
}

// x as [image][group][row][channel][column].
inline TensorMapLayout make_x_map(const Problem& p, const Tiling& t, const void* x) {
  const int64_t channels = p.in_channels_per_group();
  const auto stride = [&](int64_t size, int64_t elements) { return gemm_scatter::map_stride(p, size, elements); };
  return {x,
          static_cast<int32_t>(element_size(p.dtype)),
          {p.in_w, channels, p.in_h, p.groups, p.batch},
          {stride(channels, p.x_strides[1]), stride(p.in_h, p.x_strides[2]),
           stride(p.groups, checked_mul(channels, p.x_strides[1])), stride(p.batch, p.x_strides[0])},
          {segment, static_cast<int32_t>(t.chunk), 1, 1, 1}};
}

}  // namespace convt::gemm_fold_rows_sm90
