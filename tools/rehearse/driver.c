/* A CUDA driver, libcuda.so.1, with one device whose context is active; all else succeeds and does nothing. */

#define OK(name) \
    int name(void) { return 0; }

int cuDeviceGet(int *device, int number) { return *device = number, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuGetErrorString(int error, const char **words) { return *words = "simulated", 0; }

OK(cuCtxGetCurrent)
OK(cuCtxGetDevice)
OK(cuCtxSetCurrent)
OK(cuDeviceGetAttribute)
OK(cuDevicePrimaryCtxRetain)
OK(cuInit)
OK(cuLaunchKernel)
OK(cuModuleGetFunction)
OK(cuModuleLoadData)
OK(cuPointerGetAttribute)
