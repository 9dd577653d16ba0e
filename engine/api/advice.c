/* engine/api/advice.c - see advice.h.
 *
 * Note: int8 is only suggested: it changes the answers. */
#include "engine/api/advice.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/variant.h"
#include "offload/probe_cache.h"

#define WORTH_S     30.0 // shorter jobs end before the advice could be used
#define WORTH_RATIO 1.5  // int8 / bf16
#define MEASURE_S   0.02
#define TURNS       5

static void warn_kv(const struct config *c)
{
    static const char *const flags[] = {"kv-budget",   "kv-budget-of", "kv-budget-layers",
                                        "kv-recent",   "kv-sink",      "kv-scope",
                                        "kv-simulate", "kv-positions"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (config_given(c, flags[i]))
            log_line(LOG_WARN, "--%s has no effect: --kv-policy full keeps everything", flags[i]);
}

static void warn_cap(const char *flag, int64_t asked, int64_t there, int64_t there_free)
{
    const double mib = 1 << 20;
    if (there > 0 && asked > there)
        log_line(LOG_WARN, "--%s: %.1f MiB is more than the %.1f MiB there are (%.1f MiB free)",
                 flag, (double)asked / mib, (double)there / mib, (double)there_free / mib);
}

enum err advise_flags(const struct run *r)
{
    const struct config *c = r->config;
    const struct machine_info *m = &r->session->info;
    if (r->evict.policy == EVICT_FULL && !c->compares_policies)
        warn_kv(c);
    if (config_given(c, "mem-device") && r->session->device->api->unified && !c->machine)
        log_line(LOG_WARN,
                 "--mem-device has no effect: the device is the CPU (use --mem-ram; for a card "
                 "that is not here: --machine configs/machine-t4.cfg)");
    if (c->machine)
        return OK; // limits are those of another machine
    warn_cap("mem-ram", c->mem_ram, min_i64(m->ram_bytes, m->cgroup.memory_limit_bytes),
             m->ram_free_bytes);
    warn_cap("mem-disk", c->mem_disk, m->disk_bytes, m->disk_free_bytes);
    return OK;
}

int advice_int8_text(double bf16, double int8, int int8_weights, char *buf, int cap)
{
    if (bf16 <= 0 || int8 / bf16 <= WORTH_RATIO)
        return 0;
    struct quality q = quality_of("int8");
    return snprintf(buf, (size_t)cap,
                    "int8: its matmuls run %.1f x as fast here (--compute int8%s): other answers, "
                    "at %.1f %% more perplexity on %s",
                    int8 / bf16, int8_weights ? "" : " --weights q8", q.more, q.on);
}

/* Measures `format` once more and keeps the best result in *best. 0: it could not be measured. */
static int measure(const struct run *r, enum compute compute, enum dtype format, double *best)
{
    struct rate flops;
    struct ops ops = r->ops;
    struct probe_matmul p = {.dtype = format,
                             .m = 64,
                             .n = 256, // short, so that other processes rarely interrupt
                             .k = 1024,
                             .weight_bytes = 8 << 20,
                             .seconds = MEASURE_S};
    ops.compute = compute;
    if (probe_matmul(&ops, &p, &flops, NULL) != OK)
        return 0;
    *best = flops.value > *best ? flops.value : *best;
    return 1;
}

/* FLOP/s of bf16 and int8 for weights of `format`, measured once per machine. 0: not measured. */
static int int8_figures(const struct run *r, enum dtype format, double flops[2])
{
    const char *key = dtype_info(format)->name;
    if (run_figures_read(r, "int8", key, flops, 2))
        return 1;
    for (int turn = 0; turn < TURNS; turn++) // a burst of other load hits one turn, not one format
        if (!measure(r, COMPUTE_BF16, DTYPE_BF16, &flops[0]) ||
            !measure(r, COMPUTE_INT8, format, &flops[1]))
            return 0;
    run_figures_write(r, "int8", key, flops, 2);
    return flops[0] > 0;
}

double advise_int8(const struct run *r)
{
    char text[256];
    double flops[2] = {0, 0};
    enum dtype weights = r->model->layers[1].tensors[ROLE_UP].dtype;
    int int8_weights = weights == DTYPE_Q4 || weights == DTYPE_Q8;
    int told = log_level_max >= LOG_INFO || r->ranking; // `plan` prints it on stdout
    if (r->ops.compute != COMPUTE_BF16 || r->config->machine || r->decision.plan.device ||
        r->decision.time.job_s < WORTH_S || !r->decision.time.bound ||
        strcmp(r->decision.time.bound, "cpu") != 0 || !told)
        return 0;
    if (!int8_figures(r, weights == DTYPE_Q4 ? DTYPE_Q4 : DTYPE_Q8, flops))
        return 0;
    if (advice_int8_text(flops[0], flops[1], int8_weights, text, sizeof text) > 0)
        log_line(LOG_INFO, "%s", text);
    return flops[1] / flops[0];
}
