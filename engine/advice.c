/* engine/advice.c - see advice.h.
 *
 * A newcomer would miss: int8 is told, never taken: it changes the answers. */
#include "engine/advice.h"

#include <stdio.h>
#include <string.h>

#include "offload/probe.h"

#define WORTH_S     30.0 // a job predicted shorter than this is over before the reader has decided
#define WORTH_RATIO 1.5  // int8 / bf16
#define MEASURE_S   0.05

static void warn_kv(const struct config *c)
{
    static const char *const flags[] = {"kv-budget", "kv-recent", "kv-sink", "kv-scope",
                                        "kv-simulate"};
    for (int i = 0; i < 5; i++)
        if (config_given(c, flags[i]))
            log_line(LOG_WARN, "--%s has no effect: --kv-policy full keeps everything", flags[i]);
}

static void warn_cap(const char *flag, int64_t asked, int64_t there, int64_t there_free)
{
    const double gib = 1 << 30;
    if (there > 0 && asked > there)
        log_line(LOG_WARN, "--%s: %.1f GiB is more than the %.1f GiB there are (%.1f GiB free)",
                 flag, (double)asked / gib, (double)there / gib, (double)there_free / gib);
}

enum err advise_flags(const struct run *r)
{
    const struct config *c = r->config;
    const struct machine_info *m = &r->info;
    if (r->evict.policy == EVICT_FULL)
        warn_kv(c);
    if (config_given(c, "mem-device"))
        log_line(LOG_WARN, "--mem-device has no effect: the device is the CPU (--mem-ram)");
    if (c->machine)
        return OK; // another machine's caps
    warn_cap("mem-ram", c->mem_ram, min_i64(m->ram_bytes, m->cgroup.memory_limit_bytes),
             m->ram_free_bytes);
    warn_cap("mem-disk", c->mem_disk, m->disk_bytes, m->disk_free_bytes);
    return OK;
}

int advice_int8_text(double bf16, double int8, int int8_weights, char *buf, int cap)
{
    if (bf16 <= 0 || int8 / bf16 <= WORTH_RATIO)
        return 0;
    return snprintf(buf, (size_t)cap,
                    "int8: its matmuls run %.1f x as fast here (--compute int8%s): other answers, "
                    "at 0.7 %% more perplexity on SmolLM2 with q8 weights",
                    int8 / bf16, int8_weights ? "" : " --weights q8");
}

void advise_int8(const struct run *r)
{
    char text[256];
    double bf16 = 0, int8 = 0;
    const struct model_tensor *t = &r->opened.model.layers[1].tensors[ROLE_UP];
    if (r->ops.compute != COMPUTE_BF16 || r->config->machine || r->time.job_s < WORTH_S ||
        !r->time.bound || strcmp(r->time.bound, "cpu") != 0 || log_level_max < LOG_INFO)
        return;
    struct ops ops = r->ops;
    struct probe_matmul p = {.dtype = DTYPE_BF16,
                             .m = 64,
                             .n = 2048,
                             .k = 1024,
                             .weight_bytes = 8 << 20,
                             .seconds = MEASURE_S};
    if (probe_matmul(&ops, &p, &bf16, NULL) != OK)
        return;
    ops.compute = COMPUTE_INT8;
    p.dtype = t->dtype == DTYPE_Q4 ? DTYPE_Q4 : DTYPE_Q8;
    if (probe_matmul(&ops, &p, &int8, NULL) != OK)
        return;
    if (advice_int8_text(bf16, int8, t->dtype == DTYPE_Q4 || t->dtype == DTYPE_Q8, text,
                         sizeof text) > 0)
        log_line(LOG_INFO, "%s", text);
}
