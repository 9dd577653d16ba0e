/* kernels/device_open.c - see device.h: finds the device of a name, and the library with its code.
 *
 * sluice-cuda.so is loaded only when a CUDA device is requested or present in /dev: machines
 * without one need no CUDA and spend no time on it. */
#include "kernels/device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 1: this code is in libsluice.so, whose path is written; 0: in a program. */
static int is_library(char path[PATH_MAX])
{
    Dl_info info;
    return dladdr((void *)(uintptr_t)device_open, &info) &&
           strstr(info.dli_fname, "libsluice.so") && realpath(info.dli_fname, path);
}

/* The library stays loaded until the process ends: drivers may not unload cleanly. */
static enum err open_library(const char *path, const char *arg, struct device **d)
{
    char own[PATH_MAX];
    if (is_library(own)) // makes its symbols, which the device calls, visible to other libraries
        (void)dlopen(own, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(ERR_DEVICE, "device: %s", dlerror());
    void *symbol = dlsym(library, DEVICE_ENTRY);
    if (!symbol)
        return fail(ERR_DEVICE, "%s: not a device library of sluice (it has no %s)", path,
                    DEVICE_ENTRY);
    device_entry_fn entry;
    memcpy(&entry, &symbol, sizeof entry); // ISO C cannot cast it
    return entry(DEVICE_VERSION, arg, d);
}

int device_cuda_driver(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

enum err device_library_path(const char *which, char *path, int cap)
{
    char own[PATH_MAX];
    const int library = is_library(own);
    ssize_t n = library ? (ssize_t)strlen(own) : readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0)
        return fail(ERR_DEVICE, "device: /proc/self/exe cannot be read (is /proc there?)");
    own[n] = 0;
    char *name = strrchr(own, '/');
    *name++ = 0;
    snprintf(path, (size_t)cap, "%s/%ssluice/sluice-%s.so", own, library ? "" : "../lib/", which);
    if (access(path, R_OK) == 0)
        return OK;
    snprintf(path, (size_t)cap, "%s/%s-%s.so", own, library ? "sluice" : name, which);
    if (access(path, R_OK) != 0)
        return fail(ERR_DEVICE, "%s: not found (build it with make %s%s)", path, which,
                    strcmp(which, "cuda") == 0 ? ", or --device cpu" : "");
    return OK;
}

static enum err open_cuda(const char *arg, struct device **d)
{
    char path[PATH_MAX];
    if (device_library_path("cuda", path, sizeof path) != OK) {
        if (device_cuda_driver())
            return ERR_DEVICE;
        return fail(ERR_DEVICE, "cuda: no NVIDIA driver here (use --device cpu)");
    }
    return open_library(path, arg, d);
}

static enum err open_auto(struct device **d)
{
    *d = device_cpu();
    if (!device_cuda_driver() || open_cuda("", d) == OK)
        return OK;
    *d = device_cpu();
    log_line(LOG_WARN, "%s; using the CPU (--device cpu avoids this warning)", err_text());
    return OK;
}

enum err device_open(const char *spec, struct device **d)
{
    char path[PATH_MAX];
    const char *colon = strrchr(spec, ':'), *end = colon ? colon : spec + strlen(spec);
    *d = NULL;
    if (strcmp(spec, "auto") == 0)
        return open_auto(d);
    if (strcmp(spec, "cpu") == 0) {
        *d = device_cpu();
        return OK;
    }
    if (end - spec == 4 && strncmp(spec, "cuda", 4) == 0)
        return open_cuda(colon ? colon + 1 : "", d);
    if (end - spec < 4 || strncmp(end - 3, ".so", 3) != 0 || end - spec >= PATH_MAX)
        return fail_choice("device", spec, "auto|cpu|cuda[:i]");
    snprintf(path, sizeof path, "%.*s", (int)(end - spec), spec);
    return open_library(path, colon ? colon + 1 : "", d);
}

void device_close(struct device *d)
{
    if (d)
        d->api->close(d);
}
