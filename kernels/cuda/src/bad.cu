// Kernels that are wrong on purpose, for scripts/sanitize-kernels: each says who must
// notice. 128 threads, one block, 512 bytes of dynamic shared memory; x and y have 128
// elements.
#include "rt.h"

#define BAD(name) RT_KERNEL(name, 128)(const float *x, float *y, int n)

BAD(fine) {  // nobody
  RT_SMEM(float, s, 128);
  u32 t = rt_tid();
  s[t] = (int)t < n ? x[t] : 0;
  rt_sync();
  float v = s[127 - t];
  rt_sync();
  s[t] = v;
  rt_sync();
  y[t] = s[t ^ 1];
}
RT_EXPORT(fine)

// ASan:
BAD(beyond_global_read) { y[rt_tid()] = x[rt_tid() + 1]; }
RT_EXPORT(beyond_global_read)
BAD(beyond_global_write) { y[rt_tid() + (rt_tid() == 127)] = x[rt_tid()]; }
RT_EXPORT(beyond_global_write)
BAD(beyond_static_shared) {
  RT_SMEM(float, s, 128);
  s[rt_tid() + 1] = x[rt_tid()];
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
}
RT_EXPORT(beyond_static_shared)
BAD(beyond_dynamic_shared) {
  float *s = (float *)rt_dynsmem();
  s[rt_tid() + (rt_tid() == 127)] = x[rt_tid()];
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
}
RT_EXPORT(beyond_dynamic_shared)
BAD(beyond_cp_async) {
  float *s = (float *)rt_dynsmem();
  if (rt_tid() < 32) rt_cp_async<16>(s + rt_tid() * 4, x + rt_tid() * 4 + 4, true);
  rt_cp_commit();
  rt_cp_wait<0>();
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
}
RT_EXPORT(beyond_cp_async)

// TSan:
BAD(race_shared) {
  RT_SMEM(float, s, 128);
  s[rt_tid()] = x[rt_tid()];
  y[rt_tid()] = s[127 - rt_tid()];
}
RT_EXPORT(race_shared)
BAD(race_in_warp) {
  RT_SMEM(float, s, 128);
  s[rt_tid()] = x[rt_tid()];
  y[rt_tid()] = s[rt_tid() ^ 1];
}
RT_EXPORT(race_in_warp)
BAD(race_global) { y[rt_tid() & 63] = x[rt_tid()]; }
RT_EXPORT(race_global)
BAD(race_after_barrier) {  // the last to the barrier is the first to write
  RT_SMEM(float, s, 128);
  s[rt_tid()] = x[rt_tid()];
  rt_sync();
  float v = s[127 - rt_tid()];
  s[rt_tid()] = v;
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
}
RT_EXPORT(race_after_barrier)
BAD(race_ldmatrix) {
  RT_SMEM(float, s, 1024);
  for (int i = 0; i < 8; i++) s[rt_tid() * 8 + i] = x[rt_tid()];
  u32 r[4];
  rt_ldmatrix_x4(r, s + (rt_lane() + 32) * 4);
  y[rt_tid()] = (float)r[0];
}
RT_EXPORT(race_ldmatrix)
BAD(race_cp_async) {
  float *s = (float *)rt_dynsmem();
  if (rt_tid() < 32) rt_cp_async<16>(s + rt_tid() * 4, x + rt_tid() * 4, true);
  rt_cp_commit();
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
  rt_cp_wait<0>();
}
RT_EXPORT(race_cp_async)

// The emulation itself:
BAD(divergent_barrier) {
  if (rt_tid() < 16) rt_sync();
  y[rt_tid()] = (float)rt_shfl_xor_u32(rt_tid(), 1);
}
RT_EXPORT(divergent_barrier)
BAD(divergent_warp) {
  RT_SMEM(float, s, 1024);
  u32 r[4];
  if (rt_tid() & 1) (void)rt_shfl_xor_u32(rt_tid(), 1);
  else rt_ldmatrix_x4(r, s);
  y[rt_tid()] = 0;
}
RT_EXPORT(divergent_warp)
BAD(misaligned) {
  RT_SMEM(float, s, 1024);
  u32 r[4];
  rt_ldmatrix_x4(r, s + rt_lane() * 4 + 1);
  y[rt_tid()] = (float)r[0];
}
RT_EXPORT(misaligned)

// UBSan:
BAD(shift_too_far) { y[rt_tid()] = (float)(1 << (n - 96 + rt_tid())); }
RT_EXPORT(shift_too_far)

// Whoever looks at the numbers: 28 are not any.
BAD(unwritten_shared) {
  float *s = (float *)rt_dynsmem();
  if (rt_tid() < 100) s[rt_tid()] = x[rt_tid()];
  rt_sync();
  y[rt_tid()] = s[rt_tid()];
}
RT_EXPORT(unwritten_shared)
