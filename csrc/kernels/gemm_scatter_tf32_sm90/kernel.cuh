#pragma once

#include "../gemm_scatter/device.cuh"
#include "params.h"

namespace convt::gemm_scatter_tf32_sm90 {

// Where things are in shared memory.
struct Shared : Barriers {
  device::SharedAddress stages, places;
  float* biases;
};

template <int Row>
CONVT_DEVICE Tile tile_of(const Params& p, int32_t number) {
  return Tile::of(p, number, configs[Row].columns, configs[Row].rows / segment_rows);
}

// By one warp: every chunk of every tile of this block.
template <bool channels_last, int Row>
CONVT_DEVICE void copy_operands(const Params& p, const Shared& shared) {
  constexpr Config config = configs[Row];
  constexpr int stages = stages_of(config), blocks = config.columns / block_columns;
  if (!device::elect()) return;
  device::wait_for_previous_kernel();
  device::Ring ring = device::Ring::of_producer();
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x); number < p.tiles; number += static_cast<int32_t>(gridDim.x)) {
    const Tile tile = tile_of<Row>(p, number);
    const Segments<channels_last, config.rows / segment_rows, segment_rows> segments(p, tile);
    const unsigned char* w =
        p.w + (static_cast<int64_t>(tile.group) * p.blocks + tile.output / block_columns) * p.chunks * block_bytes;
#pragma unroll 1
    for (int32_t c = 0; c < p.chunks; ++c, w += block_bytes) {
      device::mbarrier_wait(shared.empty(ring.stage), ring.parity);
      const device::SharedAddress full = shared.full(ring.stage), x = shared.stages + ring.stage * stage_bytes(config);
      device::mbarrier_arrive_expect(full, stage_bytes(config));
      segments.load(p, x, c * chunk, tile.group, full);
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        device::bulk_load(x + weights_at(config) + b * block_bytes,
                          w + static_cast<int64_t>(b) * p.chunks * block_bytes, block_bytes, full);
      }
      ring.advance(stages);
    }
  }
}

// The position of a lane's row in the segment of its warp, which is: of block m, row lane / 4 (half 0) or lane / 4 + 8
// (half 1). A lane has so many neighbouring ones that those of a channel of x are in different banks for the lanes that
// read them at once, and the outputs that lanes write at once are neighbours too.
template <int Neighbours>
CONVT_DEVICE int32_t position_of(int32_t lane, int m, int half) {
  const int32_t g = lane / 4;
  return Neighbours == 4 ? 4 * g + 2 * m + half : Neighbours == 2 ? 16 * m + 2 * g + half : 16 * m + 8 * half + g;
}

// What a lane has of x for a product, K being 8 channels of `from` on, the first of which is a row of the segment that
// begins a period of the swizzle: of each block of rows the channels 2t and 2t + 1, with t = lane % 4.
template <int Neighbours>
struct Fragments {
  uint32_t even, odd;  // where the lane's first position is of its two channels

  CONVT_DEVICE explicit Fragments(int32_t lane) {
    const int32_t first = position_of<Neighbours>(lane, 0, 0), channel = lane % 4 * 2;
    const auto at = [&](int32_t c) {
      return static_cast<uint32_t>(c * row_bytes + ((first / 4 ^ c) * 16 + first % 4 * 4));
    };
    even = at(channel), odd = at(channel + 1);
  }

  CONVT_DEVICE void load(device::SharedAddress from, uint32_t (&a)[group_blocks][4]) const {
    const device::SharedAddress e = from + even, o = from + odd;
    if constexpr (Neighbours == 4) {
      const uint4 u = device::load_shared_16(e), v = device::load_shared_16(o);
      a[0][0] = u.x, a[0][1] = u.y, a[1][0] = u.z, a[1][1] = u.w;
      a[0][2] = v.x, a[0][3] = v.y, a[1][2] = v.z, a[1][3] = v.w;
    } else {
#pragma unroll
      for (int m = 0; m < group_blocks; ++m) {
        // 16 positions are 64 bytes further, and 8 are 32, before the swizzle.
        const auto there = static_cast<uint32_t>(64 * m);
        if constexpr (Neighbours == 2) {
          const uint2 u = device::load_shared_8(e ^ there), v = device::load_shared_8(o ^ there);
          a[m][0] = u.x, a[m][1] = u.y, a[m][2] = v.x, a[m][3] = v.y;
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            a[m][half] = device::load_shared_4(e ^ (there + static_cast<uint32_t>(32 * half)));
            a[m][half + 2] = device::load_shared_4(o ^ (there + static_cast<uint32_t>(32 * half)));
          }
        }
      }
    }
  }
};

// Where the outputs of a tile are in y, and their biases: of each unit, which in channels_last has several. Of one that
// is not there the place is negative.
struct Units {
  device::SharedAddress places;
  float* biases;

  // By the threads of a warpgroup, each of which has at most one of both.
  template <bool channels_last, int Unit, int Row>
  CONVT_DEVICE void find(const Params& p, const Tile& tile, int32_t thread) const {
    constexpr int32_t columns = configs[Row].columns;
    static_assert(columns <= group_threads);
    const auto bias_of = [&](int64_t channel) { return __ldg(p.bias + channel * p.bias_stride); };
    if constexpr (channels_last) {
      if (thread < columns) {
        auto output = static_cast<uint32_t>(tile.output + thread);
        const bool there = static_cast<int32_t>(output) < p.outputs && p.bias != nullptr;
        p.taps.divide(output);
        biases[thread] = there ? bias_of(output) : 0;
      }
    }
    if (thread * Unit >= columns) return;
    auto output = static_cast<uint32_t>(tile.output + thread * Unit);
    int64_t place = -1;
    float bias = 0;
    if (static_cast<int32_t>(output) < p.outputs) {
      const int64_t channel = channels_last ? 0
                                            : static_cast<int64_t>(p.taps.divide(output)) +
                                                  static_cast<int64_t>(tile.group) * p.out_channels;
      const int64_t kernel_row = p.by_rows.divide(output);
      place = channel * p.y_channel_stride + kernel_row * p.y_row_stride + output;
      if (!channels_last && p.bias != nullptr) bias = bias_of(channel);
    }
    put_place(places, thread, place);
    if constexpr (!channels_last) biases[thread] = bias;
  }
};

// Writes four outputs of y that follow each other, `Vector` at a time: at to[0] and further, or each vector where its
// position is. A position that is not there has no pointer.
template <int Unit, int Vector>
CONVT_DEVICE void write_four(float* const (&to)[4], int32_t first, int64_t place, const float (&v)[4]) {
#pragma unroll
  for (int e = 0; e < 4; e += Vector) {
    float* const position = to[first + e / Unit];
    if (position == nullptr) continue;
    float* const there = position + place + e % Unit;
    const auto bits = [&](int i) { return __float_as_uint(v[e + i]); };
    if constexpr (Vector == 4) {
      device::store_global_16(there, bits(0), bits(1), bits(2), bits(3));
    } else if constexpr (Vector == 2) {
      device::store_global_8(there, bits(0), bits(1));
    } else {
      *there = v[e];
    }
  }
}

// What a lane has of a tile: sums[m] are as wgmma leaves them, of 8 columns two of each half.
template <bool channels_last, int Unit, int Row, int Vector>
CONVT_DEVICE void write(const Units& units, int32_t lane, float* const (&to)[4],
                        const float (&sums)[group_blocks][configs[Row].columns / 2]) {
  constexpr int columns = configs[Row].columns;
  const int32_t t = lane % 4;
  if constexpr (Unit == 1) {
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t unit = 8 * j + 2 * t + e;
        const int64_t place = get_place(units.places, unit);
        if (place < 0) continue;
        const float bias = units.biases[unit];
        const int at = 4 * j + e;
        const float v[] = {sums[0][at] + bias, sums[0][at + 2] + bias, sums[1][at] + bias, sums[1][at + 2] + bias};
        write_four<Unit, Vector>(to, 0, place, v);
      }
    }
  } else if constexpr (Unit == 2) {
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
      const int64_t place = get_place(units.places, 4 * j + t);
      if (place < 0) continue;
      const float bias = units.biases[4 * j + t];
#pragma unroll
      for (int m = 0; m < group_blocks; ++m) {
        const float* const s = &sums[m][4 * j];
        const float v[] = {s[0] + bias, s[1] + bias, s[2] + bias, s[3] + bias};
        write_four<Unit, Vector>(to, 2 * m, place, v);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < columns / 16; ++j) {
      const int64_t place = get_place(units.places, 4 * j + t);
      if (place < 0) continue;
      float bias[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) bias[e] = units.biases[channels_last ? 16 * j + 4 * t + e : 4 * j + t];
#pragma unroll
      for (int m = 0; m < group_blocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const s = &sums[m][8 * j + 2 * half];
          const float v[] = {s[0] + bias[0], s[1] + bias[1], s[4] + bias[2], s[5] + bias[3]};
          write_four<Unit, Vector>(to, 2 * m + half, place, v);
        }
      }
    }
  }
}

// Who gives a stage back: unless y is channels_last, every thread that has read x from it. If one lane arrived for its
// warp, only its own reads would be ordered before the next copy. wgmma's are over when a warp has waited for it: one
// lane is enough for those.
template <bool channels_last, int Row>
constexpr uint32_t readers = (configs[Row].alternate ? group_threads : consumers) / (channels_last ? 32 : 1);

template <bool channels_last>
CONVT_DEVICE void give_back(device::SharedAddress empty, int32_t lane) {
  if constexpr (channels_last) {
    device::mbarrier_arrive_if(empty, lane == 0);
  } else {
    device::mbarrier_arrive(empty);
  }
}

// By the consumers: the products of each tile, or of every second one.
template <bool channels_last, int Unit, int Neighbours, int Row>
CONVT_DEVICE void consume(const Params& p, const Shared& shared) {
  constexpr Config config = configs[Row];
  constexpr int stages = stages_of(config), columns = config.columns;
  constexpr int halves = 2, products = chunk / k_of_product / halves;  // of a chunk, and of a half of it
  const auto thread = static_cast<int32_t>(threadIdx.x) % group_threads;
  const auto group = static_cast<int32_t>(device::uniform(threadIdx.x / group_threads));
  const int32_t warp = thread / 32, lane = thread % 32;
  const int32_t first_segment = config.alternate ? 0 : group * (group_rows / segment_rows);
  const Fragments<Neighbours> fragments(lane);
  const device::SharedAddress x_of_stages =
      shared.stages + static_cast<uint32_t>((first_segment + (channels_last ? 0 : warp)) * segment_bytes);
  const device::MatrixDescriptor w_of_stages =
      device::matrix_descriptor(shared.stages + weights_at(config), 8 * row_bytes);
  const Units units{shared.places + static_cast<uint32_t>(group * places_bytes(config)),
                    shared.biases + group * columns};
  const auto grid = static_cast<int32_t>(gridDim.x);
  uint32_t turn = 0;
  // Chunks of the block's tiles before this one, which are in the stages in turn.
  uint32_t chunks_before = config.alternate ? static_cast<uint32_t>(group * p.chunks) : 0;
#pragma unroll 1
  for (auto number = static_cast<int32_t>(blockIdx.x) + (config.alternate ? group * grid : 0); number < p.tiles;
       number += config.alternate ? 2 * grid : grid) {
    const Tile tile = tile_of<Row>(p, number);
    // Places before it is this warpgroup's turn, when all its threads have read those of its last tile.
    device::named_barrier(1 + group, group_threads);
    units.template find<channels_last, Unit, Row>(p, tile, thread);
    float sums[group_blocks][columns / 2];
#pragma unroll
    for (int m = 0; m < group_blocks; ++m) {
#pragma unroll
      for (int e = 0; e < columns / 2; ++e) sums[m][e] = 0;
      device::wgmma_results(sums[m]);
    }
    if (config.alternate) shared.wait_for_turn(group, turn);
    ++turn;
    device::Ring ring = device::Ring::after(chunks_before, stages);
    int32_t used = stages;
    // Products read registers until they are done: those of one half of a chunk do while the others are loaded.
    uint32_t a[halves][products][group_blocks][4];
#pragma unroll 1
    for (int32_t c = 0; c < p.chunks; ++c) {
      device::mbarrier_wait(shared.full(ring.stage), ring.parity);
      const device::SharedAddress x = x_of_stages + ring.stage * stage_bytes(config);
      const device::SharedAddress w = device::start_of(w_of_stages) + ring.stage * (stage_bytes(config) / 16);
#pragma unroll
      for (int half = 0; half < halves; ++half) {
#pragma unroll
        for (int k = 0; k < products && !channels_last; ++k) {
          fragments.load(x + static_cast<uint32_t>((half * products + k) * k_of_product * row_bytes), a[half][k]);
        }
        device::wgmma_fence();
#pragma unroll
        for (int k = 0; k < products; ++k) {
          const auto b = device::with_start(w_of_stages, w + static_cast<uint32_t>((half * products + k) * 2));
#pragma unroll
          for (int m = 0; m < group_blocks; ++m) {
            if constexpr (channels_last) {
              const device::SharedAddress rows =
                  x + static_cast<uint32_t>(m * 64 * row_bytes + (half * products + k) * 32);
              device::wgmma<device::WgmmaType::tf32, columns>(sums[m], device::matrix_descriptor(rows, 8 * row_bytes),
                                                              b);
            } else {
              device::wgmma_registers<columns>(sums[m], a[half][k][m], b);
            }
          }
        }
        device::wgmma_commit();
        device::wgmma_wait<1>();
        if (half == 0 && used != stages) give_back<channels_last>(shared.empty(used), lane);
      }
      used = ring.stage;
      ring.advance(stages);
    }
    if (config.alternate) device::mbarrier_arrive_if(shared.order(group ^ 1), lane == 0);
    float* to[4];
    {
      uint32_t at = 0;
      int32_t row = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int m = i / 2, half = i % 2;
        int32_t in_segment = position_of<Neighbours>(lane, m, half);
        if constexpr (channels_last) in_segment = warp % 2 * 16 + half * 8 + lane / 4;
        if (channels_last ? half == 0 : i == 0) {
          // In channels_last rows of a warp are of a segment for each block.
          at = static_cast<uint32_t>(tile.segment + first_segment + (channels_last ? 2 * m + warp / 2 : warp));
          row = static_cast<int32_t>(p.segments.divide(at));
        }
        auto column = at * segment_rows + static_cast<uint32_t>(in_segment);
        to[i] = nullptr;
        if (row >= p.rows || static_cast<int32_t>(column) >= p.positions) continue;
        const int64_t image = row + static_cast<int64_t>(p.image.divide(column)), image_row = p.width.divide(column);
        to[i] = p.y + image * p.y_batch_stride + image_row * p.kernel_h * p.y_row_stride +
                static_cast<int64_t>(column) * p.row_outputs;
      }
    }
    device::wgmma_wait<0>();
    give_back<channels_last>(shared.empty(used), lane);
#pragma unroll
    for (int m = 0; m < group_blocks; ++m) device::wgmma_results(sums[m]);
    device::named_barrier(1 + group, group_threads);
    // Of neighbouring positions all are written at once, if they are several.
    constexpr int widest = Unit * Neighbours;
    if (widest == 4 && (Neighbours > 1 || p.vector == 4)) {
      if constexpr (widest == 4) write<channels_last, Unit, Row, 4>(units, lane, to, sums);
    } else if (Neighbours == 1 && Unit >= 2 && p.vector == 2) {
      if constexpr (Neighbours == 1 && Unit >= 2) write<channels_last, Unit, Row, 2>(units, lane, to, sums);
    } else {
      if constexpr (Neighbours == 1) write<channels_last, Unit, Row, 1>(units, lane, to, sums);
    }
    chunks_before += static_cast<uint32_t>(config.alternate ? 2 * p.chunks : p.chunks);
  }
}

template <bool channels_last, int Unit, int Neighbours, int Row>
__global__ void __launch_bounds__(threads, 1) gemm_scatter_tf32_sm90_kernel(const __grid_constant__ Params p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Config config = configs[Row];
  constexpr int32_t places_at = stages_of(config) * stage_bytes(config),
                    biases_at = places_at + 2 * places_bytes(config), barriers_at = biases_at + 2 * bias_bytes(config);
  const device::SharedAddress start = device::dynamic_shared_address();
  const Shared shared{{start + barriers_at},
                      start,
                      start + places_at,
                      reinterpret_cast<float*>(device::dynamic_shared_memory() + biases_at)};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == consumers) {
    device::prefetch_tensor_map(p.x_map);
    shared.template init<stages_of(config)>(readers<channels_last, Row>);
  }
  __syncthreads();
  if (thread < consumers) {
    device::more_registers<consumer_registers>();
    consume<channels_last, Unit, Neighbours, Row>(p, shared);
  } else {
    device::fewer_registers<copier_registers>();
    if (thread < consumers + 32) copy_operands<channels_last, Row>(p, shared);
  }
#endif
}

}  // namespace convt::gemm_scatter_tf32_sm90
