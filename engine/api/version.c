/* engine/api/version.c - see version.h. The Makefile passes the commit. */
#include "engine/api/version.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "offload/ring.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void print_sets(void)
{
    printf("CPU:       built for");
    for (int isa = ISA_PORTABLE; isa < N_ISAS; isa++)
        printf(" %s", isa_name((enum isa)isa));
    printf("; usable here:");
    for (int isa = ISA_PORTABLE; isa <= (int)isa_best(); isa++)
        printf(" %s", isa_name((enum isa)isa));
    putchar('\n');
}

static void print_ring(void)
{
    struct ring *ring;
    const struct ring_config config = {.kind = RING_URING, .depth = 1};
    enum err err = ring_open(&ring, &config);
    if (err == OK)
        ring_close(ring);
    printf("files:     %s\n", err == OK ? "io_uring is usable" : err_text());
}

static void print_cuda(void)
{
    char path[PATH_MAX];
    if (device_library_path("cuda", path, sizeof path) == OK)
        printf("CUDA:      %s; ", path);
    else
        printf("CUDA:      not built; ");
    printf("%s\n", device_cuda_driver() ? "an NVIDIA driver is here" : "no NVIDIA driver here");
}

void version_print(int all)
{
    printf("sluice %s\n", SLUICE_VERSION);
    if (!all)
        return;
    printf("commit:    %s\ncompiler:  %s\n", SLUICE_COMMIT, COMPILER);
    print_sets();
    print_ring();
    print_cuda();
}
