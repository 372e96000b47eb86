#include <string.h>
#include "kern.h"

const tk_table *tk_find(const char *name) {
#if defined(__x86_64__)
	__builtin_cpu_init();
	const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
	const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
	const int best = !*name;
	if (avx512 && (best || !strcmp(name, "avx512"))) return &tk_avx512;
	if (avx2 && (best || !strcmp(name, "avx2"))) return &tk_avx2;
	if (!best && (!strcmp(name, "avx512") || !strcmp(name, "avx2"))) return 0;
#endif
	return !*name || !strcmp(name, "generic") ? &tk_generic : 0;
}
