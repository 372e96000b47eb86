// 8 lanes: AVX2 with FMA and half-precision conversion.
#pragma STDC FP_CONTRACT OFF
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VARIANT(x) x##_avx2
#define VARIANT_NAME "avx2"
#define LANES 8
#define QCOLS 4
#define FCOLS 6
#define FGROUPS 2

typedef __m256 rf;
typedef __m256i ri, rb;

#define FN static inline __attribute__((always_inline))

FN rf r_set1(float x) { return _mm256_set1_ps(x); }
FN rf r_load(const float *p) { return _mm256_loadu_ps(p); }
FN void r_store(float *p, rf v) { _mm256_storeu_ps(p, v); }
FN rf r_add(rf a, rf b) { return _mm256_add_ps(a, b); }
FN rf r_sub(rf a, rf b) { return _mm256_sub_ps(a, b); }
FN rf r_mul(rf a, rf b) { return _mm256_mul_ps(a, b); }
FN rf r_div(rf a, rf b) { return _mm256_div_ps(a, b); }
FN rf r_fma(rf a, rf b, rf c) { return _mm256_fmadd_ps(a, b, c); }
FN rf r_max(rf a, rf b) { return _mm256_max_ps(a, b); }
FN rf r_min(rf a, rf b) { return _mm256_min_ps(a, b); }
FN rf r_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
FN rf r_bf16(const uint16_t *p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16)); }
FN void r_tof16(uint16_t *p, rf v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
FN rf power(__m256i k) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23)); }
// In two steps, of which the first is exact, so that a subnormal result is
// rounded once. Where n is not a number, p is none either and stays so.
FN rf r_scale(rf p, rf n) {
	const __m256i k = _mm256_cvtps_epi32(n), a = _mm256_srai_epi32(k, 1);
	return _mm256_mul_ps(_mm256_mul_ps(p, power(a)), power(_mm256_sub_epi32(k, a)));
}
FN rf r_keep(rf v, int n, rf o) {
	const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	return _mm256_blendv_ps(o, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes)));
}
FN rf r_swap(rf a) { return _mm256_permute_ps(a, 0xb1); }
FN rf r_even(rf a) { return _mm256_moveldup_ps(a); }
FN rf r_odd(rf a) { return _mm256_movehdup_ps(a); }
FN rf r_flip_even(rf a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000))); }

FN ri i_set1(int32_t x) { return _mm256_set1_epi32(x); }
FN ri i_add(ri a, ri b) { return _mm256_add_epi32(a, b); }
FN ri i_mul(ri a, ri b) { return _mm256_mullo_epi32(a, b); }
FN ri i_128(ri a) { return _mm256_slli_epi32(a, 7); }
FN rf i_cvt(ri a) { return _mm256_cvtepi32_ps(a); }
FN ri i_s8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

FN rb b_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
FN rb b_low(rb v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
FN rb b_high(rb v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
#define b_bits(v, shift, low) \
	_mm256_or_si256(low, _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(v, shift), _mm256_set1_epi8(3)), 4))

FN __m256i four(const int8_t *x) {
	int32_t v;
	memcpy(&v, x, 4);
	return _mm256_set1_epi32(v);
}
FN __m256i wide(__m256i s) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); }

// Pairs of products are added in 16 bits: 2·15·127 eight times is 30480.
FN ri dot8(const rb *q, const int8_t *x, ri c) {
	__m256i s = _mm256_maddubs_epi16(q[0], four(x));
#pragma GCC unroll 8
	for (int j = 1; j < 8; j++) s = _mm256_add_epi16(s, _mm256_maddubs_epi16(q[j], four(x + 4 * j)));
	return _mm256_add_epi32(c, wide(s));
}
// 2·63·127 twice is 32004.
FN ri dot4(const rb *q, const int8_t *x, ri c) {
	__m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(q[0], four(x)), _mm256_maddubs_epi16(q[1], four(x + 4)));
	__m256i t = _mm256_add_epi16(_mm256_maddubs_epi16(q[2], four(x + 8)), _mm256_maddubs_epi16(q[3], four(x + 12)));
	return _mm256_add_epi32(c, _mm256_add_epi32(wide(s), wide(t)));
}
// 2·255·127 is too much for 16 bits, 2·128·127 = 32512 is not: the weights get
// their sign back, and it moves to the activations.
FN rb prep8u(rb q) { return _mm256_xor_si256(q, _mm256_set1_epi8(-128)); }
FN ri dot8u(const rb *q, const int8_t *x, int32_t c) {
	(void)c; // is for weights that are 128 too large
	__m256i s = _mm256_setzero_si256();
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) s = _mm256_add_epi32(s, wide(_mm256_maddubs_epi16(_mm256_abs_epi8(q[j]), _mm256_sign_epi8(four(x + 4 * j), q[j]))));
	return s;
}

FN uint32_t q_amax(const float *x) {
	const __m256i mag = _mm256_set1_epi32(0x7fffffff);
	__m256i m = _mm256_setzero_si256();
#pragma GCC unroll 4
	for (int i = 0; i < 32; i += 8) m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), mag));
	__m128i t = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
	t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4e));
	t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(t);
}

FN int sum8(__m256i v) {
	__m128i t = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
	t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
	return _mm_cvtsi128_si32(t);
}

FN void q_pack(const float *x, float scale, int8_t *q, int *lo, int *hi) {
	__m256i v[4];
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(scale)));
	*lo = sum8(_mm256_add_epi32(v[0], v[1]));
	*hi = sum8(_mm256_add_epi32(v[2], v[3]));
	// Packing works in halves of 16 bytes; the last step puts the words in order.
	__m256i w = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
	_mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(w, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

#include "body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
