// Linear layers: out[r][to + n] = w_n·a_r, or that added to what is there.
//
// The order of a product, whatever the kernel: a block is 32 columns and is summed
// by fused steps in order; eight blocks are a segment and are added in order; so
// are the segments. It depends on the columns alone.
#pragma once
#include "weights.h"

struct Linear {
  Peers out;
  const float *a;  // rows of activations
  const u8 *w;     // the first of n packed rows
  int ld_out, ld_a, n, cols, rows, to, add;
};

static const u32 kSegment = 8;

// dot32 is a block's sum.
RT_FN float dot32(const float w[32], const float *a) {
  float s = 0;
  RT_UNROLL
  for (u32 i = 0; i < 8; i++) {
    f32x4 x = ((const f32x4 *)a)[i];
    RT_UNROLL
    for (u32 k = 0; k < 4; k++) s = rt_fma(w[i * 4 + k], x.v[k], s);
  }
  return s;
}

// few is for few rows: a warp for each row of weights, a lane for each block, R rows
// of activations at once. 8 warps; grid (n/8, rows/R).
template <int T, int R> RT_FN void few(const Linear &p) {
  u32 lane = rt_lane(), n = rt_bid() * 8 + (rt_tid() >> 5), row = rt_bid_y() * R;
  if (n >= (u32)p.n) return;
  const u8 *w = p.w + n * Format<T>::row_bytes(p.cols);
  u32 blocks = p.cols / 32, first = lane & ~(kSegment - 1);
  float total[R], before[R];
  RT_UNROLL
  for (u32 r = 0; r < R; r++) {
    total[r] = 0;
    before[r] = p.add && row + r < (u32)p.rows ? p.out.p[0][(u64)(row + r) * p.ld_out + p.to + n] : 0;
  }
  for (u32 base = 0; base < blocks; base += 32) {
    u32 b = base + lane;
    float x[32];
    if (b < blocks) Format<T>::block(x, w, p.cols, b);
    RT_UNROLL
    for (u32 r = 0; r < R; r++) {
      float s = 0;
      if (b < blocks && row + r < (u32)p.rows) s = dot32(x, p.a + (u64)(row + r) * p.ld_a + b * 32);
      float seg = rt_shfl(s, first);
      RT_UNROLL
      for (u32 j = 1; j < kSegment; j++) {
        float t = rt_shfl(s, first + j);
        if (base + first + j < blocks) seg = seg + t;
      }
      RT_UNROLL
      for (u32 g = 0; g < 32; g += kSegment) {
        float t = rt_shfl(seg, g);
        if (base + g < blocks) total[r] = total[r] + t;
      }
    }
  }
  if (lane < (u32)p.out.n) {
    RT_UNROLL
    for (u32 r = 0; r < R; r++)
      if (row + r < (u32)p.rows) p.out.p[lane][(u64)(row + r) * p.ld_out + p.to + n] = p.add ? before[r] + total[r] : total[r];
  }
}

// many is for many rows: a block computes 64 rows of weights by 32 of activations
// out of shared memory, a thread 4 by 4. 128 threads; grid (n/64, rows/32).
template <int T> RT_FN void many(const Linear &p) {
  RT_SMEM(float, ws, 32 * 68);
  RT_SMEM(float, as, 32 * 36);
  u32 t = rt_tid(), n0 = rt_bid() * 64, r0 = rt_bid_y() * 32, tn = t % 16 * 4, tr = t / 16 * 4;
  float total[4][4], seg[4][4];
  RT_UNROLL
  for (u32 i = 0; i < 16; i++) total[i / 4][i % 4] = seg[i / 4][i % 4] = 0;
  u32 blocks = p.cols / 32;
  for (u32 b = 0; b < blocks; b++) {
    if (t < 64) {
      float w[32];
      if (n0 + t < (u32)p.n) Format<T>::block(w, p.w + (n0 + t) * Format<T>::row_bytes(p.cols), p.cols, b);
      else {
        RT_UNROLL
        for (u32 k = 0; k < 32; k++) w[k] = 0;
      }
      RT_UNROLL
      for (u32 k = 0; k < 32; k++) ws[k * 68 + t] = w[k];
    } else {
      RT_UNROLL
      for (u32 i = 0; i < 4; i++) {
        u32 at = (t - 64) + i * 64, r = at / 8, k = at % 8 * 4;
        f32x4 x = {{0, 0, 0, 0}};
        if (r0 + r < (u32)p.rows) x = *(const f32x4 *)(p.a + (u64)(r0 + r) * p.ld_a + b * 32 + k);
        RT_UNROLL
        for (u32 j = 0; j < 4; j++) as[(k + j) * 36 + r] = x.v[j];
      }
    }
    rt_sync();
    float s[4][4];
    RT_UNROLL
    for (u32 i = 0; i < 16; i++) s[i / 4][i % 4] = 0;
    RT_UNROLL_8
    for (u32 k = 0; k < 32; k++) {
      f32x4 w = *(const f32x4 *)(ws + k * 68 + tn), x = *(const f32x4 *)(as + k * 36 + tr);
      RT_UNROLL
      for (u32 i = 0; i < 16; i++) s[i / 4][i % 4] = rt_fma(w.v[i / 4], x.v[i % 4], s[i / 4][i % 4]);
    }
    bool starts = b % kSegment == 0, ends = b % kSegment == kSegment - 1 || b == blocks - 1;
    RT_UNROLL
    for (u32 i = 0; i < 16; i++) {
      float v = s[i / 4][i % 4];
      v = starts ? v : seg[i / 4][i % 4] + v;
      seg[i / 4][i % 4] = v;
      if (ends) total[i / 4][i % 4] = total[i / 4][i % 4] + v;
    }
    rt_sync();
  }
  RT_UNROLL
  for (u32 i = 0; i < 16; i++) {
    u32 n = n0 + tn + i / 4, r = r0 + tr + i % 4;
    if (n < (u32)p.n && r < (u32)p.rows) {
      u64 at = (u64)r * p.ld_out + p.to + n;
      put(p.out, at, p.add ? p.out.p[0][at] + total[i / 4][i % 4] : total[i / 4][i % 4]);
    }
  }
}

// embed sets row y of x to the table's row of its token. 256 threads; grid (1, rows).
struct Embed {
  float *x;
  const u8 *table;
  const int *tokens;
  int ld, cols;
};
template <int T> RT_FN void embed_rows(const Embed &p) {
  u32 row = rt_bid_y();
  const u8 *w = p.table + (u64)(u32)p.tokens[row] * Format<T>::row_bytes(p.cols);
  for (u32 b = rt_tid(); b < (u32)p.cols / 32; b += 256) {
    float x[32];
    Format<T>::block(x, w, p.cols, b);
    RT_UNROLL
    for (u32 k = 0; k < 32; k++) p.x[(u64)row * p.ld + b * 32 + k] = x[k];
  }
}

// FORMAT makes the kernels of one format, in a source of its own: a driver compiles
// what a model needs and no more.
#define FORMAT(name, T)                                                                          \
  RT_KERNEL(embed_##name, 256)(Embed p) { embed_rows<T>(p); } RT_EXPORT(embed_##name)            \
  RT_KERNEL(linear_one_##name, 256)(Linear p) { few<T, 1>(p); } RT_EXPORT(linear_one_##name)     \
  RT_KERNEL(linear_few_##name, 256)(Linear p) { few<T, 4>(p); } RT_EXPORT(linear_few_##name)     \
  RT_KERNEL(linear_many_##name, 128)(Linear p) { many<T>(p); } RT_EXPORT(linear_many_##name)
