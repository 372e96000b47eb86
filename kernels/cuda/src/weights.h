// Weights as the packer lays them out: row after row, each a few parts that start
// at multiples of 16 bytes, so that a lane takes the 32 elements of a block in
// whole words.
//
//	F32          elements
//	F16, BF16    elements
//	Q8_0         signed bytes; a binary16 d for each 32
//	Q4_0         16 bytes for each 32: element j in the low half of byte j, j+16 in
//	             the high half; a binary16 d for each 32
//	Q4_1         the same; binary16 d and m for each 32
//	Q6_K         the low 4 bits as in Q4_0; 8 bytes for each 32: the high 2 bits of
//	             element j at bit j/8*2 of byte j%8; a signed byte of scale for
//	             each 16; a binary16 d for each 256
#pragma once
#include "math.h"

enum Type { F32 = 1, F16, BF16, Q4_0, Q4_1, Q8_0, Q6_K };

RT_FN u64 up16(u64 n) { return (n + 15) & ~15ull; }

// Format<T>::block sets w to the 32 elements of block b of a row.
template <int T> struct Format;

template <> struct Format<F32> {
  RT_FN u64 row_bytes(u32 cols) { return up16(4ull * cols); }
  RT_FN void block(float w[32], const u8 *row, u32, u32 b) {
    const f32x4 *p = (const f32x4 *)row + b * 8;
    RT_UNROLL
    for (u32 i = 0; i < 8; i++) {
      f32x4 q = p[i];
      RT_UNROLL
      for (u32 k = 0; k < 4; k++) w[i * 4 + k] = q.v[k];
    }
  }
};

template <bool B> RT_FN void block_halves(float w[32], const u8 *row, u32 b) {
  const u32x4 *p = (const u32x4 *)row + b * 4;
  RT_UNROLL
  for (u32 i = 0; i < 4; i++) {
    u32x4 q = p[i];
    RT_UNROLL
    for (u32 k = 0; k < 8; k++) {
      u16 h = q.v[k / 2] >> (k % 2 * 16);
      w[i * 8 + k] = B ? rt_bf16(h) : rt_f16(h);
    }
  }
}
template <> struct Format<F16> {
  RT_FN u64 row_bytes(u32 cols) { return up16(2ull * cols); }
  RT_FN void block(float w[32], const u8 *row, u32, u32 b) { block_halves<false>(w, row, b); }
};
template <> struct Format<BF16> {
  RT_FN u64 row_bytes(u32 cols) { return up16(2ull * cols); }
  RT_FN void block(float w[32], const u8 *row, u32, u32 b) { block_halves<true>(w, row, b); }
};

template <> struct Format<Q8_0> {
  RT_FN u64 row_bytes(u32 cols) { return up16(cols) + up16(cols / 16); }
  RT_FN void block(float w[32], const u8 *row, u32 cols, u32 b) {
    float d = rt_f16(((const u16 *)(row + up16(cols)))[b]);
    const u32x4 *p = (const u32x4 *)row + b * 2;
    RT_UNROLL
    for (u32 i = 0; i < 2; i++) {
      u32x4 q = p[i];
      RT_UNROLL
      for (u32 k = 0; k < 16; k++) w[i * 16 + k] = d * (float)(i8)(q.v[k / 4] >> (k % 4 * 8));
    }
  }
};

// nibble is 4-bit number j of a block of 32.
RT_FN int nibble(const u32x4 &q, u32 j) { return q.v[j % 16 / 4] >> (j % 4 * 8 + j / 16 * 4) & 15; }

template <> struct Format<Q4_0> {
  RT_FN u64 row_bytes(u32 cols) { return up16(cols / 2) + up16(cols / 16); }
  RT_FN void block(float w[32], const u8 *row, u32 cols, u32 b) {
    float d = rt_f16(((const u16 *)(row + up16(cols / 2)))[b]);
    u32x4 q = ((const u32x4 *)row)[b];
    RT_UNROLL
    for (u32 j = 0; j < 32; j++) w[j] = d * (float)(nibble(q, j) - 8);
  }
};

template <> struct Format<Q4_1> {
  RT_FN u64 row_bytes(u32 cols) { return up16(cols / 2) + up16(cols / 8); }
  RT_FN void block(float w[32], const u8 *row, u32 cols, u32 b) {
    u32 dm = ((const u32 *)(row + up16(cols / 2)))[b];
    float d = rt_f16((u16)dm), m = rt_f16((u16)(dm >> 16));
    u32x4 q = ((const u32x4 *)row)[b];
    RT_UNROLL
    for (u32 j = 0; j < 32; j++) w[j] = d * (float)nibble(q, j) + m;  // the product is exact
  }
};

template <> struct Format<Q6_K> {
  RT_FN u64 row_bytes(u32 cols) { return up16(cols / 2) + up16(cols / 4) + up16(cols / 16) + up16(cols / 128); }
  RT_FN void block(float w[32], const u8 *row, u32 cols, u32 b) {
    u32x4 q = ((const u32x4 *)row)[b];
    row += up16(cols / 2);
    u32x2 h = ((const u32x2 *)row)[b];
    row += up16(cols / 4);
    float s0 = (float)((const i8 *)row)[b * 2], s1 = (float)((const i8 *)row)[b * 2 + 1];
    row += up16(cols / 16);
    float d = rt_f16(((const u16 *)row)[b / 8]);
    s0 = d * s0;
    s1 = d * s1;
    RT_UNROLL
    for (u32 j = 0; j < 32; j++) {
      int v = nibble(q, j) | (h.v[j % 8 / 4] >> (j % 4 * 8 + j / 8 * 2) & 3) << 4;
      w[j] = (j < 16 ? s0 : s1) * (float)(v - 32);
    }
  }
};
