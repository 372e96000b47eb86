// What nvidia.go calls. Handles are words, so that Go need not make pointers of them. Every function after
// cu_open makes the context c current on the calling thread first, if it is not; c and the handles are checked
// by the driver, not here.
#ifndef TANDEM_BIND_H
#define TANDEM_BIND_H

#include "abi.h"

// The driver's functions, each under its exported name.
struct cuda {
#define X(name, params) CUresult(*name) params;
  CUDA_FUNCTIONS(X)
#undef X
};

typedef uintptr_t word;

// cu_open loads a library and fills a table, which is never freed. What is not there is named in missing (a
// symbol) or in error (why the library did not load); then the table is null.
struct cuda *cu_open(const char *library, const char **missing, char *error, size_t errorLen);

CUresult cu_init(struct cuda *d, int *version, int *count);
struct cu_facts {
  char name[256], pci[32];
  CUuuid uuid;
  size_t bytes;
  int major, minor, sms, warp, l2, sharedPerSM, sharedPerBlock, vmm, memfd, hostIsSame;
};
CUresult cu_facts(struct cuda *d, int ordinal, struct cu_facts *f);
CUresult cu_peer(struct cuda *d, int from, int to, int *access, int *atomics, int *rank);
CUresult cu_retain(struct cuda *d, int ordinal, word *c);
CUresult cu_release(struct cuda *d, int ordinal);

CUresult cu_sync(struct cuda *d, word c);
CUresult cu_enable_peer(struct cuda *d, word c, word other);

CUresult cu_mem_info(struct cuda *d, word c, size_t *free, size_t *total);
CUresult cu_alloc(struct cuda *d, word c, size_t n, CUdeviceptr *p);
CUresult cu_free(struct cuda *d, word c, CUdeviceptr p);
CUresult cu_range(struct cuda *d, word c, CUdeviceptr p, CUdeviceptr *base, size_t *n);
CUresult cu_register(struct cuda *d, word c, void *mem, size_t n, CUdeviceptr *p);
CUresult cu_unregister(struct cuda *d, word c, void *mem);

CUresult cu_granularity(struct cuda *d, word c, int device, size_t *n);
CUresult cu_create(struct cuda *d, word c, int device, size_t n, CUmemGenericAllocationHandle *m);
CUresult cu_export_mem(struct cuda *d, word c, CUmemGenericAllocationHandle m, int *fd);
CUresult cu_import_mem(struct cuda *d, word c, int fd, CUmemGenericAllocationHandle *m);
CUresult cu_release_mem(struct cuda *d, word c, CUmemGenericAllocationHandle m);
CUresult cu_reserve(struct cuda *d, word c, size_t n, CUdeviceptr *p);
CUresult cu_free_reserved(struct cuda *d, word c, CUdeviceptr p, size_t n);
CUresult cu_map(struct cuda *d, word c, CUdeviceptr p, size_t n, CUmemGenericAllocationHandle m);
CUresult cu_unmap(struct cuda *d, word c, CUdeviceptr p, size_t n);
CUresult cu_set_access(struct cuda *d, word c, CUdeviceptr p, size_t n, int device, unsigned flags);

CUresult cu_export_ipc(struct cuda *d, word c, CUdeviceptr p, void *handle);
CUresult cu_open_ipc(struct cuda *d, word c, const void *handle, CUdeviceptr *p);
CUresult cu_close_ipc(struct cuda *d, word c, CUdeviceptr p);

CUresult cu_write(struct cuda *d, word c, CUdeviceptr to, const void *from, size_t n);
CUresult cu_read(struct cuda *d, word c, void *to, CUdeviceptr from, size_t n);
CUresult cu_copy(struct cuda *d, word c, word s, CUdeviceptr to, CUdeviceptr from, size_t n);
CUresult cu_copy_peer(struct cuda *d, word c, word s, CUdeviceptr to, word toContext, CUdeviceptr from, word fromContext, size_t n);
CUresult cu_fill8(struct cuda *d, word c, word s, CUdeviceptr to, unsigned char v, size_t n);
CUresult cu_fill32(struct cuda *d, word c, word s, CUdeviceptr to, unsigned v, size_t n);

CUresult cu_load(struct cuda *d, word c, const void *image, word *m, char *log, size_t logLen);
CUresult cu_unload(struct cuda *d, word c, word m);
CUresult cu_func(struct cuda *d, word c, word m, const char *name, word *f);
CUresult cu_global(struct cuda *d, word c, word m, const char *name, CUdeviceptr *p, size_t *n);
struct cu_func_info { int maxThreads, registers, shared, local, binary; };
CUresult cu_func_info(struct cuda *d, word c, word f, struct cu_func_info *i);
CUresult cu_allow_shared(struct cuda *d, word c, word f, int bytes);
CUresult cu_occupancy(struct cuda *d, word c, word f, int threads, size_t shared, int *blocks);
CUresult cu_launch(struct cuda *d, word c, word s, word f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *args, size_t argsLen);

CUresult cu_new_stream(struct cuda *d, word c, word *s);
CUresult cu_close_stream(struct cuda *d, word c, word s);
CUresult cu_sync_stream(struct cuda *d, word c, word s);
CUresult cu_done(struct cuda *d, word c, word s);

CUresult cu_new_event(struct cuda *d, word c, unsigned flags, word *e);
CUresult cu_close_event(struct cuda *d, word c, word e);
CUresult cu_record(struct cuda *d, word c, word s, word e);
CUresult cu_wait_event(struct cuda *d, word c, word s, word e);
CUresult cu_sync_event(struct cuda *d, word c, word e);
CUresult cu_happened(struct cuda *d, word c, word e);
CUresult cu_elapsed(struct cuda *d, word c, word from, word to, float *ms);
CUresult cu_export_event(struct cuda *d, word c, word e, void *handle);
CUresult cu_open_event(struct cuda *d, word c, const void *handle, word *e);

CUresult cu_write32(struct cuda *d, word c, word s, CUdeviceptr p, uint32_t v);
CUresult cu_wait32(struct cuda *d, word c, word s, CUdeviceptr p, uint32_t v, unsigned cond);

CUresult cu_begin_capture(struct cuda *d, word c, word s);
CUresult cu_end_capture(struct cuda *d, word c, word s, word *g);
CUresult cu_close_graph(struct cuda *d, word c, word g);
CUresult cu_instantiate(struct cuda *d, word c, word g, word *x);
CUresult cu_update(struct cuda *d, word c, word x, word g);
CUresult cu_launch_graph(struct cuda *d, word c, word s, word x);
CUresult cu_close_exec(struct cuda *d, word c, word x);

#endif
