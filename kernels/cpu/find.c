#include <string.h>
#include "kern.h"

#if defined(__x86_64__)
#include <cpuid.h>

// Not every compiler's __builtin_cpu_supports knows this one.
static int half_precision(void) {
	unsigned a, b, c, d;
	return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
#endif

const tk_table *tk_find(const char *name) {
	const int best = !*name;
#if defined(__x86_64__)
	__builtin_cpu_init();
	const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && half_precision();
	const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
	if (avx512 && (best || !strcmp(name, "avx512"))) return &tk_avx512;
	if (avx2 && (best || !strcmp(name, "avx2"))) return &tk_avx2;
#endif
	return best || !strcmp(name, "generic") ? &tk_generic : 0;
}
