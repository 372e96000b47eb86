// The emulation behind rt_host.h: every CUDA thread of a block is a fiber of the
// calling thread; blocks run one after another. Fibers give way only where CUDA
// threads wait for each other: at barriers and in warp collectives. When nobody can
// run, threads of the block wait for different things, which is an error by name.
//
// Compile it without sanitizers: it tells ASan and TSan what happens through weak
// symbols. To TSan each CUDA thread is a thread of its own, and only barriers and
// collectives order them.
//
//	CUSIM_ORDER=fwd|rev|SEED   the order in which threads run, and blocks (fwd)
//	CUSIM_ASYNC=late|early     when cp.async copies: at the wait, or at once (late)
//	CUSIM_STATS=1              bank conflicts of ldmatrix, after each launch
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../../gpu/sim/lib/kernel.h"

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

extern "C" {
#define WEAK __attribute__((weak))
WEAK void __sanitizer_start_switch_fiber(void **, const void *, size_t);
WEAK void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
WEAK void __asan_poison_memory_region(const volatile void *, size_t);
WEAK void __asan_unpoison_memory_region(const volatile void *, size_t);
WEAK void __asan_loadN(uintptr_t, size_t);
WEAK void __asan_storeN(uintptr_t, size_t);
WEAK void *__tsan_get_current_fiber();
WEAK void *__tsan_create_fiber(unsigned);
WEAK void __tsan_destroy_fiber(void *);
WEAK void __tsan_switch_to_fiber(void *, unsigned);
WEAK void __tsan_acquire(void *);
WEAK void __tsan_release(void *);
WEAK void __tsan_read_range(void *, size_t);
WEAK void __tsan_write_range(void *, size_t);

// rt_switch saves the callee-saved registers on this stack, its pointer in *save,
// and goes on where the stack to was left.
void rt_switch(void **save, void *to);
}
asm(R"(.text
.globl rt_switch
.hidden rt_switch
.type rt_switch,@function
rt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace rt {

// What a card would say.
enum { kInvalidValue = 1, kMisaligned = 716, kLaunchFailed = 719 };

typedef u32 Lanes[32][16];
typedef void (*Op)(const Lanes in, Lanes out);

struct Copy {
  void *to;
  const void *from;
  u32 bytes;
  bool ok;
};

enum State : u8 { kReady, kAtBarrier, kInWarp, kDone };

struct Fiber {
  void *sp = nullptr, *tsan = nullptr, *fake = nullptr;
  u32 parity = 0;  // of its warp's exchanges
  State state = kDone;
  // cp.async: copies in order of issue, of which the first ends[i] are in the
  // groups up to i.
  std::vector<Copy> copies;
  std::vector<u32> ends;
};

// A warp's lanes leave their words in one of two slots in turn, so that a fast lane
// cannot overwrite what a slow one has still to fetch.
struct Warp {
  u32 arrived = 0;
  Op op = nullptr;
  Lanes in[2], out[2];
};

static const size_t kStack = 128 << 10;

// A machine runs the blocks of one host thread's launches.
struct Machine {
  u8 *stacks = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<u32> order, next;
  u32 threads = 0, block[3] = {}, live = 0, arrived = 0, current = 0;
  // To TSan barriers release and acquire two gates in turn: who leaves one late must
  // not seem to be ordered after those who are on their way to the next.
  u32 barriers = 0;
  u8 gates[2] = {};
  void *host = nullptr, *host_tsan = nullptr, *host_fake = nullptr;
  const void *host_bottom = nullptr;
  size_t host_size = 0;
  void (*kernel)(void **) = nullptr;
  void **params = nullptr;
  u8 *dynamic = nullptr;
  int error = 0;
  u64 phases = 0, wavefronts = 0;
};
static thread_local Machine *M;

static u8 *stack(u32 i) { return M->stacks + kStack * i; }
static Fiber &self() { return M->fibers[M->current]; }

// to_fiber runs fiber i from here on. One that is dying never comes back.
static void to_fiber(u32 i, bool dying) {
  if (i == M->current && !dying) return;
  Fiber &from = self();
  M->current = i;
  Fiber &f = M->fibers[i];
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(dying ? nullptr : &from.fake, stack(i), kStack);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(f.tsan, 1);
  rt_switch(&from.sp, f.sp);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(self().fake, nullptr, nullptr);
}

[[noreturn]] static void to_host() {
  void *gone;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(nullptr, M->host_bottom, M->host_size);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(M->host_tsan, 1);
  rt_switch(&gone, M->host);
  __builtin_unreachable();
}

// fail gives the launch up. The block's fibers are left where they are.
[[noreturn]] static void fail(int error, const char *what) {
  fprintf(stderr, "cusim: %s (block %u,%u,%u thread %u)\n", what, M->block[0], M->block[1], M->block[2], M->current);
  M->error = error;
  to_host();
}

// give_way runs another fiber until somebody makes this one ready again.
static void give_way(bool dying) {
  for (u32 i = M->next[M->current];; i = M->next[i]) {
    if (M->fibers[i].state == kReady) return to_fiber(i, dying);
    if (i == M->current) break;
  }
  u32 barrier = 0, warp = 0, a = 0, b = 0;
  for (u32 i = 0; i < M->threads; i++) {
    if (M->fibers[i].state == kAtBarrier) barrier++, a = i;
    if (M->fibers[i].state == kInWarp) warp++, b = i;
  }
  char text[160];
  snprintf(text, sizeof text, "barrier divergence: %u threads wait at a barrier (%u for one), %u in a warp collective (%u for one), %u have returned", barrier, a, warp, b, M->threads - M->live);
  fail(kLaunchFailed, text);
}

static u8 *gate() { return &M->gates[M->barriers & 1]; }

static void open_barrier() {
  M->arrived = 0;
  M->barriers++;
  for (u32 i = 0; i < M->threads; i++)
    if (M->fibers[i].state == kAtBarrier) M->fibers[i].state = kReady;
}

static void run(const Copy &c) {
  if (__asan_storeN) {
    __asan_storeN((uintptr_t)c.to, c.bytes);
    if (c.ok) __asan_loadN((uintptr_t)c.from, c.bytes);
  }
  if (__tsan_write_range) {
    __tsan_write_range(c.to, c.bytes);
    if (c.ok) __tsan_read_range((void *)c.from, c.bytes);
  }
  if (c.ok) memcpy(c.to, c.from, c.bytes);
  else memset(c.to, 0, c.bytes);
}

static bool early() {
  static bool v = [] { const char *e = getenv("CUSIM_ASYNC"); return e && !strcmp(e, "early"); }();
  return v;
}

static void finish() {
  Fiber &f = self();
  for (const Copy &c : f.copies) run(c);
  f.copies.clear();
  f.ends.clear();
  f.state = kDone;
  M->live--;
  if (__tsan_release) __tsan_release(gate());
  if (!M->live) to_host();
  if (M->arrived == M->live) open_barrier();
  give_way(true);
}

static void entry() {
  if (__sanitizer_finish_switch_fiber) {
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!M->host_bottom) M->host_bottom = bottom, M->host_size = size;
  }
  if (__tsan_acquire) __tsan_acquire(&M->block);
  M->kernel(M->params);
  finish();
  __builtin_unreachable();
}

// shuffle puts v into the order that CUSIM_ORDER names.
static void shuffle(std::vector<u32> &v, u64 salt) {
  const char *o = getenv("CUSIM_ORDER");
  for (u32 i = 0; i < v.size(); i++) v[i] = i;
  if (!o || !strcmp(o, "fwd")) return;
  if (!strcmp(o, "rev")) {
    std::reverse(v.begin(), v.end());
    return;
  }
  u64 s = (strtoull(o, nullptr, 10) + salt) * 2654435761u + 1;
  for (u32 i = v.size(); i > 1; i--) {
    s = s * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(v[i - 1], v[(s >> 33) % i]);
  }
}

static void prepare(u32 threads) {
  if (!M) M = new Machine;  // for the thread's life
  if (M->fibers.size() < threads) {
    if (M->stacks) munmap(M->stacks, kStack * M->fibers.size());
    M->stacks = (u8 *)mmap(nullptr, kStack * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    M->fibers.resize(threads);
    M->warps.resize((threads + 31) / 32);
  }
  M->threads = threads;
  M->order.resize(threads);
  M->next.resize(threads);
  shuffle(M->order, 0);
  for (u32 i = 0; i < threads; i++) M->next[M->order[i]] = M->order[(i + 1) % threads];
}

static void run_block(u32 bytes) {
  M->live = M->threads;
  M->arrived = 0;
  for (u32 w = 0; w < M->threads / 32; w++) M->warps[w].arrived = 0;
  // Of the exact size, so that ASan sees the end; NaN, so that reading what nobody
  // wrote shows.
  u32 room = (bytes + 127) / 128 * 128 + 128;
  M->dynamic = (u8 *)aligned_alloc(128, room);
  memset(M->dynamic, 0xff, bytes);
  if (__asan_poison_memory_region) __asan_poison_memory_region(M->dynamic + bytes, room - bytes);
  for (u32 i = 0; i < M->threads; i++) {
    Fiber &f = M->fibers[i];
    // Stacks start at different offsets, else their tops would share cache sets.
    void **sp = (void **)(stack(i + 1) - 64 - i % 61 * 64);
    *--sp = nullptr;
    *--sp = (void *)entry;
    for (int k = 0; k < 6; k++) *--sp = nullptr;
    f.sp = sp;
    f.state = kReady;
    f.parity = 0;
    f.fake = nullptr;
    f.copies.clear();
    f.ends.clear();
    f.tsan = __tsan_create_fiber ? __tsan_create_fiber(0) : nullptr;
  }
  if (__tsan_release) __tsan_release(&M->block);
  M->current = M->order[0];
  M->host_bottom = nullptr;
  M->host_size = 0;
  M->host_fake = nullptr;
  M->host_tsan = __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&M->host_fake, stack(M->current), kStack);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(M->fibers[M->current].tsan, 1);
  rt_switch(&M->host, M->fibers[M->current].sp);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(M->host_fake, nullptr, nullptr);
  if (__tsan_acquire) {
    __tsan_acquire(&M->gates[0]);
    __tsan_acquire(&M->gates[1]);
  }
  if (__tsan_destroy_fiber)
    for (u32 i = 0; i < M->threads; i++) __tsan_destroy_fiber(M->fibers[i].tsan);
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(M->dynamic, room);
  free(M->dynamic);
  M->dynamic = nullptr;
}

// ldmatrix.m8n8.x4.b16: lane l has the address of row l%8 of matrix l/8. It gets, of
// every matrix, elements 2·(l%4) and the next of row l/4 (transposed: of column l/4
// those rows). Each matrix is one phase of 8 rows of 16 bytes; those of different
// addresses in the same banks take a wavefront each.
static void count(const Lanes in) {
  for (u32 q = 0; q < 4; q++) {
    u32 n[8] = {}, most = 0;
    for (u32 i = 0; i < 8; i++) {
      bool seen = false;
      for (u32 k = 0; k < i; k++) seen |= in[q * 8 + k][0] == in[q * 8 + i][0];
      if (!seen) most = std::max(most, ++n[in[q * 8 + i][0] >> 4 & 7]);
    }
    M->phases++;
    M->wavefronts += most;
  }
}
static void ldmatrix(const Lanes in, Lanes out) {
  count(in);
  u32 m[4][8][4];
  for (u32 l = 0; l < 32; l++) {
    const u8 *p;
    memcpy(&p, in[l], 8);
    memcpy(m[l >> 3][l & 7], p, 16);
  }
  for (u32 l = 0; l < 32; l++)
    for (u32 q = 0; q < 4; q++) out[l][q] = m[q][l >> 2][l & 3];
}
static void ldmatrix_trans(const Lanes in, Lanes out) {
  count(in);
  unsigned short m[4][8][8];
  for (u32 l = 0; l < 32; l++) {
    const u8 *p;
    memcpy(&p, in[l], 8);
    memcpy(m[l >> 3][l & 7], p, 16);
  }
  for (u32 l = 0; l < 32; l++)
    for (u32 q = 0; q < 4; q++) out[l][q] = m[q][(l & 3) * 2][l >> 2] | (u32)m[q][(l & 3) * 2 + 1][l >> 2] << 16;
}

extern "C" {
u32 rt_h_tid() { return M->current; }
u32 rt_h_ntid() { return M->threads; }
u32 rt_h_bid(u32 axis) { return M->block[axis]; }
u8 *rt_h_dynsmem() { return M->dynamic; }
void rt_h_poison(void *p, size_t n) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, n);
}

void rt_h_sync() {
  u8 *g = gate();
  if (__tsan_release) __tsan_release(g);
  if (++M->arrived == M->live) {
    open_barrier();
  } else {
    self().state = kAtBarrier;
    give_way(false);
  }
  if (__tsan_acquire) __tsan_acquire(g);
}

void rt_h_warp(Op op, const u32 *in, u32 ni, u32 *out, u32 no) {
  u32 lane = M->current & 31, slot = self().parity & 1;
  Warp &w = M->warps[M->current >> 5];
  if (w.arrived == 0) w.op = op;
  else if (w.op != op) fail(kLaunchFailed, "warp divergence: lanes of one warp are in different collective instructions");
  for (u32 i = 0; i < ni; i++) w.in[slot][lane][i] = in[i];
  void *g = &w.in[slot];  // as with gates
  if (__tsan_release) __tsan_release(g);
  if (++w.arrived == 32) {
    if (__tsan_acquire) __tsan_acquire(g);
    op(w.in[slot], w.out[slot]);
    w.arrived = 0;
    for (u32 i = M->current & ~31u, end = i + 32; i < end; i++)
      if (M->fibers[i].state == kInWarp) M->fibers[i].state = kReady;
    if (__tsan_release) __tsan_release(g);
  } else {
    self().state = kInWarp;
    give_way(false);
  }
  if (__tsan_acquire) __tsan_acquire(g);
  self().parity++;
  for (u32 i = 0; i < no; i++) out[i] = w.out[slot][lane][i];
}

void rt_h_cp_async(void *d, const void *s, u32 n, u32 ok) {
  if ((uintptr_t)d % n || (ok && (uintptr_t)s % n)) fail(kMisaligned, "cp.async: misaligned address");
  Copy c{d, s, n, ok != 0};
  if (early()) run(c);
  else self().copies.push_back(c);
}
void rt_h_cp_commit() { self().ends.push_back(self().copies.size()); }
void rt_h_cp_wait(u32 keep) {
  Fiber &f = self();
  if (f.ends.size() <= keep) return;
  u32 groups = f.ends.size() - keep, n = f.ends[groups - 1];
  for (u32 i = 0; i < n; i++) run(f.copies[i]);
  f.copies.erase(f.copies.begin(), f.copies.begin() + n);
  f.ends.erase(f.ends.begin(), f.ends.begin() + groups);
  for (u32 &e : f.ends) e -= n;
}

void rt_h_ldmatrix(u32 *r, const void *p, u32 trans) {
  if ((uintptr_t)p & 15) fail(kMisaligned, "ldmatrix: row address not 16-byte aligned");
  if (__asan_loadN) __asan_loadN((uintptr_t)p, 16);
  if (__tsan_read_range) __tsan_read_range((void *)p, 16);
  u32 in[2];
  memcpy(in, &p, 8);
  rt_h_warp(trans ? ldmatrix_trans : ldmatrix, in, 2, r, 4);
}

u64 rt_h_nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
// A thread that waits for another device's kernel: that one needs the core.
void rt_h_pause() { sched_yield(); }

int rt_run(void (*kernel)(void **), const cusim_launch *l) {
  u64 threads = (u64)l->block[0] * l->block[1] * l->block[2];
  if (threads == 0 || threads > 1024 || threads % 32) {
    fprintf(stderr, "cusim: a block of %llu threads: it must be a multiple of 32, at most 1024\n", threads);
    return kInvalidValue;
  }
  prepare(threads);
  M->kernel = kernel;
  M->params = l->param;
  M->error = 0;
  M->phases = M->wavefronts = 0;
  const u32 *g = l->grid;
  std::vector<u32> order(g[0] * g[1] * g[2]);
  shuffle(order, 1);
  for (size_t i = 0; i < order.size() && !M->error; i++) {
    M->block[0] = order[i] % g[0];
    M->block[1] = order[i] / g[0] % g[1];
    M->block[2] = order[i] / g[0] / g[1];
    run_block(l->shared_bytes);
  }
  if (getenv("CUSIM_STATS")) fprintf(stderr, "cusim: ldmatrix: %llu phases, %llu wavefronts\n", M->phases, M->wavefronts);
  return M->error;
}
}
}  // namespace rt
