// Reading the patch: asynchronous copies bring a chunk of it to shared memory while chunks before it are multiplied;
// then each thread rounds, splits or pairs what it has copied, where it lies. The patch is [channel
// group][t][pixel][part][2 words]. Lane t of a fragment takes all words of a pixel at once: channels 2t and 2t + 1 of
// float32, 4t to 4t + 3 of the 16-bit types.
//
// A thread copies, of every chunk, the same pixels of the same t of the same channel group. Pixels outside the image
// are zeros from the start, and no thread copies them: on an image of 4 x 4 they are most of the patch.
#pragma once

#include "../implicit_gemm/device.cuh"
#include "../tf32.h"
#include "params.h"

namespace convt::implicit_gemm_sm80 {

// A pixel of the patch, or four of a row, that the image has: where it is in x, in elements from the tile's first image
// and the group's first channel, and where in a plane of the patch, in bytes. Of every other four pixels, each two
// pieces of 16 bytes are exchanged while their threads write or read them, so that neighbours meet in no bank: the
// first piece's place has 16 more then, and the other's is found by an exclusive or.
using Pixel = uint2;

struct Filler {
  const void* x;        // of the tile's first image and the group's first channel
  const Pixel* pixels;  // in shared memory
  int32_t count;
};

// The part of the patch that lies in the image, in pixels of the patch.
struct Inside {
  int32_t first_row, rows, first_column, columns, images;
};

CONVT_DEVICE Inside inside_of(const Params& p, const Place& at, const DeviceSet& set) {
  const auto larger = [](int32_t a, int32_t b) { return a > b ? a : b; };
  const int32_t row = at.row + set.origin_row, column = at.column + set.origin_column;
  Inside in;
  in.first_row = larger(0, -row), in.first_column = larger(0, -column);
  in.rows = larger(0, smaller(p.patch_rows, p.h.in - row) - in.first_row);
  in.columns = larger(0, smaller(p.patch_columns, p.v.in - column) - in.first_column);
  in.images = smaller(p.tile_images, p.batch - at.image);
  return in;
}

// Pixel `i` of the `width` in a row of the image's part. Rows that are read four pixels at a time begin and end with
// all four.
template <Mode mode>
CONVT_DEVICE Pixel pixel_of(const Params& p, const Place& at, const DeviceSet& set, const Inside& in, uint32_t width,
                            uint32_t i) {
  const auto rows = static_cast<uint32_t>(in.rows);
  const uint32_t row_of_all = i / width, image = row_of_all / rows;
  const int32_t column =
      in.first_column + static_cast<int32_t>(i - row_of_all * width) * (p.fill == Fill::rows ? quad : 1);
  const int32_t row = in.first_row + static_cast<int32_t>(row_of_all - image * rows);
  const int32_t from = static_cast<int32_t>(image) * static_cast<int32_t>(p.x_batch_stride) +
                       (at.row + set.origin_row + row) * p.x_row_stride +
                       (at.column + set.origin_column + column) * p.x_column_stride;
  const int32_t pixel = (static_cast<int32_t>(image) * p.patch_rows + row) * p.patch_columns + column;
  auto to = static_cast<uint32_t>(pixel_bytes(mode) * pixel);
  if (p.fill == Fill::rows) to |= to / (quad * pixel_bytes(mode)) % 2 * 16;
  return make_uint2(static_cast<uint32_t>(from), to);
}

// What a thread copies of a chunk: pixels `first`, first + step, ... of one t of one channel group. Neighbouring
// threads copy what are neighbours in x, as far as that leaves their places in shared memory in different banks.
struct Share {
  int32_t group, t, first, step;
};

template <int Threads>
CONVT_DEVICE Share share_of(const Params& p, int32_t thread) {
  static_assert(Threads == 128 || Threads == 256);
  constexpr int32_t all = Threads == 128 ? 7 : 8;  // bits of a thread's number
  // A chunk has one, two or four channel groups.
  const int32_t log = 2 + p.groups_of_chunk / 2;
  Share s;
  s.step = Threads >> log;
  if (p.fill == Fill::channels) {
    const int32_t slot = thread & ((1 << log) - 1);
    s.group = slot / 4, s.t = slot % 4, s.first = thread >> log;
  } else if (p.fill == Fill::rows) {
    s.t = thread % 4, s.first = (thread / 4) & (s.step - 1), s.group = thread >> (all + 2 - log);
  } else {
    const int32_t slot = thread >> (all - log);
    s.group = slot / 4, s.t = slot % 4, s.first = thread & (s.step - 1);
  }
  return s;
}

template <int Count>
struct Batch {
  static constexpr int value = Count;
};

// Copies the thread's share of chunk `chunk`; at most `Loads` loads are waited for together. The address of a copy of
// nothing is not read.
template <Mode mode, int Threads, int Loads>
CONVT_DEVICE void copy_chunk(const Params& p, const Filler& f, device::SharedAddress stage, int32_t chunk,
                             int32_t thread) {
  using Scalar = typename Traits<mode>::Scalar;
  constexpr int channels = channels_of_fragment(mode), count = channels / 4;  // of a fragment, of a lane
  const Share share = share_of<Threads>(p, thread);
  const int32_t group = chunk * p.groups_of_chunk + share.group;
  if (group >= p.channel_groups) return;
  const int32_t channel = group * channels + share.t * count;
  const int32_t left = p.in_channels - channel;
  const device::SharedAddress to = stage + static_cast<uint32_t>((share.group * 4 + share.t) * p.patch_plane);
  // As numbers, so that a pixel's address is one multiplication and addition.
  const uint64_t x = reinterpret_cast<uint64_t>(f.x) + static_cast<uint64_t>(left > 0 ? channel : 0) *
                                                           static_cast<uint64_t>(p.x_channel_stride * sizeof(Scalar));
  const auto pixel_in = [](uint64_t plane, const Pixel& at) {
    return reinterpret_cast<const Scalar*>(plane + uint64_t{at.x} * sizeof(Scalar));
  };
  // A few pixels' places are on their way at a time.
  const auto each = [&](auto batch, const auto& copy) {
#pragma unroll 1
    for (int32_t i = share.first; i < f.count; i += batch.value * share.step) {
      Pixel at[batch.value];
#pragma unroll
      for (int e = 0; e < batch.value; ++e) at[e] = f.pixels[i + e * share.step < f.count ? i + e * share.step : i];
#pragma unroll
      for (int e = 0; e < batch.value; ++e) {
        if (i + e * share.step < f.count) copy(at[e]);
      }
    }
  };
  if (p.fill == Fill::channels) {
    const int32_t bytes = left > 0 ? 8 : 0;
    each(Batch<4>{}, [&](const Pixel& at) { device::cp_async<8>(to + at.y, pixel_in(x, at), bytes); });
    return;
  }
  uint64_t planes[count];  // of the lane's channels
#pragma unroll
  for (int c = 0; c < count; ++c) planes[c] = x + static_cast<uint64_t>(c * p.x_channel_stride * sizeof(Scalar));
  if (p.fill == Fill::rows) {
    // They are first [channel][pixel], in the order of channels that leaves neighbours in different banks.
    each(Batch<2>{}, [&](const Pixel& at) {
#pragma unroll
      for (int c = 0; c < count; ++c) {
        device::cp_async<32 / count>((to + at.y) ^ static_cast<uint32_t>(c * (32 / count)), pixel_in(planes[c], at),
                                     c < left ? 32 / count : 0);
      }
    });
    return;
  }
  if constexpr (sizeof(Scalar) == 4) {
    each(Batch<4>{}, [&](const Pixel& at) {
#pragma unroll
      for (int c = 0; c < count; ++c) {
        device::cp_async<4>(to + at.y + static_cast<uint32_t>(4 * c), pixel_in(planes[c], at), c < left ? 4 : 0);
      }
    });
  } else {
    // No asynchronous copy takes elements of 2 bytes. A few pixels' loads are on their way at a time.
    constexpr int batch = Loads / count;
#pragma unroll 1
    for (int32_t i = share.first; i < f.count; i += batch * share.step) {
      uint32_t r[batch][count], at[batch];
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        const bool exists = i + e * share.step < f.count;
        const Pixel here = f.pixels[exists ? i + e * share.step : i];
        at[e] = here.y;
#pragma unroll
        for (int c = 0; c < count; ++c) {
          r[e][c] = 0;
          if (exists && c < left) r[e][c] = __ldg(reinterpret_cast<const uint16_t*>(pixel_in(planes[c], here)));
        }
      }
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        if (i + e * share.step < f.count) {
          device::store_shared_8(to + at[e], r[e][0] | r[e][1] << 16, r[e][2] | r[e][3] << 16);
        }
      }
    }
  }
}

// Whether copies of a mode's elements are what the fragments are.
template <Mode mode>
CONVT_DEVICE bool copies_need_no_order(const Params& p) {
  return sizeof(typename Traits<mode>::Scalar) == 2 && p.fill != Fill::rows;
}

// Brings into order what this thread has copied of a chunk.
template <Mode mode, int Threads>
CONVT_DEVICE void finish_chunk(const Params& p, const Filler& f, device::SharedAddress stage, int32_t chunk,
                               int32_t thread) {
  constexpr bool wide = sizeof(typename Traits<mode>::Scalar) == 4;
  const Share share = share_of<Threads>(p, thread);
  if (chunk * p.groups_of_chunk + share.group >= p.channel_groups) return;
  stage += static_cast<uint32_t>((share.group * 4 + share.t) * p.patch_plane);
  if (p.fill == Fill::rows) {
#pragma unroll 1
    for (int32_t i = share.first; i < f.count; i += share.step) {
      const Pixel at = f.pixels[i];
      const device::SharedAddress to = stage + at.y;
      const bool exchange = (at.y & 16) != 0;
      const uint4 even = device::load_shared_16(to), odd = device::load_shared_16(to ^ 16);
      if constexpr (mode == Mode::ieee) {
        // Pixels 0 to 3 of two channels; of two neighbours, the second first where places are exchanged.
        const uint32_t r[2][4] = {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
#pragma unroll
        for (int e = 0; e < quad; ++e) {
          uint32_t high[2], low[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) split_pixel(exchange ? r[c][e ^ 1] : r[c][e], high[c], low[c]);
          device::store_shared_16((to ^ static_cast<uint32_t>(e % 2 * 16)) + static_cast<uint32_t>(e / 2 * 32), high[0],
                                  high[1], low[0], low[1]);
        }
      } else {
        uint32_t r[8] = {even.x, even.y, even.z, even.w, odd.x, odd.y, odd.z, odd.w};
        if constexpr (mode == Mode::tf32) tf32_operands(r);
        uint32_t words[2][4];  // of two pixels
#pragma unroll
        for (int e = 0; e < quad; e += 2) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if constexpr (mode == Mode::tf32) {
              words[e / 2][k] = r[k % 2 * 4 + e + k / 2];
            } else {
              words[e / 2][k] = __byte_perm(r[k % 2 * 4 + e / 2], r[k % 2 * 4 + 2 + e / 2], k < 2 ? 0x5410 : 0x7632);
            }
          }
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          uint32_t (&first)[4] = words[e], (&second)[4] = words[e ^ 1];
          device::store_shared_16(to ^ static_cast<uint32_t>(16 * e), exchange ? second[0] : first[0],
                                  exchange ? second[1] : first[1], exchange ? second[2] : first[2],
                                  exchange ? second[3] : first[3]);
        }
      }
    }
    return;
  }
  if constexpr (wide) {
    constexpr int batch = 4;  // loads on their way at a time
#pragma unroll 1
    for (int32_t i = share.first; i < f.count; i += batch * share.step) {
      device::SharedAddress at[batch];
      uint2 words[batch];
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        at[e] = stage + f.pixels[i + e * share.step < f.count ? i + e * share.step : i].y;
        words[e] = device::load_shared_8(at[e]);
      }
#pragma unroll
      for (int e = 0; e < batch; ++e) {
        if (i + e * share.step >= f.count) break;
        if constexpr (mode == Mode::tf32) {
          device::store_shared_8(at[e], tf32_operand(words[e].x), tf32_operand(words[e].y));
        } else {
          uint32_t high[2], low[2];
          split_pixel(words[e].x, high[0], low[0]), split_pixel(words[e].y, high[1], low[1]);
          device::store_shared_16(at[e], high[0], high[1], low[0], low[1]);
        }
      }
    }
  }
}

}  // namespace convt::implicit_gemm_sm80
