// What kernels use of a GPU beyond the language: tensor cores, asynchronous copies, barriers. One function an
// instruction. A compiler without CUDA gets the same names from tests/simt, which runs the kernels' own source.
#pragma once

#include <cstdint>
#include <type_traits>

#include "scalar.h"
#include "tensor_map.h"

#if !defined(__CUDACC__)
#include "simt.h"
#else

#define CONVT_DEVICE __device__ __forceinline__

// Outside of any namespace, where names are those of PTX.
extern __shared__ __align__(1024) unsigned char convt_dynamic_shared_memory[];

namespace convt::device {

// Addresses of shared memory have 32 bits: arithmetic with them is an instruction.
using SharedAddress = uint32_t;
CONVT_DEVICE SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}
CONVT_DEVICE uint2 load_shared_8(SharedAddress from) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
CONVT_DEVICE uint32_t load_shared_2(SharedAddress from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
  return v;
}
CONVT_DEVICE uint32_t load_shared_4(SharedAddress from) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
CONVT_DEVICE uint4 load_shared_16(SharedAddress from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
CONVT_DEVICE void store_shared_2(SharedAddress to, uint32_t a) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<uint16_t>(a)) : "memory");
}
CONVT_DEVICE void store_shared_4(SharedAddress to, float a) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(a) : "memory");
}
CONVT_DEVICE void store_shared_8(SharedAddress to, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
CONVT_DEVICE void store_shared_16(SharedAddress to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Vectors to global memory in one instruction, which the compiler does not always make of an assignment.
CONVT_DEVICE void store_global_8(void* to, uint32_t a, uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}
CONVT_DEVICE void store_global_16(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// The same; `policy`: what becomes of them in L2, from sm_90 on.
CONVT_DEVICE void store_global_16(void* to, const uint32_t (&v)[4], CachePolicy policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]),
               "r"(v[3]), "l"(static_cast<uint64_t>(policy))
               : "memory");
#else
  store_global_16(to, v[0], v[1], v[2], v[3]);
#endif
}

// The block's dynamic shared memory. Its address is a constant, which the compiler sees only if it is read so: from the
// pointer it would ask for the block's place in its cluster at each use.
CONVT_DEVICE unsigned char* dynamic_shared_memory() { return convt_dynamic_shared_memory; }
CONVT_DEVICE SharedAddress dynamic_shared_address() {
  SharedAddress a;
  asm("mov.u32 %0, convt_dynamic_shared_memory;" : "=r"(a));
  return a;
}

// A float32 rounded to TF32, to nearest with ties away from zero; NaN and infinity stay.
CONVT_DEVICE uint32_t to_tf32(float v) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}

// d += a b. Fragments as in the PTX manual: with g = lane / 4 and t = lane % 4, a holds rows g and g + 8, b column g,
// d columns 2t and 2t + 1 of rows g and g + 8.
CONVT_DEVICE void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class Scalar>
CONVT_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <>
CONVT_DEVICE void mma_m16n8k16<Float16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
CONVT_DEVICE void mma_m16n8k16<BFloat16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class Scalar>
CONVT_DEVICE void mma_m16n8k8(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]);
template <>
CONVT_DEVICE void mma_m16n8k8<Float16>(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
template <>
CONVT_DEVICE void mma_m16n8k8<BFloat16>(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r names row r of matrix i, 16 bytes. A lane gets two neighbouring
// elements of row lane / 4 of each (transposed: of column lane / 4).
CONVT_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
CONVT_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// The same to shared memory (sm_90); transposed, a lane has two neighbouring elements of column lane / 4 of each.
CONVT_DEVICE void stmatrix_x4(SharedAddress row, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}
CONVT_DEVICE void stmatrix_x4_trans(SharedAddress row, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// Copies `Bytes` (4, 8 or 16, both addresses multiples of it) to shared memory, asynchronously; the last
// Bytes - valid_bytes are filled with zeros and not read.
template <int Bytes>
CONVT_DEVICE void cp_async(SharedAddress shared, const void* global, int valid_bytes) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes)
                 : "memory");
  } else {
    static_assert(Bytes == 4 || Bytes == 8);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(Bytes),
                 "r"(valid_bytes)
                 : "memory");
  }
}
template <int Bytes>
CONVT_DEVICE void cp_async(void* shared, const void* global, int valid_bytes) {
  cp_async<Bytes>(shared_address(shared), global, valid_bytes);
}
// The same of all bytes if `is` is not 0, or of zeros: one instruction, where the number of bytes takes five. No
// `bool`: a mask's bit would be made 0 or 1 for it.
template <int Bytes>
CONVT_DEVICE void cp_async_if(uint32_t is, SharedAddress shared, const void* global) {
  static_assert(Bytes == 4 || Bytes == 16);
  if constexpr (Bytes == 16) {
    asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p;}" ::"r"(shared),
                 "l"(global), "r"(is)
                 : "memory");
  } else {
    asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 4, p;}" ::"r"(shared),
                 "l"(global), "r"(is)
                 : "memory");
  }
}
CONVT_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but this thread's last `Pending` groups.
template <int Pending>
CONVT_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Arrives on a barrier of sm_90 when this thread's copies so far are there; it is one of those that the barrier waits
// for. What they have written is not ordered before what the copy engine or wgmma reads: who has waited for the barrier
// has to, by fence_async_proxy().
CONVT_DEVICE void cp_async_arrive(SharedAddress barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// A barrier of `threads` (a multiple of 32) of the block's threads; `id` is 1 to 15.
CONVT_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same without waiting, for threads that need nothing of the others.
CONVT_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, and whether `condition` is true for any of them.
CONVT_DEVICE bool named_barrier_or(int id, int threads, bool condition) {
  uint32_t any = 0;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(condition))
               : "memory");
  return any != 0;
}

// Whether there is a copy engine: without one, the functions that use it do nothing.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_copy_engine = true;
#else
inline constexpr bool has_copy_engine = false;
#endif

// Copies shared memory to global memory by the copy engine of sm_90: both addresses and `bytes` are multiples of 16.
// The shared memory must have been written before fence_async_proxy() and a barrier.
CONVT_DEVICE void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
CONVT_DEVICE void bulk_store(void* global, SharedAddress shared, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
#endif
}
CONVT_DEVICE void bulk_commit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Until all but this thread's last `Pending` groups have read their shared memory.
template <int Pending>
CONVT_DEVICE void bulk_wait_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
#endif
}

// Until all of this thread's groups have written what they copy.
CONVT_DEVICE void bulk_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// Programmatic dependent launch: waits for the kernel before this one on the stream, and lets the next one start.
CONVT_DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
CONVT_DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Of sm_90: barriers in shared memory that count arrivals and the bytes of copies.
CONVT_DEVICE void mbarrier_init(SharedAddress barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the inits, before any other thread uses the barriers.
CONVT_DEVICE void mbarrier_init_fence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
CONVT_DEVICE void mbarrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same under a condition, without a branch.
CONVT_DEVICE void mbarrier_arrive_if(SharedAddress barrier, bool condition) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<uint32_t>(condition))
      : "memory");
}
// Arrives, and lets the phase wait for `bytes` of copies.
CONVT_DEVICE void mbarrier_arrive_expect(SharedAddress barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
// Whether the phase of this parity is over, 0 or 1; what mbarrier_wait() asks. The answer takes about 130 clocks, so
// that it pays to ask early.
CONVT_DEVICE uint32_t mbarrier_test(SharedAddress barrier, uint32_t parity) {
  uint32_t over = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return over;
}
// Until the phase of this parity is over, unless that is known.
CONVT_DEVICE void mbarrier_wait_unless(uint32_t known, SharedAddress barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "setp.ne.u32 done, %2, 0;\n"
      "again:\n"
      "@done bra over;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity), "r"(known)
      : "memory");
#endif
}
// Until the phase of this parity is over.
CONVT_DEVICE void mbarrier_wait(SharedAddress barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}
// Copies `bytes` (a multiple of 16; both addresses too) to shared memory and counts them on the barrier. `policy`: what
// becomes of them in L2.
CONVT_DEVICE void bulk_load(SharedAddress shared, const void* global, uint32_t bytes, SharedAddress barrier,
                            CachePolicy policy = CachePolicy::evict_normal) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(static_cast<uint64_t>(policy))
      : "memory");
#endif
}

// Has the copy engine bring memory into L2, both operands multiples of 16.
CONVT_DEVICE void bulk_prefetch(const void* global, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

// Registers of the threads of a warpgroup, from now on.
template <int Count>
CONVT_DEVICE void fewer_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
CONVT_DEVICE void more_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

// Fetches a tensor map, which the first copy would otherwise wait for.
CONVT_DEVICE void prefetch_tensor_map(const TensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Copies a box of a tensor, which begins at the coordinates `at` (innermost first), as a bulk copy. `policy`: what
// becomes of it in L2.
CONVT_DEVICE void box_load(SharedAddress shared, const TensorMap& map, const int32_t (&at)[tensor_map_rank],
                           SharedAddress barrier, CachePolicy policy = CachePolicy::evict_normal) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
#endif
}

// Copies pixels in im2col mode, from the channel and the column, row and image `at` on, shifted by `columns` and
// `rows`.
CONVT_DEVICE void im2col_load(SharedAddress shared, const TensorMap& map, const int32_t (&at)[4], int32_t columns,
                              int32_t rows, SharedAddress barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6], {%7, %8};" ::"r"(shared),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(barrier), "h"(static_cast<uint16_t>(columns)),
      "h"(static_cast<uint16_t>(rows))
      : "memory");
#endif
}

// The way back, as a bulk store: what the box has outside of the tensor is not written.
CONVT_DEVICE void box_store(const TensorMap& map, const int32_t (&at)[tensor_map_rank], SharedAddress shared,
                            CachePolicy policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2, %3, %4, %5}], [%6], "
      "%7;" ::"l"(&map),
      "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared), "l"(static_cast<uint64_t>(policy))
      : "memory");
#endif
}

// An operand of wgmma in shared memory with the swizzle for rows of `row_bytes`, 128 or 64 bytes, and `stride` bytes
// from 8 rows to the next 8. `start` may be any row and any multiple of 32 bytes of it: what the swizzle does to an
// address depends on the address alone. Rows are of K if it is K-major, and a product reads 32 bytes of each. If it is
// MN-major, rows are 64 of M or N, and a product reads as many rows as it has channels; `next` bytes from there are the
// next 64.
using MatrixDescriptor = uint64_t;
CONVT_DEVICE MatrixDescriptor matrix_descriptor(SharedAddress start, uint32_t stride, uint32_t next = 16,
                                                uint32_t row_bytes = 128) {
  return static_cast<uint64_t>((start & 0x3ffff) >> 4 | next >> 4 << 16) | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(3 - row_bytes / 64) << 62;
}

// A K-major operand without a swizzle: 8 rows with 16 bytes of each lie next to each other; `next` bytes from there are
// their next 16 bytes, and `stride` bytes from there the next 8 rows.
CONVT_DEVICE MatrixDescriptor plain_matrix_descriptor(SharedAddress start, uint32_t stride, uint32_t next) {
  return static_cast<uint64_t>((start & 0x3ffff) >> 4 | next >> 4 << 16) | static_cast<uint64_t>(stride >> 4) << 32;
}
// The same in units of 16 bytes, of an operand that begins so many behind `start`: `packed` has that and, 16 bits
// higher, `next`.
CONVT_DEVICE MatrixDescriptor plain_matrix_descriptor_of_units(SharedAddress start, uint32_t packed, uint32_t stride) {
  return start + packed | static_cast<uint64_t>(stride) << 32;
}

// Where it starts, in units of 16 bytes, with the bits above that; and the same operand from elsewhere.
CONVT_DEVICE SharedAddress start_of(MatrixDescriptor d) { return static_cast<uint32_t>(d); }
CONVT_DEVICE MatrixDescriptor with_start(MatrixDescriptor d, SharedAddress start) {
  return (d & ~uint64_t{0xffffffff}) | start;
}
// What was known of a value is not, from here on: what follows from it is computed again.
CONVT_DEVICE void forget(int32_t& v) { asm volatile("" : "+r"(v)); }
CONVT_DEVICE void forget(uint32_t& v) { asm volatile("" : "+r"(v)); }
CONVT_DEVICE void forget(float& v) { asm volatile("" : "+f"(v)); }
CONVT_DEVICE void forget(int64_t& v) { asm volatile("" : "+l"(v)); }
template <class T>
CONVT_DEVICE void forget(T*& v) {
  asm volatile("" : "+l"(v));
}
// What all lanes of a warp have alike, in a form that shows it to the compiler.
CONVT_DEVICE uint32_t uniform(uint32_t v) { return __reduce_or_sync(0xffffffffu, v); }
// Another lane's float32 of a warp whose lanes are all here. __shfl_sync() takes its bits as an integer: a sum of wgmma
// that has been one is copied, and products are serialised (C7517, C7519).
CONVT_DEVICE float shuffle(float v, int32_t source) {
  float r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(r) : "f"(v), "r"(source));
  return r;
}
// True in one lane of a warp, whose lanes are all here. What it alone does has operands that are seen to be uniform.
CONVT_DEVICE bool elect() {
  uint32_t elected = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
#endif
  return elected != 0;
}

// Around the accumulators of wgmma: before the first one that uses registers which others have written; after the last
// of a group; until all but the last `Pending` groups are done.
CONVT_DEVICE void wgmma_fence() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
CONVT_DEVICE void wgmma_commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int Pending>
CONVT_DEVICE void wgmma_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}

enum class WgmmaType { tf32, float16, bfloat16 };

// Whether the channels of a row of an operand lie next to each other, or the rows of a channel: then its rows of 128
// bytes in shared memory are channels.
enum class Major { k, mn };

// d (64 x N, of a warpgroup) += a b, 32 bytes of K. Warp w of the warpgroup has rows 16 w to 16 w + 15; of 8 columns, a
// lane has what it has of an m16n8 mma.
template <WgmmaType type, int N, Major a_major = Major::k, Major b_major = Major::k>
CONVT_DEVICE void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b);

// d = a b, or d += a b; both operands M- and N-major.
template <WgmmaType type, int N>
CONVT_DEVICE void wgmma_as_in_memory(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, uint32_t d_is_added_to);

// d = a b.
template <WgmmaType type, int N>
CONVT_DEVICE void first_wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b);

// d += a b, with a in registers, a lane's as those of an m16n8k8 mma of TF32 or an m16n8k16 mma; b is K-major.
template <int N, WgmmaType type = WgmmaType::tf32>
CONVT_DEVICE void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4], MatrixDescriptor b);

// After a wait for products: what they have left in `d` is read after it, which the compiler does not know.
template <int N>
CONVT_DEVICE void wgmma_results(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace convt::device

#include "wgmma.h"

#endif

namespace convt::device {

// The same number, but the compiler does not know where it comes from: it stays in its register instead of being read
// from the parameters once more, and what is computed with it is computed here, not kept from one turn of a loop to the
// next.
CONVT_DEVICE int32_t opaque(int32_t v) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(v));
#endif
  return v;
}

// The larger one; NaN if one is.
CONVT_DEVICE float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
#else
  return b < a || a != a ? a : b;
#endif
}

// Of words of two 16-bit elements: NaN where an element of either is one; elsewhere any of both.
template <class Scalar>
CONVT_DEVICE uint32_t max_or_nan_pair(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t v;
  if constexpr (std::is_same_v<Scalar, Float16>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  }
  return v;
#else
  const auto of_first = [&](uint32_t mask, int shift) {
    const float v = to_float(Scalar{static_cast<uint16_t>(a >> shift)});
    return v != v ? a & mask : b & mask;
  };
  return of_first(0xffff, 0) | of_first(0xffff0000, 16);
#endif
}

// How wgmma takes operands of a type.
template <class Scalar>
inline constexpr WgmmaType wgmma_type = std::is_same_v<Scalar, Float16>    ? WgmmaType::float16
                                        : std::is_same_v<Scalar, BFloat16> ? WgmmaType::bfloat16
                                                                           : WgmmaType::tf32;

}  // namespace convt::device
