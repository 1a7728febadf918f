// A block computes some output channels of a range of output rows, step by step. In a step, every warp loads a part of
// the next step's input rows and multiplies: the rows of a product are 16 neighbouring input columns, its columns 8
// output channels. All phases of a warp's outputs meet in a piece of shared memory of its own (NCHW), from where it
// stores them: the block has one barrier a step, for the input rows. Pixels (NHWC), and planes of strides so large that
// there is no room, are stored from registers.
#pragma once

#include "../device.h"
#include "../load_if.h"
#include "../products.h"
#include "params.h"

namespace convt::grouped {

template <class Scalar, int N>
struct alignas(sizeof(Scalar) * N) Elements {
  Scalar v[N];
};

// Rows [row, row + rows) of outputs.
struct alignas(16) Step {
  int32_t row, rows;
  int32_t load_first, load_end;  // input rows that no step before has
  int32_t jh, residue;           // of the first row
  int32_t ring_row, load_slot;   // a row of the first place of the ring, not above any of the step; where load_first is
};
static_assert(sizeof(Step) == step_bytes);

// What a block knows about itself.
struct alignas(8) Block {
  int32_t first_row, last_row;        // outputs [first_row, last_row) of ...
  int32_t first_column, last_column;  // ... and columns
  int32_t group, tile;                // first group, first tile of 8 output channels in it
  int32_t channel, channels;          // first output channel, and how many there are
  int32_t input_column;               // of the first column in shared memory
  int32_t first_input;                // that of the first output of a phase, relative to it
  int64_t x, y;                       // elements: its image, its first output channel
};

// What a thread reads of x at a time, V words: of neighbouring columns, or of neighbouring channels. If words are pairs
// of channels, columns are read of both of them, the `second` one x_channel away if there is one.
template <class Scalar, bool Strict, int V, bool XPixels>
struct Vector {
  static constexpr bool two = pairs<Scalar, Strict> && (XPixels || V == 1);  // reads, of `bytes`
  static constexpr int bytes = sizeof(Scalar) == 2 && two ? 2 * V : Strict && !two ? 8 * V : 4 * V;
  static constexpr int other = bytes > 4 ? bytes / 4 : 1;  // where the second channel's are

  CONVT_DEVICE static void read(const Params& p, bool is, const Scalar* x, bool second, uint32_t* raw) {
    load_if<bytes>(is, x, raw);
    if constexpr (two) load_if<bytes>(is && second, x + p.x_channel, raw + other);
  }

  // Into the ring at `at`, if it is to be written; `check` becomes NaN if something of strict float32 is not finite.
  CONVT_DEVICE static void write(const Params& p, bool is, uint32_t* at, const uint32_t* raw, float& check) {
    if constexpr (Strict) {
      uint32_t words[3][V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        uint32_t parts[3];
        float left[2];
        split_pair(raw[two ? v : 2 * v], raw[two ? other + v : 2 * v + 1], parts, left);
#pragma unroll
        for (int part = 0; part < 3; ++part) words[part][v] = parts[part];
        check += left[0] + left[1];
      }
      if (!is) return;
      const int32_t pitch = p.t.step_words * (XPixels ? p.t.word_pitch : 1);
#pragma unroll
      for (int part = 0; part < 3; ++part) put(at + part * pitch, words[part]);
    } else {
      uint32_t words[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if constexpr (two) {
          words[v] = __byte_perm(raw[v / 2], raw[other + v / 2], v % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          words[v] = operand<Scalar, Strict>(raw[v]);
        }
      }
      if (is) put(at, words);
    }
  }

  CONVT_DEVICE static void put(uint32_t* at, const uint32_t (&w)[V]) {
    if constexpr (V == 4) {
      *reinterpret_cast<uint4*>(at) = make_uint4(w[0], w[1], w[2], w[3]);
    } else if constexpr (V == 2) {
      *reinterpret_cast<uint2*>(at) = make_uint2(w[0], w[1]);
    } else {
      *at = w[0];
    }
  }
};

// A vector of the input rows of a step: where it is in x, relative to the first row, and in a row of the ring; which
// row of the step has it, and whether its words have a second channel.
struct Item {
  int64_t at;
  int32_t place, row_second;

  CONVT_DEVICE int32_t row() const { return row_second >> 1; }
  CONVT_DEVICE bool second() const { return (row_second & 1) != 0; }
};
constexpr int32_t no_row = 1 << 30;  // beyond all rows

// Those that a thread holds, in shared memory: a row of the ring has less than 2^16 words, and those of all threads are
// of less than 2^12 rows.
struct Items {
  static constexpr int32_t no_row = (1 << 12) - 1;
  int64_t* at;
  uint32_t* rest;

  CONVT_DEVICE Items(unsigned char* from, int32_t count)
      : at(reinterpret_cast<int64_t*>(from)), rest(reinterpret_cast<uint32_t*>(at + count)) {}
  CONVT_DEVICE void put(int32_t i, const Item& item) const {
    at[i] = item.at;
    rest[i] = static_cast<uint32_t>(item.place) | static_cast<uint32_t>(smaller(item.row(), no_row)) << 16 |
              static_cast<uint32_t>(item.second()) << 28;
  }
  CONVT_DEVICE Item get(int32_t i) const {
    const uint32_t r = rest[i];
    const auto row = static_cast<int32_t>(r >> 16 & no_row);
    return {at[i], static_cast<int32_t>(r & 0xffff), (row << 1 | static_cast<int32_t>(r >> 28))};
  }
};

template <class Scalar, bool Strict, bool XPixels>
CONVT_DEVICE Item make_item(const Params& p, const Block& b, uint32_t inner) {
  const Tiling& t = p.t;
  uint32_t middle = p.load_inner.divide(inner);
  auto row = static_cast<int32_t>(p.load_middle.divide(middle));
  int32_t group, word, column;
  if constexpr (XPixels) {
    column = p.load_first + static_cast<int32_t>(inner) * p.load_width;
    group = static_cast<int32_t>(p.words.divide(middle));
    word = static_cast<int32_t>(middle);
  } else {
    column = static_cast<int32_t>(middle);
    group = static_cast<int32_t>(p.load_vectors.divide(inner));
    word = static_cast<int32_t>(inner) * p.load_width;
  }
  const int32_t in_column = b.input_column + column;
  const int32_t channel = word * (pairs<Scalar, Strict> ? 2 : 1), step = word / t.step_words;
  Item item;
  item.at = ((b.group + group) * p.cin + channel) * p.x_channel + row * p.x_row +
            (XPixels ? in_column : in_column * p.x_column);
  item.place = ((group * t.steps + step) * t.step_words * t.word_parts + word - step * t.step_words) * t.word_pitch +
               column * t.pixel_pitch;
  // Rows are as wide as vectors if those run along them.
  if (b.group + group >= p.groups || in_column < 0 || in_column + (XPixels ? p.load_width : 1) > p.w_axis.in) {
    row = no_row - 1;
  }
  item.row_second = 2 * row + (channel + 1 < p.cin);
  return item;
}

// What a thread holds of N vectors of the input between reading and writing them.
template <bool Strict, int N>
using Raw = uint32_t[N][Strict ? 8 : 4];

template <class Scalar, bool Strict, int V, bool XPixels>
struct Rows {
  using Of = Vector<Scalar, Strict, V, XPixels>;

  template <int N>
  CONVT_DEVICE static void read(const Params& p, const Scalar* x, const Step& s, const Item (&items)[N],
                                Raw<Strict, N>& raw) {
    const Scalar* from = x + s.load_first * p.x_row;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Of::read(p, items[i].row() < s.load_end - s.load_first, from + items[i].at, items[i].second(), raw[i]);
    }
  }
  template <int N>
  CONVT_DEVICE static void write(const Params& p, uint32_t* ring, const Step& s, const Item (&items)[N],
                                 const Raw<Strict, N>& raw, float& check) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      int32_t slot = s.load_slot + items[i].row();
      if (slot >= p.t.ring) slot -= p.t.ring;
      Of::write(p, items[i].row() < s.load_end - s.load_first, ring + (slot * p.t.row_pitch + items[i].place), raw[i],
                check);
    }
  }
};

// Calls f with the Rows of the width and the layout of x.
template <class Scalar, bool Strict, bool XPixels, class F>
CONVT_DEVICE void with_rows(const Params& p, const F& f) {
  if (p.load_width == 4) {
    if constexpr (XPixels || !Strict) f(Rows<Scalar, Strict, 4, XPixels>{});  // 4 pairs of float32 are 2 reads
  } else if (p.load_width == 2) {
    f(Rows<Scalar, Strict, 2, XPixels>{});
  } else {
    f(Rows<Scalar, Strict, 1, XPixels>{});
  }
}

// Functions that are called rather than inlined find shared memory themselves: a pointer to it takes two registers in
// the caller.
CONVT_DEVICE const Block& block_of(const Params& p) {
  return *reinterpret_cast<const Block*>(device::dynamic_shared_memory() + p.t.places.block);
}
CONVT_DEVICE const Step& step_of(const Params& p, int turn) {
  return reinterpret_cast<const Step*>(device::dynamic_shared_memory() + p.t.places.steps)[turn % 4];
}

// The input rows of a step from item `first` on into their places of the ring. Columns outside the image and words
// beyond the group's channels stay the zeros that they are. True if something of strict float32 is not finite.
template <class Scalar, bool Strict, bool XPixels>
__noinline__ __device__ bool load_rows(const Params& p, int turn, uint32_t first) {
  const Block& b = block_of(p);
  const Step& s = step_of(p, turn);
  const Scalar* x = static_cast<const Scalar*>(p.x) + b.x;
  uint32_t* ring = reinterpret_cast<uint32_t*>(device::dynamic_shared_memory() + p.t.places.ring);
  float check = 0;
  const uint32_t count =
      static_cast<uint32_t>(larger(s.load_end - s.load_first, 0)) * p.load_middle.divisor * p.load_inner.divisor;
  const auto load = [&]<int N>() {
    Item items[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      items[i] = make_item<Scalar, Strict, XPixels>(p, b, first + threadIdx.x + static_cast<uint32_t>(i * block));
    }
    with_rows<Scalar, Strict, XPixels>(p, [&]<class R>(R) {
      Raw<Strict, N> raw;
      R::read(p, x, s, items, raw);
      R::write(p, ring, s, items, raw, check);
    });
    first += N * block;
  };
#pragma unroll 1
  while (first + (late_loads(Strict) - 1) * block < count) load.template operator()<late_loads(Strict)>();
#pragma unroll 1
  while (first < count) load.template operator()<early_loads(Strict)>();
  return check != check;
}

// Where the fragments of a tap of a kernel row are among those of the row: the fragment of the first step, and how many
// fragments the next one is further.
struct alignas(8) Order {
  int32_t first, next;
};

// Of a lane's output channels of a unit, the one of tile n and element e of its pair. Of outputs that are stored
// from registers, a lane has neighbouring channels.
template <int Tiles>
CONVT_DEVICE int32_t lane_channel(bool staged, int lane_pair, int n, int e) {
  return staged ? n * 8 + 2 * lane_pair + e : 2 * Tiles * lane_pair + 2 * n + e;
}

// The block's weights in the order in which they are used: [tiles of a unit][kernel row][entry][step][tap of the
// entry][tile][lane][words]. Of a step of 8 words a lane takes the neighbours 2 l and 2 l + 1, here as in the input.
// True if one is not finite.
template <class Scalar, bool Strict, int StepWords, int Tiles>
CONVT_DEVICE bool load_weights(const Params& p, const Block& b, const Order* order, uint32_t* weights) {
  constexpr int words = StepWords / 4, fragment = weight_words<Strict, StepWords>;
  constexpr int channels = pairs<Scalar, Strict> ? 2 : 1;
  const Tiling& t = p.t;
  const Scalar* w = static_cast<const Scalar*>(p.w);
  const uint32_t count = static_cast<uint32_t>(p.kernel_h * p.kernel_w) * p.steps.divisor * p.tiles.divisor * 32;
  bool bad = false;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < count; i += block) {
    const int lane = static_cast<int>(i % 32);
    uint32_t tile = i / 32;
    uint32_t step = p.tiles.divide(tile);
    const auto tap = static_cast<int32_t>(p.steps.divide(step));
    const int32_t tap_h = tap / p.kernel_w, tap_w = tap - tap_h * p.kernel_w;
    const int32_t group = static_cast<int32_t>(tile) / t.block_tiles;
    const int32_t in_group = static_cast<int32_t>(tile) - group * t.block_tiles, in_unit = in_group % Tiles;
    const int32_t co =
        (b.tile + in_group - in_unit) * 8 + lane_channel<Tiles>(t.staged, lane / 8, in_unit, lane / 4 % 2);
    uint32_t element[words][channels] = {};
    if (b.group + group < p.groups && co < p.cout) {
#pragma unroll
      for (int h = 0; h < words; ++h) {
        const int32_t ci = (static_cast<int32_t>(step) * StepWords + lane % 4 * words + h) * channels;
        const Scalar* at =
            w + ((b.group + group) * p.cin + ci) * p.w_in + co * p.w_out + tap_h * p.w_row + tap_w * p.w_column;
#pragma unroll
        for (int e = 0; e < channels; ++e) {
          if (ci + e < p.cin) element[h][e] = bits(at + e * p.w_in);
        }
      }
    }
    uint32_t word[fragment] = {};
    if constexpr (Strict) {
      uint32_t parts[3];
      float left[2];
      split_pair(element[0][0], element[0][1], parts, left);
      word[0] = parts[2], word[1] = parts[1], word[2] = parts[1], word[3] = parts[0];  // see multiply
      bad |= !(left[0] + left[1] == 0);
    } else {
#pragma unroll
      for (int h = 0; h < words; ++h) {
        word[h] = operand<Scalar, Strict>(element[h][0]);
        if constexpr (channels == 2) word[h] |= element[h][1] << 16;
        bad |= not_finite<Scalar>(word[h]);
      }
    }
    const Order o = order[tap_w];
    uint32_t* to = weights + (static_cast<int32_t>(tile) / Tiles * p.unit_weights + tap_h * p.row_weights +
                              (o.first + static_cast<int32_t>(step) * o.next) * (Tiles * 32 * fragment));
    to += (static_cast<int32_t>(tile) % Tiles * 32 + lane) * fragment;
    if constexpr (fragment == 4) {
      *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
    } else if constexpr (fragment == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    } else {
      *to = word[0];
    }
  }
  return bad;
}

// What the phases of a batch do with one column of a row of the input and the channels of one instruction: where that
// is, relative to an output's column, and which of them have a tap there.
struct alignas(8) Entry {
  int32_t x;
  uint32_t phases;
};

// The entries of a batch, where its weights begin in those of a kernel row, and its phases; whether those follow each
// other.
struct alignas(16) Start {
  int32_t entry, end, fragment, count;
  int32_t residue[most_residues];
  int32_t adjacent;
};
static_assert(sizeof(Start) == start_bytes);

// The entries of all batches and the order of the weights, by one thread. Every tap of a row is in one entry a step.
CONVT_DEVICE void list_entries(const Params& p, Start* starts, Entry* entries, Order* order) {
  const AxisParams& axis = p.w_axis;
  const int32_t step_pitch = p.t.step_words * p.t.word_parts * p.t.word_pitch;
  int32_t count = 0, taps = 0;
#pragma unroll 1
  for (int32_t batch = 0; batch < p.t.batches; ++batch) {
    const int32_t first = batch * p.batch_residues;
    Start start{count, 0, taps * p.t.steps, smaller(p.batch_residues, p.residue_count - first), {}, 1};
    int32_t column[most_residues], tap[most_residues], left[most_residues];
#pragma unroll
    for (int r = 0; r < most_residues; ++r) {
      const bool is = r < start.count;
      start.residue[r] = p.residues[is ? first + r : first];
      const Phase phase = axis.phases.of[start.residue[r]];
      column[r] = phase.top, tap[r] = phase.tap, left[r] = is ? phase.count : 0;
      if (is && start.residue[r] != start.residue[0] + r) start.adjacent = 0;
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
      Entry e{next * p.t.pixel_pitch, 0};
      int32_t here = 0;
#pragma unroll
      for (int r = 0; r < most_residues; ++r) here += left[r] > 0 && column[r] == next;
      int32_t index = taps * p.t.steps;
      taps += here;
#pragma unroll
      for (int r = 0; r < most_residues; ++r) {
        if (left[r] == 0 || column[r] != next) continue;
        e.phases |= 1u << r;
        order[tap[r]] = {index++, here};
        column[r] -= axis.input_step, tap[r] += axis.tap_step, --left[r];
      }
#pragma unroll 1
      for (int32_t step = 0; step < p.t.steps; ++step, e.x += step_pitch) entries[count++] = e;
    }
    start.end = count;
    starts[batch] = start;
  }
  entries[count] = {0, 0};  // is read but not used
}

// A row of the input that a row of outputs needs: where it is in the ring, negative if it is outside the image, and the
// weights of its taps. The first one of a row of outputs has how many there are.
struct alignas(8) RowWork {
  int32_t x, w;
};

// The k-th one of a step.
CONVT_DEVICE void list_row(const Params& p, const Step& s, uint32_t k, RowWork* works) {
  const auto in_step = static_cast<int32_t>(p.kernel_rows.divide(k));
  const auto i = static_cast<int32_t>(k);
  uint32_t residue = static_cast<uint32_t>(s.residue + in_step);
  const int32_t jh = s.jh + static_cast<int32_t>(p.stride_h.divide(residue));
  const Phase phase = p.h.phases.of[residue];
  RowWork* rows = works + in_step * (p.t.kernel_rows + 1);
  if (i == 0) rows[0] = {phase.count, 0};
  if (i >= phase.count) return;
  const int32_t ih = jh + phase.top - i * p.h.input_step;
  int32_t slot = ih - s.ring_row;
  if (slot >= p.t.ring) slot -= p.t.ring;
  const bool is = static_cast<uint32_t>(ih) < static_cast<uint32_t>(p.h.in);
  rows[1 + i] = {is ? slot * p.t.row_pitch : -1, (phase.tap + i * p.h.tap_step) * p.row_weights};
}

// What a lane has of a unit's outputs: for each phase, tiles of 16 rows by 8 columns of the product.
template <int Tiles, int PixelTiles>
using Sums = float[most_residues][Tiles][PixelTiles][4];

// `Words` words of a lane at once.
template <int Words>
CONVT_DEVICE void read_words(const uint32_t* from, uint32_t (&to)[Words]) {
  if constexpr (Words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Words; i += 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  } else if constexpr (Words == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}

// Products of what was read of the input and the weights of the taps of those phases whose bits are in Phases. A tile
// of 16 columns of the input has words of columns g and g + 8 in turns.
template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles, unsigned Phases>
CONVT_DEVICE const uint32_t* add_taps(const uint32_t (&a)[PixelTiles][tile_words<Strict, StepWords>], const uint32_t* w,
                                      Sums<Tiles, PixelTiles>& sums) {
  constexpr int words = weight_words<Strict, StepWords>;  // of a lane
  constexpr int taps = (Phases & 1) + (Phases >> 1 & 1) + (Phases >> 2 & 1);
  uint32_t b[taps][Tiles][words];
#pragma unroll
  for (int k = 0; k < taps; ++k) {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) read_words(w + (k * Tiles + n) * 32 * words, b[k][n]);
  }
  int k = 0;
#pragma unroll
  for (int r = 0; r < most_residues; ++r) {
    if ((Phases >> r & 1) == 0) continue;
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int m = 0; m < PixelTiles; ++m) multiply<Scalar, Strict, StepWords>(sums[r][n][m], a[m], b[k][n]);
    }
    ++k;
  }
  return w + taps * Tiles * 32 * words;
}

// A row of the input and all its channels: 16 columns in each of PixelTiles, 8 output channels in each of Tiles, the
// phases of a batch. What is read of the input is multiplied with the weights of all phases that need it.
template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles, bool XPixels>
CONVT_DEVICE void add_row(const Params& p, const uint32_t* row_x, const uint32_t* w, const Entry* entry,
                          const Entry* end, Sums<Tiles, PixelTiles>& sums) {
  const int32_t pitch = XPixels ? p.t.word_pitch : p.t.pixel_pitch;
  Entry e = *entry;
#pragma unroll 1
  while (entry != end) {
    const uint32_t* x = row_x + e.x;
    const unsigned phases = e.phases;
    e = *++entry;  // there is one behind the last
    uint32_t a[PixelTiles][tile_words<Strict, StepWords>];
#pragma unroll
    for (int m = 0; m < 2 * PixelTiles; ++m) {
      uint32_t* to = a[m / 2] + m % 2;
      if constexpr (Strict) {
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          to[2 * part] = XPixels ? (x + 4 * part * pitch)[8 * m] : x[8 * m * pitch + 4 * part];
        }
      } else if constexpr (XPixels) {
        to[0] = x[8 * m];
        if constexpr (StepWords == 8) to[2] = (x + pitch)[8 * m];
      } else if constexpr (StepWords == 8) {
        const uint2 v = *reinterpret_cast<const uint2*>(x + 8 * m * pitch);
        to[0] = v.x, to[2] = v.y;
      } else {
        to[0] = x[8 * m * pitch];
      }
    }
    const auto add = [&]<unsigned Phases>() {
      w = add_taps<Scalar, Strict, StepWords, Tiles, PixelTiles, Phases>(a, w, sums);
    };
    if (phases == 7) {
      add.template operator()<7>();
    } else if (phases == 6) {
      add.template operator()<6>();
    } else if (phases == 3) {
      add.template operator()<3>();
    } else if (phases == 1) {
      add.template operator()<1>();
    } else if (phases == 2) {
      add.template operator()<2>();
    } else if (phases == 4) {
      add.template operator()<4>();
    } else {
      add.template operator()<5>();
    }
  }
}

// Keeps the compiler from setting a register once more where a loop begins.
CONVT_DEVICE void keep(float& v) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+f"(v));
#endif
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

// What is the same in all steps about a unit of work: where its input columns, its weights and its outputs of the row
// begin, its first output channel of the block and how many of them there are, how many outputs of a row, its row.
struct alignas(16) Unit {
  int32_t x, w, y, channel;
  int32_t channels, columns, column, in_step;
};
static_assert(sizeof(Unit) == unit_bytes);

// The k-th one of a step; if it has nothing to do, its row is in no step.
template <int Tiles, int PixelTiles>
CONVT_DEVICE Unit make_unit(const Params& p, const Block& b, int32_t k) {
  const Tiling& t = p.t;
  // Channels vary fastest, so that warps write neighbouring pixels at a time and one has the same channels each time.
  // If there is a choice, they take turns from both ends: phases of rows have different numbers of taps.
  if (p.unit_passes.divisor == 1 && k / warps % 2 == 1) {
    const int32_t first = k / warps * warps;
    k = first + smaller(warps, t.units - first) - 1 - (k - first);
  }
  auto pass = static_cast<uint32_t>(k);
  uint32_t column = p.unit_passes.divide(pass);
  const uint32_t in_step = p.unit_columns.divide(column);
  Unit u{};
  u.w = static_cast<int32_t>(pass) * p.unit_weights;
  const auto group = static_cast<int32_t>(p.passes.divide(pass));
  const int32_t tile = static_cast<int32_t>(pass) * Tiles, j = static_cast<int32_t>(column) * 16 * PixelTiles;
  u.x = group * t.steps * t.step_words * t.word_parts * t.word_pitch + j * t.pixel_pitch;
  u.column = b.first_column + j * p.w_axis.stride;
  u.columns = smaller(b.last_column - u.column, 16 * PixelTiles * p.w_axis.stride);
  u.channel = group * p.cout + tile * 8;  // of several groups, a block has all channels
  u.channels = group < p.groups - b.group ? (t.block_groups > 1 ? p.cout : b.channels) - tile * 8 : 0;
  u.channels = smaller(u.channels, 8 * Tiles);
  u.y = u.column * p.plane_step + static_cast<int32_t>(p.y_channel) * u.channel;
  u.in_step = u.columns > 0 && u.channels > 0 ? static_cast<int32_t>(in_step) : no_row;
  return u;
}

template <int Bytes>
CONVT_DEVICE void load_words(const void* from, uint32_t* words) {
  if constexpr (Bytes == 2) {
    words[0] = *static_cast<const uint16_t*>(from);
  } else {
    const auto v = *static_cast<const Elements<uint32_t, Bytes / 4>*>(from);
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i) words[i] = v.v[i];
  }
}

// Outputs of the planes of a unit from a warp's piece of shared memory, V at a time. A plane takes Rounds of all lanes,
// or several planes take one.
template <class Scalar, int Tiles, int V, int Rounds, int Planes>
CONVT_DEVICE void store_rounds(const Params& p, Scalar* y, int32_t count, const Scalar* stage) {
  constexpr int32_t lanes = 32 / Planes, bytes = V * static_cast<int32_t>(sizeof(Scalar)), step = 32 * V;
  // As many planes at once as there are registers for.
  constexpr int32_t planes = smaller(8 * Tiles, Planes * larger(1, 128 / ((Rounds + Rounds / 3) * bytes)));
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first = lane % lanes * V, channel = lane / lanes, left = count - first;
  const auto pitch = static_cast<int32_t>(p.y_channel);
  const Scalar* from = stage + (channel * p.t.stage_pitch + first);
  Scalar* to = y + (pitch * channel + first);
#pragma unroll
  for (int32_t k = 0; k < 8 * Tiles; k += planes) {
    // What lies behind a plane is read, too: the next one or another part of shared memory.
    uint32_t words[planes / Planes][Rounds][ceil_div(bytes, 4)];
#pragma unroll
    for (int32_t i = 0; i < planes / Planes; ++i) {
#pragma unroll
      for (int32_t r = 0; r < Rounds; ++r) {
        load_words<bytes>(from + (k + i * Planes) * p.t.stage_pitch + r * step, words[i][r]);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < planes / Planes; ++i) {
#pragma unroll
      for (int32_t r = 0; r < Rounds; ++r) {
        store_words_if<bytes>(left > r * step, to + (k + i * Planes) * pitch + r * step, words[i][r]);
      }
    }
  }
}

template <class Scalar, int Tiles, int V>
CONVT_DEVICE void store_planes(const Params& p, Scalar* y, int32_t channels, int32_t count, const Scalar* stage) {
  if (channels == 8 * Tiles && count <= 96 * V) {
    if (count <= 16 * V) {
      store_rounds<Scalar, Tiles, V, 1, 2>(p, y, count, stage);
    } else if (count <= 32 * V) {
      store_rounds<Scalar, Tiles, V, 1, 1>(p, y, count, stage);
    } else if (count <= 64 * V) {
      store_rounds<Scalar, Tiles, V, 2, 1>(p, y, count, stage);
    } else {
      store_rounds<Scalar, Tiles, V, 3, 1>(p, y, count, stage);
    }
    return;
  }
#pragma unroll 1
  for (int32_t channel = 0; channel < channels; ++channel) {
#pragma unroll 4
    for (int32_t k = static_cast<int32_t>(threadIdx.x % 32) * V; k < count; k += 32 * V) {
      *reinterpret_cast<Elements<Scalar, V>*>(y + (static_cast<int32_t>(p.y_channel) * channel + k)) =
          *reinterpret_cast<const Elements<Scalar, V>*>(stage + (channel * p.t.stage_pitch + k));
    }
  }
}

// Calls `with` with the elements that a store has.
template <class Scalar, class With>
CONVT_DEVICE void with_store_width(const Params& p, const With& with) {
  if (p.store_width == 4) {
    with.template operator()<4>();
  } else if (p.store_width == 2) {
    with.template operator()<2>();
  } else if (p.store_width == 1) {
    with.template operator()<1>();
  } else {
    if constexpr (sizeof(Scalar) == 2) with.template operator()<8>();
  }
}

template <int Tiles, class Scalar>
CONVT_DEVICE void store_staged(const Params& p, Scalar* y, int32_t channels, int32_t count, const Scalar* stage) {
  with_store_width<Scalar>(p, [&]<int V>() { store_planes<Scalar, Tiles, V>(p, y, channels, count, stage); });
}

// Outputs that no tap reaches.
template <class Scalar>
CONVT_DEVICE void store_bias(const Params& p, Scalar* y, int32_t channels, int32_t count, const float* bias) {
  with_store_width<Scalar>(p, [&]<int V>() {
#pragma unroll 1
    for (int32_t channel = 0; channel < channels; ++channel, y += static_cast<int32_t>(p.y_channel)) {
      Elements<Scalar, V> v;
      store<1>(&v.v[0], bias + channel);
#pragma unroll
      for (int i = 1; i < V; ++i) v.v[i] = v.v[0];
#pragma unroll 4
      for (int32_t k = static_cast<int32_t>(threadIdx.x % 32) * V; k < count; k += 32 * V) {
        *reinterpret_cast<Elements<Scalar, V>*>(y + k) = v;
      }
    }
  });
}

// How many elements behind a multiple of 16 bytes an address is.
template <class Scalar>
CONVT_DEVICE int32_t place_in_vector(const Scalar* at) {
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(at) / sizeof(Scalar) % (16 / sizeof(Scalar)));
}

// Outputs that no tap reaches by the copy engine, from planes that have the bias throughout. Of a line that two units
// share, the left one has all: whatever they copy begins and ends at lines, or where rows do.
template <int Tiles, class Scalar>
CONVT_DEVICE void copy_bias(const Params& p, const Block& b, const Unit& u, Scalar* y) {
  constexpr int32_t lanes = 4 / Tiles, size = static_cast<int32_t>(sizeof(Scalar)), vector = 16 / size;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channel = lane / lanes;
  if (channel < u.channels) {
    const auto to_line = [](const Scalar* at) {
      return static_cast<int32_t>((0 - reinterpret_cast<uintptr_t>(at)) % line_bytes) / size;
    };
    y += static_cast<int32_t>(p.y_channel) * channel;
    int32_t count = u.columns;
    count += smaller(to_line(y + count), b.last_column - u.column - u.columns);
    if (u.column != b.first_column) {
      const int32_t others = smaller(to_line(y), count);
      y += others, count -= others;
    }
    const Scalar* image = reinterpret_cast<const Scalar*>(device::dynamic_shared_memory() + p.t.places.image) +
                          (u.channel + channel) * p.t.image_step;
    const int32_t head = smaller(-place_in_vector(y) & (vector - 1), count);
    const int32_t body = (count - head) & -vector, edges = count - body;
    if (lane % lanes == 0 && body > 0) {
      const auto place =
          static_cast<int32_t>((reinterpret_cast<uintptr_t>(y + head) - device::shared_address(image)) % line_bytes) /
          size;
      device::bulk_store(y + head, device::shared_address(image + place), static_cast<uint32_t>(body * size));
    }
#pragma unroll 1
    for (int32_t i = lane % lanes; i < edges; i += lanes) y[i < head ? i : i + body] = image[0];
  }
  device::bulk_commit();
}

// Planes of `elements` elements that have their channel's bias throughout, by `threads` threads.
template <class Scalar>
CONVT_DEVICE void fill_planes(int32_t channels, int32_t elements, const float* bias, Scalar* planes, int32_t thread,
                              int32_t threads) {
  constexpr int32_t vector = 16 / static_cast<int32_t>(sizeof(Scalar));
#pragma unroll 1
  for (int32_t channel = 0; channel < channels; ++channel, planes += elements) {
    Elements<Scalar, vector> v;
    store<1>(&v.v[0], bias + channel);
#pragma unroll
    for (int i = 1; i < vector; ++i) v.v[i] = v.v[0];
#pragma unroll 1
    for (int32_t k = thread * vector; k < elements; k += threads * vector) {
      *reinterpret_cast<Elements<Scalar, vector>*>(planes + k) = v;
    }
  }
}

// Where the outputs of a unit begin.
template <class Scalar>
CONVT_DEVICE Scalar* unit_outputs(const Params& p, const Block& b, int32_t row, const Unit& u) {
  return static_cast<Scalar*>(p.y) + b.y + (static_cast<int32_t>(p.y_row) * (row + u.in_step) + u.y);
}

// A unit of work, a copy of which takes registers: into `stage`, or stored from registers.
template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles, bool XPixels>
CONVT_DEVICE void compute_unit(const Params& p, const Unit& u, const RowWork* rows, int32_t row_count,
                               const uint32_t* weights, const uint32_t* x, const Start* starts, const Entry* entries,
                               const float* bias, Scalar* stage, const Block& b, int32_t step_row) {
  constexpr int fragment = weight_words<Strict, StepWords>;
  const Tiling& t = p.t;
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, l = lane % 4;
  const int32_t stride = p.w_axis.stride;
  const uint32_t* unit_w = weights + (u.w + lane * fragment);
#pragma unroll 1
  for (int32_t batch = 0; batch < t.batches; ++batch) {
    const Start start = starts[batch];
    Sums<Tiles, PixelTiles> sums;
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t channel = lane_channel<Tiles>(t.staged, l, n, e);
        const float v = bias[smaller(channel, u.channels - 1)];
#pragma unroll
        for (int r = 0; r < most_residues; ++r) {
#pragma unroll
          for (int m = 0; m < PixelTiles; ++m) {
            sums[r][n][m][e] = sums[r][n][m][e + 2] = v;
            keep(sums[r][n][m][e]), keep(sums[r][n][m][e + 2]);
          }
        }
      }
    }
    const Entry *first = entries + start.entry, *end = entries + start.end;
    const uint32_t* batch_w = unit_w + start.fragment * (Tiles * 32 * fragment);
#pragma unroll 1
    for (int32_t i = 1; i <= row_count; ++i) {
      const RowWork row = rows[i];
      if (row.x < 0) continue;
      add_row<Scalar, Strict, StepWords, Tiles, PixelTiles, XPixels>(p, x + row.x, batch_w + row.w, first, end, sums);
    }
    if (t.staged) {
      const int32_t next = 8 * stride;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        Scalar* to = stage + ((n * 8 + 2 * l) * t.stage_pitch + g * stride + start.residue[0]);
        Scalar* second = to + t.stage_pitch;
        if (start.count == 2 && start.adjacent != 0 && ((stride | start.residue[0]) & 1) == 0) {
          // Two phases beside each other, at an even place.
#pragma unroll
          for (int m = 0; m < 2 * PixelTiles; ++m) {
            const float *even = &sums[0][n][m / 2][m % 2 * 2], *odd = &sums[1][n][m / 2][m % 2 * 2];
            const float pair[2] = {even[0], odd[0]}, second_pair[2] = {even[1], odd[1]};
            store<2>(to, pair), store<2>(second, second_pair);
            to += next, second += next;
          }
        } else if (start.adjacent != 0) {
#pragma unroll
          for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
            for (int r = 0; r < most_residues; ++r) {
              const float* v = &sums[r][n][m / 2][m % 2 * 2];
              if (r < start.count) store_pair(to + r, second + r, v[0], v[1]);
            }
            to += next, second += next;
          }
        } else {
#pragma unroll
          for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
            for (int r = 0; r < most_residues; ++r) {
              const float* v = &sums[r][n][m / 2][m % 2 * 2];
              const int32_t at = start.residue[r] - start.residue[0];
              if (r < start.count) store_pair(to + at, second + at, v[0], v[1]);
            }
            to += next, second += next;
          }
        }
      }
    } else {
      constexpr int wide = 2 * Tiles;
      const int32_t channel = wide * l, valid = u.channels - channel;
      const bool whole = !t.y_pixels && p.store_width == wide && u.channels == 8 * Tiles;  // of all lanes
      Scalar* to = unit_outputs<Scalar>(p, b, step_row, u) +
                   (g * stride * p.plane_step + channel * static_cast<int32_t>(p.y_channel));
      if (whole && u.columns == 16 * PixelTiles * stride) {
        // All lanes have all outputs: no checks.
        int32_t at[most_residues];
#pragma unroll
        for (int r = 0; r < most_residues; ++r) at[r] = start.residue[r] * p.plane_step;
#pragma unroll
        for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
          for (int r = 0; r < most_residues; ++r) {
            if (r >= start.count) continue;
            float v[wide];
#pragma unroll
            for (int e = 0; e < wide; ++e) v[e] = sums[r][e / 2][m / 2][m % 2 * 2 + e % 2];
            store<wide>(to + at[r], v);
          }
          to += 8 * stride * p.plane_step;
        }
        continue;
      }
      int32_t left = u.columns - g * stride;
#pragma unroll
      for (int m = 0; m < 2 * PixelTiles; ++m) {
#pragma unroll
        for (int r = 0; r < most_residues; ++r) {
          if (r >= start.count || start.residue[r] >= left) continue;
          float v[wide];
#pragma unroll
          for (int e = 0; e < wide; ++e) v[e] = sums[r][e / 2][m / 2][m % 2 * 2 + e % 2];
          Scalar* at = to + start.residue[r] * p.plane_step;
          if (whole) {
            store<wide>(at, v);
          } else {
#pragma unroll
            for (int e = 0; e < wide; ++e) {
              if (e < valid) store<1>(at + e * static_cast<int32_t>(p.y_channel), &v[e]);
            }
          }
        }
        to += 8 * stride * p.plane_step, left -= 8 * stride;
      }
    }
  }
}

// Computes those of a unit's outputs again that are NaN, over the inputs inside the image only: a zero outside of it
// times a weight that is not finite is NaN, and so is the sum of the parts of an infinity. By the warp that stored
// them.
template <class Scalar, bool Strict>
__noinline__ __device__ void repair_unit(const Params& p, int turn, int32_t unit) {
  const Tiling& t = p.t;
  const Block& b = block_of(p);
  const Step& s = step_of(p, turn);
  const Unit u = reinterpret_cast<const Unit*>(device::dynamic_shared_memory() + t.places.units)[unit];
  const float* bias = reinterpret_cast<const float*>(device::dynamic_shared_memory() + t.places.bias) + u.channel;
  const Scalar* x = static_cast<const Scalar*>(p.x) + b.x;
  Scalar* y = unit_outputs<Scalar>(p, b, s.row, u);
  const int32_t group = t.block_groups > 1 ? u.channel / p.cout : 0;
  __syncwarp();  // the outputs are stored
  repair_outputs<Scalar>(
      u.channels, u.columns,
      [&](int32_t channel, int32_t column) {
        return y + (static_cast<int32_t>(p.y_channel) * channel + column * p.plane_step);
      },
      [&](int32_t channel, int32_t column) {
        return bias[channel] + sum_of_phases<Scalar, Strict>(p, x, s.row + u.in_step, u.column + column,
                                                             b.group + group,
                                                             b.tile * 8 + u.channel + channel - group * p.cout);
      });
}

// The rest of what is known about a step whose rows are; `loaded` is the end of the input rows that there are.
CONVT_DEVICE void describe_step(const Params& p, int32_t loaded, int32_t ring_row, Step& s) {
  uint32_t residue = static_cast<uint32_t>(s.row);
  const auto jh = static_cast<int32_t>(p.stride_h.divide(residue));
  s.jh = jh, s.residue = static_cast<int32_t>(residue);
  uint32_t last = residue + static_cast<uint32_t>(larger(s.rows - 1, 0));
  const int32_t last_jh = jh + static_cast<int32_t>(p.stride_h.divide(last));
  s.load_end = smaller(p.h.in, last_jh + p.h.phases.last + 1);
  const int32_t lowest = larger(0, jh + p.h.phases.first);
  s.load_first = larger(lowest, loaded);
  s.ring_row = lowest - ring_row < p.t.ring ? ring_row : ring_row + p.t.ring;
  s.load_slot = s.load_first - s.ring_row;
  if (s.load_slot >= p.t.ring) s.load_slot -= p.t.ring;
}

CONVT_DEVICE void first_step(const Params& p, const Block& b, Step& s) {
  s.row = b.first_row, s.rows = smaller(p.t.rows, b.last_row - b.first_row);
  uint32_t lowest = static_cast<uint32_t>(larger(0, s.row / p.h.stride + p.h.phases.first));
  describe_step(p, 0, static_cast<int32_t>(p.ring.divide(lowest) * p.ring.divisor), s);
}
CONVT_DEVICE Step step_after(const Params& p, const Block& b, const Step& s) {
  Step n;
  n.row = s.row + s.rows, n.rows = smaller(p.t.rows, b.last_row - n.row);
  describe_step(p, s.load_end, s.ring_row, n);
  return n;
}

CONVT_DEVICE Block make_block(const Params& p, uint32_t index) {
  const Tiling& t = p.t;
  Block b;
  uint32_t rest = p.chunks.divide(index);
  const auto chunk = static_cast<int32_t>(index);
  uint32_t strip = rest;
  rest = p.strips.divide(strip);
  uint32_t channel_block = rest;
  const int64_t n = p.channel_blocks.divide(channel_block);
  b.first_row = chunk * t.chunk_rows;
  b.last_row = smaller(b.first_row + t.chunk_rows, p.h.out);
  b.first_column = static_cast<int32_t>(strip) * t.strip_columns;
  b.last_column = smaller(b.first_column + t.strip_columns, p.w_axis.out);
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
  b.first_input = b.first_column / p.w_axis.stride - b.input_column;
  b.x = n * p.x_batch, b.y = n * p.y_batch + b.channel * p.y_channel;
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

template <class Scalar, bool Strict, int StepWords, int Tiles, int PixelTiles, bool XPixels>
__global__ void __launch_bounds__(block, resident_blocks(Tiles)) grouped_kernel(const __grid_constant__ Params p) {
  const Tiling& t = p.t;
  unsigned char* shared = device::dynamic_shared_memory();
  uint32_t* weights = reinterpret_cast<uint32_t*>(shared);
  uint32_t* ring = reinterpret_cast<uint32_t*>(shared + t.places.ring);
  Block* shared_block = reinterpret_cast<Block*>(shared + t.places.block);
  static_assert(sizeof(Block) + 8 <= block_bytes && sizeof(Block) % 8 == 0);
  int32_t* spoilt = reinterpret_cast<int32_t*>(shared_block + 1);
  Start* starts = reinterpret_cast<Start*>(shared + t.places.starts);
  Step* steps = reinterpret_cast<Step*>(shared + t.places.steps);  // of four in turn, which takes no registers
  Unit* units = reinterpret_cast<Unit*>(shared + t.places.units);
  // Of two steps in turn.
  const auto works = [&](int32_t turn) {
    return reinterpret_cast<RowWork*>(shared + t.places.works) + turn * t.rows * (t.kernel_rows + 1);
  };
  constexpr int32_t item_count = held_vectors(sizeof(Scalar), Strict, XPixels);
  const Items items(shared + t.places.items, item_count);
  Entry* entries = reinterpret_cast<Entry*>(shared + t.places.entries);
  Order* order = reinterpret_cast<Order*>(shared + t.places.order);
  float* bias = reinterpret_cast<float*>(shared + t.places.bias);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  if (thread == 0) *shared_block = make_block(p, blockIdx.x);
  if (thread == 32) list_entries(p, starts, entries, order);
  __syncthreads();
  const Block& b = *shared_block;

  // Zeros where no input is ever loaded.
  for (int32_t i = thread; i < static_cast<int32_t>(t.input_bytes / 16); i += block) {
    reinterpret_cast<uint4*>(ring)[i] = make_uint4(0, 0, 0, 0);
  }
  if (thread < 2) spoilt[thread] = 0;
  for (int32_t i = thread; i < b.channels; i += block) {
    bias[i] = 0;
    if (p.bias != nullptr) load<1>(static_cast<const Scalar*>(p.bias) + (b.channel + i) * p.bias_stride, &bias[i]);
  }
  for (int32_t i = thread; i < t.units; i += block) units[i] = make_unit<Tiles, PixelTiles>(p, b, i);
  for (int32_t i = thread; i < item_count; i += block) {
    items.put(i, make_item<Scalar, Strict, XPixels>(p, b, static_cast<uint32_t>(i)));
  }
  if (thread == 0) {
    first_step(p, b, steps[0]);
    steps[1] = step_after(p, b, steps[0]);
  }
  __syncthreads();
  for (int32_t k = thread; k < steps[0].rows * t.kernel_rows; k += block) {
    list_row(p, steps[0], static_cast<uint32_t>(k), works(0));
  }
  bool bad = load_weights<Scalar, Strict, StepWords, Tiles>(p, b, order, weights);
  if (load_rows<Scalar, Strict, XPixels>(p, 0, 0) || bad) *spoilt = 1;
  if (device::has_copy_engine && t.blank_rows) {
    // What rows without taps are copied from.
    fill_planes(p.bias != nullptr ? b.channels : 1, t.image_pitch, bias,
                reinterpret_cast<Scalar*>(shared + t.places.image), thread, block);
    device::fence_async_proxy();
  }
  __syncthreads();

  // Strict float32 of 16 channels has no registers to hold inputs in.
  constexpr bool holds = !Strict || Tiles == 1;
  constexpr int vectors = early_loads(Strict);  // of a round
  const int32_t row_items = static_cast<int32_t>(p.load_middle.divisor * p.load_inner.divisor);
  Scalar* stage = reinterpret_cast<Scalar*>(shared + t.places.stages + warp * static_cast<int32_t>(t.stage_bytes));
  int32_t filled = -1;  // the channels whose bias the stage has
#pragma unroll 1
  for (int32_t i = 0;; ++i) {
    // Copies of steps: what is used of them is read together.
    const Step now = steps[i % 4];
    if (now.row >= b.last_row) break;
    int32_t load_count = 0;
    Raw<Strict, vectors> raw[early_rounds(sizeof(Scalar), Strict, XPixels)];
    const auto each_round = [&](const auto& use) {
#pragma unroll
      for (int r = 0; r < early_rounds(sizeof(Scalar), Strict, XPixels); ++r) {
        if (load_count <= r * vectors * block) break;
        Item early[vectors];
        for (int k = 0; k < vectors; ++k) early[k] = items.get((r * vectors + k) * block + thread);
        with_rows<Scalar, Strict, XPixels>(p, [&]<class R>(R rows) { use(rows, early, raw[r]); });
      }
    };
    {
      const Step next = steps[(i + 1) % 4];
      if (thread == block - 32) steps[(i + 2) % 4] = step_after(p, b, next);
      if (next.row < b.last_row) {
        for (int32_t k = thread; k < next.rows * t.kernel_rows; k += block) {
          list_row(p, next, static_cast<uint32_t>(k), works((i + 1) % 2));
        }
        load_count = (next.load_end - next.load_first) * row_items;
      }
      if constexpr (holds) {
        each_round([&]<class R>(R, const auto& early, auto& to) {
          R::read(p, static_cast<const Scalar*>(p.x) + b.x, next, early, to);
        });
      }
    }
    const bool repairs = spoilt[i % 2] != 0;
    // The first column of the block is the first one of the phases too.
    const uint32_t* lane_x =
        ring + (lane % 4 * (StepWords / 4) * t.word_pitch + (b.first_input + lane / 4) * t.pixel_pitch);
#pragma unroll 1
    for (int32_t unit = warp; unit < t.units; unit += warps) {
      const Unit& u = units[unit];
      if (u.in_step >= now.rows) continue;
      const RowWork* rows = works(i % 2) + u.in_step * (t.kernel_rows + 1);
      const int32_t row_count = rows->x;
      const float* unit_bias = bias + u.channel;
      const auto y = [&] { return unit_outputs<Scalar>(p, b, now.row, u); };
      if (row_count == 0 && t.y_pixels) {
        if (device::has_copy_engine && t.blank_rows) {
          copy_bias<Tiles>(p, b, u, y());
        } else {
          store_bias(p, y(), u.channels, u.columns, unit_bias);
        }
        continue;
      }
      if (t.blanks && u.channel != filled) {
        filled = u.channel;
        fill_planes(u.channels, t.stage_pitch, unit_bias, stage, lane, 32);
        __syncwarp();
      }
      compute_unit<Scalar, Strict, StepWords, Tiles, PixelTiles, XPixels>(
          p, u, rows, row_count, weights, lane_x + u.x, starts, entries, unit_bias, stage, b, now.row);
      if (t.staged) {
        __syncwarp();
        store_staged<Tiles>(p, y(), u.channels, u.columns, stage);
        __syncwarp();
      }
      if (repairs) repair_unit<Scalar, Strict>(p, i, unit);
    }
    bool spoils = false;
    if constexpr (holds) {
      if (load_count > 0) {
        float check = 0;
        const Step next = steps[(i + 1) % 4];
        each_round([&]<class R>(R, const auto& early, auto& from) { R::write(p, ring, next, early, from, check); });
        spoils = check != check;
      }
    }
    constexpr int32_t held = holds ? item_count : 0;
    if (load_count > held) spoils |= load_rows<Scalar, Strict, XPixels>(p, i + 1, held);
    if (repairs || (Strict && spoils)) spoilt[(i + 1) % 2] = 1;
    __syncthreads();
  }
  device::bulk_wait_read<0>();  // the block's shared memory is still read
}

}  // namespace convt::grouped
