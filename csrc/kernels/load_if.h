// Loads of global memory under a condition.
#pragma once

#include "device.h"

namespace convt {

// `Bytes` (2, 4, 8 or 16) from read-only memory where `is`; zeros elsewhere. A predicated instruction rather than a
// branch: behind a branch the compiler waits for a load before it issues the next one.
template <int Bytes>
CONVT_DEVICE void load_if(bool is, const void* from, uint32_t* to) {
  static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16);
#if defined(__CUDA_ARCH__)
  const auto condition = static_cast<unsigned>(is);
  if constexpr (Bytes == 16) {
    asm("{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
        " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(from), "r"(condition));
  } else if constexpr (Bytes == 8) {
    asm("{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(from), "r"(condition));
  } else if constexpr (Bytes == 4) {
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1];}"
        : "=&r"(to[0])
        : "l"(from), "r"(condition));
  } else {
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u16 %0, [%1];}"
        : "=&r"(to[0])
        : "l"(from), "r"(condition));
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

}  // namespace convt
