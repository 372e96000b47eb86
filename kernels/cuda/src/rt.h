// One prelude, two worlds. For a card, clang compiles kernels to PTX against the
// first half of this file; for tests without one, any C++17 compiler builds the
// same kernels against host/rt_host.h, where each CUDA thread is a fiber.
//
// Kernels use nothing but C++ and what begins with rt_ or RT_ here. Both builds
// have contraction off: a product is fused with a sum only by rt_fma. All float
// operations below round to nearest as IEEE 754 says, so a kernel without tensor
// core instructions gives the same bits on a card as on the host.
#pragma once
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
typedef signed char i8;

#if defined(__CUDA__)
#define RT_DEVICE 1
#define RT_FN static __attribute__((device)) inline __attribute__((always_inline))
#define RT_KERNEL(name, threads) extern "C" __attribute__((global)) void __attribute__((launch_bounds(threads, 1))) name
// RT_EXPORT follows each kernel: the host build makes its entry point there.
#define RT_EXPORT(name)
// RT_SMEM declares n elements of shared memory of the block.
#define RT_SMEM(type, name, n) __attribute__((shared)) __attribute__((aligned(128))) type name[n]
#define RT_UNROLL _Pragma("unroll")
#define RT_UNROLL_8 _Pragma("unroll 8")
#define RT_CONST static __attribute__((device)) const
#define RT_ASM asm volatile

RT_FN u32 rt_tid() { u32 r; asm("mov.u32 %0, %%tid.x;" : "=r"(r)); return r; }
RT_FN u32 rt_ntid() { u32 r; asm("mov.u32 %0, %%ntid.x;" : "=r"(r)); return r; }
RT_FN u32 rt_bid() { u32 r; asm("mov.u32 %0, %%ctaid.x;" : "=r"(r)); return r; }
RT_FN u32 rt_bid_y() { u32 r; asm("mov.u32 %0, %%ctaid.y;" : "=r"(r)); return r; }
RT_FN u32 rt_bid_z() { u32 r; asm("mov.u32 %0, %%ctaid.z;" : "=r"(r)); return r; }
RT_FN void rt_sync() { RT_ASM("bar.sync 0;" ::: "memory"); }

extern __attribute__((shared)) __attribute__((aligned(128))) u8 rt_dyn_[];
RT_FN u8 *rt_dynsmem() { return rt_dyn_; }
RT_FN u32 rt_sptr(const void *p) {
  u64 q;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(q) : "l"((u64)p));
  return (u32)q;
}

RT_FN u32 rt_shfl_xor_u32(u32 v, u32 m) { u32 r; RT_ASM("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(r) : "r"(v), "r"(m)); return r; }
RT_FN u32 rt_shfl_u32(u32 v, u32 lane) { u32 r; RT_ASM("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane)); return r; }

RT_FN float rt_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RT_FN float rt_div(float a, float b) { float r; asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
RT_FN float rt_sqrt(float a) { float r; asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
RT_FN float rt_f16(u16 h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
RT_FN u16 rt_to_f16(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
RT_FN u64 rt_mulhi(u64 a, u64 b) { u64 r; asm("mul.hi.u64 %0, %1, %2;" : "=l"(r) : "l"(a), "l"(b)); return r; }

// Words that other devices and the host see: everything that this thread saw
// before rt_release, whoever rt_acquires the new value sees.
RT_FN void rt_fence_system() { RT_ASM("fence.acq_rel.sys;" ::: "memory"); }
RT_FN void rt_release(u32 *p, u32 v) { RT_ASM("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
RT_FN u32 rt_acquire(const u32 *p) { u32 r; RT_ASM("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory"); return r; }
RT_FN u64 rt_nanoseconds() { u64 r; RT_ASM("mov.u64 %0, %%globaltimer;" : "=l"(r)); return r; }
RT_FN void rt_pause() { RT_ASM("nanosleep.u32 100;" ::: "memory"); }

// rt_cp_async copies BYTES (4, 8 or 16) to shared memory behind the thread's
// back; without ok it writes zeros and reads nothing.
template <int BYTES> RT_FN void rt_cp_async(void *dst, const void *src, bool ok) {
  u32 n = ok ? BYTES : 0;
  if (BYTES == 16) RT_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(rt_sptr(dst)), "l"(src), "r"(n) : "memory");
  else RT_ASM("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(rt_sptr(dst)), "l"(src), "r"(n), "n"(BYTES) : "memory");
}
RT_FN void rt_cp_commit() { RT_ASM("cp.async.commit_group;" ::: "memory"); }
template <int N> RT_FN void rt_cp_wait() { RT_ASM("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

RT_FN void rt_ldmatrix_x4(u32 r[4], const void *p) {
  RT_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(rt_sptr(p)) : "memory");
}
RT_FN void rt_ldmatrix_x4_trans(u32 r[4], const void *p) {
  RT_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(rt_sptr(p)) : "memory");
}

// d += a·b on the tensor cores; fragments as the PTX ISA lays them out.
#define RT_MMA_(S)                                                                                       \
  RT_ASM("mma.sync.aligned." S " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                  \
         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
RT_FN void rt_mma_bf16(float d[4], const u32 a[4], const u32 b[2]) { RT_MMA_("m16n8k16.row.col.f32.bf16.bf16.f32"); }
RT_FN void rt_mma_e4m3(float d[4], const u32 a[4], const u32 b[2]) { RT_MMA_("m16n8k32.row.col.f32.e4m3.e4m3.f32"); }
// The block-scaled forms exist for sm_120a and its kin alone. BA, BB: byte of the
// scale registers; TA, TB: which lanes' scale registers count.
#if defined(RT_NO_BLOCK_SCALE)
#define RT_MMABS_(S)
#else
#define RT_MMABS_(S)                                                                                                             \
  RT_ASM("mma.sync.aligned." S " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%13}, {%11}, {%14,%15};"      \
         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                        \
         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(sa), "r"(sb), "n"(BA), "n"(TA), "n"(BB), "n"(TB))
#endif
template <int BA, int TA, int BB, int TB> RT_FN void rt_mma_nvfp4(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb) {
  RT_MMABS_("m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3");
}
template <int BA, int TA, int BB, int TB> RT_FN void rt_mma_mxf8f4(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb) {
  RT_MMABS_("m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0");
}
#else
#include "../host/rt_host.h"
#endif

RT_FN u32 rt_lane() { return rt_tid() & 31; }
RT_FN u32 rt_bits(float f) { u32 u; __builtin_memcpy(&u, &f, 4); return u; }
RT_FN float rt_float(u32 u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
RT_FN float rt_bf16(u16 h) { return rt_float((u32)h << 16); }
RT_FN float rt_shfl_xor(float v, u32 m) { return rt_float(rt_shfl_xor_u32(rt_bits(v), m)); }
RT_FN float rt_shfl(float v, u32 lane) { return rt_float(rt_shfl_u32(rt_bits(v), lane)); }
