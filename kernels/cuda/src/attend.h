// Attention over pages. The cache of a unit is an array of pages; of a page, each
// layer has its keys as [dimension][token], so that lanes read neighbouring tokens,
// then its values as [token][dimension]. E is the element: float or binary16.
//
// The order, whatever the kernel: a block is 64 positions. In a block, a score is
// the sum over the lower half of the dimensions plus that over the upper half, each
// in order; the weights are e^(score − largest score of the block); their sum is a
// fixed tree; a dimension of the result is the sum over positions in order. Blocks
// are folded from the first to the last.
#pragma once
#include "math.h"

typedef u16 half;
RT_FN float load(const float *p) { return *p; }
RT_FN float load(const half *p) { return rt_f16(*p); }
RT_FN void store(float *p, float v) { *p = v; }
RT_FN void store(half *p, float v) { *p = rt_to_f16(v); }

struct Cache {
  const u64 *units;  // where each unit's pages are, 0 for other ranks'
  u64 page_bytes;
  int layer, head_dim, page_tokens;
};

// Rows says which token a row is.
struct Rows {
  const int *pos, *seq;
  const u32 *first;  // of each sequence's pages in pages
  const u32 *pages;
};

struct Attend {
  Peers out;
  Cache kv;
  Rows rows;
  const float *q;
  float *parts;  // [row][head][block][largest, sum, result]
  float scale;
  int ld_out, ld_q, head, heads, share, blocks;  // heads from head on; share of them read one unit
};

static const u32 kBlock = 64, kAttendThreads = 128, kMostDim = 256;

template <class E> RT_FN const E *cell(const Cache &c, u32 unit, u32 page, u32 kind) {
  return (const E *)(c.units[unit] + page * c.page_bytes) + (u64)(c.layer * 2 + kind) * c.head_dim * c.page_tokens;
}

// A Part is what attention over some positions comes to: the largest score, the sum
// of weights and the thread's dimensions of the result.
struct Part {
  float top, sum, v[kMostDim / kAttendThreads];
};

// fold makes a the part of its positions and b's, which come after.
RT_FN void fold(Part &a, const Part &b) {
  float top = b.top > a.top ? b.top : a.top;
  float x = exp_(a.top - top), y = exp_(b.top - top);
  a.top = top;
  a.sum = rt_fma(a.sum, x, b.sum * y);
  RT_UNROLL
  for (u32 i = 0; i < kMostDim / kAttendThreads; i++) a.v[i] = rt_fma(a.v[i], x, b.v[i] * y);
}

// attend_block computes one block of one head for all threads together.
template <class E> RT_FN Part attend_block(const Attend &p, const u32 *pages, const float *q, u32 unit, u32 block, u32 n) {
  RT_SMEM(float, halves, 2 * kBlock);
  RT_SMEM(float, weights, kBlock);
  RT_SMEM(float, pair, 4);
  u32 t = rt_tid(), at = t % kBlock, upper = t / kBlock, dims = p.kv.head_dim, tokens = p.kv.page_tokens;
  u32 pos = block * kBlock + at;
  float s = 0;
  if (at < n) {
    const E *k = cell<E>(p.kv, unit, pages[pos / tokens], 0) + pos % tokens;
    for (u32 d = upper * (dims / 2), end = d + dims / 2; d < end; d++) s = rt_fma(q[d], load(k + (u64)d * tokens), s);
  }
  halves[t] = s;
  rt_sync();
  float score = rt_float(0xff800000);
  if (at < n) score = (halves[at] + halves[kBlock + at]) * p.scale;
  float top = max_warp(score);
  if (rt_lane() == 0 && t < kBlock) pair[t / 32] = top;
  rt_sync();
  top = pair[1] > pair[0] ? pair[1] : pair[0];
  float w = at < n ? exp_(score - top) : 0;
  float sum = sum_warp(w);
  if (t < kBlock) {
    weights[at] = w;
    if (rt_lane() == 0) pair[2 + t / 32] = sum;
  }
  rt_sync();
  Part r;
  r.top = top;
  r.sum = pair[2] + pair[3];
  RT_UNROLL
  for (u32 i = 0; i < kMostDim / kAttendThreads; i++) {
    u32 d = i * kAttendThreads + t;
    r.v[i] = 0;
    if (d < dims) {
      float v = 0;
      for (u32 k = 0; k < n;) {
        u32 from = block * kBlock + k, many = tokens - from % tokens;
        if (many > n - k) many = n - k;
        const E *x = cell<E>(p.kv, unit, pages[from / tokens], 1) + (u64)(from % tokens) * dims + d;
        for (u32 j = 0; j < many; j++) v = rt_fma(weights[k + j], load(x + (u64)j * dims), v);
        k += many;
      }
      r.v[i] = v;
    }
  }
  rt_sync();
  return r;
}

RT_FN void finish(const Attend &p, u32 row, u32 head, const Part &a) {
  RT_UNROLL
  for (u32 i = 0; i < kMostDim / kAttendThreads; i++) {
    u32 d = i * kAttendThreads + rt_tid();
    if (d < (u32)p.kv.head_dim) put(p.out, (u64)row * p.ld_out + head * p.kv.head_dim + d, rt_div(a.v[i], a.sum));
  }
}

// query copies a head of a row to shared memory.
RT_FN void query(float *q, const Attend &p, u32 row, u32 head) {
  for (u32 d = rt_tid(); d < (u32)p.kv.head_dim; d += kAttendThreads) q[d] = p.q[(u64)row * p.ld_q + head * p.kv.head_dim + d];
  rt_sync();
}

RT_FN u32 in_block(u32 positions, u32 block) {
  u32 n = positions - block * kBlock;
  return n < kBlock ? n : kBlock;
}

// attend_whole: a block of threads for each head (x) of each row (y).
template <class E> RT_FN void attend_whole(const Attend &p) {
  RT_SMEM(float, q, kMostDim);
  u32 head = p.head + rt_bid(), row = rt_bid_y(), positions = p.rows.pos[row] + 1;
  const u32 *pages = p.rows.pages + p.rows.first[p.rows.seq[row]];
  query(q, p, row, head);
  Part a = attend_block<E>(p, pages, q, head / p.share, 0, in_block(positions, 0));
  for (u32 b = 1; b * kBlock < positions; b++) fold(a, attend_block<E>(p, pages, q, head / p.share, b, in_block(positions, b)));
  finish(p, row, head, a);
}

// attend_parts: for each head (x) of each row (y), its blocks (z) apart.
template <class E> RT_FN void attend_parts(const Attend &p) {
  RT_SMEM(float, q, kMostDim);
  u32 head = p.head + rt_bid(), row = rt_bid_y(), block = rt_bid_z(), positions = p.rows.pos[row] + 1, dims = p.kv.head_dim;
  if (block * kBlock >= positions) return;
  const u32 *pages = p.rows.pages + p.rows.first[p.rows.seq[row]];
  query(q, p, row, head);
  Part a = attend_block<E>(p, pages, q, head / p.share, block, in_block(positions, block));
  float *to = p.parts + (((u64)row * p.heads + rt_bid()) * p.blocks + block) * (dims + 2);
  if (rt_tid() == 0) {
    to[0] = a.top;
    to[1] = a.sum;
  }
  RT_UNROLL
  for (u32 i = 0; i < kMostDim / kAttendThreads; i++) {
    u32 d = i * kAttendThreads + rt_tid();
    if (d < dims) to[2 + d] = a.v[i];
  }
}

// attend_join folds what attend_parts left, for each head (x) of each row (y).
RT_FN void join(const Attend &p) {
  u32 head = p.head + rt_bid(), row = rt_bid_y(), positions = p.rows.pos[row] + 1, dims = p.kv.head_dim;
  const float *from = p.parts + ((u64)row * p.heads + rt_bid()) * p.blocks * (dims + 2);
  Part a, b;
  for (u32 k = 0; k * kBlock < positions; k++, from += dims + 2) {
    Part &x = k ? b : a;
    x.top = from[0];
    x.sum = from[1];
    RT_UNROLL
    for (u32 i = 0; i < kMostDim / kAttendThreads; i++) {
      u32 d = i * kAttendThreads + rt_tid();
      x.v[i] = d < dims ? from[2 + d] : 0;
    }
    if (k) fold(a, b);
  }
  finish(p, row, head, a);
}
