// A block computes some output channels of a range of output rows, step by step. In a step, every warp lets a part of
// the previous step's outputs be stored from shared memory, loads a part of the next step's input rows, and multiplies:
// the rows of a product are 16 neighbouring input columns, its columns 8 output channels, and all phases of a step's
// outputs are put in shared memory. Another block of the SM hides the latency of memory.
#pragma once

#include "../device.h"
#include "params.h"

namespace convt::grouped {

template <class Scalar>
struct Element {
  static constexpr int per_word = 4 / sizeof(Scalar);
  static constexpr int line = line_bytes / sizeof(Scalar);
  static constexpr bool half = sizeof(Scalar) == 2;
};

template <class Scalar, int N>
struct alignas(sizeof(Scalar) * N) Elements {
  Scalar v[N];
};

// The outputs of a step: columns [first, last) of `rows` rows from `row` on. Several rows have all columns of a strip.
struct Step {
  int32_t row, rows, first, last;
  int32_t load_first, load_end;  // input rows that no step before has
  int32_t input_column;          // of the first output of a phase, relative to the one in shared memory
  int32_t begin;                 // of the outputs of a plane
  bool busy, bare;               // whether rows have taps, and whether rows have none
  bool middle;                   // at least a line of the block's outputs is before it, and some are behind it
};
static_assert(sizeof(Step) <= step_bytes);

// What a block knows about itself.
struct alignas(8) Block {
  int32_t first_row, last_row;        // outputs [first_row, last_row) of ...
  int32_t first_column, last_column;  // ... and columns, with those that it only takes along
  int32_t owned_column, strip_end;    // nominal bounds of the strip
  int32_t group, tile;                // first group, first tile of 8 output channels in it
  int32_t channel, channels;          // first output channel, and how many there are
  int32_t input_column;               // of the first column in shared memory
};

template <class Scalar, bool Strict, int StepWords>
CONVT_DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t* b) {
  if constexpr (Element<Scalar>::half && StepWords == 4) {
    const uint32_t a2[2] = {a[0], a[1]}, b1[1] = {b[0]};
    device::mma_m16n8k8<Scalar>(d, a2, b1);
  } else if constexpr (Element<Scalar>::half) {
    const uint32_t b2[2] = {b[0], b[1]};
    device::mma_m16n8k16<Scalar>(d, a, b2);
  } else {
    const uint32_t b2[2] = {b[0], b[1]};
    device::mma_m16n8k8_tf32(d, a, b2);
  }
}

CONVT_DEVICE uint32_t low_part(uint32_t word, uint32_t high) {
  return device::to_tf32(__uint_as_float(word) - __uint_as_float(high));
}

// Whether a word as it is multiplied is or has an infinity or a NaN.
template <class Scalar>
CONVT_DEVICE bool not_finite(uint32_t word) {
  if constexpr (sizeof(Scalar) == 4) {
    return (device::to_tf32(__uint_as_float(word)) & 0x7f800000u) == 0x7f800000u;
  } else {
    // Largest exponent of float16, of bfloat16.
    constexpr uint32_t mask = std::is_same_v<Scalar, Float16> ? 0x7c00u : 0x7f80u;
    return (word & mask) == mask || (word >> 16 & mask) == mask;
  }
}

template <class Scalar>
CONVT_DEVICE uint32_t bits(const Scalar* p) {
  if constexpr (sizeof(Scalar) == 4) {
    return __float_as_uint(__ldg(p));
  } else {
    return __ldg(reinterpret_cast<const uint16_t*>(p));
  }
}

template <class Scalar, bool Strict>
CONVT_DEVICE uint32_t operand(uint32_t word) {
  if constexpr (sizeof(Scalar) == 4 && !Strict) return device::to_tf32(__uint_as_float(word));
  return word;
}

template <class Scalar>
CONVT_DEVICE float element_of(uint32_t word, int which) {
  if constexpr (sizeof(Scalar) == 4) {
    return __uint_as_float(word);
  } else {
    return to_float(Scalar{static_cast<uint16_t>(word >> 16 * which)});
  }
}

// N words, or one 16-bit element if N is 0, where `is`; zeros elsewhere. A predicated instruction rather than a branch:
// behind a branch the compiler waits for a load before it issues the next one.
template <int N>
CONVT_DEVICE void load_if(bool is, const void* from, uint32_t* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (N == 4) {
    asm("{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
        " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(from), "r"(static_cast<unsigned>(is)));
  } else if constexpr (N == 2) {
    asm("{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(from), "r"(static_cast<unsigned>(is)));
  } else if constexpr (N == 1) {
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1];}"
        : "=&r"(to[0])
        : "l"(from), "r"(static_cast<unsigned>(is)));
  } else {
    uint16_t half;
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u16 %0, 0; @p ld.global.nc.u16 %0, [%1];}"
        : "=&h"(half)
        : "l"(from), "r"(static_cast<unsigned>(is)));
    to[0] = half;
  }
#else
  for (int i = 0; i < N; ++i) to[i] = is ? static_cast<const uint32_t*>(from)[i] : 0;
  if (N == 0) to[0] = is ? *static_cast<const uint16_t*>(from) : 0;
#endif
}

// V words of x: of neighbouring columns, or of neighbouring channels. 16-bit elements of two channels, the `second` one
// `pair` away if there is one, are put together by join_words() when they are there.
template <class Scalar, int V, bool XPixels>
CONVT_DEVICE void read_words(bool is, const Scalar* x, bool second, int64_t pair, uint32_t (&to)[4]) {
  if constexpr (sizeof(Scalar) == 4 || (!XPixels && V > 1)) {
    load_if<V>(is, x, to);
  } else {
    load_if<V / 2>(is, x, to);
    load_if<V / 2>(is && second, x + pair, to + 2);
  }
}
template <class Scalar, int V, bool XPixels>
CONVT_DEVICE void join_words(uint32_t (&w)[4]) {
  if constexpr (sizeof(Scalar) == 2 && (XPixels || V == 1)) {
    const uint32_t low[2] = {w[0], w[1]}, high[2] = {w[2], w[3]};
#pragma unroll
    for (int i = 0; i < V; ++i) w[i] = __byte_perm(low[i / 2], high[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
  }
}

// Input rows [from, to) of the block's channels into their places of the ring, by `threads` threads. Columns outside
// the image and words beyond the group's channels stay the zeros that they are.
template <class Scalar, bool Strict, int V, bool XPixels>
CONVT_DEVICE void load_rows_of(const Params& p, const Block& b, const Scalar* x, uint32_t* ring, int32_t* spoilt,
                               int32_t from, int32_t to, int thread, int threads) {
  constexpr int batch = 4;  // loads in flight
  const Tiling& t = p.t;
  constexpr int per_word = Element<Scalar>::per_word;
  const uint32_t items = static_cast<uint32_t>(larger(to - from, 0)) * p.load_middle.divisor * p.load_inner.divisor;
  bool bad = false;
#pragma unroll 1
  for (uint32_t first = static_cast<uint32_t>(thread); first < items; first += batch * threads) {
    uint32_t words[batch][4] = {};
    int32_t place[batch];  // negative if there is nothing to store
    uint32_t parts = 0;
    // Half of a batch is left out by all threads together.
    const bool all = first - static_cast<uint32_t>(thread) + static_cast<uint32_t>(batch / 2 * threads) < items;
    const auto start = [&](int i) {
      uint32_t inner = first + static_cast<uint32_t>(i * threads);
      bool is = inner < items;
      uint32_t middle = p.load_inner.divide(inner);
      const auto row = from + static_cast<int32_t>(p.load_middle.divide(middle));
      int32_t group, word, column;
      if constexpr (XPixels) {
        column = p.load_first + static_cast<int32_t>(inner) * V;
        group = static_cast<int32_t>(p.words.divide(middle));
        word = static_cast<int32_t>(middle);
      } else {
        column = static_cast<int32_t>(middle);
        group = static_cast<int32_t>(p.load_vectors.divide(inner));
        word = static_cast<int32_t>(inner) * V;
      }
      const int32_t in_column = b.input_column + column;
      uint32_t slot = static_cast<uint32_t>(row);
      p.ring.divide(slot);
      const int32_t channel = word * per_word;
      const bool second = per_word == 2 && channel + 1 < p.cin;
      is = is && b.group + group < p.groups;
      const bool whole = is && in_column >= 0 && in_column + (XPixels ? V : 1) <= p.w_axis.in;
      const Scalar* at = x + (((b.group + group) * p.cin + channel) * p.x_channel + row * p.x_row +
                              (XPixels ? in_column : in_column * p.x_column));
      read_words<Scalar, V, XPixels>(whole, at, second, p.x_channel, words[i]);
      place[i] = static_cast<int32_t>(slot) * t.row_pitch + (group * t.steps * t.step_words + word) * t.word_pitch +
                 column * t.pixel_pitch;
      if (XPixels && V > 1 && is && !whole && in_column < p.w_axis.in && in_column + V > 0) parts |= 1u << i;
      if (!whole) place[i] = -1;
    };
    const auto finish = [&](int i) {
      join_words<Scalar, V, XPixels>(words[i]);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        words[i][v] = operand<Scalar, Strict>(words[i][v]);
        if constexpr (Strict) bad |= not_finite<Scalar>(words[i][v]);
      }
      if (place[i] < 0) return;
      uint32_t* at = ring + place[i];
      if constexpr (V == 4) {
        *reinterpret_cast<uint4*>(at) = make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
      } else if constexpr (V == 2) {
        *reinterpret_cast<uint2*>(at) = make_uint2(words[i][0], words[i][1]);
      } else {
        *at = words[i][0];
      }
    };
    if (all) {
#pragma unroll
      for (int i = 0; i < batch; ++i) start(i);
#pragma unroll
      for (int i = 0; i < batch; ++i) finish(i);
    } else {
#pragma unroll
      for (int i = 0; i < batch / 2; ++i) start(i);
#pragma unroll
      for (int i = 0; i < batch / 2; ++i) finish(i);
    }
    if constexpr (XPixels && V > 1) {
      // The end of a row in the middle of a vector: word by word.
#pragma unroll 1
      for (int i = 0; parts != 0; ++i, parts >>= 1) {
        if ((parts & 1) == 0) continue;
        uint32_t inner = first + static_cast<uint32_t>(i * threads);
        uint32_t middle = p.load_inner.divide(inner);
        const auto row = from + static_cast<int32_t>(p.load_middle.divide(middle));
        const int32_t column = p.load_first + static_cast<int32_t>(inner) * V, in_column = b.input_column + column;
        const auto group = static_cast<int32_t>(p.words.divide(middle));
        const auto word = static_cast<int32_t>(middle), channel = word * per_word;
        uint32_t slot = static_cast<uint32_t>(row);
        p.ring.divide(slot);
        uint32_t* to_words = ring + (static_cast<int32_t>(slot) * t.row_pitch +
                                     (group * t.steps * t.step_words + word) * t.word_pitch + column);
        const Scalar* at = x + ((b.group + group) * p.cin + channel) * p.x_channel + row * p.x_row + in_column;
        const bool second = per_word == 2 && channel + 1 < p.cin;
#pragma unroll 1
        for (int v = 0; v < V; ++v) {
          if (in_column + v >= p.w_axis.in || in_column + v < 0) continue;
          uint32_t one[4];
          read_words<Scalar, 1, true>(true, at + v, second, p.x_channel, one);
          join_words<Scalar, 1, true>(one);
          one[0] = operand<Scalar, Strict>(one[0]);
          if constexpr (Strict) bad |= not_finite<Scalar>(one[0]);
          to_words[v] = one[0];
        }
      }
    }
  }
  if constexpr (Strict) {
    if (bad) *spoilt = 1;
  }
}

template <class Scalar, bool Strict, int V>
CONVT_DEVICE void load_rows_of_width(const Params& p, const Block& b, const Scalar* x, uint32_t* ring, int32_t* spoilt,
                                     int32_t from, int32_t to, int thread, int threads) {
  if (p.t.x_pixels) {
    load_rows_of<Scalar, Strict, V, true>(p, b, x, ring, spoilt, from, to, thread, threads);
  } else {
    load_rows_of<Scalar, Strict, V, false>(p, b, x, ring, spoilt, from, to, thread, threads);
  }
}

template <class Scalar, bool Strict>
CONVT_DEVICE void load_rows(const Params& p, const Block& b, const Scalar* x, uint32_t* ring, int32_t* spoilt,
                            int32_t from, int32_t to, int thread, int threads) {
  if (p.load_width == 4) {
    load_rows_of_width<Scalar, Strict, 4>(p, b, x, ring, spoilt, from, to, thread, threads);
  } else if (p.load_width == 2) {
    load_rows_of_width<Scalar, Strict, 2>(p, b, x, ring, spoilt, from, to, thread, threads);
  } else {
    load_rows_of_width<Scalar, Strict, 1>(p, b, x, ring, spoilt, from, to, thread, threads);
  }
}

// The block's weights in the order in which lanes take them: [tap][step][tile][lane][words]. Of a step of 8 words a
// lane takes the neighbours 2 l and 2 l + 1, here as in the input. True if one is not finite.
template <class Scalar, bool Strict, int StepWords>
CONVT_DEVICE bool load_weights(const Params& p, const Block& b, uint32_t* weights) {
  constexpr int words = StepWords / 4, per_word = Element<Scalar>::per_word;
  const Tiling& t = p.t;
  const Scalar* w = static_cast<const Scalar*>(p.w);
  const uint32_t count = static_cast<uint32_t>(p.kernel_h * p.kernel_w) * p.steps.divisor * p.tiles.divisor * 32;
  bool bad = false;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += block) {
    const int lane = static_cast<int>(i % 32);
    uint32_t tile = i / 32;
    uint32_t step = p.tiles.divide(tile);
    const auto tap = static_cast<int32_t>(p.steps.divide(step));
    const int32_t tap_h = tap / p.kernel_w, tap_w = tap - tap_h * p.kernel_w;
    const int32_t group = static_cast<int32_t>(tile) / t.block_tiles;
    const int32_t co = (b.tile + static_cast<int32_t>(tile) - group * t.block_tiles) * 8 + lane / 4;
    uint32_t word[2] = {0, 0};
    if (b.group + group < p.groups && co < p.cout) {
#pragma unroll
      for (int h = 0; h < words; ++h) {
        const int32_t ci = (static_cast<int32_t>(step) * StepWords + lane % 4 * words + h) * per_word;
        const Scalar* at =
            w + ((b.group + group) * p.cin + ci) * p.w_in + co * p.w_out + tap_h * p.w_row + tap_w * p.w_column;
        if (ci < p.cin) word[h] = operand<Scalar, Strict>(bits(at));
        if constexpr (per_word == 2) {
          if (ci + 1 < p.cin) word[h] |= bits(at + p.w_in) << 16;
        }
        bad |= not_finite<Scalar>(word[h]);
      }
    }
    if constexpr (Strict) {
      const uint32_t high0 = device::to_tf32(__uint_as_float(word[0]));
      const uint32_t high1 = device::to_tf32(__uint_as_float(word[1]));
      *reinterpret_cast<uint4*>(weights + 4 * i) =
          make_uint4(high0, high1, low_part(word[0], high0), low_part(word[1], high1));
    } else if constexpr (words == 2) {
      *reinterpret_cast<uint2*>(weights + 2 * i) = make_uint2(word[0], word[1]);
    } else {
      weights[i] = word[0];
    }
  }
  return bad;
}

// Where a step's outputs begin in a staging buffer: as far behind a multiple of a line as they do in memory.
template <class Scalar>
CONVT_DEVICE int32_t staged_shift(const Params& p, const Step& s, int32_t offset) {
  return p.t.flat ? (offset + s.begin) & (Element<Scalar>::line - 1) : 0;
}

// Where a channel's outputs of a step begin in a staging buffer, and what is added to them.
struct alignas(8) Place {
  int32_t at;
  float bias;
};

template <class Scalar>
CONVT_DEVICE Place place_of(const Params& p, const Step& s, const int32_t* offsets, const float* bias,
                            int32_t channel) {
  const Tiling& t = p.t;
  return {staged_shift<Scalar>(p, s, offsets[t.y_pixels ? channel : 0]) + channel * (t.y_pixels ? t.channel_pitch : 1),
          bias[channel]};
}

template <class Scalar, bool Strict>
CONVT_DEVICE float exact_sum(const Params& p, const uint32_t* ring, int32_t row, int32_t column, int32_t input_column,
                             int32_t group, int32_t first_group, int32_t co) {
  constexpr int per_word = Element<Scalar>::per_word;
  const Scalar* w = static_cast<const Scalar*>(p.w);
  const int32_t jh = row / p.h.stride, jw = column / p.w_axis.stride;
  const Phase h = p.h.phases.of[row - jh * p.h.stride], v = p.w_axis.phases.of[column - jw * p.w_axis.stride];
  float sum = 0;
#pragma unroll 1
  for (int32_t i = 0; i < h.count; ++i) {
    const int32_t ih = jh + h.top - i * p.h.input_step;
    if (ih < 0 || ih >= p.h.in) continue;
#pragma unroll 1
    for (int32_t k = 0; k < v.count; ++k) {
      const int32_t iw = jw + v.top - k * p.w_axis.input_step;
      if (iw < 0 || iw >= p.w_axis.in) continue;
#pragma unroll 1
      for (int32_t ci = 0; ci < p.cin; ++ci) {
        const uint32_t xw = ring[(ih % p.t.ring) * p.t.row_pitch +
                                 (group * p.t.steps * p.t.step_words + ci / per_word) * p.t.word_pitch +
                                 (iw - input_column) * p.t.pixel_pitch];
        const uint32_t ww = operand<Scalar, Strict>(bits(w + ((first_group + group) * p.cin + ci) * p.w_in +
                                                         co * p.w_out + (h.tap + i * p.h.tap_step) * p.w_row +
                                                         (v.tap + k * p.w_axis.tap_step) * p.w_column));
        sum += element_of<Scalar>(xw, ci % per_word) * element_of<Scalar>(ww, 0);
      }
    }
  }
  return sum;
}

// Computes those of a step's outputs again that are NaN, over the inputs inside the image only: a zero outside of it
// times a weight that is not finite is NaN, and so is the sum of the parts of an infinity. By the whole block.
template <class Scalar, bool Strict>
__noinline__ __device__ void repair_step(const Params& p, const Block& b, Step s, const uint32_t* ring,
                                         const Place* places, Scalar* stage) {
  const Tiling& t = p.t;
  const int32_t columns = s.last - s.first, channel_outputs = s.rows * columns;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < b.channels * channel_outputs; i += 32 * warps) {
    const int32_t channel = i / channel_outputs, position = i - channel * channel_outputs;
    Scalar* at = stage + places[channel].at + position * (t.y_pixels ? 1 : t.channel_pitch);
    const float staged = element_of<Scalar>(
        sizeof(Scalar) == 4 ? *reinterpret_cast<const uint32_t*>(at) : *reinterpret_cast<const uint16_t*>(at), 0);
    if (staged == staged) continue;
    const int32_t in_step = position / columns, group = t.block_groups > 1 ? channel / p.cout : 0;
    const float v = places[channel].bias +
                    exact_sum<Scalar, Strict>(p, ring, s.row + in_step, s.first + position - in_step * columns,
                                              b.input_column, group, b.group, b.tile * 8 + channel - group * p.cout);
    store<1>(at, &v);
  }
}

// What the phases of a batch do with one column of a row of the input: where it is, relative to that of an output, and
// where the weights of the phases' taps are; negative if a phase has no such tap.
struct alignas(16) Entry {
  int32_t x, w[most_residues];
};

// The entries of all batches, and where those of a batch begin, by one thread. Every tap of a row is in one entry.
CONVT_DEVICE void list_entries(const Params& p, int32_t* starts, Entry* entries) {
  const AxisParams& axis = p.w_axis;
  int32_t count = 0;
#pragma unroll 1
  for (int32_t batch = 0; batch < p.t.batches; ++batch) {
    const int32_t first = batch * p.batch_residues;
    starts[batch] = count;
    int32_t column[most_residues], tap[most_residues], left[most_residues];
#pragma unroll
    for (int r = 0; r < most_residues; ++r) {
      const bool is = r < p.batch_residues && first + r < axis.stride;
      const Phase phase = axis.phases.of[is ? first + r : 0];
      column[r] = phase.top, tap[r] = phase.tap, left[r] = is ? phase.count : 0;
    }
#pragma unroll 1
    while (true) {
      bool any = false;
      int32_t next = 0;
#pragma unroll
      for (int r = 0; r < most_residues; ++r) {
        if (left[r] == 0) continue;
        next = any ? larger(next, column[r]) : column[r];
        any = true;
      }
      if (!any) break;
      Entry e;
      e.x = next * p.t.pixel_pitch;
#pragma unroll
      for (int r = 0; r < most_residues; ++r) {
        e.w[r] = -1;
        if (left[r] == 0 || column[r] != next) continue;
        e.w[r] = tap[r] * p.tap_pitch;
        column[r] -= axis.input_step, tap[r] += axis.tap_step, --left[r];
      }
      entries[count++] = e;
    }
  }
  starts[p.t.batches] = count;
}

// A row of the input and all its channels: 16 columns in each of PixelTiles, 8 output channels in each of Tiles, the
// phases of a batch. What is read of the input is multiplied with the weights of all phases that need it.
template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles, bool XPixels>
CONVT_DEVICE void add_row(const Params& p, const uint32_t* row_x, const uint32_t* row_w, const Entry* entry,
                          const Entry* end, float (&sums)[most_residues][Tiles][PixelTiles][4]) {
  constexpr int fragment = StepWords / 4 * (Strict ? 2 : 1);
  const int32_t pitch = XPixels ? p.t.word_pitch : p.t.pixel_pitch;
#pragma unroll 1
  for (; entry != end; ++entry) {
    const Entry e = *entry;
    const uint32_t *x = row_x + e.x, *w = row_w;
    int32_t step = p.t.steps;
#pragma unroll 1
    do {
      uint32_t a[PixelTiles][4] = {};
#pragma unroll
      for (int m = 0; m < 2 * PixelTiles; ++m) {
        if constexpr (XPixels) {
          a[m / 2][m % 2] = x[8 * m];
          if constexpr (StepWords == 8) a[m / 2][m % 2 + 2] = (x + pitch)[8 * m];
        } else if constexpr (StepWords == 8) {
          const uint2 v = *reinterpret_cast<const uint2*>(x + 8 * m * pitch);
          a[m / 2][m % 2] = v.x, a[m / 2][m % 2 + 2] = v.y;
        } else {
          a[m / 2][m % 2] = x[8 * m * pitch];
        }
      }
      uint32_t low[PixelTiles][4];
      if constexpr (Strict) {
#pragma unroll
        for (int m = 0; m < PixelTiles; ++m) {
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const uint32_t high = device::to_tf32(__uint_as_float(a[m][q]));
            low[m][q] = low_part(a[m][q], high);
            a[m][q] = high;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < most_residues; ++r) {
        if (e.w[r] < 0) continue;
        uint32_t b[Tiles][fragment];
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
          const uint32_t* at = w + e.w[r] + n * 32 * fragment;
          if constexpr (fragment == 4) {
            const uint4 v = *reinterpret_cast<const uint4*>(at);
            b[n][0] = v.x, b[n][1] = v.y, b[n][2] = v.z, b[n][3] = v.w;
          } else if constexpr (fragment == 2) {
            const uint2 v = *reinterpret_cast<const uint2*>(at);
            b[n][0] = v.x, b[n][1] = v.y;
          } else {
            b[n][0] = *at;
          }
        }
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
#pragma unroll
          for (int m = 0; m < PixelTiles; ++m) {
            if constexpr (Strict) {
              // The small products first, and the tensor core's truncated sum for 8 channels only: the rest is added
              // in float32.
              float d[4] = {};
              multiply<Scalar, Strict, StepWords>(d, low[m], b[n]);
              multiply<Scalar, Strict, StepWords>(d, a[m], b[n] + 2);
              multiply<Scalar, Strict, StepWords>(d, a[m], b[n]);
#pragma unroll
              for (int q = 0; q < 4; ++q) sums[r][n][m][q] += d[q];
            } else {
              multiply<Scalar, Strict, StepWords>(sums[r][n][m], a[m], b[n]);
            }
          }
        }
      }
      x += XPixels ? StepWords * pitch : StepWords;
      w += p.step_pitch;
    } while (--step > 0);
  }
}

// Two outputs; 16-bit ones are rounded in one instruction.
template <class Scalar>
CONVT_DEVICE void store_pair(Scalar* first, Scalar* second, float a, float b) {
  if constexpr (sizeof(Scalar) == 4) {
    *first = a;
    *second = b;
  } else {
#if defined(__CUDA_ARCH__)
    const unsigned both = pack(Scalar{}, a, b);
    first->bits = static_cast<uint16_t>(both), second->bits = static_cast<uint16_t>(both >> 16);
#else
    store<1>(first, &a), store<1>(second, &b);
#endif
  }
}

template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles>
CONVT_DEVICE void compute_step(const Params& p, const Block& b, const Step& s, const uint32_t* weights,
                               const uint32_t* ring, const int32_t* starts, const Entry* entries, const Place* places,
                               Scalar* stage) {
  constexpr int fragment = StepWords / 4 * (Strict ? 2 : 1);
  const Tiling& t = p.t;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, l = lane % 4;
  const AxisParams& h = p.h;
  const AxisParams& w = p.w_axis;

  const int32_t columns = s.last - s.first;
  const int32_t column_step = t.y_pixels ? 1 : t.channel_pitch;
  const int32_t channels = t.block_groups > 1 ? p.cout : b.channels, groups = p.groups - b.group;
  // The first column of the step is the first one of the phases too.
  const uint32_t* lane_x = ring + (l * (StepWords / 4) * t.word_pitch + (s.input_column + g) * t.pixel_pitch);
  const uint32_t* lane_w = weights + lane * fragment;

#pragma unroll 1
  for (int32_t unit = warp; unit < p.units; unit += warps) {
    // Columns vary fastest, so that the warps have phases of the same number of taps at a time.
    uint32_t pixel_group = static_cast<uint32_t>(unit);
    uint32_t pass = p.unit_columns.divide(pixel_group);
    uint32_t in_step = p.unit_passes.divide(pass);
    const auto first_batch = static_cast<int32_t>(p.unit_rows.divide(in_step));
    const auto group = static_cast<int32_t>(p.passes.divide(pass));
    const int32_t tile = static_cast<int32_t>(pass) * Tiles;
    const int32_t j = static_cast<int32_t>(pixel_group) * 16 * PixelTiles;
    if (j * w.stride >= columns || static_cast<int32_t>(in_step) >= s.rows || group >= groups || tile * 8 >= channels) {
      continue;
    }
    uint32_t residue_h = static_cast<uint32_t>(s.row) + in_step;
    const auto jh = static_cast<int32_t>(p.stride_h.divide(residue_h));
    const Phase ph = h.phases.of[residue_h];
    if (ph.count == 0 && t.y_pixels) continue;  // see fill_rows

    const uint32_t* x = lane_x + (group * t.steps * StepWords * t.word_pitch + j * t.pixel_pitch);
    const uint32_t* wt = lane_w + (group * t.block_tiles + tile) * (32 * fragment);
    const Place* unit_places = places + group * p.cout;  // of several groups, a block has all channels
    const int32_t lane_place = (static_cast<int32_t>(in_step) * columns + (j + g) * w.stride) * column_step;

#pragma unroll 1
    for (int32_t batch = first_batch; batch < t.batches; batch += t.unit_batches) {
      const int32_t first_residue = batch * p.batch_residues;
      const int32_t residues = smaller(p.batch_residues, w.stride - first_residue);
      float sums[most_residues][Tiles][PixelTiles][4];
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        const int32_t in_group = (tile + n) * 8 + 2 * l;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float bias = unit_places[smaller(in_group + e, channels - 1)].bias;
#pragma unroll
          for (int r = 0; r < most_residues; ++r) {
#pragma unroll
            for (int m = 0; m < PixelTiles; ++m) sums[r][n][m][e] = sums[r][n][m][e + 2] = bias;
          }
        }
      }
      const Entry *first = entries + starts[batch], *end = entries + starts[batch + 1];
#pragma unroll 1
      for (int32_t i = 0; i < ph.count; ++i) {
        const int32_t ih = jh + ph.top - i * h.input_step;
        if (static_cast<uint32_t>(ih) >= static_cast<uint32_t>(h.in)) continue;
        uint32_t slot = static_cast<uint32_t>(ih);
        p.ring.divide(slot);
        const uint32_t* row_x = x + static_cast<int32_t>(slot) * t.row_pitch;
        const uint32_t* row_w = wt + (ph.tap + i * h.tap_step) * p.kernel_w * p.tap_pitch;
        if (t.x_pixels) {
          add_row<Scalar, Strict, StepWords, Tiles, PixelTiles, true>(p, row_x, row_w, first, end, sums);
        } else {
          add_row<Scalar, Strict, StepWords, Tiles, PixelTiles, false>(p, row_x, row_w, first, end, sums);
        }
      }
      const int32_t next = 8 * w.stride * column_step;
      const bool whole = (j + 16 * PixelTiles) * w.stride <= columns;  // of all lanes
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        const int32_t in_group = (tile + n) * 8 + 2 * l;
        const Place* place = unit_places + in_group;
        const int32_t lane_first = lane_place + first_residue * column_step;
        if (whole && t.y_pixels && (tile + n) * 8 + 8 <= channels) {
          // All lanes have all outputs: no checks, and the phases are neighbours.
          Scalar *to = stage + (place[0].at + lane_first), *second = stage + (place[1].at + lane_first);
#pragma unroll
          for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
            for (int r = 0; r < most_residues; ++r) {
              if (r >= residues) continue;
              const float* v = &sums[r][n][m / 2][m % 2 * 2];
              store_pair(to + r, second + r, v[0], v[1]);
            }
            to += next, second += next;
          }
          continue;
        }
        const int32_t valid = channels - in_group;
        if (valid <= 0) continue;
        Scalar* to = stage + (place[0].at + lane_first);
        const int32_t other = valid > 1 ? place[1].at - place[0].at : 0;
        const int32_t left = columns - (j + g) * w.stride - first_residue;
        // A lane whose second channel does not exist writes the first one's value to its place last.
#pragma unroll
        for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
          for (int r = 0; r < most_residues; ++r) {
            const float* v = &sums[r][n][m / 2][m % 2 * 2];
            if (r < residues && left > 8 * m * w.stride + r) {
              store_pair(to + r * column_step, to + (r * column_step + other), v[0], valid > 1 ? v[1] : v[0]);
            }
          }
          to += next;
        }
      }
    }
  }
}

// The bias in rows that no tap reaches, plane by plane.
template <class Scalar>
CONVT_DEVICE void fill_rows(const Params& p, const Block& b, const Step& s, const Place* places, Scalar* stage) {
  constexpr int32_t vector = 16 / sizeof(Scalar);
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), columns = s.last - s.first;
#pragma unroll 1
  for (int32_t in_step = 0; in_step < s.rows; ++in_step) {
    uint32_t residue = static_cast<uint32_t>(s.row + in_step);
    p.stride_h.divide(residue);
    if (p.h.phases.of[residue].count > 0) continue;
#pragma unroll 1
    for (int32_t channel = static_cast<int32_t>(threadIdx.x / 32); channel < b.channels; channel += warps) {
      const Place place = places[channel];
      Elements<Scalar, vector> value;
#pragma unroll
      for (int i = 0; i < vector; ++i) store<1>(&value.v[i], &place.bias);
      const int32_t first = place.at + in_step * columns, last = first + columns;
      const int32_t whole_first = smaller((first + vector - 1) & -vector, last);
      const int32_t whole_last = larger(last & -vector, whole_first);
      Scalar* plane = stage;
      if (first + lane < whole_first) plane[first + lane] = value.v[0];
#pragma unroll 4
      for (int32_t i = whole_first + lane * vector; i < whole_last; i += 32 * vector) {
        *reinterpret_cast<Elements<Scalar, vector>*>(plane + i) = value;
      }
      if (whole_last + lane < last) plane[whole_last + lane] = value.v[0];
    }
  }
}

// Elements [from, to) of a line that is not stored as a whole.
template <class Scalar>
CONVT_DEVICE void store_elements(Scalar* y, const Scalar* stage, int32_t from, int32_t to, int lane) {
#pragma unroll 1
  for (int32_t i = from + lane; i < to; i += 32) y[i] = stage[i];
}

// Stores the whole lines of a step in the middle of a block's outputs, where each plane's begin and end at lines with
// what was carried, and carries the rest into the next buffer. One warp has all planes' addresses, a lane each; the
// warps take turns.
template <class Scalar>
CONVT_DEVICE void store_whole_lines(const Params& p, const Block& b, const Step& s, const int32_t* offsets, Scalar* y,
                                    const Scalar* stage, Scalar* next_stage, int turn) {
  constexpr int32_t line = Element<Scalar>::line;
  const Tiling& t = p.t;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int32_t planes = t.y_pixels ? b.channels : 1, pitch = t.y_pixels ? t.channel_pitch : 0;
  const int32_t length = ((s.rows - 1) * p.w_axis.out + s.last - s.first) * p.plane_step;
  for (int32_t plane = (warp + turn) % warps * 32 + lane; plane < planes; plane += 32 * warps) {
    const int32_t offset = offsets[plane], from = offset + s.begin;
    const int32_t origin = from & -line, carried = (from + length) & -line;
    if (origin < carried) {
      device::bulk_store(y + (plane * p.y_channel + (origin - offset)), stage + plane * pitch,
                         static_cast<uint32_t>((carried - origin) * static_cast<int>(sizeof(Scalar))));
    }
  }
  device::bulk_commit();
#pragma unroll 2
  for (int32_t plane = warp; plane < planes; plane += warps) {
    const int32_t from = offsets[plane] + s.begin, to = from + length;
    const int32_t carried = to & -line, count = to - carried;
    const Scalar* staged = stage + (plane * pitch + carried - (from & -line));
    Scalar* next = next_stage + plane * pitch;
#pragma unroll
    for (int32_t k = 0; k < line; k += 32) {
      if (lane + k < count) next[lane + k] = staged[lane + k];
    }
  }
}

// Stores a step's outputs where they are flat. Positions are counted from the line in which the plane begins. What lies
// behind the last whole line goes to the front of the next step's buffer, unless the outputs of the block end there.
template <class Scalar>
CONVT_DEVICE void store_lines(const Params& p, const Block& b, const Step& s, const int32_t* offsets, Scalar* y,
                              const Scalar* stage, Scalar* next_stage, bool bulk) {
  constexpr int32_t line = Element<Scalar>::line;
  const Tiling& t = p.t;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int32_t planes = t.y_pixels ? b.channels : 1;
  const int32_t unit = p.plane_step, row = p.w_axis.out * unit;
  const int32_t length = ((s.rows - 1) * p.w_axis.out + s.last - s.first) * unit;
  const bool row_ends = s.last == b.last_column;
  const bool ends = row_ends && (t.strips > 1 || s.row + s.rows == b.last_row);
  // A lane has a plane: their addresses are computed together, and one instruction stores them.
#pragma unroll 1
  for (int32_t base = warp; base < planes; base += 32 * warps) {
    const int32_t own = base + warps * lane;
    const int32_t plane = smaller(own, planes - 1);
    const int32_t offset = offsets[plane];
    const int32_t from = offset + s.row * row + s.first * unit, to = from + length;
    // What the block writes of the stretch of outputs that this step is a part of.
    int32_t run_first = offset + b.first_row * row, run_last = offset + b.last_row * row;
    if (t.strips > 1) {
      const int32_t row_start = offset + s.row * row;
      run_first = row_start + b.owned_column * unit;
      if (b.owned_column > 0) run_first = (run_first + line - 1) & -line;
      run_last = row_start + b.strip_end * unit;
      if (b.strip_end < p.w_axis.out) run_last = (run_last + line - 1) & -line;
      run_last = smaller(run_last, row_start + row);
    }
    const int32_t origin = from & -line, carried = to & -line;
    const int32_t first = larger(origin, run_first), last = ends ? run_last : carried;
    const int32_t whole_first = smaller((first + line - 1) & -line, last);
    const int32_t whole_last = larger(last & -line, whole_first);
    const int32_t in_stage = plane * (t.y_pixels ? t.channel_pitch : 0) - origin;
    Scalar* global = y + plane * p.y_channel - offset;
    if (bulk && own < planes && first < last && whole_first < whole_last) {
      device::bulk_store(global + whole_first, stage + (in_stage + whole_first),
                         static_cast<uint32_t>((whole_last - whole_first) * static_cast<int>(sizeof(Scalar))));
    }
    const int32_t here = smaller((planes - base + warps - 1) / warps, 32);
    if (!ends) {
      const int32_t carry_from = in_stage + carried, carry_count = to - carried;
      const int32_t carry_to = plane * (t.y_pixels ? t.channel_pitch : 0);
#pragma unroll 4
      for (int32_t i = 0; i < here; ++i) {
        const Scalar* staged = stage + __shfl_sync(~0u, carry_from, i);
        Scalar* next = next_stage + __shfl_sync(~0u, carry_to, i);
        const int32_t count = __shfl_sync(~0u, carry_count, i);
#pragma unroll
        for (int32_t k = 0; k < line; k += 32) {
          if (lane + k < count) next[lane + k] = staged[lane + k];
        }
      }
    }
    // Lines that are not stored as a whole: where a block's outputs begin and end.
    const bool parts = own < planes && first < last && (first < whole_first || whole_last < last);
    unsigned pending = __ballot_sync(~0u, bulk ? parts : own < planes && first < last);
#pragma unroll 1
    for (int32_t i = 0; pending != 0; ++i, pending >>= 1) {
      if ((pending & 1) == 0) continue;
      const int32_t i_first = __shfl_sync(~0u, first, i), i_whole_first = __shfl_sync(~0u, whole_first, i);
      const int32_t i_last = __shfl_sync(~0u, last, i), i_whole_last = __shfl_sync(~0u, whole_last, i);
      const Scalar* staged = stage + __shfl_sync(~0u, in_stage, i);
      const int32_t i_plane = base + warps * i;
      Scalar* i_global = y + i_plane * p.y_channel - __shfl_sync(~0u, offset, i);
      store_elements(i_global, staged, i_first, i_whole_first, lane);
      if (!bulk) {
        constexpr int32_t vector = 16 / sizeof(Scalar);
#pragma unroll 4
        for (int32_t k = i_whole_first + lane * vector; k < i_whole_last; k += 32 * vector) {
          *reinterpret_cast<uint4*>(i_global + k) = *reinterpret_cast<const uint4*>(staged + k);
        }
      }
      store_elements(i_global, staged, i_whole_last, i_last, lane);
    }
  }
  if (bulk) {
    device::bulk_commit();
  }
}

template <class Scalar, int V>
CONVT_DEVICE void store_vectors(const Params& p, const Block& b, const Step& s, Scalar* y, const Scalar* stage) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t columns = s.last - s.first, rest_vectors = b.channels / V;
  const uint32_t items = static_cast<uint32_t>(s.rows * columns) * p.store_vectors.divisor;
#pragma unroll 4
  for (uint32_t i = static_cast<uint32_t>(thread); i < items; i += 32 * warps) {
    uint32_t vector = i;
    const auto position = static_cast<int32_t>(p.store_vectors.divide(vector));
    if (static_cast<int32_t>(vector) >= rest_vectors) continue;
    const int32_t in_step = s.rows == 1 ? 0 : position / columns;
    const int32_t column = s.first + position - in_step * columns;
    const Elements<Scalar, V>& from = *reinterpret_cast<const Elements<Scalar, V>*>(
        stage + position * p.t.channel_pitch + static_cast<int32_t>(vector) * V);
    *reinterpret_cast<Elements<Scalar, V>*>(
        y + ((s.row + in_step) * p.y_row + int64_t{column} * p.plane_step + static_cast<int32_t>(vector) * V)) = from;
  }
}

template <class Scalar>
CONVT_DEVICE void store_step(const Params& p, const Block& b, const Step& s, const int32_t* offsets, Scalar* y,
                             const Scalar* stage, Scalar* next_stage, bool bulk, int turn) {
  if (bulk && s.middle) {
    store_whole_lines(p, b, s, offsets, y, stage, next_stage, turn);
  } else if (p.t.flat) {
    store_lines(p, b, s, offsets, y, stage, next_stage, bulk);
  } else if (sizeof(Scalar) == 2 && p.store_width == 8) {
    store_vectors<Scalar, 16 / sizeof(Scalar)>(p, b, s, y, stage);
  } else if (p.store_width == 4) {
    store_vectors<Scalar, 4>(p, b, s, y, stage);
  } else if (p.store_width == 2) {
    store_vectors<Scalar, 2>(p, b, s, y, stage);
  } else {
    store_vectors<Scalar, 1>(p, b, s, y, stage);
  }
}

// The rest of what is known about a step whose rows and columns are; `loaded` is the end of the input rows that there
// are.
template <int element_bytes>
CONVT_DEVICE void describe_step(const Params& p, const Block& b, int32_t loaded, Step& s) {
  uint32_t residue = static_cast<uint32_t>(s.row), last = static_cast<uint32_t>(larger(s.row + s.rows - 1, 0));
  const auto jh = static_cast<int32_t>(p.stride_h.divide(residue));
  s.load_end = smaller(p.h.in, static_cast<int32_t>(p.stride_h.divide(last)) + p.h.phases.last + 1);
  s.load_first = larger(larger(0, jh + p.h.phases.first), loaded);
  uint32_t column = static_cast<uint32_t>(s.first);
  s.input_column = static_cast<int32_t>(p.stride_w.divide(column)) - b.input_column;
  s.begin = (s.row * p.w_axis.out + s.first) * p.plane_step;
  // What is stored ends at lines if neither the block's first outputs nor its last ones of a plane are in it.
  s.middle = p.t.strips == 1 &&
             s.begin - b.first_row * p.w_axis.out * p.plane_step >= static_cast<int32_t>(line_bytes / element_bytes) &&
             (s.last < b.last_column || s.row + s.rows < b.last_row);
  s.busy = s.bare = false;
#pragma unroll 1
  for (int32_t i = 0; i < smaller(s.rows, p.h.stride); ++i) {
    (p.h.phases.of[residue].count > 0 ? s.busy : s.bare) = true;
    residue = static_cast<int32_t>(residue) + 1 == p.h.stride ? 0 : residue + 1;
  }
}

template <int element_bytes>
CONVT_DEVICE void first_step(const Params& p, const Block& b, Step& s) {
  s.row = b.first_row, s.rows = smaller(p.t.rows, b.last_row - b.first_row);
  s.first = b.first_column, s.last = smaller(b.first_column + p.part_columns, b.last_column);
  describe_step<element_bytes>(p, b, 0, s);
}
template <int element_bytes>
CONVT_DEVICE void step_after(const Params& p, const Block& b, const Step& s, Step& n) {
  n.row = s.row, n.rows = s.rows, n.first = s.last;
  if (n.first >= b.last_column) {
    n.first = b.first_column;
    n.row = s.row + s.rows;
    n.rows = smaller(p.t.rows, b.last_row - n.row);
  }
  n.last = smaller(n.first + p.part_columns, b.last_column);
  describe_step<element_bytes>(p, b, s.load_end, n);
}

CONVT_DEVICE Block make_block(const Params& p, uint32_t index) {
  const Tiling& t = p.t;
  Block b;
  uint32_t rest = p.chunks.divide(index);
  const auto chunk = static_cast<int32_t>(index);
  uint32_t strip = rest;
  rest = p.strips.divide(strip);
  uint32_t channel_block = rest;
  p.channel_blocks.divide(channel_block);
  b.first_row = chunk * t.chunk_rows;
  b.last_row = smaller(b.first_row + t.chunk_rows, p.h.out);
  b.owned_column = b.first_column = static_cast<int32_t>(strip) * t.strip_columns;
  b.strip_end = smaller(b.first_column + t.strip_columns, p.w_axis.out);
  b.last_column = smaller(b.strip_end + t.strip_extra, p.w_axis.out);
  if (t.block_groups > 1) {
    b.group = static_cast<int32_t>(channel_block) * t.block_groups, b.tile = 0;
    b.channel = b.group * p.cout;
    b.channels = smaller(t.block_groups, p.groups - b.group) * p.cout;
  } else {
    uint32_t part = channel_block;
    b.group = static_cast<int32_t>(p.group_blocks.divide(part));
    b.tile = static_cast<int32_t>(part) * t.block_tiles;
    b.channel = b.group * p.cout + b.tile * 8;
    b.channels = smaller(8 * t.block_tiles, p.cout - b.tile * 8);
  }
  b.input_column = (b.first_column / p.w_axis.stride + p.w_axis.phases.first) & -4;
  return b;
}

// Blocks an SM that leave enough registers. Before sm_90 the wider kernels need a few more.
constexpr int resident_blocks(int tiles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return tiles == 1 ? 2 : 1;
#else
  return 2;
#endif
}

template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles>
__global__ void __launch_bounds__(block, resident_blocks(Tiles)) grouped_kernel(const __grid_constant__ Params p) {
  const Tiling& t = p.t;
  unsigned char* shared = device::dynamic_shared_memory();
  uint32_t* weights = reinterpret_cast<uint32_t*>(shared);
  uint32_t* ring = reinterpret_cast<uint32_t*>(shared + t.weight_bytes);
  unsigned char* stages = shared + t.weight_bytes + t.input_bytes;
  static_assert(sizeof(Block) + 8 <= 64 && sizeof(Block) % 8 == 0, "see Tiling::table_bytes");
  Block* shared_block = reinterpret_cast<Block*>(stages + t.stages * t.stage_bytes);
  int32_t* spoilt = reinterpret_cast<int32_t*>(shared_block + 1);
  int32_t* starts = reinterpret_cast<int32_t*>(reinterpret_cast<unsigned char*>(shared_block) + 64);
  Step* steps = reinterpret_cast<Step*>(starts + most_stride + 4);  // of four in turn, which takes no registers
  Entry* entries = reinterpret_cast<Entry*>(steps + 4);
  int32_t* offsets = reinterpret_cast<int32_t*>(entries + p.kernel_w);
  float* bias = reinterpret_cast<float*>(offsets + t.block_channels);
  Place* places = reinterpret_cast<Place*>(bias + t.block_channels);  // of two steps in turn
  const int thread = static_cast<int>(threadIdx.x);

  if (thread == 0) *shared_block = make_block(p, blockIdx.x);
  if (thread == 32) list_entries(p, starts, entries);
  const auto n = static_cast<int64_t>(blockIdx.x / static_cast<uint32_t>(t.chunks * t.strips * t.channel_blocks));
  __syncthreads();
  const Block& b = *shared_block;
  const Scalar* x = static_cast<const Scalar*>(p.x) + n * p.x_batch;
  Scalar* y = static_cast<Scalar*>(p.y) + n * p.y_batch + b.channel * p.y_channel;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  const bool bulk = false;
#else
  const bool bulk = p.bulk;
#endif

  // Zeros where no input is ever loaded.
  for (int32_t i = thread; i < static_cast<int32_t>(t.input_bytes / 16); i += block) {
    reinterpret_cast<uint4*>(ring)[i] = make_uint4(0, 0, 0, 0);
  }
  if (thread < 2) spoilt[thread] = 0;
  for (int32_t i = thread; i < b.channels; i += block) {
    offsets[i] = t.flat ? static_cast<int32_t>(reinterpret_cast<uintptr_t>(y + i * (t.y_pixels ? p.y_channel : 0)) /
                                               sizeof(Scalar) % Element<Scalar>::line)
                        : 0;
    bias[i] = 0;
    if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + (b.channel + i) * p.bias_stride, &bias[i]);
  }
  if (thread == 0) {
    first_step<sizeof(Scalar)>(p, b, steps[0]);
    step_after<sizeof(Scalar)>(p, b, steps[0], steps[1]);
  }
  __syncthreads();
  for (int32_t i = thread; i < b.channels; i += block) places[i] = place_of<Scalar>(p, steps[0], offsets, bias, i);
  bool bad = load_weights<Scalar, Strict, StepWords>(p, b, weights);
  load_rows<Scalar, Strict>(p, b, x, ring, spoilt, steps[0].load_first, steps[0].load_end, thread, block);
  if (bad) *spoilt = 1;
  __syncthreads();

  const auto stage_of = [&](int32_t i) { return reinterpret_cast<Scalar*>(stages + i * t.stage_bytes); };
  const auto stage_after = [&](int32_t i) { return i + 1 == t.stages ? 0 : i + 1; };
#pragma unroll 1
  for (int32_t i = 0, stage = 0; steps[i % 4].row < b.last_row; ++i) {
    const Step& now = steps[i % 4];
    const Place* now_places = places + i % 2 * t.block_channels;
    const Step& next = steps[(i + 1) % 4];
    // By a warp that has less to do than others, if any has.
    if (thread == block - 32) step_after<sizeof(Scalar)>(p, b, next, steps[(i + 2) % 4]);
    if (next.row < b.last_row) {
      for (int32_t c = thread; c < b.channels; c += block) {
        places[(i + 1) % 2 * t.block_channels + c] = place_of<Scalar>(p, next, offsets, bias, c);
      }
      load_rows<Scalar, Strict>(p, b, x, ring, spoilt + (i + 1) % 2, next.load_first, next.load_end, thread, block);
    }
    if (t.y_pixels && now.bare) fill_rows(p, b, now, now_places, stage_of(stage));
    if (now.busy || !t.y_pixels) {
      compute_step<Scalar, Strict, StepWords, Tiles, PixelTiles>(p, b, now, weights, ring, starts, entries, now_places,
                                                                 stage_of(stage));
    }
    // What was loaded for this step; the other one is for the next step.
    if (spoilt[i % 2] != 0) {
      spoilt[(i + 1) % 2] = 1;
      __syncthreads();
      repair_step<Scalar, Strict>(p, b, now, ring, now_places, stage_of(stage));
    }
    // The next step's buffer is free.
    if (bulk) {
      if (t.stages == 3) {
        device::bulk_wait_read<1>();
      } else {
        device::bulk_wait_read<0>();
      }
    }
    device::fence_async_proxy();
    __syncthreads();
    store_step(p, b, now, offsets, y, stage_of(stage), stage_of(stage_after(stage)), bulk, i);
    stage = stage_after(stage);
  }
  if (bulk) device::bulk_wait_read<0>();
}

}  // namespace convt::grouped
