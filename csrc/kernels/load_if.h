// Loads of global memory and stores to it under a condition.
#pragma once

#include "device.h"
#include "scalar.h"

namespace convt {

// What is read once is the first to leave the caches.
enum class Reads { again, once };

#if defined(__CUDA_ARCH__)
#define CONVT_LOAD_IF(cache)                                                                               \
  if constexpr (Bytes == 16) {                                                                             \
    asm("{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;" \
        " @p ld.global" cache ".nc.v4.u32 {%0, %1, %2, %3}, [%4];}"                                        \
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])                                           \
        : "l"(from), "r"(condition));                                                                      \
  } else if constexpr (Bytes == 8) {                                                                       \
    asm("{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"                               \
        " @p ld.global" cache ".nc.v2.u32 {%0, %1}, [%2];}"                                                \
        : "=&r"(to[0]), "=&r"(to[1])                                                                       \
        : "l"(from), "r"(condition));                                                                      \
  } else if constexpr (Bytes == 4) {                                                                       \
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global" cache ".nc.u32 %0, [%1];}"      \
        : "=&r"(to[0])                                                                                     \
        : "l"(from), "r"(condition));                                                                      \
  } else {                                                                                                 \
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global" cache ".nc.u16 %0, [%1];}"      \
        : "=&r"(to[0])                                                                                     \
        : "l"(from), "r"(condition));                                                                      \
  }
#endif

// `Bytes` (2, 4, 8 or 16) from read-only memory where `is`; zeros elsewhere. A predicated instruction rather than a
// branch: behind a branch the compiler waits for a load before it issues the next one.
template <int Bytes, Reads reads = Reads::again>
CONVT_DEVICE void load_if(bool is, const void* from, uint32_t* to) {
  static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16);
#if defined(__CUDA_ARCH__)
  const auto condition = static_cast<unsigned>(is);
  if constexpr (reads == Reads::once) {
    CONVT_LOAD_IF(".cs")
  } else {
    CONVT_LOAD_IF("")
  }
#else
  for (int i = 0; i < Bytes / 4; ++i) to[i] = 0;
  if (Bytes == 2) to[0] = is ? *static_cast<const uint16_t*>(from) : 0;
  if (Bytes != 2 && is) {
    struct alignas(Bytes) Words {
      uint32_t v[Bytes < 4 ? 1 : Bytes / 4];
    };
    const auto* words = static_cast<const Words*>(from);
    for (int i = 0; i < Bytes / 4; ++i) to[i] = words->v[i];
  }
#endif
}

#undef CONVT_LOAD_IF

// One element of `Bytes` (2 or 4) where `mask` has bit `Bit`; elsewhere `to` stays what it is, so that no zeros need be
// made for each load.
template <int Bytes, int Bit>
CONVT_DEVICE void load_over(uint32_t mask, const void* from, uint32_t& to) {
  static_assert(Bytes == 2 || Bytes == 4);
#if defined(__CUDA_ARCH__)
  if constexpr (Bytes == 4) {
    asm("{.reg .pred p; .reg .b32 is; and.b32 is, %2, %3; setp.ne.u32 p, is, 0; @p ld.global.nc.u32 %0, [%1];}"
        : "+r"(to)
        : "l"(from), "r"(mask), "n"(1u << Bit));
  } else {
    asm("{.reg .pred p; .reg .b32 is; and.b32 is, %2, %3; setp.ne.u32 p, is, 0; @p ld.global.nc.u16 %0, [%1];}"
        : "+r"(to)
        : "l"(from), "r"(mask), "n"(1u << Bit));
  }
#else
  if (mask >> Bit & 1) to = *static_cast<const BitsOf<std::conditional_t<Bytes == 4, float, Float16> >*>(from);
#endif
}

// An element of words of memory.
template <class Scalar>
CONVT_DEVICE float element(const uint32_t* words, int i) {
  if constexpr (sizeof(Scalar) == 4) {
    return __uint_as_float(words[i]);
  } else {
    return to_float(Scalar{static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2))});
  }
}

// The same way back, from words. An assignment of a vector is taken apart in long unrolled code; and behind a branch
// the registers of a store's address are those of the store before, which it has to have read by then: some 70 clocks.
template <int Bytes>
CONVT_DEVICE void store_words_if(bool is, void* to, const uint32_t* words) {
  static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16);
#if defined(__CUDA_ARCH__)
  const auto condition = static_cast<unsigned>(is);
  if constexpr (Bytes == 16) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(condition)
                 : "memory");
  } else if constexpr (Bytes == 8) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.u32 [%0], {%1, %2};}" ::"l"(to), "r"(words[0]),
                 "r"(words[1]), "r"(condition)
                 : "memory");
  } else if constexpr (Bytes == 4) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u32 [%0], %1;}" ::"l"(to), "r"(words[0]),
                 "r"(condition)
                 : "memory");
  } else {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u16 [%0], %1;}" ::"l"(to),
                 "h"(static_cast<uint16_t>(words[0])), "r"(condition)
                 : "memory");
  }
#else
  if (!is) return;
  if (Bytes == 2) *static_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
  struct alignas(Bytes) Words {
    uint32_t v[Bytes < 4 ? 1 : Bytes / 4];
  };
  for (int i = 0; i < Bytes / 4; ++i) static_cast<Words*>(to)->v[i] = words[i];
#endif
}
// 16 bytes, of whose lines L2 is told what becomes of them.
CONVT_DEVICE void store_words_if(bool is, void* to, const uint32_t (&words)[4], CachePolicy policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %6, 0; @p st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;}" ::"l"(to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "l"(static_cast<uint64_t>(policy)),
      "r"(static_cast<uint32_t>(is))
      : "memory");
#else
  if (is) device::store_global_16(to, words, policy);
#endif
}

// `Count` outputs side by side where `is`. Those of float32 are no words: of sums that are stored as integers ptxas
// makes copies, among the products of wgmma, too, which are serialised then (C7520).
template <int Count, class Scalar>
CONVT_DEVICE void store_if(bool is, Scalar* to, const float* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Scalar) == 4) {
    const auto condition = static_cast<unsigned>(is);
    if constexpr (Count == 4) {
      asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                   "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]), "r"(condition)
                   : "memory");
    } else if constexpr (Count == 2) {
      asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(from[0]),
                   "f"(from[1]), "r"(condition)
                   : "memory");
    } else {
      asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(to), "f"(from[0]),
                   "r"(condition)
                   : "memory");
    }
  } else {
    constexpr int words = ceil_div(Count, 2);
    uint32_t packed[words];
#pragma unroll
    for (int i = 0; i < words; ++i) packed[i] = pack(Scalar{}, from[2 * i], Count > 1 ? from[2 * i + 1] : 0.0f);
    store_words_if<2 * Count>(is, to, packed);
  }
#else
  if (is) store<Count>(to, from);
#endif
}

}  // namespace convt
