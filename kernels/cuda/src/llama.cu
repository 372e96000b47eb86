// The operations of kernels.Backend for the Llama family that do not touch weights of
// many formats, in float32. Each kernel takes one structure. No result depends on the
// shape of the grid.
#include "attend.h"

// norm sets row i of a to RMSNorm(x_r)·w, where r is rows[i], or i without rows.
// 256 threads; grid (rows). The sum of squares is a fixed tree over 256 strides.
struct Norm {
  float *a;
  const float *x, *w;
  const int *rows;
  float eps;
  int ld_a, ld_x, cols;
};
RT_KERNEL(norm, 256)(Norm p) {
  RT_SMEM(float, sums, 8);
  u32 t = rt_tid(), i = rt_bid();
  const float *x = p.x + (u64)(p.rows ? p.rows[i] : (int)i) * p.ld_x;
  float s = 0;
  for (u32 c = t; c < (u32)p.cols; c += 256) s = rt_fma(x[c], x[c], s);
  s = sum_warp(s);
  if (rt_lane() == 0) sums[t / 32] = s;
  rt_sync();
  s = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  float scale = rt_div(1, rt_sqrt(rt_div(s, (float)p.cols) + p.eps));
  for (u32 c = t; c < (u32)p.cols; c += 256) p.a[(u64)i * p.ld_a + c] = x[c] * scale * p.w[c];
}
RT_EXPORT(norm)

// rope_append rotates heads of q and units of k, and appends k and v of those units
// to the cache. 128 threads; grid (rows).
struct RopeAppend {
  Cache kv;
  Rows rows;
  float *q;
  const float *k, *v, *rope;
  int ld_q, ld_kv, head, heads, unit, units;
};
RT_FN void rotate(float &x, float &y, const float *turn) {
  float c = turn[0], s = turn[1], a = x, b = y;
  x = a * c - b * s;
  y = b * c + a * s;
}
template <class E> RT_FN void rope_append(const RopeAppend &p) {
  u32 row = rt_bid(), pos = p.rows.pos[row], dims = p.kv.head_dim, tokens = p.kv.page_tokens, pairs = dims / 2;
  const float *rope = p.rope + (u64)pos * dims;
  for (u32 i = rt_tid(); i < p.heads * pairs; i += 128) {
    float *x = p.q + (u64)row * p.ld_q + p.head * dims + i * 2;
    rotate(x[0], x[1], rope + i % pairs * 2);
  }
  u32 page = p.rows.pages[p.rows.first[p.rows.seq[row]] + pos / tokens];
  for (u32 i = rt_tid(); i < p.units * pairs; i += 128) {
    u32 unit = p.unit + i / pairs, d = i % pairs * 2;
    u64 from = (u64)row * p.ld_kv + unit * dims + d;
    float x = p.k[from], y = p.k[from + 1];
    rotate(x, y, rope + d);
    E *k = (E *)cell<E>(p.kv, unit, page, 0) + pos % tokens;
    store(k + (u64)d * tokens, x);
    store(k + (u64)(d + 1) * tokens, y);
    E *v = (E *)cell<E>(p.kv, unit, page, 1) + (u64)(pos % tokens) * dims + d;
    store(v, p.v[from]);
    store(v + 1, p.v[from + 1]);
  }
}
RT_KERNEL(rope_append_f32, 128)(RopeAppend p) { rope_append<float>(p); } RT_EXPORT(rope_append_f32)
RT_KERNEL(rope_append_f16, 128)(RopeAppend p) { rope_append<half>(p); } RT_EXPORT(rope_append_f16)

RT_KERNEL(attend_whole_f32, 128)(Attend p) { attend_whole<float>(p); } RT_EXPORT(attend_whole_f32)
RT_KERNEL(attend_whole_f16, 128)(Attend p) { attend_whole<half>(p); } RT_EXPORT(attend_whole_f16)
RT_KERNEL(attend_parts_f32, 128)(Attend p) { attend_parts<float>(p); } RT_EXPORT(attend_parts_f32)
RT_KERNEL(attend_parts_f16, 128)(Attend p) { attend_parts<half>(p); } RT_EXPORT(attend_parts_f16)
RT_KERNEL(attend_join, 128)(Attend p) { join(p); } RT_EXPORT(attend_join)

// swiglu sets columns [lo, hi) of a to silu(gate)·up. 256 threads; grid (columns, rows).
struct SwiGLU {
  Peers a;
  const float *gate, *up;
  int ld_a, ld, lo, hi;
};
RT_KERNEL(swiglu, 256)(SwiGLU p) {
  u32 row = rt_bid_y(), c = p.lo + rt_bid() * 256 + rt_tid();
  if (c >= (u32)p.hi) return;
  float g = p.gate[(u64)row * p.ld + c];
  put(p.a, (u64)row * p.ld_a + c, rt_div(g, 1.f + exp_(-g)) * p.up[(u64)row * p.ld + c]);
}
RT_EXPORT(swiglu)

// argmax finds the largest of each row's n logits, the lowest of equals, and -1
// where none is a number. 256 threads; grid (rows).
struct ArgMax {
  const float *x;
  int *best;
  int ld, n;
};
// better is whether (v, i) comes before (w, j); i or j is -1 for nothing.
RT_FN bool better(float v, int i, float w, int j) { return i >= 0 && (j < 0 || v > w || (v == w && i < j)); }
RT_KERNEL(argmax, 256)(ArgMax p) {
  RT_SMEM(float, tops, 8);
  RT_SMEM(int, ats, 8);
  u32 t = rt_tid();
  const float *x = p.x + (u64)rt_bid() * p.ld;
  float top = 0;
  int at = -1;
  for (u32 i = t; i < (u32)p.n; i += 256) {
    float v = x[i];
    if (v == v && better(v, i, top, at)) top = v, at = i;
  }
  RT_UNROLL
  for (u32 m = 16; m; m >>= 1) {
    float v = rt_shfl_xor(top, m);
    int i = (int)rt_shfl_xor_u32((u32)at, m);
    if (better(v, i, top, at)) top = v, at = i;
  }
  if (rt_lane() == 0) tops[t / 32] = top, ats[t / 32] = at;
  rt_sync();
  if (t == 0) {
    for (u32 w = 1; w < 8; w++)
      if (better(tops[w], ats[w], top, at)) top = tops[w], at = ats[w];
    p.best[rt_bid()] = at;
  }
}
RT_EXPORT(argmax)

// meet waits until all ranks of a team came as far: each writes the number of its
// meetings to its word of host memory and looks at the others'. It gives up when a
// rank set the abort word or when patience ends, and then sets that word itself;
// failed is this rank's to read. 32 threads, one block.
struct Meet {
  u32 *words;  // one for each rank, 64 bytes apart; the abort word after them
  u32 *failed;
  u64 patience;  // nanoseconds
  u32 rank, size, meeting;
};
RT_KERNEL(meet, 32)(Meet p) {
  u32 t = rt_tid();
  if (t >= p.size) return;
  u32 *abort = p.words + p.size * 16;
  if (t == p.rank) {
    rt_fence_system();
    rt_release(p.words + t * 16, p.meeting);
  }
  u64 start = rt_nanoseconds();
  while ((int)(rt_acquire(p.words + t * 16) - p.meeting) < 0) {
    if (rt_acquire(abort) || rt_nanoseconds() - start > p.patience) {
      rt_release(abort, 1);
      rt_release(p.failed, 1);
      return;
    }
    rt_pause();
  }
}
RT_EXPORT(meet)
