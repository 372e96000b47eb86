//go:build linux && cgo

#include "bind.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda *cu_open(const char *library, const char **missing, char *error, size_t errorLen) {
  void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(error, errorLen, "%s", dlerror());
    return NULL;
  }
  struct cuda *d = calloc(1, sizeof *d);
  if (!d) abort();
#define X(name, params)                             \
  if (!(d->name = (CUresult(*) params)dlsym(lib, #name))) { \
    *missing = #name;                               \
    free(d);                                        \
    return NULL;                                    \
  }
  CUDA_FUNCTIONS(X)
#undef X
  return d;
}

CUresult cu_init(struct cuda *d, int *version, int *count) {
  CUresult r = d->cuDriverGetVersion(version);
  if (!r) r = d->cuInit(0);
  if (!r) r = d->cuDeviceGetCount(count);
  return r;
}

CUresult cu_facts(struct cuda *d, int ordinal, struct cu_facts *f) {
  CUdevice v;
  CUresult r = d->cuDeviceGet(&v, ordinal);
  if (!r) r = d->cuDeviceGetName(f->name, sizeof f->name, v);
  if (!r) r = d->cuDeviceGetPCIBusId(f->pci, sizeof f->pci, v);
  if (!r) r = d->cuDeviceGetUuid_v2(&f->uuid, v);
  if (!r) r = d->cuDeviceTotalMem_v2(&f->bytes, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->sharedPerSM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->sharedPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->memfd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, v);
  if (!r) r = d->cuDeviceGetAttribute(&f->hostIsSame, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, v);
  return r;
}

CUresult cu_peer(struct cuda *d, int from, int to, int *access, int *atomics, int *rank) {
  CUdevice a, b;
  CUresult r = d->cuDeviceGet(&a, from);
  if (!r) r = d->cuDeviceGet(&b, to);
  if (!r) r = d->cuDeviceCanAccessPeer(access, a, b);
  if (!r) r = d->cuDeviceGetP2PAttribute(atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a, b);
  if (!r) r = d->cuDeviceGetP2PAttribute(rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, a, b);
  return r;
}

CUresult cu_retain(struct cuda *d, int ordinal, word *c) {
  CUdevice v;
  CUresult r = d->cuDeviceGet(&v, ordinal);
  if (!r) r = d->cuDevicePrimaryCtxRetain((CUcontext *)c, v);
  return r;
}

CUresult cu_release(struct cuda *d, int ordinal) {
  CUdevice v;
  CUresult r = d->cuDeviceGet(&v, ordinal);
  return r ? r : d->cuDevicePrimaryCtxRelease_v2(v);
}

// use makes c current on this thread. The driver is asked what is current now, because others in this process
// may have changed it.
static CUresult use(struct cuda *d, word c) {
  CUcontext now;
  CUresult r = d->cuCtxGetCurrent(&now);
  if (!r && now == (CUcontext)c) return 0;
  return d->cuCtxSetCurrent((CUcontext)c);
}

#define IN(name, ...)                          \
  {                                            \
    CUresult r = use(d, c);                    \
    return r ? r : d->name(__VA_ARGS__);       \
  }

CUresult cu_sync(struct cuda *d, word c) IN(cuCtxSynchronize)

CUresult cu_enable_peer(struct cuda *d, word c, word other) IN(cuCtxEnablePeerAccess, (CUcontext)other, 0)

CUresult cu_mem_info(struct cuda *d, word c, size_t *free, size_t *total) IN(cuMemGetInfo_v2, free, total)
CUresult cu_alloc(struct cuda *d, word c, size_t n, CUdeviceptr *p) IN(cuMemAlloc_v2, p, n)
CUresult cu_free(struct cuda *d, word c, CUdeviceptr p) IN(cuMemFree_v2, p)
CUresult cu_range(struct cuda *d, word c, CUdeviceptr p, CUdeviceptr *base, size_t *n) IN(cuMemGetAddressRange_v2, base, n, p)

CUresult cu_register(struct cuda *d, word c, void *mem, size_t n, CUdeviceptr *p) {
  CUresult r = use(d, c);
  if (!r) r = d->cuMemHostRegister_v2(mem, n, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (r) return r;
  r = d->cuMemHostGetDevicePointer_v2(p, mem, 0);
  if (r) d->cuMemHostUnregister(mem);
  return r;
}
CUresult cu_unregister(struct cuda *d, word c, void *mem) IN(cuMemHostUnregister, mem)

static CUmemAllocationProp onDevice(int device) {
  CUmemAllocationProp p = {0};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  return p;
}
CUresult cu_granularity(struct cuda *d, word c, int device, size_t *n) {
  CUmemAllocationProp p = onDevice(device);
  IN(cuMemGetAllocationGranularity, n, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
}
CUresult cu_create(struct cuda *d, word c, int device, size_t n, CUmemGenericAllocationHandle *m) {
  CUmemAllocationProp p = onDevice(device);
  IN(cuMemCreate, m, n, &p, 0)
}
CUresult cu_export_mem(struct cuda *d, word c, CUmemGenericAllocationHandle m, int *fd)
    IN(cuMemExportToShareableHandle, fd, m, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
// The descriptor is the pointer, it is not pointed to.
CUresult cu_import_mem(struct cuda *d, word c, int fd, CUmemGenericAllocationHandle *m)
    IN(cuMemImportFromShareableHandle, m, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
CUresult cu_release_mem(struct cuda *d, word c, CUmemGenericAllocationHandle m) IN(cuMemRelease, m)
CUresult cu_reserve(struct cuda *d, word c, size_t n, CUdeviceptr *p) IN(cuMemAddressReserve, p, n, 0, 0, 0)
CUresult cu_free_reserved(struct cuda *d, word c, CUdeviceptr p, size_t n) IN(cuMemAddressFree, p, n)
CUresult cu_map(struct cuda *d, word c, CUdeviceptr p, size_t n, CUmemGenericAllocationHandle m) IN(cuMemMap, p, n, 0, m, 0)
CUresult cu_unmap(struct cuda *d, word c, CUdeviceptr p, size_t n) IN(cuMemUnmap, p, n)
CUresult cu_set_access(struct cuda *d, word c, CUdeviceptr p, size_t n, int device, unsigned flags) {
  CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
  IN(cuMemSetAccess, p, n, &a, 1)
}

CUresult cu_export_ipc(struct cuda *d, word c, CUdeviceptr p, void *handle) IN(cuIpcGetMemHandle, handle, p)
CUresult cu_open_ipc(struct cuda *d, word c, const void *handle, CUdeviceptr *p)
    IN(cuIpcOpenMemHandle_v2, p, *(const CUipcMemHandle *)handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
CUresult cu_close_ipc(struct cuda *d, word c, CUdeviceptr p) IN(cuIpcCloseMemHandle, p)

CUresult cu_write(struct cuda *d, word c, CUdeviceptr to, const void *from, size_t n) IN(cuMemcpyHtoD_v2, to, from, n)
CUresult cu_read(struct cuda *d, word c, void *to, CUdeviceptr from, size_t n) IN(cuMemcpyDtoH_v2, to, from, n)
CUresult cu_copy(struct cuda *d, word c, word s, CUdeviceptr to, CUdeviceptr from, size_t n) IN(cuMemcpyAsync, to, from, n, (CUstream)s)
CUresult cu_copy_peer(struct cuda *d, word c, word s, CUdeviceptr to, word toContext, CUdeviceptr from, word fromContext, size_t n)
    IN(cuMemcpyPeerAsync, to, (CUcontext)toContext, from, (CUcontext)fromContext, n, (CUstream)s)
CUresult cu_fill8(struct cuda *d, word c, word s, CUdeviceptr to, unsigned char v, size_t n) IN(cuMemsetD8Async, to, v, n, (CUstream)s)
CUresult cu_fill32(struct cuda *d, word c, word s, CUdeviceptr to, unsigned v, size_t n) IN(cuMemsetD32Async, to, v, n, (CUstream)s)

CUresult cu_load(struct cuda *d, word c, const void *image, word *m, char *log, size_t logLen) {
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)logLen};
  IN(cuModuleLoadDataEx, (CUmodule *)m, image, 2, options, values)
}
CUresult cu_unload(struct cuda *d, word c, word m) IN(cuModuleUnload, (CUmodule)m)
CUresult cu_func(struct cuda *d, word c, word m, const char *name, word *f) IN(cuModuleGetFunction, (CUfunction *)f, (CUmodule)m, name)
CUresult cu_global(struct cuda *d, word c, word m, const char *name, CUdeviceptr *p, size_t *n) IN(cuModuleGetGlobal_v2, p, n, (CUmodule)m, name)
CUresult cu_func_info(struct cuda *d, word c, word f, struct cu_func_info *i) {
  CUfunction h = (CUfunction)f;
  CUresult r = use(d, c);
  if (!r) r = d->cuFuncGetAttribute(&i->maxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, h);
  if (!r) r = d->cuFuncGetAttribute(&i->registers, CU_FUNC_ATTRIBUTE_NUM_REGS, h);
  if (!r) r = d->cuFuncGetAttribute(&i->shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, h);
  if (!r) r = d->cuFuncGetAttribute(&i->local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, h);
  if (!r) r = d->cuFuncGetAttribute(&i->binary, CU_FUNC_ATTRIBUTE_BINARY_VERSION, h);
  return r;
}
CUresult cu_allow_shared(struct cuda *d, word c, word f, int bytes)
    IN(cuFuncSetAttribute, (CUfunction)f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)
CUresult cu_occupancy(struct cuda *d, word c, word f, int threads, size_t shared, int *blocks)
    IN(cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, (CUfunction)f, threads, shared)
CUresult cu_launch(struct cuda *d, word c, word s, word f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *args, size_t argsLen) {
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, args, CU_LAUNCH_PARAM_BUFFER_SIZE, &argsLen, CU_LAUNCH_PARAM_END};
  IN(cuLaunchKernel, (CUfunction)f, gx, gy, gz, bx, by, bz, shared, (CUstream)s, NULL, argsLen ? extra : NULL)
}

CUresult cu_new_stream(struct cuda *d, word c, word *s) IN(cuStreamCreateWithPriority, (CUstream *)s, CU_STREAM_NON_BLOCKING, 0)
CUresult cu_close_stream(struct cuda *d, word c, word s) IN(cuStreamDestroy_v2, (CUstream)s)
CUresult cu_sync_stream(struct cuda *d, word c, word s) IN(cuStreamSynchronize, (CUstream)s)
CUresult cu_done(struct cuda *d, word c, word s) IN(cuStreamQuery, (CUstream)s)

CUresult cu_new_event(struct cuda *d, word c, unsigned flags, word *e) IN(cuEventCreate, (CUevent *)e, flags)
CUresult cu_close_event(struct cuda *d, word c, word e) IN(cuEventDestroy_v2, (CUevent)e)
CUresult cu_record(struct cuda *d, word c, word s, word e) IN(cuEventRecord, (CUevent)e, (CUstream)s)
CUresult cu_wait_event(struct cuda *d, word c, word s, word e) IN(cuStreamWaitEvent, (CUstream)s, (CUevent)e, 0)
CUresult cu_sync_event(struct cuda *d, word c, word e) IN(cuEventSynchronize, (CUevent)e)
CUresult cu_happened(struct cuda *d, word c, word e) IN(cuEventQuery, (CUevent)e)
CUresult cu_elapsed(struct cuda *d, word c, word from, word to, float *ms) IN(cuEventElapsedTime, ms, (CUevent)from, (CUevent)to)
CUresult cu_export_event(struct cuda *d, word c, word e, void *handle) IN(cuIpcGetEventHandle, handle, (CUevent)e)
CUresult cu_open_event(struct cuda *d, word c, const void *handle, word *e)
    IN(cuIpcOpenEventHandle, (CUevent *)e, *(const CUipcEventHandle *)handle)

CUresult cu_write32(struct cuda *d, word c, word s, CUdeviceptr p, uint32_t v) IN(cuStreamWriteValue32_v2, (CUstream)s, p, v, 0)
CUresult cu_wait32(struct cuda *d, word c, word s, CUdeviceptr p, uint32_t v, unsigned cond) IN(cuStreamWaitValue32_v2, (CUstream)s, p, v, cond)

// The other modes tie the capture to this thread, which Go does not promise to come back on.
CUresult cu_begin_capture(struct cuda *d, word c, word s) IN(cuStreamBeginCapture_v2, (CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED)
CUresult cu_end_capture(struct cuda *d, word c, word s, word *g) IN(cuStreamEndCapture, (CUstream)s, (CUgraph *)g)
CUresult cu_close_graph(struct cuda *d, word c, word g) IN(cuGraphDestroy, (CUgraph)g)
CUresult cu_instantiate(struct cuda *d, word c, word g, word *x) IN(cuGraphInstantiateWithFlags, (CUgraphExec *)x, (CUgraph)g, 0)
CUresult cu_update(struct cuda *d, word c, word x, word g) {
  CUgraphExecUpdateResultInfo info;
  IN(cuGraphExecUpdate_v2, (CUgraphExec)x, (CUgraph)g, &info)
}
CUresult cu_launch_graph(struct cuda *d, word c, word s, word x) IN(cuGraphLaunch, (CUgraphExec)x, (CUstream)s)
CUresult cu_close_exec(struct cuda *d, word c, word x) IN(cuGraphExecDestroy, (CUgraphExec)x)
