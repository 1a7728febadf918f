// The column form. See config.h for the idea.
//
// A warp's accumulators are 32 pixels by 8 * Tiles columns. A lane (g = lane / 4, t = lane % 4) holds 4 neighbouring
// pixels, the g-th group of the block, of channels 4 t ... 4 t + 3 of every 16: straight from memory in either layout.
// The rows g and g + 8 of the tensor core's M are two of those pixels, its K runs over the channels in an order of our
// own, and the accumulators of a column are 4 neighbouring pixels again.
#pragma once

#include "../exact_output.h"
#include "../taps.h"
#include "../tf32.h"
#include "../touch.h"
#include "params.h"

namespace convt::column {

template <class Scalar>
constexpr int words_of_4 = static_cast<int>(sizeof(Scalar));

// 4 x 4 elements: [channel][pixel] or, channels_last, [pixel][channel]. 16-bit elements that are loaded to registers,
// one by one, stay alone: putting two together would wait for both.
template <class Scalar, bool Copied>
constexpr int raw_words = Copied ? words_of_4<Scalar> : 4;
template <class Scalar, bool Copied>
struct Raw {
  uint32_t word[4][raw_words<Scalar, Copied>];
};

// The pixels of a lane: the first of them in its first channel, and how many are left in the row; 0 for none.
template <class Scalar>
struct Pixels {
  const Scalar* first;
  int32_t count;
};

// Elements of 16 bits, one by one.
template <class Scalar, bool ChannelsLast>
CONVT_DEVICE void load_chunk(const Params& p, const Pixels<Scalar>& at, int32_t chunk, Raw<Scalar, false>& raw) {
  const int32_t channel = chunk * chunk_channels + static_cast<int32_t>(threadIdx.x % 4) * 4;
  const int32_t channels = p.channels - channel;  // from here on
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) raw.word[i][j] = 0;
  }
  const Scalar* from = at.first + chunk * (chunk_channels * p.x_channel_stride);
  const int64_t step = ChannelsLast ? p.x_column_stride : p.x_channel_stride;
  const int32_t rows = ChannelsLast ? at.count : channels, inner = ChannelsLast ? channels : at.count;
#pragma unroll
  for (int i = 0; i < 4; ++i, from += step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i < rows && j < inner) raw.word[i][j] = __ldg(&from[j].bits);
    }
  }
}

// Copies 4 x 4 elements to the lane's own place in shared memory: without a register that it would have to wait for.
// `step`: where those of its warp begin.
template <class Scalar, bool ChannelsLast>
CONVT_DEVICE void copy_vectors(const Params& p, const Pixels<Scalar>& at, int32_t chunk, device::SharedAddress step) {
  constexpr int bytes = 4 * sizeof(Scalar), slot = slot_bytes(sizeof(Scalar));
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channels = p.channels - chunk * chunk_channels - lane % 4 * 4;
  const Scalar* from = at.first + chunk * (chunk_channels * p.x_channel_stride);
  const int64_t next = ChannelsLast ? p.x_column_stride : p.x_channel_stride;
  const int32_t rows = ChannelsLast ? (channels > 0 ? at.count : 0) : (at.count > 0 ? channels : 0);
  const device::SharedAddress to = step + static_cast<uint32_t>(slot_of_lane<ChannelsLast>(lane, slot));
#pragma unroll
  for (int i = 0; i < 4; ++i, from += next) {
    device::cp_async<bytes>(to + static_cast<uint32_t>(copy_pitch(slot) * i), i < rows ? from : p.x,
                            i < rows ? bytes : 0);
  }
}

// Copies words that begin anywhere, for all lanes of the warp: neighbours in memory by neighbouring lanes.
template <class Scalar, bool ChannelsLast>
CONVT_DEVICE void copy_words(const Params& p, const Pixels<Scalar>& at, int32_t chunk, device::SharedAddress step) {
  constexpr int slot = slot_bytes(sizeof(Scalar));
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channels = p.channels - chunk * chunk_channels, word = lane % 4;
  if constexpr (ChannelsLast) {
    // Sixteen channels of a pixel are 16 lanes', of two groups of pixels at a time.
    const int32_t quad = lane % 16 / 4 * 4;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int32_t group = lane / 16 + 2 * q;
      const auto first = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(at.first), 4 * group);
      const int32_t count = __shfl_sync(0xffffffffu, at.count, 4 * group);
      const Scalar* from = reinterpret_cast<const Scalar*>(first) + chunk * chunk_channels + quad;
      const device::SharedAddress to =
          step + static_cast<uint32_t>(slot_of_lane<ChannelsLast>(4 * group + quad / 4, slot) + 4 * word);
#pragma unroll
      for (int i = 0; i < 4; ++i, from += p.x_column_stride) {
        device::cp_async_if<4>(i < count && quad + word < channels, to + static_cast<uint32_t>(copy_pitch(slot) * i),
                               from + word);
      }
    }
  } else {
    const Scalar* from = at.first + (int64_t{chunk} * chunk_channels - 4 * word) * p.x_channel_stride;
    const device::SharedAddress to = step + static_cast<uint32_t>(lane / 4 * slot + 4 * word);
#pragma unroll
    for (int c = 0; c < chunk_channels; ++c, from += p.x_channel_stride) {
      device::cp_async_if<4>(c < channels && word < at.count,
                             to + static_cast<uint32_t>(c / 4 * lanes_pitch(slot) + c % 4 * copy_pitch(slot)),
                             from + word);
    }
  }
}

template <class Scalar, bool ChannelsLast, Load How>
CONVT_DEVICE void copy_chunk(const Params& p, const Pixels<Scalar>& at, int32_t chunk, device::SharedAddress step) {
  if constexpr (How == Load::vectors) {
    copy_vectors<Scalar, ChannelsLast>(p, at, chunk, step);
  } else {
    copy_words<Scalar, ChannelsLast>(p, at, chunk, step);
  }
}
template <class Scalar>
CONVT_DEVICE void read_copy(const unsigned char* from, Raw<Scalar, true>& raw) {
  constexpr int pitch = copy_pitch(slot_bytes(sizeof(Scalar)));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(Scalar) == 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i * pitch);
      raw.word[i][0] = v.x, raw.word[i][1] = v.y, raw.word[i][2] = v.z, raw.word[i][3] = v.w;
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(from + i * pitch);
      raw.word[i][0] = v.x, raw.word[i][1] = v.y;
    }
  }
}
// Until all but the last copies of a ring are there.
CONVT_DEVICE void wait_for_copies(int32_t ring) {
  if (ring == 4) {
    device::cp_async_wait<3>();
  } else {
    device::cp_async_wait<1>();
  }
}

// Operand A of a chunk: [pair of pixels][step][register]. Strict float32 has the rest of the rounding beside it.
template <class Scalar, bool Strict>
struct Fragments {
  static constexpr int steps = sizeof(Scalar) == 4 ? 2 : 1;
  uint32_t high[2][steps][4], low[Strict ? 2 : 1][Strict ? steps : 1][4];
};

template <class Scalar, bool Strict, bool ChannelsLast, bool Copied>
CONVT_DEVICE void convert(const Raw<Scalar, Copied>& raw, Fragments<Scalar, Strict>& a) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int pixel = 2 * pair + r % 2;
      if constexpr (sizeof(Scalar) == 4) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const int channel = 2 * step + r / 2;
          const uint32_t v = ChannelsLast ? raw.word[pixel][channel] : raw.word[channel][pixel];
          if constexpr (Strict) {
            split_tf32_operand(v, a.high[pair][step][r], a.low[pair][step][r]);
          } else {
            a.high[pair][step][r] = tf32_operand(v);
          }
        }
      } else {
        const int channels = r / 2;  // a pair of them
        if constexpr (!Copied) {
          const uint32_t low = ChannelsLast ? raw.word[pixel][2 * channels] : raw.word[2 * channels][pixel];
          const uint32_t high = ChannelsLast ? raw.word[pixel][2 * channels + 1] : raw.word[2 * channels + 1][pixel];
          a.high[pair][0][r] = low | high << 16;
        } else if constexpr (ChannelsLast) {
          a.high[pair][0][r] = raw.word[pixel][channels];
        } else {
          a.high[pair][0][r] =
              __byte_perm(raw.word[2 * channels][pair], raw.word[2 * channels + 1][pair], r % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
    }
  }
}

// What the tile covers along an axis: outputs [out, out + outs) and inputs [in, in + ins).
struct Extent {
  int32_t out, outs, in, ins;
};

CONVT_DEVICE Extent extent_of(const Axis<int32_t>& a, const Placement& at, int32_t index, int32_t align) {
  const int32_t from = at.first_u + index * at.outs, to = smaller(from + at.outs, a.out + a.padding);
  const int32_t low = larger(0, at.first_in + index * at.q) & -align;
  const int32_t high = smaller(at.end_in, at.first_in + at.halo + (index + 1) * at.q);
  const int32_t out = larger(0, from - a.padding);
  return {out, to - a.padding - out, low, larger(0, high - low)};
}

struct alignas(16) Tile {
  int64_t image, channel;  // the first output channel
  Extent rows, columns;
  int32_t row_groups;  // of pixels
  float inverse;       // of row_groups
  int32_t group, channel_of_group;
};
static_assert(sizeof(Tile) == tile_bytes && 19 * tile_bytes <= work_offset);

// Of a warp, in one pass.
struct Work {
  int32_t pixel_block, column_block, split;
};
static_assert(work_offset + 16 * sizeof(Work) <= table_offset);

CONVT_DEVICE Tile tile_of(const Params& p, uint32_t block) {
  Tile tile;
  const uint32_t rows = p.tiles_w.divide(block);
  tile.columns = extent_of(p.w_axis, p.place_w, static_cast<int32_t>(block), p.align);
  uint32_t row = rows;
  uint32_t group = p.tiles_h.divide(row);
  tile.rows = extent_of(p.h, p.place_h, static_cast<int32_t>(row), 1);
  tile.image = p.group_count.divide(group);
  tile.channel = int64_t{group} * p.out_channels;
  uint32_t channel_block = group;
  tile.group = static_cast<int32_t>(p.channel_blocks.divide(channel_block));
  tile.channel_of_group = static_cast<int32_t>(channel_block) * p.out_channels;
  tile.row_groups = (tile.columns.ins + group_pixels - 1) / group_pixels;
  tile.inverse = 1.0f / static_cast<float>(tile.row_groups);
  return tile;
}

// Weights of the chunks from `first_chunk` on: [4 channels][column][4 channels], rounded to TF32. Channels and columns
// that do not exist are zero. A thread has one column at a time, so that its place in the tensor is found once; it
// calls `with` for every four channels of it, with those that exist.
template <class Scalar, int Unroll, class With>
CONVT_DEVICE void for_weights(const Params& p, const Tile& tile, int32_t first_chunk, const With& with) {
  const Scalar* w = static_cast<const Scalar*>(p.w) + int64_t{tile.group} * p.channels * p.w_in_stride +
                    tile.channel_of_group * p.w_out_stride;
  const int32_t quads = 4 * smaller(p.stage_chunks, p.chunks - first_chunk);
  const int32_t pitch = weight_pitch(p.padded_columns, sizeof(Scalar));
  uint32_t first_column = threadIdx.x;
  const auto first_quad = static_cast<int32_t>(p.stage_width.divide(first_column));
  const auto width = static_cast<int32_t>(p.stage_width.divisor), step = p.stage_quads;
  if (first_quad >= step) return;
#pragma unroll 1
  for (auto n = static_cast<int32_t>(first_column); n < p.padded_columns; n += width) {
    auto tap = static_cast<uint32_t>(n);
    const uint32_t co = p.taps.divide(tap);
    uint32_t column = tap;
    const uint32_t row = p.kernel_w.divide(column);
    const int32_t first_channel = first_chunk * chunk_channels + 4 * first_quad;
    const Scalar* from =
        w + (co * p.w_out_stride + row * p.w_row_stride + column * p.w_column_stride) + first_channel * p.w_in_stride;
    int32_t left = n < p.columns ? p.channels - first_channel : 0;
#pragma unroll Unroll
    for (int32_t quad = first_quad; quad < quads; quad += step) {
      with(from, left, quad * pitch + n);
      from += 4 * step * p.w_in_stride, left -= 4 * step;
    }
  }
}

// The copies of float32 weights are on their way until round_weights(); of 16-bit types they are done.
template <class Scalar, int Unroll>
CONVT_DEVICE void load_weights(const Params& p, const Tile& tile, int32_t first_chunk, unsigned char* shared) {
  if constexpr (sizeof(Scalar) == 4) {
    const device::SharedAddress to = device::shared_address(shared + p.weight_offset);
    for_weights<Scalar, 1>(p, tile, first_chunk, [&](const Scalar* from, int32_t left, int32_t at) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        device::cp_async<4>(to + static_cast<uint32_t>(16 * at + 4 * i), i < left ? from : p.w, i < left ? 4 : 0);
        from += p.w_in_stride;
      }
    });
    device::cp_async_commit();
  } else {
    for_weights<Scalar, Unroll>(p, tile, first_chunk, [&](const Scalar* from, int32_t left, int32_t at) {
      uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 4; ++i, from += p.w_in_stride) {
        if (i < left) v[i] = __ldg(&from->bits);
      }
      reinterpret_cast<uint2*>(shared + p.weight_offset)[at] = make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
    });
  }
}

// Each thread rounds what it has copied itself.
template <class Scalar, bool Strict>
CONVT_DEVICE void round_weights(const Params& p, const Tile& tile, int32_t first_chunk, unsigned char* shared) {
  if constexpr (sizeof(Scalar) == 4) {
    for_weights<Scalar, 1>(p, tile, first_chunk, [&](const Scalar*, int32_t, int32_t at) {
      uint4& word = reinterpret_cast<uint4*>(shared + p.weight_offset)[at];
      const uint4 v = word;
      if constexpr (Strict) {
        uint4 high, low;
        split_tf32_operand(v.x, high.x, low.x), split_tf32_operand(v.y, high.y, low.y);
        split_tf32_operand(v.z, high.z, low.z), split_tf32_operand(v.w, high.w, low.w);
        word = high;
        reinterpret_cast<uint4*>(shared + p.low_weight_offset)[at] = low;
      } else {
        word = make_uint4(tf32_operand(v.x), tf32_operand(v.y), tf32_operand(v.z), tf32_operand(v.w));
      }
    });
  }
}

// Adds the products of one chunk. `weights` is this lane's element of the chunk's first column.
template <class Scalar, bool Strict, int Tiles>
CONVT_DEVICE void multiply(const Fragments<Scalar, Strict>& a, const unsigned char* weights, int32_t low_offset,
                           float (&sums)[Tiles][2][4]) {
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    if constexpr (sizeof(Scalar) == 4) {
      const uint4 v = reinterpret_cast<const uint4*>(weights)[8 * tile];
      const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
      if constexpr (Strict) {
        const uint4 u = reinterpret_cast<const uint4*>(weights + low_offset)[8 * tile];
        const uint32_t c[2][2] = {{u.x, u.y}, {u.z, u.w}};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          // The tensor core truncates its sums: what is longer than a product is taken in float32.
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            float part[4] = {0, 0, 0, 0};
            device::mma_m16n8k8_tf32(part, a.low[pair][step], b[step]);
            device::mma_m16n8k8_tf32(part, a.high[pair][step], c[step]);
            device::mma_m16n8k8_tf32(part, a.high[pair][step], b[step]);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[tile][pair][i] += part[i];
          }
        }
      } else {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) device::mma_m16n8k8_tf32(sums[tile][pair], a.high[pair][step], b[step]);
        }
      }
    } else {
      const uint2 v = reinterpret_cast<const uint2*>(weights)[8 * tile];
      const uint32_t b[2] = {v.x, v.y};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) device::mma_m16n8k16<Scalar>(sums[tile][pair], a.high[pair][0], b);
    }
  }
}

// The taps of one row or column of outputs: where their first product lies, and how many there are.
struct Entry {
  int32_t offset, count;
};

// Where the products of each output row and column of the tile are.
CONVT_DEVICE void fill_table(const Params& p, const Tile& tile, Entry* table) {
  const int32_t width = tile.row_groups * group_pixels;
#pragma unroll 1
  for (int32_t i = blockDim.x - 1 - threadIdx.x; i < tile.rows.outs + tile.columns.outs; i += blockDim.x) {
    const bool row = i < tile.rows.outs;
    const Axis<int32_t>& axis = row ? p.h : p.w_axis;
    const Extent& extent = row ? tile.rows : tile.columns;
    const Taps<int32_t> v = taps_of(axis, row ? p.stride_h : p.stride_w, extent.out + (row ? i : i - tile.rows.outs));
    const int32_t pitch = row ? p.w_axis.kernel * p.pitch : p.pitch;
    table[i] = {v.tap * pitch + (v.position - extent.in) * (row ? width : 1), v.count};
  }
}

// The lane's pixels of a tile.
template <class Scalar>
CONVT_DEVICE Pixels<Scalar> pixels_of(const Params& p, const Tile& tile, int32_t pixel_block) {
  const auto g = static_cast<int32_t>(threadIdx.x % 32 / 4), t = static_cast<int32_t>(threadIdx.x % 4);
  const int32_t index = pixel_block * 8 + g;
  Pixels<Scalar> at{static_cast<const Scalar*>(p.x), 0};
  if (index < tile.rows.ins * tile.row_groups) {
    const auto row = static_cast<int32_t>((static_cast<float>(index) + 0.5f) * tile.inverse);
    const int32_t column = tile.columns.in + (index - row * tile.row_groups) * group_pixels;
    at.first += tile.image * p.x_batch_stride + (int64_t{tile.group} * p.channels + 4 * t) * p.x_channel_stride +
                (tile.rows.in + row) * p.x_row_stride + column * p.x_column_stride;
    at.count = smaller(group_pixels, p.w_axis.in - column);
  }
  return at;
}

// Groups of pixels that warps multiply: whole blocks.
CONVT_DEVICE int32_t live_groups(const Tile& tile) { return (tile.rows.ins * tile.row_groups + 7) / 8 * 8; }

// The splits of the channels add up in their order.
CONVT_DEVICE void add_splits(const Params& p, int32_t groups, float* products) {
  const int32_t splits = static_cast<int32_t>(p.splits.divisor), words = p.columns * p.pitch;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(words / 4); i += blockDim.x) {
    uint32_t group = i;
    p.pitch_groups.divide(group);
    if (static_cast<int32_t>(group) >= groups) continue;
    float4* to = reinterpret_cast<float4*>(products) + i;
    float4 v = *to;
#pragma unroll 4
    for (int32_t split = 1; split < splits; ++split) {
      const float4 u = *reinterpret_cast<const float4*>(products + split * words + 4 * i);
      v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
    }
    *to = v;
  }
}

// Outputs from their products. In strict float32 those that are not finite are computed once more.
template <class Scalar, bool Strict>
CONVT_DEVICE void gather(const Params& p, const Tile& tile, const Entry* table, const float* products) {
  const Extent rows = tile.rows, columns = tile.columns;
  const int32_t width = tile.row_groups * group_pixels;
  // Each thread has one column of outputs, and takes rows of them.
  const int32_t taps = p.h.kernel * p.w_axis.kernel;
  const int32_t per_column = p.channels_of_row ? p.out_channels : 1, co_count = p.channels_of_row ? 1 : p.out_channels;
  const int32_t elements = columns.outs * per_column;
  const int32_t line = smaller<int32_t>((elements + 31) / 32 * 32, blockDim.x);
  // Quotients of small numbers, by a float's product; a division of integers takes longer than a row of outputs.
  const float of_line = 1.0f / static_cast<float>(line), of_pixel = 1.0f / static_cast<float>(per_column);
  const auto lines = static_cast<int32_t>((static_cast<float>(blockDim.x) + 0.5f) * of_line);
  const auto first_row = static_cast<int32_t>((static_cast<float>(threadIdx.x) + 0.5f) * of_line);
  if (first_row >= lines) return;
  const int32_t row_step = p.h.tap_step * p.w_axis.kernel * p.pitch - p.h.input_step * width;
  const int32_t column_step = p.w_axis.tap_step * p.pitch - p.w_axis.input_step;
  float not_finite = 0;  // or NaN, if an output is not finite
  for (int32_t element = threadIdx.x - first_row * line; element < elements; element += line) {
    const auto column = static_cast<int32_t>((static_cast<float>(element) + 0.5f) * of_pixel);
    const int32_t first_co = element - column * per_column;
    const Entry of_column = table[rows.outs + column];
    for (int32_t block_co = first_co; block_co < first_co + co_count; block_co += 4) {
      const int32_t count = smaller(4, first_co + co_count - block_co);
      const int64_t co = tile.channel + block_co;
      float bias[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bias[i] = 0;
        if (p.bias != nullptr && i < count) {
          load<1>(static_cast<const Scalar*>(p.bias) + (co + i) * p.bias_stride, &bias[i]);
        }
      }
      Scalar* y = static_cast<Scalar*>(p.y) + tile.image * p.y_batch_stride + co * p.y_channel_stride +
                  (columns.out + column) * p.y_column_stride;
      const float* of_products = products + block_co * taps * p.pitch + of_column.offset;
      // Several rows at once: their loads wait for each other only within a row.
      const auto sum_rows = [&]<int Rows, int Channels>() {
        for (int32_t row = first_row; row < rows.outs; row += Rows * lines) {
          const float* at[Rows];
          int32_t tap_rows[Rows], most = 0;
          float sum[Rows][Channels];
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            const Entry of_row = row + r * lines < rows.outs ? table[row + r * lines] : Entry{0, 0};
            at[r] = of_products + of_row.offset, tap_rows[r] = of_row.count, most = larger(most, of_row.count);
#pragma unroll
            for (int i = 0; i < Channels; ++i) sum[r][i] = 0;
          }
#pragma unroll 1
          for (int32_t j = 0; j < most; ++j) {
            int32_t offset = 0;
#pragma unroll 1
            for (int32_t k = 0; k < of_column.count; ++k) {
#pragma unroll
              for (int r = 0; r < Rows; ++r) {
#pragma unroll
                for (int i = 0; i < Channels; ++i) {
                  if (j < tap_rows[r] && i < count) sum[r][i] += at[r][offset + i * taps * p.pitch];
                }
              }
              offset += column_step;
            }
#pragma unroll
            for (int r = 0; r < Rows; ++r) at[r] += row_step;
          }
#pragma unroll
          for (int r = 0; r < Rows; ++r) {
            if (row + r * lines >= rows.outs) break;
#pragma unroll
            for (int i = 0; i < Channels; ++i) {
              if (i < count) {
                sum[r][i] += bias[i];
                if constexpr (Strict) not_finite = fmaf(sum[r][i], 0.0f, not_finite);
                store<1>(y + (rows.out + row + r * lines) * p.y_row_stride + i * p.y_channel_stride, &sum[r][i]);
              }
            }
          }
        }
      };
      if (count == 1) {
        sum_rows.template operator()<4, 1>();
      } else {
        sum_rows.template operator()<2, 4>();
      }
    }
  }
  if (!Strict || not_finite == 0) return;
  const Scalar* x = static_cast<const Scalar*>(p.x) + tile.image * p.x_batch_stride +
                    int64_t{tile.group} * p.channels * p.x_channel_stride;
  const Scalar* w = static_cast<const Scalar*>(p.w) + int64_t{tile.group} * p.channels * p.w_in_stride +
                    tile.channel_of_group * p.w_out_stride;
#pragma unroll 1
  for (int32_t element = threadIdx.x - first_row * line; element < elements; element += line) {
    const auto column = static_cast<int32_t>((static_cast<float>(element) + 0.5f) * of_pixel);
    const int32_t first_co = element - column * per_column;
#pragma unroll 1
    for (int32_t c = first_co; c < first_co + co_count; ++c) {
#pragma unroll 1
      for (int32_t row = first_row; row < rows.outs; row += lines) {
        Scalar* to = static_cast<Scalar*>(p.y) + tile.image * p.y_batch_stride +
                     (tile.channel + c) * p.y_channel_stride + (rows.out + row) * p.y_row_stride +
                     (columns.out + column) * p.y_column_stride;
        float v = to_float(*to), bias = 0;
        if (v - v == 0) continue;
        if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + (tile.channel + c) * p.bias_stride, &bias);
        v = exact_output<Scalar, Strict>(p, x, w + c * p.w_out_stride, bias, rows.out + row, columns.out + column);
        store<1>(to, &v);
      }
    }
  }
}

template <class Scalar, bool Strict, bool ChannelsLast, Load How, int Tiles>
__global__ void __launch_bounds__(32 * resident_warps(Tiles), 1) column_kernel(const __grid_constant__ Params p) {
  static_assert(!Strict || sizeof(Scalar) == 4);
  unsigned char* shared = device::dynamic_shared_memory();
  const int32_t lane = threadIdx.x % 32;
  const int32_t g = lane / 4, t = lane % 4;
  float* products = reinterpret_cast<float*>(shared + p.column_offset);
  // What is needed again only at the end is kept in shared memory, not in registers.
  // Each warp finds the first tile for itself, without waiting for another one.
  const auto tile_at = [&](uint32_t turn) -> Tile& {
    return reinterpret_cast<Tile*>(shared)[turn > 0 ? turn % 3 : 3 + threadIdx.x / 32];
  };
  const auto table_at = [&](uint32_t turn) {
    return reinterpret_cast<Entry*>(shared + table_offset + static_cast<int32_t>(turn % 2) * p.table_bytes);
  };
  Work& work = *(reinterpret_cast<Work*>(shared + work_offset) + threadIdx.x / 32);
  const uint32_t touched = touch(p, blockIdx.y);
  if (lane == 0) tile_at(0) = tile_of(p, blockIdx.x);
  __syncwarp();
  const int32_t weight_bytes =
      weight_pitch(p.padded_columns, sizeof(Scalar)) * static_cast<int32_t>(4 * sizeof(Scalar));
  const int32_t column_words = p.columns * p.pitch;  // of the products of one split

  constexpr int32_t slot = slot_bytes(sizeof(Scalar)), warp_bytes = step_bytes(slot);
  constexpr bool Copied = How != Load::registers, together = How == Load::words;  // lanes copy for each other
  constexpr int depth = depth_of(Strict);
  unsigned char* const ring = shared + p.ring_offset + threadIdx.x / 32 * warp_bytes;
  const int32_t own = slot_of_lane<ChannelsLast>(lane, slot);
  const int32_t ring_bytes = static_cast<int32_t>(blockDim.x / 32) * warp_bytes;  // of a step
  int32_t pass = 0;
  // Where a later tile's numbers come.
  if (threadIdx.x == 0) *reinterpret_cast<volatile uint32_t*>(shared) = touched;
#pragma unroll 1
  for (uint32_t turn = 0;;) {
    const auto more = [&](uint32_t t) { return blockIdx.x + t * gridDim.x < static_cast<uint32_t>(p.tiles); };
    const Tile& tile = tile_at(turn);
    const bool stages = !p.keeps_weights || (turn == 0 && pass == 0);
    const auto splits = static_cast<int32_t>(p.splits.divisor);
    Raw<Scalar, Copied> raw[Copied ? 1 : depth];
    bool idle = true;  // as a whole warp
    if (more(turn)) {
      const uint32_t task = (threadIdx.x + static_cast<uint32_t>(pass) * blockDim.x) / 32;
      uint32_t split = task;
      uint32_t column_block = p.splits.divide(split);
      const auto pixel_block = static_cast<int32_t>(p.column_blocks.divide(column_block));
      if (lane == 0) work = {pixel_block, static_cast<int32_t>(column_block), static_cast<int32_t>(split)};
      idle = pixel_block * 8 >= tile.rows.ins * tile.row_groups;
      const Pixels<Scalar> at = pixels_of<Scalar>(p, tile, pixel_block);
      auto chunk = static_cast<int32_t>(split);
      if constexpr (Copied) {
        // Copies of weights between the first inputs and the others: the product starts with both. 16-bit weights,
        // which are waited for, behind all inputs.
#pragma unroll 1
        for (int32_t i = 0; i < p.ring; ++i, chunk += splits) {
          if (!idle && chunk < p.chunks) {
            copy_chunk<Scalar, ChannelsLast, How>(p, at, chunk, device::shared_address(ring + i * ring_bytes));
          }
          device::cp_async_commit();
          if (stages && i == (sizeof(Scalar) == 4 ? 0 : p.ring - 1)) load_weights<Scalar, 4>(p, tile, 0, shared);
        }
      } else {
#pragma unroll
        for (int i = 0; i < depth; ++i, chunk += splits) {
          if (!idle && chunk < p.chunks) load_chunk<Scalar, ChannelsLast>(p, at, chunk, raw[i]);
        }
        if (stages) load_weights<Scalar, 4>(p, tile, 0, shared);
      }
    }
    if (turn > 0 && pass == 0) gather<Scalar, Strict>(p, tile_at(turn - 1), table_at(turn - 1), products);
    if (!more(turn)) return;
    // Others may still read this tile and the last one.
    if (pass == 0 && threadIdx.x == 0 && more(turn + 1)) {
      tile_at(turn + 1) = tile_of(p, blockIdx.x + (turn + 1) * gridDim.x);
    }
    float sums[Tiles][2][4];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j / 4][j % 4] = 0;
    }
    if (pass == 0) fill_table(p, tile, table_at(turn));
    int32_t place = 0, done = 0;  // in the ring; chunks of this split
    for (int32_t first_chunk = 0; first_chunk < p.chunks; first_chunk += p.stage_chunks) {
      if (first_chunk > 0) {
        __syncthreads();
        load_weights<Scalar, 4>(p, tile, first_chunk, shared);
      }
      if (stages) {
        if (Copied && first_chunk == 0) {
          wait_for_copies(p.ring);
        } else {
          device::cp_async_wait<0>();
        }
        round_weights<Scalar, Strict>(p, tile, first_chunk, shared);
      }
      __syncthreads();
      if (idle) continue;
      const int32_t end = smaller(first_chunk + p.stage_chunks, p.chunks);
      const Work mine = work;
      const Pixels<Scalar> at = pixels_of<Scalar>(p, tile, mine.pixel_block);
      const auto product = [&](const Raw<Scalar, Copied>& from, int32_t chunk, const auto& load_next) {
        Fragments<Scalar, Strict> a;
        convert<Scalar, Strict, ChannelsLast, Copied>(from, a);
        if constexpr (Copied) load_next();
        const unsigned char* weights = shared + p.weight_offset + (4 * (chunk - first_chunk) + t) * weight_bytes +
                                       (mine.column_block * 8 * Tiles + g) * static_cast<int32_t>(4 * sizeof(Scalar));
        multiply<Scalar, Strict, Tiles>(a, weights, p.low_weight_offset - p.weight_offset, sums);
        // In the registers of the fragments: there are none to spare.
        if constexpr (!Copied) load_next();
      };
      if constexpr (Copied) {
#pragma unroll 1
        for (int32_t chunk = mine.split + done * splits; chunk < end; chunk += splits, ++done) {
          wait_for_copies(p.ring);
          if constexpr (together) __syncwarp();
          unsigned char* const mine_of_ring = ring + place * ring_bytes;
          read_copy<Scalar>(mine_of_ring + own, raw[0]);
          if constexpr (together) __syncwarp();
          product(raw[0], chunk, [&] {
            const int32_t later = chunk + p.ring * splits;
            if (later < p.chunks) {
              copy_chunk<Scalar, ChannelsLast, How>(p, at, later, device::shared_address(mine_of_ring));
            }
            device::cp_async_commit();
          });
          place = place + 1 < p.ring ? place + 1 : 0;
        }
      } else {
#pragma unroll 1
        for (int32_t first = first_chunk + mine.split; first < end; first += depth * splits) {
#pragma unroll
          for (int i = 0; i < depth; ++i) {
            const int32_t chunk = first + i * splits, later = chunk + depth * splits;
            if (chunk >= end) break;
            product(raw[i], chunk, [&] {
              if (later < p.chunks) load_chunk<Scalar, ChannelsLast>(p, at, later, raw[i]);
            });
          }
        }
      }
    }
    if (!idle) {
      const Work mine = work;
      float* first = products + mine.split * column_words + mine.pixel_block * block_pixels + 4 * g;
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int32_t column = (mine.column_block * Tiles + i) * 8 + 2 * t + j;
          if (column < p.columns) {
            *reinterpret_cast<float4*>(first + column * p.pitch) =
                make_float4(sums[i][0][j], sums[i][0][2 + j], sums[i][1][j], sums[i][1][2 + j]);
          }
        }
      }
    }
    if (++pass < p.passes) {
      // The weights may be overwritten, and the warp's work.
      if (!p.keeps_weights) __syncthreads();
      __syncwarp();
      continue;
    }
    pass = 0;
    __syncthreads();
    if (p.splits.divisor > 1) {
      add_splits(p, live_groups(tile), products);
      __syncthreads();
    }
    ++turn;
  }
}

}  // namespace convt::column
