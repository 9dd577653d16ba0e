/* kernels/cuda/cards.cu - see cards.cuh. */
#include "kernels/cuda/cards.cuh"

#include <cuda_runtime.h>

#include "kernels/device.h"

enum err cards_version(int version)
{
    if (version != DEVICE_VERSION)
        return fail(
            ERR_DEVICE,
            "cuda: sluice-cuda.so belongs to another version of sluice (build both together)");
    return OK;
}

enum err cards_count(int *n)
{
    int driver = 0;
    cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaSuccess && *n == 0)
        e = cudaErrorNoDevice;
    if (e == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        driver == 0)
        return fail(ERR_DEVICE, "cuda: no NVIDIA driver here (use --device cpu)");
    if (e != cudaSuccess)
        return fail(ERR_DEVICE, "cuda: %s (nvidia-smi shows cards and driver; --device cpu)",
                    cudaGetErrorString(e));
    return OK;
}

extern "C" __attribute__((visibility("default"))) enum err
sluice_device_count(int version, struct device_place places[DEVICES_MAX], int *n)
{
    TRY(cards_version(version));
    TRY(cards_count(n));
    *n = (int)min_i64(*n, DEVICES_MAX);
    for (int i = 0; i < *n; i++)
        if (cudaDeviceGetPCIBusId(places[i].pci, sizeof places[i].pci, i) != cudaSuccess)
            places[i].pci[0] = 0; // then it has no NUMA node
    return OK;
}
