// Instructions of wgmma. Every accumulator is an operand by name: macros write the lists of them.
#pragma once

namespace convt::device {

// "%0" to "%N-1", and the operands that they are.
#define CONVT_TEN(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define CONVT_NAMES_30 CONVT_TEN() ", " CONVT_TEN(1) ", " CONVT_TEN(2)
#define CONVT_NAMES_60 CONVT_NAMES_30 ", " CONVT_TEN(3) ", " CONVT_TEN(4) ", " CONVT_TEN(5)
#define CONVT_NAMES_120 \
  CONVT_NAMES_60        \
  ", " CONVT_TEN(6) ", " CONVT_TEN(7) ", " CONVT_TEN(8) ", " CONVT_TEN(9) ", " CONVT_TEN(10) ", " CONVT_TEN(11)
#define CONVT_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CONVT_NAMES_16 CONVT_TEN() ", %10, %11, %12, %13, %14, %15"
#define CONVT_NAMES_32 CONVT_NAMES_30 ", %30, %31"
#define CONVT_NAMES_36 CONVT_NAMES_30 ", %30, %31, %32, %33, %34, %35"
#define CONVT_NAMES_48 CONVT_NAMES_30 ", " CONVT_TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CONVT_NAMES_64 CONVT_NAMES_60 ", %60, %61, %62, %63"
#define CONVT_NAMES_68 CONVT_NAMES_64 ", %64, %65, %66, %67"
#define CONVT_NAMES_96 \
  CONVT_NAMES_60 ", " CONVT_TEN(6) ", " CONVT_TEN(7) ", " CONVT_TEN(8) ", %90, %91, %92, %93, %94, %95"
#define CONVT_NAMES_128 CONVT_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define CONVT_OPERANDS_4(how, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define CONVT_OPERANDS_8(how, i) CONVT_OPERANDS_4(how, i), CONVT_OPERANDS_4(how, i + 4)
#define CONVT_OPERANDS_16(how, i) \
  CONVT_OPERANDS_4(how, i), CONVT_OPERANDS_4(how, i + 4), CONVT_OPERANDS_4(how, i + 8), CONVT_OPERANDS_4(how, i + 12)
#define CONVT_OPERANDS_32(how, i) CONVT_OPERANDS_16(how, i), CONVT_OPERANDS_16(how, i + 16)
#define CONVT_OPERANDS_36(how, i) CONVT_OPERANDS_32(how, i), CONVT_OPERANDS_4(how, i + 32)
#define CONVT_OPERANDS_48(how, i) CONVT_OPERANDS_32(how, i), CONVT_OPERANDS_16(how, i + 32)
#define CONVT_OPERANDS_64(how, i) CONVT_OPERANDS_32(how, i), CONVT_OPERANDS_32(how, i + 32)
#define CONVT_OPERANDS_68(how, i) CONVT_OPERANDS_64(how, i), CONVT_OPERANDS_4(how, i + 64)
#define CONVT_OPERANDS_96(how, i) CONVT_OPERANDS_64(how, i), CONVT_OPERANDS_32(how, i + 64)
#define CONVT_OPERANDS_128(how, i) CONVT_OPERANDS_64(how, i), CONVT_OPERANDS_64(how, i + 64)

// `count` accumulators; the operands that follow them have the numbers `count` and `next`.
#define CONVT_WGMMA(shape, types, count, next, how, options)                                                      \
  asm volatile("wgmma.mma_async.sync.aligned." shape "." types " {" CONVT_NAMES_##count "}, %" #count ", %" #next \
                                                                                        ", " options ";"          \
               : CONVT_OPERANDS_##count(how, 0)                                                                   \
               : "l"(a), "l"(b))
// Of N columns and K channels.
#define CONVT_WGMMA_OF_WIDTH(k, types, how, options)         \
  if constexpr (N == 16) {                                   \
    CONVT_WGMMA("m64n16" k, types, 8, 9, how, options);      \
  } else if constexpr (N == 32) {                            \
    CONVT_WGMMA("m64n32" k, types, 16, 17, how, options);    \
  } else if constexpr (N == 64) {                            \
    CONVT_WGMMA("m64n64" k, types, 32, 33, how, options);    \
  } else if constexpr (N == 72) {                            \
    CONVT_WGMMA("m64n72" k, types, 36, 37, how, options);    \
  } else if constexpr (N == 96) {                            \
    CONVT_WGMMA("m64n96" k, types, 48, 49, how, options);    \
  } else if constexpr (N == 128) {                           \
    CONVT_WGMMA("m64n128" k, types, 64, 65, how, options);   \
  } else if constexpr (N == 136) {                           \
    CONVT_WGMMA("m64n136" k, types, 68, 69, how, options);   \
  } else if constexpr (N == 192) {                           \
    CONVT_WGMMA("m64n192" k, types, 96, 97, how, options);   \
  } else {                                                   \
    static_assert(N == 256);                                 \
    CONVT_WGMMA("m64n256" k, types, 128, 129, how, options); \
  }

// Operands after the accumulators: whether d is added to, the signs of a and b, and of 16-bit types whether a and b are
// M- and N-major.
#define CONVT_WGMMA_OF_TYPE(types)                            \
  if constexpr (a_major == Major::k && b_major == Major::k) { \
    CONVT_WGMMA_OF_WIDTH("k16", types, "+f", "1, 1, 1, 0, 0") \
  } else if constexpr (a_major == Major::k) {                 \
    CONVT_WGMMA_OF_WIDTH("k16", types, "+f", "1, 1, 1, 0, 1") \
  } else if constexpr (b_major == Major::k) {                 \
    CONVT_WGMMA_OF_WIDTH("k16", types, "+f", "1, 1, 1, 1, 0") \
  } else {                                                    \
    CONVT_WGMMA_OF_WIDTH("k16", types, "+f", "1, 1, 1, 1, 1") \
  }

template <WgmmaType type, int N, Major a_major, Major b_major>
CONVT_DEVICE void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (type == WgmmaType::tf32) {
    static_assert(a_major == Major::k && b_major == Major::k);
    CONVT_WGMMA_OF_WIDTH("k8", "f32.tf32.tf32", "+f", "1, 1, 1")
  } else if constexpr (type == WgmmaType::float16) {
    CONVT_WGMMA_OF_TYPE("f32.f16.f16")
  } else {
    CONVT_WGMMA_OF_TYPE("f32.bf16.bf16")
  }
#endif
}

// The same with a predicate, whose operand follows those of `count` accumulators, a and b: whether d is added to is
// known when it is executed.
#define CONVT_WGMMA_IF(shape, types, count, a0, b0, is)                                                                \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.u32 adds, %" #is ", 0;\nwgmma.mma_async.sync.aligned." shape "k16." types \
               " {" CONVT_NAMES_##count "}, %" #a0 ", %" #b0 ", adds, 1, 1, 1, 1;\n}"                                  \
               : CONVT_OPERANDS_##count("+f", 0)                                                                       \
               : "l"(a), "l"(b), "r"(d_is_added_to))
#define CONVT_WGMMA_IF_OF_WIDTH(types)                \
  if constexpr (N == 64) {                            \
    CONVT_WGMMA_IF("m64n64", types, 32, 32, 33, 34);  \
  } else {                                            \
    static_assert(N == 128);                          \
    CONVT_WGMMA_IF("m64n128", types, 64, 64, 65, 66); \
  }

template <WgmmaType type, int N>
CONVT_DEVICE void wgmma_as_in_memory(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b,
                                     uint32_t d_is_added_to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (type == WgmmaType::float16) {
    CONVT_WGMMA_IF_OF_WIDTH("f32.f16.f16")
  } else {
    static_assert(type == WgmmaType::bfloat16);
    CONVT_WGMMA_IF_OF_WIDTH("f32.bf16.bf16")
  }
#endif
}

template <WgmmaType type, int N>
CONVT_DEVICE void first_wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(type == WgmmaType::tf32);
  CONVT_WGMMA_OF_WIDTH("k8", "f32.tf32.tf32", "=f", "0, 1, 1")
#endif
}

// With a in registers, which the instruction reads until it is done.
#define CONVT_WGMMA_REGISTERS(shape, types, count, a0, a1, a2, a3, next, options)       \
  asm volatile("wgmma.mma_async.sync.aligned." shape "." types " {" CONVT_NAMES_##count \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #next ", " options ";"  \
               : CONVT_OPERANDS_##count("+f", 0)                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CONVT_WGMMA_REGISTERS_OF_WIDTH(k, types, options)                       \
  if constexpr (N == 16) {                                                      \
    CONVT_WGMMA_REGISTERS("m64n16" k, types, 8, 8, 9, 10, 11, 12, options);     \
  } else if constexpr (N == 32) {                                               \
    CONVT_WGMMA_REGISTERS("m64n32" k, types, 16, 16, 17, 18, 19, 20, options);  \
  } else if constexpr (N == 64) {                                               \
    CONVT_WGMMA_REGISTERS("m64n64" k, types, 32, 32, 33, 34, 35, 36, options);  \
  } else {                                                                      \
    static_assert(N == 128);                                                    \
    CONVT_WGMMA_REGISTERS("m64n128" k, types, 64, 64, 65, 66, 67, 68, options); \
  }

template <int N, WgmmaType type>
CONVT_DEVICE void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4], MatrixDescriptor b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (type == WgmmaType::tf32) {
    CONVT_WGMMA_REGISTERS_OF_WIDTH("k8", "f32.tf32.tf32", "1, 1, 1")
  } else if constexpr (type == WgmmaType::float16) {
    CONVT_WGMMA_REGISTERS_OF_WIDTH("k16", "f32.f16.f16", "1, 1, 1, 0")
  } else {
    CONVT_WGMMA_REGISTERS_OF_WIDTH("k16", "f32.bf16.bf16", "1, 1, 1, 0")
  }
#endif
}

#undef CONVT_WGMMA_IF_OF_WIDTH
#undef CONVT_WGMMA_IF
#undef CONVT_WGMMA_REGISTERS_OF_WIDTH
#undef CONVT_WGMMA_REGISTERS
#undef CONVT_WGMMA_OF_TYPE
#undef CONVT_WGMMA_OF_WIDTH
#undef CONVT_WGMMA
#undef CONVT_OPERANDS_128
#undef CONVT_OPERANDS_96
#undef CONVT_OPERANDS_68
#undef CONVT_OPERANDS_64
#undef CONVT_OPERANDS_32
#undef CONVT_OPERANDS_16
#undef CONVT_OPERANDS_8
#undef CONVT_OPERANDS_4
#undef CONVT_NAMES_128
#undef CONVT_NAMES_96
#undef CONVT_NAMES_68
#undef CONVT_NAMES_64
#undef CONVT_NAMES_32
#undef CONVT_NAMES_16
#undef CONVT_NAMES_8
#undef CONVT_NAMES_120
#undef CONVT_NAMES_60
#undef CONVT_NAMES_30
#undef CONVT_TEN

}  // namespace convt::device
