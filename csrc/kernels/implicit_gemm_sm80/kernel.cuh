#pragma once

#include "../exchange.h"
#include "../implicit_gemm/epilogue.cuh"
#include "fill.cuh"

namespace convt::implicit_gemm_sm80 {

// Fragments of A: four words of a lane, as the instruction takes them.
template <Mode mode>
struct Fragments {
  static constexpr int rows = 16, words = 128, group_words = 8, parts = parts_of(mode), warps = 1;
  CONVT_HOST_DEVICE static int32_t row(int32_t, int32_t lane, int32_t e) { return lane / 4 + e % 2 * 8; }
  CONVT_HOST_DEVICE static int32_t k(int32_t, int32_t lane, int32_t e) { return lane % 4 * 2 + e / 2; }
  static int32_t pitch(int32_t words) { return (words + 11) / 16 * 16 + 4; }
};

// The bias of channel `c` of the tile's.
template <Mode mode>
CONVT_DEVICE float bias_of(const Params& p, const Place& at, int32_t c) {
  using Scalar = typename Traits<mode>::Scalar;
  const int32_t channel = at.channel_tile * 16 * p.channel_blocks + c;
  float b = 0;
  if (p.bias != nullptr && channel < p.out_channels) {
    load<1>(bias_at<Scalar>(p, at.group * p.out_channels + channel), &b);
  }
  return b;
}

// The tile's sums, the bias added, to y in the order of memory.
template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_tile(const Params& p, const Place& at, const float* sums) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  const DeviceSet& set = p.sets[at.set];
  const int32_t padded = 16 * p.channel_blocks;
  const int32_t first_channel = at.channel_tile * padded;
  const int32_t channels = smaller<int32_t>(padded, p.out_channels - first_channel);
  const int64_t group_channel = static_cast<int64_t>(at.group) * p.out_channels + first_channel;
  const int32_t rows = p.tile_images * p.tile_rows * p.row_phases;
  const auto vectors = static_cast<int32_t>(p.by_vectors.divisor);  // of a row, or of a pixel
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (!p.channels_innermost) {
    constexpr int32_t warps = config.threads() / 32;
    const int32_t phase_words = padded * sums_pitch(config, false) + p.skew, all = rows * vectors;
    Sums of_channels{sums, sums_pitch(config, false), phase_words, config.columns(), p.tile_columns % 4 == 0};
    const auto locate = [&](int32_t i, Outputs& o) {
      auto vector = static_cast<uint32_t>(i);
      auto row_phase = p.by_vectors.divide(vector);
      const uint32_t position_row = p.by_row_phases.divide(row_phase);
      uint32_t tile_row = position_row, phase = vector * Width;
      o.image = at.image + static_cast<int32_t>(p.by_tile_rows.divide(tile_row));
      const auto v = static_cast<int32_t>(p.by_column_phases.divide(phase));
      o.phase = static_cast<int32_t>(phase);
      const int32_t out_phase = set.row_phase + static_cast<int32_t>(row_phase);
      o.row = (at.row + static_cast<int32_t>(tile_row)) * p.h.stride + out_phase;
      o.column = (at.column + v) * p.v.stride + set.column_phase + o.phase;
      o.position = static_cast<int32_t>(position_row) * p.tile_columns + v;
      if (out_phase >= p.h.stride || o.row >= p.h.out || o.image >= p.batch) return false;
      if (set.column_phase + o.phase >= p.v.stride || v >= p.tile_columns || o.column >= p.v.out) return false;
      o.words = p.row_rank[out_phase] * set.columns * phase_words;
      return true;
    };
    // Warps share the vectors of a channel, or else the channels.
    int32_t first = thread / 32 * 32, step = config.threads(), share = channels, first_of_warp = 0;
    if (all < config.threads()) {
      share = ceil_div(channels, warps), first_of_warp = thread / 32 * share;
      first = 0, step = 32;
    }
    of_channels.words += first_of_warp * of_channels.pitch;
    write_rows<mode, Width, 16>(p, set, of_channels, group_channel + first_of_warp,
                                smaller(share, channels - first_of_warp), first, step, all, thread % 32, locate);
    return;
  }
  const int32_t all = rows * p.tile_columns * p.column_phases * vectors;
  for (int32_t i = thread; i < all; i += config.threads()) {
    auto vector = static_cast<uint32_t>(i);
    uint32_t phase = p.by_vectors.divide(vector);
    uint32_t v = p.by_column_phases.divide(phase);
    uint32_t row_phase = p.by_tile_columns.divide(v);
    const uint32_t position_row = p.by_row_phases.divide(row_phase);
    uint32_t tile_row = position_row;
    const int32_t image = at.image + static_cast<int32_t>(p.by_tile_rows.divide(tile_row));
    const int32_t channel = static_cast<int32_t>(vector) * Width;
    const int32_t out_phase = set.row_phase + static_cast<int32_t>(row_phase);
    const int32_t out_column_phase = set.column_phase + static_cast<int32_t>(phase);
    const int32_t row = (at.row + static_cast<int32_t>(tile_row)) * p.h.stride + out_phase;
    const int32_t column = (at.column + static_cast<int32_t>(v)) * p.v.stride + out_column_phase;
    if (out_phase >= p.h.stride || row >= p.h.out || image >= p.batch) continue;
    if (out_column_phase >= p.v.stride || column >= p.v.out || channel >= channels) continue;
    const int32_t row_rank = p.row_rank[out_phase], rank = p.column_rank[out_column_phase];
    float values[Width];
    if (row_rank >= 0 && rank >= 0) {
      read_words<Width, true>(sums +
                                  (static_cast<int32_t>(position_row) * p.tile_columns + static_cast<int32_t>(v)) *
                                      sums_pitch(config, true) +
                                  (row_rank * set.columns + rank) * padded + channel,
                              values);
    } else {
#pragma unroll
      for (int e = 0; e < Width; ++e) values[e] = bias_of<mode>(p, at, channel + e);
    }
    store<Width>(static_cast<Scalar*>(p.y) + image * p.y_batch_stride + (group_channel + channel) * p.y_channel_stride +
                     static_cast<int64_t>(row) * p.y_row_stride + static_cast<int64_t>(column) * p.y_column_stride,
                 values);
  }
}

// The tile's sums, the bias added, from registers to NCHW, where a thread has whole vectors of a row: two positions
// side by side of one phase of the columns or of both of them, whose blocks of rows are `Gap` apart in the warp. Of
// 16-bit types of one phase four threads exchange theirs, of as many blocks of columns.
template <Mode mode, int Row, int Phases, int Gap>
CONVT_DEVICE void write_registers(const Params& p, const Place& at, int32_t warp_m, int32_t warp_n, int32_t lane,
                                  const float (&sums)[configs[Row].m_blocks][configs[Row].n_blocks][4]) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int blocks = config.m_blocks, columns = config.n_blocks;
  constexpr bool exchanges = sizeof(Scalar) == 2 && Phases == 1;
  constexpr int together = exchanges ? 4 : 1;  // blocks of columns
  const DeviceSet& set = p.sets[at.set];
  int64_t of_rows[blocks][2];
  int32_t phase_row[blocks];
  float bias[blocks][2];
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
    const int32_t block = m * config.warps_m + warp_m, phase = p.phase_of_block >> 4 * block & 0xf;
    phase_row[m] = set.row_phase + phase / Phases;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t c = 16 * (block - p.channel_blocks * phase) + lane / 4 + 8 * half,
                    channel = at.channel_tile * 16 * p.channel_blocks + c;
      of_rows[m][half] = -1;
      if (channel < p.out_channels && phase / Phases < p.row_phases && phase_row[m] < p.h.stride) {
        of_rows[m][half] = (static_cast<int64_t>(at.group) * p.out_channels + channel) * p.y_channel_stride +
                           static_cast<int64_t>(phase_row[m]) * p.y_row_stride;
      }
      bias[m][half] = bias_of<mode>(p, at, c);
    }
  }
#pragma unroll
  for (int n = 0; n < columns; n += together) {
    const int32_t position = (warp_n * columns + n) * 8;
    auto v = static_cast<uint32_t>(position);
    uint32_t tile_row = p.by_tile_columns.divide(v);
    const int32_t image = at.image + static_cast<int32_t>(p.by_tile_rows.divide(tile_row));
    const int32_t row = (at.row + static_cast<int32_t>(tile_row)) * p.h.stride;
    const int32_t column = (at.column + static_cast<int32_t>(v) + lane % 4 * (exchanges ? 8 : 2)) * Phases;
    const bool there = position < p.positions && image < p.batch && column < p.v.out;
    Scalar* const to =
        static_cast<Scalar*>(p.y) + image * p.y_batch_stride + static_cast<int64_t>(row) * p.y_row_stride + column;
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      if (Phases == 2 && m / Gap % 2 != 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool wanted = there && of_rows[m][half] >= 0 && row + phase_row[m] < p.h.out;
        Scalar* const out = to + of_rows[m][half];
        if constexpr (exchanges) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            words[i] =
                pack(Scalar{}, sums[m][n + i][2 * half] + bias[m][half], sums[m][n + i][2 * half + 1] + bias[m][half]);
          }
          device::exchange<1, 2>(words, lane);
          if (wanted) device::store_global_16(out, words[0], words[1], words[2], words[3]);
        } else {
          float values[2 * Phases];
#pragma unroll
          for (int e = 0; e < 2 * Phases; ++e) {
            values[e] = sums[m + e % Phases * Gap][n][2 * half + e / Phases] + bias[m][half];
          }
          if (wanted) store<2 * Phases>(out, values);
        }
      }
    }
  }
}

// Computes those outputs of the tile again that are NaN, as all its threads have written them.
template <Mode mode, int Row>
CONVT_DEVICE void correct_edges(const Params& p, const Place& at) {
  constexpr Config config = configs[Row];
  const DeviceSet& set = p.sets[at.set];
  const int32_t padded = 16 * p.channel_blocks;
  if (set.columns == 0) return;
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x); i < 16 * config.rows() * p.positions; i += config.threads()) {
    const int32_t m = i / p.positions, n = i - m * p.positions, phase = m / padded;
    const int32_t channel = at.channel_tile * padded + m - phase * padded;
    const int32_t row_rank = phase / set.columns, rank = phase - row_rank * set.columns;
    int32_t row_phase = set.row_phase;
    const int32_t end = smaller(set.row_phase + p.row_phases, p.h.stride);
    while (row_phase < end && p.row_rank[row_phase] != row_rank) ++row_phase;
    if (row_phase == end || channel >= p.out_channels) continue;
    auto v = static_cast<uint32_t>(n);
    uint32_t tile_row = p.by_tile_columns.divide(v);
    const int32_t image = at.image + static_cast<int32_t>(p.by_tile_rows.divide(tile_row));
    const int32_t row = (at.row + static_cast<int32_t>(tile_row)) * p.h.stride + row_phase;
    const int32_t column = (at.column + static_cast<int32_t>(v)) * p.v.stride + column_phase_of(p, set, rank);
    if (row >= p.h.out || column >= p.v.out || image >= p.batch) continue;
    correct_output<mode>(p, at.group, image, channel, row, column);
  }
}

template <Mode mode, int Row, int Width>
CONVT_DEVICE void write_tile_at_width(const Params& p, const Place& at, const float* sums) {
  if constexpr (Width > 1) {
    if (p.store_width < Width) return write_tile_at_width<mode, Row, Width / 2>(p, at, sums);
  }
  write_tile<mode, Row, Width>(p, at, sums);
}

// The tile's sums to y through `tile` in shared memory. They get their bias on the way.
template <Mode mode, int Row>
CONVT_DEVICE void write_shared(const Params& p, const Place& at, int32_t warp_m, int32_t warp_n, int32_t thread,
                               float* tile, float (&sums)[configs[Row].m_blocks][configs[Row].n_blocks][4]) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int blocks = config.m_blocks, columns = config.n_blocks;
  const int32_t lane = thread % 32;
  const int32_t first_column = warp_n * columns * 8 + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
    const int32_t block = m * config.warps_m + warp_m, phase = p.phase_of_block >> 4 * block & 0xf;
    const int32_t row = 16 * block + lane / 4, channel = row - 16 * p.channel_blocks * phase;
    const float bias[2] = {bias_of<mode>(p, at, channel), bias_of<mode>(p, at, channel + 8)};
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] += bias[e / 2];
    }
    float* to = tile + first_column + row * sums_pitch(config, false) + phase * p.skew;
    if (p.channels_innermost) {
      to = tile + first_column * sums_pitch(config, true) + row;
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) to[(8 * n + e % 2) * sums_pitch(config, true) + e / 2 * 8] = sums[m][n][e];
      }
    } else {
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          *reinterpret_cast<float2*>(to + 8 * n + e / 2 * 8 * sums_pitch(config, false)) =
              make_float2(sums[m][n][e], sums[m][n][e + 1]);
        }
      }
    }
  }
  if (!p.channels_innermost) {
    // Beyond the positions, for outputs that no tap reaches.
    for (int32_t i = thread; i < 16 * p.channel_blocks * 8; i += config.threads()) {
      tile[i / 8 * sums_pitch(config, false) + config.columns() + i % 8] = bias_of<mode>(p, at, i / 8);
    }
  }
  __syncthreads();

  write_tile_at_width<mode, Row, static_cast<int>(16 / sizeof(Scalar))>(p, at, tile);
}

// Whether some position of the tile reads a pixel of the image, when it reads `offset` pixels of the patch from its
// own.
CONVT_DEVICE bool reads_image(const Params& p, const Inside& inside, uint32_t offset) {
  const auto row = static_cast<int32_t>(p.by_patch_columns.divide(offset)), column = static_cast<int32_t>(offset);
  return row < inside.first_row + inside.rows && row + p.tile_rows > inside.first_row &&
         column < inside.first_column + inside.columns && column + p.tile_columns > inside.first_column;
}

template <Mode mode>
CONVT_DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (mode == Mode::tf32 || mode == Mode::ieee) {
    device::mma_m16n8k8_tf32(d, a, b);
  } else {
    device::mma_m16n8k16<typename Traits<mode>::Scalar>(d, a, b);
  }
}

// Loads a lane's words of a fragment if `wanted`; otherwise they are undefined. The compiler may not move it to where
// they are used.
CONVT_DEVICE void load_fragment(uint32_t (&to)[4], const void* from, uint32_t wanted) {
#if defined(__CUDACC__)
  asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from), "r"(wanted)
               : "memory");
#else
  if (wanted == 0) return;
  const uint4 v = __ldg(static_cast<const uint4*>(from));
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#endif
}

// The thread's number, not kept in a register from where it was used before.
CONVT_DEVICE int32_t thread_again() {
#if defined(__CUDA_ARCH__)
  int32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
#else
  return static_cast<int32_t>(threadIdx.x);
#endif
}

// Likewise, of the block's tile.
CONVT_DEVICE Place place_again(const Params& p) {
  return place_of(p, static_cast<uint32_t>(opaque(static_cast<int32_t>(blockIdx.x))));
}

template <Mode mode, int Row>
CONVT_DEVICE void compute_tile(const Params& p) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int threads = config.threads(), blocks = config.m_blocks, columns = config.n_blocks;
  constexpr int parts = parts_of(mode);
  constexpr bool asks_once = has_full_loop(mode);  // whether all steps have all blocks of rows
  static_assert(config.rows() <= 8, "a step's mask has 8 bits");
  static_assert(fits_registers(config, mode));
  constexpr uint32_t mask_at = 24, block_at = 16;  // in a step, after the offset and after its first fragment
  constexpr uint32_t fragment_bytes = 512 * parts;
  static_assert(shared_bytes_limit < 1 << mask_at);

  unsigned char* const shared = device::dynamic_shared_memory();
  auto* const flags = reinterpret_cast<uint32_t*>(shared);  // an edge of the image is in the patch; the last split;
                                                            // a sum may be NaN
  auto* const counts = flags + 4;                           // of steps, for each warp that finds them
  auto* const steps = reinterpret_cast<uint2*>(shared + steps_at);
  auto* const pixels = reinterpret_cast<Pixel*>(shared + p.pixels_at);
  float sums[blocks][columns][4];
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
    }
  }

  {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = thread % 32, warp = thread / 32;
    const int32_t warp_m = warp / config.warps_n, warp_n = warp % config.warps_n;
    const Place at = place_of(p, blockIdx.x);
    const DeviceSet set = p.sets[at.set];
    const bool all_blocks = asks_once && (p.full_sets >> at.set & 1) != 0;  // of all steps

    const Chunks chunks = chunks_of(p, at);
    const Inside inside = inside_of(p, at, set);
    const bool outside = inside.rows < p.patch_rows || inside.columns < p.patch_columns;
    if (thread == 0) flags[0] = outside, flags[2] = 0;
    // The steps that read a pixel of the image, for some position of the tile: on the smallest images few do.
    const DeviceStep own_step = thread < set.steps ? p.steps[set.first_step + thread] : DeviceStep{};
    const bool wanted = thread < set.steps && reads_image(p, inside, own_step.offset / pixel_bytes(mode));
    const uint32_t wanted_of_warp = __ballot_sync(0xffffffffu, wanted);
    if (lane == 0) counts[warp] = static_cast<uint32_t>(__popc(wanted_of_warp));
    const int32_t width = inside.columns / (p.fill == Fill::rows ? quad : 1);
    const Filler filler{static_cast<const Scalar*>(p.x) + at.image * p.x_batch_stride +
                            static_cast<int64_t>(at.group) * p.in_channels * p.x_channel_stride,
                        pixels, inside.images * inside.rows * width};
    for (int32_t i = thread; i < filler.count; i += threads) {
      pixels[i] = pixel_of<mode>(p, at, set, inside, static_cast<uint32_t>(width), static_cast<uint32_t>(i));
    }
    if ((outside || inside.images < p.tile_images) && chunks.first < chunks.last) {
      auto* const words = reinterpret_cast<uint4*>(shared + p.stages_at);
      for (int32_t i = thread; i < p.stages * p.stage_bytes / 16; i += threads) words[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    int32_t step_count = 0;
    {
      int32_t before = __popc(wanted_of_warp & ((1u << lane) - 1));
#pragma unroll
      for (int w = 0; w < threads / 32; ++w) {
        if (w < warp) before += static_cast<int32_t>(counts[w]);
        step_count += static_cast<int32_t>(counts[w]);
      }
      // Of each warp along M and each channel group of a chunk, and the first of the next chunk's: the offset in a
      // stage of the patch, and the warp's blocks of rows that it is for; where their fragments are, from the chunk's
      // first: of the first block, in bytes, if all steps have all blocks; else of the step, and each block's after it.
      if (wanted) {
        const uint32_t mask = own_step.mask & 0xff, prefix = own_step.mask >> 8;
#pragma unroll
        for (int first = 0; first < config.warps_m; ++first) {
          uint32_t blocks_of_warp = 0, fragments = 0;
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            const int block = m * config.warps_m + first;
            blocks_of_warp |= (mask >> block & 1) << m;
            fragments |= static_cast<uint32_t>(__popc(mask & ((1u << block) - 1))) << (block_at + 4 * m);
          }
          int32_t i = before;
#pragma unroll 1
          for (int32_t group = 0; i < p.groups_of_chunk * step_count + steps_ahead; ++group, i += step_count) {
            const int32_t stage_group = group < p.groups_of_chunk ? group : 0;
            const uint32_t of_step = prefix + static_cast<uint32_t>(set.fragments * group);
            steps[i * config.warps_m + first] = make_uint2(
                (own_step.offset + static_cast<uint32_t>(4 * p.patch_plane * stage_group)) | blocks_of_warp << mask_at,
                all_blocks ? (of_step + static_cast<uint32_t>(first)) * fragment_bytes : of_step | fragments);
          }
        }
      }
    }
    __syncthreads();

    const device::SharedAddress stages = device::shared_address(shared + p.stages_at);
    // Where in a patch are the words of this lane's column in each block of 8 positions.
    device::SharedAddress bytes[columns];
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      int32_t position = (warp_n * columns + n) * 8 + lane / 4;
      if (position >= p.positions) position = 0;
      auto column = static_cast<uint32_t>(position);
      uint32_t row = p.by_tile_columns.divide(column);
      const uint32_t image = p.by_tile_rows.divide(row);
      bytes[n] = static_cast<uint32_t>(pixel_bytes(mode)) * ((image * p.patch_rows + row) * p.patch_columns + column) +
                 static_cast<uint32_t>(lane % 4 * p.patch_plane);
    }

    if (chunks.first < chunks.last && step_count > 0) {
      constexpr int loads = config.accumulators() >= 64 ? 16 : 32;
      const auto copy = [&](int32_t chunk, int32_t stage) {
        if (chunk < chunks.last) {
          const device::SharedAddress to = stages + static_cast<uint32_t>(stage * p.stage_bytes);
          copy_chunk<mode, threads, loads>(p, filler, to, chunk, thread_again());
        }
        device::cp_async_commit();
      };
#pragma unroll 1
      for (int32_t i = 0; i + 1 < p.stages; ++i) copy(chunks.first + i, i);
      device::wait_for_previous_kernel();  // which packs the weights

      // Fragments of A lie in the order in which a block of threads takes them: at each step those of the blocks of
      // rows that have a tap. A warp takes its own: the warps' blocks alternate, so that each has some of every phase.
      const char* fragments =  // of the chunk
          static_cast<const char*>(p.packed) +
          (static_cast<int64_t>(set.packed) +
           static_cast<int64_t>(at.group * static_cast<int32_t>(p.by_channels.divisor) + at.channel_tile) *
               p.channel_groups * set.fragments +
           static_cast<int64_t>(chunks.first) * p.groups_of_chunk * set.fragments) *
              fragment_bytes +
          16 * lane;
      const auto chunk_bytes = static_cast<uint32_t>(p.groups_of_chunk * set.fragments) * fragment_bytes;
      // Fragments of the next step are on their way while one is multiplied; after the last, any are. All loads come
      // first, because a wait for one of them may be a wait for all. For the same reason they wait for the loads before
      // them: their addresses take part of what those have loaded, a zero.
      uint32_t a[blocks][parts][4] = {};
      const auto load_a = [&](bool all, uint32_t (&to)[blocks][parts][4], const uint2& step) {
        const uint32_t loaded = a[blocks - 1][parts - 1][3] & p.zero;
        const char* first = fragments;
        if (all) {
          first += step.y | loaded;
          device::forget(first);  // so that the blocks' are at constant distances from one address
        }
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          auto fragment = static_cast<uint32_t>(m * config.warps_m);  // after the first
          if (!all) fragment = ((step.y & ((1u << block_at) - 1)) + (step.y >> (block_at + 4 * m) & 0xf)) | loaded;
          const char* const from = first + static_cast<uint64_t>(fragment) * fragment_bytes;
#pragma unroll
          for (int part = 0; part < parts; ++part) {
            load_fragment(to[m][part], from + 512 * part, all ? 1 : step.x & 1u << (mask_at + m));
          }
        }
      };
      constexpr uint32_t step_bytes = 8 * config.warps_m;
      const device::SharedAddress table = device::shared_address(steps + warp_m);
      if (all_blocks) {
        if constexpr (asks_once) load_a(true, a, device::load_shared_8(table));
      } else {
        load_a(false, a, device::load_shared_8(table));
      }
      int32_t turn = 0;
      const auto multiply_block = [&](int m, const uint32_t (&b)[columns][parts][2]) {
        if constexpr (mode == Mode::ieee) {
          // A tensor core truncates its sums: it adds up this step's products, the small ones first, and the sums of
          // the steps are added by instructions that round.
          float part[columns][4] = {};
#pragma unroll
          for (int n = 0; n < columns; ++n) multiply<mode>(part[n], a[m][1], b[n][0]);
#pragma unroll
          for (int n = 0; n < columns; ++n) multiply<mode>(part[n], a[m][0], b[n][parts - 1]);
#pragma unroll
          for (int n = 0; n < columns; ++n) multiply<mode>(part[n], a[m][0], b[n][0]);
#pragma unroll
          for (int n = 0; n < columns; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[m][n][e] += part[n][e];
          }
        } else {
#pragma unroll
          for (int n = 0; n < columns; ++n) multiply<mode>(sums[m][n], a[m][0], b[n][0]);
        }
      };
      // The steps of a chunk. If all have all blocks of rows, there is no branch on their way.
      const auto multiply_steps = [&](auto all, device::SharedAddress stage, int32_t count) {
        constexpr bool All = decltype(all)::value;
        static_assert(!All || asks_once);
        uint2 step = device::load_shared_8(table), next = device::load_shared_8(table + step_bytes);
        device::SharedAddress ahead = table + step_bytes * steps_ahead;
        const auto load_b = [&](uint32_t (&to)[columns][parts][2], const uint2& of_step) {
          const device::SharedAddress from = stage + (of_step.x & ((1u << mask_at) - 1));
#pragma unroll
          for (int n = 0; n < columns; ++n) {
            if constexpr (parts == 2) {
              const uint4 v = device::load_shared_16(from + bytes[n]);
              to[n][0][0] = v.x, to[n][0][1] = v.y, to[n][1][0] = v.z, to[n][1][1] = v.w;
            } else {
              const uint2 v = device::load_shared_8(from + bytes[n]);
              to[n][0][0] = v.x, to[n][0][1] = v.y;
            }
          }
        };
        uint32_t b[columns][parts][2];
        // Inputs of the next step likewise, where few warps share an SM and no branch parts the steps: elsewhere it was
        // slower.
        constexpr bool ahead_b = All && config.resident == 2;
        if constexpr (ahead_b) load_b(b, step);
        // By two, so that fragments need not be moved from one set of registers to the other.
#pragma unroll 2
        for (; count > 0; --count) {
          uint32_t later[blocks][parts][4];
          uint2 after;
          const auto advance = [&] {
            load_a(All, later, next);
            after = device::load_shared_8(ahead);
            ahead += step_bytes;
          };
          // Beside the MMAs, which leave the other units free; but where two blocks an SM take all registers, it was
          // slower.
          constexpr bool beside = mode == Mode::ieee && blocks <= 2;
          if constexpr (!beside) advance();
          uint32_t b_later[columns][parts][2];
          if constexpr (ahead_b) {
            load_b(b_later, next);
          } else {
            load_b(b, step);
          }
          if constexpr (All) {
#pragma unroll
            for (int m = 0; m < blocks; ++m) multiply_block(m, b);
          } else {
            // Without branches the blocks' instructions may overlap: all, or as many as there are registers for.
            constexpr int together = mode != Mode::ieee || blocks < 2 ? blocks : 2, pair = blocks < 2 ? 1 : 2;
            const auto has_blocks = [&](int first, int count) {
              const uint32_t wanted_blocks = ((1u << count) - 1) << (mask_at + first);
              return (step.x & wanted_blocks) == wanted_blocks;
            };
#pragma unroll
            for (int first = 0; first < blocks; first += together) {
              if (has_blocks(first, together)) {
                if (beside && first == 0) advance();
#pragma unroll
                for (int m = first; m < first + together; ++m) multiply_block(m, b);
                continue;
              }
              if (beside && first == 0) advance();
#pragma unroll
              for (int two = first; two < first + together; two += pair) {
                if (pair < together && has_blocks(two, pair)) {
#pragma unroll
                  for (int m = two; m < two + pair; ++m) multiply_block(m, b);
                } else {
#pragma unroll
                  for (int m = two; m < two + pair; ++m) {
                    if ((step.x >> (mask_at + m) & 1) != 0) multiply_block(m, b);
                  }
                }
              }
            }
          }
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
#pragma unroll
            for (int part = 0; part < parts; ++part) {
#pragma unroll
              for (int e = 0; e < 4; ++e) a[m][part][e] = later[m][part][e];
            }
          }
          if constexpr (ahead_b) {
#pragma unroll
            for (int n = 0; n < columns; ++n) b[n][0][0] = b_later[n][0][0], b[n][0][1] = b_later[n][0][1];
          }
          step = next, next = after;
        }
      };
#pragma unroll 1
      for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
        const int32_t groups = groups_of(p, chunk);
        // Copies of the chunks after this one stay on their way.
        if (p.stages == 2) {
          device::cp_async_wait<0>();
        } else if (p.stages == 3) {
          device::cp_async_wait<1>();
        } else {
          device::cp_async_wait<2>();
        }
        const device::SharedAddress stage = stages + static_cast<uint32_t>(turn * p.stage_bytes);
        if (!copies_need_no_order<mode>(p)) finish_chunk<mode, threads>(p, filler, stage, chunk, thread_again());
        __syncthreads();
        // Into the stage of the chunk before this one, which all have multiplied.
        copy(chunk + p.stages - 1, turn == 0 ? p.stages - 1 : turn - 1);
        if (++turn == p.stages) turn = 0;
        const int32_t count = groups * step_count;
        if (all_blocks) {
          if constexpr (asks_once) multiply_steps(std::true_type{}, stage, count);
        } else {
          multiply_steps(std::false_type{}, stage, count);
        }
        fragments += chunk_bytes;
      }
      __syncthreads();
    } else {
      device::wait_for_previous_kernel();
    }
  }

  if (p.splits > 1) {
    const int32_t thread = thread_again();
    const Place at = place_again(p);
    // Every split leaves its sums, each thread its own; the one that is last adds them all, in the order of the splits.
    constexpr int32_t vectors = blocks * columns;
    auto* const partials = reinterpret_cast<float4*>(p.partials) +
                           static_cast<int64_t>(at.reduction) * p.splits * (vectors * threads) + thread;
    float4* const own = partials + static_cast<int64_t>(at.split) * (vectors * threads);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const float (&v)[4] = sums[i / columns][i % columns];
      own[i * threads] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      flags[1] = atomicAdd(p.counters + at.reduction, 1u) + 1 == static_cast<uint32_t>(p.splits);
    }
    __syncthreads();
    if (flags[1] == 0) return;
    __threadfence();
    constexpr int batch = vectors < 8 ? vectors : 8;  // loads on their way
#pragma unroll(vectors > 8 ? 1 : 2)
    for (int32_t k = 0; k < p.splits; ++k) {
      const float4* const from = partials + static_cast<int64_t>(k) * (vectors * threads);
#pragma unroll
      for (int i = 0; i < vectors; i += batch) {
        float4 add[batch];
#pragma unroll
        for (int e = 0; e < batch; ++e) add[e] = __ldcg(from + (i + e) * threads);
#pragma unroll
        for (int e = 0; e < batch; ++e) {
          float (&v)[4] = sums[(i + e) / columns][(i + e) % columns];
          if (k == 0) v[0] = v[1] = v[2] = v[3] = 0;
          v[0] += add[e].x, v[1] += add[e].y, v[2] += add[e].z, v[3] += add[e].w;
        }
      }
    }
  }

  // What comes before needs the registers.
  const auto thread = thread_again();
  const int32_t lane = thread % 32, warp = thread / 32;
  const int32_t warp_m = warp / config.warps_n, warp_n = warp % config.warps_n;
  const Place at = place_again(p);

  const bool edge = flags[0] != 0 || mode == Mode::ieee;
  bool not_a_number = false;  // a sum is not finite
  if (edge) {
    float zero[4] = {};  // or NaN
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) zero[e] = fmaf(sums[m][n][e], 0.0f, zero[e]);
      }
    }
    const float all = zero[0] + zero[1] + zero[2] + zero[3];
    not_a_number = all != all;
  }
  if (not_a_number) flags[2] = 1;
  if (p.from_registers) {
    const auto write = [&]<int Phases, int Gap>() {
      write_registers<mode, Row, Phases, Gap>(p, at, warp_m, warp_n, lane, sums);
    };
    if (p.column_phases == 1) {
      write.template operator()<1, 1>();
    } else if (p.channel_blocks == config.warps_m) {
      if constexpr (blocks >= 2) write.template operator()<2, 1>();
    } else {
      if constexpr (blocks >= 4) write.template operator()<2, 2>();
    }
  } else {
    // Where the patches were.
    write_shared<mode, Row>(p, at, warp_m, warp_n, thread, reinterpret_cast<float*>(shared + p.stages_at), sums);
  }
  if (!edge) return;
  __syncthreads();
  if (flags[2] != 0) correct_edges<mode, Row>(p, at);
}

template <Mode mode, int Row>
__global__ void __launch_bounds__(configs[Row].threads(), resident_blocks(configs[Row], mode))
    implicit_gemm_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (in_hopper_code(configs[Row], mode)) compute_tile<mode, Row>(p);
#else
  compute_tile<mode, Row>(p);
#endif
}

}  // namespace convt::implicit_gemm_sm80
