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

/* Finds a function of a library and writes its address to fn: ISO C cannot cast it. The library
 * stays loaded until the process ends: drivers may not unload cleanly. */
static enum err find_entry(const char *path, const char *name, void *fn)
{
    char own[PATH_MAX];
    if (is_library(own)) // makes its symbols, which the device calls, visible to other libraries
        (void)dlopen(own, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(ERR_DEVICE, "device: %s", dlerror());
    void *symbol = dlsym(library, name);
    if (!symbol)
        return fail(ERR_DEVICE, "%s: not a device library of sluice (it has no %s)", path, name);
    memcpy(fn, &symbol, sizeof symbol);
    return OK;
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

/* The library of the kind of devices that spec begins with, in n_kind bytes. `flag` has the value
 * spec, one of `choices`. */
static enum err library_of(const char *flag, const char *choices, const char *spec, long n_kind,
                           char path[PATH_MAX])
{
    if (n_kind == 4 && strncmp(spec, "cuda", 4) == 0) {
        enum err err = device_library_path("cuda", path, PATH_MAX);
        return err == OK || device_cuda_driver()
                   ? err
                   : fail(ERR_DEVICE, "cuda: no NVIDIA driver here (use --device cpu)");
    }
    if (n_kind < 4 || strncmp(spec + n_kind - 3, ".so", 3) != 0 || n_kind >= PATH_MAX)
        return fail_choice(flag, spec, choices);
    snprintf(path, PATH_MAX, "%.*s", (int)n_kind, spec);
    return OK;
}

/* Opens a device of a library. */
static enum err open_other(const char *spec, struct device **d)
{
    char path[PATH_MAX];
    device_entry_fn entry;
    const char *colon = strrchr(spec, ':');
    const long n_kind = colon ? colon - spec : (long)strlen(spec);
    TRY(library_of("device", "auto|cpu|cuda[:i]", spec, n_kind, path));
    TRY(find_entry(path, DEVICE_ENTRY, &entry));
    return entry(DEVICE_VERSION, colon ? colon + 1 : "", d);
}

static enum err open_auto(struct device **d)
{
    *d = device_cpu();
    if (!device_cuda_driver() || open_other("cuda", d) == OK)
        return OK;
    *d = device_cpu();
    log_line(LOG_WARN, "%s; using the CPU (--device cpu avoids this warning)", err_text());
    return OK;
}

enum err device_open(const char *spec, struct device **d)
{
    *d = NULL;
    if (strcmp(spec, "auto") == 0)
        return open_auto(d);
    if (strcmp(spec, "cpu") != 0)
        return open_other(spec, d);
    *d = device_cpu();
    return OK;
}

enum err device_count(const char *spec, int n_kind, struct device_place places[DEVICES_MAX], int *n)
{
    char path[PATH_MAX];
    device_count_fn count;
    TRY(library_of("devices", "all|0,2", spec, n_kind, path));
    TRY(find_entry(path, DEVICE_COUNT, &count));
    return count(DEVICE_VERSION, places, n);
}

void device_close(struct device *d)
{
    if (d)
        d->api->close(d);
}
