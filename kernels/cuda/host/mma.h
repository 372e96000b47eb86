// What a warp-wide instruction does, as a function of the registers of its 32
// lanes, after the PTX ISA ("Matrix fragments for mma", "Block scaling for
// mma.sync"). Words of a lane: 0–3 A, 4–5 B, 6–9 C, 10 and 11 the scales of A and
// B; of the result: 0–3 D.
//
// Products are exact, sums are in double, and D is rounded once. Tensor cores
// round and cut off inside, so a card is compared with a tolerance.
#pragma once

static inline float emu_float(u32 u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
static inline u32 emu_bits(float f) { u32 u; __builtin_memcpy(&u, &f, 4); return u; }

static inline double emu_bf16(u32 h) { return emu_float(h << 16); }
static inline double emu_e2m1(u32 x) {
  static const double t[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return x & 8 ? -t[x & 7] : t[x & 7];
}
static inline double emu_e4m3(u32 x) {
  u32 e = x >> 3 & 15, m = x & 7;
  if ((x & 0x7f) == 0x7f) return NAN;
  double v = e ? std::ldexp(8 + m, (int)e - 10) : std::ldexp(m, -9);
  return x & 0x80 ? -v : v;
}
static inline double emu_ue4m3(u32 x) { return emu_e4m3(x & 0x7f); }
static inline double emu_ue8m0(u32 x) { return x == 255 ? NAN : std::ldexp(1.0, (int)x - 127); }
// In the 8-bit kinds an e2m1 lies in bits 2 to 5 of its byte.
static inline double emu_e2m1_slot(u32 x) { return emu_e2m1(x >> 2 & 15); }

// D and C: row lane/4 (+8 in registers 2 and 3), column lane%4·2 + (register&1).
template <int K> static inline void emu_store(const double A[16][K], const double B[8][K], const u32 in[32][16], u32 out[32][16]) {
  for (u32 l = 0; l < 32; l++)
    for (u32 r = 0; r < 4; r++) {
      u32 m = (l >> 2) + (r >> 1) * 8, n = (l & 3) * 2 + (r & 1);
      double s = 0;
      for (int k = 0; k < K; k++) s += A[m][k] * B[n][k];
      out[l][r] = emu_bits((float)(s + emu_float(in[l][6 + r])));
    }
}

// A's rows of 32 bytes lie over a quad of lanes: register i holds row lane/4 (+8 if
// i&1), bytes lane%4·4 (+16 if i&2); B likewise by columns. So for all widths.
template <int K, int BITS, class DEC> static inline void emu_ab(double A[16][K], double B[8][K], const u32 in[32][16], DEC da, DEC db) {
  const u32 E = 32 / BITS, MASK = (1u << BITS) - 1;
  for (u32 l = 0; l < 32; l++) {
    u32 g = l >> 2, t = l & 3;
    for (u32 i = 0; i < 4; i++)
      for (u32 e = 0; e < E; e++) A[g + (i & 1) * 8][t * E + e + (i >> 1) * (K / 2)] = da(in[l][i] >> (e * BITS) & MASK);
    for (u32 i = 0; i < 2; i++)
      for (u32 e = 0; e < E; e++) B[g][t * E + e + i * (K / 2)] = db(in[l][4 + i] >> (e * BITS) & MASK);
  }
}

static void emu_mma_bf16_m16n8k16(const u32 in[32][16], u32 out[32][16]) {
  double A[16][16], B[8][16];
  emu_ab<16, 16>(A, B, in, emu_bf16, emu_bf16);
  emu_store<16>(A, B, in, out);
}
static void emu_mma_e4m3_m16n8k32(const u32 in[32][16], u32 out[32][16]) {
  double A[16][32], B[8][32];
  emu_ab<32, 8>(A, B, in, emu_e4m3, emu_e4m3);
  emu_store<32>(A, B, in, out);
}

// Scales. TA picks a pair of each quad's lanes: row m's scale is in lane
// 4·(m%8) + 2·TA + m/8. TB picks a lane of each: column n's is in lane 4·n + TB.
static inline u32 emu_scale_a(u32 m, u32 TA) { return 4 * (m & 7) + 2 * TA + (m >> 3); }
static inline u32 emu_scale_b(u32 n, u32 TB) { return 4 * n + TB; }

// 4X: byte j scales elements 16j to 16j+15.
template <int TA, int TB> static void emu_mma_nvfp4_m16n8k64(const u32 in[32][16], u32 out[32][16]) {
  double A[16][64], B[8][64];
  emu_ab<64, 4>(A, B, in, emu_e2m1, emu_e2m1);
  for (u32 m = 0; m < 16; m++)
    for (u32 k = 0; k < 64; k++) A[m][k] *= emu_ue4m3(in[emu_scale_a(m, TA)][10] >> (k / 16 * 8) & 255);
  for (u32 n = 0; n < 8; n++)
    for (u32 k = 0; k < 64; k++) B[n][k] *= emu_ue4m3(in[emu_scale_b(n, TB)][11] >> (k / 16 * 8) & 255);
  emu_store<64>(A, B, in, out);
}
// 1X: one byte for all 32 elements.
template <int BA, int TA, int BB, int TB> static void emu_mma_mxf8f4_m16n8k32(const u32 in[32][16], u32 out[32][16]) {
  double A[16][32], B[8][32];
  emu_ab<32, 8>(A, B, in, emu_e4m3, emu_e2m1_slot);
  for (u32 m = 0; m < 16; m++)
    for (u32 k = 0; k < 32; k++) A[m][k] *= emu_ue8m0(in[emu_scale_a(m, TA)][10] >> (BA * 8) & 255);
  for (u32 n = 0; n < 8; n++)
    for (u32 k = 0; k < 32; k++) B[n][k] *= emu_ue8m0(in[emu_scale_b(n, TB)][11] >> (BB * 8) & 255);
  emu_store<32>(A, B, in, out);
}

static void emu_shfl_xor(const u32 in[32][16], u32 out[32][16]) {
  for (u32 l = 0; l < 32; l++) out[l][0] = in[l ^ (in[l][1] & 31)][0];
}
static void emu_shfl(const u32 in[32][16], u32 out[32][16]) {
  for (u32 l = 0; l < 32; l++) out[l][0] = in[in[l][1] & 31][0];
}
