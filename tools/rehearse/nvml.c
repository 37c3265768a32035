/* NVIDIA's management library, libnvidia-ml.so.1: torch asks it about links to other devices, and there are none. */

#define OK(name) \
    int name(void) { return 0; }
#define NOT_SUPPORTED(name) \
    int name(void) { return 3; }

OK(nvmlDeviceGetComputeRunningProcesses)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV)
OK(nvmlDeviceGetHandleByPciBusId_v2)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
OK(nvmlInit_v2)
OK(nvmlSystemGetCudaDriverVersion_v2)
