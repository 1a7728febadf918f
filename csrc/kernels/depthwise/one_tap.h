// Kernels as large as their stride: each output has one tap, and each input is read by one thread, which computes all
// outputs of its pixel in few channels. Nothing is read twice, so that it is bound by memory in either layout.
#pragma once

#include <algorithm>

#include "../access_width.h"
#include "blocking.h"
#include "last.h"
#include "params.h"

#if defined(__CUDACC__)
#include "../load_if.h"
#endif

namespace convt::depthwise {

struct OneTapParams {
  const void* x;
  const void* w;
  const void* bias;  // null if there is none
  void* y;
  int64_t x_batch_stride, x_channel_stride, x_row_stride, x_column_stride;
  int64_t y_batch_stride, y_channel_stride, y_row_stride, y_column_stride, bias_stride;
  int64_t w_input_stride, w_channel_stride, w_row_stride, w_column_stride;
  int32_t in_w, channels, out_channels;
  bool x_vectors;                 // whether all of a thread's pixels, or 16 bytes of their channels, are loaded at once
  bool y_vectors, y_of_channels;  // whether the outputs of a row, or the channels of one, are stored at once
  uint32_t threads;
  Divisor columns, rows;
};

static_assert(std::is_trivially_copyable_v<OneTapParams>);

inline OneTapParams make_one_tap_params(const Plan& plan, const Problem& p, const Operands& o) {
  const Config& c = configs[plan.configuration];
  const bool last = takes_channels(p);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  const int64_t size = element_size(p.dtype);
  const int32_t pixels = pixels_of_one_tap(c, size, last);
  OneTapParams q{};
  q.x = o.x, q.w = o.w, q.bias = p.has_bias ? o.bias : nullptr, q.y = o.result;
  q.x_batch_stride = p.x_strides[0], q.x_channel_stride = p.x_strides[1], q.x_row_stride = p.x_strides[2];
  q.x_column_stride = p.x_strides[3];
  q.y_batch_stride = p.y_strides[0], q.y_channel_stride = p.y_strides[1], q.y_row_stride = p.y_strides[2];
  q.y_column_stride = p.y_strides[3], q.bias_stride = p.bias_stride;
  q.w_input_stride = p.w_strides[0], q.w_channel_stride = p.w_strides[1], q.w_row_stride = p.w_strides[2];
  q.w_column_stride = p.w_strides[3];
  q.in_w = narrow(p.in_w), q.channels = narrow(p.in_channels), q.out_channels = narrow(p.out_channels);
  const int32_t vector = last ? narrow(16 / size) : pixels;
  q.x_vectors =
      access_width(o.x, size, p.x_sizes(), p.x_strides, last ? 1 : 3, last ? p.in_channels : p.in_w, vector) == vector;
  const int32_t row = pixels * c.w.stride, channels = smaller(4, c.channels);
  q.y_vectors = access_width(o.result, size, p.y_sizes(), p.y_strides, 3, p.out_w, row) == row;
  q.y_of_channels = !q.y_vectors && p.out_channels == c.channels &&
                    access_width(o.result, size, p.y_sizes(), p.y_strides, 1, p.out_channels, channels) == channels;
  q.threads = static_cast<uint32_t>(one_tap_threads(p, pixels));
  q.columns = Divisor(ceil_div<int64_t>(p.in_w, pixels)), q.rows = Divisor(p.in_h);
  return q;
}

// The weights of an input channel together, as [output channel][row][column]; the biases likewise, after the last
// one's.
template <class Scalar, int Row>
CONVT_HOST_DEVICE void fill_one_tap_table(const OneTapParams& p, float* table, uint32_t thread) {
  constexpr int stride = configs[Row].w.stride, outputs = stride * stride * configs[Row].channels;
#pragma unroll 2
  for (auto i = static_cast<int32_t>(thread); i < (p.channels + 1) * outputs; i += block) {
    const int32_t ci = i / outputs, rest = i - ci * outputs;
    const int32_t co = rest / (stride * stride), r = rest / stride % stride, c = rest % stride;
    float v = 0;
    if (ci == p.channels) {
      if (p.bias != nullptr && co < p.out_channels) {
        load<1>(static_cast<const Scalar*>(p.bias) + co * p.bias_stride, &v);
      }
    } else if (co < p.out_channels) {
      load<1>(static_cast<const Scalar*>(p.w) +
                  (ci * p.w_input_stride + co * p.w_channel_stride + r * p.w_row_stride + c * p.w_column_stride),
              &v);
    }
    table[i] = v;
  }
}

// Elements as they come from memory, so that many are on their way before the first one is converted.
template <class Scalar, int N, bool Last>
struct RawVector {
  static constexpr int bytes = N * static_cast<int>(sizeof(Scalar));
#if defined(__CUDA_ARCH__)
  uint32_t words[bytes < 4 ? 1 : bytes / 4];

  CONVT_HOST_DEVICE void load(bool is, const Scalar* from) {
    // Of channels innermost, the next load may want the rest of the sector.
    ::convt::load_if<bytes, Last ? Reads::again : Reads::once>(is, from, words);
  }
  CONVT_HOST_DEVICE void get(float* to) const {
    if constexpr (sizeof(Scalar) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = __uint_as_float(words[i]);
    } else if constexpr (N == 1) {
      to[0] = to_float(Scalar{static_cast<uint16_t>(words[0])});
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const float2 pair = unpack(Scalar{}, words[i / 2]);
        to[i] = pair.x, to[i + 1] = pair.y;
      }
    }
  }
#else
  float values[N];

  void load(bool is, const Scalar* from) { load_if<N>(is, from, values); }
  void get(float* to) const { std::copy(values, values + N, to); }
#endif
};

template <class Scalar, int Row, bool Last>
CONVT_HOST_DEVICE void compute_one_tap(const OneTapParams& p, const float* table, uint32_t index) {
  constexpr Config config = configs[Row];
  constexpr int stride = config.w.stride, channels = config.channels, outputs = stride * stride * channels;
  constexpr int pixels = pixels_of_one_tap(config, sizeof(Scalar), Last);
  constexpr int vector = Last ? static_cast<int>(16 / sizeof(Scalar)) : pixels;
  // What is on its way at once: 16-byte vectors of channels of a pixel, or channels of the pixels.
  constexpr int together = Last ? 4 : 8;
  static_assert(!Last || pixels == 1);

  uint32_t tile_column = index;
  uint32_t row = p.columns.divide(tile_column);
  const uint32_t n = p.rows.divide(row);
  const int32_t column = static_cast<int32_t>(tile_column) * pixels;
  const Scalar* x =
      static_cast<const Scalar*>(p.x) + n * p.x_batch_stride + row * p.x_row_stride + column * p.x_column_stride;

  float sums[pixels][outputs];
#pragma unroll
  for (int i = 0; i < pixels; ++i) {
#pragma unroll
    for (int k = 0; k < outputs; ++k) sums[i][k] = 0;
  }
  constexpr int of_vector = Last ? vector : 1, step = together * of_vector;  // channels
  // Of `count` channels, one after the other as values[channel][pixel]. In float32 their products are summed up apart:
  // a sum is rounded less often at its own size.
  const auto add = [&](int32_t first, auto count, const auto& values) {
    constexpr int channels_at_once = decltype(count)::value;
    constexpr bool apart = sizeof(Scalar) == 4 && channels_at_once > 1;
    constexpr int outer = apart ? outputs / 4 : 1, inner = apart ? 1 : outputs / 4;
#pragma unroll
    for (int o = 0; o < outer; ++o) {
      float parts[pixels][4] = {};
#pragma unroll
      for (int u = 0; u < channels_at_once; ++u) {
        if (first + u >= p.channels) break;
#pragma unroll
        for (int n = 0; n < inner; ++n) {
          const int k = 4 * (o + n);
          float weight[4];
          load_table<4>(table + (first + u) * outputs + k, weight);
#pragma unroll
          for (int i = 0; i < pixels; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) (apart ? parts[i][j] : sums[i][k + j]) += values[u][i] * weight[j];
          }
        }
      }
      if constexpr (apart) {
#pragma unroll
        for (int i = 0; i < pixels; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][4 * o + j] += parts[i][j];
        }
      }
    }
  };
  constexpr std::integral_constant<int, of_vector> vector_channels{};
  if (p.x_vectors) {
#pragma unroll 1
    for (int32_t first = 0; first < p.channels; first += step) {
      RawVector<Scalar, vector, Last> raw[together];
#pragma unroll
      for (int u = 0; u < together; ++u) {
        const int32_t channel = first + u * of_vector;
        raw[u].load(channel < p.channels, x + channel * p.x_channel_stride);
      }
      if constexpr (Last) {
#pragma unroll
        for (int u = 0; u < together; ++u) {
          float values[vector][1];
          raw[u].get(values[0]);
          add(first + u * of_vector, vector_channels, values);
        }
      } else {
        float values[together][pixels];
#pragma unroll
        for (int u = 0; u < together; ++u) raw[u].get(values[u]);
        add(first, std::integral_constant<int, together>{}, values);
      }
    }
  } else {
#pragma unroll 2
    for (int32_t channel = 0; channel < p.channels; channel += of_vector) {
      const Scalar* from = x + channel * p.x_channel_stride;
      RawVector<Scalar, 1, Last> raw[vector];
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        raw[i].load(Last ? channel + i < p.channels : column + i < p.in_w,
                    from + i * (Last ? p.x_channel_stride : p.x_column_stride));
      }
      float values[of_vector][pixels];
#pragma unroll
      for (int i = 0; i < vector; ++i) raw[i].get(values[0] + i);
      add(channel, vector_channels, values);
    }
  }
#pragma unroll
  for (int k = 0; k < outputs; k += 4) {
    float bias[4];
    load_table<4>(table + p.channels * outputs + k, bias);
#pragma unroll
    for (int i = 0; i < pixels; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][k + j] += bias[j];
    }
  }

  Scalar* y = static_cast<Scalar*>(p.y) + n * p.y_batch_stride + static_cast<int64_t>(row) * stride * p.y_row_stride +
              static_cast<int64_t>(column) * stride * p.y_column_stride;
  if (stride == 1 && p.y_of_channels) {
    constexpr int piece = channels < 4 ? channels : 4;
#pragma unroll
    for (int i = 0; i < pixels; ++i) {
#pragma unroll
      for (int co = 0; co < channels; co += piece) {
        if (column + i < p.in_w) store<piece>(y + i * p.y_column_stride + co, sums[i] + co);
      }
    }
    return;
  }
#pragma unroll
  for (int co = 0; co < channels; ++co) {
    if (co >= p.out_channels) break;
#pragma unroll
    for (int r = 0; r < stride; ++r) {
      Scalar* to = y + co * p.y_channel_stride + r * p.y_row_stride;
      float v[pixels * stride];
#pragma unroll
      for (int i = 0; i < pixels * stride; ++i) v[i] = sums[i / stride][(co * stride + r) * stride + i % stride];
      if (p.y_vectors) {
        store<pixels * stride>(to, v);
      } else {
#pragma unroll
        for (int i = 0; i < pixels * stride; ++i) {
          if (column + i / stride < p.in_w) store<1>(to + i * p.y_column_stride, v + i);
        }
      }
    }
  }
}

}  // namespace convt::depthwise
