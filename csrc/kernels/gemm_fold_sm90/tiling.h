// How the product is cut into tiles, and what the copy engine is told of its operands.
#pragma once

#include "../../plan/plan.h"
#include "../access_width.h"
#include "../gemm_scatter/maps.h"
#include "config.h"

namespace convt::gemm_fold_sm90 {

// Whether x is channels_last, and its copy, too. Then a box may begin at any position.
inline bool is_last(const Problem& p) { return p.in_channels > 1 && p.x_strides[1] == 1 && position_stride(p) != 1; }

// Whether rows of the product are channels of y for each tap, rather than taps for each channel: channels_last weights.
inline bool has_last_weights(const Problem& p) {
  const int64_t channels = p.out_channels_per_group();
  return channels > 1 && p.kernel_h * p.kernel_w > 1 && p.w_strides[1] == 1 &&
         dense(p.kernel_w, p.w_strides[3], channels) &&
         dense(p.kernel_h, p.w_strides[2], checked_mul(p.kernel_w, channels));
}

// Channels of which a tile has all taps, about the same in all tiles; none if it has too few rows. Its rows begin where
// the copy engine can, fewer than a vector before its channels: as many as those of some tile are from a multiple of
// it.
inline int64_t channels_of_tile(const Config& c, const Problem& p) {
  const int64_t taps = p.kernel_h * p.kernel_w, vector = vector_of(p), all = p.out_channels_per_group();
  if (has_last_weights(p)) return all * taps <= c.rows() ? all : 0;
  const auto fit = [&](int64_t channels) {
    return channels * taps + vector - std::gcd(channels * taps, vector) <= c.rows();
  };
  int64_t most = c.rows() / taps;
  while (most > 0 && !fit(most)) --most;
  if (most == 0) return 0;
  int64_t channels = ceil_div(all, ceil_div(all, most));
  while (!fit(channels)) ++channels;
  return channels;
}

// A tile has outputs of whole images, or so many rows and columns of one, and the positions of x that these have
// inputs of. Column image * image_pitch + row * row_pitch + column of the product is a position, counted from the
// tile's first one.
struct Tiling {
  // Outputs: of a tile, and tiles of an image.
  int64_t images = 0, rows = 0, columns = 0, image_tiles = 0, row_tiles = 1, column_tiles = 1;
  int64_t rows_before = 0, columns_before = 0;  // of an image's first output, which its first tile has, too
  // Of x: the first position of an image's first tile, which may be outside, and from a tile to the next.
  int64_t first_row = 0, row_step = 0, first_column = 0, column_step = 0;
  int64_t image_pitch = 0, row_pitch = 0;
  // In memory, elements from a row of x to the next; if x is copied, images too.
  int64_t memory_row = 0, memory_image = 0;
  // Boxes of positions that a tile brings: after so many that follow each other, the next ones are of the next image,
  // or of the next row.
  int64_t boxes = 0, segments = 0;
  bool next_is_image = false;
  int64_t channels = 0, output_tiles = 0;  // of a tile; of a group
  int64_t chunks = 0;                      // of input channels, as many as a box has
  int64_t tiles = 0;                       // 0 if there is no such tile
};

// Elements of y that are written at once, at most.
inline int32_t widest_store(const Problem& p) { return p.dtype == DataType::float32 ? 2 : 8; }

// Of an axis cut into tiles of at most `most` outputs that have inputs of at most `positions` positions, the first of
// which is a multiple of `align`: outputs of a tile (none if it has too few positions for any), its first position, and
// from a tile to the next; and positions that they have inputs of. The first tile begins `before` outputs ahead of the
// axis.
struct AxisTiling {
  int64_t outputs, first, step, before, positions;

  int64_t tiles(const Axis<int64_t>& a) const { return ceil_div(a.out + before, outputs); }
};
inline AxisTiling cut_axis(const Axis<int64_t>& a, int64_t positions, int64_t align, int64_t most, int64_t before) {
  const int64_t padding = a.padding - before;
  const int64_t first = floor_div(ceil_div(padding - a.dilation * (a.kernel - 1), a.stride), align) * align;
  const int64_t reached = floor_div(padding - 1, a.stride) - first + 1;  // beside one for each stride of outputs
  int64_t step = std::min(positions - reached, most / a.stride);
  step -= step % align;
  if (step < 1) return {};
  return {std::min(step * a.stride, a.out + before), first, step, before, reached + step};
}

// The fewest tiles, which may begin ahead by a multiple of `unit`, if that is not 0: they may have inputs of fewer
// positions then.
inline AxisTiling best_cut(const Axis<int64_t>& a, int64_t positions, int64_t align, int64_t most, int64_t unit) {
  constexpr int64_t enough = 64;  // of a large stride it would be many
  const int64_t end = unit == 0 ? 1 : std::min(a.stride * align, enough);
  AxisTiling best{};
  for (int64_t before = 0; before < end; before += std::max<int64_t>(unit, 1)) {
    const AxisTiling t = cut_axis(a, positions, align, most, before);
    if (t.outputs > 0 && (best.outputs == 0 || t.tiles(a) < best.tiles(a))) best = t;
  }
  return best;
}

// What a plan says of a tiling. `ahead`: tiles may begin ahead of y, so that there are fewer of them, which are larger.
// `boxes`: a tile's positions at most, which may be fewer than its columns: then there are more tiles, each of which
// brings less.
struct Cut {
  bool ahead;
  int32_t boxes;
};
inline int32_t most_boxes(const Config& c, const Problem& p) { return c.columns / box_side(p); }
inline void set_cut(Plan& plan, const Cut& cut) { plan.cut[0] = cut.ahead ? 1 : 0, plan.cut[1] = cut.boxes; }
inline Cut cut_of(const Plan& plan) { return {plan.cut[0] != 0, plan.cut[1]}; }

// `copies`: x is copied first. Channels_last stays what it is, with positions that begin at 16 bytes; others become
// [channel][image][row][column] with memory_image and memory_row.
inline Tiling make_tiling(const Config& c, const Problem& p, bool copies, const Cut& cut) {
  const bool last = is_last(p), images_in_row = copies && !last;
  const int64_t positions = p.in_h * p.in_w, vector = last ? 1 : vector_of(p), side = box_side(p), boxes = cut.boxes,
                most_positions = boxes * side;
  const Axis<int64_t> h = p.axis_h(), w = p.axis_w();
  const auto padded = [&](int64_t n) { return ceil_div(n, vector) * vector; };
  Tiling best;
  const int64_t channels = channels_of_tile(c, p);
  if (channels == 0) return best;
  const auto consider = [&](Tiling t) {
    t.image_tiles = ceil_div(p.batch, t.images);
    t.channels = channels;
    t.output_tiles = ceil_div(p.out_channels_per_group(), t.channels);
    t.chunks = ceil_div<int64_t>(p.in_channels_per_group(), side);
    t.tiles = checked_mul(checked_mul(t.output_tiles, checked_mul(t.row_tiles, t.column_tiles)),
                          checked_mul(t.image_tiles, p.groups));
    if (best.tiles == 0 || t.tiles < best.tiles) best = t;
  };
  if (p.out_h <= most_rows && p.out_w <= most_columns) {
    Tiling t;
    t.rows = p.out_h, t.columns = p.out_w, t.row_pitch = t.memory_row = p.in_w;
    if (images_in_row) {
      // Images one after another, if tiles of so many begin at 16 bytes, or each at 16 bytes.
      int64_t dense = most_positions / positions;
      if (dense < p.batch) dense -= dense % (vector / std::gcd(positions, vector));
      const int64_t apart = most_positions / padded(positions);
      t.images = std::min(p.batch, std::max(dense, apart));
      t.image_pitch = t.memory_image = dense >= apart ? positions : padded(positions);
      t.segments = boxes, t.boxes = ceil_div((t.images - 1) * t.image_pitch + positions, side);
    } else {
      t.segments = ceil_div<int64_t>(positions, side), t.image_pitch = t.segments * side;
      t.images = std::min(p.batch, boxes / t.segments), t.boxes = t.images * t.segments, t.next_is_image = true;
    }
    if (t.images > 0) consider(t);
  }
  // Rows of one image, all or as many columns as boxes have. They begin at 16 bytes.
  for (int64_t together = 0; together <= boxes; together = together == 0 ? 1 : 2 * together) {
    Tiling t;
    t.images = 1, t.memory_row = images_in_row ? padded(p.in_w) : p.in_w;
    if (t.memory_row % vector != 0) continue;
    if (images_in_row) t.memory_image = p.in_h * t.memory_row;
    t.segments = together == 0 ? boxes : together;
    t.row_pitch = together == 0 ? t.memory_row : together * side;
    const AxisTiling rows = best_cut(h, most_positions / t.row_pitch, 1, most_rows, cut.ahead ? 1 : 0);
    AxisTiling columns{p.out_w, 0, 0, 0, p.in_w};
    if (together > 0) columns = best_cut(w, t.row_pitch, vector, most_columns, cut.ahead ? widest_store(p) : 0);
    if (rows.outputs == 0 || columns.outputs == 0 || columns.outputs > most_columns) continue;
    t.rows = rows.outputs, t.rows_before = rows.before, t.first_row = rows.first, t.row_step = rows.step;
    t.columns = columns.outputs, t.first_column = columns.first, t.column_step = columns.step;
    t.columns_before = columns.before, t.boxes = ceil_div(rows.positions * t.row_pitch, side);
    t.row_tiles = rows.tiles(h), t.column_tiles = columns.tiles(w);
    consider(t);
  }
  return best;
}

// Where x is copied: elements from a channel to the next or, in channels_last, from a position; and bytes of the copy.
inline int64_t copied_row(const Problem& p, const Tiling& t) {
  const int64_t vector = vector_of(p), elements = is_last(p) ? p.in_channels : checked_mul(p.batch, t.memory_image);
  return ceil_div(elements, vector) * vector;
}
inline int64_t copied_bytes(const Problem& p, const Tiling& t) {
  const int64_t rows = is_last(p) ? checked_mul(p.batch, p.in_h * p.in_w) : p.in_channels;
  return checked_mul(element_size(p.dtype) * rows, copied_row(p, t));
}
// A copy in channels_last has no gaps between groups.
inline bool may_copy(const Problem& p) {
  return !is_last(p) || p.groups == 1 || p.in_channels_per_group() % vector_of(p) == 0;
}

// x, or its copy, which has the positions of all images in a row unless it is channels_last.
inline TensorMapLayout make_x_map(const Problem& p, const Tiling& t, const void* x, bool copies) {
  const int64_t row = copied_row(p, t), positions = p.in_h * p.in_w;
  if (is_last(p)) {
    return copies ? gemm_scatter::make_last_x_map(p, x, row, checked_mul(positions, row))
                  : gemm_scatter::make_last_x_map(p, x, position_stride(p), p.x_strides[0]);
  }
  return copies ? gemm_scatter::make_x_map(p, x, 1, row, row)
                : gemm_scatter::make_x_map(p, x, p.batch, positions, p.x_strides[1]);
}

// Pairs of outputs of a tile, for whole warps; and how often one of `threads` sums those of most_together channels, if
// it has one of so many slices of the channels.
inline int64_t units_of(const Tiling& t) {
  return ceil_div<int64_t>(t.images * t.rows * ceil_div<int64_t>(t.columns, 2), 32) * 32;
}
inline int64_t turns_of(const Tiling& t, int64_t threads, int64_t slices) {
  return ceil_div<int64_t>(units_of(t) * slices, threads) *
         ceil_div(ceil_div<int64_t>(t.channels, most_together), slices);
}
// Few pairs are not enough for all threads.
inline int64_t slices_of(const Tiling& t, int64_t threads) {
  int64_t best = 1;
  for (int64_t slices = 2; slices <= ceil_div<int64_t>(t.channels, most_together); ++slices) {
    if (turns_of(t, threads, slices) < turns_of(t, threads, best)) best = slices;
  }
  return best;
}

// Of channels of a position that are written at once.
inline int32_t last_store_width(const Problem& p, const Tiling& t, const void* y) {
  const int64_t together = std::gcd(p.out_channels_per_group(), t.channels);
  return access_width(y, element_size(p.dtype), p.y_sizes(), p.y_strides, 1, together, 4);
}

// Elements of a row of y that are written at once, of 16-bit types by four threads that exchange theirs: 8, 2 or 1.
inline int32_t store_width(const Problem& p, const Tiling& t, const void* y) {
  for (const int32_t width : {widest_store(p), 2}) {
    const auto fits = [&](int64_t size, int64_t stride) { return size == 1 || stride % width == 0; };
    if (reinterpret_cast<uintptr_t>(y) % static_cast<uintptr_t>(width * element_size(p.dtype)) == 0 &&
        p.out_w % width == 0 && t.columns % width == 0 && fits(p.batch, p.y_strides[0]) &&
        fits(p.out_channels, p.y_strides[1]) && fits(p.out_h, p.y_strides[2])) {
      return width;
    }
  }
  return 1;
}

}  // namespace convt::gemm_fold_sm90
