// Pages of the KV cache as bytes: copying them, and their digests.
#include "math.h"

// page_copy copies page list[2i] of from to page list[2i+1] of to, for page i of the
// grid's y. A page is bytes long, a multiple of 16. 256 threads; grid (any, pages).
struct PageCopy {
  u8 *to;
  const u8 *from;
  const u32 *list;
  u64 bytes;
  int blocks;  // the grid's x
};
RT_KERNEL(page_copy, 256)(PageCopy p) {
  u32 from = p.list[2 * rt_bid_y()], to = p.list[2 * rt_bid_y() + 1];
  const u32x4 *s = (const u32x4 *)(p.from + from * p.bytes);
  u32x4 *d = (u32x4 *)(p.to + to * p.bytes);
  for (u64 i = rt_bid() * 256 + rt_tid(); i < p.bytes / 16; i += (u64)p.blocks * 256) d[i] = s[i];
}
RT_EXPORT(page_copy)

// page_digest is the XXH3 digest, seeded, of whole pages: what share.Digest computes.
// A page has more than 240 bytes, a multiple of 64. XXH3 sums stripes of 64 bytes in
// 8 lanes; after 16 stripes the lanes are scrambled. The sums of 16 stripes depend on
// nothing before them, so threads compute them apart, and a lane then takes them
// through the scrambling in order. 256 threads; grid (pages).
struct PageDigest {
  u64 *digests;
  const u8 *from;
  const u32 *list;   // page numbers
  const u64 *seeds;  // of each
  u64 *sums;         // [pages][groups of 16 stripes, rounded up][8]
  u64 bytes;
};
static const u64 kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
static const u64 kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9,
                 kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;

// The default secret, 192 bytes.
RT_CONST u64 kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

RT_FN u64 fold64(u64 a, u64 b) { return (a * b) ^ rt_mulhi(a, b); }

RT_KERNEL(page_digest, 256)(PageDigest p) {
  RT_SMEM(u64, secret, 24);
  RT_SMEM(u64, acc, 8);
  u32 t = rt_tid(), page = rt_bid();
  u64 seed = p.seeds[page];
  if (t < 24) secret[t] = kSecret[t] + (t % 2 ? 0 - seed : seed);
  rt_sync();
  const u64 *x = (const u64 *)(p.from + p.list[page] * p.bytes);
  u64 stripes = (p.bytes - 1) / 64;  // but for the last 64 bytes, which are taken otherwise
  u64 groups = stripes / 16, all = (stripes + 15) / 16;
  u64 *sums = p.sums + page * (p.bytes / 1024 + 1) * 8;
  for (u64 i = t; i < all * 8; i += 256) {
    u64 g = i / 8, lane = i % 8, n = stripes - g * 16 < 16 ? stripes - g * 16 : 16, sum = 0;
    for (u64 s = 0; s < n; s++) {
      const u64 *stripe = x + (g * 16 + s) * 8;
      u64 key = stripe[lane] ^ secret[s + lane];
      sum += stripe[lane ^ 1] + (u64)(u32)key * (key >> 32);
    }
    sums[i] = sum;
  }
  rt_sync();
  if (t < 8) {
    const u64 start[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
    u64 a = 0;
    RT_UNROLL
    for (u32 i = 0; i < 8; i++) a = t == i ? start[i] : a;
    for (u64 g = 0; g < groups; g++) {
      a += sums[g * 8 + t];
      a = (a ^ a >> 47 ^ secret[16 + t]) * kPrime32_1;
    }
    if (all > groups) a += sums[groups * 8 + t];
    // The last 64 bytes, with the secret from byte 121 on.
    const u64 *stripe = x + p.bytes / 8 - 8;
    u64 k = secret[15 + t] >> 8 | secret[16 + t] << 56, key = stripe[t] ^ k;
    acc[t] = a + stripe[t ^ 1] + (u64)(u32)key * (key >> 32);
  }
  rt_sync();
  if (t == 0) {
    u64 h = p.bytes * kPrime64_1;
    for (u32 i = 0; i < 4; i++) {  // with the secret from byte 11 on
      u64 a = secret[1 + 2 * i] >> 24 | secret[2 + 2 * i] << 40, b = secret[2 + 2 * i] >> 24 | secret[3 + 2 * i] << 40;
      h += fold64(acc[2 * i] ^ a, acc[2 * i + 1] ^ b);
    }
    h ^= h >> 37;
    h *= 0x165667919E3779F9;
    p.digests[page] = h ^ h >> 32;
  }
}
RT_EXPORT(page_digest)
