// The kernels themselves, written once over the operations that a variant
// defines before it includes this file:
//
//   LANES             floats in a register: 4, 8 or 16
//   rf                LANES floats; r_set1 r_load r_store r_add r_sub r_mul r_div
//                     r_fma(a,b,c)=a*b+c  r_max(a,b)=a>b?a:b  r_min(a,b)=a<b?a:b
//                     r_f16 r_bf16 (load and widen)  r_tof16 (narrow and store,
//                     to nearest even)  r_scale(p,n)=p*2^n for whole n
//                     r_keep(v,n,o): lanes below n of v, the others of o
//                     r_swap (of neighbours) r_even r_odd (doubled) r_flip_even (sign)
//   ri                LANES int32; i_set1 i_cvt (to float) i_add i_mul i_s8 (load
//                     and widen bytes) i_128 (times 128)
//   rb                LANES*4 bytes, four of each row; b_load b_low b_high (halves
//                     of bytes) b_bits(v,shift,low) (two bits over the low half)
//   dot8(q,x,c)       q[0..8)·x[0..32) + c: unsigned bytes up to 15 by signed
//   dot8u(q,x,c)      for bytes that are a signed weight plus 128: their products
//                     with x less 128 times the sum of x, which c is already
//   prep8u(q)         done to q once before dot8u
//   dot4(q,x,c)       q[0..4)·x[0..16) + c for bytes up to 63
//   q_amax            the largest magnitude of 32 floats, as bits
//   q_pack            32 floats times a scale to the nearest int8; their two sums
//   QCOLS             activation rows that a quantised product takes at once
//   FCOLS, FGROUPS    rows and groups (registers) that a float product takes
//   VARIANT(x)        the name of x in this variant

#include <math.h>
#include <string.h>
#include "kern.h"

#define FN static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define PARTS (16 / LANES)
#define UNROLL _Pragma("GCC unroll 16")

FN void step(uint64_t *steps) { __atomic_fetch_add(steps, 1, __ATOMIC_RELAXED); }

// Work, in multiplications, after which a long operation says that it moves:
// milliseconds on the slowest variant.
enum { step_work = 1 << 22 };

FN void step_after(uint64_t *steps, long *work, long done) {
	*work += done;
	if (*work >= step_work) {
		*work = 0;
		step(steps);
	}
}

// fetch asks for the lines of p[from:to], to be near when they are wanted.
FN void fetch(const uint8_t *p, size_t from, size_t to) {
	for (from = from / 64 * 64; from < to; from += 64) __builtin_prefetch(p + from, 0, 2);
}

// sum16 is the tree that closes every sum across lanes.
FN float sum16(const float *t) {
	float a[8], b[4];
	for (int i = 0; i < 8; i++) a[i] = t[i] + t[i + 8];
	for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
	return (b[0] + b[2]) + (b[1] + b[3]);
}

FN float max2(float a, float b) { return a > b ? a : b; }

FN float max16(const float *t) {
	float a[8], b[4];
	for (int i = 0; i < 8; i++) a[i] = max2(t[i], t[i + 8]);
	for (int i = 0; i < 4; i++) b[i] = max2(a[i], a[i + 4]);
	return max2(max2(b[0], b[2]), max2(b[1], b[3]));
}

// r_exp is e^x within 1.1 units in the last place, 0 below -104 and infinite
// above 89. x = n ln 2 + r with |r| ≤ ln 2 / 2; e^r = 1 + r + r²P(r), where P
// of degree 4 has the least largest relative error, 3.1e-9.
FN rf r_exp(rf x) {
	x = r_max(r_set1(-104.0f), x);
	x = r_min(r_set1(89.0f), x);
	const rf round = r_set1(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
	rf n = r_sub(r_fma(x, r_set1(1.44269504f), round), round);
	rf r = r_fma(n, r_set1(-0.693359375f), x);
	r = r_fma(n, r_set1(2.12194440e-4f), r);
	rf p = r_set1(1.3814467e-3f);
	p = r_fma(p, r, r_set1(8.3687808e-3f));
	p = r_fma(p, r, r_set1(4.1668393e-2f));
	p = r_fma(p, r, r_set1(1.6666520e-1f));
	p = r_fma(p, r, r_set1(4.9999994e-1f));
	p = r_fma(p, r_mul(r, r), r);
	return r_scale(r_add(p, r_set1(1.0f)), n);
}

FN float exp1(float x) {
	float t[LANES];
	r_store(t, r_exp(r_set1(x)));
	return t[0];
}

// ---- activations ----

// quant_block quantises 32 floats into a slot of a tile's block: the scale is
// the largest magnitude over 127 and each value goes to the nearest multiple,
// ties to even. A block of which all magnitudes are below 2^-100 becomes zeros,
// so that 127 over the largest stays finite. One that is not finite makes
// everything that is computed from it NaN. With fine, the difference to that
// multiple goes in 128ths to the slot second bytes further on.
FN void quant_block(const float *x, int8_t *q, float *nums, const int fine, long second) {
	const uint32_t least = 0x0d800000u, infinite = 0x7f800000u; // 2^-100
	uint32_t bits = q_amax(x);
	int lo = 0, hi = 0, lo2 = 0, hi2 = 0;
	float d = 0, amax;
	if (bits >= infinite || bits < least) {
		memset(q, 0, 32);
		if (fine) memset(q + second, 0, 32);
		if (bits >= infinite) d = NAN;
	} else {
		memcpy(&amax, &bits, 4);
		d = amax / 127.0f;
		const float scale = 127.0f / amax;
		q_pack(x, scale, q, &lo, &hi);
		if (fine) {
			float rest[32];
			UNROLL for (int i = 0; i < 32; i += LANES) // the difference of neighbours is exact
				r_store(rest + i, r_sub(r_mul(r_load(x + i), r_set1(scale)), i_cvt(i_s8(q + i))));
			q_pack(rest, 128.0f, q + second, &lo2, &hi2);
			d *= 0x1p-7f;
		}
	}
	int32_t *whole = (int32_t *)nums;
	nums[tk_tile * tk_d] = d;
	nums[tk_tile * tk_s] = d * (float)(fine ? 128 * (lo + hi) + lo2 + hi2 : lo + hi);
	for (int p = 0; p <= fine; p++, whole += tk_tile * tk_second, lo = lo2, hi = hi2) {
		whole[tk_tile * tk_sum8] = -8 * (lo + hi);
		whole[tk_tile * tk_sum128] = -128 * (lo + hi);
		whole[tk_tile * tk_sum32lo] = -32 * lo;
		whole[tk_tile * tk_sum32hi] = -32 * hi;
	}
}

FN int8_t *tile_q(uint8_t *t, int cols, int fine, int row, int block) {
	return (int8_t *)(t + (size_t)(row / tk_tile) * tk_tile_bytes(cols, fine) + (size_t)block * (tk_tile * 32) + row % tk_tile * 32);
}

FN float *tile_nums(uint8_t *t, int cols, int fine, int row, int block) {
	return (float *)(t + (size_t)(row / tk_tile) * tk_tile_bytes(cols, fine) + (size_t)cols * tk_tile * (1 + fine) +
	                 (size_t)block * ((fine ? tk_fine_nums : tk_nums) * tk_tile * 4)) + row % tk_tile;
}

// claim_blocks asks for the lines that rows row..end of one tile will be written
// to, blocks b0..b1, so that they come from another core's cache together and
// not one by one.
FN void claim_blocks(uint8_t *t, int cols, int fine, int row, int end, int b0, int b1) {
	for (int b = b0; b < b1; b++) {
		for (int p = 0; p <= fine; p++)
			for (int r = row & ~1; r < end; r += 2) __builtin_prefetch(tile_q(t, cols, fine, r, b) + (long)p * cols * tk_tile, 1, 3);
		const float *nums = tile_nums(t, cols, fine, row / tk_tile * tk_tile, b);
		for (int i = 0; i < (fine ? tk_fine_nums : tk_nums) * tk_tile; i += 16) __builtin_prefetch(nums + i, 1, 3);
	}
}

FN int tile_end(int row, int n) {
	const int end = (row / tk_tile + 1) * tk_tile;
	return end < n ? end : n;
}

FN void quant_slot(const float *x, int cols, int fine, int row, int block, uint8_t *t) {
	if (fine) quant_block(x, tile_q(t, cols, 1, row, block), tile_nums(t, cols, 1, row, block), 1, (long)cols * tk_tile);
	else quant_block(x, tile_q(t, cols, 0, row, block), tile_nums(t, cols, 0, row, block), 0, 0);
}

FN void quant_row(const float *x, int cols, int fine, int row, uint8_t *t) {
	for (int b = 0; b < cols / 32; b++) quant_slot(x + b * 32, cols, fine, row, b, t);
}

static void VARIANT(quant)(const float *x, long ldx, int cols, int r0, int r1, uint8_t *t, int fine) {
	for (int r = r0; r < r1; r++) quant_row(x + r * ldx, cols, fine, r, t);
}

static void VARIANT(norm)(const float *x, long ldx, const float *w, float eps, int cols, int n, int to,
                          float *f, long ldf, uint8_t *t, int fine, float *tmp) {
	for (const int end = to + n; to < end; to++, x += ldx) {
		rf acc[4][PARTS];
		for (int i = 0; i < 4; i++)
			for (int h = 0; h < PARTS; h++) acc[i][h] = r_set1(0);
		int i = 0;
		for (; i + 64 <= cols; i += 64)
			UNROLL for (int j = 0; j < 4; j++)
				UNROLL for (int h = 0; h < PARTS; h++) {
					rf v = r_load(x + i + 16 * j + LANES * h);
					acc[j][h] = r_fma(v, v, acc[j][h]);
				}
		for (int j = 0; i < cols; i += 16, j++)
			for (int h = 0; h < PARTS; h++) {
				rf v = r_load(x + i + LANES * h);
				acc[j][h] = r_fma(v, v, acc[j][h]);
			}
		float s[16];
		for (int h = 0; h < PARTS; h++)
			r_store(s + LANES * h, r_add(r_add(acc[0][h], acc[1][h]), r_add(acc[2][h], acc[3][h])));
		rf inv = r_set1(1.0f / sqrtf(sum16(s) / (float)cols + eps));
		float *y = f ? f + to * ldf : tmp;
		for (i = 0; i < cols; i += LANES) r_store(y + i, r_mul(r_mul(r_load(x + i), inv), r_load(w + i)));
		if (t) quant_row(y, cols, fine, to, t);
	}
}

static void VARIANT(swiglu)(const float *gate, const float *up, long ld, int c0, int c1, int n,
                            float *f, long ldf, uint8_t *t, int fine, int cols) {
	for (int r = 0; r < n; r++) {
		if (t && r % tk_tile == 0) claim_blocks(t, cols, fine, r, tile_end(r, n), c0 / 32, c1 / 32);
		const float *g = gate + r * ld, *u = up + r * ld;
		for (int c = c0; c < c1; c += 32) {
			float tmp[32], *y = f ? f + r * ldf + c : tmp;
			UNROLL for (int i = 0; i < 32; i += LANES) {
				rf v = r_load(g + c + i);
				rf e = r_add(r_set1(1.0f), r_exp(r_sub(r_set1(0), v)));
				r_store(y + i, r_mul(r_div(v, e), r_load(u + c + i)));
			}
			if (t) quant_slot(y, cols, fine, r, c / 32, t);
		}
	}
}

// ---- products with quantised activations ----

// A block's contribution to lanes h of a group, per format. Each computes, for
// every c < nc, the same operations whatever nc is. With fine, the sum over the
// first plane times 128 is where the sum over the second starts; it stays below
// 2^31 (Q6_K comes closest, with 2.14e9).

FN void finish(float *out, long ldo, rf v, int c, int h, int add) {
	float *o = out + c * ldo + LANES * h;
	r_store(o, add ? r_add(r_load(o), v) : v);
}

FN void tile_q4_1(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, const int nc, const int fine, float *out, long ldo, int add) {
	for (int h = 0; h < PARTS; h++) {
		rf acc[QCOLS], acm[QCOLS];
		UNROLL for (int c = 0; c < nc; c++) acc[c] = acm[c] = r_set1(0);
		const uint8_t *p = w;
		const int8_t *x = (const int8_t *)tq;
		const float *nums = (const float *)tn;
		const long second = (long)nb * 32 * tk_tile;
		for (int b = 0; b < nb; b++, p += tk_q4_1_block, x += 32 * tk_tile, nums += (fine ? tk_fine_nums : tk_nums) * tk_tile) {
			rb q[8];
			UNROLL for (int j = 0; j < 4; j++) {
				rb v = b_load(p + 64 + 64 * j + 4 * LANES * h);
				q[j] = b_low(v);
				q[4 + j] = b_high(v);
			}
			rf d = r_f16((const uint16_t *)p + LANES * h), m = r_f16((const uint16_t *)p + 16 + LANES * h);
			UNROLL for (int c = 0; c < nc; c++) {
				ri s = dot8(q, x + 32 * c, i_set1(0));
				if (fine) s = dot8(q, x + second + 32 * c, i_128(s));
				acc[c] = r_fma(r_mul(d, r_set1(nums[tk_tile * tk_d + c])), i_cvt(s), acc[c]);
				acm[c] = r_fma(m, r_set1(nums[tk_tile * tk_s + c]), acm[c]);
			}
		}
		UNROLL for (int c = 0; c < nc; c++) finish(out, ldo, r_add(acc[c], acm[c]), c, h, add);
	}
}

FN void tile_q4_0(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, const int nc, const int fine, float *out, long ldo, int add) {
	for (int h = 0; h < PARTS; h++) {
		rf acc[QCOLS];
		UNROLL for (int c = 0; c < nc; c++) acc[c] = r_set1(0);
		const int8_t *x = (const int8_t *)tq;
		const float *nums = (const float *)tn;
		const long second = (long)nb * 32 * tk_tile;
		for (int b = 0; b < nb; b++, x += 32 * tk_tile, nums += (fine ? tk_fine_nums : tk_nums) * tk_tile) {
			const uint8_t *p = w + (size_t)(b / 2) * tk_q4_0_pair, *v = p + 64 + b % 2 * 256 + 4 * LANES * h;
			rb q[8];
			UNROLL for (int j = 0; j < 4; j++) {
				rb u = b_load(v + 64 * j);
				q[j] = b_low(u);
				q[4 + j] = b_high(u);
			}
			rf d = r_f16((const uint16_t *)p + b % 2 * 16 + LANES * h);
			UNROLL for (int c = 0; c < nc; c++) {
				const int32_t *whole = (const int32_t *)nums + tk_tile * tk_sum8 + c;
				ri s = dot8(q, x + 32 * c, i_set1(*whole));
				if (fine) s = dot8(q, x + second + 32 * c, i_add(i_128(s), i_set1(whole[tk_tile * tk_second])));
				acc[c] = r_fma(r_mul(d, r_set1(nums[tk_tile * tk_d + c])), i_cvt(s), acc[c]);
			}
		}
		UNROLL for (int c = 0; c < nc; c++) finish(out, ldo, acc[c], c, h, add);
	}
}

FN void tile_q8_0(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, const int nc, const int fine, float *out, long ldo, int add) {
	for (int h = 0; h < PARTS; h++) {
		rf acc[QCOLS];
		UNROLL for (int c = 0; c < nc; c++) acc[c] = r_set1(0);
		const int8_t *x = (const int8_t *)tq;
		const float *nums = (const float *)tn;
		const long second = (long)nb * 32 * tk_tile;
		for (int b = 0; b < nb; b++, x += 32 * tk_tile, nums += (fine ? tk_fine_nums : tk_nums) * tk_tile) {
			const uint8_t *p = w + (size_t)(b / 2) * tk_q8_0_pair, *v = p + 64 + b % 2 * 512 + 4 * LANES * h;
			rb q[8];
			UNROLL for (int j = 0; j < 8; j++) q[j] = prep8u(b_load(v + 64 * j));
			rf d = r_f16((const uint16_t *)p + b % 2 * 16 + LANES * h);
			UNROLL for (int c = 0; c < nc; c++) {
				const int32_t *whole = (const int32_t *)nums + tk_tile * tk_sum128 + c;
				ri s = dot8u(q, x + 32 * c, *whole);
				if (fine) s = i_add(i_128(s), dot8u(q, x + second + 32 * c, whole[tk_tile * tk_second]));
				acc[c] = r_fma(r_mul(d, r_set1(nums[tk_tile * tk_d + c])), i_cvt(s), acc[c]);
			}
		}
		UNROLL for (int c = 0; c < nc; c++) finish(out, ldo, acc[c], c, h, add);
	}
}

// The sum of a Q6_K block of coarse activations stays below 2^24 (2 scales up to
// 128, 16 products of at most 32·127 each), so it is exact as a float too; that
// of fine ones is rounded once.
FN void tile_q6_k(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, const int nc, const int fine, float *out, long ldo, int add) {
	for (int h = 0; h < PARTS; h++) {
		rf acc[QCOLS];
		UNROLL for (int c = 0; c < nc; c++) acc[c] = r_set1(0);
		const int8_t *x = (const int8_t *)tq;
		const float *nums = (const float *)tn;
		const long second = (long)nb * 32 * tk_tile;
		for (int b = 0; b < nb; b++, x += 32 * tk_tile, nums += (fine ? tk_fine_nums : tk_nums) * tk_tile) {
			const uint8_t *p = w + (size_t)(b / 8) * tk_q6_k_super;
			const int8_t *sc = (const int8_t *)p + 64 + b % 8 * 32 + LANES * h;
			const uint8_t *up = p + 64 + 256 + b % 8 * 128 + 4 * LANES * h, *v = p + 64 + 256 + 1024 + b % 8 * 256 + 4 * LANES * h;
			rb q[8], u0 = b_load(up), u1 = b_load(up + 64);
#define Q6(j) \
	{ \
		rb u = b_load(v + 64 * j); \
		q[j] = b_bits(u0, 2 * j, b_low(u)); \
		q[4 + j] = b_bits(u1, 2 * j, b_high(u)); \
	}
			Q6(0) Q6(1) Q6(2) Q6(3)
#undef Q6
			ri s0 = i_s8(sc), s1 = i_s8(sc + 16);
			rf d = r_f16((const uint16_t *)p + LANES * h);
			UNROLL for (int c = 0; c < nc; c++) {
				const int32_t *whole = (const int32_t *)nums + c;
				ri lo = dot4(q, x + 32 * c, i_set1(whole[tk_tile * tk_sum32lo]));
				ri hi = dot4(q + 4, x + 32 * c + 16, i_set1(whole[tk_tile * tk_sum32hi]));
				if (fine) {
					whole += tk_tile * tk_second;
					lo = dot4(q, x + second + 32 * c, i_add(i_128(lo), i_set1(whole[tk_tile * tk_sum32lo])));
					hi = dot4(q + 4, x + second + 32 * c + 16, i_add(i_128(hi), i_set1(whole[tk_tile * tk_sum32hi])));
				}
				ri s = i_add(i_mul(lo, s0), i_mul(hi, s1));
				acc[c] = r_fma(r_mul(d, r_set1(nums[tk_tile * tk_d + c])), i_cvt(s), acc[c]);
			}
		}
		UNROLL for (int c = 0; c < nc; c++) finish(out, ldo, acc[c], c, h, add);
	}
}

typedef void (*tile_func)(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, float *out, long ldo, int add);

#define TILE(fmt, nc) \
	NOINLINE void fmt##_##nc(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, float *out, long ldo, int add) { \
		if (add) fmt(w, nb, tq, tn, nc, 0, out, ldo, 1); \
		else fmt(w, nb, tq, tn, nc, 0, out, ldo, 0); \
	} \
	NOINLINE void fmt##_fine_##nc(const uint8_t *w, int nb, const uint8_t *tq, const uint8_t *tn, float *out, long ldo, int add) { \
		if (add) fmt(w, nb, tq, tn, nc, 1, out, ldo, 1); \
		else fmt(w, nb, tq, tn, nc, 1, out, ldo, 0); \
	}
#if QCOLS == 8
#define TILES(fmt) TILE(fmt, 1) TILE(fmt, 2) TILE(fmt, 3) TILE(fmt, 4) TILE(fmt, 5) TILE(fmt, 6) TILE(fmt, 7) TILE(fmt, 8)
#define NAMES(fmt) {fmt##_1, fmt##_2, fmt##_3, fmt##_4, fmt##_5, fmt##_6, fmt##_7, fmt##_8}
#else
#define TILES(fmt) TILE(fmt, 1) TILE(fmt, 2) TILE(fmt, 3) TILE(fmt, 4)
#define NAMES(fmt) {fmt##_1, fmt##_2, fmt##_3, fmt##_4}
#endif
#define BOTH(fmt) {NAMES(fmt), NAMES(fmt##_fine)}

TILES(tile_q4_0)
TILES(tile_q4_1)
TILES(tile_q8_0)
TILES(tile_q6_k)

static const tile_func tile_funcs[][2][QCOLS] = {
	[tk_q4_0] = BOTH(tile_q4_0),
	[tk_q4_1] = BOTH(tile_q4_1),
	[tk_q8_0] = BOTH(tile_q8_0),
	[tk_q6_k] = BOTH(tile_q6_k),
};

// Weights stream from memory once: a few groups at a time are taken through all
// rows of activations, one group while those fit into the cache beside it.
static void VARIANT(gemm_q)(int type, const uint8_t *w, int g0, int g1, int cols, const uint8_t *t, int fine, int n,
                            float *out, long ldo, int add, uint64_t *steps) {
	const size_t group = tk_group_bytes(type, cols), tile = tk_tile_bytes(cols, fine);
	const tile_func *funcs = tile_funcs[type][fine];
	const int nb = cols / 32, panel = (size_t)n * (tile / tk_tile) <= (256 << 10) ? 1 : 8;
	long work = 0;
	for (int g = g0; g < g1; g += panel) {
		const int ge = g + panel < g1 ? g + panel : g1;
		for (int c = 0; c < n; c += QCOLS) {
			const int nc = n - c < QCOLS ? n - c : QCOLS;
			const uint8_t *tq = t + (size_t)(c / tk_tile) * tile;
			const uint8_t *tn = tq + (size_t)cols * tk_tile * (1 + fine) + c % tk_tile * 4;
			for (int i = g; i < ge; i++) {
				// The next panel is asked for piece by piece. Fewer rows than two tiles
				// leave no time for that: there the processor's own streaming is better.
				if (n > tk_tile && i + panel < g1) fetch(w + (i + panel) * group, group * c / n, group * (c + nc) / n);
				funcs[nc - 1](w + i * group, nb, tq + c % tk_tile * 32, tn, out + c * ldo + i * 16, ldo, add);
			}
			step_after(steps, &work, (long)(ge - g) * nc * cols * 16);
		}
	}
}

// ---- products of floats ----

// fma_tile adds to (or, unless on, starts) out[c][16 g + lane] the sum over k of
// x[c][k] * w[k][g][lane], k ascending, for nc rows and ng registers: weights of
// a matrix, keys and values all lie so. ks and gs are the elements from one k
// and one register to the next; registers are LANES wide and lie within groups
// of 16.
FN long elem_bytes(int type) { return type == tk_f32 ? 4 : 2; }

FN rf widen(int type, const uint8_t *p, long i) {
	return type == tk_f16 ? r_f16((const uint16_t *)p + i) : type == tk_bf16 ? r_bf16((const uint16_t *)p + i) : r_load((const float *)p + i);
}

//
// With want, memory ahead bytes further on is asked for line by line: in the
// order of keys, of which two k share a line, or of values, of which two groups
// do.
enum { want_nothing, want_keys, want_values };

FN void fma_tile(const int type, const uint8_t *w, long ks, long gs, const float *x, long ldx, int K,
                 const int nc, const int ng, float *out, long ldo, int on, const int want, long ahead) {
	rf acc[FCOLS][FGROUPS];
	UNROLL for (int c = 0; c < nc; c++)
		UNROLL for (int g = 0; g < ng; g++)
			acc[c][g] = on ? r_load(out + c * ldo + g * LANES) : r_set1(0);
	long at[FGROUPS];
	UNROLL for (int g = 0; g < ng; g++) at[g] = g / PARTS * gs + g % PARTS * LANES;
	for (int k = 0; k < K; k++) {
		rf v[FGROUPS];
		UNROLL for (int g = 0; g < ng; g++) v[g] = widen(type, w, k * ks + at[g]);
		if (want == want_keys && k % 2 == 0)
			UNROLL for (int g = 0; g < ng; g += PARTS) __builtin_prefetch(w + (k * ks + at[g]) * elem_bytes(type) + ahead, 0, 2);
		if (want == want_values)
			UNROLL for (int g = 0; g < ng; g += 2 * PARTS) __builtin_prefetch(w + (k * ks + at[g]) * elem_bytes(type) + ahead, 0, 2);
		UNROLL for (int c = 0; c < nc; c++) {
			rf s = r_set1(x[c * ldx + k]);
			UNROLL for (int g = 0; g < ng; g++) acc[c][g] = r_fma(v[g], s, acc[c][g]);
		}
	}
	UNROLL for (int c = 0; c < nc; c++)
		UNROLL for (int g = 0; g < ng; g++) r_store(out + c * ldo + g * LANES, acc[c][g]);
}

typedef void (*fma_func)(const uint8_t *w, long ks, long gs, const float *x, long ldx, int K, float *out, long ldo, int on, long ahead);

#define FMA(type, want, nc, ng) \
	NOINLINE void fma_##type##_##want##_##nc##_##ng(const uint8_t *w, long ks, long gs, const float *x, long ldx, int K, float *out, long ldo, int on, long ahead) { \
		fma_tile(tk_##type, w, ks, gs, x, ldx, K, nc, ng, out, ldo, on, want_##want, ahead); \
	}
#define FMAS_COLS(type, want, ng) FMA(type, want, 1, ng) FMA(type, want, 2, ng) FMA(type, want, 3, ng) FMA(type, want, 4, ng) FMA(type, want, 5, ng) FMA(type, want, 6, ng)
#define FMA_NAMES(t, ng) {fma_##t##_1_##ng, fma_##t##_2_##ng, fma_##t##_3_##ng, fma_##t##_4_##ng, fma_##t##_5_##ng, fma_##t##_6_##ng}
#if FGROUPS == 4
#define FMAS(type, want) FMAS_COLS(type, want, 1) FMAS_COLS(type, want, 2) FMAS_COLS(type, want, 3) FMAS_COLS(type, want, 4)
#define FMAS_NAMES(t) {FMA_NAMES(t, 1), FMA_NAMES(t, 2), FMA_NAMES(t, 3), FMA_NAMES(t, 4)}
#else
#define FMAS(type, want) FMAS_COLS(type, want, 1) FMAS_COLS(type, want, 2)
#define FMAS_NAMES(t) {FMA_NAMES(t, 1), FMA_NAMES(t, 2)}
#endif

FMAS(f32, nothing)
FMAS(f16, nothing)
FMAS(bf16, nothing)
FMAS(f16, keys)
FMAS(f16, values)

static const fma_func fma_funcs[][FGROUPS][FCOLS] = {
	[tk_f32] = FMAS_NAMES(f32_nothing),
	[tk_f16] = FMAS_NAMES(f16_nothing),
	[tk_bf16] = FMAS_NAMES(bf16_nothing),
};
static const fma_func fma_keys[FGROUPS][FCOLS] = FMAS_NAMES(f16_keys);
static const fma_func fma_values[FGROUPS][FCOLS] = FMAS_NAMES(f16_values);

// fma_cover is fma_tile for any number of rows and of groups of 16. If then is
// not null, it asks for the memory there, as much as it reads itself.
FN void fma_cover(const int type, const uint8_t *w, long ks, long gs, const float *x, long ldx, int K,
                  int n, int groups, float *out, long ldo, int on, int want, const uint8_t *then) {
	const fma_func(*funcs)[FCOLS] = type != tk_f16 || !then ? fma_funcs[type] : want == want_keys ? fma_keys : fma_values;
	const long ahead = (long)((intptr_t)then - (intptr_t)w);
	const int ng = groups * PARTS;
	for (int c = 0; c < n; c += FCOLS) {
		const int nc = n - c < FCOLS ? n - c : FCOLS;
		for (int g = 0; g < ng; g += FGROUPS) {
			const int m = ng - g < FGROUPS ? ng - g : FGROUPS;
			const uint8_t *wg = w + g / PARTS * gs * elem_bytes(type); // FGROUPS is a multiple of PARTS
			funcs[m - 1][nc - 1](wg, ks, gs, x + c * ldx, ldx, K, out + c * ldo + g * LANES, ldo, on, ahead);
		}
	}
}

// A place is where the parts of block b of a group of quantised weights lie.
typedef struct {
	const uint16_t *d, *m;
	const uint8_t *quants, *upper;
	const int8_t *scales;
} place;

FN place place_of(const int type, const uint8_t *w, int b) {
	place at = {0};
	switch (type) {
	case tk_q4_1:
		w += (size_t)b * tk_q4_1_block;
		at.m = (const uint16_t *)w + 16;
		at.quants = w + 64;
		break;
	case tk_q4_0:
		w += (size_t)(b / 2) * tk_q4_0_pair;
		at.quants = w + 64 + b % 2 * 256;
		w += b % 2 * 32;
		break;
	case tk_q8_0:
		w += (size_t)(b / 2) * tk_q8_0_pair;
		at.quants = w + 64 + b % 2 * 512;
		w += b % 2 * 32;
		break;
	case tk_q6_k:
		w += (size_t)(b / 8) * tk_q6_k_super;
		at.scales = (const int8_t *)w + 64 + b % 8 * 32;
		at.upper = w + 64 + 256 + b % 8 * 128;
		at.quants = w + 64 + 256 + 1024 + b % 8 * 256;
		break;
	}
	at.d = (const uint16_t *)w;
	return at;
}

// weight is the value of one element of a block. Every format's value is exact
// in a float but Q4_1's, which is rounded once.
FN float weight(const int type, const place *at, int col, int row, float d, float m) {
	if (type == tk_q8_0) return d * (float)((int)at->quants[col / 4 * 64 + row * 4 + col % 4] - 128);
	const int k = col % 16, byte = at->quants[k / 4 * 64 + row * 4 + k % 4], half = col < 16 ? byte & 15 : byte >> 4;
	if (type == tk_q4_1) return fmaf(d, (float)half, m);
	if (type == tk_q4_0) return d * (float)(half - 8);
	const int two = at->upper[col / 16 * 64 + row * 4 + k % 4] >> (k / 4 * 2) & 3;
	return d * (float)((half + 16 * two - 32) * at->scales[col / 16 * 16 + row]);
}

FN void halves(const uint16_t *p, float *out) {
	for (int h = 0; h < PARTS; h++) r_store(out + LANES * h, r_f16(p + LANES * h));
}

// expand turns one group of quantised weights into floats [column][16 rows].
FN void expand(const int type, const uint8_t *w, int cols, float *out) {
	for (int b = 0; b < cols / 32; b++, out += 512) {
		const place at = place_of(type, w, b);
		float d[16], m[16];
		halves(at.d, d);
		if (type == tk_q4_1) halves(at.m, m);
		for (int col = 0; col < 32; col++)
			for (int row = 0; row < 16; row++)
				out[col * 16 + row] = weight(type, &at, col, row, d[row], type == tk_q4_1 ? m[row] : 0);
	}
}

#define EXPAND(type) NOINLINE void expand_##type(const uint8_t *w, int cols, float *out) { expand(tk_##type, w, cols, out); }
EXPAND(q4_0)
EXPAND(q4_1)
EXPAND(q8_0)
EXPAND(q6_k)

FN void expand_any(int type, const uint8_t *w, int cols, float *out) {
	switch (type) {
	case tk_q4_0: expand_q4_0(w, cols, out); break;
	case tk_q4_1: expand_q4_1(w, cols, out); break;
	case tk_q8_0: expand_q8_0(w, cols, out); break;
	case tk_q6_k: expand_q6_k(w, cols, out); break;
	}
}

static void VARIANT(gemm_f)(int type, const uint8_t *w, int g0, int g1, int cols, const float *x, long ldx, int n,
                            float *out, long ldo, int add, float *scratch, uint64_t *steps) {
	const size_t group = tk_group_bytes(type, cols);
	const int quantised = type >= tk_q4_0;
	float sums[FCOLS * tk_expand * 16];
	long work = 0;
	for (int g = g0; g < g1; g += tk_expand) {
		const int m = g1 - g < tk_expand ? g1 - g : tk_expand;
		const uint8_t *wg = w + g * group;
		int wt = type;
		if (quantised) {
			for (int i = 0; i < m; i++) expand_any(type, wg + i * group, cols, scratch + (size_t)i * cols * 16);
			wg = (const uint8_t *)scratch;
			wt = tk_f32;
		}
		for (int c = 0; c < n; c += FCOLS) {
			const int nc = n - c < FCOLS ? n - c : FCOLS;
			float *o = out + c * ldo + g * 16;
			if (!add) {
				fma_cover(wt, wg, 16, (long)cols * 16, x + c * ldx, ldx, cols, nc, m, o, ldo, 0, want_nothing, 0);
			} else {
				fma_cover(wt, wg, 16, (long)cols * 16, x + c * ldx, ldx, cols, nc, m, sums, tk_expand * 16, 0, want_nothing, 0);
				for (int i = 0; i < nc; i++)
					for (int j = 0; j < m * 16; j += LANES)
						r_store(o + i * ldo + j, r_add(r_load(o + i * ldo + j), r_load(sums + i * tk_expand * 16 + j)));
			}
			step_after(steps, &work, (long)m * nc * cols * 16);
		}
	}
}

FN void embed_blocks(const int type, const uint8_t *w, int row, int c, int c1, float *out) {
	while (c < c1) {
		const place at = place_of(type, w, c / 32);
		float d[16], m[16] = {0};
		halves(at.d, d);
		if (type == tk_q4_1) halves(at.m, m);
		do {
			out[c] = weight(type, &at, c % 32, row, d[row], m[row]);
			c++;
		} while (c < c1 && c % 32);
	}
}

static void VARIANT(embed)(int type, const uint8_t *w, int cols, int row, int c0, int c1, float *out) {
	const uint8_t *p = w + (size_t)(row / 16) * tk_group_bytes(type, cols);
	const int r = row % 16;
	if (type < tk_q4_0) {
		for (int c = c0; c < c1; c++) {
			float t[LANES];
			r_store(t, widen(type, p, (long)c * 16 + r / LANES * LANES));
			out[c] = t[r % LANES];
		}
		return;
	}
	switch (type) {
	case tk_q4_0: embed_blocks(tk_q4_0, p, r, c0, c1, out); break;
	case tk_q4_1: embed_blocks(tk_q4_1, p, r, c0, c1, out); break;
	case tk_q8_0: embed_blocks(tk_q8_0, p, r, c0, c1, out); break;
	case tk_q6_k: embed_blocks(tk_q6_k, p, r, c0, c1, out); break;
	}
}

// ---- positions and the cache ----

static void VARIANT(rope)(float *x, long ldx, int n, int c0, int c1, int head_dim, const float *table) {
	for (; n > 0; n--, x += ldx, table += head_dim)
		for (int c = c0; c < c1; c += LANES) {
			rf v = r_load(x + c), t = r_load(table + c % head_dim);
			// even: x0 cos - x1 sin; odd: x1 cos + x0 sin
			rf s = r_flip_even(r_mul(r_swap(v), r_odd(t)));
			r_store(x + c, r_fma(v, r_even(t), s));
		}
}

FN size_t value_offset(const tk_cache *c) {
	return (size_t)c->head_dim * c->page_tokens * elem_bytes(c->elem);
}

// claim asks for the lines of a key that will be written: one of every 16
// numbers, 16 tokens' numbers apart.
FN void claim(const tk_cache *c, uint8_t *page, int at) {
	const size_t line = 16 * elem_bytes(c->elem), key = (size_t)(at / 16) * c->head_dim * line;
	for (size_t i = 0; i < (size_t)c->head_dim * line; i += 64) __builtin_prefetch(page + key + i, 1, 2);
}

static void VARIANT(append)(const tk_cache *c, uint8_t *unit, const uint32_t *pages, int pos, int n,
                            const float *k, const float *v, long ld, uint8_t *next) {
	const int hd = c->head_dim;
	for (; n > 0; n--, pos++, k += ld, v += ld) {
		uint8_t *page = unit + pages[pos / c->page_tokens] * c->page_stride;
		const int at = pos % c->page_tokens;
		const size_t key = (size_t)(at / 16) * hd * 16 + at % 16, value = (size_t)at * hd;
		if (n == 1 && next) claim(c, next, 0);
		if (c->elem == tk_f32) {
			float *K = (float *)page + key, *V = (float *)(page + value_offset(c)) + value;
			for (int d = 0; d < hd; d++) K[d * 16] = k[d];
			memcpy(V, v, (size_t)hd * 4);
			continue;
		}
		uint16_t *K = (uint16_t *)page + key, *V = (uint16_t *)(page + value_offset(c)) + value, t[16];
		for (int d = 0; d < hd; d += 16) {
			for (int h = 0; h < PARTS; h++) {
				r_tof16(t + LANES * h, r_load(k + d + LANES * h));
				r_tof16(V + d + LANES * h, r_load(v + d + LANES * h));
			}
			for (int i = 0; i < 16; i++) K[(d + i) * 16] = t[i];
		}
	}
}

// ---- attention ----

// softmax_block turns n scores into weights e^(s-max); lanes up to the next
// multiple of 16 become 0. The scores beyond n come from memory that nobody
// wrote: they are replaced before anything is computed from them.
FN void softmax_block(float *s, int n, float *m, float *l) {
	const rf none = r_set1(-INFINITY), zero = r_set1(0);
	const int up = (n + 15) & ~15;
	rf top[PARTS], sum[PARTS];
	UNROLL for (int h = 0; h < PARTS; h++) top[h] = none, sum[h] = zero;
	for (int i = 0; i < up; i += 16)
		UNROLL for (int h = 0; h < PARTS; h++) {
			rf v = r_keep(r_load(s + i + LANES * h), n - i - LANES * h, none);
			top[h] = r_max(v, top[h]);
		}
	float t[16];
	UNROLL for (int h = 0; h < PARTS; h++) r_store(t + LANES * h, top[h]);
	const float max = max16(t);
	for (int i = 0; i < up; i += 16)
		UNROLL for (int h = 0; h < PARTS; h++) {
			rf v = r_exp(r_sub(r_load(s + i + LANES * h), r_set1(max)));
			v = r_keep(v, n - i - LANES * h, zero);
			sum[h] = r_add(sum[h], v);
			r_store(s + i + LANES * h, v);
		}
	UNROLL for (int h = 0; h < PARTS; h++) r_store(t + LANES * h, sum[h]);
	*m = max;
	*l = sum16(t);
}

// fold_block joins a block's result (o, m, l) to a state that holds the earlier
// blocks', or becomes the state.
FN void fold_block(int hd, float *so, float *sm, float *sl, int first, const float *o, float m, float l) {
	if (first) {
		memcpy(so, o, (size_t)hd * 4);
		*sm = m;
		*sl = l;
	} else if (m > *sm) {
		const float c = exp1(*sm - m);
		*sm = m;
		*sl = fmaf(*sl, c, l);
		for (int d = 0; d < hd; d += LANES) r_store(so + d, r_fma(r_load(so + d), r_set1(c), r_load(o + d)));
	} else {
		const float c = exp1(m - *sm);
		*sl = fmaf(l, c, *sl);
		for (int d = 0; d < hd; d += LANES) r_store(so + d, r_fma(r_load(o + d), r_set1(c), r_load(so + d)));
	}
}

FN void finish_head(int hd, const float *so, float sl, float *out) {
	const rf inv = r_set1(1.0f / sl);
	for (int d = 0; d < hd; d += LANES) r_store(out + d, r_mul(r_load(so + d), inv));
}

static void VARIANT(fold)(int hd, const float *part, long part_block, int blocks, float *out) {
	float m = 0, l = 0;
	for (int b = 0; b < blocks; b++, part += part_block) fold_block(hd, out, &m, &l, b == 0, part, part[hd], part[hd + 1]);
	finish_head(hd, out, l, out);
}

// One block of keys for nq ≤ tk_queries query vectors; vector i sees n[i] ≥ 1
// keys of it, ascending with i. Results go to o[i][hd], m[i], l[i].
//
// Where few rows share the keys, most time goes by waiting for memory. Then the
// piece after the one in work is asked for: the next page's keys, after the last
// keys the first values, after the last values what next points to.
FN void attend_block(const int elem, const tk_cache *c, const uint8_t *unit, const uint32_t *pages,
                     const float *x, int nq, const int *n, float *s, long lds, float *o, float *m, float *l, int look_ahead, const uint8_t *next) {
	const int hd = c->head_dim, pt = c->page_tokens;
	const int least = n[0], most = n[nq - 1], n_pages = (most + pt - 1) / pt;
	const uint8_t *values = unit + value_offset(c);
	for (int p = 0; p < n_pages; p++) {
		const int keys = most - p * pt < pt ? most - p * pt : pt;
		const uint8_t *k = unit + pages[p] * c->page_stride;
		const uint8_t *then = !look_ahead ? 0 : p + 1 < n_pages ? unit + pages[p + 1] * c->page_stride : values + pages[0] * c->page_stride;
		fma_cover(elem, k, 16, (long)hd * 16, x, hd, hd, nq, (keys + 15) / 16, s + p * pt, lds, 0, want_keys, then);
	}
	for (int i = 0; i < nq; i++) softmax_block(s + i * lds, n[i], &m[i], &l[i]);
	// Values of keys that all the vectors see, then for each the few more.
	for (int p = 0; p < n_pages; p++) {
		const uint8_t *v = values + pages[p] * c->page_stride;
		const uint8_t *then = !look_ahead ? 0 : p + 1 < n_pages ? values + pages[p + 1] * c->page_stride : next;
		const int from = p * pt;
		const int all = least - from < 0 ? 0 : least - from < pt ? least - from : pt;
		if (all || p == 0) fma_cover(elem, v, hd, 16, s + from, lds, all, nq, hd / 16, o, hd, p > 0, want_values, then);
		for (int i = 0; i < nq; i++) {
			const int own = n[i] - from < pt ? n[i] - from : pt;
			if (own > all)
				fma_cover(elem, v + (size_t)all * hd * elem_bytes(elem), hd, 16, s + i * lds + from + all, lds, own - all, 1, hd / 16, o + i * hd, hd, 1, want_nothing, 0);
		}
	}
}

NOINLINE void attend_block_f16(const tk_cache *c, const uint8_t *unit, const uint32_t *pages,
                               const float *x, int nq, const int *n, float *s, long lds, float *o, float *m, float *l, int look_ahead, const uint8_t *next) {
	attend_block(tk_f16, c, unit, pages, x, nq, n, s, lds, o, m, l, look_ahead, next);
}

NOINLINE void attend_block_f32(const tk_cache *c, const uint8_t *unit, const uint32_t *pages,
                               const float *x, int nq, const int *n, float *s, long lds, float *o, float *m, float *l, int look_ahead, const uint8_t *next) {
	attend_block(tk_f32, c, unit, pages, x, nq, n, s, lds, o, m, l, look_ahead, next);
}

// A tile is the query vectors that share a call of attend_block: some rows with
// all heads of the unit, or one row with some heads.
typedef struct {
	int r0, r1, h0, h1;
} tile;

// gather copies a tile's queries, scaled, and finds how many keys each sees of
// the block that begins at position at.
FN int gather(const tile *t, const tk_cache *c, const float *q, long ldq, int pos, int at, int keys, float scale, float *x, int *n) {
	const int hd = c->head_dim;
	int nq = 0;
	for (int r = t->r0; r < t->r1; r++)
		for (int h = t->h0; h < t->h1; h++, nq++) {
			const float *src = q + r * ldq + h * hd;
			for (int d = 0; d < hd; d += LANES) r_store(x + nq * hd + d, r_mul(r_load(src + d), r_set1(scale)));
			n[nq] = pos + r + 1 - at < keys ? pos + r + 1 - at : keys;
		}
	return nq;
}

static void VARIANT(attend)(const tk_cache *c, const uint8_t *unit, const uint32_t *pages,
                            const float *q, long ldq, int pos, int rows, int heads, int b0, int b1,
                            float *out, long ldo, float *part, long part_block, long part_head,
                            const uint8_t *next, float *scratch, uint64_t *steps) {
	const int hd = c->head_dim, pt = c->page_tokens, bp = tk_block_pages(c), keys = bp * pt;
	const float scale = 1.0f / sqrtf((float)hd);
	float *s = scratch, *x = s + (size_t)tk_queries * keys, *o = x + tk_queries * hd, *m = o + tk_queries * hd, *l = m + tk_queries;
	float *states = l + tk_queries; // of rows and heads at work: o, m, l
	const long state = hd + 2;
	const int tile_rows = heads >= tk_queries ? 1 : tk_queries / heads;
	const int splits = (heads + tk_queries - 1) / tk_queries, tile_heads = (heads + splits - 1) / splits;
	long work = 0;
	// Some rows at a time go through the blocks, so that a block's keys and values
	// stay in the cache for all of them.
	for (int r0 = 0; r0 < rows; r0 += tk_rows_at_once) {
		const int r1 = r0 + tk_rows_at_once < rows ? r0 + tk_rows_at_once : rows;
		const int last = b1 <= (pos + r1 - 1) / keys ? b1 : (pos + r1 - 1) / keys + 1;
		for (int b = b0; b < last; b++) {
			const int at = b * keys;
			const uint8_t *then = b + 1 < last ? unit + pages[(b + 1) * bp] * c->page_stride : next;
			for (tile t = {r0, 0, 0, 0}; t.r0 < r1; t.r0 = t.r1) {
				t.r1 = t.r0 + tile_rows < r1 ? t.r0 + tile_rows : r1;
				while (t.r0 < t.r1 && pos + t.r0 < at) t.r0++; // rows that end before this block
				if (t.r0 == t.r1) continue;
				for (t.h0 = 0; t.h0 < heads; t.h0 = t.h1) {
					t.h1 = t.h0 + tile_heads < heads ? t.h0 + tile_heads : heads;
					int n[tk_queries];
					const int nq = gather(&t, c, q, ldq, pos, at, keys, scale, x, n);
					(c->elem == tk_f16 ? attend_block_f16 : attend_block_f32)(c, unit, pages + b * bp, x, nq, n, s, keys, o, m, l, rows == 1 && t.h0 == 0, then);
					step_after(steps, &work, (long)nq * n[nq - 1] * hd * 2);
					for (int i = 0; i < nq; i++) {
						const int r = t.r0 + i / (t.h1 - t.h0), h = t.h0 + i % (t.h1 - t.h0);
						if (part) {
							float *to = part + b * part_block + h * part_head;
							memcpy(to, o + i * hd, (size_t)hd * 4);
							to[hd] = m[i];
							to[hd + 1] = l[i];
						} else {
							float *st = states + ((r - r0) * heads + h) * state;
							fold_block(hd, st, st + hd, st + hd + 1, b == 0, o + i * hd, m[i], l[i]);
						}
					}
				}
			}
		}
		if (part) continue;
		for (int r = r0; r < r1; r++)
			for (int h = 0; h < heads; h++) {
				const float *st = states + ((r - r0) * heads + h) * state;
				finish_head(hd, st, st[hd + 1], out + r * ldo + h * hd);
			}
	}
}

// ---- the end ----

FN float max_of(const float *x, int n) {
	rf top = r_set1(-INFINITY);
	int i = 0;
	for (; i + LANES <= n; i += LANES) top = r_max(r_load(x + i), top); // a NaN is not larger
	float t[LANES], max = -INFINITY;
	r_store(t, top);
	for (int j = 0; j < LANES; j++) max = max2(t[j], max);
	for (; i < n; i++) max = max2(x[i], max);
	return max;
}

static int VARIANT(argmax)(const float *x, int lo, int hi) {
	enum { stretch = 512 };
	float max = -INFINITY;
	int at = lo; // start of the first stretch that has the largest
	for (int i = lo; i < hi; i += stretch) {
		const float m = max_of(x + i, hi - i < stretch ? hi - i : stretch);
		if (m > max) {
			max = m;
			at = i;
		}
	}
	for (; at < hi; at++)
		if (x[at] == max) return at;
	return -1;
}

const tk_table VARIANT(tk) = {
	.name = VARIANT_NAME,
	.norm = VARIANT(norm),
	.quant = VARIANT(quant),
	.gemm_q = VARIANT(gemm_q),
	.gemm_f = VARIANT(gemm_f),
	.rope = VARIANT(rope),
	.append = VARIANT(append),
	.attend = VARIANT(attend),
	.fold = VARIANT(fold),
	.swiglu = VARIANT(swiglu),
	.embed = VARIANT(embed),
	.argmax = VARIANT(argmax),
};
