/* tests/device_help.h - the device of a test: the simulated accelerator, or the one that
 * SLUICE_TEST_DEVICE names: "cuda" or "cuda:N" (./sluice-cuda.so), "PATH.so" or "PATH.so:ARG".
 *
 * What only the simulator can do (lose a device, show its memory, be late on purpose) a test skips
 * on a real one, and says so. */
#ifndef TESTS_DEVICE_HELP_H
#define TESTS_DEVICE_HELP_H

#include "tests/sim_device.h"
#include "tests/skip.h"

#include <stdlib.h>
#include <string.h>

/* The device that the tests are to run on; NULL: the simulated one. */
static inline const char *real_device(void)
{
    const char *spec = getenv("SLUICE_TEST_DEVICE");
    return spec && *spec ? spec : NULL;
}

/* device_open() would look for the library beside the test. */
static inline enum err real_device_open(struct device **d)
{
    const char *spec = real_device();
    char path[64];
    if (strncmp(spec, "cuda", 4) != 0)
        return device_open(spec, d);
    snprintf(path, sizeof path, "./sluice-cuda.so%.16s", spec + 4);
    return device_open(path, d);
}

static inline struct device *test_device_open(uint64_t seed, int delay_us)
{
    struct device *d;
    if (!real_device())
        return sim_device_open(seed, delay_us);
    if (real_device_open(&d) != OK) {
        print_error("%s: %s\n", real_device(), err_text());
        assert_true(0);
    }
    return d;
}

static inline void test_device_close(struct device *d)
{
    if (real_device())
        device_close(d);
    else
        sim_device_close(d);
}

#define needs_simulator()                                                                          \
    do {                                                                                           \
        if (real_device())                                                                         \
            skip_because("only the simulated accelerator can do that (not %s)", real_device());    \
    } while (0)

#endif
