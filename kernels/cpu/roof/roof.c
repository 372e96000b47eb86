// The loops are in assembly where they can be: a compiler that sees that a
// product does not change takes it out of the loop, and what is measured then is
// the addition that is left.
#include "roof.h"

#if defined(__x86_64__)

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define CLOBBER512 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

static int has512(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
static int has256(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// All registers start at zero: products of zeros take as long as any.
#define ZERO(i) "vpxor %%xmm" #i ",%%xmm" #i ",%%xmm" #i "\n"
#define LOOP(code) \
	__asm__ volatile(TWELVE(ZERO) ZERO(12) ZERO(13) ZERO(14) \
	                 "1:\n" code "dec %0\njnz 1b\nvzeroupper\n" : "+r"(rounds) : : CLOBBER512, "cc")

#define FMA512(i) "vfmadd231ps %%zmm12,%%zmm13,%%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm12,%%ymm13,%%ymm" #i "\n"
#define DOT512(i) "vpdpbusd %%zmm12,%%zmm13,%%zmm" #i "\n"
#define PAIRS512(i) "vpmaddubsw %%zmm12,%%zmm13,%%zmm14\nvpaddw %%zmm14,%%zmm" #i ",%%zmm" #i "\n"
#define PAIRS256(i) "vpmaddubsw %%ymm12,%%ymm13,%%ymm14\nvpaddw %%ymm14,%%ymm" #i ",%%ymm" #i "\n"

double roof_fma(long rounds) {
	const double n = (double)rounds * 12;
	if (has512()) {
		LOOP(TWELVE(FMA512));
		return n * 16 * 2;
	}
	if (has256()) {
		LOOP(TWELVE(FMA256));
		return n * 8 * 2;
	}
	return 0;
}

double roof_dot(long rounds) {
	const double n = (double)rounds * 12;
	if (!has512() || !__builtin_cpu_supports("avx512vnni")) return 0;
	LOOP(TWELVE(DOT512));
	return n * 64 * 2;
}

double roof_pairs(long rounds) {
	const double n = (double)rounds * 12;
	if (has512()) {
		LOOP(TWELVE(PAIRS512));
		return n * 64 * 2;
	}
	if (has256()) {
		LOOP(TWELVE(PAIRS256));
		return n * 32 * 2;
	}
	return 0;
}

#define READ(r, at, i) "vpxor " #at "(%0),%%" #r #i ",%%" #r #i "\n"

uint64_t roof_read(const void *p, size_t n) {
	const char *end = (const char *)p + n;
	if (has512()) {
		__asm__ volatile(TWELVE(ZERO)
		                 "1:\nvpxorq (%0),%%zmm0,%%zmm0\nvpxorq 64(%0),%%zmm1,%%zmm1\nvpxorq 128(%0),%%zmm2,%%zmm2\nvpxorq 192(%0),%%zmm3,%%zmm3\n"
		                 "vpxorq 256(%0),%%zmm4,%%zmm4\nvpxorq 320(%0),%%zmm5,%%zmm5\nvpxorq 384(%0),%%zmm6,%%zmm6\nvpxorq 448(%0),%%zmm7,%%zmm7\n"
		                 "add $512,%0\ncmp %1,%0\njb 1b\nvzeroupper\n" : "+r"(p) : "r"(end) : CLOBBER512, "cc", "memory");
		return 1;
	}
	if (has256()) {
		__asm__ volatile(TWELVE(ZERO)
		                 "1:\n" READ(ymm, 0, 0) READ(ymm, 32, 1) READ(ymm, 64, 2) READ(ymm, 96, 3) READ(ymm, 128, 4) READ(ymm, 160, 5) READ(ymm, 192, 6) READ(ymm, 224, 7)
		                 "add $256,%0\ncmp %1,%0\njb 1b\nvzeroupper\n" : "+r"(p) : "r"(end) : CLOBBER512, "cc", "memory");
		return 1;
	}
	uint64_t x = 0;
	for (const char *q = p; q < end; q += 64)
		for (int i = 0; i < 8; i++) x ^= ((const uint64_t *)q)[i];
	return x;
}

#else

double roof_fma(long rounds) {
	(void)rounds;
	return 0;
}
double roof_dot(long rounds) {
	(void)rounds;
	return 0;
}
double roof_pairs(long rounds) {
	(void)rounds;
	return 0;
}

uint64_t roof_read(const void *p, size_t n) {
	uint64_t x[8] = {0};
	for (const char *q = p, *end = q + n; q < end; q += 64)
		for (int i = 0; i < 8; i++) x[i] ^= ((const uint64_t *)q)[i];
	return x[0] ^ x[1] ^ x[2] ^ x[3] ^ x[4] ^ x[5] ^ x[6] ^ x[7];
}

#endif
