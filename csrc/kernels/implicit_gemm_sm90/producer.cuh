// The producers: one warp copies weights; the other three bring the patch, or one has the copy engine bring it and two
// prepare what has come, if it is not as products want it.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "../ring.h"
#include "params.h"

namespace convt::implicit_gemm_sm90 {

// Barriers in shared memory. A stage is full when it may be read, and empty when it may be written. Of a patch that the
// copy engine has brought and that is to be prepared, `read` says that it is there, and so of weights.
struct Barriers {
  device::SharedAddress base;

  CONVT_DEVICE device::SharedAddress at(int32_t i) const { return base + static_cast<uint32_t>(8 * i); }
  CONVT_DEVICE device::SharedAddress patch_full(int32_t s) const { return at(s); }
  CONVT_DEVICE device::SharedAddress patch_empty(int32_t s) const { return at(most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress patch_read(int32_t s) const { return at(2 * most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_full(int32_t s) const { return at(3 * most_patch_stages + s); }
  CONVT_DEVICE device::SharedAddress weights_empty(int32_t s) const {
    return at(3 * most_patch_stages + most_weight_stages + s);
  }
  CONVT_DEVICE device::SharedAddress weights_read(int32_t s) const {
    return at(3 * most_patch_stages + 2 * most_weight_stages + s);
  }
  // Warpgroups that take tiles in turn: the other one has issued all products of its tile.
  CONVT_DEVICE device::SharedAddress order(int32_t group) const {
    return at(3 * most_patch_stages + 3 * most_weight_stages + group);
  }
};

// Rounds four float32 to TF32, or splits them: what is left of them.
template <Mode mode>
CONVT_DEVICE uint4 round_words(uint4& v) {
  uint4 low = {};
  if constexpr (mode == Mode::ieee) {
    split_pixel(v.x, v.x, low.x), split_pixel(v.y, v.y, low.y);
    split_pixel(v.z, v.z, low.z), split_pixel(v.w, v.w, low.w);
  } else if constexpr (mode == Mode::tf32) {
    v.x = device::to_tf32(__uint_as_float(v.x)), v.y = device::to_tf32(__uint_as_float(v.y));
    v.z = device::to_tf32(__uint_as_float(v.z)), v.w = device::to_tf32(__uint_as_float(v.w));
  }
  return low;
}

// Products of a chunk: of 32 bytes of channels each.
CONVT_DEVICE int32_t count_of(const Params& p, int32_t chunk) {
  return chunk == p.chunks - 1 ? p.last_count : row_bytes / k_bytes;
}

// A block's units: as many blocks as there are take a unit each, and then the next ones, each block one place further
// than before. Phases have different numbers of taps, and how many blocks there are is often a multiple of how many
// phases: a block would have the same one all the time.
CONVT_DEVICE int32_t next_unit(const Params& p, int32_t unit) {
  auto place = static_cast<uint32_t>(unit);
  p.by_blocks.divide(place);
  return unit + (place + 1 == p.by_blocks.divisor ? 1 : static_cast<int32_t>(p.by_blocks.divisor) + 1);
}

// Or all steps are shared out evenly (stream-K: Osama et al., 2023), where tiles are few, or not a multiple of the
// blocks: then chunks of all tiles are counted, those of one set of phases after those of another, a block has those
// from a place to the next block's, and a unit is the place where its part of a tile begins. This is the place of a
// block's first chunk: of that which has the block's first step.
CONVT_DEVICE int32_t first_chunk_of(const Params& p, int32_t block) {
  auto more = static_cast<uint32_t>(p.more_steps * block);
  int32_t step = p.block_steps * block + static_cast<int32_t>(p.by_blocks.divide(more)), chunk = 0;
#pragma unroll 1
  for (int32_t set = 0;; ++set) {
    const int32_t steps = p.sets[set].steps;
    if (set + 1 == static_cast<int32_t>(p.by_sets.divisor) || step < p.set_chunks * steps) return chunk + step / steps;
    step -= p.set_chunks * steps, chunk += p.set_chunks;
  }
}

// The units of a block.
template <Variant variant>
CONVT_DEVICE int32_t first_unit(const Params& p) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  return variant == Variant::balanced ? first_chunk_of(p, block) : block;
}

template <Variant variant>
CONVT_DEVICE int32_t units_end(const Params& p) {
  return variant == Variant::balanced ? first_chunk_of(p, static_cast<int32_t>(blockIdx.x) + 1) : p.units;
}

template <Variant variant>
CONVT_DEVICE int32_t next_unit(const Params& p, int32_t unit, int32_t end) {
  return variant == Variant::balanced ? smaller(unit - unit % p.chunks + p.chunks, end) : next_unit(p, unit);
}

template <Variant variant>
CONVT_DEVICE Place place_of(const Params& p, int32_t unit, int32_t tile) {
  if constexpr (variant != Variant::balanced) return place_of(p, static_cast<uint32_t>(unit * p.reuse + tile));
  const int32_t set = unit / p.set_chunks;
  auto at = static_cast<uint32_t>((unit - set * p.set_chunks) / p.chunks);
  const uint32_t rest = p.by_channels.divide(at) * p.by_splits.divisor;
  Place place = place_of(p, (rest * p.by_sets.divisor + static_cast<uint32_t>(set)) * p.by_channels.divisor + at);
  // Or its number, which nobody needs before it has been multiplied.
  place.split = unit % p.chunks > 0;
  return place;
}

// The parts of a tile's reduction, of which this one is a unit, and where their sums are among all partial ones.
struct Parts {
  int32_t part, count;
  int64_t first;

  template <Variant variant>
  CONVT_DEVICE int64_t at(int32_t k) const {
    return first + (variant == Variant::balanced ? larger(2 * k - 1, 0) : k);
  }
};

// A block may have a part of the tile that it begins with, which an earlier block began, and one of another that it
// begins itself.
template <Variant variant>
CONVT_DEVICE Parts parts_of(const Params& p, const Place& at, int32_t unit, const Chunks& chunks) {
  if constexpr (!is_general(variant)) return {0, 1, 0};
  if constexpr (variant != Variant::balanced) {
    return {at.split, p.splits, static_cast<int64_t>(at.reduction) * p.splits};
  }
  const int32_t tile = unit - chunks.first, block = static_cast<int32_t>(blockIdx.x);
  int32_t first = block, last = block;
#pragma unroll 1
  while (first_chunk_of(p, first) > tile) --first;
#pragma unroll 1
  while (first_chunk_of(p, last + 1) < tile + p.chunks) ++last;
  return {block - first, last - first + 1, 2 * first};
}

template <Variant variant>
CONVT_DEVICE Chunks chunks_of(const Params& p, const Place& at, int32_t unit, int32_t end) {
  if constexpr (variant != Variant::balanced) return chunks_of(p, at);
  const int32_t first = unit % p.chunks;
  return {first, smaller(p.chunks, first + end - unit)};
}

// Whether two warps transpose the weights that the copy engine has brought.
template <Mode mode>
CONVT_DEVICE bool transposes_weights(const Params& p) {
  return mode == Mode::tf32 && p.weights_in_place;
}

// Copies weights; a whole warp. How long a step takes here is the least that it takes: what a step needs is fetched
// while the one before is waited for, and all lanes compute what one of them tells the copy engine.
template <Mode mode, Variant variant>
CONVT_DEVICE void copy_weights(const Params& p, const Barriers& barriers) {
  constexpr auto fragment_bytes = static_cast<uint32_t>(block_bytes * parts_of(mode));
  constexpr int32_t channels = row_bytes / static_cast<int32_t>(sizeof(typename Traits<mode>::Scalar));  // of a box
  const bool in_place = takes_in_place(mode, variant) && p.weights_in_place, stay = p.weights_stay;
  const uint32_t block_copied = in_place ? block_bytes : fragment_bytes;
  const device::SharedAddress weights = device::dynamic_shared_address() + static_cast<uint32_t>(p.weights_at);
  const device::SharedAddress empty_first = barriers.weights_empty(0);
  // From a stage's `empty` to what its copies complete.
  const device::SharedAddress there_from_empty =
      (transposes_weights<mode>(p) ? barriers.weights_read(0) : barriers.weights_full(0)) - empty_first;
  const auto stage_bytes = static_cast<uint32_t>(p.weight_stage_bytes);
  const device::SharedAddress empty_end = empty_first + 8 * static_cast<uint32_t>(p.weight_stages);
  device::SharedAddress empty = empty_first, to = weights;
  uint32_t parity = 1;
  if (!in_place) device::wait_for_previous_kernel();  // which packs them
  const int32_t end = units_end<variant>(p);
  for (int32_t unit = first_unit<variant>(p); unit < end; unit = next_unit<variant>(p, unit, end)) {
    for (int32_t tile = 0; tile < p.reuse; ++tile) {
      const Place at = place_of<variant>(p, unit, tile);
      const DeviceSet& set = p.sets[at.set];
      const Chunks chunks = chunks_of<variant>(p, at, unit, end);
      const DeviceStep* const steps = p.steps + set.first_step;
      const StepTaps* const taps = p.taps + set.first_step;
      const int32_t last_step = set.steps - 1;
      const auto group_tile =
          static_cast<int64_t>(at.group * static_cast<int32_t>(p.by_channels.divisor) + at.channel_tile);
      const unsigned char* from = static_cast<const unsigned char*>(p.packed) +
                                  (set.packed + (group_tile * p.channel_groups + chunks.first) * set.fragments) *
                                      static_cast<int64_t>(fragment_bytes);
      const int32_t first_channel = at.channel_tile * p.channel_blocks * 64, next_block = p.channel_blocks > 1 ? 64 : 0;
      int32_t channel = chunks.first * channels_of_chunk(mode), step = 0, next_step = last_step > 0 ? 1 : 0;
      uint32_t mask = steps[0].mask, next_mask = steps[next_step].mask;
      StepTaps tap = taps[0], next_tap = taps[next_step];
#pragma unroll 1
      for (int32_t left = (chunks.last - chunks.first) * set.steps; left > 0; --left) {
        const uint32_t bytes = static_cast<uint32_t>(__popc(mask)) * block_copied;
        if (!stay) device::mbarrier_wait(empty, parity);
        if (device::elect()) {
          const device::SharedAddress there = empty + there_from_empty;
          device::mbarrier_arrive_expect(there, bytes);
          if (!in_place) {
            device::bulk_load(to, from, bytes, there, p.w_policy);
          } else {
            device::SharedAddress block_to = to;
#pragma unroll
            for (int32_t block = 0; block < most_rows; ++block) {
              if ((mask >> block & 1) == 0) continue;
#pragma unroll
              for (int32_t box = 0; box < 64 / channels; ++box) {
                const int32_t place[tensor_map_rank] = {first_channel + block * next_block + box * channels,
                                                        tap.of[block].column, tap.of[block].row, channel, at.group};
                device::box_load(block_to + static_cast<uint32_t>(box * channels * row_bytes), p.w_map, place, there,
                                 p.w_policy);
              }
              block_to += fragment_bytes;
            }
          }
        }
        from += bytes;
        empty += 8, to += stage_bytes;
        if (empty == empty_end) empty = empty_first, to = weights, parity ^= 1;
        if (step == last_step) channel += channels_of_chunk(mode);
        step = next_step, next_step = step == last_step ? 0 : step + 1;
        mask = next_mask, next_mask = steps[next_step].mask;
        tap = next_tap, next_tap = taps[next_step];
      }
    }
    if (stay) break;
  }
  // What comes after this kernel waits for it alone: a kernel before it that nobody has waited for must not outlive it.
  if (in_place) device::wait_for_previous_kernel();
}

// Weights that lie as rows of output channels, to rows of input channels. Half of a block is 32 rows of 32 channels
// either way, so that it stays where it is; each of the two warps has every second half.
template <Variant variant>
CONVT_DEVICE void transpose_weights(const Params& p, const Barriers& barriers) {
  constexpr int32_t half_bytes = block_bytes / 2;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - consumers - 64, half = thread / 32, lane = thread % 32;
  const device::SharedAddress weights =
      device::dynamic_shared_address() + static_cast<uint32_t>(p.weights_at + half * half_bytes);
  device::Ring ring;
  const auto transpose = [&](int32_t step) {
    const int32_t blocks = __popc(p.steps[step].mask);
    const device::SharedAddress stage = weights + static_cast<uint32_t>(ring.stage * p.weight_stage_bytes);
    device::mbarrier_wait(barriers.weights_read(ring.stage), ring.parity);
#pragma unroll 1
    for (int32_t block = 0; block < blocks; ++block) {
      const device::SharedAddress from = stage + static_cast<uint32_t>(block * block_bytes);
      // A lane has an output channel: word `lane` of each row.
      uint32_t r[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        r[i] = device::load_shared_4(from + unit_at(i, lane / 4) + static_cast<uint32_t>(lane % 4 * 4));
      }
      __syncwarp();
#pragma unroll
      for (int u = 0; u < 8; ++u) {
        device::store_shared_16(from + unit_at(lane, u), r[4 * u], r[4 * u + 1], r[4 * u + 2], r[4 * u + 3]);
      }
    }
    device::fence_async_proxy();
    __syncwarp();
    if (lane == 0) device::mbarrier_arrive(barriers.weights_full(ring.stage));
  };
  const int32_t end = units_end<variant>(p);
  for (int32_t unit = first_unit<variant>(p); unit < end; unit = next_unit<variant>(p, unit, end)) {
    for (int32_t tile = 0; tile < p.reuse; ++tile) {
      const Place at = place_of<variant>(p, unit, tile);
      const DeviceSet& set = p.sets[at.set];
      const Chunks chunks = chunks_of<variant>(p, at, unit, end);
      for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
        for (int32_t step = set.first_step; step < set.first_step + set.steps; ++step) {
          transpose(step);
          ring.advance(p.weight_stages);
        }
      }
    }
    if (p.weights_stay) break;
  }
}

// How many arrivals make a stage of weights full.
template <Mode mode>
CONVT_DEVICE uint32_t weights_arrivals(const Params& p) {
  return transposes_weights<mode>(p) ? rounders / 32 : 1;
}

// The warps that bring a patch, and the lanes of each. What depends on a lane is computed again for each chunk: the
// roles of a patch together have more of it than registers. A patch is regions of 16 pixels of 128 bytes; a warp has
// every third region, or second.
struct Filler {
  const int32_t* offsets;  // of the patch's pixels in x; negative outside the image
  const uint32_t* places;  // if they are gathered: rows and columns, from which a step is `shift` away; else null
  int32_t warp, warps, lane;
  uint32_t shift;
  int32_t shift_offset;

  CONVT_DEVICE int32_t offset(const Params& p, int32_t pixel) const {
    const int32_t offset = offsets[pixel];
    if (places == nullptr) return offset;
    const uint32_t place = places[pixel];
    const int32_t row = row_of(place) + row_of(shift), column = column_of(place) + column_of(shift);
    const bool inside = row >= 0 && row < p.h.in && column >= 0 && column < p.v.in;
    return inside ? offset + shift_offset : -1;
  }
};

// If channels of a pixel are not next to each other in x, a region is first [channel][pixel], with rows of channels in
// an order in which lanes that read the same pixels of different channels find them in different banks.
template <class Scalar>
CONVT_DEVICE uint32_t channel_at(int32_t channel) {
  constexpr int32_t row = region_pixels * sizeof(Scalar);
  return static_cast<uint32_t>((sizeof(Scalar) == 4 ? channel ^ (channel >> 2 & 1) : channel ^ (channel >> 3 & 3)) *
                               row);
}

// Regions that are neighbours are copied together: eight lanes have 32 pixels of a channel, as much of a line of memory
// as a row of the patch has.
inline constexpr int32_t regions_together = 2;

// A warp's next region, if those that are copied together are its own.
CONVT_DEVICE int32_t next_region(const Filler& f, int32_t region) {
  const bool last = region % regions_together == regions_together - 1;
  return region + (last ? (f.warps - 1) * regions_together + 1 : 1);
}

// Copies four pixels of each channel. The address of a copy of nothing is not read.
template <class Scalar>
CONVT_DEVICE void copy_rows(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                            int32_t channels_left, int32_t count) {
  const int32_t lane = opaque(f.lane);
  constexpr int32_t bytes = quad * sizeof(Scalar), of_product = k_bytes / sizeof(Scalar);  // channels
  constexpr int32_t lanes = regions_together * region_pixels / quad, together = 32 / lanes;
  const int32_t at = lane % lanes * quad, first = lane / lanes;
  x += first * p.x_channel_stride, channels_left -= first;
  const int64_t next = together * p.x_channel_stride;
#pragma unroll 1
  for (int32_t region = f.warp * regions_together; region < p.regions; region += f.warps * regions_together) {
    const bool there = region + at / region_pixels < p.regions;
    const int32_t offset = there ? f.offset(p, region * region_pixels + at) : -1;
    const device::SharedAddress to =
        stage + static_cast<uint32_t>((region + at / region_pixels) * (region_pixels * row_bytes) +
                                      at % region_pixels * static_cast<int32_t>(sizeof(Scalar)));
    const int32_t valid = offset < 0 ? 0 : channels_left;
    const Scalar* from = x + (offset < 0 ? 0 : offset);
    // Copies have addresses of their own, four at a time: one that is changed waits until the copy before it has been
    // issued.
#pragma unroll 1
    for (int32_t i = 0; i < count * of_product; i += 4 * together, from += 4 * next) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int32_t channel = i + together * e;
        if (there) {
          device::cp_async<bytes>(to + channel_at<Scalar>(channel + first), from + e * next,
                                  channel < valid ? bytes : 0);
        }
      }
    }
  }
}

// The same by elements of 4 bytes.
CONVT_DEVICE void copy_elements(const Params& p, const Filler& f, const float* x, device::SharedAddress stage,
                                int32_t channels_left, int32_t count) {
  const int32_t lane = opaque(f.lane);
  const int32_t at = lane % 16, first = lane / 16;
  x += first * p.x_channel_stride, channels_left -= first;
  const int64_t next = 2 * p.x_channel_stride;
#pragma unroll 1
  for (int32_t region = f.warp * regions_together; region < p.regions; region = next_region(f, region)) {
    const int32_t offset = f.offset(p, region * region_pixels + at);
    const device::SharedAddress to = stage + static_cast<uint32_t>(region * (region_pixels * row_bytes) + at * 4);
    const int32_t valid = offset < 0 ? 0 : channels_left;
    const float* from = x + (offset < 0 ? 0 : offset);
    if (valid > 30) {
#pragma unroll
      for (int i = 0; i < 16; i += 4, from += 4 * next) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          device::cp_async<4>(to + channel_at<float>(2 * (i + e) + first), from + e * next, 4);
        }
      }
      continue;
    }
#pragma unroll 1
    for (int32_t i = 0; i < count * 4; ++i, from += next) {
      device::cp_async<4>(to + channel_at<float>(2 * i + first), from, 2 * i < valid ? 4 : 0);
    }
  }
}

// Elements of 2 bytes, which no asynchronous copy takes, through registers and to their place.
template <class Scalar>
CONVT_DEVICE void store_elements(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                                 int32_t channels_left, int32_t count) {
  const int32_t lane = opaque(f.lane);
  constexpr int32_t channels = unit_bytes / sizeof(Scalar);
  const int32_t at = lane % 16, first = lane / 16;
  x += first * channels * p.x_channel_stride, channels_left -= first * channels;
#pragma unroll 1
  for (int32_t region = f.warp; region < p.regions; region += f.warps) {
    const int32_t offset = f.offset(p, region * region_pixels + at);
    const device::SharedAddress to = stage + static_cast<uint32_t>(region * (region_pixels * row_bytes));
    const int32_t valid = offset < 0 ? 0 : channels_left;
    const Scalar* from = x + (offset < 0 ? 0 : offset);
    // Two units at a time are what the registers hold.
#pragma unroll 1
    for (int32_t i = 0; i < count; i += 2) {
      uint32_t r[2][channels];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int c = 0; c < channels; ++c) {
          r[e][c] = 0;
          if (2 * channels * (i + e) + c < valid) r[e][c] = __ldg(reinterpret_cast<const uint16_t*>(from));
          from += p.x_channel_stride;
        }
        from += channels * p.x_channel_stride;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (i + e >= count) break;
        device::store_shared_16(to + unit_at(at, 2 * (i + e) + first), r[e][0] | r[e][1] << 16, r[e][2] | r[e][3] << 16,
                                r[e][4] | r[e][5] << 16, r[e][6] | r[e][7] << 16);
      }
    }
  }
}

// Whether a patch that threads copy is rounded to TF32, or split into two such numbers, where it lies.
template <Mode mode>
constexpr bool rounds = sizeof(typename Traits<mode>::Scalar) == 4;

// Four words of a pixel, as operands of products.
template <Mode mode>
CONVT_DEVICE void store_rounded(const Params& p, device::SharedAddress to, uint4 v) {
  const uint4 low = round_words<mode>(v);
  device::store_shared_16(to, v.x, v.y, v.z, v.w);
  if constexpr (parts_of(mode) == 2) {
    device::store_shared_16(to + static_cast<uint32_t>(p.patch_part_bytes), low.x, low.y, low.z, low.w);
  }
}

// Brings the warp's regions from [channel][pixel] to their place. No bank conflicts.
template <Mode mode>
CONVT_DEVICE void transpose_regions(const Params& p, const Filler& f, device::SharedAddress stage, int32_t count) {
  const int32_t lane = opaque(f.lane);
  using Scalar = typename Traits<mode>::Scalar;
  constexpr bool wide = rounds<mode>;
  __syncwarp();
#pragma unroll 1
  for (int32_t i = f.warp * regions_together; i < p.regions; i = next_region(f, i)) {
    const device::SharedAddress region = stage + static_cast<uint32_t>(i * (region_pixels * row_bytes));
    if constexpr (wide) {
      const int32_t pixel = lane % 16, half = lane / 16;
      uint32_t r[4][4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int32_t channel = 4 * (2 * e + half) + k;
          r[e][k] = device::load_shared_4(region + channel_at<Scalar>(channel) + static_cast<uint32_t>(4 * pixel));
        }
      }
      __syncwarp();
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e >= count) break;
        store_rounded<mode>(p, region + unit_at(pixel, 2 * e + half), make_uint4(r[e][0], r[e][1], r[e][2], r[e][3]));
      }
    } else {
      const int32_t pair = lane % 8, quarter = lane / 8;
      uint32_t r[2][8];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int32_t channel = 8 * (4 * e + quarter) + k;
          r[e][k] = device::load_shared_4(region + channel_at<Scalar>(channel) + static_cast<uint32_t>(4 * pair));
        }
      }
      __syncwarp();
      // Four lanes begin with the second of their two pixels, so that eight store to different banks.
      const bool second = (lane & 4) != 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (2 * e >= count) break;
        uint32_t pixels[2][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          pixels[0][k] = __byte_perm(r[e][2 * k], r[e][2 * k + 1], second ? 0x7632 : 0x5410);
          pixels[1][k] = __byte_perm(r[e][2 * k], r[e][2 * k + 1], second ? 0x5410 : 0x7632);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const device::SharedAddress to = region + unit_at(2 * pair + (second ? 1 - n : n), 4 * e + quarter);
          device::store_shared_16(to, pixels[n][0], pixels[n][1], pixels[n][2], pixels[n][3]);
        }
      }
    }
    __syncwarp();
  }
}

// Copies 16 bytes of a pixel's channels; eight lanes have a pixel.
template <class Scalar>
CONVT_DEVICE void copy_channels(const Params& p, const Filler& f, const Scalar* x, device::SharedAddress stage,
                                int32_t channels_left, int32_t count) {
  const int32_t lane = opaque(f.lane);
  constexpr int32_t channels = unit_bytes / sizeof(Scalar);
  const int32_t u = lane % 8, first = lane / 8;
  if (u >= 2 * count) return;
  x += u * channels;
  const bool valid = channels_left > u * channels;
#pragma unroll 1
  for (int32_t region = f.warp; region < p.regions; region += f.warps) {
    int32_t offsets[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      offsets[i] = valid ? f.offset(p, region * region_pixels + 4 * i + first) : -1;
    }
    const device::SharedAddress to = stage + static_cast<uint32_t>(region * (region_pixels * row_bytes));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      device::cp_async<16>(to + unit_at(4 * i + first, u), x + (offsets[i] < 0 ? 0 : offsets[i]),
                           offsets[i] < 0 ? 0 : 16);
    }
  }
}

// Rounds what lies in its place, or splits it.
template <Mode mode>
CONVT_DEVICE void round_regions(const Params& p, const Filler& f, device::SharedAddress stage, int32_t count) {
  const int32_t lane = opaque(f.lane);
#pragma unroll 1
  for (int32_t region = f.warp; region < p.regions; region += f.warps) {
    const device::SharedAddress at = stage + static_cast<uint32_t>(region * (region_pixels * row_bytes));
    uint4 v[4] = {};
    const int32_t u = lane % 8, first = lane / 8;
    if (u < 2 * count) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = device::load_shared_16(at + unit_at(4 * i + first, u));
#pragma unroll
      for (int i = 0; i < 4; ++i) store_rounded<mode>(p, at + unit_at(4 * i + first, u), v[i]);
    }
  }
}

// Whether some step of a tile may read beyond an edge of the image.
CONVT_DEVICE bool reaches_outside(const Params& p, const Place& at, const DeviceSet& set) {
  const int32_t row = at.row + set.origin_row, column = (p.im2col ? 0 : at.column) + set.origin_column;
  return row < 0 || row + p.reach_rows > p.h.in || column < 0 || column + p.reach_columns > p.v.in;
}

// The patches of a block's units, one chunk of channels after the other. Rows are those of x.
template <Variant variant, class Fill>
CONVT_DEVICE void for_each_chunk(const Params& p, const Fill& fill) {
  const int32_t end = units_end<variant>(p);
  for (int32_t unit = first_unit<variant>(p); unit < end; unit = next_unit<variant>(p, unit, end)) {
    Place at = place_of<variant>(p, unit, 0);
    at.row *= p.x_row_step;
    const Chunks chunks = chunks_of<variant>(p, at, unit, end);
    if (chunks.first != chunks.last) fill(at, p.sets[at.set], chunks);
  }
}

template <Mode mode, Variant variant, Fill fill>
CONVT_DEVICE void fill_patches(const Params& p, unsigned char* shared, const Barriers& barriers) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr bool wide = rounds<mode>, copies = wide || fill != Fill::elements;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - consumers - 32;
  auto* const offsets = reinterpret_cast<int32_t*>(shared + p.pixels_at);
  auto* const places = reinterpret_cast<uint32_t*>(offsets + region_pixels * p.regions);
  Filler filler{offsets, p.gather ? places : nullptr, thread / 32, fillers / 32, thread % 32, 0, 0};
  // Whether an edge of the image is in the patch: of the stages that hold the first chunk of a tile, and of this tile
  // and the next one.
  auto* const edges = reinterpret_cast<uint32_t*>(shared + words_at);
  auto* const edge_of_tile = edges + most_patch_stages;
  int32_t turn = 0;
  const device::SharedAddress patches = device::dynamic_shared_address() + static_cast<uint32_t>(p.patches_at);
  device::Ring ring;
  // The stage whose copies may be on their way, and how many products it is. From three stages on, the next ones are
  // begun before these are waited for; with two, consumers may wait for these before they give the other stage back, as
  // they may if a patch that stays has all stages.
  int32_t copied = -1, copied_count = 0;
  const bool early = p.stages > 2 && (p.reuse == 1 || p.stages > p.chunks);
  const auto finish = [&] {
    const device::SharedAddress stage = patches + static_cast<uint32_t>(copied * p.patch_bytes);
    if constexpr (fill == Fill::rows || (fill == Fill::elements && wide)) {
      transpose_regions<mode>(p, filler, stage, copied_count);
    } else if constexpr (wide) {
      round_regions<mode>(p, filler, stage, copied_count);
    }
    device::fence_async_proxy();
    __syncwarp();
    if (filler.lane == 0) device::mbarrier_arrive(barriers.patch_full(copied));
    copied = -1;
  };
  for_each_chunk<variant>(p, [&](const Place& at, const DeviceSet& set, const Chunks& chunks) {
    // Where the patch's pixels are in x, from its first image and channel.
    device::named_barrier(1, fillers);
    bool outside = p.gather && reaches_outside(p, at, set);
#pragma unroll 1
    for (int32_t i = thread; i < region_pixels * p.regions; i += fillers) {
      if (p.gather) {
        uint32_t column = static_cast<uint32_t>(i), row = p.by_patch_columns.divide(column);
        const auto image = static_cast<int32_t>(p.by_patch_rows.divide(row));
        const int32_t r = at.row + static_cast<int32_t>(row), c = at.column + static_cast<int32_t>(column);
        offsets[i] = static_cast<int32_t>(image * p.x_batch_stride) + r * p.x_row_stride + c * p.x_column_stride;
        // What is beyond the tile or the batch is far outside of its image.
        const bool there = image < p.tile_images && at.image + image < p.batch;
        places[i] = pack_shift(there ? r : -2 * gathers_less_than, c);
      } else {
        offsets[i] = pixel_offset(p, at, set, i, outside);
      }
    }
    if (outside) edge_of_tile[turn] = 1;
    device::named_barrier(1, fillers);
    const uint32_t edge = edge_of_tile[turn];
    turn ^= 1;
    if (thread == 0) edge_of_tile[turn] = 0;

    constexpr int32_t channels = channels_of_chunk(mode);
    int32_t channel = chunks.first * channels;
    const Scalar* x = static_cast<const Scalar*>(p.x) + at.image * p.x_batch_stride +
                      (static_cast<int64_t>(at.group) * p.in_channels + channel) * p.x_channel_stride;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const int32_t count = count_of(p, chunk), left = p.in_channels - channel;
      for (int32_t step = 0; step < (p.gather ? set.steps : 1); ++step) {
        if (p.gather) {
          filler.shift = p.steps[set.first_step + step].offset;
          filler.shift_offset = row_of(filler.shift) * p.x_row_stride + column_of(filler.shift) * p.x_column_stride;
        }
        const device::SharedAddress stage = patches + static_cast<uint32_t>(ring.stage * p.patch_bytes);
        device::mbarrier_wait(barriers.patch_empty(ring.stage), ring.parity ^ 1);
        if (thread == 0) edges[ring.stage] = edge;
        if constexpr (fill == Fill::channels) {
          copy_channels(p, filler, x, stage, left, count);
        } else if constexpr (fill == Fill::rows) {
          copy_rows(p, filler, x, stage, left, count);
        } else if constexpr (wide) {
          copy_elements(p, filler, x, stage, left, count);
        } else {
          store_elements(p, filler, x, stage, left, count);
        }
        if constexpr (copies) device::cp_async_commit();
        if (copies && copied >= 0) {
          device::cp_async_wait<1>();
          finish();
        }
        copied = ring.stage, copied_count = count;
        if (!copies || !early) {
          device::cp_async_wait<0>();
          finish();
        }
        ring.advance(p.stages);
      }
      channel += channels, x += channels * p.x_channel_stride;
    }
  });
  if (copied >= 0) {
    device::cp_async_wait<0>();
    finish();
  }
}

// Boxes of rows are [channel][pixel], and are brought to their place where they lie, without bank conflicts.
//
// Of 16-bit types, matrices of 8 channels by 8 pixels: the 16 pixels from `pixel` on of a box whose rows have so many
// units of 16 bytes, swizzled.
template <int RowUnits>
CONVT_DEVICE void load_transposed(uint32_t (&r)[4][4], device::SharedAddress box, int32_t pixel, int32_t lane,
                                  int32_t count) {
  static_assert(RowUnits == 2 || RowUnits == 8);
  const int32_t unit = pixel / 8 + lane / 8 % 2, channel = lane / 16 * 8 + lane % 8;
  const int32_t swizzle = RowUnits == 2 ? channel >> 2 & 1 : channel & 7;
  const device::SharedAddress row = box + static_cast<uint32_t>((channel * RowUnits + (unit ^ swizzle)) * unit_bytes);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < count) device::ldmatrix_x4_trans(r[k], row + static_cast<uint32_t>(k * 16 * RowUnits * unit_bytes));
  }
}
CONVT_DEVICE void store_transposed(const uint32_t (&r)[4][4], device::SharedAddress pixels, int32_t lane,
                                   int32_t count) {
  const int32_t pixel = lane / 8 % 2 * 8 + lane % 8, unit = lane / 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < count) device::stmatrix_x4(pixels + unit_at(pixel, 2 * k + unit), r[k]);
  }
}

// A wide box: each of two warps has half of its pixels.
CONVT_DEVICE void transpose_wide_matrices(device::SharedAddress box, int32_t warp, int32_t lane, int32_t count) {
  constexpr int32_t bytes = region_pixels * row_bytes;
  uint32_t r[2][4][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) load_transposed<8>(r[i], box, (2 * warp + i) * region_pixels, lane, count);
  device::named_barrier(1, rounders);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_transposed(r[i], box + static_cast<uint32_t>((2 * warp + i) * bytes), lane, count);
  }
}
CONVT_DEVICE void transpose_narrow_matrices(device::SharedAddress box, int32_t lane, int32_t count) {
  uint32_t r[4][4];
  load_transposed<2>(r, box, 0, lane, count);
  __syncwarp();
  store_transposed(r, box, lane, count);
}

// Of float32, where all boxes are wide: a lane has a pixel, and each of two warps half of the channels. The copy engine
// has rounded them.
CONVT_DEVICE void load_words(uint32_t (&r)[4][4], device::SharedAddress box, int32_t first, int32_t lane,
                             int32_t count) {
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    if (first + u >= 2 * count) break;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      r[u][k] = device::load_shared_4(box + static_cast<uint32_t>((4 * (first + u) + k) * row_bytes + 4 * lane));
    }
  }
}
template <Mode mode>
CONVT_DEVICE void store_words(const Params& p, const uint32_t (&r)[4][4], device::SharedAddress box, int32_t first,
                              int32_t lane, int32_t count) {
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    if (first + u >= 2 * count) break;
    const device::SharedAddress to = box + unit_at(lane, first + u);
    if constexpr (parts_of(mode) == 2) {
      store_rounded<mode>(p, to, make_uint4(r[u][0], r[u][1], r[u][2], r[u][3]));
    } else {
      device::store_shared_16(to, r[u][0], r[u][1], r[u][2], r[u][3]);
    }
  }
}

// A warp's part of a patch.
template <Mode mode>
CONVT_DEVICE void transpose_boxes(const Params& p, const Filler& f, device::SharedAddress stage, int32_t count) {
  // What depends on a lane is computed again for each box, as there are no registers for it.
  constexpr int32_t narrow_place = region_pixels * row_bytes;
  constexpr int32_t wide_place = wide_pixels(sizeof(typename Traits<mode>::Scalar)) * row_bytes;
  const int32_t rows = p.tile_images * p.patch_rows;
  device::SharedAddress box = stage;
  if constexpr (rounds<mode>) {
    // Two at a time: one waits for most of the time.
#pragma unroll 1
    for (int32_t left = rows * p.wide_boxes; left > 0; left -= 2, box += 2 * wide_place) {
      const int32_t lane = opaque(f.lane), first = 4 * f.warp;
      const device::SharedAddress second = box + static_cast<uint32_t>(left > 1 ? wide_place : 0);
      uint32_t r[2][4][4];
      load_words(r[0], box, first, lane, count);
      load_words(r[1], second, first, lane, count);
      device::named_barrier(1, rounders);
      store_words<mode>(p, r[0], box, first, lane, count);
      if (left > 1) store_words<mode>(p, r[1], second, first, lane, count);
    }
  } else {
    int32_t mine = f.warp;  // narrow boxes until the warp's next one
#pragma unroll 1
    for (int32_t row = 0; row < rows; ++row) {
#pragma unroll 1
      for (int32_t i = 0; i < p.wide_boxes; ++i, box += wide_place) {
        transpose_wide_matrices(box, f.warp, opaque(f.lane), count);
      }
#pragma unroll 1
      for (int32_t i = 0; i < p.narrow_boxes; ++i, box += narrow_place, mine ^= 1) {
        if (mine == 0) transpose_narrow_matrices(box, opaque(f.lane), count);
      }
    }
  }
}

// Whether two warps prepare what the copy engine has brought: transpose rows, or split what is in its place.
template <Mode mode>
CONVT_DEVICE bool prepares_boxes(const Params& p) {
  return p.rows_in_boxes || (parts_of(mode) == 2 && !p.channels_last);
}

// Has the copy engine bring the rows of a patch that begins at `row` and `column`, of a chunk; one lane.
template <Mode mode>
CONVT_DEVICE void load_rows(const Params& p, const Place& at, int32_t row, int32_t column, int32_t chunk,
                            device::SharedAddress to, device::SharedAddress there) {
  constexpr int32_t wide = wide_pixels(sizeof(typename Traits<mode>::Scalar)), narrow_place = region_pixels * row_bytes;
#pragma unroll 1
  for (int32_t image = at.image; image < at.image + p.tile_images; ++image) {
#pragma unroll 1
    for (int32_t r = row; r < row + p.patch_rows; ++r) {
      int32_t place[tensor_map_rank] = {column, chunk * channels_of_chunk(mode), r, image, at.group};
#pragma unroll 1
      for (int32_t i = 0; i < p.wide_boxes; ++i, place[0] += wide, to += wide * row_bytes) {
        device::box_load(to, p.wide_x_map, place, there);
      }
#pragma unroll 1
      for (int32_t i = 0; i < p.narrow_boxes; ++i, place[0] += region_pixels, to += narrow_place) {
        device::box_load(to, p.x_map, place, there);
      }
    }
  }
}

// A warp's part where the copy engine brings the patches.
template <Mode mode, Variant variant>
CONVT_DEVICE void copy_boxes(const Params& p, unsigned char* shared, const Barriers& barriers) {
  constexpr bool general = is_general(variant), may_prepare = general || writes_rows(variant);
  const bool prepared = may_prepare && prepares_boxes<mode>(p), rows = may_prepare && p.rows_in_boxes,
             gather = general && p.gather, im2col = general && p.im2col;
  if (p.channels_last) device::wait_for_previous_kernel();
  auto* const edges = reinterpret_cast<uint32_t*>(shared + words_at);
  const device::SharedAddress patches = device::dynamic_shared_address() + static_cast<uint32_t>(p.patches_at);
  const int32_t parts = prepared ? 1 : parts_of(mode);
  const int32_t row_of_boxes = p.wide_boxes * p.wide_bytes + p.narrow_boxes * p.narrow_bytes;
  const auto bytes =
      static_cast<uint32_t>(rows ? p.tile_images * p.patch_rows * row_of_boxes : p.patch_pixels * row_bytes * parts);
  device::Ring ring;
  for_each_chunk<variant>(p, [&](const Place& at, const DeviceSet& set, const Chunks& chunks) {
    const bool outside = reaches_outside(p, at, set);
    int32_t row = at.row + set.origin_row, column = at.column + set.origin_column, image = at.image;
    uint32_t shift = 0;
    if (im2col) {
      auto first = static_cast<uint32_t>(at.column);
      uint32_t next = p.by_patch_columns.divide(first);
      image = at.group * p.batch + static_cast<int32_t>(p.by_patch_rows.divide(next));
      row = static_cast<int32_t>(next) + set.origin_row, column = static_cast<int32_t>(first) + set.origin_column;
    }
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      for (int32_t step = 0; step < (gather ? set.steps : 1); ++step) {
        if (gather) {
          shift = p.steps[set.first_step + step].offset;
          if (!im2col) row = at.row + row_of(shift), column = at.column + column_of(shift);
        }
        device::mbarrier_wait(barriers.patch_empty(ring.stage), ring.parity ^ 1);
        if (device::elect()) {
          if (!prepared) edges[ring.stage] = outside ? 1 : 0;
          const device::SharedAddress there =
              prepared ? barriers.patch_read(ring.stage) : barriers.patch_full(ring.stage);
          device::mbarrier_arrive_expect(there, bytes);
          const device::SharedAddress stage = patches + static_cast<uint32_t>(ring.stage * p.patch_bytes);
          // Out of the way: instructions of other layers would be fetched around it.
          if (rows) [[unlikely]] {
            load_rows<mode>(p, at, row, column, chunk, stage, there);
          } else {
#pragma unroll
            for (int32_t part = 0; part < parts_of(mode); ++part) {
              if (part == parts) break;
              const device::SharedAddress to = stage + static_cast<uint32_t>(part * p.patch_part_bytes);
              if (im2col) {
                const int32_t place[] = {chunk * channels_of_chunk(mode), column, row,
                                         part * p.groups * p.batch + image};
                device::im2col_load(to, p.x_map, place, column_of(shift), row_of(shift), there);
                continue;
              }
              const int32_t place[tensor_map_rank] = {chunk * channels_of_chunk(mode), column, row, image,
                                                      part * p.groups + at.group};
              device::box_load(to, p.x_map, place, there);
            }
          }
        }
        ring.advance(p.stages);
      }
    }
  });
}

// What the other two warps do with them.
template <Mode mode, Variant variant>
CONVT_DEVICE void prepare_boxes(const Params& p, unsigned char* shared, const Barriers& barriers) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - consumers - 64;
  const Filler filler{nullptr, nullptr, thread / 32, rounders / 32, thread % 32, 0, 0};
  auto* const edges = reinterpret_cast<uint32_t*>(shared + words_at);
  const device::SharedAddress patches = device::dynamic_shared_address() + static_cast<uint32_t>(p.patches_at);
  device::Ring ring;
  for_each_chunk<variant>(p, [&](const Place& at, const DeviceSet& set, const Chunks& chunks) {
    const uint32_t outside = reaches_outside(p, at, set) ? 1 : 0;
    for (int32_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      for (int32_t step = 0; step < (p.gather ? set.steps : 1); ++step) {
        device::mbarrier_wait(barriers.patch_read(ring.stage), ring.parity);
        const device::SharedAddress stage = patches + static_cast<uint32_t>(ring.stage * p.patch_bytes);
        if (p.rows_in_boxes) [[unlikely]] {
          transpose_boxes<mode>(p, filler, stage, count_of(p, chunk));
        } else if constexpr (parts_of(mode) == 2) {
          round_regions<mode>(p, filler, stage, count_of(p, chunk));
        }
        device::fence_async_proxy();
        // By one who arrives where consumers wait: racecheck does not follow a word from a barrier to the next one.
        if (thread == 0) edges[ring.stage] = outside;
        __syncwarp();
        if (filler.lane == 0) device::mbarrier_arrive(barriers.patch_full(ring.stage));
        ring.advance(p.stages);
      }
    }
  });
}

// Positions that are gathered leave some of a patch's pixels out, which boxes do not write. Products of whatever is
// there go nowhere, but sums that are not finite make a tile look for what is to be computed again.
template <Mode mode>
CONVT_DEVICE void clear_beyond_boxes(const Params& p, unsigned char* shared) {
  if (p.copy_boxes && p.gather) [[unlikely]] {
    const int32_t first = p.patch_pixels * row_bytes, bytes = p.patch_part_bytes - first;
#pragma unroll 1
    for (int32_t part = 0; part < p.stages * parts_of(mode); ++part) {
      unsigned char* const to = shared + p.patches_at + part * p.patch_part_bytes + first;
#pragma unroll 1
      for (int32_t i = static_cast<int32_t>(threadIdx.x) * unit_bytes; i < bytes; i += consumers * unit_bytes) {
        *reinterpret_cast<uint4*>(to + i) = {};
      }
    }
    device::fence_async_proxy();
  }
}

// How many arrivals make a stage of the patch full.
template <Mode mode>
CONVT_DEVICE uint32_t patch_arrivals(const Params& p) {
  return !p.copy_boxes ? fillers / 32 : prepares_boxes<mode>(p) ? rounders / 32 : 1;
}

template <Mode mode, Variant variant>
CONVT_DEVICE void fill_patches(const Params& p, unsigned char* shared, const Barriers& barriers) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32 - consumers / 32 - 1;
  if constexpr (!is_general(variant)) {
    if (warp == 0) {
      copy_boxes<mode, variant>(p, shared, barriers);
    } else if (writes_rows(variant) && p.rows_in_boxes) {
      prepare_boxes<mode, variant>(p, shared, barriers);
    }
  } else if (p.copy_boxes) {
    if (warp == 0) {
      copy_boxes<mode, variant>(p, shared, barriers);
    } else if (prepares_boxes<mode>(p)) {
      prepare_boxes<mode, variant>(p, shared, barriers);
    } else if (transposes_weights<mode>(p)) {
      transpose_weights<variant>(p, barriers);
    }
  } else if constexpr (threads_bring(variant)) {
    if (p.fill == Fill::channels) {
      fill_patches<mode, variant, Fill::channels>(p, shared, barriers);
    } else if (p.fill == Fill::rows) {
      fill_patches<mode, variant, Fill::rows>(p, shared, barriers);
    } else {
      fill_patches<mode, variant, Fill::elements>(p, shared, barriers);
    }
  }
}

}  // namespace convt::implicit_gemm_sm90
