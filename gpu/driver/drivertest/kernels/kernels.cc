// The kernels of kernels.ptx, for a simulated driver.
#include "kernel.h"

#include <cstring>
#include <vector>

template <class T> static T arg(const cusim_launch *l, int i) {
  T v;
  memcpy(&v, l->param[i], sizeof v);
  return v;
}

static uint32_t threads(const cusim_launch *l) { return l->grid[0] * l->block[0]; }

extern "C" {

uint32_t counter;

int count__sim(const cusim_launch *l) {
  auto *out = arg<uint32_t *>(l, 0);
  uint32_t first = arg<uint32_t>(l, 1), n = arg<uint32_t>(l, 2);
  for (uint32_t i = 0; i < threads(l) && i < n; i++) out[i] = first + i;
  return 0;
}

int scale__sim(const cusim_launch *l) {
  auto *out = arg<float *>(l, 0), *in = arg<float *>(l, 1);
  float k = arg<float>(l, 2);
  uint32_t n = arg<uint32_t>(l, 3);
  for (uint32_t i = 0; i < threads(l) && i < n; i++) out[i] = in[i] * k;
  return 0;
}

int mixed__sim(const cusim_launch *l) {
  auto *out = arg<uint32_t *>(l, 5);
  out[0] = arg<uint8_t>(l, 0) + arg<uint16_t>(l, 1) * 256 + arg<uint32_t>(l, 2) * 65536;
  memcpy(&out[1], (char *)l->param[3] + 20, 4);
  memcpy(&out[2], l->param[4], 4);
  return 0;
}

int share__sim(const cusim_launch *l) {
  std::vector<uint32_t> mine(l->shared_bytes / 4);
  uint32_t n = arg<uint32_t>(l, 1) / 4, sum = 0;
  if (n > mine.size()) return 700;
  for (uint32_t i = 0; i < n; i++) mine[i] = i * 4;
  for (uint32_t i = 0; i < n; i++) sum += mine[i];
  *arg<uint32_t *>(l, 0) = sum;
  return 0;
}

int bump__sim(const cusim_launch *) {
  counter++;
  return 0;
}

int astray__sim(const cusim_launch *) {
  *(volatile uint32_t *)64 = 1;
  return 0;
}
}
