// The consumers: two warpgroups multiply, and write their sums.
#pragma once

#include "producer.cuh"

namespace convt::implicit_gemm_sm90 {

template <Mode mode>
constexpr device::WgmmaType wgmma_type = mode == Mode::tf32      ? device::WgmmaType::tf32
                                         : mode == Mode::float16 ? device::WgmmaType::float16
                                                                 : device::WgmmaType::bfloat16;

// Where a warp's part of a tile is: its pieces' positions, and the output channels of its 16 rows.
struct WarpPlace {
  int32_t group_m, group_n, warp, lane;  // warp of the warpgroup
};

struct PiecePlace {
  int32_t image, row, column;  // of its first position, in the tile
};

CONVT_DEVICE PiecePlace piece_place(const Params& p, int32_t piece) {
  auto column = static_cast<uint32_t>(piece);
  uint32_t row = p.by_pieces_columns.divide(column);
  const uint32_t image = p.by_pieces_rows.divide(row);
  return {static_cast<int32_t>(image), static_cast<int32_t>(row) * p.piece_rows,
          static_cast<int32_t>(column) * p.piece_columns};
}

// Writes what a warp has staged of a slab: 16 rows of each of its blocks at `count` positions, from position `first` of
// a piece on.
template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_slab(const Params& p, const Place& at, const WarpPlace& w, const PiecePlace& piece,
                             int32_t first, int32_t count, const float* staged, bool edge) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  const DeviceSet& set = p.sets[at.set];
  const Scalar* bias = static_cast<const Scalar*>(p.bias);
  const int32_t row_rank = p.row_rank[set.row_phase];
  const int32_t first_block = w.group_m * config.m_blocks;
  // Positions of a run lie in one row.
  const bool squares = p.piece_rows > 1;
  const int32_t run_columns = squares ? 8 : count;
  const int32_t runs = squares ? count / 8 : 1;
  const int32_t elements = run_columns * p.column_phases;  // outputs of a run
#pragma unroll 1
  for (int32_t cb = 0; cb < p.channel_blocks; ++cb) {
    // A set has as many phases as a warpgroup has blocks, at most: all phases of these channels are in one warpgroup.
    if (cb < first_block || cb >= first_block + config.m_blocks) continue;
    const int32_t first_channel = (at.channel_tile * p.channel_blocks + cb) * 64 + w.warp * 16;
    const int32_t channels = smaller<int32_t>(16, p.out_channels - first_channel);
    if (channels <= 0) continue;
    const int32_t vectors = p.channels_innermost ? 16 / Width : elements / Width;
    const int32_t items = p.channels_innermost ? count * p.column_phases * vectors : channels * runs * vectors;
    for (int32_t i = w.lane; i < items; i += 32) {
      int32_t channel, run, element;
      const int32_t outer = i / vectors, vector = i - outer * vectors;
      if (p.channels_innermost) {
        channel = vector * Width;
        run = outer / elements, element = outer - run * elements;
        if (channel >= channels) continue;
      } else {
        element = vector * Width;
        channel = outer / runs, run = outer - channel * runs;
      }
      const int32_t position = first + run * run_columns;  // of the run's first, in the piece
      const int32_t row = at.row + piece.row + (squares ? position / 8 : 0);
      const int32_t out_row = row * p.h.stride + set.row_phase;
      const int32_t image = at.image + piece.image;
      const int32_t first_column = at.column + piece.column + (squares ? 0 : position);
      if (out_row >= p.h.out || image >= p.batch) continue;
      // The output column of an element and its sum among the staged: -1 if no tap reaches it, -2 if there is no such
      // output.
      const auto place = [&](int32_t e, int32_t& column) {
        auto phase = static_cast<uint32_t>(e);
        const auto v = static_cast<int32_t>(p.by_column_phases.divide(phase));
        const int32_t column_phase = set.column_phase + static_cast<int32_t>(phase);
        column = (first_column + v) * p.v.stride + column_phase;
        if (column_phase >= p.v.stride || column >= p.v.out) return -2;
        const int32_t rank = p.column_rank[column_phase];
        if (row_rank < 0 || rank < 0) return -1;
        const int32_t block = rank * p.channel_blocks + cb - first_block;
        return (block * 16 + channel) * slab_pitch + run * run_columns + v;
      };
      int32_t out_column;
      const int32_t from = place(element, out_column);
      if (from == -2) continue;
      float values[Width];
      values[0] = from >= 0 ? staged[from] : 0;
      if (p.channels_innermost) {
#pragma unroll
        for (int e = 1; e < Width; ++e) values[e] = from >= 0 ? staged[from + e * slab_pitch] : 0;
      } else if (Width % 4 == 0 && p.column_phases == 1 && from >= 0) {
#pragma unroll
        for (int e = 0; e < Width / 4 * 4; e += 4) {
          const float4 v = *reinterpret_cast<const float4*>(staged + from + e);
          values[e] = v.x, values[e + 1] = v.y, values[e + 2] = v.z, values[e + 3] = v.w;
        }
      } else {
#pragma unroll
        for (int e = 1; e < Width; ++e) {
          int32_t ignored;
          const int32_t next = place(element + e, ignored);
          values[e] = next >= 0 ? staged[next] : 0;
        }
      }
      const int64_t group_channel = static_cast<int64_t>(at.group) * p.out_channels + first_channel + channel;
      float b = 0;
      if (bias != nullptr) load<1>(bias + group_channel * p.bias_stride, &b);
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        if (edge && values[e] != values[e]) {
          values[e] = exact_output<mode>(p, at.group, image, first_channel + channel + (p.channels_innermost ? e : 0),
                                         out_row, out_column + (p.channels_innermost ? 0 : e));
        }
        if (p.channels_innermost && e > 0 && bias != nullptr) load<1>(bias + (group_channel + e) * p.bias_stride, &b);
        values[e] += b;
      }
      Scalar* y = static_cast<Scalar*>(p.y) + image * p.y_batch_stride + group_channel * p.y_channel_stride +
                  static_cast<int64_t>(out_row) * p.y_row_stride + static_cast<int64_t>(out_column) * p.y_column_stride;
      store<Width>(y, values);
    }
  }
}

template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_slab_at_width(const Params& p, const Place& at, const WarpPlace& w, const PiecePlace& piece,
                                      int32_t first, int32_t count, const float* staged, bool edge) {
  if constexpr (Width > 1) {
    if (p.store_width < Width) {
      return write_slab_at_width<mode, Row, Width / 2>(p, at, w, piece, first, count, staged, edge);
    }
  }
  write_slab<mode, Row, Width>(p, at, w, piece, first, count, staged, edge);
}

template <Mode mode, int Row>
CONVT_DEVICE void consume(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int width = config.width, pieces = config.pieces, blocks = config.m_blocks;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // The same for all threads of a warp, and the compiler has to see that: products in a branch that might diverge are
  // done one after another.
  const int32_t group = __shfl_sync(0xffffffffu, thread / 128, 0);
  const WarpPlace w{group / config.groups_n, group % config.groups_n, thread / 32 % 4, thread % 32};
  const auto* const edges = reinterpret_cast<const uint32_t*>(shared + 16 * (patch_stages + weight_stages));
  const device::SharedAddress patches = device::shared_address(shared + p.patches_at);
  const device::SharedAddress weights = device::shared_address(shared + p.weights_at);
  auto* const staged = reinterpret_cast<float*>(shared + p.sums_at) + thread / 32 * (blocks * 16 * slab_pitch);
  auto* const last_split = reinterpret_cast<uint32_t*>(shared + 16 * (patch_stages + weight_stages)) + patch_stages + 2;
  Ring patch, ring;
  // Where this warpgroup's pieces begin in a patch, and how far it is from 8 positions to the next 8.
  device::SharedAddress piece_bytes[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const PiecePlace at = piece_place(p, w.group_n * pieces + i);
    piece_bytes[i] = static_cast<uint32_t>(16 * ((at.image * p.patch_rows + at.row) * p.patch_columns + at.column));
  }
  const uint32_t stride_bytes = p.piece_rows > 1 ? static_cast<uint32_t>(16 * p.patch_columns) : 128;
  const auto plane_bytes = static_cast<uint32_t>(p.patch_plane);

  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    float sums[blocks][pieces][width / 2];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < width / 2; ++e) sums[m][i][e] = 0;
      }
    }
    bool edge = false;
    // Stages whose products have been issued but may not have been read.
    int32_t used_weights = -1, used_patch = -1;
    const auto release = [&] {
      if (w.lane == 0) {
        if (used_weights >= 0) device::mbarrier_arrive(barriers.weights_empty(used_weights));
        if (used_patch >= 0) device::mbarrier_arrive(barriers.patch_empty(used_patch));
      }
      used_weights = used_patch = -1;
    };
    // A step is read while the one before it is issued.
    static_assert(config.rows() <= 2, "fragments are counted without a loop");
    const DeviceStep* const first_step = p.steps + set.first_step;
    DeviceStep next = chunks.first < chunks.last ? first_step[0] : DeviceStep{};
    int32_t step = 0, groups = 0, run = 0;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      if (groups != groups_of(p, chunk)) {
        groups = groups_of(p, chunk);
        run = steps_of_stage<Row>(set, groups);
      }
      device::mbarrier_wait(barriers.patch_full(patch.stage), patch.parity);
      if (chunk == chunks.first) edge = edges[patch.stage] != 0;
      device::SharedAddress from = patches + static_cast<uint32_t>(patch.stage * p.patch_bytes);
      for (int32_t left = set.steps * groups; left > 0; left -= run) {
        device::mbarrier_wait(barriers.weights_full(ring.stage), ring.parity);
        device::SharedAddress fragment = weights + static_cast<uint32_t>(ring.stage * weight_stage_bytes);
#pragma unroll 1
        for (int32_t s = smaller(left, run); s > 0; --s) {
          const DeviceStep now = next;
          if (++step == set.steps) step = 0;
          next = first_step[step];
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            const int32_t block = w.group_m * blocks + m;
            if ((now.mask >> block & 1) == 0) continue;
            device::wgmma_fence();
            const uint32_t before = now.mask & static_cast<uint32_t>(block);
            const auto a = device::matrix_descriptor(fragment + before * fragment_bytes, 1024, 128);
#pragma unroll
            for (int i = 0; i < pieces; ++i) {
              const auto b = device::matrix_descriptor(from + now.offset + piece_bytes[i], plane_bytes, stride_bytes);
              device::wgmma<wgmma_type<mode>, width>(sums[m][i], a, b);
            }
          }
          fragment += (now.mask - (now.mask >> 1)) * fragment_bytes;
          if (step == 0) from += 2 * plane_bytes;
        }
        device::wgmma_commit();
        device::wgmma_wait<1>();
        release();
        used_weights = ring.stage;
        ring.advance(weight_stages);
      }
      used_patch = patch.stage;
      patch.advance(p.stages);
    }
    device::wgmma_wait<0>();
    release();

    if (p.splits > 1 && set.steps == 0) {
      // There is nothing to add up, and nobody has waited for the counters' zeros.
      if (at.split > 0) continue;
    } else if (p.splits > 1) {
      // Every split leaves its sums; the one that is last adds them all, in the order of the splits.
      constexpr int32_t elements = 64 * config.rows() * config.columns();
      float* const partials = p.partials + static_cast<int64_t>(at.reduction) * p.splits * elements + thread;
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
          for (int e = 0; e < width / 2; ++e) {
            partials[static_cast<int64_t>(at.split) * elements + ((m * pieces + i) * (width / 2) + e) * consumers] =
                sums[m][i][e];
          }
        }
      }
      __threadfence();
      device::named_barrier(2, consumers);
      if (thread == 0) {
        *last_split = atomicAdd(p.counters + at.reduction, 1u) + 1 == static_cast<uint32_t>(p.splits);
      }
      device::named_barrier(2, consumers);
      const bool last = *last_split != 0;
      device::named_barrier(2, consumers);
      if (!last) continue;
      __threadfence();
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
          for (int e = 0; e < width / 2; ++e) sums[m][i][e] = 0;
        }
      }
      for (int32_t k = 0; k < p.splits; ++k) {
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e) {
              sums[m][i][e] += __ldcg(partials + static_cast<int64_t>(k) * elements +
                                      ((m * pieces + i) * (width / 2) + e) * consumers);
            }
          }
        }
      }
    }

    // A slab at a time through shared memory of the warp's own.
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      const PiecePlace piece = piece_place(p, w.group_n * pieces + i);
#pragma unroll
      for (int first = 0; first < width; first += slab) {
        __syncwarp();
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int j = 0; j < slab / 8; ++j) {
            if (first / 8 + j >= width / 8) break;
            const float* v = &sums[m][i][(first / 8 + j) * 4];
            float* to = staged + (m * 16 + w.lane / 4) * slab_pitch + j * 8 + w.lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
            *reinterpret_cast<float2*>(to + 8 * slab_pitch) = make_float2(v[2], v[3]);
          }
        }
        __syncwarp();
        write_slab_at_width<mode, Row, static_cast<int>(16 / sizeof(Scalar))>(
            p, at, w, piece, first, smaller(slab, width - first), staged, edge);
      }
    }
  }
}

}  // namespace convt::implicit_gemm_sm90
