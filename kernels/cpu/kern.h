// The kernels' common ground: how packed weights and activations lie in memory
// and the table through which a variant (generic, AVX2, AVX-512) is called.
//
// Every variant computes every element by the same sequence of IEEE operations,
// so all of them give the same bits. What makes that so:
//  - integer sums are exact in any order;
//  - a row of a product, a key's score and a dimension of a value are lanes, and
//    a lane sums over the other index in ascending order with fused multiply-add;
//  - where a sum runs across lanes it is done in 16 lanes and closed by one
//    fixed tree, whatever the width of a register;
//  - multiplication and addition are fused where the source says fma and nowhere
//    else. The compiler keeps to that because the build asks for ISO C
//    (-std=c11), in which GCC does not contract expressions; for compilers that
//    do by default, each source turns it off by pragma.
#ifndef TANDEM_KERN_H
#define TANDEM_KERN_H

#include <stddef.h>
#include <stdint.h>

// Formats, with the numbers of kernels.Type.
enum { tk_f32 = 1, tk_f16, tk_bf16, tk_q4_0, tk_q4_1, tk_q8_0, tk_q6_k };

// Weights: 16 rows make a group, and a group's memory is one run, block of 32
// columns after block. In a group:
//
//   F32, F16, BF16   [column][16 rows]
//   Q4_1   per block: d f16[16], m f16[16], quants
//   Q4_0   per two blocks: d f16[2][16], quants, quants
//   Q8_0   per two blocks: d f16[2][16], bytes, bytes
//   Q6_K   per eight blocks: d f16[16], 32 bytes unused, scales int8[8][2][16],
//          upper bits[8], quants[8]
//
// where
//   quants      256 bytes [4][16 rows][4]: byte (j, row, i) has column 4j+i in
//               its low half and column 16+4j+i in its high half
//   upper bits  128 bytes [2][16 rows][4]: bits 2k of byte (p, row, i) belong to
//               column 16p+4k+i
//   bytes       512 bytes [8][16 rows][4]: byte (j, row, i) is column 4j+i plus
//               128, as an unsigned byte
//
// An odd last block of Q4_0 and Q8_0 ends its group early.
enum { tk_q4_1_block = 320, tk_q4_0_pair = 576, tk_q8_0_pair = 1088, tk_q6_k_super = 3392 };

static inline size_t tk_group_bytes(int type, int cols) {
	size_t nb = (size_t)cols / 32;
	switch (type) {
	case tk_f32: return (size_t)cols * 64;
	case tk_f16:
	case tk_bf16: return (size_t)cols * 32;
	case tk_q4_1: return nb * tk_q4_1_block;
	case tk_q4_0: return nb / 2 * tk_q4_0_pair + nb % 2 * (64 + 256);
	case tk_q8_0: return nb / 2 * tk_q8_0_pair + nb % 2 * (64 + 512);
	case tk_q6_k: return nb / 8 * tk_q6_k_super;
	}
	return 0;
}

// Quantised activations: 8 rows make a tile, [block][8 rows][32] int8 and then
// [block][6 numbers][8 rows] of four bytes each. The numbers of a row's block:
// d float, the scale; s float, the block's sum; and sums of the int8s times what
// the unsigned weights are too large by, to start integer sums with.
//
// Fine activations have a second plane of int8s behind the first, 7 more bits of
// each value: it is d·(128 first + second), and there are four more numbers, the
// sums of the second plane.
enum { tk_tile = 8, tk_nums = 6, tk_fine_nums = 10, tk_d = 0, tk_s, tk_sum8, tk_sum128, tk_sum32lo, tk_sum32hi, tk_second = 4 };

static inline size_t tk_tile_bytes(int cols, int fine) {
	return (size_t)cols / 32 * (fine ? 2 * tk_tile * 32 + tk_fine_nums * tk_tile * 4 : tk_tile * 32 + tk_nums * tk_tile * 4);
}

// A block of attention is tk_keys positions, or one page if pages are larger,
// or as many whole pages as fit. Its result for one query vector is head_dim
// floats, then their maximum score and the sum of their weights.
enum { tk_keys = 256, tk_part_extra = 16, tk_queries = 6, tk_rows_at_once = 32 };

// The keys of a page lie [16 tokens' group][head_dim][16 tokens], its values
// [token][head_dim]; both of type elem, tk_f16 or tk_f32.
typedef struct {
	int head_dim, page_tokens, elem;
	size_t page_stride; // bytes from one page of the unit to the next
} tk_cache;

static inline int tk_block_pages(const tk_cache *c) {
	return c->page_tokens >= tk_keys ? 1 : tk_keys / c->page_tokens;
}

// Every function that may take long adds to *steps as it goes.
typedef struct {
	const char *name;

	// norm: y = x/rms(x) * w for n rows of x, to float rows and tiles from row to
	// on. Either may be null; without float rows, tmp has room for cols floats.
	void (*norm)(const float *x, long ldx, const float *w, float eps, int cols, int n, int to,
	             float *f, long ldf, uint8_t *t, int fine, float *tmp);
	// quant fills tiles with rows r0..r1 of x.
	void (*quant)(const float *x, long ldx, int cols, int r0, int r1, uint8_t *t, int fine);
	// gemm_q: out[r][row] = or += w[row]·tiles[r] for the rows of groups g0..g1.
	// out points to row 0's column 0 of out.
	void (*gemm_q)(int type, const uint8_t *w, int g0, int g1, int cols, const uint8_t *t, int fine, int n,
	               float *out, long ldo, int add, uint64_t *steps);
	// gemm_f is the same for float activations. Quantised weights are expanded
	// to scratch first, tk_expand groups at a time.
	void (*gemm_f)(int type, const uint8_t *w, int g0, int g1, int cols, const float *x, long ldx, int n,
	               float *out, long ldo, int add, float *scratch, uint64_t *steps);
	// rope rotates the pairs of columns c0..c1 (multiples of 16) of n rows at
	// consecutive positions. table holds cos, sin for each pair of a head, for the
	// first row's position and on.
	void (*rope)(float *x, long ldx, int n, int c0, int c1, int head_dim, const float *table);
	// append puts n tokens' keys and values of one unit into the cache from
	// position pos on. next is the page of what will be put next, or null.
	void (*append)(const tk_cache *c, uint8_t *unit, const uint32_t *pages, int pos, int n,
	               const float *k, const float *v, long ld, uint8_t *next);
	// attend: rows rows at positions pos…, heads query heads of one unit, blocks
	// b0..b1 of the cache. Without part, b0 is 0 and the results go to out (row r
	// at out + r*ldo, heads side by side); with part, each block's result of row 0
	// goes to part + block*part_block + head*part_head. next is the memory of the
	// keys that will be wanted after these, if that is known.
	void (*attend)(const tk_cache *c, const uint8_t *unit, const uint32_t *pages,
	               const float *q, long ldq, int pos, int rows, int heads, int b0, int b1,
	               float *out, long ldo, float *part, long part_block, long part_head,
	               const uint8_t *next, float *scratch, uint64_t *steps);
	// fold joins the blocks' results of one query vector.
	void (*fold)(int head_dim, const float *part, long part_block, int blocks, float *out);
	// swiglu: silu(gate)*up for columns c0..c1 (multiples of 32) of n rows, to
	// float rows (unless f is null) and tiles (unless t is null).
	void (*swiglu)(const float *gate, const float *up, long ld, int c0, int c1, int n,
	               float *f, long ldf, uint8_t *t, int fine, int cols);
	// embed expands columns c0..c1 of one row of packed weights.
	void (*embed)(int type, const uint8_t *w, int cols, int row, int c0, int c1, float *out);
	// argmax is the lowest index in lo..hi with the largest x, -1 if all are NaN.
	int (*argmax)(const float *x, int lo, int hi);
} tk_table;

enum { tk_expand = 4 };

// Floats of scratch that attend needs.
static inline size_t tk_attend_floats(int head_dim, int page_tokens, int heads) {
	size_t keys = page_tokens >= tk_keys ? (size_t)page_tokens : (size_t)tk_keys;
	size_t vecs = (size_t)tk_rows_at_once * heads;
	return tk_queries * keys                           // scores
	       + tk_queries * (size_t)head_dim             // a tile's queries
	       + tk_queries * (size_t)(head_dim + 2)       // a block's results
	       + vecs * (size_t)(head_dim + tk_part_extra) // states
	       + 64;
}

extern const tk_table tk_generic;
#if defined(__x86_64__)
extern const tk_table tk_avx2, tk_avx512;
#endif

// tk_find is the table called name ("" for the best), or null if this machine
// cannot run it or there is none of that name.
const tk_table *tk_find(const char *name);

#endif
