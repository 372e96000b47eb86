// drive MODEL THREADS RUNS: speed of llama.cpp on MODEL, a line each run:
// tokens a second of reading a prompt of 512, and of writing 96 tokens at 1, 8
// and 16 streams that each have a prompt of 32. Choosing tokens is not counted.
#define _POSIX_C_SOURCE 200809L
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { prompt = 512, context = 32, steps = 96, most = 16 };

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void quiet(enum ggml_log_level l, const char *t, void *u) { (void)l, (void)t, (void)u; }

static void die(const char *what) {
	fprintf(stderr, "drive: %s\n", what);
	exit(1);
}

// A batch is filled token by token; which tokens does not matter for speed.
static void add(struct llama_batch *b, int token, int pos, int seq, int out) {
	int i = b->n_tokens++;
	b->token[i] = 100 + token * 7919L % 40000;
	b->pos[i] = pos;
	b->n_seq_id[i] = 1;
	b->seq_id[i][0] = seq;
	b->logits[i] = out;
}

static void run(struct llama_context *c, struct llama_batch *b) {
	if (llama_decode(c, *b)) die("llama_decode failed");
	(void)llama_get_logits_ith(c, -1);
	b->n_tokens = 0;
}

int main(int argc, char **argv) {
	if (argc != 4) die("usage: drive MODEL THREADS RUNS");
	int threads = atoi(argv[2]), runs = atoi(argv[3]);
	llama_log_set(quiet, NULL);
	llama_backend_init();
	struct llama_model *m = llama_model_load_from_file(argv[1], llama_model_default_params());
	if (!m) die("the model does not load");
	struct llama_context_params p = llama_context_default_params();
	p.n_ctx = 8192;
	p.n_batch = p.n_ubatch = 512;
	p.n_seq_max = most;
	p.n_threads = p.n_threads_batch = threads;
	struct llama_context *c = llama_init_from_model(m, p);
	if (!c) die("no context");
	struct llama_batch b = llama_batch_init(most * context, 0, 1);
	static const int streams[] = {1, 8, 16};
	for (int r = 0; r <= runs; r++) { // the first warms up
		llama_memory_clear(llama_get_memory(c), true);
		for (int i = 0; i < prompt; i++) add(&b, i, i, 0, i == prompt - 1);
		double t = now();
		run(c, &b);
		double speed[4] = {prompt / (now() - t)};
		for (int k = 0; k < 3; k++) {
			int n = streams[k];
			llama_memory_clear(llama_get_memory(c), true);
			for (int s = 0; s < n; s++)
				for (int i = 0; i < context; i++) add(&b, s * context + i, i, s, i == context - 1);
			run(c, &b);
			t = now();
			for (int i = 0; i < steps; i++) {
				for (int s = 0; s < n; s++) add(&b, i * n + s, context + i, s, 1);
				run(c, &b);
			}
			speed[k + 1] = steps * n / (now() - t);
		}
		if (r) printf("%.1f %.1f %.1f %.1f\n", speed[0], speed[1], speed[2], speed[3]);
		fflush(stdout);
	}
}
