#pragma once

#include "../exchange.h"
#include "../gemm_scatter/device.cuh"
#include "params.h"

namespace convt::gemm_scatter_sm90 {

// Words of two 16-bit elements; the second one of a single element does not matter.
template <int Elements>
constexpr int words_of = (Elements + 1) / 2;

template <int Elements>
CONVT_DEVICE void load_words(device::SharedAddress from, uint32_t (&to)[words_of<Elements>]) {
  if constexpr (Elements == 8) {
    const uint4 v = device::load_shared_16(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (Elements == 4) {
    const uint2 v = device::load_shared_8(from);
    to[0] = v.x, to[1] = v.y;
  } else if constexpr (Elements == 2) {
    to[0] = device::load_shared_4(from);
  } else {
    to[0] = device::load_shared_2(from);
  }
}

template <int Elements>
CONVT_DEVICE void store_words(uint16_t* to, const uint32_t (&from)[words_of<Elements>]) {
  if constexpr (Elements == 8) {
    device::store_global_16(to, from[0], from[1], from[2], from[3]);
  } else if constexpr (Elements == 4) {
    device::store_global_8(to, from[0], from[1]);
  } else if constexpr (Elements == 2) {
    *reinterpret_cast<uint32_t*>(to) = from[0];
  } else {
    *to = static_cast<uint16_t>(from[0]);
  }
}

// Element i of a vector is element i / Parts of part i % Parts.
template <int Width, int Parts>
CONVT_DEVICE void interleave(const uint32_t (&parts)[Parts][words_of<Width>], uint32_t (&to)[words_of<Width * Parts>]) {
#pragma unroll
  for (int w = 0; w < words_of<Width * Parts>; ++w) {
    const int i = 2 * w, j = 2 * w + 1;
    if constexpr (Width * Parts == 1) {
      to[w] = parts[0][0];
    } else {
      to[w] = __byte_perm(parts[i % Parts][i / Parts / 2], parts[j % Parts][j / Parts / 2],
                          (i / Parts % 2 != 0 ? 0x32 : 0x10) | (j / Parts % 2 != 0 ? 0x7600 : 0x5400));
    }
  }
}

// Where things are in shared memory.
struct Shared : Barriers {
  device::SharedAddress stages, staged, places;
  unsigned char* bias_memory;
};

template <int Row, bool channels_last>
struct Blocks {  // of a tile
  static constexpr int32_t outputs = (channels_last ? configs[Row].columns : configs[Row].rows) / block_side,
                           segments = (channels_last ? configs[Row].rows : configs[Row].columns) / block_side;
};

template <int Row, bool channels_last>
CONVT_DEVICE Tile tile_of(const Params& p, int32_t number) {
  using Of = Blocks<Row, channels_last>;
  return Tile::of(p, number, Of::outputs * block_side, Of::segments);
}

// By one warp: every chunk of every tile of this block.
template <int Row, bool channels_last>
CONVT_DEVICE void copy_operands(const Params& p, const Shared& shared) {
  constexpr Config config = configs[Row];
  constexpr int stages = stages_of(config);
  using Of = Blocks<Row, channels_last>;
  if (!device::elect()) return;
  if (p.copies_x) device::wait_for_previous_kernel();
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = tile_of<Row, channels_last>(p, number);
    const Segments<channels_last, Of::segments, block_side> segments(p, tile);
#pragma unroll 1
    for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
      device::mbarrier_wait(shared.empty(ring.stage), ring.parity);
      const device::SharedAddress full = shared.full(ring.stage);
      device::mbarrier_arrive_expect(full, stage_bytes(config));
      device::SharedAddress a = shared.stages + ring.stage * stage_bytes(config), b = a + config.rows * row_bytes;
      const device::SharedAddress w = channels_last ? b : a, x = channels_last ? a : b;
      const int32_t channel = chunk * block_side;
      segments.load(p, x, channel, tile.group, full);
#pragma unroll
      for (int m = 0; m < Of::outputs; ++m) {
        const int32_t at[] = {tile.output + m * block_side, channel, tile.group, 0, 0};
        device::box_load(w + m * block_bytes, p.w_map, at, full);
      }
      ring.advance(stages);
    }
  }
}

// Where outputs of a tile are in y, for a warpgroup: of each of its positions, and unless y is channels_last of each
// row of the kernel of each of its channels. A position that is not there has a negative one.
struct Places {
  device::SharedAddress positions, kernel_rows;

  CONVT_DEVICE explicit Places(device::SharedAddress at) : positions(at), kernel_rows(at + places_bytes / 2) {}

  // By all threads of the warpgroup, each of which has one of both.
  template <int Row, bool channels_last>
  CONVT_DEVICE void find(const Params& p, const Tile& tile, int32_t first_row, int32_t thread) const {
    static_assert(larger(configs[Row].group_rows(), configs[Row].columns) <= group_threads &&
                  places_bytes == 2 * 8 * group_threads);
    const int32_t at = thread + (channels_last ? first_row : 0);
    auto segment = static_cast<uint32_t>(tile.segment + at / block_side);
    const auto row = static_cast<int32_t>(p.segments.divide(segment));
    auto column = segment * block_side + static_cast<uint32_t>(at % block_side);
    int64_t place = -1;
    if (row < p.rows && static_cast<int32_t>(column) < p.positions) {
      const int64_t image = row + static_cast<int64_t>(p.image.divide(column)), image_row = p.width.divide(column);
      place = image * p.y_batch_stride + image_row * p.kernel_h * p.y_row_stride +
              static_cast<int64_t>(column) * p.kernel_w * p.y_column_stride;
    }
    put_place(positions, thread, place);
    if constexpr (!channels_last) {
      auto output = static_cast<uint32_t>(tile.output + first_row + thread);
      const int64_t channel = p.taps.divide(output), kernel_row = p.by_rows.divide(output);
      put_place(kernel_rows, thread,
                (channel + static_cast<int64_t>(tile.group) * p.out_channels) * p.y_channel_stride +
                    kernel_row * p.y_row_stride);
    }
  }
};

// Copies to y the vectors at `column` of staged rows from `first` on, `step` apart and less than `end`, of each the row
// `part` further: `Parts` rows of `Width` columns, interleaved. Where rows belong in y is in `table`.
template <int Pitch, int Width, int Parts>
CONVT_DEVICE void copy_vectors(uint16_t* to, device::SharedAddress staged, device::SharedAddress table, int32_t column,
                               int32_t first, int32_t step, int32_t end, int32_t part) {
  constexpr int vector = Width * Parts, together = 4;  // on their way at once
  staged += static_cast<uint32_t>(part * Pitch + 2 * column);
#pragma unroll 1
  for (int32_t row = first; row < end; row += together * step) {
    int64_t place[together];
    uint32_t all[together][words_of<vector>];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      // Instead of one beyond the end, the first one is read again, for nothing.
      const bool there = row + i * step < end;
      const int32_t at = there ? row + i * step : row;
      place[i] = there ? get_place(table, at) : -1;
      uint32_t parts[Parts][words_of<Width>];
#pragma unroll
      for (int q = 0; q < Parts; ++q) load_words<Width>(staged + static_cast<uint32_t>((at + q) * Pitch), parts[q]);
      interleave<Width, Parts>(parts, all[i]);
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      if (place[i] >= 0) store_words<vector>(to + place[i], all[i]);
    }
  }
}

// Copies to y a vector of each of `count` channels: `next` elements of y and `step` bytes of what is staged apart.
template <int Pitch, int Width, int Parts>
CONVT_DEVICE void copy_channels(uint16_t* to, int64_t next, device::SharedAddress staged, int32_t step, int32_t count) {
  constexpr int vector = Width * Parts, together = 4;  // on their way at once
  const auto load = [&](device::SharedAddress from, uint32_t (&all)[words_of<vector>]) {
    uint32_t parts[Parts][words_of<Width>];
#pragma unroll
    for (int q = 0; q < Parts; ++q) load_words<Width>(from + static_cast<uint32_t>(q * Pitch), parts[q]);
    interleave<Width, Parts>(parts, all);
  };
#pragma unroll 1
  for (; count >= together; count -= together) {
    uint32_t all[together][words_of<vector>];
#pragma unroll
    for (int i = 0; i < together; ++i) load(staged + static_cast<uint32_t>(i * step), all[i]);
#pragma unroll
    for (int i = 0; i < together; ++i, to += next) store_words<vector>(to, all[i]);
    staged += static_cast<uint32_t>(together * step);
  }
#pragma unroll 1
  for (; count > 0; --count, to += next, staged += static_cast<uint32_t>(step)) {
    uint32_t all[words_of<vector>];
    load(staged, all), store_words<vector>(to, all);
  }
}

// What the threads of a warpgroup write of a tile: of what is staged, `Parts` rows (columns of the kernel) of `Width`
// columns (positions) make a vector of y, in which they take turns. In channels_last a vector is part of a row.
template <int Row, bool channels_last, int Width, int Parts>
CONVT_DEVICE void write(const Params& p, const Tile& tile, int32_t first_row, const Places& places,
                        device::SharedAddress staged) {
  constexpr Config config = configs[Row];
  constexpr int32_t vector = Width * Parts, pitch = staged_pitch(config);
  const auto thread = static_cast<int32_t>(threadIdx.x) % group_threads;
  auto* const y = static_cast<uint16_t*>(p.y);
  if constexpr (channels_last) {
    constexpr int32_t vectors = config.columns / vector, together = group_threads / vectors;
    const int32_t column = thread % vectors * vector;
    if (tile.output + column >= p.outputs) return;
    auto in_row = static_cast<uint32_t>(tile.output + column);
    const int64_t kernel_row = p.by_rows.divide(in_row);
    copy_vectors<pitch, Width, Parts>(y + kernel_row * p.y_row_stride + in_row, staged, places.positions, column,
                                      thread / vectors, together, config.group_rows(), 0);
  } else {
    const int32_t outputs = smaller(config.group_rows(), p.outputs - tile.output - first_row);
    if (p.whole_rows) {
      // A warp writes all rows of the kernel of positions that follow each other, for every fourth channel: sectors of
      // memory, of 32 bytes, of which an instruction writes a part take longer. Channels are the same distance apart.
      const int32_t warp = thread / 32, taps = p.kernel_h * p.kernel_w, warps = group_threads / 32;
      const int32_t count = (outputs - warp * taps + warps * taps - 1) / (warps * taps);
      if (count <= 0) return;
      uint16_t* const channel = y + get_place(places.kernel_rows, warp * taps);
      const int32_t vectors = config.columns * taps / vector;
#pragma unroll 1
      for (int32_t v = thread % 32; v < vectors; v += 32) {
        const int32_t of_row = v >> p.log_kernel_h, kernel_row = v - (of_row << p.log_kernel_h);
        const int32_t column = of_row * vector >> p.log_kernel_w, part = of_row * vector - (column << p.log_kernel_w);
        const int64_t position = get_place(places.positions, column);
        if (position < 0) continue;
        const int32_t row = warp * taps + kernel_row * p.kernel_w + part;
        copy_channels<pitch, Width, Parts>(
            channel + position + kernel_row * p.y_row_stride + part, warps * p.y_channel_stride,
            staged + static_cast<uint32_t>(row * pitch + 2 * column), warps * taps * pitch, count);
      }
      return;
    }
    // A row of the kernel has so many vectors; each is written for all of those rows that are staged.
    const int32_t vectors = config.columns * p.kernel_w / vector;
    const int32_t together = larger(1, group_threads / vectors) * p.kernel_w;
    const int32_t first = thread / vectors;  // 0, if there are more vectors than threads
#pragma unroll 1
    for (int32_t v = thread - first * vectors; v < vectors; v += group_threads) {
      const int32_t column = v * vector / p.kernel_w, part = v * vector - column * p.kernel_w;
      const int64_t position = get_place(places.positions, column);
      if (position < 0) continue;
      copy_vectors<pitch, Width, Parts>(y + position + part, staged, places.kernel_rows, column, first * p.kernel_w,
                                        together, outputs, part);
    }
  }
}

template <int Row, bool channels_last>
CONVT_DEVICE void write(const Params& p, const Tile& tile, int32_t first_row, const Places& places,
                        device::SharedAddress staged) {
  const auto with = [&]<int Width, int Parts>() {
    write<Row, channels_last, Width, Parts>(p, tile, first_row, places, staged);
  };
  const int32_t parts = channels_last ? 1 : smaller(p.kernel_w, p.vector);
  const auto of_vector = [&]<int Vector>() {
    if constexpr (channels_last) {
      with.template operator()<Vector, 1>();
    } else {
      if (parts == 1) {
        with.template operator()<Vector, 1>();
      } else if (parts == 2) {
        if constexpr (Vector >= 2) with.template operator()<Vector / 2, 2>();
      } else if (parts == 4) {
        if constexpr (Vector >= 4) with.template operator()<Vector / 4, 4>();
      } else {
        if constexpr (Vector == 8) with.template operator()<1, 8>();
      }
    }
  };
  if (p.vector == 8) [[likely]] {
    of_vector.template operator()<8>();
  } else if (p.vector == 4) {
    of_vector.template operator()<4>();
  } else if (p.vector == 2) {
    of_vector.template operator()<2>();
  } else {
    of_vector.template operator()<1>();
  }
}

// Writes what a lane has of a tile from registers, where vectors of y have 8 elements: those that four lanes have of
// rows and columns side by side. `Width` columns of the kernel, which are rows of the product, are in a vector (1 in
// channels_last, where it has columns of one row).
template <class Scalar, int Row, bool channels_last, int Width>
CONVT_DEVICE void write_registers(
    const Params& p, const Tile& tile, int32_t first_row, const Places& places, const float* biases, int32_t warp,
    int32_t lane, const float (&sums)[configs[Row].group_rows() / block_side][configs[Row].columns / 2]) {
  constexpr Config config = configs[Row];
  constexpr int blocks = config.group_rows() / block_side;
  constexpr int a = Width == 4 ? 4 : 1, b = Width == 1 ? 2 : Width == 2 ? 4 : 8;
  const int32_t number = ((lane & a) != 0 ? 1 : 0) + ((lane & b) != 0 ? 2 : 0), t = lane % 4;
  // The lane's vector in 32 columns, and its first row in 8.
  const int32_t column_of_vector = 8 * number + (Width == 4   ? 2 * t
                                                 : Width == 2 ? t / 2 * 4
                                                              : 0),
                row_of_vector = lane / 4 / Width * Width;
  auto* const y = static_cast<uint16_t*>(p.y);
  int64_t of_rows[blocks][2];
  float bias_of_rows[blocks][2];
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = m * block_side + warp * 16 + half * 8;
      const bool there = channels_last || tile.output + first_row + row + row_of_vector < p.outputs;
      of_rows[m][half] =
          there ? get_place(channels_last ? places.positions : places.kernel_rows, row + row_of_vector) : -1;
      bias_of_rows[m][half] = channels_last ? 0 : biases[row + lane / 4];
    }
  }
#pragma unroll
  for (int j = 0; j < config.columns / 32; ++j) {
    const int32_t column = 32 * j + column_of_vector;
    int64_t of_column = -1;
    float bias_of_columns[4][2] = {};
    if constexpr (channels_last) {
      auto output = static_cast<uint32_t>(tile.output + column);
      if (static_cast<int32_t>(output) < p.outputs) {
        const int64_t kernel_row = p.by_rows.divide(output);
        of_column = kernel_row * p.y_row_stride + output;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) bias_of_columns[i][e] = biases[32 * j + 8 * i + 2 * t + e];
      }
    } else {
      of_column = get_place(places.positions, column);
    }
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const v = &sums[m][(4 * j + i) * 4 + 2 * half];
          w[i] = pack(Scalar{}, v[0] + bias_of_rows[m][half] + bias_of_columns[i][0],
                      v[1] + bias_of_rows[m][half] + bias_of_columns[i][1]);
        }
        device::exchange<a, b>(w, lane);
        if (of_column < 0 || of_rows[m][half] < 0) continue;
        constexpr uint32_t low = 0x5410, high = 0x7632;
        uint16_t* const to = y + of_rows[m][half] + of_column;
        // Words of two positions: of a position, one column of the kernel after the other.
        if constexpr (Width == 1) {
          device::store_global_16(to, w[0], w[1], w[2], w[3]);
        } else if constexpr (Width == 2) {
          device::store_global_16(to, __byte_perm(w[0], w[2], low), __byte_perm(w[0], w[2], high),
                                  __byte_perm(w[1], w[3], low), __byte_perm(w[1], w[3], high));
        } else {
          device::store_global_16(to, __byte_perm(w[0], w[1], low), __byte_perm(w[2], w[3], low),
                                  __byte_perm(w[0], w[1], high), __byte_perm(w[2], w[3], high));
        }
      }
    }
  }
}

// What a warpgroup has of a tile, converted, in the blocks that the copy engine writes: of 64 columns all rows, of 128
// bytes, whose units of 16 bytes change places as in every box with this swizzle.
template <int Row>
constexpr uint32_t staged_block_bytes = configs[Row].group_rows() * row_bytes;

// By a warp, when all of the warpgroup's have staged: a lane has a box, of so many positions of a segment.
template <int Row, bool channels_last>
CONVT_DEVICE void store_boxes(const Params& p, const Tile& tile, int32_t first_row, device::SharedAddress staged,
                              int32_t lane) {
  constexpr Config config = configs[Row];
  constexpr int column_blocks = config.columns / block_side, row_blocks = config.group_rows() / block_side;
  constexpr int segments = channels_last ? row_blocks : column_blocks,
                outputs = channels_last ? column_blocks : row_blocks;
  static_assert(segments * outputs << most_log_boxes <= 32);
  const int32_t block = lane >> p.log_boxes, box = lane - (block << p.log_boxes);
  const int32_t s = block % segments, m = block / segments;
  auto segment = static_cast<uint32_t>(tile.segment + s + (channels_last ? first_row / block_side : 0));
  const auto image = static_cast<int32_t>(p.segments.divide(segment));
  const int32_t output = tile.output + m * block_side + (channels_last ? 0 : first_row);
  if (m >= outputs || image >= p.rows || output >= p.outputs) return;
  const int32_t first = box * (block_side >> p.log_boxes);
  uint32_t column = segment * block_side + static_cast<uint32_t>(first);
  if constexpr (channels_last) {
    const auto image_row = static_cast<int32_t>(p.width.divide(column));
    auto in_row = static_cast<uint32_t>(output);
    const auto kernel_row = static_cast<int32_t>(p.by_rows.divide(in_row));
    const int32_t at[] = {static_cast<int32_t>(in_row), static_cast<int32_t>(column), kernel_row, image_row, image};
    device::box_store(p.y_map, at, staged + m * staged_block_bytes<Row> + s * block_bytes + first * row_bytes,
                      p.y_policy);
  } else {
    const int32_t at[] = {static_cast<int32_t>(column), output, tile.group, image, 0};
    device::box_store(p.y_map, at, staged + s * staged_block_bytes<Row> + m * block_bytes, p.y_policy);
  }
  device::bulk_commit();
}

// By the consumers: the products of each tile, or of every second one.
template <class Scalar, int Row, bool channels_last, bool boxes>
CONVT_DEVICE void consume(const Params& p, const Shared& shared) {
  using device::Major;
  constexpr Config config = configs[Row];
  constexpr int stages = stages_of(config), rows = config.group_rows(), blocks = rows / block_side,
                columns = config.columns, pitch = staged_pitch(config);
  constexpr Major a_major = channels_last ? Major::k : Major::mn;
  // 16 channels of a block: 32 bytes of its rows, or 16 rows.
  constexpr uint32_t a_step = channels_last ? 32 : k_of_product * row_bytes, b_step = k_of_product * row_bytes;
  constexpr uint32_t of_8_rows = 8 * row_bytes;
  const auto thread = static_cast<int32_t>(threadIdx.x) % group_threads;
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const int32_t warp = thread / 32, lane = thread % 32;
  const int32_t first_row = config.alternate ? 0 : group * rows;
  const device::SharedAddress staged = shared.staged + static_cast<uint32_t>(group * staged_bytes(config));
  auto* const biases = reinterpret_cast<float*>(shared.bias_memory + group * bias_bytes(config));
  const Places places(shared.places + static_cast<uint32_t>(group * places_bytes));
  const device::MatrixDescriptor a_of_stages =
      device::matrix_descriptor(shared.stages + static_cast<uint32_t>(first_row * row_bytes), of_8_rows);
  const device::MatrixDescriptor b_of_stages =
      device::matrix_descriptor(shared.stages + config.rows * row_bytes, of_8_rows, block_bytes);
  const auto grid = static_cast<int32_t>(gridDim.x);
  uint32_t turn = 0;
  // Chunks of the block's tiles before this one, which are in the stages in turn.
  uint32_t chunks_before = config.alternate ? static_cast<uint32_t>(group * p.chunks) : 0;
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x) + (config.alternate ? group * grid : 0); number < p.tiles;
       number += config.alternate ? 2 * grid : grid) {
    const Tile tile = tile_of<Row, channels_last>(p, number);
    // Biases and places before it is this warpgroup's turn, when all its threads have read what was staged before.
    device::named_barrier(1 + group, group_threads);
    if constexpr (!boxes) places.template find<Row, channels_last>(p, tile, first_row, thread);
    // They arrive while the tile is multiplied.
    constexpr int outputs = channels_last ? columns : rows, of_thread = ceil_div(outputs, group_threads);
    Scalar bias[of_thread];
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int32_t at = i * group_threads + thread;
      auto output = static_cast<uint32_t>(tile.output + (channels_last ? 0 : first_row) + at);
      bias[i] = {};
      if (p.bias != nullptr && at < outputs && static_cast<int32_t>(output) < p.outputs) {
        const auto quotient = p.taps.divide(output);
        const auto channel = static_cast<int32_t>(channels_last ? output : quotient) + tile.group * p.out_channels;
        bias[i] = static_cast<const Scalar*>(p.bias)[channel * p.bias_stride];
      }
    }
    float sums[blocks][columns / 2];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int e = 0; e < columns / 2; ++e) sums[m][e] = 0;
      device::wgmma_results(sums[m]);
    }
    if (config.alternate) shared.wait_for_turn(group, turn);
    ++turn;
    device::Ring ring = device::Ring::after(chunks_before, stages);
    int32_t used = stages;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
      device::mbarrier_wait(shared.full(ring.stage), ring.parity);
      device::wgmma_fence();
      const uint32_t at = ring.stage * (stage_bytes(config) / 16);
#pragma unroll
      for (int k = 0; k < block_side / k_of_product; ++k) {
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          const auto a = device::with_start(a_of_stages, device::start_of(a_of_stages) + at +
                                                             static_cast<uint32_t>(m * block_bytes + k * a_step) / 16);
          const auto b = device::with_start(
              b_of_stages, device::start_of(b_of_stages) + at + static_cast<uint32_t>(k * b_step) / 16);
          device::wgmma<device::wgmma_type<Scalar>, columns, a_major, Major::mn>(sums[m], a, b);
        }
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (used != stages) device::mbarrier_arrive_if(shared.empty(used), lane == 0);
      used = ring.stage;
      ring.advance(stages);
    }
    if (config.alternate) device::mbarrier_arrive_if(shared.order(group ^ 1), lane == 0);
    device::wgmma_wait<0>();
    device::mbarrier_arrive_if(shared.empty(used), lane == 0);
    chunks_before += static_cast<uint32_t>(config.alternate ? 2 * p.chunks : p.chunks);
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int32_t at = i * group_threads + thread;
      if (at < outputs) biases[at] = to_float(bias[i]);
    }
    // What the copy engine still reads of the last tile.
    if (boxes && warp == 0) device::bulk_wait_read<0>();
    device::named_barrier(1 + group, group_threads);
    if (!boxes && p.from_registers) [[likely]] {
#pragma unroll
      for (int m = 0; m < blocks; ++m) device::wgmma_results(sums[m]);
      const auto write_width = [&]<int Width>() {
        write_registers<Scalar, Row, channels_last, Width>(p, tile, first_row, places, biases, warp, lane, sums);
      };
      if (channels_last || p.kernel_w == 1) {
        write_width.template operator()<1>();
      } else if (p.kernel_w == 2) {
        if constexpr (!channels_last) write_width.template operator()<2>();
      } else {
        if constexpr (!channels_last) write_width.template operator()<4>();
      }
      continue;
    }
    // 16 columns at a time, of which row_of_columns() is the lane's row in shared memory.
    const auto stage = [&](const auto& row_of_columns) {
#pragma unroll
      for (int m = 0; m < blocks; ++m) device::wgmma_results(sums[m]);
#pragma unroll
      for (int j = 0; j < columns / 8; j += 2) {
        float of_columns[2][2] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (channels_last) {
            const int32_t column = (j + i) * 8 + lane % 4 * 2;
            of_columns[i][0] = biases[column], of_columns[i][1] = biases[column + 1];
          }
        }
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          const int32_t row = m * block_side + warp * 16 + lane / 4;
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float of_row = channels_last ? 0 : biases[row + 8 * half];
              const float* const v = &sums[m][(j + i) * 4 + half * 2];
              words[2 * i + half] = pack(Scalar{}, v[0] + of_row + of_columns[i][0], v[1] + of_row + of_columns[i][1]);
            }
          }
          device::stmatrix_x4(row_of_columns(m, j), words);
        }
      }
    };
    // A lane's row of the matrices of stmatrix, which are 16 rows of 16 columns; and its 8 columns of them.
    const int32_t row_of_lane = warp * 16 + lane % 16, half_of_lane = lane / 16;
    if constexpr (boxes) {
      const device::SharedAddress staged_row = staged + static_cast<uint32_t>(row_of_lane * row_bytes);
      const auto unit = static_cast<uint32_t>((half_of_lane ^ lane % 8) * 16);
      stage([&](int m, int j) {
        return staged_row + static_cast<uint32_t>(m * block_bytes) + j / 8 * staged_block_bytes<Row> +
               (static_cast<uint32_t>(j % 8 * 16) ^ unit);
      });
      device::fence_async_proxy();
      device::named_barrier(1 + group, group_threads);
      if (warp == 0) store_boxes<Row, channels_last>(p, tile, first_row, staged, lane);
    } else {
      const device::SharedAddress staged_row = staged + static_cast<uint32_t>(row_of_lane * pitch + half_of_lane * 16);
      stage([&](int m, int j) { return staged_row + static_cast<uint32_t>(m * block_side * pitch + j * 16); });
      device::named_barrier(1 + group, group_threads);
      write<Row, channels_last>(p, tile, first_row, places, staged);
    }
  }
  if (boxes && warp == 0) device::bulk_wait();
}

template <class Scalar, int Row, bool channels_last, bool boxes>
__global__ void __launch_bounds__(threads, 1) gemm_scatter_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Config config = configs[Row];
  constexpr int32_t staged_at = stages_of(config) * stage_bytes(config), bias_at = staged_at + 2 * staged_bytes(config),
                    places_at = bias_at + 2 * bias_bytes(config), barriers_at = places_at + 2 * places_bytes;
  unsigned char* const memory = device::dynamic_shared_memory();
  const device::SharedAddress start = device::dynamic_shared_address();
  const Shared shared{{start + barriers_at}, start, start + staged_at, start + places_at, memory + bias_at};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // First of all data are asked for, by the warp that makes the barriers: it waits for nobody.
  constexpr int start_barrier = 3;
  if (thread >= consumers) {
    if (thread == consumers) {
      device::prefetch_tensor_map(p.x_map);
      device::prefetch_tensor_map(p.w_map);
      if (boxes) device::prefetch_tensor_map(p.y_map);
      shared.template init<stages_of(config)>((config.alternate ? group_threads : consumers) / 32);
    }
    __syncwarp();
    device::named_barrier_arrive(start_barrier, threads);
    copy_operands<Row, channels_last>(p, shared);
    return;
  }
  device::named_barrier(start_barrier, threads);
  consume<Scalar, Row, channels_last, boxes>(p, shared);
#endif
}

}  // namespace convt::gemm_scatter_sm90
