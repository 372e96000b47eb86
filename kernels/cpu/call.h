// What Go calls: the functions of a table, which Go cannot call by pointer.
#ifndef TANDEM_CALL_H
#define TANDEM_CALL_H

#include "kern.h"

static inline void tk_norm(const tk_table *k, const float *x, long ldx, const float *w, float eps, int cols, int n, int to,
                           float *f, long ldf, uint8_t *t, int fine, float *tmp) {
	k->norm(x, ldx, w, eps, cols, n, to, f, ldf, t, fine, tmp);
}

static inline void tk_quant(const tk_table *k, const float *x, long ldx, int cols, int r0, int r1, uint8_t *t, int fine) {
	k->quant(x, ldx, cols, r0, r1, t, fine);
}

static inline void tk_gemm_q(const tk_table *k, int type, const uint8_t *w, int g0, int g1, int cols, const uint8_t *t, int fine, int n,
                             float *out, long ldo, int add, uint64_t *steps) {
	k->gemm_q(type, w, g0, g1, cols, t, fine, n, out, ldo, add, steps);
}

static inline void tk_gemm_f(const tk_table *k, int type, const uint8_t *w, int g0, int g1, int cols, const float *x, long ldx, int n,
                             float *out, long ldo, int add, float *scratch, uint64_t *steps) {
	k->gemm_f(type, w, g0, g1, cols, x, ldx, n, out, ldo, add, scratch, steps);
}

static inline void tk_rope(const tk_table *k, float *x, long ldx, int n, int c0, int c1, int head_dim, const float *table) {
	k->rope(x, ldx, n, c0, c1, head_dim, table);
}

static inline void tk_append(const tk_table *k, int head_dim, int page_tokens, int elem, size_t page_stride,
                             uint8_t *unit, const uint32_t *pages, int pos, int n, const float *key, const float *value, long ld, uint8_t *next) {
	const tk_cache c = {head_dim, page_tokens, elem, page_stride};
	k->append(&c, unit, pages, pos, n, key, value, ld, next);
}

static inline void tk_attend(const tk_table *k, int head_dim, int page_tokens, int elem, size_t page_stride,
                             const uint8_t *unit, const uint32_t *pages, const float *q, long ldq, int pos, int rows, int heads, int b0, int b1,
                             float *out, long ldo, float *part, long part_block, long part_head,
                             const uint8_t *next, float *scratch, uint64_t *steps) {
	const tk_cache c = {head_dim, page_tokens, elem, page_stride};
	k->attend(&c, unit, pages, q, ldq, pos, rows, heads, b0, b1, out, ldo, part, part_block, part_head, next, scratch, steps);
}

static inline void tk_fold(const tk_table *k, int head_dim, const float *part, long part_block, int blocks, float *out) {
	k->fold(head_dim, part, part_block, blocks, out);
}

static inline void tk_swiglu(const tk_table *k, const float *gate, const float *up, long ld, int c0, int c1, int n,
                             float *f, long ldf, uint8_t *t, int fine, int cols) {
	k->swiglu(gate, up, ld, c0, c1, n, f, ldf, t, fine, cols);
}

static inline void tk_embed(const tk_table *k, int type, const uint8_t *w, int cols, int row, int c0, int c1, float *out) {
	k->embed(type, w, cols, row, c0, c1, out);
}

static inline int tk_argmax(const tk_table *k, const float *x, int lo, int hi) {
	return k->argmax(x, lo, hi);
}

#endif
