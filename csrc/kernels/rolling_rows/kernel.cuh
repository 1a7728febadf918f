// A warp computes frames of rows and columns of y (see config.h), all output channels of a group: the rows of a product
// are frames of columns, its columns outputs of a frame. It goes down the rows of x, some channels at a time, which it
// copies to shared memory for itself; a row adds to the frames of rows that read it, of which the first is complete
// then. What a block shares are the weights.
#pragma once

#include "../device.h"
#include "../exact_output.h"
#include "../load_if.h"
#include "../products.h"
#include "params.h"

namespace convt::rolling_rows {

// What a warp computes at a time: frames of rows, and of columns from one on. `strip`: its number in a row.
struct Part {
  int32_t image, first, last, strip, column;
};

CONVT_DEVICE Part make_part(const Params& p, uint32_t index) {
  Part part;
  uint32_t chunk = p.strips.divide(index);
  part.strip = static_cast<int32_t>(index), part.column = p.t.first_column + part.strip * p.t.strip_frames;
  part.image = static_cast<int32_t>(p.chunks.divide(chunk));
  part.first = p.t.first_row + static_cast<int32_t>(chunk) * p.t.rows;
  part.last = smaller(part.first + p.t.rows, p.t.first_row + p.t.frame_rows);
  return part;
}

// How x comes to shared memory: rows of channels, by the lanes or as boxes of the copy engine; or the channels of
// pixels.
enum class Source { rows, boxes, pixels };

// The layout of a step of x in shared memory, and what a lane multiplies of it: of 32 bytes of channels, its own.
template <class Scalar, bool Strict, int Row, Source From>
struct Step {
  static constexpr bool Last = From == Source::pixels, boxes = From == Source::boxes;
  static constexpr Config config = configs[Row];
  static constexpr int bytes = sizeof(Scalar), channels = step_channels(bytes), columns = config.columns;
  static constexpr int pixel_tiles = rolling_rows::pixel_tiles(config, Strict), width = 16 * pixel_tiles;
  static constexpr int of_lane = lane_pixels(pixel_tiles, bytes), runs = 2 * pixel_tiles / of_lane;
  // The rows g and g + 8 of tile m of a run are columns m and m + half of a lane: what one column of the kernel takes
  // of a tile, another takes of the next one.
  static constexpr int half = of_lane / 2, count = of_lane + columns - 1, tiles = half + columns - 1;
  static constexpr int words = Strict ? 3 : 2;  // of a column, as it is multiplied
  static constexpr int pitch = row_pitch(width, bytes), size = stage_bytes(width, bytes, Last);
  static constexpr int lane_channels = channels / 4;
  using Tiles = uint32_t[runs][tiles][2 * words];

  CONVT_DEVICE static void lane_of(int channel, int& l, int& e) {
    if (Last) {
      l = channel / lane_channels, e = channel % lane_channels;
    } else {
      l = channel % 4, e = channel / 4;
    }
  }

  // From a channel's row to the next one.
  CONVT_DEVICE static int row_bytes(const Params& p) { return boxes ? p.box_pitch : pitch; }
  // Whether there are columns of x where a lane reads those of a run. Behind a box is what a stage had before.
  CONVT_DEVICE static bool has_columns(const Params& p, int run, int lane) {
    return !boxes || (run * 8 + lane / 4) * of_lane * bytes < p.box_pitch - halo_bytes;
  }

  // Of channels_last: a pixel's 32 bytes, in front of which are `halo_pixels`. Those that lanes read at a time are in
  // different banks.
  CONVT_DEVICE static uint32_t place(int pixel) {
    const auto at = static_cast<uint32_t>(pixel + halo_pixels);
    return (at ^ (at / of_lane & 3)) * step_bytes;
  }

  // Whether a row of 16-bit elements begins with the second half of a word.
  CONVT_DEVICE static int32_t odd(const Scalar* x) {
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(x) / 2 & 1);
  }

  // Of a step, bytes to what a lane has.
  CONVT_DEVICE static uint32_t lane_offset(const Params& p, int lane) {
    const int g = lane / 4, l = lane % 4, pitch = row_bytes(p);
    return static_cast<uint32_t>(Last ? of_lane * g * step_bytes + l * 8
                                      : l * pitch + halo_bytes + of_lane * g * bytes);
  }

  // A lane's channels of a run's columns and those in front of it, as they are multiplied; `own` is the lane's of a
  // step. `before`: bits of a channel's row of 16-bit elements in front of the first one.
  CONVT_DEVICE static void load(const Params& p, device::SharedAddress own, int lane, int32_t column, uint32_t before,
                                Tiles& to) {
    const int g = lane / 4;
    uint32_t raw[runs][count][2];
#pragma unroll
    for (int r = 0; r < runs; ++r) {
      if constexpr (Last) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
          const int at = k - (columns - 1) + halo_pixels;  // 1 ... of_lane + 3
          const uint32_t low = static_cast<uint32_t>((at & 3) ^ ((g + at / of_lane) & 3));
          const uint2 v = device::load_shared_8(own + low * step_bytes + (r * 8 * of_lane + (at & ~3)) * step_bytes);
          raw[r][k][0] = v.x, raw[r][k][1] = v.y;
        }
      } else if constexpr (bytes == 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const device::SharedAddress at = own + static_cast<uint32_t>(4 * e * row_bytes(p) + r * 8 * of_lane * 4);
          const uint4 v = device::load_shared_16(at);
          constexpr int k0 = columns - 1;
          raw[r][k0][e] = v.x, raw[r][k0 + 1][e] = v.y, raw[r][k0 + 2][e] = v.z, raw[r][k0 + 3][e] = v.w;
#pragma unroll
          for (int k = 1; k < columns; ++k) raw[r][k0 - k][e] = device::load_shared_4(at - 4 * k);
        }
      } else {
        load_pairs(p, own, column + of_lane * g, before, raw[r]);
      }
    }
    // The copy engine rounds.
    if constexpr (bytes == 4 && !Strict && !boxes) {
      uint32_t all[runs * count * 2];
#pragma unroll
      for (int i = 0; i < runs * count * 2; ++i) all[i] = raw[i / (count * 2)][i / 2 % count][i % 2];
      tf32_operands(all);
#pragma unroll
      for (int i = 0; i < runs * count * 2; ++i) raw[i / (count * 2)][i / 2 % count][i % 2] = all[i];
    }
#pragma unroll
    for (int r = 0; r < runs; ++r) {
      uint32_t of_column[count][words];
#pragma unroll
      for (int k = 0; k < count; ++k) {
        if constexpr (Strict) {
          float left[2];
          split_pair(raw[r][k][0], raw[r][k][1], of_column[k], left);
        } else {
          of_column[k][0] = raw[r][k][0], of_column[k][1] = raw[r][k][1];
        }
      }
#pragma unroll
      for (int m = 0; m < tiles; ++m) {
#pragma unroll
        for (int word = 0; word < words; ++word) {
          // Words that were loaded together, or are in two tiles, are copied once here: else they would be for each
          // product. For the compiler those are numbers of their own.
          const bool loaded = !Strict && (bytes == 2 ? Last : boxes), again = m + half < tiles;
          const uint32_t first = of_column[m][word], second = of_column[m + half][word];
          to[r][m][2 * word] = loaded ? first ^ p.zero : first;
          to[r][m][2 * word + 1] = loaded || again ? second | p.zero : second;
        }
      }
    }
  }

 private:
  // Words of two channels, from the word `own` of the lane's first column of its first channel on.
  CONVT_DEVICE static void load_pairs(const Params& p, device::SharedAddress own, int32_t column, uint32_t before,
                                      uint32_t (&to)[count][2]) {
    constexpr int left_words = ceil_div(columns - 1, 2), own_words = of_lane / 2, loaded = left_words + own_words + 1;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t even[2][loaded];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const device::SharedAddress at = own + static_cast<uint32_t>(4 * (2 * pair + e) * row_bytes(p));
        uint32_t (&word)[loaded] = even[e];
#pragma unroll
        for (int k = 0; k < left_words; ++k) word[k] = device::load_shared_4(at - 4 * (left_words - k));
        if constexpr (own_words == 4) {
          const uint4 v = device::load_shared_16(at);
          word[left_words] = v.x, word[left_words + 1] = v.y, word[left_words + 2] = v.z, word[left_words + 3] = v.w;
        } else {
          const uint2 v = device::load_shared_8(at);
          word[left_words] = v.x, word[left_words + 1] = v.y;
        }
        if constexpr (!boxes) {
          word[loaded - 1] = device::load_shared_4(at + own_words * 4);
#pragma unroll
          for (int k = 0; k + 1 < loaded; ++k) word[k] = __funnelshift_r(word[k], word[k + 1], before);
        }
      }
#pragma unroll
      for (int k = 0; k < count; ++k) {
        const int at = k - (columns - 1) + 2 * left_words;
        to[k][pair] = __byte_perm(even[0][at / 2], even[1][at / 2], at % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
    // The word of a row's first column may begin with what is in front of it.
    if (!boxes && p.copied_bytes == 2) {
#pragma unroll
      for (int k = 0; k < columns - 1; ++k) {
        if (column + k - (columns - 1) < 0) to[k][0] = to[k][1] = 0;
      }
    }
  }
};

// Brings steps of x to shared memory, in the order in which a warp multiplies them: of its parts, of the rows of x that
// they read, of its share of the channels.
template <class S, class Scalar, Source From>
struct Reader {
  static constexpr bool Last = From == Source::pixels;
  static constexpr int bytes = sizeof(Scalar), width = S::width, channels = S::channels, columns = S::columns;

  const Params& p;
  const Scalar* group;  // of x: the lane's first element of a step is as far from the step's as here
  uint32_t part, stride;
  int32_t split, first_channel, lane, step, image, row, last_row, column;
  const Scalar* at;  // the lane's first element of the step
  int64_t next_row;  // from behind a row's last step to the next row's first one
  // Of rows of channels, what a lane copies: where to in a stage, the first channels that there are not; and the same
  // of what is in front of rows, and how far it is from the first copy. And whether that is in the image, of this part.
  uint32_t lane_to, side_to;
  int32_t lane_channels, side_channels;
  int64_t side_from;
  bool copies[2], copies_side;

  CONVT_DEVICE Reader(const Params& params, const Scalar* x, int32_t of_group, uint32_t first_part, uint32_t distance,
                      int32_t of_warp, int32_t of_lane)
      : p(params),
        part(first_part),
        stride(distance),
        split(of_warp),
        first_channel(of_group * params.channels),
        lane(of_lane) {
    group = x + (p.copied_bytes == 16          ? Copies<16>::offset(p, lane)
                 : Last && p.copied_bytes == 2 ? 0
                                               : Copies<4>::offset(p, lane));
    next_row = p.x_row_stride - (p.t.steps - split + p.t.splits - 1) / p.t.splits * p.step_stride;
    if (split >= p.t.steps) part = static_cast<uint32_t>(p.t.units);
    if constexpr (From == Source::rows) {
      if (p.copied_bytes == 16) {
        place<16>();
      } else {
        place<4>();
      }
      device::forget(lane_to), device::forget(side_to);
    }
    begin();
  }

  // The next step, if there is one. Boxes are counted on a barrier of the stage.
  CONVT_DEVICE void fetch(device::SharedAddress to, device::SharedAddress barrier) {
    if constexpr (From == Source::boxes) {
      if (!has()) return;
      if (device::elect()) {
        device::mbarrier_arrive_expect(barrier, static_cast<uint32_t>(channels * p.box_pitch));
        const int32_t from[] = {column - halo_bytes / bytes, row, first_channel + step * channels, image, 0};
        device::box_load(to, p.x_map, from, barrier);
      }
      advance();
      return;
    }
    if (has()) {
      if (p.copied_bytes == 16) {
        copy<16>(to);
      } else if (bytes == 4 || p.copied_bytes == 4) {
        copy<4>(to);
      } else if constexpr (bytes == 2) {
        if constexpr (Last) {
          copy_elements(to);
        } else {
          copy_words(to);
        }
      }
      advance();
    }
    device::cp_async_commit();
  }

 private:
  // Copies of so many bytes: a lane's, a round after the other.
  template <int Bytes>
  struct Copies {
    static constexpr int elements = Bytes / bytes;
    static constexpr int of_row = Last ? step_bytes / Bytes : width / elements;  // of a pixel, or a channel's row
    static constexpr int in_row = of_row < 32 ? of_row : 32, rows = 32 / in_row, again = of_row / in_row;
    static constexpr int rounds = (Last ? width : channels) / rows;  // each `again` times
    // In front of a row: pixels, or copies.
    static constexpr int left = Last ? columns - 1 : ceil_div(columns - 1, elements);
    static constexpr int sides = Last ? left * of_row : left * channels;
    static_assert(sides <= 32);

    CONVT_DEVICE static int64_t offset(const Params& p, int lane) {
      return lane / in_row * (Last ? p.x_column_stride : p.x_channel_stride) + lane % in_row * elements;
    }
  };

  template <int Bytes>
  CONVT_DEVICE void place() {
    using C = Copies<Bytes>;
    const int in_row = lane % C::in_row, of_rows = lane / C::in_row;
    const int side_row = lane % channels, chunk = -1 - lane / channels;
    lane_to = static_cast<uint32_t>(of_rows * S::pitch + halo_bytes + in_row * Bytes);
    side_to = static_cast<uint32_t>(side_row * S::pitch + halo_bytes + chunk * Bytes);
    lane_channels = p.channels - of_rows, side_channels = p.channels - side_row;
    side_from = (side_row - of_rows) * p.x_channel_stride + (chunk - in_row) * C::elements;
  }
  template <int Bytes>
  CONVT_DEVICE void begin_row() {
    using C = Copies<Bytes>;
#pragma unroll
    for (int k = 0; k < C::again; ++k) {
      copies[k] = column + (lane % C::in_row + k * 32) * C::elements < p.w_axis.in;
    }
    const int32_t before = column + (-1 - lane / channels) * C::elements;
    copies_side = before >= 0 && before < p.w_axis.in;
  }

  CONVT_DEVICE bool has() const { return part < static_cast<uint32_t>(p.t.units); }

  CONVT_DEVICE void begin() {
    step = split;
    for (; has(); part += stride) {
      const Part now = make_part(p, part);
      row = larger(now.first - p.reach + 1, 0), last_row = smaller(now.last, p.h.in);
      column = now.column, image = now.image;
      at = group + (now.image * p.x_batch_stride + row * p.x_row_stride + column * (Last ? p.x_column_stride : 1) +
                    int64_t{split * channels} * (Last ? 1 : p.x_channel_stride));
      if (row < last_row) break;
    }
    if constexpr (From == Source::rows) {
      if (p.copied_bytes == 16) {
        begin_row<16>();
      } else {
        begin_row<4>();
      }
    }
  }
  CONVT_DEVICE void advance() {
    step += p.t.splits, at += p.step_stride;
    if (step < p.t.steps) return;
    step = split, ++row, at += next_row;
    if (row < last_row) return;
    part += stride;
    begin();
  }

  template <int Bytes>
  CONVT_DEVICE void copy(device::SharedAddress to) const {
    using C = Copies<Bytes>;
    // Rows and pixels are whole copies, each of which is in the image or not.
    if constexpr (Last) {
      const int in_row = lane % C::in_row, of_rows = lane / C::in_row;
      const bool has_channels = in_row * C::elements < p.channels - step * channels;
      const int32_t left = has_channels ? p.w_axis.in - column - of_rows : 0;
      const Scalar* from = at;
#pragma unroll
      for (int i = 0; i < C::rounds; ++i, from += C::rows * p.x_column_stride) {
        device::cp_async_if<Bytes>(left > i * C::rows, to + S::place(i * C::rows + of_rows) + in_row * Bytes, from);
      }
      if (lane < C::sides) {
        const int32_t before = column - 1 - of_rows;
        device::cp_async_if<Bytes>(has_channels && before >= 0 && before < p.w_axis.in,
                                   to + S::place(-1 - of_rows) + in_row * Bytes,
                                   at - (2 * of_rows + 1) * p.x_column_stride);
      }
    } else {
      const int32_t done = step * channels;
      const Scalar* from = at;
      const device::SharedAddress first = to + lane_to;
#pragma unroll
      for (int i = 0; i < C::rounds; ++i, from += C::rows * p.x_channel_stride) {
#pragma unroll
        for (int k = 0; k < C::again; ++k) {
          device::cp_async_if<Bytes>(copies[k] && lane_channels > done + i * C::rows,
                                     first + static_cast<uint32_t>(i * C::rows * S::pitch + k * 32 * Bytes),
                                     from + k * 32 * C::elements);
        }
      }
      if (lane < C::sides)
        device::cp_async_if<Bytes>(copies_side && side_channels > done, to + side_to, at + side_from);
    }
  }

  // Rows of 16-bit elements that begin anywhere: the words that have them.
  CONVT_DEVICE void copy_words(device::SharedAddress to) const {
    using C = Copies<4>;
    const int in_row = lane % C::in_row, of_rows = lane / C::in_row;
    const auto copy_word = [&](const Scalar* from, int32_t first, bool is, device::SharedAddress where) {
      const int32_t before = S::odd(from), left = p.w_axis.in - first + before;
      const int valid = is && first - before >= -1 ? larger(0, smaller(left, 2)) * bytes : 0;
      device::cp_async<4>(where, from - before, valid);
    };
    const int32_t rows = p.channels - step * channels - of_rows;
    const Scalar* from = at;
    const device::SharedAddress first = to + static_cast<uint32_t>(of_rows * S::pitch + halo_bytes + in_row * 4);
#pragma unroll
    for (int i = 0; i < C::rounds; ++i, from += C::rows * p.x_channel_stride) {
      copy_word(from, column + in_row * 2, rows > i * C::rows, first + static_cast<uint32_t>(i * C::rows * S::pitch));
    }
    // A word behind the row, and those in front of it.
    constexpr int sides = (1 + C::left) * channels;
#pragma unroll
    for (int i = 0; i < ceil_div(sides, 32); ++i) {
      const int index = i * 32 + lane, side_row = index % channels, which = index / channels;
      const int word = which == 0 ? C::of_row : -which;
      if (index < sides) {
        copy_word(at + ((side_row - of_rows) * p.x_channel_stride + (word - in_row) * 2), column + word * 2,
                  step * channels + side_row < p.channels,
                  to + static_cast<uint32_t>(side_row * S::pitch + halo_bytes + word * 4));
      }
    }
  }

  // Channels of 16 bits of pixels that begin anywhere, one by one.
  CONVT_DEVICE void copy_elements(device::SharedAddress to) const {
    const int channel = step * channels + lane % 16;
#pragma unroll 4
    for (int pixel = lane / 16 - (columns - 1); pixel < width; pixel += 2) {
      const bool is =
          channel < p.channels && static_cast<uint32_t>(column + pixel) < static_cast<uint32_t>(p.w_axis.in);
      uint32_t element;
      load_if<2>(is, at + (pixel * p.x_column_stride + lane % 16), &element);
      device::store_shared_2(to + S::place(pixel) + lane % 16 * 2, element);
    }
  }
};

// What there is of an output of a frame: its place in a segment's memory, or -1, and its bias.
struct Output {
  int32_t place;
  float bias;
};

// Writes the weights of a group to shared memory as lanes multiply them: [step][row above][column before][tile][lane].
template <class S, class Scalar, bool Strict>
CONVT_DEVICE void write_weights(const Params& p, int32_t group, unsigned char* weights) {
  constexpr Config c = S::config;
  constexpr int words = weight_words(Strict), step_words = c.rows * c.columns * c.tiles * 32 * words, together = 8;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto elements = static_cast<int32_t>(p.taps_of_channel.divisor) * p.out_channels;
  const Scalar* w = static_cast<const Scalar*>(p.w) + int64_t{group} * p.channels * p.w_in_stride;
#pragma unroll 1
  for (int32_t element = lane; element - lane < elements; element += 32) {
    auto tap = static_cast<uint32_t>(element);
    const auto co = static_cast<int32_t>(p.taps_of_channel.divide(tap));
    uint32_t column = tap;
    const auto row = static_cast<int32_t>(p.kernel_w.divide(column));
    auto h = static_cast<uint32_t>(row * p.h.dilation), v = column * static_cast<uint32_t>(p.w_axis.dilation);
    const auto above = static_cast<int32_t>(p.stride_h.divide(h)), before = static_cast<int32_t>(p.stride_w.divide(v));
    const int32_t output = (static_cast<int32_t>(h) * p.out_channels + co) * p.w_axis.stride + static_cast<int32_t>(v);
    const int32_t tile = (above * c.columns + before) * c.tiles + output / 8;
    uint32_t* of_output = reinterpret_cast<uint32_t*>(weights) + (tile * 32 + output % 8 * 4) * words;
    const bool is = element < elements;
    const Scalar* from =
        w + (co * p.w_out_stride + row * p.w_row_stride + static_cast<int32_t>(column) * p.w_column_stride);
#pragma unroll 1
    for (int32_t first = warp; first < p.channels; first += together * p.t.warps) {
      uint32_t value[together];
      const auto has = [&](int k) { return is && first + k * p.t.warps < p.channels; };
#pragma unroll
      for (int k = 0; k < together; ++k) {
        load_if<sizeof(Scalar)>(has(k), from + (first + k * p.t.warps) * p.w_in_stride, &value[k]);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int32_t ci = first + k * p.t.warps;
        int l, e;
        S::lane_of(ci % S::channels, l, e);
        uint32_t* to = of_output + (ci / S::channels * step_words + l * words);
        if constexpr (Strict) {
          uint32_t parts[3];
          float left[2];
          split_pair(value[k], 0, parts, left);
          uint16_t* half = reinterpret_cast<uint16_t*>(to) + e;
          if (has(k)) {
            half[0] = static_cast<uint16_t>(parts[2]), half[2] = half[4] = static_cast<uint16_t>(parts[1]);
            half[6] = static_cast<uint16_t>(parts[0]);
          }
        } else if constexpr (sizeof(Scalar) == 4) {
          // As x is rounded.
          const uint32_t word =
              S::boxes ? __float_as_uint(nearest_tf32(__uint_as_float(value[k]))) : tf32_operand(value[k]);
          if (has(k)) to[e] = word;
        } else {
          if (has(k)) reinterpret_cast<uint16_t*>(to)[e] = static_cast<uint16_t>(value[k]);
        }
      }
    }
  }
}

// Where a frame of rows of y is: its segments and, of each, the elements `first` to last - 1.
template <class Scalar, bool Last>
struct Segments {
  const Params& p;
  int32_t row, first, last;
  Scalar* memory;  // of the first segment's first element

  CONVT_DEVICE Segments(const Params& params, const Part& part, int32_t frame_row, int32_t group) : p(params) {
    const int32_t all = p.t.strip_frames * p.t.pixel_outputs;
    row = frame_row * p.h.stride - p.h.padding;
    first = part.strip * all, last = smaller(first + all, p.w_axis.out * (Last ? p.out_channels : 1));
    memory = static_cast<Scalar*>(p.y) + (part.image * p.y_batch_stride + row * p.y_row_stride + first +
                                          (Last ? 0 : int64_t{group} * p.out_channels * p.y_channel_stride));
  }
  CONVT_DEVICE void next_frame() { row += p.h.stride, memory += p.h.stride * p.y_row_stride; }
  // The row of a segment, relative to the first one, and its channel.
  CONVT_DEVICE static int32_t row_of(const Params& p, int32_t s, int32_t& co) {
    auto rest = static_cast<uint32_t>(s);
    const int32_t above = Last ? s : static_cast<int32_t>(p.channels_of_group.divide(rest));
    co = Last ? 0 : static_cast<int32_t>(rest);
    return above;
  }
  CONVT_DEVICE static int64_t offset(const Params& p, int32_t above, int32_t co) {
    return above * p.y_row_stride + co * (Last ? 0 : p.y_channel_stride);
  }
  CONVT_DEVICE bool has_all_rows() const { return row >= 0 && row + p.h.stride <= p.h.out; }
  CONVT_DEVICE bool has(int32_t s) const {
    int32_t co;
    return static_cast<uint32_t>(row + row_of(p, s, co)) < static_cast<uint32_t>(p.h.out);
  }
};

// Computes the outputs of a frame of rows again that are NaN: a zero outside the image, or where a frame's output has
// no tap, times what is not finite is NaN, and so is the sum of the parts of an infinity.
template <class Scalar, bool Strict, bool Last>
__noinline__ __device__ void repair(const Params& p, Part part, int32_t frame_row, int32_t group,
                                    const Output* outputs) {
  using Y = Segments<Scalar, Last>;
  const Y y(p, part, frame_row, group);
  const Scalar* x = static_cast<const Scalar*>(p.x) +
                    (part.image * p.x_batch_stride + int64_t{group} * p.channels * p.x_channel_stride);
#pragma unroll 1
  for (int32_t s = 0; s < p.t.segments; ++s) {
    if (!y.has(s)) continue;
    int32_t of_segment;
    const int32_t above = Y::row_of(p, s, of_segment), row = y.row + above;
    Scalar* first = y.memory + Y::offset(p, above, of_segment);
    repair_outputs<Scalar>(
        1, y.last - y.first, [&](int32_t, int32_t i) { return first + i; },
        [&](int32_t, int32_t i) {
          const int32_t element = y.first + i, column = Last ? element / p.out_channels : element;
          const int32_t co = Last ? element - column * p.out_channels : of_segment;
          const Scalar* w =
              static_cast<const Scalar*>(p.w) + (int64_t{group} * p.channels * p.w_in_stride + co * p.w_out_stride);
          return exact_output<Scalar, Strict>(p, x, w, outputs[co * p.w_axis.stride].bias, row, column);
        });
  }
}

// `Count` elements, as bits.
template <int Count, class Scalar>
CONVT_DEVICE void copy_vector(Scalar* to, const Scalar* from) {
  constexpr int bytes = Count * sizeof(Scalar);
  using Bits = std::conditional_t<Count != 1, uint4, BitsOf<Scalar>>;
  static_assert(sizeof(Bits) == bytes);
  *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(from);
}

// Stores segments from shared memory, where y.first is at `lead`.
template <int Width, class Scalar, bool Last>
CONVT_DEVICE void store_segments(const Params& p, const Segments<Scalar, Last>& y, const int64_t* segments_of_y,
                                 const Scalar* from) {
  const int lane = static_cast<int>(threadIdx.x % 32), of_segment = 1 << p.vector_bits;
  const auto copy = [&](int32_t s, int32_t v) {
    copy_vector<Width>(y.memory + (segments_of_y[s] + v * Width),
                       from + (s * p.t.segment_pitch + p.t.lead + v * Width));
  };
  // Those of a segment that are in the image.
  const int32_t vectors = smaller(p.vectors, (y.last - y.first) / Width);
  if (y.has_all_rows() && vectors <= of_segment) {
    const int32_t v = lane & (of_segment - 1);
    if (v < vectors) {
#pragma unroll 2
      for (int s = lane >> p.vector_bits; s < p.t.segments; s += 32 >> p.vector_bits) copy(s, v);
    }
  } else {
#pragma unroll 1
    for (int s = 0; s < p.t.segments; ++s) {
      if (!y.has(s)) continue;
#pragma unroll 1
      for (int32_t v = lane; v < vectors; v += 32) copy(s, v);
    }
  }
}

// Stores rows of y from registers, at strides of a row up to 2: a lane has neighbouring outputs of a segment, or of two
// of them. They begin with a vector of y, or, of a stride of 2 and an odd padding (`Shifted`), one in front of it: then
// each lane takes the next one's first output.
template <class S, int Stride, bool Shifted, int OutputTiles, class Scalar>
CONVT_DEVICE void store_runs(const Params& p, const Segments<Scalar, false>& y, int lane, const int64_t* segments_of_y,
                             const float (&sums)[OutputTiles][S::pixel_tiles][4]) {
  constexpr int run = S::of_lane * Stride, whole = 16 / sizeof(Scalar), vector = run < whole ? run : whole;
  constexpr int of_lane = 3 - Stride;  // segments
  const int g = lane / 4, l = lane % 4;
  const bool all_rows = y.has_all_rows();
  const int32_t length = y.last - y.first;
#pragma unroll
  for (int u = 0; u < OutputTiles; ++u) {
#pragma unroll
    for (int q = 0; q < of_lane; ++q) {
      const int32_t s = (u * 4 + l) * of_lane + q;
      const bool is = s < p.t.segments && (all_rows || y.has(s));
      Scalar* to = y.memory + (s < p.t.segments ? segments_of_y[s] : 0);
      const auto value = [&](int r, int i) {
        const int column = i / Stride;
        return sums[u][r * S::half + column % S::half][2 * (column / S::half) + (Stride == 2 ? i % 2 : q)];
      };
      float next[S::runs + 1];
      if constexpr (Shifted) {
#pragma unroll
        for (int r = 0; r < S::runs; ++r) next[r] = __shfl_sync(0xffffffffu, value(r, 0), (lane + 4) & 31);
      }
      next[S::runs] = 0;
#pragma unroll
      for (int r = 0; r < S::runs; ++r) {
        float v[run];
#pragma unroll
        for (int i = 0; i < run; ++i) {
          v[i] = !Shifted ? value(r, i) : i + 1 < run ? value(r, i + 1) : g < 7 ? next[r] : next[r + 1];
        }
        const int32_t first = (r * 8 + g) * run;
#pragma unroll
        for (int i = 0; i < run; i += vector) {
          store_if<vector>(is && first + i < length, to + first + i, v + i);
        }
      }
    }
  }
}

// Sums begin with the bias, of the first of the warps that have the same outputs. The compiler is not to write them
// again on each of several ways to their use.
template <int OutputTiles, int PixelTiles>
CONVT_DEVICE void begin_sums(float (&sums)[OutputTiles][PixelTiles][4], const Output* outputs, int lane, bool first) {
#pragma unroll
  for (int u = 0; u < OutputTiles; ++u) {
    float bias[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) bias[q] = first ? outputs[u * 8 + lane % 4 * 2 + q].bias : 0;
#pragma unroll
    for (int k = 0; k < PixelTiles * 4; ++k) {
      sums[u][k / 4][k % 4] = bias[k % 2];
      device::forget(sums[u][k / 4][k % 4]);
    }
  }
}

// A lane's words of a tile's weights.
template <int Words>
CONVT_DEVICE void load_weights(device::SharedAddress of_tile, uint32_t (&b)[Words]) {
  if constexpr (Words == 4) {
    const uint4 v = device::load_shared_16(of_tile);
    b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
  } else {
    const uint2 v = device::load_shared_8(of_tile);
    b[0] = v.x, b[1] = v.y;
  }
}

// Adds the products of a step's tiles with the weights of those (row above, column before) that `taps` says, or of all.
// If there are any of a row, there are those of its first column. Strict float32 sums a row's before it adds them: the
// fewer additions, the smaller is its error.
template <class S, class Scalar, bool Strict, bool All, class Sums>
CONVT_DEVICE void add_products(Sums& sums, const typename S::Tiles& a, device::SharedAddress weights, uint32_t taps) {
  constexpr int rows = S::config.rows, columns = S::columns, tiles = S::config.tiles, words = weight_words(Strict);
  const auto has = [&](int i, int j) { return All || (taps >> (i * columns + j) & 1) != 0; };
  const auto load = [&](int i, int j, int u, uint32_t (&b)[words]) {
    load_weights(weights + static_cast<uint32_t>(((i * columns + j) * tiles + u) * 32 * words * 4), b);
  };
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    if (!has(i, 0)) continue;
    if constexpr (Strict) {
#pragma unroll
      for (int u = 0; u < tiles; ++u) {
        float large[S::pixel_tiles][4], small[S::pixel_tiles][4];
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          if (!has(i, j)) continue;
          uint32_t b[words];
          load(i, j, u, b);
#pragma unroll
          for (int m = 0; m < S::pixel_tiles; ++m) {
            multiply_parts(large[m], small[m], a[m / S::half][m % S::half + columns - 1 - j], b, j == 0);
          }
        }
#pragma unroll
        for (int k = 0; k < S::pixel_tiles * 4; ++k)
          sums[i][u][k / 4][k % 4] += large[k / 4][k % 4] + small[k / 4][k % 4];
      }
    } else {
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        if (!has(i, j)) continue;
#pragma unroll
        for (int u = 0; u < tiles; ++u) {
          uint32_t b[words];
          load(i, j, u, b);
#pragma unroll
          for (int m = 0; m < S::pixel_tiles; ++m) {
            multiply<Scalar, Strict, 8>(sums[i][u][m], a[m / S::half][m % S::half + columns - 1 - j], b);
          }
        }
      }
    }
  }
}

template <class Scalar, bool Strict, int Row, Source From>
__global__ void __launch_bounds__(32 * most_warps, 1) rolling_rows_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (From == Source::boxes) return;  // never launched
#endif
  using S = Step<Scalar, Strict, Row, From>;
  constexpr bool Last = From == Source::pixels;
  constexpr Config c = configs[Row];
  constexpr int pixel_tiles = S::pixel_tiles, words = weight_words(Strict), whole = 16 / sizeof(Scalar);
  constexpr int step_weights = c.rows * c.columns * c.tiles * 32 * words * 4;
  const Tiling& t = p.t;
  unsigned char* shared = device::dynamic_shared_memory();
  const auto thread = static_cast<int>(threadIdx.x);
  // What addresses are made of is kept: the compiler would rather make it anew from registers that are slow to read.
  int32_t lane = thread % 32;
  if constexpr (From == Source::boxes) device::forget(lane);
  const int g = lane / 4, l = lane % 4;
  const auto warp = static_cast<int>(device::uniform(threadIdx.x / 32));
  const int split = warp & (t.splits - 1), of_block = warp >> p.split_bits;

  uint32_t index = blockIdx.x;
  const auto group = static_cast<int32_t>(p.group_blocks.divide(index));
  const uint32_t block_parts = static_cast<uint32_t>(t.warps) >> p.split_bits;
  const uint32_t stride = p.group_blocks.divisor * block_parts;
  const auto units = static_cast<uint32_t>(t.units);
  uint32_t unit = index * block_parts + static_cast<uint32_t>(of_block);
  const Scalar* x = static_cast<const Scalar*>(p.x) + int64_t{group} * p.channels * p.x_channel_stride;
  device::SharedAddress start = device::shared_address(shared);
  device::forget(start);
  const device::SharedAddress ring = start + static_cast<uint32_t>(t.places.stages + warp * t.warp_bytes);
  const device::SharedAddress barriers = start + static_cast<uint32_t>(t.places.barriers + warp * t.stages * 8);
  if constexpr (From == Source::boxes) {
    if (lane < t.stages) device::mbarrier_init(barriers + static_cast<uint32_t>(lane) * 8, 1);
    device::mbarrier_init_fence();
    __syncwarp();
  }

  Reader<S, Scalar, From> reader(p, x, group, unit, stride, split, lane);
  // The first steps come while the weights do.
  const uint32_t stages = From == Source::boxes ? static_cast<uint32_t>(t.stages) : least_stages;
  if constexpr (From == Source::boxes) {
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < stages; ++i) reader.fetch(ring + i * S::size, barriers + i * 8);
  } else {
#pragma unroll
    for (uint32_t i = 0; i + 1 < least_stages; ++i) reader.fetch(ring + i * S::size, barriers);
  }

  uint4* zeros = reinterpret_cast<uint4*>(shared);
  for (int i = thread; i < t.weight_bytes / 16; i += 32 * t.warps) zeros[i] = make_uint4(0, 0, 0, 0);
  Output* outputs = reinterpret_cast<Output*>(shared + t.places.outputs);
  if (thread < 8 * c.tiles) {
    auto tap = static_cast<uint32_t>(thread);
    auto channel = p.stride_w.divide(tap);
    const uint32_t row = p.channels_of_group.divide(channel);
    const bool is = thread < t.outputs;
    const auto column = static_cast<int32_t>(tap), co = static_cast<int32_t>(channel),
               above = static_cast<int32_t>(row);
    uint32_t bias;
    load_if<sizeof(Scalar)>(p.bias != nullptr && is,
                            static_cast<const Scalar*>(p.bias) + (group * p.out_channels + co) * p.bias_stride, &bias);
    const int32_t inner = Last ? p.out_channels : 1, segment = Last ? above : above * p.out_channels + co;
    // Of the strip's first frame, whose output of the column o = 0 would be at `lead`.
    const int32_t first = (t.first_column * p.w_axis.stride + column - p.w_axis.padding) * inner + (Last ? co : 0);
    outputs[thread] = {is ? segment * t.segment_pitch + t.lead + first : -1, element_of<Scalar>(bias, 0)};
  }
  int64_t* segments_of_y = reinterpret_cast<int64_t*>(shared + t.places.segments_of_y);
  if (thread < t.segments) {
    int32_t co;
    const int32_t above = Segments<Scalar, Last>::row_of(p, thread, co);
    segments_of_y[thread] = Segments<Scalar, Last>::offset(p, above, co);
  }
  __syncthreads();
  write_weights<S, Scalar, Strict>(p, group, shared);
  __syncthreads();

  device::SharedAddress weights = start + static_cast<uint32_t>(lane * words * 4);
  uint32_t lane_stage = S::lane_offset(p, lane);
  if constexpr (From == Source::boxes) device::forget(weights), device::forget(lane_stage);
  const Scalar* segment = reinterpret_cast<const Scalar*>(shared + t.places.segments + of_block * t.warp_segments);
  const device::SharedAddress segments = start + static_cast<uint32_t>(t.places.segments + of_block * t.warp_segments);
  const uint32_t pixel_bytes = static_cast<uint32_t>(t.pixel_outputs) * sizeof(Scalar);
  const uint32_t lane_segment = static_cast<uint32_t>(S::of_lane * g) * pixel_bytes;
  int32_t splits = t.splits;
  if constexpr (From == Source::boxes) device::forget(splits);
  uint32_t stage = 0, parity = 0;
#pragma unroll 1
  for (; unit < units; unit += stride) {
    const Part part = make_part(p, unit);
    Segments<Scalar, Last> y(p, part, part.first, group);
    float sums[c.rows][c.tiles][pixel_tiles][4];
#pragma unroll
    for (int i = 0; i < c.rows; ++i) begin_sums<c.tiles, pixel_tiles>(sums[i], outputs, lane, split == 0);
#pragma unroll 1
    for (int32_t row = part.first - p.reach + 1; row < part.last; ++row) {
      if (static_cast<uint32_t>(row) < static_cast<uint32_t>(p.h.in)) {
        // Of the frames that this row is read by, those of this part.
        const int32_t from = larger(part.first - row, 0), to = smaller(part.last - row, c.rows);
        const uint32_t taps = p.taps & ((1u << to * c.columns) - 1) & ~((1u << from * c.columns) - 1);
        uint32_t odd = 0;
        if constexpr (sizeof(Scalar) == 2 && From == Source::rows) {
          if (p.copied_bytes == 2) {
            odd = 16 * static_cast<uint32_t>(S::odd(x + (part.image * p.x_batch_stride + row * p.x_row_stride +
                                                         l * p.x_channel_stride + part.column)));
          }
        }
#pragma unroll 1
        for (int32_t step = split; step < t.steps; step += splits) {
          if constexpr (From == Source::boxes) {
            device::mbarrier_wait(barriers + stage * 8, parity);
          } else {
            device::cp_async_wait<least_stages - 2>();
          }
          __syncwarp();
          const uint32_t free = stage == 0 ? stages - 1 : stage - 1;
          reader.fetch(ring + free * S::size, barriers + free * 8);
          typename S::Tiles a;
          S::load(p, ring + stage * S::size + lane_stage, lane, part.column, odd, a);
          if (++stage == stages) stage = 0, parity ^= 1;
          const device::SharedAddress of_step = weights + static_cast<uint32_t>(step * step_weights);
          // Without a question, operands are read ahead; in strict float32 there are no registers for them.
          if (!Strict && taps == (1u << c.rows * c.columns) - 1) {
            add_products<S, Scalar, Strict, true>(sums, a, of_step, taps);
          } else {
            add_products<S, Scalar, Strict, false>(sums, a, of_step, taps);
          }
        }
      }
      if (row >= part.first) {
        // The warps that have the same outputs are added up in order.
        if (t.splits > 1) {
          float4* own = reinterpret_cast<float4*>(shared + t.places.sums + warp * t.warp_sums) + lane;
          if (split > 0) {
#pragma unroll
            for (int i = 0; i < c.tiles * pixel_tiles; ++i) {
              const float (&v)[4] = sums[0][i / pixel_tiles][i % pixel_tiles];
              own[i * 32] = make_float4(v[0], v[1], v[2], v[3]);
            }
          }
          device::named_barrier(1 + of_block, 32 * t.splits);
          if (split == 0) {
#pragma unroll 1
            for (int other = 1; other < t.splits; ++other) {
              own += t.warp_sums / 16;
#pragma unroll
              for (int i = 0; i < c.tiles * pixel_tiles; ++i) {
                float (&v)[4] = sums[0][i / pixel_tiles][i % pixel_tiles];
                const float4 add = own[i * 32];
                v[0] += add.x, v[1] += add.y, v[2] += add.z, v[3] += add.w;
              }
            }
          }
          device::named_barrier(1 + of_block, 32 * t.splits);
        }
        if (split == 0) {
          bool bad = false;
#pragma unroll
          for (int r = 0; r < S::runs; ++r) {
            bool of_run = false;
#pragma unroll
            for (int k = 0; k < c.tiles * S::half * 2; ++k) {
              const float (&v)[4] = sums[0][k / 2 / S::half][r * S::half + k / 2 % S::half];
              of_run |= !(v[k % 2 * 2] == v[k % 2 * 2]) || !(v[k % 2 * 2 + 1] == v[k % 2 * 2 + 1]);
            }
            bad |= of_run && S::has_columns(p, r, lane);
          }
          if (p.lane_stride == 2) {
            if constexpr (!Last) {
              if (p.shifted) {
                store_runs<S, 2, true, c.tiles>(p, y, lane, segments_of_y, sums[0]);
              } else {
                store_runs<S, 2, false, c.tiles>(p, y, lane, segments_of_y, sums[0]);
              }
            }
          } else if (p.lane_stride == 1) {
            if constexpr (!Last) store_runs<S, 1, false, c.tiles>(p, y, lane, segments_of_y, sums[0]);
          } else {
#pragma unroll
            for (int u = 0; u < c.tiles; ++u) {
#pragma unroll
              for (int q = 0; q < 2; ++q) {
                const int32_t place = outputs[u * 8 + 2 * l + q].place;
                const device::SharedAddress to =
                    segments + static_cast<uint32_t>(place) * sizeof(Scalar) + lane_segment;
#pragma unroll
                for (int m = 0; m < pixel_tiles; ++m) {
#pragma unroll
                  for (int h = 0; h < 2; ++h) {
                    const float v = sums[0][u][m][2 * h + q];
                    const int pixel = m / S::half * 8 * S::of_lane + m % S::half + h * S::half;
                    const device::SharedAddress at = to + static_cast<uint32_t>(pixel) * pixel_bytes;
                    if (place < 0) continue;
                    if constexpr (sizeof(Scalar) == 4) {
                      device::store_shared_4(at, v);
                    } else {
                      device::store_shared_2(at, pack(Scalar{}, v, 0));
                    }
                  }
                }
              }
            }
            __syncwarp();
            if (p.store_width == whole) {
              store_segments<whole>(p, y, segments_of_y, segment);
            } else {
              store_segments<1>(p, y, segments_of_y, segment);
            }
            __syncwarp();
          }
          if (__any_sync(0xffffffffu, bad)) {
            __syncwarp();  // the outputs are stored
            repair<Scalar, Strict, Last>(p, part, row, group, outputs);
          }
        }
        y.next_frame();
      }
#pragma unroll
      for (int i = 0; i + 1 < c.rows; ++i) {
#pragma unroll
        for (int k = 0; k < c.tiles * pixel_tiles * 4; ++k) {
          sums[i][k / 4 / pixel_tiles][k / 4 % pixel_tiles][k % 4] =
              sums[i + 1][k / 4 / pixel_tiles][k / 4 % pixel_tiles][k % 4];
        }
      }
      begin_sums<c.tiles, pixel_tiles>(sums[c.rows - 1], outputs, lane, split == 0);
    }
  }
}

}  // namespace convt::rolling_rows
