// Runs CUDA kernels' own source on the CPU: a test's compiler (g++ -Itests/simt) takes this in place of CUDA.
//
// A block's threads are fibers. One runs until it meets a barrier or an instruction of its whole warp; which one goes
// on next is drawn from a seed, so that a missing barrier shows in some order. Asynchronous copies happen at once or as
// late as they may, drawn too. Operands (simt::Buffer) and shared memory end at a page that cannot be accessed, and
// shared memory starts as NaN or, where NaN might be taken for the work of an input that is not finite and be mended,
// as large numbers. Blocks run one after another, in a drawn order: a kernel must not wait for another block.
//
//     simt::seed(7);
//     simt::launch(grid, block, shared_bytes, [&] { kernel<...>(params); });
//
// What it cannot show: PTX that does not assemble, the memory model between threads of a warp, time.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define CONVT_DEVICE inline
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint2 {
  unsigned x, y;
} __attribute__((aligned(8)));
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct float2 {
  float x, y;
} __attribute__((aligned(8)));
struct float4 {
  float x, y, z, w;
} __attribute__((aligned(16)));
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace simt {

constexpr unsigned warp_size = 32;
constexpr size_t stack_bytes = 256 << 10;

[[noreturn]] inline void fail(const char* what);

// The bytes of memory that nobody has written: NaN, or in every type larger than 60000.
inline constexpr int poisons[] = {0xff, 0x7b};
inline int poison = poisons[0];

// Memory between two pages that cannot be accessed: `bytes` of it end at the second one, as exactly as an alignment of
// `alignment` allows; or begin after the first, if `low`.
class Guarded {
 public:
  Guarded(size_t bytes, size_t alignment, bool low = false) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (bytes + alignment + page - 1) / page * page;
    size_ = body + 2 * page;
    base_ = static_cast<unsigned char*>(
        mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, body, PROT_READ | PROT_WRITE) != 0) fail("out of memory");
    std::memset(base_ + page, poison, body);
    data_ = low ? base_ + page : base_ + page + (body - bytes) / alignment * alignment;
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  unsigned char* data() const { return data_; }

 private:
  unsigned char *base_, *data_;
  size_t size_;
};

// `count` elements (poison) whose first lies `offset` elements behind a multiple of 16 bytes or, if that offset
// is negative, wherever the last one touches the end.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count, int64_t offset = -1, bool low = false)
      : memory_(sizeof(T) * static_cast<size_t>(count + std::max<int64_t>(offset, 0)), offset < 0 ? sizeof(T) : 16,
                low),
        data(reinterpret_cast<T*>(memory_.data()) + std::max<int64_t>(offset, 0)) {}

 private:
  Guarded memory_;

 public:
  T* const data;
};

struct Thread;
struct Warp {
  std::vector<Thread*> lanes;
  unsigned arrived = 0, live = 0;
  const void* operation = nullptr;  // what the lanes wait for: it must be the same for all
  const void* operand[warp_size] = {};
};

struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes, valid;
  bool rounds_to_tf32 = false;
};
struct AsyncQueue {
  std::vector<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open;
};

enum class State { ready, at_barrier, in_warp, done };

// A barrier in shared memory, and copies that it counts.
struct CountingBarrier {
  unsigned expected = 0, arrived = 0, phase = 0;
  int64_t bytes = 0;
  std::vector<AsyncCopy> copies;  // as late as they may be: when somebody looks
};

struct Thread {
  dim3 index{0, 0, 0};
  unsigned lane = 0, number = 0;
  Warp* warp = nullptr;
  State state = State::ready;
  int barrier = 0;
  AsyncQueue copies, bulk;
  const Guarded* stack = nullptr;
#if defined(__x86_64__)
  void* sp = nullptr;
#else
  ucontext_t context;
#endif
};

struct Barrier {
  unsigned arrived = 0, expected = 0;
};

// A warpgroup's products that have been issued, and not waited for.
struct Warpgroup {
  unsigned arrived = 0;
  const void* operation = nullptr;
  void* operand[128] = {};
  std::vector<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> open;
};

struct Block {
  dim3 grid, dim, index{0, 0, 0};
  unsigned char* shared = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::map<uintptr_t, CountingBarrier> counting;
  std::vector<Warpgroup> warpgroups;
  unsigned live = 0;
  const std::function<void()>* kernel = nullptr;
  Thread* current = nullptr;
#if defined(__x86_64__)
  void* scheduler_sp = nullptr;
#else
  ucontext_t scheduler;
#endif
};

inline Block* block = nullptr;
inline std::mt19937 generator;
inline void seed(unsigned s) {
  generator.seed(s);
  poison = poisons[s / 4 % 2];
}
inline bool coin() { return (generator() & 1) != 0; }

[[noreturn]] inline void fail(const char* what) {
  if (block != nullptr && block->current != nullptr) {
    std::fprintf(stderr, "simt: %s, block (%u, %u, %u), thread %u\n", what, block->index.x, block->index.y,
                 block->index.z, block->current->number);
  } else {
    std::fprintf(stderr, "simt: %s\n", what);
  }
  std::fflush(stderr);
  std::_Exit(1);
}

inline void on_segv(int, siginfo_t*, void*) { fail("access outside an operand or shared memory"); }

inline void catch_faults() {
  static bool done = false;
  if (done) return;
  done = true;
  static unsigned char stack[1 << 16];
  stack_t alternate{};
  alternate.ss_sp = stack, alternate.ss_size = sizeof(stack);
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

#if defined(__x86_64__)
extern "C" void simt_switch(void** save, void* to);
#if defined(SIMT_MAIN)
asm(R"(
.text
.globl simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");
#endif
#endif

inline void to_scheduler() {
  Thread* t = block->current;
#if defined(__x86_64__)
  simt_switch(&t->sp, block->scheduler_sp);
#else
  swapcontext(&t->context, &block->scheduler);
#endif
}

// A float32 to the nearest TF32, ties to even, as the copy engine rounds; NaN and infinity stay.
inline uint32_t nearest_tf32(uint32_t v) {
  return (v & 0x7f800000) == 0x7f800000 ? v : (v + 0xfff + (v >> 13 & 1)) & 0xffffe000;
}

inline void perform(const AsyncCopy& c) {
  std::memcpy(c.to, c.from, c.valid);
  std::memset(static_cast<char*>(c.to) + c.valid, 0, c.bytes - c.valid);
  for (unsigned i = 0; c.rounds_to_tf32 && i < c.bytes / 4; ++i) {
    uint32_t& word = static_cast<uint32_t*>(c.to)[i];
    word = nearest_tf32(word);
  }
}
inline void drain(AsyncQueue& q, size_t pending) {
  while (q.groups.size() > pending) {
    for (const AsyncCopy& c : q.groups.front()) perform(c);
    q.groups.erase(q.groups.begin());
  }
}

inline void release(Barrier& b, int id) {
  b.arrived = 0;
  b.expected = 0;
  for (auto& t : block->threads) {
    if (t->state == State::at_barrier && t->barrier == id) t->state = State::ready;
  }
}

inline void arrive_at(int id, unsigned threads) {
  Barrier& b = block->barriers[id];
  if (b.expected != 0 && b.expected != threads) fail("a barrier is used with two thread counts");
  b.expected = threads;
  if (++b.arrived == b.expected) release(b, id);
}

inline void wait_at(int id, unsigned threads) {
  block->current->barrier = id;
  block->current->state = State::at_barrier;
  arrive_at(id, threads);
  to_scheduler();
}

// All lanes of the warp meet; the last one runs `collective(operands)`, and all go on.
template <class Operand, class Collective>
void in_warp(const void* operation, Operand* operand, const Collective& collective) {
  Warp& w = *block->current->warp;
  if (w.arrived != 0 && w.operation != operation)
    fail("the lanes of a warp diverge at an instruction of the whole warp");
  w.operation = operation;
  w.operand[block->current->lane] = operand;
  if (++w.arrived == warp_size) {
    Operand* all[warp_size];
    for (unsigned i = 0; i < warp_size; ++i) all[i] = static_cast<Operand*>(const_cast<void*>(w.operand[i]));
    collective(all);
    w.arrived = 0;
    for (Thread* t : w.lanes) t->state = State::ready;
  } else {
    block->current->state = State::in_warp;
    to_scheduler();
  }
}

// All threads of the warpgroup meet; the last one runs `collective(operands)`, and all go on.
template <class Operand, class Collective>
void in_warpgroup(const void* operation, Operand* operand, const Collective& collective) {
  Thread* me = block->current;
  Warpgroup& g = block->warpgroups[me->number / 128];
  if (g.arrived != 0 && g.operation != operation) fail("the warps of a warpgroup diverge at one of its instructions");
  g.operation = operation;
  g.operand[me->number % 128] = operand;
  if (++g.arrived == 128) {
    Operand* all[128];
    for (unsigned i = 0; i < 128; ++i) all[i] = static_cast<Operand*>(g.operand[i]);
    collective(g, all);
    g.arrived = 0;
    for (unsigned i = 0; i < 128; ++i) block->threads[me->number / 128 * 128 + i]->state = State::ready;
  } else {
    me->state = State::in_warp;
    to_scheduler();
  }
}

inline CountingBarrier& counting_barrier(uintptr_t address) {
  const auto found = block->counting.find(address);
  if (found == block->counting.end()) fail("a barrier in shared memory is used before its init");
  return found->second;
}
inline void turn_over(CountingBarrier& b) {
  if (b.arrived == b.expected && b.bytes == 0) b.arrived = 0, ++b.phase;
}

inline void thread_main() {
  (*block->kernel)();
  Thread* t = block->current;
  if (!t->copies.open.empty() || !t->copies.groups.empty()) {
    t->copies.groups.push_back(t->copies.open);
    drain(t->copies, 0);
  }
  if (!t->bulk.open.empty()) fail("bulk stores that were not committed");
  if (!t->bulk.groups.empty()) fail("ends before its bulk stores have read shared memory");
  t->state = State::done;
  --block->live;
  --t->warp->live;
  to_scheduler();
  fail("a finished thread was resumed");
}

inline void prepare(Thread& t) {
  static std::vector<std::unique_ptr<Guarded>> stacks;
  while (stacks.size() <= t.number) stacks.push_back(std::make_unique<Guarded>(stack_bytes, 16));
  t.stack = stacks[t.number].get();
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(t.stack->data() + stack_bytes - 64);
  top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--top = nullptr;  // the return address of thread_main, which never returns
  *--top = reinterpret_cast<void*>(&thread_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  t.sp = top;
#else
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack->data();
  t.context.uc_stack.ss_size = stack_bytes;
  t.context.uc_link = nullptr;
  makecontext(&t.context, thread_main, 0);
#endif
}

inline void run_block(Block& b) {
  b.live = static_cast<unsigned>(b.threads.size());
  for (Barrier& barrier : b.barriers) barrier = {};
  b.counting.clear();
  b.warpgroups.assign((b.threads.size() + 127) / 128, {});
  for (Warp& w : b.warps) w.arrived = 0, w.live = static_cast<unsigned>(w.lanes.size());
  for (auto& t : b.threads) {
    t->state = State::ready;
    t->copies = {}, t->bulk = {};
    prepare(*t);
  }
  std::vector<unsigned> order(b.warps.size());
  std::iota(order.begin(), order.end(), 0u);
  while (b.live > 0) {
    bool progress = false;
    std::shuffle(order.begin(), order.end(), generator);
    const bool backwards = coin();
    for (unsigned w : order) {
      Warp& warp = b.warps[w];
      // A warp goes on for a while before the next one does.
      for (unsigned turns = 1 + generator() % 64; turns > 0; --turns) {
        bool moved = false;
        for (unsigned i = 0; i < warp.lanes.size(); ++i) {
          Thread* t = warp.lanes[backwards ? warp.lanes.size() - 1 - i : i];
          if (t->state != State::ready) continue;
          moved = progress = true;
          b.current = t;
#if defined(__x86_64__)
          simt_switch(&b.scheduler_sp, t->sp);
#else
          swapcontext(&b.scheduler, &t->context);
#endif
        }
        if (!moved) break;
      }
    }
    if (!progress) {
      for (auto& t : b.threads) {
        if (t->state != State::done) b.current = t.get();
      }
      fail("deadlock: threads wait for some that have ended or wait elsewhere");
    }
  }
  b.current = nullptr;
}

// Runs every block of the grid.
inline void launch(dim3 grid, dim3 dim, size_t shared_bytes, const std::function<void()>& kernel) {
  catch_faults();
  Block b;
  b.grid = grid, b.dim = dim, b.kernel = &kernel;
  const unsigned threads = dim.x * dim.y * dim.z;
  if (threads == 0 || threads > 1024 || threads % warp_size != 0)
    fail("a block must be 32 to 1024 threads, whole warps");
  if (shared_bytes > 227 * 1024) fail("more shared memory than a block may have");
  b.warps.resize(threads / warp_size);
  for (unsigned i = 0; i < threads; ++i) {
    auto t = std::make_unique<Thread>();
    t->number = i, t->lane = i % warp_size, t->warp = &b.warps[i / warp_size];
    t->index = dim3(i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y);
    b.warps[i / warp_size].lanes.push_back(t.get());
    b.threads.push_back(std::move(t));
  }
  // As aligned as kernels may ask for, if it can end at a page then.
  const Guarded shared(shared_bytes == 0 ? 1 : shared_bytes, shared_bytes % 1024 == 0 ? 1024 : 128);
  const size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
  std::vector<size_t> order(blocks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), generator);
  block = &b;
  for (size_t i : order) {
    b.index = dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                   static_cast<unsigned>(i / grid.x / grid.y));
    if (shared_bytes > 0) std::memset(shared.data(), poison, shared_bytes);
    b.shared = shared.data();
    run_block(b);
  }
  block = nullptr;
}

}  // namespace simt

#define threadIdx (simt::block->current->index)
#define blockIdx (simt::block->index)
#define blockDim (simt::block->dim)
#define gridDim (simt::block->grid)

inline void __syncthreads() { simt::wait_at(0, static_cast<unsigned>(simt::block->threads.size())); }
inline void __syncwarp(unsigned = 0xffffffffu) {
  static const char here = 0;
  int nothing = 0;
  simt::in_warp(&here, &nothing, [](int**) {});
}
inline void __threadfence() {}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
inline unsigned __float_as_uint(float f) { return convt::bits_of_float(f); }
inline float __uint_as_float(unsigned u) { return convt::float_of_bits(u); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<unsigned>(bytes >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  const unsigned old = *p;
  *p += v;
  return old;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }

namespace simt {
template <class T>
struct Shuffle {
  T value;
  int source;
  T result;
};
template <class T>
T shuffle(T v, int source) {
  static const char here = 0;
  Shuffle<T> s{v, source, v};
  in_warp(&here, &s, [](Shuffle<T>** all) {
    for (unsigned i = 0; i < warp_size; ++i) {
      if (all[i]->source >= 0 && all[i]->source < static_cast<int>(warp_size))
        all[i]->result = all[all[i]->source]->value;
    }
  });
  return s.result;
}
inline int lane() { return static_cast<int>(block->current->lane); }
// What is at an address of shared memory, which a vector must divide.
template <class T>
T& shared(uintptr_t at) {
  if (at % sizeof(T) != 0) fail("an access of shared memory is not aligned");
  return *reinterpret_cast<T*>(at);
}

}  // namespace simt

template <class T>
T __shfl_sync(unsigned, T v, int source, int width = 32) {
  return simt::shuffle(v, simt::lane() / width * width + source % width);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return simt::shuffle(v, simt::lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T v, int delta) {
  return simt::shuffle(v, simt::lane() + delta < 32 ? simt::lane() + delta : simt::lane());
}
template <class T>
T __shfl_up_sync(unsigned, T v, int delta) {
  return simt::shuffle(v, simt::lane() >= delta ? simt::lane() - delta : simt::lane());
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  static const char here = 0;
  struct Vote {
    bool mine;
    unsigned all;
  } vote{predicate != 0, 0};
  simt::in_warp(&here, &vote, [](Vote** all) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i]->mine) << i;
    for (unsigned i = 0; i < 32; ++i) all[i]->all = bits;
  });
  return vote.all;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == 0xffffffffu; }
inline int __syncthreads_or(int predicate) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= predicate != 0;
  __syncthreads();
  return any;
}

namespace convt::device {

inline unsigned char* dynamic_shared_memory() { return simt::block->shared; }

using SharedAddress = uintptr_t;
inline SharedAddress shared_address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
inline SharedAddress dynamic_shared_address() { return shared_address(simt::block->shared); }
inline uint32_t load_shared_2(SharedAddress from) { return *reinterpret_cast<const uint16_t*>(from); }
inline uint2 load_shared_8(SharedAddress from) { return simt::shared<const uint2>(from); }
inline uint32_t load_shared_4(SharedAddress from) { return simt::shared<const uint32_t>(from); }
inline uint4 load_shared_16(SharedAddress from) { return simt::shared<const uint4>(from); }
inline void store_shared_2(SharedAddress to, uint32_t a) { simt::shared<uint16_t>(to) = static_cast<uint16_t>(a); }
inline void store_shared_4(SharedAddress to, float a) { simt::shared<float>(to) = a; }
inline void store_shared_8(SharedAddress to, uint32_t a, uint32_t b) { simt::shared<uint2>(to) = {a, b}; }
inline void store_shared_16(SharedAddress to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  simt::shared<uint4>(to) = {a, b, c, d};
}
inline void store_global_8(void* to, uint32_t a, uint32_t b) { *static_cast<uint2*>(to) = {a, b}; }
inline void store_global_16(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  *static_cast<uint4*>(to) = {a, b, c, d};
}
inline void store_global_16(void* to, const uint32_t (&v)[4], CachePolicy) {
  store_global_16(to, v[0], v[1], v[2], v[3]);
}

inline uint32_t to_tf32(float v) {
  const uint32_t bits = bits_of_float(v);
  if ((bits & 0x7f800000) == 0x7f800000) return bits;
  return (bits + 0x1000) & 0xffffe000;
}

namespace emulated {

struct Mma {
  float* d;
  const uint32_t *a, *b;
};

template <class Scalar>
float half(uint32_t word, int which) {
  return to_float(Scalar{static_cast<uint16_t>(word >> 16 * which)});
}

// d (16 x 8) += a (16 x K) b (K x 8), with a(lanes, row, k) and b(lanes, k, column) reading the fragments.
template <int K, class A, class B>
void multiply(Mma** lanes, const A& a, const B& b) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      double sum = 0;
      for (int k = 0; k < K; ++k)
        sum += static_cast<double>(a(lanes, row, k)) * static_cast<double>(b(lanes, k, column));
      float& d = lanes[row % 8 * 4 + column / 2]->d[row / 8 * 2 + column % 2];
      d = static_cast<float>(static_cast<double>(d) + sum);
    }
  }
}

}  // namespace emulated

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static const char here = 0;
  emulated::Mma m{d, a, b};
  // The tensor core does not read the low 13 bits.
  const auto value = [](uint32_t bits) { return float_of_bits(bits & 0xffffe000); };
  simt::in_warp(&here, &m, [&](emulated::Mma** all) {
    emulated::multiply<8>(
        all, [&](emulated::Mma** l, int row, int k) { return value(l[row % 8 * 4 + k % 4]->a[row / 8 + k / 4 * 2]); },
        [&](emulated::Mma** l, int k, int column) { return value(l[column * 4 + k % 4]->b[k / 4]); });
  });
}

template <class Scalar>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static const char here = 0;
  emulated::Mma m{d, a, b};
  simt::in_warp(&here, &m, [](emulated::Mma** all) {
    emulated::multiply<16>(
        all,
        [](emulated::Mma** l, int row, int k) {
          return emulated::half<Scalar>(l[row % 8 * 4 + k % 8 / 2]->a[row / 8 + k / 8 * 2], k % 2);
        },
        [](emulated::Mma** l, int k, int column) {
          return emulated::half<Scalar>(l[column * 4 + k % 8 / 2]->b[k / 8], k % 2);
        });
  });
}

template <class Scalar>
void mma_m16n8k8(float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  static const char here = 0;
  emulated::Mma m{d, a, b};
  simt::in_warp(&here, &m, [](emulated::Mma** all) {
    emulated::multiply<8>(
        all,
        [](emulated::Mma** l, int row, int k) {
          return emulated::half<Scalar>(l[row % 8 * 4 + k / 2]->a[row / 8], k % 2);
        },
        [](emulated::Mma** l, int k, int column) {
          return emulated::half<Scalar>(l[column * 4 + k / 2]->b[0], k % 2);
        });
  });
}

namespace emulated {
struct Matrix {
  uint32_t* r;
  const void* row;
};
template <bool Transposed>
void ldmatrix(uint32_t (&r)[4], const void* row) {
  static const char here = 0;
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) simt::fail("a row of ldmatrix is not aligned to 16 bytes");
  Matrix m{r, row};
  simt::in_warp(&here, &m, [](Matrix** all) {
    for (int i = 0; i < 4; ++i) {
      const auto element = [&](int y, int x) { return static_cast<const uint16_t*>(all[8 * i + y]->row)[x]; };
      for (int lane = 0; lane < 32; ++lane) {
        const int u = lane / 4, v = lane % 4 * 2;
        all[lane]->r[i] = Transposed ? element(v, u) | static_cast<uint32_t>(element(v + 1, u)) << 16
                                     : element(u, v) | static_cast<uint32_t>(element(u, v + 1)) << 16;
      }
    }
  });
}
}  // namespace emulated

namespace emulated {
template <bool Transposed>
void stmatrix(SharedAddress row, const uint32_t (&r)[4]) {
  static const char here = 0;
  if (row % 16 != 0) simt::fail("a row of stmatrix is not aligned to 16 bytes");
  Matrix m{const_cast<uint32_t*>(r), reinterpret_cast<const void*>(row)};
  simt::in_warp(&here, &m, [](Matrix** all) {
    for (int i = 0; i < 4; ++i) {
      const auto put = [&](int y, int x, uint32_t v) {
        static_cast<uint16_t*>(const_cast<void*>(all[8 * i + y]->row))[x] = static_cast<uint16_t>(v);
      };
      for (int lane = 0; lane < 32; ++lane) {
        const int u = lane / 4, v = lane % 4 * 2;
        const uint32_t pair = all[lane]->r[i];
        Transposed ? put(v, u, pair) : put(u, v, pair);
        Transposed ? put(v + 1, u, pair >> 16) : put(u, v + 1, pair >> 16);
      }
    }
  });
}
}  // namespace emulated
inline void stmatrix_x4(SharedAddress row, const uint32_t (&r)[4]) { emulated::stmatrix<false>(row, r); }
inline void stmatrix_x4_trans(SharedAddress row, const uint32_t (&r)[4]) { emulated::stmatrix<true>(row, r); }

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) { emulated::ldmatrix<false>(r, row); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
  emulated::ldmatrix<true>(r, reinterpret_cast<const void*>(row));
}

template <int Bytes>
void cp_async(void* shared, const void* global, int valid_bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  if (reinterpret_cast<uintptr_t>(shared) % Bytes != 0 || reinterpret_cast<uintptr_t>(global) % Bytes != 0) {
    simt::fail("an asynchronous copy is not aligned");
  }
  if (valid_bytes < 0 || valid_bytes > Bytes) simt::fail("an asynchronous copy of more than it may");
  const simt::AsyncCopy copy{shared, global, Bytes, static_cast<unsigned>(valid_bytes)};
  simt::AsyncQueue& q = simt::block->current->copies;
  if (simt::coin()) {
    simt::perform(copy);
  } else {
    q.open.push_back(copy);
  }
}
template <int Bytes>
void cp_async(SharedAddress shared, const void* global, int valid_bytes) {
  cp_async<Bytes>(reinterpret_cast<void*>(shared), global, valid_bytes);
}
template <int Bytes>
void cp_async_if(uint32_t is, SharedAddress shared, const void* global) {
  cp_async<Bytes>(shared, global, is != 0 ? Bytes : 0);
}
inline void cp_async_commit() {
  simt::AsyncQueue& q = simt::block->current->copies;
  q.groups.push_back(std::move(q.open));
  q.open.clear();
}
template <int Pending>
void cp_async_wait() {
  simt::drain(simt::block->current->copies, Pending);
}

inline void named_barrier(int id, int threads) {
  if (id < 1 || id > 15 || threads % 32 != 0) simt::fail("a barrier is 1 to 15, of whole warps");
  simt::wait_at(id, static_cast<unsigned>(threads));
}

inline void named_barrier_arrive(int id, int threads) {
  if (id < 1 || id > 15 || threads % 32 != 0) simt::fail("a barrier is 1 to 15, of whole warps");
  simt::arrive_at(id, static_cast<unsigned>(threads));
}

inline bool named_barrier_or(int id, int threads, bool condition) {
  static bool any[16];
  named_barrier(id, threads);
  any[id] = false;
  named_barrier(id, threads);
  if (condition) any[id] = true;
  named_barrier(id, threads);
  return any[id];
}

inline void mbarrier_init(SharedAddress barrier, uint32_t arrivals) {
  if (barrier % 8 != 0) simt::fail("a barrier in shared memory is not aligned to 8 bytes");
  simt::block->counting[barrier] = {};
  simt::block->counting[barrier].expected = arrivals;
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(SharedAddress barrier) {
  simt::CountingBarrier& b = simt::counting_barrier(barrier);
  if (++b.arrived > b.expected) simt::fail("more arrivals at a barrier in shared memory than it expects");
  simt::turn_over(b);
}
// When the thread's copies are there: they are, now.
inline void cp_async_arrive(SharedAddress barrier) {
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_if(SharedAddress barrier, bool condition) {
  if (condition) mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect(SharedAddress barrier, uint32_t bytes) {
  simt::counting_barrier(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
// Copies that it counts may not have happened yet, then it is not over.
inline uint32_t mbarrier_test(SharedAddress barrier, uint32_t parity) {
  return simt::counting_barrier(barrier).phase % 2 != parity ? 1 : 0;
}
inline void mbarrier_wait(SharedAddress barrier, uint32_t parity) {
  for (int64_t turns = 0;; ++turns) {
    simt::CountingBarrier& b = simt::counting_barrier(barrier);
    while (!b.copies.empty()) {
      const simt::AsyncCopy copy = b.copies.back();
      b.copies.pop_back();
      simt::perform(copy);
      b.bytes -= copy.bytes;
      simt::turn_over(b);
    }
    // As on a GPU, a waiter that is more than one phase behind passes by parity.
    if (b.phase % 2 != parity) return;
    if (turns > 2000000) simt::fail("a wait for a barrier in shared memory does not end");
    simt::to_scheduler();
  }
}
inline void mbarrier_wait_unless(uint32_t known, SharedAddress barrier, uint32_t parity) {
  if (known == 0) mbarrier_wait(barrier, parity);
}
inline void bulk_load(SharedAddress shared, const void* global, uint32_t bytes, SharedAddress barrier,
                      CachePolicy = CachePolicy::evict_normal) {
  if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0) {
    simt::fail("a bulk load is not aligned to 16 bytes");
  }
  const simt::AsyncCopy copy{reinterpret_cast<void*>(shared), global, bytes, bytes};
  simt::CountingBarrier& b = simt::counting_barrier(barrier);
  if (simt::coin()) {
    simt::perform(copy);
    b.bytes -= bytes;
    simt::turn_over(b);
  } else {
    b.copies.push_back(copy);
  }
}

inline void bulk_prefetch(const void* global, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0) {
    simt::fail("a bulk prefetch is not aligned to 16 bytes");
  }
  for (uint32_t i = 0; i < bytes; i += 16) static_cast<void>(static_cast<const volatile unsigned char*>(global)[i]);
}

template <int Count>
void fewer_registers() {}
template <int Count>
void more_registers() {}

// A tensor map holds its layout.
inline TensorMap make_tensor_map(const TensorMapLayout& layout) {
  static_assert(sizeof(TensorMapLayout) <= sizeof(TensorMap));
  TensorMap map{};
  std::memcpy(map.words, &layout, sizeof(layout));
  return map;
}

// What the swizzle of rows of so many bytes makes of an address.
inline SharedAddress swizzled(SharedAddress a, int32_t bytes = 128) {
  return bytes == 0 ? a : a ^ (a >> 3 & static_cast<SharedAddress>(bytes - 16));
}

inline void prefetch_tensor_map(const TensorMap&) {}
inline void box_load(SharedAddress shared, const TensorMap& map, const int32_t (&at)[tensor_map_rank],
                     SharedAddress barrier, CachePolicy = CachePolicy::evict_normal) {
  TensorMapLayout layout;
  std::memcpy(&layout, map.words, sizeof(layout));
  if (!layout.valid() || layout.im2col) simt::fail("a tensor map that the copy engine does not take boxes of");
  if (shared % (layout.swizzle_bytes == 0 ? 128 : 1024) != 0) {
    simt::fail("a box is not copied to a multiple of 128 bytes, or of the swizzle's period");
  }
  simt::CountingBarrier& b = simt::counting_barrier(barrier);
  static const unsigned char zeros[16] = {};
  const int64_t unit = 16 / layout.element_bytes;  // a unit may be cut by the end of the innermost dimension
  const int32_t inner = layout.inner_bytes();
  if (at[0] % unit != 0) simt::fail("a box begins inside of a unit");
  SharedAddress to = shared;
  for (int32_t g = 0; g < layout.box[4]; ++g) {
    for (int32_t n = 0; n < layout.box[3]; ++n) {
      for (int32_t r = 0; r < layout.box[2]; ++r) {
        for (int32_t c = 0; c < layout.box[1]; ++c, to += static_cast<SharedAddress>(inner)) {
          const int64_t place[4] = {at[1] + c, at[2] + r, at[3] + n, at[4] + g};
          bool inside = true;
          const unsigned char* from = static_cast<const unsigned char*>(layout.base);
          for (int d = 0; d < 4; ++d) {
            inside &= place[d] >= 0 && place[d] < layout.sizes[d + 1];
            from += place[d] * layout.strides[d];
          }
          for (int32_t u = 0; u < inner / 16; ++u) {
            const int64_t first = at[0] + u * unit, left = std::clamp<int64_t>(layout.sizes[0] - first, 0, unit);
            const unsigned valid = inside && first >= 0 ? static_cast<unsigned>(left * layout.element_bytes) : 0;
            b.copies.push_back(
                {reinterpret_cast<void*>(swizzled(to + static_cast<SharedAddress>(16 * u), layout.swizzle_bytes)),
                 valid > 0 ? from + first * layout.element_bytes : zeros, 16, valid, layout.rounds_to_tf32});
          }
        }
      }
    }
  }
}

inline void im2col_load(SharedAddress shared, const TensorMap& map, const int32_t (&at)[4], int32_t columns,
                        int32_t rows, SharedAddress barrier) {
  TensorMapLayout layout;
  std::memcpy(&layout, map.words, sizeof(layout));
  if (!layout.valid() || !layout.im2col || layout.swizzle_bytes != 128 || layout.sizes[4] != 1) {
    simt::fail("a tensor map that the copy engine does not take in im2col mode");
  }
  if (shared % 1024 != 0) simt::fail("a copy in im2col mode does not begin where the swizzle's pattern does");
  if (columns < 0 || columns >= im2col_most_shift || rows < 0 || rows >= im2col_most_shift) {
    simt::fail("a shift that im2col mode does not have");
  }
  simt::CountingBarrier& b = simt::counting_barrier(barrier);
  static const unsigned char zeros[16] = {};
  const int64_t unit = 16 / layout.element_bytes;
  const auto from = [&](int d) { return static_cast<int64_t>(layout.lower[d]); };
  const auto end = [&](int d) { return layout.sizes[d + 1] + layout.upper[d]; };
  int64_t column = at[1], row = at[2], image = at[3];
  if (column < from(0) || column >= end(0) || row < from(1) || row >= end(1)) {
    simt::fail("a copy in im2col mode begins outside of its image's part");
  }
  for (int32_t i = 0; i < layout.box[1]; ++i) {
    const int64_t place[3] = {column + columns, row + rows, image};
    bool inside = true;
    const unsigned char* pixel = static_cast<const unsigned char*>(layout.base);
    for (int d = 0; d < 3; ++d) {
      inside &= place[d] >= 0 && place[d] < layout.sizes[d + 1];
      pixel += place[d] * layout.strides[d];
    }
    for (int32_t u = 0; u < 8; ++u) {
      const int64_t first = at[0] + u * unit, left = std::clamp<int64_t>(layout.sizes[0] - first, 0, unit);
      const unsigned valid = inside ? static_cast<unsigned>(left * layout.element_bytes) : 0;
      b.copies.push_back({reinterpret_cast<void*>(swizzled(shared + static_cast<SharedAddress>(128 * i + 16 * u))),
                          valid > 0 ? pixel + first * layout.element_bytes : zeros, 16, valid, layout.rounds_to_tf32});
    }
    if (++column == end(0)) column = from(0), ++row;
    if (row == end(1)) row = from(1), ++image;
  }
}

struct MatrixDescriptor {
  SharedAddress start;
  uint32_t stride, next, row_bytes;  // 0: without a swizzle
};
inline MatrixDescriptor matrix_descriptor(SharedAddress start, uint32_t stride, uint32_t next = 16,
                                          uint32_t row_bytes = 128) {
  if (start % 16 != 0 || stride % 16 != 0 || stride >= 1 << 18 || next % 16 != 0 || next >= 1 << 18) {
    simt::fail("a matrix descriptor does not hold these addresses");
  }
  return {start, stride, next, row_bytes};
}
inline MatrixDescriptor plain_matrix_descriptor(SharedAddress start, uint32_t stride, uint32_t next) {
  return matrix_descriptor(start, stride, next, 0);
}
inline MatrixDescriptor plain_matrix_descriptor_of_units(SharedAddress start, uint32_t packed, uint32_t stride) {
  return plain_matrix_descriptor((start + packed % 65536) * 16, stride * 16, packed / 65536 * 16);
}

inline SharedAddress start_of(MatrixDescriptor d) { return d.start / 16; }
inline MatrixDescriptor with_start(MatrixDescriptor d, SharedAddress start) {
  return matrix_descriptor(start * 16, d.stride, d.next, d.row_bytes);
}

inline void forget(int32_t&) {}
inline void forget(uint32_t&) {}
inline void forget(SharedAddress&) {}
inline void forget(float&) {}
inline void forget(int64_t&) {}
template <class T>
void forget(T*&) {}

template <class T>
T uniform(T v) {
  if (__shfl_sync(0xffffffffu, v, 0) != v) simt::fail("lanes of a warp differ in what is to be the same for all");
  return v;
}
inline float shuffle(float v, int32_t source) { return __shfl_sync(0xffffffffu, v, source); }
inline bool elect() {
  const int lane = simt::lane();
  return __shfl_sync(0xffffffffu, lane, 0) == lane;
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  static const char here = 0;
  int nothing = 0;
  simt::in_warpgroup(&here, &nothing, [](simt::Warpgroup& g, int**) {
    g.groups.push_back(std::move(g.open));
    g.open.clear();
  });
}
template <int Pending>
void wgmma_wait() {
  static const char here = 0;
  int nothing = 0;
  simt::in_warpgroup(&here, &nothing, [](simt::Warpgroup& g, int**) {
    while (g.groups.size() > Pending) {
      for (const auto& product : g.groups.front()) product();
      g.groups.erase(g.groups.begin());
    }
  });
}

enum class WgmmaType { tf32, float16, bfloat16 };
enum class Major { k, mn };

template <int N>
void wgmma_results(float (&)[N]) {}

// Adds to the sums that the threads of a warpgroup hold of 64 x N: the products of a(row, k) and b(column, k). Or they
// are the `first`.
template <int N, int K, class A, class B>
void add_products(const std::vector<float*>& sums, const A& a, const B& b, bool first = false) {
  std::vector<double> columns(static_cast<size_t>(N * K));
  for (int n = 0; n < N; ++n) {
    for (int k = 0; k < K; ++k) columns[static_cast<size_t>(n * K + k)] = b(n, k);
  }
  for (int m = 0; m < 64; ++m) {
    double row[K];
    for (int k = 0; k < K; ++k) row[k] = a(m, k);
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += row[k] * columns[static_cast<size_t>(n * K + k)];
      float& to = sums[static_cast<size_t>(m / 16 * 32 + m % 8 * 4 + n % 8 / 2)][n / 8 * 4 + m % 16 / 8 * 2 + n % 2];
      to = static_cast<float>(first ? sum : static_cast<double>(to) + sum);
    }
  }
}

// A product is done at once or when it is waited for.
template <class Product>
void issue_wgmma(simt::Warpgroup& g, const Product& product) {
  if (simt::coin() && g.open.empty() && g.groups.empty()) {
    product();
  } else {
    g.open.push_back(product);
  }
}

// The element `e` of the unit of 16 bytes of row `r` of an operand; `blocks` times the distance of MN-major operands
// away.
template <WgmmaType type>
double element_of(const MatrixDescriptor& m, int r, int unit, int e, int blocks = 0) {
  const SharedAddress rows = m.start + static_cast<SharedAddress>(r / 8) * m.stride;
  const auto row_bytes = static_cast<int32_t>(m.row_bytes);
  const SharedAddress at = row_bytes == 0
                               ? rows + static_cast<SharedAddress>(r % 8 * 16 + unit * static_cast<int>(m.next))
                               : swizzled(rows + static_cast<SharedAddress>(blocks) * m.next +
                                              static_cast<SharedAddress>(r % 8 * row_bytes + 16 * unit),
                                          row_bytes);
  if constexpr (type == WgmmaType::tf32) {
    return float_of_bits(reinterpret_cast<const uint32_t*>(at)[e] & 0xffffe000);
  } else if constexpr (type == WgmmaType::float16) {
    return to_float(Float16{reinterpret_cast<const uint16_t*>(at)[e]});
  } else {
    return to_float(BFloat16{reinterpret_cast<const uint16_t*>(at)[e]});
  }
}

template <WgmmaType type, int N, Major a_major = Major::k, Major b_major = Major::k, bool first = false>
void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b) {
  static const char here = 0;
  struct Operand {
    float* d;
    MatrixDescriptor a, b;
  } mine{d, a, b};
  simt::in_warpgroup(&here, &mine, [](simt::Warpgroup& g, Operand** all) {
    std::vector<float*> sums(128);
    for (int i = 0; i < 128; ++i) sums[static_cast<size_t>(i)] = all[i]->d;
    const MatrixDescriptor a = all[0]->a, b = all[0]->b;
    for (int i = 1; i < 128; ++i) {
      if (all[i]->a.start != a.start || all[i]->b.start != b.start) simt::fail("threads give wgmma different operands");
    }
    issue_wgmma(g, [sums, a, b] {
      constexpr int k = type == WgmmaType::tf32 ? 8 : 16;
      constexpr int of_unit = k / 2;  // elements of 16 bytes
      add_products<N, k>(
          sums,
          [&](int m, int i) {
            return a_major == Major::k ? element_of<type>(a, m, i / of_unit, i % of_unit)
                                       : element_of<type>(a, i, m / of_unit, m % of_unit);
          },
          [&](int n, int i) {
            return b_major == Major::k ? element_of<type>(b, n, i / of_unit, i % of_unit)
                                       : element_of<type>(b, i, n % 64 / of_unit, n % of_unit, n / 64);
          },
          first);
    });
  });
}

template <WgmmaType type, int N>
void first_wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b) {
  wgmma<type, N, Major::k, Major::k, true>(d, a, b);
}

template <WgmmaType type, int N>
void wgmma_as_in_memory(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, uint32_t d_is_added_to) {
  d_is_added_to != 0 ? wgmma<type, N, Major::mn, Major::mn>(d, a, b)
                     : wgmma<type, N, Major::mn, Major::mn, true>(d, a, b);
}

// a is read when the product is done, as the instruction does.
template <int N, WgmmaType type = WgmmaType::tf32>
void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4], MatrixDescriptor b) {
  static const char here = 0;
  struct Operand {
    float* d;
    const uint32_t* a;
    MatrixDescriptor b;
  } mine{d, a, b};
  simt::in_warpgroup(&here, &mine, [](simt::Warpgroup& g, Operand** all) {
    std::vector<float*> sums;
    std::vector<const uint32_t*> rows;
    for (int i = 0; i < 128; ++i) {
      sums.push_back(all[i]->d), rows.push_back(all[i]->a);
      if (all[i]->b.start != all[0]->b.start) simt::fail("threads give wgmma different operands");
    }
    issue_wgmma(g, [sums, rows, b = all[0]->b] {
      constexpr int k_of_word = type == WgmmaType::tf32 ? 1 : 2, of_unit = 4 * k_of_word;
      add_products<N, 8 * k_of_word>(
          sums,
          [&](int m, int k) -> double {
            const int word = k / k_of_word;
            const uint32_t* const of_lane = rows[static_cast<size_t>(m / 16 * 32 + m % 8 * 4 + word % 4)];
            const uint32_t v = of_lane[word / 4 * 2 + m % 16 / 8];
            const auto bits = static_cast<uint16_t>(v >> k % k_of_word * 16);
            if constexpr (type == WgmmaType::tf32) {
              return float_of_bits(v & 0xffffe000);
            } else if constexpr (type == WgmmaType::float16) {
              return to_float(Float16{bits});
            } else {
              return to_float(BFloat16{bits});
            }
          },
          [&](int n, int k) { return element_of<type>(b, n, k / of_unit, k % of_unit); });
    });
  });
}

inline bool has_copy_engine = true;  // false: as before sm_90

inline void fence_async_proxy() {}
inline void bulk_store(void* global, SharedAddress shared, uint32_t bytes) {
  if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0) {
    simt::fail("a bulk store is not aligned to 16 bytes");
  }
  const simt::AsyncCopy copy{global, reinterpret_cast<const void*>(shared), bytes, bytes};
  if (simt::coin()) {
    simt::perform(copy);
  } else {
    simt::block->current->bulk.open.push_back(copy);
  }
}
inline void box_store(const TensorMap& map, const int32_t (&at)[tensor_map_rank], SharedAddress shared, CachePolicy) {
  TensorMapLayout layout;
  std::memcpy(&layout, map.words, sizeof(layout));
  if (!layout.valid()) simt::fail("a tensor map that the copy engine does not take");
  const int32_t pattern = std::max(128, 8 * layout.swizzle_bytes);
  if (shared % static_cast<SharedAddress>(pattern) != 0 || (layout.box[2] != 1 && layout.box[3] != 1) ||
      layout.box[4] != 1) {
    simt::fail(
        "a box that is stored has rows in one dimension, one image, and begins where the swizzle's pattern does");
  }
  const int64_t unit = 16 / layout.element_bytes;
  for (int32_t r = 0; r < layout.box[2] * layout.box[3]; ++r) {
    for (int32_t c = 0; c < layout.box[1]; ++c, shared += static_cast<SharedAddress>(layout.inner_bytes())) {
      const int64_t place[4] = {at[1] + c, at[2] + r % layout.box[2], at[3] + r / layout.box[2], at[4]};
      bool inside = true;
      int64_t row = 0;
      for (int d = 0; d < 4; ++d) {
        inside &= place[d] >= 0 && place[d] < layout.sizes[d + 1];
        row += place[d] * layout.strides[d];
      }
      for (int32_t u = 0; inside && u < layout.inner_bytes() / 16; ++u) {
        const int64_t first = at[0] + u * unit, count = std::clamp<int64_t>(layout.sizes[0] - first, 0, unit);
        const auto bytes = static_cast<unsigned>(count * layout.element_bytes);
        if (bytes == 0) break;
        unsigned char* const to = static_cast<unsigned char*>(const_cast<void*>(layout.base)) + row;
        const simt::AsyncCopy copy{
            to + first * layout.element_bytes,
            reinterpret_cast<void*>(swizzled(shared + static_cast<SharedAddress>(16 * u), layout.swizzle_bytes)), bytes,
            bytes};
        if (simt::coin()) {
          simt::perform(copy);
        } else {
          simt::block->current->bulk.open.push_back(copy);
        }
      }
    }
  }
}
inline void bulk_commit() {
  simt::AsyncQueue& q = simt::block->current->bulk;
  q.groups.push_back(std::move(q.open));
  q.open.clear();
}
template <int Pending>
void bulk_wait_read() {
  simt::drain(simt::block->current->bulk, Pending);
}

inline void bulk_wait() { bulk_wait_read<0>(); }

inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

}  // namespace convt::device
