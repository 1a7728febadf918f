// The producers: one thread copies packed weights, three warps read the patch.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "params.h"

namespace convt::implicit_gemm_sm90 {

// Barriers in shared memory. A stage is full when it may be read, and empty when it may be written.
struct Barriers {
  device::SharedAddress base;

  CONVT_DEVICE device::SharedAddress patch_full(int32_t s) const { return base + static_cast<uint32_t>(16 * s); }
  CONVT_DEVICE device::SharedAddress patch_empty(int32_t s) const { return patch_full(s) + 8; }
  CONVT_DEVICE device::SharedAddress weights_full(int32_t s) const { return patch_full(patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_empty(int32_t s) const { return weights_full(s) + 8; }
  // Warpgroups that take tiles in turn: the other one has seen all stages of its tile.
  CONVT_DEVICE device::SharedAddress order(int32_t group) const {
    return patch_full(patch_stages + weight_stages) + static_cast<uint32_t>(8 * group);
  }
};

// A ring of stages: the one that is next, and the parity of its turn.
struct Ring {
  int32_t stage = 0;
  uint32_t parity = 0;

  CONVT_DEVICE void advance(int32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }

  CONVT_DEVICE void skip(int32_t count, int32_t stages) {
    const uint32_t next = static_cast<uint32_t>(stage + count), turns = next / static_cast<uint32_t>(stages);
    stage = static_cast<int32_t>(next - turns * static_cast<uint32_t>(stages)), parity ^= turns & 1;
  }
};

// How many steps of a chunk are a stage of weights, so that its stages are of a size.
template <int Row>
CONVT_DEVICE int32_t steps_of_stage(const DeviceSet& set, int32_t groups) {
  constexpr int32_t most = weight_stage_bytes / (fragment_bytes * configs[Row].rows());
  const int32_t steps = set.steps * groups;
  return ceil_div(steps, ceil_div(steps, most));
}

template <int Row>
CONVT_DEVICE int32_t stages_of_chunk(const DeviceSet& set, int32_t groups) {
  constexpr int32_t most = weight_stage_bytes / (fragment_bytes * configs[Row].rows());
  const int32_t steps = set.steps * groups;
  return ceil_div(steps, ceil_div(steps, ceil_div(steps, most)));
}

template <int Row>
CONVT_DEVICE void copy_weights(const Params& p, device::SharedAddress shared, const Barriers& barriers) {
  Ring ring;
  device::wait_for_previous_kernel();  // which packs them
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    const unsigned char* from =
        static_cast<const unsigned char*>(p.packed) +
        (static_cast<int64_t>(set.packed) +
         (static_cast<int64_t>(at.group * static_cast<int32_t>(p.by_channels.divisor) + at.channel_tile) *
              p.channel_groups +
          static_cast<int64_t>(chunks.first) * p.groups_of_chunk) *
             set.fragments) *
            fragment_bytes;
    int32_t step = 0, groups = 0, run = 0;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      if (groups != groups_of(p, chunk)) {
        groups = groups_of(p, chunk);
        run = steps_of_stage<Row>(set, groups);
      }
      for (int32_t left = set.steps * groups; left > 0; left -= run) {
        uint32_t fragments = 0;
        for (int32_t s = smaller(left, run); s > 0; --s) {
          fragments += static_cast<uint32_t>(__popc(p.steps[set.first_step + step].mask));
          if (++step == set.steps) step = 0;
        }
        device::mbarrier_wait(barriers.weights_empty(ring.stage), ring.parity ^ 1);
        device::mbarrier_arrive_expect(barriers.weights_full(ring.stage), fragments * fragment_bytes);
        device::bulk_load(shared + static_cast<uint32_t>(p.weights_at + ring.stage * weight_stage_bytes), from,
                          fragments * fragment_bytes, barriers.weights_full(ring.stage));
        from += static_cast<int64_t>(fragments) * fragment_bytes;
        ring.advance(weight_stages);
      }
    }
  }
}

// What fills a stage of the patch. Asynchronous copies bring all of it, so that a whole stage is on its way at a time
// and no register waits for it; then each warp brings what it has copied into order, where it lies.
//
// A stage is planes of 16 bytes a pixel, one after the other; of `quad` pixels, an item has 64 bytes. 32 items are a
// region, which a warp fills. If channels of a pixel are not next to each other in x, a region is first [channel of the
// plane][pixel], then [pixel][channel].
struct Filler {
  const int32_t* offsets;  // of the patch's pixels in x; negative outside the image
  int32_t warp, lane;      // of the filling ones
};

// Copies four pixels of each channel; the lanes have neighbouring items. The address of a copy of nothing is not read.
template <class Scalar>
CONVT_DEVICE void copy_rows(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                            int32_t channels_left, int32_t planes) {
  constexpr int channels = 16 / sizeof(Scalar), bytes = quad * sizeof(Scalar);
  int32_t index = f.warp * 32 + f.lane, left = planes * p.quads - index;
  device::SharedAddress to = stage + static_cast<uint32_t>(f.warp * region_bytes + f.lane * bytes);
#pragma unroll 1
  for (int32_t warp_left = left + f.lane; warp_left > 0; warp_left -= fillers, left -= fillers, index += fillers) {
    while (index >= p.quads) index -= p.quads, x += channels * p.x_channel_stride, channels_left -= channels;
    const int32_t offset = f.offsets[quad * index];
    const int32_t valid = offset < 0 || left <= 0 ? 0 : channels_left;
    const Scalar* from = x + (offset < 0 ? 0 : offset);
#pragma unroll
    for (int c = 0; c < channels; ++c, from += p.x_channel_stride) {
      device::cp_async<bytes>(to + static_cast<uint32_t>(c * (region_bytes / channels)), from, c < valid ? bytes : 0);
    }
    to += fillers / 32 * region_bytes;
  }
}

// The same by elements of 4 bytes; the lanes have neighbouring pixels.
CONVT_DEVICE void copy_elements(const Params& p, const Filler& f, const float* x, device::SharedAddress stage,
                                int32_t channels_left, int32_t planes) {
  constexpr int channels = 4;
  const int32_t pixels = quad * p.quads;
  int32_t pixel = f.warp * 32 * quad + f.lane, left = planes * pixels - pixel;
  device::SharedAddress to = stage + static_cast<uint32_t>(f.warp * region_bytes + f.lane * 4);
#pragma unroll 1
  for (int32_t warp_left = left + f.lane; warp_left > 0; warp_left -= fillers * quad) {
#pragma unroll
    for (int e = 0; e < quad; ++e, pixel += 32, left -= 32) {
      while (pixel >= pixels) pixel -= pixels, x += channels * p.x_channel_stride, channels_left -= channels;
      const int32_t offset = f.offsets[pixel];
      const int32_t valid = offset < 0 || left <= 0 ? 0 : channels_left;
      const float* from = x + (offset < 0 ? 0 : offset);
#pragma unroll
      for (int c = 0; c < channels; ++c, from += p.x_channel_stride) {
        device::cp_async<4>(to + static_cast<uint32_t>(c * (region_bytes / channels) + e * 128), from,
                            c < valid ? 4 : 0);
      }
    }
    pixel += fillers * quad - 32 * quad, left -= fillers * quad - 32 * quad;
    to += fillers / 32 * region_bytes;
  }
}

// Elements of 2 bytes, which no asynchronous copy takes, through registers.
template <class Scalar>
CONVT_DEVICE void store_elements(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                                 int32_t channels_left, int32_t planes) {
  constexpr int channels = 8, batch = 4;
  const int32_t pixels = quad * p.quads;
  int32_t pixel = f.warp * 32 + f.lane, left = planes * pixels - pixel;
  device::SharedAddress to = stage + static_cast<uint32_t>(16 * pixel);
#pragma unroll 1
  while (left > 0) {
    uint32_t r[batch][channels];
    const int32_t first = left;
#pragma unroll
    for (int e = 0; e < batch; ++e, pixel += fillers, left -= fillers) {
      while (pixel >= pixels) pixel -= pixels, x += channels * p.x_channel_stride, channels_left -= channels;
      const int32_t offset = f.offsets[pixel];
      const int32_t valid = offset < 0 || left <= 0 ? 0 : channels_left;
      const Scalar* from = x + (offset < 0 ? 0 : offset);
#pragma unroll
      for (int c = 0; c < channels; ++c, from += p.x_channel_stride) {
        r[e][c] = 0;
        if (c < valid) r[e][c] = __ldg(reinterpret_cast<const uint16_t*>(from));
      }
    }
#pragma unroll
    for (int e = 0; e < batch; ++e, to += 16 * fillers) {
      if (first <= e * fillers) break;
      device::store_shared_16(to, r[e][0] | r[e][1] << 16, r[e][2] | r[e][3] << 16, r[e][4] | r[e][5] << 16,
                              r[e][6] | r[e][7] << 16);
    }
  }
}

// Brings the warp's regions from [channel][pixel] to [pixel][channel]. Lanes read neighbouring words: no bank
// conflicts.
template <Mode mode>
CONVT_DEVICE void transpose_regions(const Params& p, const Filler& f, device::SharedAddress stage, int32_t planes) {
  constexpr bool wide = mode == Mode::tf32;
  const int32_t items = planes * p.quads;
  device::SharedAddress region = stage + static_cast<uint32_t>(f.warp * region_bytes);
  const auto lane = static_cast<uint32_t>(f.lane);
  __syncwarp();
#pragma unroll 1
  for (int32_t first = f.warp * 32; first < items; first += fillers, region += fillers / 32 * region_bytes) {
    uint32_t r[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // Four channels of pixels 32 e + lane; or, of pixels 64 (e / 2) + 2 lane and the next, channels 4 (e % 2) + k.
        const auto at = static_cast<uint32_t>(wide ? k * 512 + e * 128 : (e % 2 * 4 + k) * 256 + e / 2 * 128);
        r[e][k] = device::load_shared_4(region + at + lane * 4);
      }
    }
    __syncwarp();
    if constexpr (wide) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int k = 0; k < 4; ++k) r[e][k] = device::to_tf32(__uint_as_float(r[e][k]));
        device::store_shared_16(region + static_cast<uint32_t>(e * 512) + lane * 16, r[e][0], r[e][1], r[e][2],
                                r[e][3]);
      }
    } else {
      // Four lanes begin with the second of their two pixels, so that eight store to different banks.
      const bool second = (f.lane & 4) != 0;
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        uint32_t pixels[2][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t even = r[e + k / 2][k % 2 * 2], odd = r[e + k / 2][k % 2 * 2 + 1];
          pixels[0][k] = __byte_perm(even, odd, second ? 0x7632 : 0x5410);
          pixels[1][k] = __byte_perm(even, odd, second ? 0x5410 : 0x7632);
        }
        const device::SharedAddress to = region + static_cast<uint32_t>(e * 512) + lane * 32;
        const uint32_t swap = second ? 16 : 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          device::store_shared_16(to + (swap ^ static_cast<uint32_t>(16 * i)), pixels[i][0], pixels[i][1], pixels[i][2],
                                  pixels[i][3]);
        }
      }
    }
  }
}

// Copies 16 bytes of a pixel's channels; a lane and the next have both planes of a group of channels, which are a
// sector of memory. Several at a time, so that their offsets are read at once.
template <class Scalar>
CONVT_DEVICE void copy_channels(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                                int32_t channels_left, int32_t planes) {
  constexpr int channels = 16 / sizeof(Scalar), step = fillers / 2, batch = 4;
  const int32_t half = f.lane % 2, first_pixel = f.warp * 16 + f.lane / 2, pixels = quad * p.quads;
  stage += static_cast<uint32_t>(half * p.patch_plane + first_pixel * 16);
  x += half * channels, channels_left -= half * channels;
#pragma unroll 1
  for (; planes > 0; planes -= 2) {
    device::SharedAddress to = stage;
#pragma unroll 1
    for (int32_t pixel = first_pixel; pixel < pixels; pixel += batch * step, to += batch * step * 16) {
      int32_t offsets[batch];
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        offsets[e] = -1;
        if (pixel + e * step < pixels) offsets[e] = channels_left > 0 ? f.offsets[pixel + e * step] : -1;
      }
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        if (pixel + e * step < pixels) {
          device::cp_async<16>(to + static_cast<uint32_t>(e * step * 16), x + (offsets[e] < 0 ? 0 : offsets[e]),
                               offsets[e] < 0 ? 0 : 16);
        }
      }
    }
    stage += static_cast<uint32_t>(2 * p.patch_plane);
    x += 2 * channels, channels_left -= 2 * channels;
  }
}

// Rounds to TF32 what copy_channels has brought.
CONVT_DEVICE void round_channels(const Params& p, const Filler& f, device::SharedAddress stage, int32_t planes) {
  constexpr int step = fillers / 2, batch = 4;
  const int32_t first_pixel = f.warp * 16 + f.lane / 2, pixels = quad * p.quads;
  stage += static_cast<uint32_t>(f.lane % 2 * p.patch_plane + first_pixel * 16);
#pragma unroll 1
  for (; planes > 0; planes -= 2) {
    device::SharedAddress at = stage;
#pragma unroll 1
    for (int32_t pixel = first_pixel; pixel < pixels; pixel += batch * step, at += batch * step * 16) {
      uint4 v[batch] = {};
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        if (pixel + e * step < pixels) v[e] = device::load_shared_16(at + static_cast<uint32_t>(e * step * 16));
      }
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        const auto rounded = [](uint32_t word) { return device::to_tf32(__uint_as_float(word)); };
        const uint32_t a = rounded(v[e].x), b = rounded(v[e].y), c = rounded(v[e].z), d = rounded(v[e].w);
        if (pixel + e * step < pixels) {
          device::store_shared_16(at + static_cast<uint32_t>(e * step * 16), a, b, c, d);
        }
      }
    }
    stage += static_cast<uint32_t>(2 * p.patch_plane);
  }
}

template <Mode mode, Fill fill>
CONVT_DEVICE void fill_patches(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr bool wide = mode == Mode::tf32, copies = wide || fill != Fill::elements;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - consumers - 32;
  auto* const offsets = reinterpret_cast<int32_t*>(shared + p.pixels_at);
  const Filler filler{offsets, thread / 32, thread % 32};
  // Whether an edge of the image is in the patch: of the stages that hold the first chunk of a tile, and of this tile
  // and the next one.
  auto* const edges = reinterpret_cast<uint32_t*>(shared + words_at);
  auto* const edge_of_tile = edges + patch_stages;
  int32_t turn = 0;
  const device::SharedAddress patches = device::shared_address(shared + p.patches_at);
  Ring ring;
  // The stage whose copies may be on their way, and how many planes they are. From three stages on, the next ones are
  // begun before these are waited for; with two, consumers may wait for these before they give the other stage back.
  int32_t copied = -1, copied_planes = 0;
  const bool early = p.stages > 2;
  const auto finish = [&] {
    const device::SharedAddress stage = patches + static_cast<uint32_t>(copied * p.patch_bytes);
    if constexpr (fill == Fill::rows || (fill == Fill::elements && wide)) {
      transpose_regions<mode>(p, filler, stage, copied_planes);
    } else if constexpr (wide) {
      round_channels(p, filler, stage, copied_planes);
    }
    device::fence_async_proxy();
    __syncwarp();
    if (filler.lane == 0) device::mbarrier_arrive(barriers.patch_full(copied));
    copied = -1;
  };
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const Place at = place_of(p, static_cast<uint32_t>(tile));
    const DeviceSet& set = p.sets[at.set];
    const Chunks chunks = chunks_of(p, at);
    if (chunks.first == chunks.last) continue;
    // Where the patch's pixels are in x, from its first image and channel.
    device::named_barrier(1, fillers);
    bool outside = false;
#pragma unroll 1
    for (int32_t i = thread; i < quad * p.quads; i += fillers) {
      offsets[i] = pixel_offset(p, at, set, i, outside);
    }
    if (outside) edge_of_tile[turn] = 1;
    device::named_barrier(1, fillers);
    const uint32_t edge = edge_of_tile[turn];
    turn ^= 1;
    if (thread == 0) edge_of_tile[turn] = 0;

    int32_t channel = chunks.first * p.groups_of_chunk * channels_of_fragment(mode);
    const Scalar* x = static_cast<const Scalar*>(p.x) + at.image * p.x_batch_stride +
                      (static_cast<int64_t>(at.group) * p.in_channels + channel) * p.x_channel_stride;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const int32_t planes = 2 * groups_of(p, chunk), left = p.in_channels - channel;
      const device::SharedAddress stage = patches + static_cast<uint32_t>(ring.stage * p.patch_bytes);
      device::mbarrier_wait(barriers.patch_empty(ring.stage), ring.parity ^ 1);
      if (thread == 0) edges[ring.stage] = edge;
      if constexpr (fill == Fill::channels) {
        copy_channels(p, filler, x, stage, left, planes);
      } else if constexpr (fill == Fill::rows) {
        copy_rows(p, filler, x, stage, left, planes);
      } else if constexpr (wide) {
        copy_elements(p, filler, x, stage, left, planes);
      } else {
        store_elements(p, filler, x, stage, left, planes);
      }
      if constexpr (copies) device::cp_async_commit();
      if (copies && copied >= 0) {
        device::cp_async_wait<1>();
        finish();
      }
      copied = ring.stage, copied_planes = planes;
      if (!copies || !early) {
        device::cp_async_wait<0>();
        finish();
      }
      ring.advance(p.stages);
      const int32_t channels = p.groups_of_chunk * channels_of_fragment(mode);
      channel += channels, x += channels * p.x_channel_stride;
    }
  }
  if (copied >= 0) {
    device::cp_async_wait<0>();
    finish();
  }
}

template <Mode mode>
CONVT_DEVICE void fill_patches(const Params& p, unsigned char* shared, const Barriers& barriers) {
  if (p.fill == Fill::channels) {
    fill_patches<mode, Fill::channels>(p, shared, barriers);
  } else if (p.fill == Fill::rows) {
    fill_patches<mode, Fill::rows>(p, shared, barriers);
  } else {
    fill_patches<mode, Fill::elements>(p, shared, barriers);
  }
}

}  // namespace convt::implicit_gemm_sm90
