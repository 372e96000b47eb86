// Runs kernels under sanitizers, without a driver: those of bad.cu by name, and, as
// "all", every kernel of the backend on small operands of exact size.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../src/attend.h"
#include "../src/linear.h"

static int run(const std::string &name, std::vector<u32> grid, u32 threads, u32 shared, std::vector<void *> params) {
  cusim_kernel *f = (cusim_kernel *)dlsym(RTLD_DEFAULT, (name + "__sim").c_str());
  if (!f) {
    printf("there is no kernel %s\n", name.c_str());
    exit(2);
  }
  cusim_launch l{};
  for (int i = 0; i < 3; i++) {
    l.grid[i] = grid[i];
    l.block[i] = i ? 1 : threads;
  }
  l.shared_bytes = shared;
  l.params = params.size();
  l.param = params.data();
  int error = f(&l);
  if (error) {
    printf("%s failed: %d\n", name.c_str(), error);
    exit(3);
  }
  return error;
}

// room is n bytes at the end of an allocation, so that one more is noticed. It is
// never freed.
static u8 *room(size_t n, int fill) {
  u8 *p = (u8 *)aligned_alloc(256, (n + 255) / 256 * 256);
  if (n % 256) rt::rt_h_poison(p + n, 256 - n % 256);
  memset(p, fill, n);
  return p;
}
static float *ones(size_t n) {
  float *p = (float *)room(n * 4, 0);
  for (size_t i = 0; i < n; i++) p[i] = 1 + i % 7;
  return p;
}

static void linear(const char *format, u64 row_bytes, u32 cols) {
  const u32 n = 70, rows = 37;
  for (u32 r : {1u, 5u, rows}) {
    Linear p{};
    p.out.p[0] = ones(rows * n);
    p.out.p[1] = ones(rows * n);
    p.out.n = 2;
    p.a = ones(r * cols);
    p.w = room(n * row_bytes, 0x11);
    p.ld_out = n, p.ld_a = cols, p.n = n, p.cols = cols, p.rows = r, p.add = r == 5;
    std::string name = std::string(r == 1 ? "linear_one_" : r == 5 ? "linear_few_" : "linear_many_") + format;
    if (r == rows) run(name, {(n + 63) / 64, (r + 31) / 32, 1}, 128, 0, {&p});
    else run(name, {(n + 7) / 8, (r + 3) / 4, 1}, 256, 0, {&p});
  }
  int tokens[3] = {0, 69, 5};
  Embed e{ones(3 * cols), room(n * row_bytes, 0x11), tokens, (int)cols, (int)cols};
  run(std::string("embed_") + format, {1, 3, 1}, 256, 0, {&e});
}

// The structures of sources that share no header, as llama.cu and pages.cu have them.
struct Norm { float *a; const float *x, *w; const int *rows; float eps; int ld_a, ld_x, cols; };
struct RopeAppend { Cache kv; Rows rows; float *q; const float *k, *v, *rope; int ld_q, ld_kv, head, heads, unit, units; };
struct SwiGLU { Peers a; const float *gate, *up; int ld_a, ld, lo, hi; };
struct ArgMax { const float *x; int *best; int ld, n; };
struct PageCopy { u8 *to; const u8 *from; const u32 *list; u64 bytes; int blocks; };
struct PageDigest { u64 *digests; const u8 *from; const u32 *list; const u64 *seeds; u64 *sums; u64 bytes; };
struct Gemm { const u8 *a, *sa, *b, *sb; float *c; int m, n, k; float alpha; };

static void attention() {
  const u32 units = 2, share = 3, dims = 32, tokens = 16, positions = 140, pages = (positions + tokens - 1) / tokens, heads = units * share;
  u64 page_bytes = 2 * dims * tokens * 4;
  std::vector<u64> unit;
  for (u32 u = 0; u < units; u++) unit.push_back((u64)ones(pages * page_bytes / 4));
  std::vector<int> pos{(int)positions - 1, 3}, seq{0, 0};
  std::vector<u32> first{0}, list;
  for (u32 i = 0; i < pages; i++) list.push_back(pages - 1 - i);
  Cache kv{unit.data(), page_bytes, 0, (int)dims, (int)tokens};
  Rows rows{pos.data(), seq.data(), first.data(), list.data()};
  RopeAppend r{kv, rows, ones(2 * heads * dims), ones(2 * units * dims), ones(2 * units * dims), ones(positions * dims), (int)(heads * dims), (int)(units * dims), 0, (int)heads, 0, (int)units};
  run("rope_append_f32", {2, 1, 1}, 128, 0, {&r});
  u32 blocks = (positions + 63) / 64;
  Attend a{};
  a.out.p[0] = ones(2 * heads * dims);
  a.out.n = 1;
  a.kv = kv, a.rows = rows, a.q = r.q, a.parts = ones(2 * heads * blocks * (dims + 2)), a.scale = 0.1f;
  a.ld_out = a.ld_q = heads * dims, a.heads = heads, a.share = share, a.blocks = blocks;
  run("attend_whole_f32", {heads, 2, 1}, 128, 0, {&a});
  run("attend_parts_f32", {heads, 2, blocks}, 128, 0, {&a});
  run("attend_join", {heads, 2, 1}, 128, 0, {&a});
}

static void gemm(const char *name, u32 row_a, u32 row_b, u32 scales, u32 depth) {
  const u32 m = 65, n = 70;
  u32 k = 2 * depth;
  Gemm p{room(m * 2 * row_a, 0x22), room(m * 2 * scales + 1, 0x38), room(n * 2 * row_b, 0x22), room(n * 2 * scales + 1, 0x38), ones(m * n), (int)m, (int)n, (int)k, 1};
  run(name, {4, 1, 1}, 128, 3 * 64 * (row_a + row_b + 2 * scales), {&p});
}

static void all() {
  linear("f32", Format<F32>::row_bytes(96), 96);
  linear("f16", Format<F16>::row_bytes(96), 96);
  linear("bf16", Format<BF16>::row_bytes(96), 96);
  linear("q4_0", Format<Q4_0>::row_bytes(96), 96);
  linear("q4_1", Format<Q4_1>::row_bytes(96), 96);
  linear("q8_0", Format<Q8_0>::row_bytes(96), 96);
  linear("q6_k", Format<Q6_K>::row_bytes(512), 512);
  int list[2] = {2, 0};
  Norm n{ones(2 * 300), ones(3 * 300), ones(300), list, 1e-5f, 300, 300, 300};
  run("norm", {2, 1, 1}, 256, 0, {&n});
  attention();
  SwiGLU s{};
  s.a.p[0] = ones(2 * 300);
  s.a.n = 1;
  s.gate = ones(2 * 300), s.up = ones(2 * 300), s.ld_a = s.ld = 300, s.lo = 32, s.hi = 300;
  run("swiglu", {2, 2, 1}, 256, 0, {&s});
  int best[2];
  ArgMax a{ones(2 * 300), best, 300, 300};
  run("argmax", {2, 1, 1}, 256, 0, {&a});
  u32 moves[4] = {0, 1, 2, 0};
  PageCopy c{room(2 * 4160, 0), room(3 * 4160, 7), moves, 4160, 2};
  run("page_copy", {2, 2, 1}, 256, 0, {&c});
  u64 digests[2], seeds[2] = {1, 2};
  PageDigest d{digests, room(3 * 4160, 7), moves, seeds, (u64 *)room(2 * 5 * 64, 0), 4160};
  run("page_digest", {2, 1, 1}, 256, 0, {&d});
  gemm("gemm_nvfp4", 64, 64, 8, 128);
  gemm("gemm_w4a8", 128, 64, 4, 128);
  gemm("gemm_e4m3", 128, 128, 0, 128);
  gemm("gemm_bf16", 128, 128, 0, 64);
}

int main(int, char **argv) {
  if (!strcmp(argv[1], "all")) {
    all();
    puts("all: finished");
    return 0;
  }
  float *x = (float *)malloc(512), *y = (float *)malloc(512);
  int n = 128, bad = 0;
  for (int i = 0; i < n; i++) x[i] = i;
  run(argv[1], {1, 1, 1}, 128, 512, {&x, &y, &n});
  for (int i = 0; i < n; i++) bad += y[i] != y[i];
  printf("%s: finished, %d are not a number\n", argv[1], bad);
}
