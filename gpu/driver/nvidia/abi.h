// The part of the CUDA driver's binary interface that we use, in declarations of our own, so that building
// needs no CUDA. The names are the exported ones: libcuda also exports names without suffix that have
// another, older interface (cuMemAlloc takes 32-bit addresses), and cuda.h hides that with macros.
//
// The same text is compiled three times: here with the types below; in the simulated driver, which defines
// the functions; and, where NVIDIA's cuda.h is at hand, after it (CUDA_VERSION is set then), which proves
// every signature, size, offset and number (scripts/cuda-abi).
#ifndef TANDEM_CUDA_ABI_H
#define TANDEM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_VERSION
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint32_t cuuint32_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
// Enumerations of cuda.h; as wide as unsigned.
typedef unsigned CUdevice_attribute, CUdevice_P2PAttribute, CUfunction_attribute, CUjit_option;
typedef unsigned CUmemAllocationHandleType, CUmemAllocationGranularity_flags, CUstreamCaptureMode;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;
typedef struct { unsigned type; int id; } CUmemLocation;
typedef struct {
  unsigned type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; unsigned flags; } CUmemAccessDesc;
typedef struct { unsigned result; CUgraphNode errorNode, errorFromNode; } CUgraphExecUpdateResultInfo;

enum {
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
};
enum {
  CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
  CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
};
enum {
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};
enum {
  CU_JIT_INFO_LOG_BUFFER = 3,
  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WAIT_VALUE_AND = 2, CU_STREAM_WAIT_VALUE_NOR = 3 };
#define CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS 1
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)
#endif

#ifdef __cplusplus
#define ABI_ASSERT static_assert
#else
#define ABI_ASSERT _Static_assert
#endif
ABI_ASSERT(sizeof(CUuuid) == 16 && sizeof(CUipcMemHandle) == 64 && sizeof(CUipcEventHandle) == 64, "handles");
ABI_ASSERT(sizeof(CUdeviceptr) == 8 && sizeof(CUmemGenericAllocationHandle) == 8 && sizeof(CUdevice) == 4 && sizeof(CUresult) == 4, "scalars");
ABI_ASSERT(sizeof(CUmemLocation) == 8 && sizeof(CUmemAllocationProp) == 32 && sizeof(CUmemAccessDesc) == 12, "memory structs");
ABI_ASSERT(offsetof(CUmemAllocationProp, requestedHandleTypes) == 4 && offsetof(CUmemAllocationProp, location) == 8 &&
           offsetof(CUmemAllocationProp, allocFlags) == 24 && offsetof(CUmemAccessDesc, flags) == 8, "memory struct offsets");
ABI_ASSERT(sizeof(CUgraphExecUpdateResultInfo) == 24, "graph update");
ABI_ASSERT(CU_DEVICE_ATTRIBUTE_WARP_SIZE == 10 && CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16 && CU_DEVICE_ATTRIBUTE_PCI_BUS_ID == 33 &&
           CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE == 38 && CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75 &&
           CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76 && CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR == 81 &&
           CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM == 91 &&
           CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == 97 && CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == 102 &&
           CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED == 103, "device attributes");
ABI_ASSERT(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK == 1 && CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED == 2 &&
           CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED == 3, "peer attributes");
ABI_ASSERT(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK == 0 && CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1 && CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES == 3 &&
           CU_FUNC_ATTRIBUTE_NUM_REGS == 4 && CU_FUNC_ATTRIBUTE_BINARY_VERSION == 6 && CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8, "function attributes");
ABI_ASSERT(CU_JIT_INFO_LOG_BUFFER == 3 && CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES == 4 && CU_JIT_ERROR_LOG_BUFFER == 5 && CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES == 6, "jit options");
ABI_ASSERT(CU_MEM_ALLOCATION_TYPE_PINNED == 1 && CU_MEM_LOCATION_TYPE_DEVICE == 1 && CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 1 &&
           CU_MEM_ACCESS_FLAGS_PROT_NONE == 0 && CU_MEM_ACCESS_FLAGS_PROT_READ == 1 && CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3 &&
           CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0, "memory flags");
ABI_ASSERT(CU_STREAM_NON_BLOCKING == 1 && CU_STREAM_CAPTURE_MODE_RELAXED == 2 && CU_EVENT_BLOCKING_SYNC == 1 && CU_EVENT_DISABLE_TIMING == 2 && CU_EVENT_INTERPROCESS == 4, "stream and event flags");
ABI_ASSERT(CU_STREAM_WAIT_VALUE_GEQ == 0 && CU_STREAM_WAIT_VALUE_EQ == 1 && CU_STREAM_WAIT_VALUE_AND == 2 && CU_STREAM_WAIT_VALUE_NOR == 3, "wait conditions");
ABI_ASSERT(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1 && CU_MEMHOSTREGISTER_PORTABLE == 1 && CU_MEMHOSTREGISTER_DEVICEMAP == 2, "host and ipc flags");

// X(name, parameters): every function we ask for. All are in drivers from CUDA 12.0 on.
#define CUDA_FUNCTIONS(X)                                                                                          \
  X(cuInit, (unsigned flags))                                                                                      \
  X(cuDriverGetVersion, (int *version))                                                                            \
  X(cuDeviceGetCount, (int *count))                                                                                \
  X(cuDeviceGet, (CUdevice *device, int ordinal))                                                                  \
  X(cuDeviceGetName, (char *name, int len, CUdevice device))                                                       \
  X(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))                                                           \
  X(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                                                         \
  X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                             \
  X(cuDeviceGetPCIBusId, (char *id, int len, CUdevice device))                                                     \
  X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                                             \
  X(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to))            \
  X(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                                               \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                               \
  X(cuCtxGetCurrent, (CUcontext *context))                                                                         \
  X(cuCtxSetCurrent, (CUcontext context))                                                                          \
  X(cuCtxSynchronize, (void))                                                                                      \
  X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                                       \
  X(cuMemGetInfo_v2, (size_t *free, size_t *total))                                                                \
  X(cuMemAlloc_v2, (CUdeviceptr *pointer, size_t bytes))                                                           \
  X(cuMemFree_v2, (CUdeviceptr pointer))                                                                           \
  X(cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer))                              \
  X(cuMemHostRegister_v2, (void *host, size_t bytes, unsigned flags))                                              \
  X(cuMemHostUnregister, (void *host))                                                                             \
  X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *pointer, void *host, unsigned flags))                              \
  X(cuMemGetAllocationGranularity, (size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)) \
  X(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)) \
  X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                                           \
  X(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)) \
  X(cuMemAddressReserve, (CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr address, unsigned long long flags)) \
  X(cuMemAddressFree, (CUdeviceptr pointer, size_t bytes))                                                         \
  X(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, (CUdeviceptr pointer, size_t bytes))                                                               \
  X(cuMemSetAccess, (CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *desc, size_t count))                \
  X(cuIpcGetMemHandle, (CUipcMemHandle *handle, CUdeviceptr pointer))                                              \
  X(cuIpcOpenMemHandle_v2, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags))                          \
  X(cuIpcCloseMemHandle, (CUdeviceptr pointer))                                                                    \
  X(cuIpcGetEventHandle, (CUipcEventHandle *handle, CUevent event))                                                \
  X(cuIpcOpenEventHandle, (CUevent *event, CUipcEventHandle handle))                                               \
  X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                                             \
  X(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                                   \
  X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                              \
  X(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext toContext, CUdeviceptr from, CUcontext fromContext, size_t bytes, CUstream stream)) \
  X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                         \
  X(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))                             \
  X(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)) \
  X(cuModuleUnload, (CUmodule module))                                                                             \
  X(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name))                                \
  X(cuModuleGetGlobal_v2, (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name))                \
  X(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function))                         \
  X(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int threads, size_t shared))   \
  X(cuLaunchKernel, (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                     unsigned shared, CUstream stream, void **params, void **extra))                               \
  X(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority))                                  \
  X(cuStreamDestroy_v2, (CUstream stream))                                                                         \
  X(cuStreamSynchronize, (CUstream stream))                                                                        \
  X(cuStreamQuery, (CUstream stream))                                                                              \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                           \
  X(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr pointer, cuuint32_t value, unsigned flags))              \
  X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr pointer, cuuint32_t value, unsigned flags))             \
  X(cuEventCreate, (CUevent *event, unsigned flags))                                                               \
  X(cuEventDestroy_v2, (CUevent event))                                                                            \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                               \
  X(cuEventQuery, (CUevent event))                                                                                 \
  X(cuEventSynchronize, (CUevent event))                                                                           \
  X(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))                                         \
  X(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                                          \
  X(cuStreamEndCapture, (CUstream stream, CUgraph *graph))                                                         \
  X(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags))                     \
  X(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info))                    \
  X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                            \
  X(cuGraphExecDestroy, (CUgraphExec exec))                                                                        \
  X(cuGraphDestroy, (CUgraph graph))

#endif
