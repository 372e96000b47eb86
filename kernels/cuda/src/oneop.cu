// One instruction a kernel: 12 words for each lane in (4 of A, 2 of B, 4 of C, the
// scales of A and B), 4 words out. What settles the emulation against a card: the
// same inputs, and each register compared.
#include "rt.h"

#define ONE(name, instruction)                                   \
  RT_KERNEL(name, 32)(const u32 *in, u32 *out) {                 \
    const u32 *p = in + rt_tid() * 12;                           \
    u32 a[4] = {p[0], p[1], p[2], p[3]}, b[2] = {p[4], p[5]};    \
    float d[4];                                                  \
    RT_UNROLL                                                    \
    for (int i = 0; i < 4; i++) d[i] = rt_float(p[6 + i]);       \
    instruction;                                                 \
    RT_UNROLL                                                    \
    for (int i = 0; i < 4; i++) out[rt_tid() * 4 + i] = rt_bits(d[i]); \
  }                                                              \
  RT_EXPORT(name)

ONE(one_bf16, rt_mma_bf16(d, a, b))
ONE(one_e4m3, rt_mma_e4m3(d, a, b))
#define FP4(ta, tb) ONE(one_nvfp4_##ta##tb, (rt_mma_nvfp4<0, ta, 0, tb>(d, a, b, p[10], p[11])))
FP4(0, 0) FP4(0, 1) FP4(0, 2) FP4(0, 3) FP4(1, 0) FP4(1, 3)
#define MX(ba, ta, bb, tb) ONE(one_mxf8f4_##ba##ta##bb##tb, (rt_mma_mxf8f4<ba, ta, bb, tb>(d, a, b, p[10], p[11])))
MX(0, 0, 0, 0) MX(1, 0, 2, 1) MX(3, 1, 3, 3)

// ldmatrix of 32 rows of 16 bytes: lane l gives the address of row 5·l mod 32.
template <bool TRANS> RT_FN void ldmatrix(const u32 *in, u32 *out) {
  RT_SMEM(u32, s, 256);
  u32 l = rt_tid(), r[4];
  for (int i = 0; i < 8; i++) s[l * 8 + i] = in[l * 8 + i];
  rt_sync();
  const u32 *row = s + ((l * 5) & 31) * 4;
  if (TRANS) rt_ldmatrix_x4_trans(r, row);
  else rt_ldmatrix_x4(r, row);
  RT_UNROLL
  for (int i = 0; i < 4; i++) out[l * 4 + i] = r[i];
}
RT_KERNEL(one_ldmatrix, 32)(const u32 *in, u32 *out) { ldmatrix<false>(in, out); } RT_EXPORT(one_ldmatrix)
RT_KERNEL(one_ldmatrix_trans, 32)(const u32 *in, u32 *out) { ldmatrix<true>(in, out); } RT_EXPORT(one_ldmatrix_trans)
