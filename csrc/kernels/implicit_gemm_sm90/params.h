// What the kernels of the family are given, by value.
#pragma once

#include "../tensor_map.h"
#include "tiling.h"

namespace convt::implicit_gemm_sm90 {

// The taps of a step, for each block of weights of its mask.
struct alignas(4) StepTaps {
  struct {
    uint8_t row, column;
  } of[most_rows];
};

// Bytes of an operand that blocks have brought into L2 before anything else, and of them a block's share.
struct Prefetch {
  uint32_t bytes, share;
};

struct Params : CommonParams {
  TensorMap x_map;                // if uses_x_map()
  TensorMap wide_x_map;           // if uses_wide_x_map()
  TensorMap w_map;                // if weights_in_place
  TensorMap y_maps[most_y_maps];  // if store_boxes: y_map_count()
  CachePolicy y_policy;           // if store_boxes
  CachePolicy w_policy;
  int32_t pixels_at, patches_at, weights_at, sums_at;  // in shared memory, bytes
  int32_t patch_bytes, patch_part_bytes;               // of a stage, and of a part of it
  int32_t groups;                                      // of channels
  int32_t regions;                                     // of a patch
  int32_t wide_boxes, narrow_boxes;                    // of a row of a patch
  int32_t wide_bytes, narrow_bytes;                    // of a box
  int32_t stages, weight_stages, weight_stage_bytes;
  bool weights_stay;      // in shared memory
  bool weights_in_place;  // blocks of them are boxes of w, with rows of output channels; else they are packed
  bool copy_boxes;        // the copy engine brings the patch
  bool rows_in_boxes;     // by rows: wide boxes of 128 bytes, narrow ones of a region; two warps transpose them
  bool store_boxes;       // the copy engine writes y
  bool phases_in_boxes;   // phases of the rows of y are a dimension of y_maps
  RowBoxes row_boxes;     // if store_boxes, and rows are innermost in y
  bool channels_last;     // from the workspace, where the kernel before brings it, rounded
  int32_t units;          // of the grid: tiles of the same patch, one after the other; splits are units of their own
  int32_t block_steps, more_steps;    // steps of a block that are shared out, at least, and how many more there are
  int32_t set_chunks;                 // of all tiles of a set of phases
  int32_t reuse;                      // tiles of a unit
  bool in_turn;                       // warpgroups that take tiles in turn multiply in turn
  int32_t last_count;                 // products of the last chunk of the reduction
  int32_t piece_columns, piece_rows;  // positions of a piece
  bool gather;                        // the inputs of each step for themselves
  bool im2col;                        // and a tile is one row of positions, which follow each other in the batch
  bool steps_alike;                   // each is for all blocks of weights, and a shift of the patch
  int32_t reach_rows, reach_columns;  // of x, that the steps of a tile read
  int32_t x_row_step, y_row_step;     // rows from a position to the next
  int32_t stacked, log_warps_of_row;  // rows of y of a block of rows, and the warps that have one
  Divisor by_pieces_columns, by_pieces_rows, by_stages, by_weight_stages, by_blocks;
  Prefetch x_prefetch, w_prefetch;
  StepTaps taps[most_taps];  // of steps
};

static_assert(std::is_trivially_copyable_v<Params>);
static_assert(sizeof(Params) <= 4096, "the parameters of a kernel");

// Which maps of x the copy engine is given. Boxes of rows may all be wide, and of float32 they are.
CONVT_HOST_DEVICE constexpr bool uses_x_map(const Params& p) {
  return p.copy_boxes && (!p.rows_in_boxes || p.narrow_boxes > 0);
}
CONVT_HOST_DEVICE constexpr bool uses_wide_x_map(const Params& p) { return p.copy_boxes && p.wide_boxes > 0; }

// And how many maps of y: of each phase of the columns, or of rows that have all of them.
CONVT_HOST_DEVICE constexpr int32_t y_map_count(const Params& p) {
  return !p.store_boxes ? 0 : p.channels_innermost ? p.v.stride : 1;
}

// Where unit `u` of a row of 128 bytes is: of a pixel of a region or a position, or of a block of weights.
CONVT_HOST_DEVICE constexpr uint32_t unit_at(int32_t row, int32_t u) {
  return static_cast<uint32_t>(row * row_bytes + ((u ^ (row & 7)) * unit_bytes));
}

// A shift of rows and columns, in a word.
CONVT_HOST_DEVICE constexpr uint32_t pack_shift(int32_t row, int32_t column) {
  return static_cast<uint32_t>(row) << 16 | (static_cast<uint32_t>(column) & 0xffff);
}
CONVT_HOST_DEVICE constexpr int32_t row_of(uint32_t shift) { return static_cast<int32_t>(shift) >> 16; }
CONVT_HOST_DEVICE constexpr int32_t column_of(uint32_t shift) { return static_cast<int16_t>(shift & 0xffff); }

// What brings x into channels_last is given.
struct ChannelsLastParams {
  const void *x, *x_end;  // behind its last element
  void* to;
  int64_t batch_stride, channel_stride, row_stride, column_stride;
  int64_t part_stride;                        // elements of `to`
  int32_t channels, padded_channels, pixels;  // of a group; of an image
  bool pairs;                                 // pixels may be read two at a time, whatever the row
  bool innermost, units;                      // channels lie next to each other, and may be read 16 bytes at a time
  Divisor by_channel_tiles, by_pixel_tiles, by_images, by_columns;
};

struct PrepareParams {
  PackParams pack;
  ChannelsLastParams x;  // if Params::channels_last
  uint32_t packing = 0;  // blocks, which come first
  bool follows = false;  // a kernel that packs, for the product, too
};

// Blocks that bring x for each one that packs, from which on both are one launch: one less for the product to wait for.
// Where packing takes longer, bringing x hides behind it, and costs nothing of its own.
inline constexpr uint32_t bringing_of_packing = 4;

struct Launch {
  Params params;
  PrepareParams prepare;
  uint32_t channels_last_grid;
  bool balanced;               // all steps are shared out evenly, and a unit is a block's part of a tile
  bool y_in_order;             // a tile's sums are all of its rows of y
  bool y_unaligned;            // as Needs has it
  TensorMapLayout x_map;       // of params.x_map, which the launch makes if the kernel uses it
  TensorMapLayout wide_x_map;  // if params.rows_in_boxes
  TensorMapLayout y_maps[most_y_maps];
  int64_t shared_bytes;
  uint32_t grid;
};

// The kernel for it, if one is compiled.
inline std::optional<Variant> variant_of(const Launch& launch, const Config& c, Mode mode) {
  const Params& p = launch.params;
  const bool special = p.gather || p.splits > 1;
  return variant_for(c, mode,
                     {p.copy_boxes, p.rows_in_boxes, special, launch.balanced, p.weights_in_place, p.store_boxes,
                      p.channels_innermost, launch.y_in_order, launch.y_unaligned});
}

// Whether weights are packed, or counters cleared.
inline bool packs(const Launch& launch) {
  return launch.prepare.pack.groups > 0 || launch.prepare.pack.counter_count > 0;
}

inline void make_channels_last(const Problem& p, const Operands& o, void* to, ChannelsLastParams& q, uint32_t& grid) {
  const int64_t channel_tiles = ceil_div<int64_t>(p.in_channels_per_group(), row_bytes / element_size(p.dtype));
  const int64_t pixels = p.in_h * p.in_w, pixel_tiles = ceil_div<int64_t>(pixels, channels_last_pixels);
  q.x = o.x, q.to = to, q.part_stride = channels_last_elements(p);
  q.batch_stride = p.x_strides[0], q.channel_stride = used_stride(p.in_channels, p.x_strides[1]);
  q.row_stride = p.x_strides[2], q.column_stride = p.x_strides[3];
  q.channels = static_cast<int32_t>(p.in_channels_per_group());
  q.padded_channels = static_cast<int32_t>(padded_channels(p)), q.pixels = static_cast<int32_t>(pixels);
  // Rows that follow each other, all of them at even addresses.
  const bool whole = (p.in_w == 1 || p.x_strides[3] == 1) && (p.in_h == 1 || p.x_strides[2] == p.in_w);
  const auto even = [](int64_t size, int64_t stride) { return size <= 1 || stride % 2 == 0; };
  q.pairs = whole && pixels % 2 == 0 && (p.in_w > 1 || p.x_strides[2] == 1) &&
            reinterpret_cast<uintptr_t>(o.x) % 4 == 0 && even(p.batch, p.x_strides[0]) &&
            even(p.in_channels, p.x_strides[1]);
  const auto vector = static_cast<int32_t>(unit_bytes / element_size(p.dtype));
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) last += (p.x_sizes()[d] - 1) * p.x_strides[d];
  q.x_end = static_cast<const unsigned char*>(o.x) + (last + 1) * element_size(p.dtype);
  q.innermost = p.in_channels > 1 && p.x_strides[1] == 1;
  q.units = p.in_channels_per_group() % vector == 0 &&
            access_width(o.x, element_size(p.dtype), p.x_sizes(), p.x_strides, 1, p.in_channels_per_group(), vector) ==
                vector;
  q.by_channel_tiles = Divisor(channel_tiles), q.by_pixel_tiles = Divisor(pixel_tiles);
  q.by_images = Divisor(p.batch), q.by_columns = Divisor(p.in_w);
  grid = static_cast<uint32_t>(channel_tiles * pixel_tiles * p.batch * p.groups);
}

// A small layer's operands come into L2 while its blocks set up, each a share; of a large one, it is the memory's rate
// that takes long. Only what lies in one piece, at a multiple of 16 bytes.
inline Prefetch make_prefetch(const Problem& p, const void* from, const std::array<int64_t, 4>& sizes,
                              const Strides& strides, int64_t blocks) {
  constexpr int64_t line = 128, most = 32 * 1024;
  int64_t elements = 1, last = 0;
  for (int d = 0; d < 4; ++d) elements *= sizes[d], last += (sizes[d] - 1) * strides[d];
  const int64_t bytes = elements * element_size(p.dtype) / unit_bytes * unit_bytes;
  const int64_t share = ceil_div(ceil_div(bytes, blocks), line) * line;
  if (last != elements - 1 || share > most || reinterpret_cast<uintptr_t>(from) % unit_bytes != 0) return {};
  return {static_cast<uint32_t>(bytes), static_cast<uint32_t>(share)};
}

// `p`: as planned.
inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Config& config = configs[plan.configuration];
  const GemmTile& tile = plan.tile;
  Tables t;
  make_tables(config, p, tile.column_phases, tile.stacked_rows, t);
  const Patch patch = make_patch(config, p, t, tile);
  const SharedLayout shared = shared_layout(config, p, t, patch, tile, tile.patch_stages);
  const Counts n = make_counts(p, t, tile);
  const Pieces pieces = make_pieces(config, tile);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  int64_t channels_last_at = 0;
  const Workspace workspace = make_workspace(config, p, n, tile, &channels_last_at);
  make_common(tile, p, o, t, n, workspace, patch.rows, patch.columns, patch_begin(p, tile), row_bytes, q,
              launch.prepare.pack);
  q.pixels_at = narrow(shared.pixels), q.patches_at = narrow(shared.patches);
  q.weights_at = narrow(shared.weights), q.sums_at = narrow(shared.sums);
  q.patch_bytes = narrow(patch.bytes), q.patch_part_bytes = patch.pixels * row_bytes;
  q.groups = narrow(p.groups);
  q.regions = patch.pixels / region_pixels;
  q.stages = shared.patch_stages, q.weight_stages = shared.weight_stages;
  q.by_stages = Divisor(q.stages), q.by_weight_stages = Divisor(q.weight_stages);
  q.weight_stage_bytes = narrow(shared.weight_stage_bytes);
  q.weights_stay = shared.weights_stay;
  q.channels_last = tile.channels_last;
  const void* x = o.x;
  if (tile.channels_last) {
    void* const to = static_cast<unsigned char*>(o.workspace) + channels_last_at;
    make_channels_last(p, o, to, launch.prepare.x, launch.channels_last_grid);
    x = to;
  }
  launch.x_map = make_x_map(p, x, t, tile, patch);
  q.copy_boxes = copies_boxes(p, tile, launch.x_map), q.rows_in_boxes = tile.rows_in_boxes;
  q.wide_boxes = q.narrow_boxes = q.wide_bytes = q.narrow_bytes = 0;
  if (tile.rows_in_boxes) {
    const int32_t wide = wide_pixels(element_size(p.dtype));
    launch.wide_x_map = make_rows_map(p, x, wide);
    q.wide_boxes = patch.columns / wide, q.narrow_boxes = patch.columns % wide / region_pixels;
    q.wide_bytes = launch.wide_x_map.box[1] * launch.wide_x_map.inner_bytes();
    q.narrow_bytes = launch.x_map.box[1] * launch.x_map.inner_bytes();
  }
  q.store_boxes = stores_boxes(config, p, o.result, t, tile), q.phases_in_boxes = phases_in_boxes(p, tile);
  q.y_policy = once_policy(plan.result_exceeds_l2);
  q.w_policy = launch.prepare.pack.policy = stay_policy(plan.weights_stay_in_l2);
  q.row_boxes = {};
  if (q.store_boxes && !q.channels_innermost) q.row_boxes = make_row_boxes(config, p, tile);
  for (int32_t i = 0; i < y_map_count(q); ++i) {
    launch.y_maps[i] =
        q.channels_innermost ? make_y_map(config, p, o.result, tile, i) : make_row_boxes_map(config, p, o.result, tile);
  }
  q.units = narrow(n.blocks * tile.splits / tile.reuse), q.reuse = tile.reuse;
  launch.balanced = tile.balanced_blocks > 0;
  const int64_t steps = launch.balanced ? all_steps(t, n) : 0;
  q.block_steps = narrow(steps / plan.grid), q.more_steps = narrow(steps % plan.grid);
  q.set_chunks = narrow(launch.balanced ? n.blocks / t.sets * n.chunks : 0);
  const Mode mode = mode_of(p);
  q.last_count = narrow(ceil_div<int64_t>(p.in_channels_per_group() - (n.chunks - 1) * channels_of_chunk(mode),
                                          channels_of_fragment(mode)));
  q.piece_columns = pieces.piece_columns, q.piece_rows = pieces.piece_rows;
  q.by_pieces_columns = Divisor(pieces.columns), q.by_pieces_rows = Divisor(pieces.rows);
  q.weights_in_place = tile.weights_in_place;
  launch.y_in_order = in_order(config, t, tile), launch.y_unaligned = has_unaligned_rows(p, o.result, tile);
  for_each_tap(p, tile, t, [&](int32_t row, int32_t column, int32_t, int32_t step, int32_t first_block, int32_t) {
    for (int32_t i = first_block; i < first_block + t.channel_blocks; ++i) {
      q.taps[step].of[i] = {static_cast<uint8_t>(row), static_cast<uint8_t>(column)};
    }
  });
  q.x_row_step = t.row_step, q.y_row_step = row_period(p, tile.stacked_rows);
  q.stacked = tile.stacked_rows, q.log_warps_of_row = std::countr_zero(4u / static_cast<uint32_t>(q.stacked));
  q.reach_rows = q.x_row_step * (tile.rows - 1) + 1 + t.set[0].highest_row - t.set[0].lowest_row;
  // From where a patch begins.
  q.reach_columns = tile.columns + t.set[0].highest_column - first_column(t.set[0], patch_begin(p, tile));
  q.gather = gathers(tile), q.im2col = tile.im2col;
  if (q.im2col) {
    q.tile_images = q.batch, q.patch_pixels = tile.columns;
    q.reach_rows += patch.rows - tile.rows, q.reach_columns += patch.columns - tile.columns;  // of whole images
  }
  q.in_turn = multiplies_in_turn(shared, t, tile, n);
  q.steps_alike = !q.gather;
  for (int32_t s = 0; s < t.steps; ++s) q.steps_alike &= t.step[s].mask == (1u << config.rows()) - 1;
  if (q.gather) {
    // In im2col mode, from where the map begins.
    const int32_t row = q.im2col ? t.set[0].lowest_row : 0, column = q.im2col ? t.set[0].lowest_column : 0;
    for (int32_t s = 0; s < t.steps; ++s)
      q.steps[s].offset = pack_shift(t.step[s].row - row, t.step[s].column - column);
    while (!q.channels_innermost && patch.columns * tile.column_phases % q.store_width != 0) q.store_width /= 2;
  }
  q.x_prefetch = q.w_prefetch = {};
  if (!tile.channels_last) q.x_prefetch = make_prefetch(p, o.x, p.x_sizes(), p.x_strides, plan.grid);
  if (tile.weights_in_place) q.w_prefetch = make_prefetch(p, o.w, p.w_sizes(), p.w_strides, plan.grid);
  launch.shared_bytes = shared.bytes;
  launch.grid = static_cast<uint32_t>(plan.grid), q.by_blocks = Divisor(plan.grid);
}

}  // namespace convt::implicit_gemm_sm90
