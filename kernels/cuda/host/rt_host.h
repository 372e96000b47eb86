// The host side of src/rt.h. The machinery is in rt_host.cc, which is compiled
// without sanitizers; only kernels are instrumented.
//
// A kernel NAME becomes NAME__sim of a shared library, as gpu/sim/lib/kernel.h says.
// It runs the whole grid, block after block, on the calling thread; when that goes
// wrong, what was wrong is on standard error.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../../../gpu/sim/lib/kernel.h"

namespace rt {
typedef u32 Lanes[32][16];
typedef void (*Op)(const Lanes in, Lanes out);
extern "C" {
u32 rt_h_tid();
u32 rt_h_ntid();
u32 rt_h_bid(u32 axis);
u8 *rt_h_dynsmem();
void rt_h_sync();
// A warp collective: every lane hands in ni words, the last to arrive runs op on
// all 32, every lane gets no words back.
void rt_h_warp(Op op, const u32 *in, u32 ni, u32 *out, u32 no);
void rt_h_cp_async(void *d, const void *s, u32 n, u32 ok);
void rt_h_cp_commit();
void rt_h_cp_wait(u32 keep);
void rt_h_ldmatrix(u32 *r, const void *p, u32 trans);
u64 rt_h_nanoseconds();
void rt_h_pause();
void rt_h_poison(void *p, size_t n);
int rt_run(void (*kernel)(void **), const cusim_launch *l);
}
template <class... A, size_t... I> static void call_(void (*f)(A...), void **p, std::index_sequence<I...>) {
  f(*static_cast<std::remove_reference_t<A> *>(p[I])...);
}
template <class... A> static void call(void (*f)(A...), void **p) { call_(f, p, std::index_sequence_for<A...>{}); }

// Static shared memory with poisoned margins: ASan gives thread-local arrays no
// red zones. No constructor, whose guard variable would be a data race to TSan.
template <class T, int N> struct Shared {
  alignas(128) u8 before[128];
  alignas(128) T v[N];
  alignas(128) u8 after[128];
  T *arm() {
    rt_h_poison(before, 128);
    rt_h_poison((u8 *)v + sizeof v, (u8 *)(this + 1) - ((u8 *)v + sizeof v));
    return v;
  }
};
}  // namespace rt

#define RT_FN static inline
#define RT_KERNEL(name, threads) extern "C" void name
#define RT_EXPORT(name)                                                \
  static void name##_call(void **p) { rt::call(name, p); }             \
  extern "C" int name##__sim(const cusim_launch *l) { return rt::rt_run(name##_call, l); }
#define RT_SMEM(type, name, n)                        \
  static thread_local rt::Shared<type, n> name##_mem; \
  type *const name = name##_mem.arm()
#define RT_UNROLL
#define RT_UNROLL_8
#define RT_CONST static const

RT_FN u32 rt_tid() { return rt::rt_h_tid(); }
RT_FN u32 rt_ntid() { return rt::rt_h_ntid(); }
RT_FN u32 rt_bid() { return rt::rt_h_bid(0); }
RT_FN u32 rt_bid_y() { return rt::rt_h_bid(1); }
RT_FN u32 rt_bid_z() { return rt::rt_h_bid(2); }
RT_FN void rt_sync() { rt::rt_h_sync(); }
RT_FN u8 *rt_dynsmem() { return rt::rt_h_dynsmem(); }

RT_FN float rt_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RT_FN float rt_div(float a, float b) { return a / b; }
RT_FN float rt_sqrt(float a) { return std::sqrt(a); }
RT_FN u64 rt_mulhi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
RT_FN float rt_f16(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
  if (e == 31) u = sign | 0x7f800000 | m << 13;
  else if (e) u = sign | (e + 112) << 23 | m << 13;
  else {
    float f = (float)m * 0x1p-24f;
    __builtin_memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
RT_FN u16 rt_to_f16(float x) {
  u32 u;
  __builtin_memcpy(&u, &x, 4);
  u32 sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;
  if (a >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
  if (a < 0x38800000) {                       // subnormal: count units of 2^-24
    float f;
    __builtin_memcpy(&f, &a, 4);
    f = f * 0x1p24f + 0x1p23f;  // rounds to nearest even
    __builtin_memcpy(&a, &f, 4);
    return sign | (a & 0x7ff);
  }
  a += 0xfff + (a >> 13 & 1);
  return sign | (a - 0x38000000) >> 13;
}

RT_FN void rt_fence_system() {
#if !defined(__SANITIZE_THREAD__)  // which knows no fences; release and acquire do
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
RT_FN void rt_release(u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
RT_FN u32 rt_acquire(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
RT_FN u64 rt_nanoseconds() { return rt::rt_h_nanoseconds(); }
RT_FN void rt_pause() { rt::rt_h_pause(); }

template <int BYTES> RT_FN void rt_cp_async(void *dst, const void *src, bool ok) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "");
  rt::rt_h_cp_async(dst, src, BYTES, ok);
}
RT_FN void rt_cp_commit() { rt::rt_h_cp_commit(); }
template <int N> RT_FN void rt_cp_wait() { rt::rt_h_cp_wait(N); }
RT_FN void rt_ldmatrix_x4(u32 r[4], const void *p) { rt::rt_h_ldmatrix(r, p, 0); }
RT_FN void rt_ldmatrix_x4_trans(u32 r[4], const void *p) { rt::rt_h_ldmatrix(r, p, 1); }

#include "mma.h"
RT_FN u32 rt_shfl_xor_u32(u32 v, u32 m) {
  u32 in[2] = {v, m}, out;
  rt::rt_h_warp(emu_shfl_xor, in, 2, &out, 1);
  return out;
}
RT_FN u32 rt_shfl_u32(u32 v, u32 lane) {
  u32 in[2] = {v, lane}, out;
  rt::rt_h_warp(emu_shfl, in, 2, &out, 1);
  return out;
}
template <rt::Op OP> RT_FN void rt_mma_(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb) {
  u32 in[12] = {a[0], a[1], a[2], a[3], b[0], b[1], 0, 0, 0, 0, sa, sb}, out[4];
  __builtin_memcpy(in + 6, d, 16);
  rt::rt_h_warp(OP, in, 12, out, 4);
  __builtin_memcpy(d, out, 16);
}
RT_FN void rt_mma_bf16(float d[4], const u32 a[4], const u32 b[2]) { rt_mma_<emu_mma_bf16_m16n8k16>(d, a, b, 0, 0); }
RT_FN void rt_mma_e4m3(float d[4], const u32 a[4], const u32 b[2]) { rt_mma_<emu_mma_e4m3_m16n8k32>(d, a, b, 0, 0); }
template <int BA, int TA, int BB, int TB> RT_FN void rt_mma_nvfp4(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb) {
  static_assert(BA == 0 && BB == 0 && TA >= 0 && TA < 2 && TB >= 0 && TB < 4, "");
  rt_mma_<emu_mma_nvfp4_m16n8k64<TA, TB>>(d, a, b, sa, sb);
}
template <int BA, int TA, int BB, int TB> RT_FN void rt_mma_mxf8f4(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb) {
  static_assert(BA >= 0 && BA < 4 && BB >= 0 && BB < 4 && TA >= 0 && TA < 2 && TB >= 0 && TB < 4, "");
  rt_mma_<emu_mma_mxf8f4_m16n8k32<BA, TA, BB, TB>>(d, a, b, sa, sb);
}
