// C[M][N] = alpha·A[M][K]·B[N][K]ᵀ in float32 on the tensor cores, from four kinds of
// operands. Not used by the backend yet.
//
// A block of 4 warps computes 64 by 64, a warp 32 by 32, out of three stages of
// shared memory that cp.async fills. Rows in shared memory are swizzled, so that
// ldmatrix meets no bank twice. Grid: bid = row tile · ceil(N/64) + column tile. K is
// a multiple of a stage's depth (BK); M and N are free.
#include "rt.h"

enum Kind { NVFP4, W4A8, E4M3, BF16 };

// Of a kind: elements of K in a stage, bytes of a row of A and of B in a stage, and
// bytes of its scales.
template <int KIND> struct Depth;
template <> struct Depth<NVFP4> { static const int BK = 128, RA = 64, RB = 64, SC = 8; };  // e2m1, a ue4m3 for each 16
template <> struct Depth<W4A8> { static const int BK = 128, RA = 128, RB = 64, SC = 4; };  // A e4m3, B e2m1, a ue8m0 for each 32
template <> struct Depth<E4M3> { static const int BK = 128, RA = 128, RB = 128, SC = 0; };
template <> struct Depth<BF16> { static const int BK = 64, RA = 128, RB = 128, SC = 0; };

// Where things are in a stage.
template <int KIND> struct Stage {
  typedef Depth<KIND> D;
  static const int A = 0, B = 64 * D::RA, SA = B + 64 * D::RB, SB = SA + 64 * D::SC, SIZE = SB + 64 * D::SC;
};
static const int STAGES = 3;

struct Gemm {
  const u8 *a, *sa, *b, *sb;
  float *c;
  int m, n, k;
  float alpha;
};

// swizzled is where the 16 bytes c of row r are: those of 8 rows one below the other
// lie in 8 different groups of banks.
template <int ROW> RT_FN u32 swizzled(u32 r, u32 c) { return r * ROW + ((ROW == 64 ? c ^ (r >> 1 & 3) : c ^ (r & 7)) << 4); }

template <int ROW> RT_FN void load_rows(u8 *s, const u8 *g, u64 pitch, u32 row0, u32 rows, u32 at) {
  for (u32 i = rt_tid(); i < 64 * (ROW / 16); i += 128) {
    u32 r = i / (ROW / 16), c = i % (ROW / 16);
    bool ok = row0 + r < rows;
    rt_cp_async<16>(s + swizzled<ROW>(r, c), g + (ok ? (row0 + r) * pitch + at + c * 16 : 0), ok);
  }
}
template <int SC> RT_FN void load_scales(u8 *s, const u8 *g, u64 pitch, u32 row0, u32 rows, u32 at, u32 first) {
  u32 r = rt_tid() - first;
  if (r < 64) {
    bool ok = row0 + r < rows;
    rt_cp_async<SC>(s + r * SC, g + (ok ? (row0 + r) * pitch + at : 0), ok);
  }
}
template <int KIND> RT_FN void load_stage(u8 *s, const Gemm &p, u32 m0, u32 n0, u32 kt) {
  typedef Depth<KIND> D;
  typedef Stage<KIND> S;
  u64 steps = p.k / D::BK;
  load_rows<D::RA>(s + S::A, p.a, steps * D::RA, m0, p.m, kt * D::RA);
  load_rows<D::RB>(s + S::B, p.b, steps * D::RB, n0, p.n, kt * D::RB);
  if constexpr (D::SC > 0) {
    load_scales<D::SC>(s + S::SA, p.sa, steps * D::SC, m0, p.m, kt * D::SC, 0);
    load_scales<D::SC>(s + S::SB, p.sb, steps * D::SC, n0, p.n, kt * D::SC, 64);
  }
}

RT_FN u32 word(const u8 *p) { return *(const u32 *)p; }

// e2m1_slots spreads 4 packed e2m1 to bytes, each in bits 2 to 5 of its own.
RT_FN u32 e2m1_slots(u32 v) {
  v = (v | v << 8) & 0x00ff00ffu;
  v = (v | v << 4) & 0x0f0f0f0fu;
  return v << 2;
}

// tile is one instruction: d += a·b. The scale registers serve 2 tiles of A (TA) and
// 4 of B (TB), and of W4A8 the 4 steps of a stage (BYTE).
template <int KIND, int TA, int TB> RT_FN void tile(float d[4], const u32 a[4], const u32 b[2], u32 sa, u32 sb, u32 step) {
  if constexpr (KIND == NVFP4) rt_mma_nvfp4<0, TA, 0, TB>(d, a, b, sa, sb);
  else if constexpr (KIND == W4A8) switch (step) {
      case 0: rt_mma_mxf8f4<0, TA, 0, TB>(d, a, b, sa, sb); break;
      case 1: rt_mma_mxf8f4<1, TA, 1, TB>(d, a, b, sa, sb); break;
      case 2: rt_mma_mxf8f4<2, TA, 2, TB>(d, a, b, sa, sb); break;
      default: rt_mma_mxf8f4<3, TA, 3, TB>(d, a, b, sa, sb);
    }
  else if constexpr (KIND == E4M3) rt_mma_e4m3(d, a, b);
  else rt_mma_bf16(d, a, b);
}

template <int KIND> RT_FN void gemm(const Gemm &p) {
  typedef Depth<KIND> D;
  typedef Stage<KIND> S;
  u8 *sm = rt_dynsmem();
  u32 across = (p.n + 63) / 64, m0 = rt_bid() / across * 64, n0 = rt_bid() % across * 64;
  u32 w = rt_tid() >> 5, l = rt_lane(), wm = (w >> 1) * 32, wn = (w & 1) * 32, steps = p.k / D::BK;
  // Every loop over d is unrolled: an index that is left keeps d in local memory.
  float d[2][4][4];
  RT_UNROLL
  for (int i = 0; i < 32; i++) d[i >> 4][i >> 2 & 3][i & 3] = 0;
  for (u32 s = 0; s < STAGES - 1; s++) {
    if (s < steps) load_stage<KIND>(sm + s * S::SIZE, p, m0, n0, s);
    rt_cp_commit();
  }
  for (u32 kt = 0; kt < steps; kt++) {
    rt_cp_wait<STAGES - 2>();
    rt_sync();
    if (kt + STAGES - 1 < steps) load_stage<KIND>(sm + (kt + STAGES - 1) % STAGES * S::SIZE, p, m0, n0, kt + STAGES - 1);
    rt_cp_commit();
    const u8 *s = sm + kt % STAGES * S::SIZE;
    u32 sa = 0, sb = 0;
    u32 row_a = wm + (l >> 1 & 1) * 16 + (l & 1) * 8 + (l >> 2), row_b = wn + (l & 3) * 8 + (l >> 2);
    if constexpr (KIND == W4A8) {
      sa = word(s + S::SA + row_a * 4);
      sb = word(s + S::SB + row_b * 4);
    }
    RT_UNROLL
    for (u32 ks = 0; ks < D::RA / 32; ks++) {
      u32 a[2][4], b[4][2];
      RT_UNROLL
      for (u32 i = 0; i < 2; i++) rt_ldmatrix_x4(a[i], s + S::A + swizzled<D::RA>(wm + i * 16 + (l & 7) + (l >> 3 & 1) * 8, ks * 2 + (l >> 4)));
      if constexpr (KIND == W4A8) {
        RT_UNROLL
        for (u32 j = 0; j < 4; j++) {
          const u8 *q = s + S::B + swizzled<D::RB>(wn + j * 8 + (l >> 2), ks);
          b[j][0] = e2m1_slots(*(const u16 *)(q + (l & 3) * 2));
          b[j][1] = e2m1_slots(*(const u16 *)(q + 8 + (l & 3) * 2));
        }
      } else {
        RT_UNROLL
        for (u32 j = 0; j < 2; j++) {
          u32 q[4];
          rt_ldmatrix_x4(q, s + S::B + swizzled<D::RB>(wn + j * 16 + (l & 7) + (l >> 4) * 8, ks * 2 + (l >> 3 & 1)));
          b[j * 2][0] = q[0];
          b[j * 2][1] = q[1];
          b[j * 2 + 1][0] = q[2];
          b[j * 2 + 1][1] = q[3];
        }
      }
      if constexpr (KIND == NVFP4) {
        sa = word(s + S::SA + row_a * 8 + ks * 4);
        sb = word(s + S::SB + row_b * 8 + ks * 4);
      }
      tile<KIND, 0, 0>(d[0][0], a[0], b[0], sa, sb, ks);
      tile<KIND, 0, 1>(d[0][1], a[0], b[1], sa, sb, ks);
      tile<KIND, 0, 2>(d[0][2], a[0], b[2], sa, sb, ks);
      tile<KIND, 0, 3>(d[0][3], a[0], b[3], sa, sb, ks);
      tile<KIND, 1, 0>(d[1][0], a[1], b[0], sa, sb, ks);
      tile<KIND, 1, 1>(d[1][1], a[1], b[1], sa, sb, ks);
      tile<KIND, 1, 2>(d[1][2], a[1], b[2], sa, sb, ks);
      tile<KIND, 1, 3>(d[1][3], a[1], b[3], sa, sb, ks);
    }
  }
  rt_cp_wait<0>();
  RT_UNROLL
  for (u32 x = 0; x < 32; x++) {
    u32 i = x >> 4, j = x >> 2 & 3, r = x & 3, m = m0 + wm + i * 16 + (l >> 2) + (r >> 1) * 8, n = n0 + wn + j * 8 + (l & 3) * 2 + (r & 1);
    if (m < (u32)p.m && n < (u32)p.n) p.c[(u64)m * p.n + n] = d[i][j][r] * p.alpha;
  }
}
RT_KERNEL(gemm_nvfp4, 128)(Gemm p) { gemm<NVFP4>(p); } RT_EXPORT(gemm_nvfp4)
RT_KERNEL(gemm_w4a8, 128)(Gemm p) { gemm<W4A8>(p); } RT_EXPORT(gemm_w4a8)
RT_KERNEL(gemm_e4m3, 128)(Gemm p) { gemm<E4M3>(p); } RT_EXPORT(gemm_e4m3)
RT_KERNEL(gemm_bf16, 128)(Gemm p) { gemm<BF16>(p); } RT_EXPORT(gemm_bf16)
