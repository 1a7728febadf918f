// The geometry of a tile. Host code, for the planner and the launch.
#pragma once

#include <bit>
#include <limits>

#include "../implicit_gemm/params.h"
#include "../tensor_map.h"
#include "config.h"

namespace convt::implicit_gemm_sm90 {

// The sets of phases have the same patch: it may stay in shared memory while all of them are multiplied from it.
inline Refusal make_tables(const Config& config, const Problem& p, int32_t column_phases, int32_t stacked, Tables& t) {
  const int32_t channels = 64 / stacked;
  if (stacked > 1 && p.out_channels_per_group() > channels) {
    return {"has rows for ", channels, " output channels"};
  }
  const Refusal cannot = make_tables(config.rows(), channels, p, 1, column_phases, stacked, t);
  if (!cannot.empty()) return cannot;
  PhaseSet all{};
  bool first = true;
  for (int32_t i = 0; i < t.sets; ++i) {
    const PhaseSet& s = t.set[i];
    if (s.steps == 0) continue;
    all.lowest_row = first ? s.lowest_row : std::min(all.lowest_row, s.lowest_row);
    all.highest_row = first ? s.highest_row : std::max(all.highest_row, s.highest_row);
    all.lowest_column = first ? s.lowest_column : std::min(all.lowest_column, s.lowest_column);
    all.highest_column = first ? s.highest_column : std::max(all.highest_column, s.highest_column);
    first = false;
  }
  for (int32_t i = 0; i < t.sets; ++i) {
    PhaseSet& s = t.set[i];
    s.lowest_row = all.lowest_row, s.highest_row = all.highest_row;
    s.lowest_column = all.lowest_column, s.highest_column = all.highest_column;
  }
  return cannot;
}

// Input channels of 128 bytes, and of a product.
constexpr int32_t channels_of_chunk(Mode m) { return row_bytes / k_bytes * channels_of_fragment(m); }

// Positions of small images lie one after the other, so that no product has rows that are shorter than its pieces. The
// inputs of a step are gathered then for themselves: a tap is no shift of others. A tile has whole rows of positions;
// or if the copy engine brings x in its im2col mode, so many positions of the batch, whichever they are, as one row.
constexpr bool gathers(const GemmTile& tile) { return tile.piece_rows == 0; }
inline constexpr int32_t gathers_less_than = 1 << 14;  // rows, columns, and their shifts

// Of a dimension of a tensor map, bytes; one of a single element has any.
constexpr int64_t map_stride(int64_t size, int64_t bytes) { return size > 1 ? bytes : 16; }

// Rows of x as [group][image][row][channel][column], in boxes of so many pixels of the channels of a chunk. Those of 16
// bits are read as matrices, for which they are swizzled.
inline TensorMapLayout make_rows_map(const Problem& p, const void* x, int32_t pixels) {
  const int64_t bytes = element_size(p.dtype), channels = p.in_channels_per_group();
  const int64_t fragment = channels_of_fragment(mode_of(p)), whole = ceil_div(channels, fragment) * fragment;
  const auto stride = [&](int64_t size, int64_t elements) { return map_stride(size, elements * bytes); };
  return {x,
          static_cast<int32_t>(bytes),
          {p.in_w, channels, p.in_h, p.batch, p.groups},
          {stride(channels, p.x_strides[1]), stride(p.in_h, p.x_strides[2]), stride(p.batch, p.x_strides[0]),
           stride(p.groups, checked_mul(channels, p.x_strides[1]))},
          {pixels, static_cast<int32_t>(std::min<int64_t>(whole, channels_of_chunk(mode_of(p)))), 1, 1, 1},
          bytes == 2 ? pixels * 2 : 0,
          mode_of(p) == Mode::tf32};
}

// A wide box has rows of 128 bytes; those of a narrow one, a region, cost the copy engine almost as much. Of float32
// all boxes are wide.
constexpr int32_t wide_pixels(int64_t element_bytes) { return static_cast<int32_t>(row_bytes / element_bytes); }
constexpr int32_t box_pixels(const Problem& p) { return element_size(p.dtype) == 4 ? wide_pixels(4) : region_pixels; }

// Whether the copy engine may bring rows of x, as far as strides tell, which two warps then transpose where they lie.
inline bool may_bring_rows(const Problem& p) {
  return (p.in_w == 1 || p.x_strides[3] == 1) && (p.in_channels == 1 || p.x_strides[1] != 1) &&
         make_rows_map(p, nullptr, region_pixels).valid();
}

// Patches begin at multiples of so many pixels. Boxes of rows begin at 16 bytes, other ones anywhere, and gathered
// inputs have no patch.
inline int32_t patch_begin(const Problem& p, const GemmTile& tile) {
  if (tile.channels_last || gathers(tile)) return 1;
  return tile.rows_in_boxes ? static_cast<int32_t>(unit_bytes / element_size(p.dtype)) : implicit_gemm::patch_begin(p);
}

// The part of the input that is in shared memory at a time: 128 bytes of channels of each pixel.
struct Patch {
  int32_t rows, columns, pixels;  // pixels: whole regions
  int64_t bytes;                  // of a stage, all parts
};

inline Patch make_patch(const Config& config, const Problem& p, const Tables& t, const GemmTile& tile) {
  const int32_t begin = patch_begin(p, tile);
  const PhaseSet& set = t.set[0];  // as all
  const int64_t pixel_bytes = int64_t{row_bytes} * parts_of(mode_of(p));
  Patch patch{};
  if (gathers(tile)) {
    patch.rows = tile.rows, patch.columns = tile.columns;
    if (tile.im2col) {  // of an image
      patch.rows = static_cast<int32_t>(ceil_div(p.out_h, p.stride_h));
      patch.columns = static_cast<int32_t>(ceil_div(p.out_w, p.stride_w));
    }
    patch.pixels = ceil_div(config.columns(), region_pixels) * region_pixels;
    patch.bytes = pixel_bytes * patch.pixels;
    return patch;
  }
  patch.rows = t.row_step * (tile.rows - 1) + 1 + set.highest_row - set.lowest_row;
  patch.columns = tile.columns + set.highest_column - first_column(set, begin);
  const int32_t columns = tile.rows_in_boxes ? box_pixels(p) : begin;
  patch.columns = ceil_div(patch.columns, columns) * columns;
  patch.pixels = ceil_div(tile.images * patch.rows * patch.columns, region_pixels) * region_pixels;
  patch.bytes = pixel_bytes * patch.pixels;
  return patch;
}

inline Counts make_counts(const Problem& p, const Tables& t, const GemmTile& tile) {
  return make_counts(p, t, tile, 64, channels_of_chunk(mode_of(p)));
}

// Steps of all tiles and chunks.
inline int64_t all_steps(const Tables& t, const Counts& n) {
  return checked_mul(n.blocks / t.sets, checked_mul(n.chunks, t.steps));
}

// How many blocks may share the reduction of a tile if `grid` of them have as many steps each; 0 if a block could have
// less than a chunk, if some outputs have no taps, or if steps are too many to be counted in 32 bits.
inline int32_t most_parts(const Tables& t, const Counts& n, int64_t grid) {
  int64_t most = 0;
  for (int32_t i = 0; i < t.sets; ++i) {
    if (t.set[i].steps == 0) return 0;
    most = std::max<int64_t>(most, t.set[i].steps);
  }
  const int64_t all = all_steps(t, n), of_block = all / grid;
  return of_block < most || all > std::numeric_limits<int32_t>::max()
             ? 0
             : static_cast<int32_t>((n.chunks * most - 1) / of_block + 2);
}

// Shared memory, in bytes from its start: barriers and words; where in an image each pixel of the patch is; stages of
// the patch; stages of weights, a step of a chunk each; what a warp stages of its sums.
struct SharedLayout {
  int64_t pixels, patches, weights, sums, bytes;
  int64_t weight_stage_bytes;  // the blocks of the step that has most
  int32_t patch_stages, weight_stages;
  bool weights_stay;  // all that a block multiplies by
};

// With `patch_stages` and as many stages of weights as there is room for; bytes is 0 if there is not enough.
inline SharedLayout shared_layout(const Config& config, const Problem& p, const Tables& t, const Patch& patch,
                                  const GemmTile& tile, int32_t patch_stages) {
  const auto aligned = [](int64_t bytes, int64_t to) { return ceil_div<int64_t>(bytes, to) * to; };
  const int64_t pixel_words = gathers(tile) ? 2 : 1;
  SharedLayout s{};
  s.patch_stages = patch_stages;
  s.pixels = aligned(words_at + 4 * shared_words, 16);
  s.patches = aligned(s.pixels + 4 * pixel_words * patch.pixels, swizzle_bytes);
  s.weights = aligned(s.patches + patch_stages * patch.bytes, swizzle_bytes);
  const Mode mode = mode_of(p);
  int32_t blocks = 1;
  for (int32_t i = 0; i < t.steps; ++i) blocks = std::max(blocks, std::popcount(t.step[i].mask));
  const int64_t stage = s.weight_stage_bytes = int64_t{block_bytes} * parts_of(mode) * blocks;
  const int64_t sums = int64_t{4} * slab_pitch_of(config) * 16 * config.m_blocks * (consumers / 32);
  const int64_t room = (shared_bytes_limit - s.weights - sums) / stage;
  if (room < fewest_weight_stages(mode)) return s;
  // A block whose tiles all have the same weights reads them once.
  const Counts n = make_counts(p, t, tile);
  const int64_t all = n.channels * n.chunks * t.steps;
  s.weights_stay = all > 0 && p.groups == 1 && tile.splits == 1 && n.channels * t.sets == tile.reuse &&
                   all <= std::min<int64_t>(room, most_weight_stages);
  s.weight_stages = s.weights_stay ? static_cast<int32_t>(all) : static_cast<int32_t>(std::min<int64_t>(room, 4));
  s.sums = s.weights + s.weight_stages * stage;
  s.bytes = s.sums + sums;
  return s;
}

// Whether warpgroups that take tiles in turn multiply in turn. A barrier knows the parity of its turn only: nobody may
// wait for a stage before the turn that precedes its own. If weights stay, and there are stages of the patch for two
// tiles, the turn that precedes is of a tile that this warpgroup has multiplied.
inline bool multiplies_in_turn(const SharedLayout& s, const Tables& t, const GemmTile& tile, const Counts& n) {
  return !s.weights_stay || 2 * n.chunks * (gathers(tile) ? t.steps : 1) > s.patch_stages;
}

// w as [group][input channel][row][column][output channel], in boxes of 128 bytes of output channels of a tap and a
// chunk of the reduction: a block of 64 is one of them, or two. Channels beyond those of the group become zeros.
inline TensorMapLayout make_w_map(const Problem& p, const void* w) {
  const int64_t bytes = element_size(p.dtype), in = p.in_channels_per_group(), out = p.out_channels_per_group();
  const auto stride = [&](int64_t size, int64_t elements) { return map_stride(size, elements * bytes); };
  return {w,
          static_cast<int32_t>(bytes),
          {out, p.kernel_w, p.kernel_h, in, p.groups},
          {stride(p.kernel_w, p.w_strides[3]), stride(p.kernel_h, p.w_strides[2]), stride(in, p.w_strides[0]),
           stride(p.groups, checked_mul(in, p.w_strides[0]))},
          {static_cast<int32_t>(row_bytes / bytes), 1, 1, static_cast<int32_t>(row_bytes / bytes), 1},
          row_bytes,
          mode_of(p) == Mode::tf32};
}

// Whether the copy engine may bring blocks of weights from where they are: then rows of output channels. wgmma takes
// these of 16-bit types; of TF32 they are transposed where they lie, if two warps are free. A block of several rows of
// y has several taps, and is packed.
inline bool weights_in_place(const Problem& p, int32_t stacked) {
  return stacked == 1 && mode_of(p) != Mode::ieee && p.w_aligned &&
         (p.w_strides[1] == 1 || p.out_channels_per_group() == 1) && make_w_map(p, nullptr).valid();
}

// x in channels_last, if the tile wants it, lies behind the rest: [part][group][image][pixel][channel], a pixel's
// channels padded to 16 bytes.
inline int64_t padded_channels(const Problem& p) {
  const int64_t unit = unit_bytes / element_size(p.dtype);
  return ceil_div<int64_t>(p.in_channels_per_group(), unit) * unit;
}

inline int64_t channels_last_elements(const Problem& p) {  // of a part
  const int64_t pixels = checked_mul(checked_mul(p.in_h, p.in_w), checked_mul(p.batch, p.groups));
  return checked_mul(pixels, padded_channels(p));
}

// Unless its rows are in boxes, x as [group][image][row][column][channel], or all groups of each part if it is in the
// workspace, in boxes of a part of a patch. For im2col, groups and parts are images.
inline TensorMapLayout make_x_map(const Problem& p, const void* x, const Tables& t, const GemmTile& tile,
                                  const Patch& patch) {
  if (tile.rows_in_boxes) return make_rows_map(p, x, region_pixels);
  const int64_t bytes = element_size(p.dtype), channels = p.in_channels_per_group();
  int64_t groups = p.groups, column = p.x_strides[3], row = p.x_strides[2], image = p.x_strides[0], group = channels;
  if (tile.channels_last) {
    groups *= parts_of(mode_of(p));
    column = padded_channels(p), row = p.in_w * column, image = p.in_h * row, group = p.batch * image;
  }
  const auto stride = [&](int64_t size, int64_t elements) { return map_stride(size, elements * bytes); };
  if (tile.im2col) {
    const PhaseSet& set = t.set[0];  // as all
    const int64_t images = tile.channels_last ? checked_mul(p.batch, groups) : p.batch;
    TensorMapLayout map{x,
                        static_cast<int32_t>(bytes),
                        {channels, p.in_w, p.in_h, images, 1},
                        {stride(p.in_w, column), stride(p.in_h, row), stride(images, image), map_stride(1, 0)},
                        {static_cast<int32_t>(row_bytes / bytes), tile.columns, 1, 1, 1},
                        row_bytes,
                        mode_of(p) == Mode::tf32,
                        true};
    const auto narrow = [](int64_t v) { return static_cast<int16_t>(std::clamp<int64_t>(v, -4096, 4096)); };
    map.lower[0] = narrow(set.lowest_column), map.upper[0] = narrow(set.lowest_column + patch.columns - p.in_w);
    map.lower[1] = narrow(set.lowest_row), map.upper[1] = narrow(set.lowest_row + patch.rows - p.in_h);
    return map;
  }
  return {x,
          static_cast<int32_t>(bytes),
          {channels, p.in_w, p.in_h, p.batch, groups},
          {stride(p.in_w, column), stride(p.in_h, row), stride(p.batch, image), stride(groups, group)},
          {static_cast<int32_t>(row_bytes / bytes), patch.columns, patch.rows, tile.images, 1},
          row_bytes,
          mode_of(p) == Mode::tf32};
}

// Whether rows of 8 columns of a phase of the rows, which are not rows of y that follow each other, are one box: the
// phase is a dimension then, in the group's place.
inline bool phases_in_boxes(const Problem& p, const GemmTile& tile) {
  return tile.piece_rows > 1 && p.stride_h > 1 && p.groups == 1 && p.out_h % p.stride_h == 0;
}

// Outputs of a phase of the columns as [group][image][row][column][channel], or with phases_in_boxes()
// [image][row][phase][column][channel], in boxes of 128 bytes of channels of what a warpgroup stages at once: of one
// row, or of rows of 8 columns if rows of positions are rows of y.
inline TensorMapLayout make_y_map(const Config& c, const Problem& p, void* y, const GemmTile& tile, int32_t phase) {
  const int64_t bytes = element_size(p.dtype), channels = p.out_channels_per_group();
  const auto stride = [&](int64_t size, int64_t elements) { return map_stride(size, elements * bytes); };
  const int32_t positions = staged_positions(c, bytes), columns = tile.piece_rows > 1 ? 8 : positions;
  const int64_t outputs = ceil_div<int64_t>(p.out_w - phase, p.stride_w);
  if (phases_in_boxes(p, tile)) {
    const int64_t rows = p.out_h / p.stride_h;
    return {static_cast<unsigned char*>(y) + phase * p.y_strides[3] * bytes,
            static_cast<int32_t>(bytes),
            {channels, outputs, p.stride_h, rows, p.batch},
            {stride(outputs, checked_mul(p.stride_w, p.y_strides[3])), stride(p.stride_h, p.y_strides[2]),
             stride(rows, checked_mul(p.stride_h, p.y_strides[2])), stride(p.batch, p.y_strides[0])},
            {static_cast<int32_t>(row_bytes / bytes), columns, 1, positions / columns, 1}};
  }
  return {static_cast<unsigned char*>(y) + phase * p.y_strides[3] * bytes,
          static_cast<int32_t>(bytes),
          {channels, outputs, p.out_h, p.batch, p.groups},
          {stride(outputs, checked_mul(p.stride_w, p.y_strides[3])), stride(p.out_h, p.y_strides[2]),
           stride(p.batch, p.y_strides[0]), stride(p.groups, channels)},
          {static_cast<int32_t>(row_bytes / bytes), columns, p.stride_h == 1 ? positions / columns : 1, 1, 1}};
}

// Where rows are innermost in y: the box of what a warpgroup stages at once of 64 channels, as [row of
// positions][channel][outputs of all phases of the columns].
struct RowBoxes {
  int32_t bytes;       // of a row
  int32_t log_groups;  // of eight positions, in it
  int32_t rows;        // of positions
};

inline RowBoxes make_row_boxes(const Config& c, const Problem& p, const GemmTile& tile) {
  const int64_t bytes = element_size(p.dtype);
  const int32_t groups = staged_positions(c, bytes) / 8;
  const int32_t of_row = tile.piece_rows == 1 ? groups : merges_pieces(c, bytes) && tile.columns % 16 == 0 ? 2 : 1;
  return {static_cast<int32_t>(of_row * 8 * tile.column_phases * bytes),
          std::countr_zero(static_cast<uint32_t>(of_row)), groups / of_row};
}

// y as [image][phase of the rows][row][channel][column] if phases_in_boxes(), or [group][image][row][channel][column].
// Boxes have all rows of positions of a slab, if these are rows of the map.
inline TensorMapLayout make_row_boxes_map(const Config& c, const Problem& p, void* y, const GemmTile& tile) {
  const RowBoxes b = make_row_boxes(c, p, tile);
  const int64_t bytes = element_size(p.dtype), channels = p.out_channels_per_group();
  const auto stride = [&](int64_t size, int64_t elements) { return map_stride(size, elements * bytes); };
  const auto columns = static_cast<int32_t>(b.bytes / bytes);
  const int64_t channel = stride(channels, p.y_strides[1]), image = stride(p.batch, p.y_strides[0]);
  if (phases_in_boxes(p, tile)) {
    const int64_t rows = p.out_h / p.stride_h;
    return {y,
            static_cast<int32_t>(bytes),
            {p.out_w, channels, rows, p.stride_h, p.batch},
            {channel, stride(rows, checked_mul(p.stride_h, p.y_strides[2])), stride(p.stride_h, p.y_strides[2]), image},
            {columns, 64, b.rows, 1, 1},
            b.bytes};
  }
  return {y,
          static_cast<int32_t>(bytes),
          {p.out_w, channels, p.out_h, p.batch, p.groups},
          {channel, stride(p.out_h, p.y_strides[2]), image, stride(p.groups, checked_mul(channels, p.y_strides[1]))},
          {columns, 64, p.stride_h == 1 ? b.rows : 1, 1, 1},
          b.bytes};
}

// Whether the sums of each tile are all of its rows of y, if those are innermost: of one phase of the columns or two,
// each of which has taps.
inline bool in_order(const Config& c, const Tables& t, const GemmTile& tile) {
  if (tile.column_phases > 2 || (tile.column_phases == 2 && c.m_blocks != 2)) return false;
  return std::all_of(t.set, t.set + t.sets, [&](const PhaseSet& s) { return s.columns == tile.column_phases; });
}

// Whether rows of y are innermost, tiles have parts of them with all phases of the columns, and they begin at no
// multiples of 16 bytes.
inline bool has_unaligned_rows(const Problem& p, const void* y, const GemmTile& tile) {
  const int64_t bytes = element_size(p.dtype);
  const auto vector = static_cast<int32_t>(unit_bytes / bytes);
  return !channels_innermost(p) && !gathers(tile) && tile.piece_rows == 1 && tile.column_phases == p.stride_w &&
         p.y_strides[3] == 1 && access_width(y, bytes, p.y_sizes(), p.y_strides, 3, p.out_w, vector) < vector;
}

// Whether the copy engine writes y, and not threads. All outputs of its tiles have taps, and where rows are innermost
// a warpgroup has all phases of the columns.
inline bool stores_boxes(const Config& c, const Problem& p, void* y, const Tables& t, const GemmTile& tile) {
  if (gathers(tile) || tile.stacked_rows > 1) return false;
  if (!channels_innermost(p)) {
    if (!has_row_boxes(c, element_size(p.dtype)) || tile.column_phases != p.stride_w) return false;
    if (!in_order(c, t, tile) || (p.stride_w > 1 && t.channel_blocks > 1)) return false;
    return (p.y_strides[3] == 1 || p.out_w == 1) && make_row_boxes(c, p, tile).bytes >= fewest_row_bytes &&
           make_row_boxes_map(c, p, y, tile).valid();
  }
  if (p.stride_w > most_y_maps) return false;
  if (!has_store_boxes(c, element_size(p.dtype))) return false;
  for (int32_t phase = 0; phase < p.stride_w; ++phase) {
    if (t.column_rank[phase] < 0 || !make_y_map(c, p, y, tile, phase).valid()) return false;
  }
  return true;
}

// Whether the copy engine may bring patches by `x_map`, which make_x_map() has made.
inline bool copies_boxes(const Problem& p, const GemmTile& tile, const TensorMapLayout& x_map) {
  if (tile.im2col && !tile.channels_last && p.groups > 1) return false;
  return (tile.rows_in_boxes || tile.channels_last || p.x_strides[1] == 1 || p.in_channels == 1) && x_map.valid();
}

// Whether the copy engine may bring gathered positions in im2col mode, as far as shapes tell: steps are shifts, and
// positions are counted in 32 bits.
inline bool may_bring_im2col(const Problem& p, const Tables& t) {
  const PhaseSet& set = t.set[0];
  const int64_t positions =
      checked_mul(p.batch, checked_mul(ceil_div(p.out_h, p.stride_h), ceil_div(p.out_w, p.stride_w)));
  return set.highest_row - set.lowest_row < im2col_most_shift &&
         set.highest_column - set.lowest_column < im2col_most_shift && positions < int64_t{1} << 30 &&
         checked_mul(p.batch, p.groups) < int64_t{1} << 29;
}

// Whether two warps are free to transpose weights of TF32: the copy engine brings x, and they do not prepare it.
inline bool may_transpose_weights(const Problem& p, const GemmTile& tile, const TensorMapLayout& x_map) {
  return (tile.channels_last || p.x_aligned) && !tile.rows_in_boxes && copies_boxes(p, tile, x_map);
}

inline Workspace make_workspace(const Config& c, const Problem& p, const Counts& n, const GemmTile& tile,
                                int64_t* channels_last = nullptr) {
  const int32_t parts = parts_of(mode_of(p));
  Workspace s = make_workspace(n, tile, int64_t{64} * c.rows() * c.columns(),
                               tile.weights_in_place ? 0 : int64_t{block_bytes} * parts);
  if (tile.channels_last) {
    const int64_t at = ceil_div<int64_t>(s.bytes, 512) * 512;
    if (channels_last != nullptr) *channels_last = at;
    s.bytes = checked_add(at, checked_mul(channels_last_elements(p), parts * element_size(p.dtype)));
  }
  return s;
}

// The pieces of a tile, columns first: their arrangement, for wgmma's operands.
struct Pieces {
  int32_t columns, rows, images;      // pieces
  int32_t piece_columns, piece_rows;  // positions of one
};

inline Pieces make_pieces(const Config& c, const GemmTile& tile) {
  Pieces q{};
  if (gathers(tile)) return {1, 1, 1, c.width, 0};
  q.piece_rows = tile.piece_rows, q.piece_columns = c.width / tile.piece_rows;
  q.columns = tile.columns / q.piece_columns, q.rows = tile.rows / q.piece_rows;
  return q;
}

}  // namespace convt::implicit_gemm_sm90
