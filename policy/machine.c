/* policy/machine.c - see machine.h.
 *
 * Owns: the rules by which what was not measured follows from what was. Refuses: text
 * (offload/machine_file.c) and clocks. */
#include "policy/machine.h"

#include <math.h>
#include <stdlib.h>

#include "policy/rates.h"

#define DECODE_FLOPS 16 // a number that is not stored as matmuls read it costs so many more

#define INFO(key, part, needed, max, unit) {#key, unit, MACHINE_##part, needed, max},
const struct machine_rate_info machine_rates[N_MACHINE_RATES] = {MACHINE_RATES(INFO)};
#undef INFO

const int matmul_rows[N_MATMUL_ROWS] = {1, 4, 16, 64, 256};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

struct rate rate_of_samples(double *samples, int n)
{
    struct rate r = {.value = median(samples, n), .n = n};
    for (int i = 0; i < n; i++)
        samples[i] = fabs(samples[i] - r.value);
    r.spread = median(samples, n);
    return r;
}

double machine_matmul(const struct machine *m, enum matmul_format format, int i)
{
    static const double bytes[N_MATMUL_FORMATS] = {4, 2, 68 / 64.0, 36 / 64.0}; // of one number
    double given = m->rates[machine_matmul_rate(format, i)].value;
    double flops = 2.0 * matmul_rows[i];
    double work = flops + (format == MATMUL_Q8 || format == MATMUL_Q4 ? DECODE_FLOPS : 0);
    if (given > 0)
        return given;
    return rate(flops,
                max_d(rate(bytes[format], m->ram_read.value), rate(work, m->matmul_flops.value)));
}

void machine_complete(struct machine *m)
{
    static const int nearest[N_MATMUL_ROWS] = {3, 2, 4, 1, 0}; // to M = 64
    static const enum matmul_format formats[N_MATMUL_FORMATS] = {MATMUL_BF16, MATMUL_F32, MATMUL_Q8,
                                                                 MATMUL_Q4};
    for (int f = 0; f < N_MATMUL_FORMATS; f++)
        for (int i = 0; i < N_MATMUL_ROWS && m->matmul_flops.value <= 0; i++)
            m->matmul_flops = m->rates[machine_matmul_rate(formats[f], nearest[i])];
}
