// 16 lanes: AVX-512 with byte products (VNNI).
#pragma STDC FP_CONTRACT OFF
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VARIANT(x) x##_avx512
#define VARIANT_NAME "avx512-vnni"
#define LANES 16
#define QCOLS 8
#define FCOLS 6
#define FGROUPS 4

typedef __m512 rf;
typedef __m512i ri, rb;

#define FN static inline __attribute__((always_inline))

FN rf r_set1(float x) { return _mm512_set1_ps(x); }
FN rf r_load(const float *p) { return _mm512_loadu_ps(p); }
FN void r_store(float *p, rf v) { _mm512_storeu_ps(p, v); }
FN rf r_add(rf a, rf b) { return _mm512_add_ps(a, b); }
FN rf r_sub(rf a, rf b) { return _mm512_sub_ps(a, b); }
FN rf r_mul(rf a, rf b) { return _mm512_mul_ps(a, b); }
FN rf r_div(rf a, rf b) { return _mm512_div_ps(a, b); }
FN rf r_fma(rf a, rf b, rf c) { return _mm512_fmadd_ps(a, b, c); }
FN rf r_max(rf a, rf b) { return _mm512_max_ps(a, b); }
FN rf r_min(rf a, rf b) { return _mm512_min_ps(a, b); }
FN rf r_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
FN rf r_bf16(const uint16_t *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16)); }
FN void r_tof16(uint16_t *p, rf v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
FN rf r_scale(rf p, rf n) { return _mm512_scalef_ps(p, n); }
FN rf r_keep(rf v, int n, rf o) {
	return _mm512_mask_blend_ps((__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1), o, v);
}
FN rf r_swap(rf a) { return _mm512_permute_ps(a, 0xb1); }
FN rf r_even(rf a) { return _mm512_moveldup_ps(a); }
FN rf r_odd(rf a) { return _mm512_movehdup_ps(a); }
FN rf r_flip_even(rf a) { return _mm512_xor_ps(a, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000))); }

FN ri i_set1(int32_t x) { return _mm512_set1_epi32(x); }
FN ri i_add(ri a, ri b) { return _mm512_add_epi32(a, b); }
FN ri i_mul(ri a, ri b) { return _mm512_mullo_epi32(a, b); }
FN ri i_128(ri a) { return _mm512_slli_epi32(a, 7); }
FN rf i_cvt(ri a) { return _mm512_cvtepi32_ps(a); }
FN ri i_s8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

FN rb b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
FN rb b_low(rb v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
FN rb b_high(rb v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
#define b_bits(v, shift, low) \
	_mm512_or_si512(low, _mm512_slli_epi16(_mm512_and_si512(_mm512_srli_epi16(v, shift), _mm512_set1_epi8(3)), 4))

// dot adds to each row's sum the products of its four bytes with the four at x.
// In assembly because the compiler knows no broadcast operand for this
// instruction and would spend another one on it.
FN ri dot(ri sum, rb q, const int8_t *x) {
	__asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(q), "m"(*(const int8_t(*)[4])x));
	return sum;
}
FN ri dots(const rb *q, const int8_t *x, ri c, const int words) {
#pragma GCC unroll 8
	for (int j = 0; j < words; j++) c = dot(c, q[j], x + 4 * j);
	return c;
}
FN ri dot8(const rb *q, const int8_t *x, ri c) { return dots(q, x, c, 8); }
FN ri dot4(const rb *q, const int8_t *x, ri c) { return dots(q, x, c, 4); }
FN rb prep8u(rb q) { return q; }
FN ri dot8u(const rb *q, const int8_t *x, int32_t c) { return dots(q, x, i_set1(c), 8); }

FN uint32_t q_amax(const float *x) {
	const __m512i mag = _mm512_set1_epi32(0x7fffffff);
	__m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x), mag), _mm512_and_si512(_mm512_loadu_si512(x + 16), mag));
	return _mm512_reduce_max_epu32(m);
}

FN void q_pack(const float *x, float scale, int8_t *q, int *lo, int *hi) {
	const __m512 s = _mm512_set1_ps(scale);
	const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), s)));
	const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), s)));
	_mm_storeu_si128((__m128i *)q, a);
	_mm_storeu_si128((__m128i *)(q + 16), b);
	const __m128i one = _mm_set1_epi8(1), none = _mm_setzero_si128();
	__m128i t = _mm_hadd_epi32(_mm_dpbusd_epi32(none, one, a), _mm_dpbusd_epi32(none, one, b));
	t = _mm_hadd_epi32(t, t);
	*lo = _mm_cvtsi128_si32(t);
	*hi = _mm_extract_epi32(t, 1);
}

#include "body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
