// The portable variant: four lanes in the compiler's own vectors, so it runs
// wherever C does. It is the yardstick for the others and not meant to be fast;
// where the machine has no fused multiply-add the C library supplies it.
#pragma STDC FP_CONTRACT OFF
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VARIANT(x) x##_generic
#define VARIANT_NAME "generic"
#define LANES 4
#define QCOLS 4
#define FCOLS 6
#define FGROUPS 4

typedef float rf __attribute__((vector_size(16)));
typedef int32_t ri __attribute__((vector_size(16)));
typedef uint8_t rb __attribute__((vector_size(16)));

#define FN static inline __attribute__((always_inline))

FN rf r_set1(float x) { return (rf){x, x, x, x}; }
FN rf r_load(const float *p) { rf v; memcpy(&v, p, sizeof v); return v; }
FN void r_store(float *p, rf v) { memcpy(p, &v, sizeof v); }
FN rf r_add(rf a, rf b) { return a + b; }
FN rf r_sub(rf a, rf b) { return a - b; }
FN rf r_mul(rf a, rf b) { return a * b; }
FN rf r_div(rf a, rf b) { return a / b; }
FN rf r_fma(rf a, rf b, rf c) { return (rf){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]), fmaf(a[3], b[3], c[3])}; }
FN rf r_max(rf a, rf b) { ri m = a > b; return (rf)((m & (ri)a) | (~m & (ri)b)); }
FN rf r_min(rf a, rf b) { ri m = a < b; return (rf)((m & (ri)a) | (~m & (ri)b)); }
FN ri i_set1(int32_t x) { return (ri){x, x, x, x}; }
FN ri i_add(ri a, ri b) { return a + b; }
FN ri i_mul(ri a, ri b) { return a * b; }
FN ri i_128(ri a) { return a * 128; }
FN rf i_cvt(ri a) { return (rf){(float)a[0], (float)a[1], (float)a[2], (float)a[3]}; }
FN ri i_s8(const int8_t *p) { return (ri){p[0], p[1], p[2], p[3]}; }
FN rf r_keep(rf v, int n, rf o) { ri m = (ri){0, 1, 2, 3} < i_set1(n); return (rf)((m & (ri)v) | (~m & (ri)o)); }
FN rf r_swap(rf a) { return (rf){a[1], a[0], a[3], a[2]}; }
FN rf r_even(rf a) { return (rf){a[0], a[0], a[2], a[2]}; }
FN rf r_odd(rf a) { return (rf){a[1], a[1], a[3], a[3]}; }
FN rf r_flip_even(rf a) { return (rf)((ri)a ^ (ri){INT32_MIN, 0, INT32_MIN, 0}); }

FN float half(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
	if (e == 0) { // zero or subnormal: m * 2^-24, exact
		float f = (float)m * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= sign;
	} else
		u = sign | (e == 31 ? 255 : e + 112) << 23 | m << 13;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

FN uint16_t to_half(float f) {
	uint32_t u;
	memcpy(&u, &f, 4);
	const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
	u &= 0x7fffffff;
	if (u > 0x7f800000) return sign | 0x7e00;
	if (u >= 0x477ff000) return sign | 0x7c00; // rounds to 2^16 or more
	if (u < 0x38800000) {                       // below 2^-14: adding 1/2 rounds to multiples of 2^-24
		float a;
		memcpy(&a, &u, 4);
		a += 0.5f;
		memcpy(&u, &a, 4);
		return sign | (uint16_t)(u - 0x3f000000);
	}
	u += 0xfff + (u >> 13 & 1) - (112u << 23);
	return sign | (uint16_t)(u >> 13);
}

FN rf r_f16(const uint16_t *p) { return (rf){half(p[0]), half(p[1]), half(p[2]), half(p[3])}; }
FN rf r_bf16(const uint16_t *p) { return (rf)(ri){p[0] << 16, p[1] << 16, p[2] << 16, p[3] << 16}; }
FN void r_tof16(uint16_t *p, rf v) { for (int i = 0; i < 4; i++) p[i] = to_half(v[i]); }
// In two steps, of which the first is exact, so that a subnormal result is
// rounded once.
FN float power(int32_t k) {
	uint32_t u = (uint32_t)(k + 127) << 23;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
FN rf r_scale(rf p, rf n) {
	for (int i = 0; i < 4; i++) {
		const float f = n[i] == n[i] ? n[i] : 0; // not a number where p is none either
		const int32_t k = (int32_t)f, a = k >> 1;
		p[i] = p[i] * power(a) * power(k - a);
	}
	return p;
}

FN rb b_load(const uint8_t *p) { rb v; memcpy(&v, p, sizeof v); return v; }
FN rb b_low(rb v) { return v & 15; }
FN rb b_high(rb v) { return v >> 4; }
#define b_bits(v, shift, low) ((low) | ((v) >> (shift) & 3) << 4)

FN ri dot(const rb *q, const int8_t *x, ri c, int words) {
	int32_t s[4] = {c[0], c[1], c[2], c[3]};
	for (int j = 0; j < words; j++)
		for (int r = 0; r < 4; r++)
			for (int i = 0; i < 4; i++) s[r] += (int32_t)q[j][4 * r + i] * x[4 * j + i];
	return (ri){s[0], s[1], s[2], s[3]};
}
FN ri dot8(const rb *q, const int8_t *x, ri c) { return dot(q, x, c, 8); }
FN ri dot4(const rb *q, const int8_t *x, ri c) { return dot(q, x, c, 4); }
FN rb prep8u(rb q) { return q; }
FN ri dot8u(const rb *q, const int8_t *x, int32_t c) { return dot(q, x, i_set1(c), 8); }

FN uint32_t q_amax(const float *x) {
	uint32_t top = 0;
	for (int i = 0; i < 32; i++) {
		uint32_t u;
		memcpy(&u, x + i, 4);
		u &= 0x7fffffff;
		if (u > top) top = u;
	}
	return top;
}

FN void q_pack(const float *x, float scale, int8_t *q, int *lo, int *hi) {
	for (int i = 0; i < 32; i++) {
		float v = x[i] * scale + 12582912.0f; // to the nearest whole number
		int32_t k = (int32_t)(v - 12582912.0f);
		q[i] = (int8_t)k;
		*(i < 16 ? lo : hi) += k;
	}
}

#include "body.h"
