// Arithmetic that is the same, bit for bit, on a card and on the host.
#pragma once
#include "rt.h"

struct alignas(16) f32x4 { float v[4]; };
struct alignas(16) u32x4 { u32 v[4]; };
struct alignas(8) u32x2 { u32 v[2]; };

// exp_ is e^x within 1.5 units in the last place, 0 below -104, infinite above 88.73.
RT_FN float exp_(float x) {
  if (x > 88.73f) return rt_float(0x7f800000);
  if (x < -104.f) return 0;
  float n = x * 1.44269504f + 12582912.f;  // whole: the last bits of the sum are
  n = n - 12582912.f;
  float r = rt_fma(n, -0.693359375f, x);
  r = rt_fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = rt_fma(p, r, 1.3981999507e-3f);
  p = rt_fma(p, r, 8.3334519073e-3f);
  p = rt_fma(p, r, 4.1665795894e-2f);
  p = rt_fma(p, r, 1.6666665459e-1f);
  p = rt_fma(p, r, 5.0000001201e-1f);
  p = rt_fma(p * r, r, r) + 1.f;
  if (!(x == x)) return x;
  int k = (int)n, h = k >> 1;
  return p * rt_float((u32)(h + 127) << 23) * rt_float((u32)(k - h + 127) << 23);
}

// sum_warp and max_warp: the same value in all lanes, in a fixed order.
RT_FN float sum_warp(float v) {
  RT_UNROLL
  for (u32 m = 16; m; m >>= 1) v = v + rt_shfl_xor(v, m);
  return v;
}
RT_FN float max_warp(float v) {
  RT_UNROLL
  for (u32 m = 16; m; m >>= 1) {
    float w = rt_shfl_xor(v, m);
    v = w > v ? w : v;
  }
  return v;
}

// Peers is where a result is written: the rank's own memory first, then that of
// the ranks that read it.
struct Peers {
  float *p[8];
  int n;
};
RT_FN void put(const Peers &out, u64 at, float v) {
  for (int i = 0; i < out.n; i++) out.p[i][at] = v;
}
