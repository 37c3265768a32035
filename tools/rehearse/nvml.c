/* NVIDIA's management library, libnvidia-ml.so.1: torch asks it about links to other devices, and there are none. */

#define OK(name) \
    int name(void) { return 0; }

OK(nvmlDeviceGetComputeRunningProcesses)
OK(nvmlDeviceGetGpuFabricInfoV)
OK(nvmlDeviceGetHandleByPciBusId_v2)
OK(nvmlDeviceGetNvLinkRemoteDeviceType)
OK(nvmlDeviceGetNvLinkRemotePciInfo_v2)
OK(nvmlInit_v2)
OK(nvmlSystemGetCudaDriverVersion_v2)
