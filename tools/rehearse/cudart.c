/* A CUDA runtime that has one device and computes nothing: enough for torch's bookkeeping around fake tensors.
 *
 * It is loaded before NVIDIA's own (LD_PRELOAD). Calls succeed; memory has addresses that nobody may read. What is not
 * here, torch finds in NVIDIA's runtime, which finds no driver and says so.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver_types.h"

#define OK(name) \
    int name(void) { return 0; }

static __thread int current = 0;
static uintptr_t next = 0x700000000000ull; /* no address that a program on this machine has */

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}
static int major_version(void) { return setting("SIMULATED_CAPABILITY_MAJOR", 9); }
static size_t memory(void) { return (size_t)setting("SIMULATED_MEMORY_GIB", 80) << 30; }
static int handle(void **made) { return *made = (void *)(next += 512), 0; }
static int on_host(void **made, size_t bytes) { return (*made = malloc(bytes)) ? 0 : 2; }

/* what torch asks the driver for by name */
static int ok(void) { return 0; }
static int context_state(int device, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
static int driver_device(int *found, int number) { return *found = number, 0; }
static int driver_version(int *version) { return *version = 13000, 0; }
static int reserve(unsigned long long *made, size_t bytes, size_t alignment, unsigned long long wanted, unsigned long long flags) {
    alignment = alignment ? alignment : 1 << 21;
    next = (next + alignment - 1) / alignment * alignment;
    return *made = next, next += bytes, 0;
}
static int physical(unsigned long long *made, size_t bytes, const void *kind, unsigned long long flags) {
    return *made = next += 512, 0;
}

int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaGetDevice(int *device) { return *device = current, 0; }
int cudaSetDevice(int device) { return current = device, 0; }
int cudaDriverGetVersion(int *version) { return driver_version(version); }
int cudaRuntimeGetVersion(int *version) { return driver_version(version); }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, 0; }
int cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 1, 0; }
int cudaMemGetInfo(size_t *available, size_t *all) { return *available = *all = memory(), 0; }
int cudaEventElapsedTime(float *milliseconds, void *from, void *to) { return *milliseconds = 0, 0; }
int cudaStreamIsCapturing(void *stream, int *capturing) { return *capturing = 0, 0; }
int cudaStreamGetCaptureInfo(void *stream, int *capturing, ...) { return *capturing = 0, 0; }

int cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "simulated");
    found->major = major_version();
    found->totalGlobalMem = memory();
    found->multiProcessorCount = 132;
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->regsPerMultiprocessor = 65536;
    found->sharedMemPerBlock = 48 << 10;
    found->sharedMemPerBlockOptin = 227 << 10;
    found->sharedMemPerMultiprocessor = 228 << 10;
    found->l2CacheSize = 50 << 20;
    return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? major_version()
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
             : attribute == cudaDevAttrMultiProcessorCount    ? 132
                                                              : 1;
    return 0;
}

int cudaMalloc(void **made, size_t bytes) { return *made = (void *)next, next += (bytes + 511) & ~511ull, 0; }
int cudaHostAlloc(void **made, size_t bytes, unsigned flags) { return on_host(made, bytes); }
int cudaMallocHost(void **made, size_t bytes) { return on_host(made, bytes); }
int cudaFreeHost(void *memory) { return free(memory), 0; }
int cudaStreamCreate(void **made) { return handle(made); }
int cudaStreamCreateWithFlags(void **made, unsigned flags) { return handle(made); }
int cudaStreamCreateWithPriority(void **made, unsigned flags, int priority) { return handle(made); }
int cudaEventCreate(void **made) { return handle(made); }
int cudaEventCreateWithFlags(void **made, unsigned flags) { return handle(made); }

OK(cudaFree)
OK(cudaDeviceEnablePeerAccess)
OK(cudaDeviceSynchronize)
OK(cudaEventDestroy)
OK(cudaEventQuery)
OK(cudaEventRecord)
OK(cudaEventRecordWithFlags)
OK(cudaEventSynchronize)
OK(cudaFuncGetAttributes)
OK(cudaFuncSetAttribute)
OK(cudaGetLastError)
OK(cudaLaunchKernel)
OK(cudaLaunchKernelExC)
OK(cudaMemcpy)
OK(cudaMemcpyAsync)
OK(cudaMemset)
OK(cudaMemsetAsync)
OK(cudaPeekAtLastError)
OK(cudaStreamDestroy)
OK(cudaStreamQuery)
OK(cudaStreamSynchronize)
OK(cudaStreamWaitEvent)
OK(cudaThreadExchangeStreamCaptureMode)

int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags, int *how) {
    *found = !strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)context_state
             : !strcmp(name, "cuDeviceGet")              ? (void *)driver_device
             : !strcmp(name, "cuDriverGetVersion")       ? (void *)driver_version
             : !strcmp(name, "cuMemAddressReserve")      ? (void *)reserve
             : !strcmp(name, "cuMemCreate")              ? (void *)physical
                                                         : (void *)ok;
    if (how) *how = 0;
    return 0;
}
int cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags, int *how) {
    return cudaGetDriverEntryPointByVersion(name, found, 0, flags, how);
}
