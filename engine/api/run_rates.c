/* engine/api/run_rates.c - of run.h: budgets, rates (measured here or read from a file), and
 * measured / predicted times of earlier runs of the model. */
#include "engine/api/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/api/compute.h"
#include "engine/api/replan.h"
#include "engine/model/pack.h"
#include "offload/pace_file.h"
#include "offload/probe_cache.h"
#include "offload/probe_model.h"

#define TEXT_RESERVE_BYTES (12 << 20) // JSON of rows, journal buffers, tables of the C library
#define PROBE_BYTES_MIN    ((int64_t)8 << 20)
#define PROBE_DEVICE_MIN   ((int64_t)16 << 20)
#define LINE_BYTES_LEAST   ((int64_t)1 << 20) // longest line accepted under any budget

int64_t run_text_bytes(const struct run *r)
{
    const struct tokenizer *tok = r->session->opened.tokenizer;
    const struct model *m = r->model;
    int64_t held = tok ? tokenizer_bytes(tok) + m->tokenizer_bytes : 0;
    int64_t crcs = (m->n_pieces + m->shape.vocab) * 8; // as read, and as a table
    int64_t rows = r->job ? job_text_bytes(r->job, &r->work) : r->work.n_rows * 64;
    int64_t tables = crcs + rows + (int64_t)m->n_layers * (int64_t)sizeof *m->layers;
    return held + tables + TEXT_RESERVE_BYTES + r->search_bytes;
}

/* `plan` for another machine uses its number of threads, because kernel scratch depends on it. */
static enum err take_threads(struct run *r)
{
    if (r->machine.threads == pool_threads(r->session->pool))
        return OK;
    pool_close(r->session->pool);
    r->session->pool = r->ops.pool = NULL;
    TRY(pool_open(&r->session->pool, r->machine.threads, NULL));
    r->ops.pool = r->session->pool;
    return OK;
}

/* Reads the rates of a machine file; `plan` also uses its threads. */
static enum err read_machine(struct run *r)
{
    int threads = r->machine.threads;
    TRY(machine_file_read(&r->machine, r->config->machine));
    if (!r->elsewhere)
        r->machine.threads = threads;
    else if (config_given(r->config, "threads") && r->machine.threads != threads)
        log_line(LOG_WARN, "--threads has no effect: the rates of %s are those of its %d threads",
                 r->config->machine, r->machine.threads);
    return r->elsewhere ? take_threads(r) : OK;
}

/* The probe stays within the budget: RAM less the memory of text so far, and less this worker's
 * part of the RAM that other workers share already. */
static struct probe_config probe_config(const struct run *r, const struct ops *ops)
{
    const char *share = getenv("SLUICE_PROBE_SHARE"); // for tests, see probe.h
    const struct plan_shared s = run_shared(r);
    const int64_t text_bytes =
        run_text_bytes(r) + (s.workers > 0 ? ceil_div(s.n_bytes, s.workers) : 0);
    return (struct probe_config){.ops = ops,
                                 .share = share ? strtod(share, NULL) : 0,
                                 .dir = r->session->offload_dir,
                                 .io = r->session->io,
                                 .memory_bytes =
                                     max_i64(r->budget.ram - text_bytes, PROBE_BYTES_MIN),
                                 .beside_bytes = text_bytes,
                                 .info = &r->session->info,
                                 .device = r->session->device,
                                 .device_bytes = max_i64(r->budget.device, PROBE_DEVICE_MIN)};
}

static enum err figures_path(const struct run *r, const char *what, const char *more, char *path,
                             int cap)
{
    char dir[4096], key[512];
    TRY(pack_cache_dir(dir, sizeof dir));
    snprintf(key, sizeof key, "1 %s %d %s %s", r->session->info.cpu_name,
             pool_threads(r->session->pool), isa_name(r->ops.isa), more);
    return probe_cache_path(dir, what, key, path, cap);
}

int run_figures_read(const struct run *r, const char *what, const char *key, double *x, int n)
{
    char path[4200];
    return figures_path(r, what, key, path, sizeof path) == OK && probe_figures_read(path, x, n);
}

void run_figures_write(const struct run *r, const char *what, const char *key, double *x, int n)
{
    char path[4200];
    if (figures_path(r, what, key, path, sizeof path) == OK)
        probe_figures_write(path, x, n);
}

static enum err probe_machine(struct run *r)
{
    char dir[4096];
    TRY(pack_cache_dir(dir, sizeof dir));
    struct ops ops = r->ops; // int8 is measured only if the weights have its formats
    if (ops.compute == COMPUTE_INT8 && model_tile_dtype(COMPUTE_INT8, run_weights(r)) == DTYPE_BF16)
        ops.compute = COMPUTE_BF16;
    const struct probe_config probe = probe_config(r, &ops);
    int measured = 0;
    int threads = r->machine.threads;
    struct machine *m = &r->machine;
    TRY(probe_cached(m, &probe, dir, &measured));
    m->threads = threads;
    if (measured)
        log_line(LOG_INFO, "probe: nvme %.2f GB/s, ram %.1f GB/s, matmul %.0f GFLOP/s (kept in %s)",
                 m->nvme_read.value * 1e-9, m->ram_read.value * 1e-9, m->matmul_flops.value * 1e-9,
                 dir);
    if (measured && !r->session->device->api->unified)
        log_line(LOG_INFO,
                 "probe: device: h2d %.2f GB/s, d2h %.2f GB/s, its memory %.1f GB/s, matmul %.0f "
                 "GFLOP/s, attention %.1f GB/s and %.0f GFLOP/s",
                 m->h2d.value * 1e-9, m->d2h.value * 1e-9, m->device_read.value * 1e-9,
                 m->device_flops.value * 1e-9, machine_device_attend_read(m) * 1e-9,
                 machine_device_attend_flops(m) * 1e-9);
    return OK;
}

static void derive_matmuls_of_model(struct run *r, struct probe_model *model)
{
    struct model_weights weights;
    /* A part may lack the head; its layers are like those of the whole. */
    const struct model *m = r->ranks.n > 0 ? &r->session->opened.model : r->model;
    engine_model_ops(m, r->ops.compute, r->kv_format, &r->evict, model);
    probe_model_weights(model, &weights);
    model_rates_derive(&r->costs.rates, &r->machine, &weights);
}

void run_rates_derive(struct run *r)
{
    struct probe_model model;
    derive_matmuls_of_model(r, &model);
}

/* Rates of the model's matmuls in RAM: measured here; or derived from a machine file, or from this
 * machine's rates if memory is too small. A device has separate rates. */
static enum err probe_matmuls_of_model(struct run *r)
{
    struct probe_model model;
    char dir[4096];
    int measured = 0;
    derive_matmuls_of_model(r, &model);
    if (r->config->machine || r->plans_device)
        return OK;
    const struct probe_config probe = probe_config(r, &r->ops);
    TRY(pack_cache_dir(dir, sizeof dir));
    struct model_rates rates;
    enum err err = probe_model_cached(&rates, &r->machine, &model, &probe, dir, &measured);
    if (err == OK)
        r->costs.rates = rates;
    return err == ERR_FIT ? OK : err;
}

double run_attend_rate(const struct run *r)
{
    const struct machine *m = &r->machine;
    const struct rate attend[] = {[KV_F32] = m->attend_f32,
                                  [KV_BF16] = m->attend_bf16,
                                  [KV_Q8] = m->attend_q8,
                                  [KV_Q4] = m->attend_q4,
                                  [KV_MIXED] = m->attend_mixed};
    return attend[r->kv_format].value;
}

/* ---- what earlier runs took ---- */

/* A factor belongs to the rates of its runs, so new rates start without factors. "" under a machine
 * file, because its rates are not this machine's. */
static enum err name_pace(struct run *r)
{
    char key[256];
    struct device_info device = {0};
    struct scratch_room disk;
    uint64_t rates = hash_bytes(&r->costs.rates, (int64_t)sizeof r->costs.rates, 0);
    if (r->config->machine)
        return OK;
    TRY(scratch_room(r->session->offload_dir, &disk));
    if (!r->session->device->api->unified)
        TRY(r->session->device->api->info(r->session->device, &device));
    for (int i = 0; i < N_MACHINE_RATES; i++)
        rates = hash_bytes(&r->machine.rates[i].value, (int64_t)sizeof(double), rates);
    snprintf(key, sizeof key, "%016llx %llx %llx %d %d %.100s",
             (unsigned long long)r->model->fingerprint, (unsigned long long)rates,
             (unsigned long long)disk.id, (int)r->session->io, (int)r->ops.matmul, device.model);
    return figures_path(r, "pace", key, r->pace_path, sizeof r->pace_path);
}

/* The factors belong to the opened model, and apply also to plans that compare it with its other
 * formats (explain_help.c, bench frontier). Each class of plans has its own factor; a class without
 * runs gets the mean of the others. */
static enum err find_pace(struct run *r)
{
    struct pace_runs runs;
    r->costs.pace = &r->pace;
    if (r->pace_path[0])
        return OK;
    TRY(name_pace(r));
    if (!r->pace_path[0])
        return OK;
    pace_file_read(&runs, r->pace_path);
    pace_make(&r->pace, &runs);
    return OK;
}

void run_keep_pace(const struct run *r)
{
    struct pace_run run = {.class = pace_class(&r->decision.plan, r->pace.setup)};
    if (r->pace_path[0] && replan_pace(r->replan, &run.times))
        pace_file_add(r->pace_path, &run);
}

int64_t run_line_max(struct run *r)
{
    if (r->room.ram < 0)
        machine_room(&r->session->info, &r->room.ram, &r->room.disk);
    int64_t ram = r->config->mem_ram >= 0 ? r->config->mem_ram
                                          : r->room.ram / max_i64(r->config->share_memory, 1);
    return max_i64(ram / JOB_LINE_SHARE, LINE_BYTES_LEAST);
}

/* Budgets without a flag: the free memory here. `plan` uses the capacities of a machine file
 * instead; for a run here, these are one more limit. */
static enum err read_budgets(struct run *r, const struct config *c)
{
    const struct machine *m = &r->machine;
    if (r->room.ram < 0)
        machine_room(&r->session->info, &r->room.ram, &r->room.disk);
    if (r->room.device < 0)
        TRY(compute_device_room(r->session->device, &r->room.device));
    const int64_t share = max_i64(c->share_memory, 1);
    int64_t ram = r->room.ram / share, disk = r->room.disk / share, device = r->room.device;
    if (r->elsewhere)
        device = m->device_memory;
    else if (c->machine && m->device_memory > 0)
        device = min_i64(device, m->device_memory);
    r->plans_device = r->elsewhere ? device > 0 && strcmp(c->device, "cpu") != 0
                                   : !r->session->device->api->unified;
    if (c->machine && m->ram > 0)
        ram = r->elsewhere ? m->ram : min_i64(ram, m->ram);
    if (c->machine && m->disk > 0)
        disk = r->elsewhere ? m->disk : min_i64(disk, m->disk);
    r->budget = (struct budget){.device = c->mem_device >= 0 ? c->mem_device : device,
                                .ram = c->mem_ram >= 0 ? c->mem_ram : ram,
                                .disk = c->mem_disk >= 0 ? c->mem_disk : disk};
    if (!c->machine)
        return OK;
    char on_device[96] = "";
    if (r->plans_device) {
        TRY(machine_device_check(m, c->machine));
        snprintf(on_device, sizeof on_device, "device %.1f MiB (%s), ",
                 (double)r->budget.device / 1048576.0,
                 c->mem_device >= 0     ? "--mem-device"
                 : m->device_memory > 0 ? c->machine
                                        : "free here");
    }
    log_line(LOG_INFO, "budget: %sRAM %.1f MiB (%s), disk %.1f MiB (%s); rates of %s", on_device,
             (double)r->budget.ram / 1048576.0,
             c->mem_ram >= 0 ? "--mem-ram"
             : m->ram > 0    ? c->machine
                             : "free here",
             (double)r->budget.disk / 1048576.0,
             c->mem_disk >= 0 ? "--mem-disk"
             : m->disk > 0    ? c->machine
                              : "free here",
             c->machine);
    if (r->elsewhere && ((c->mem_ram < 0 && m->ram == 0) || (c->mem_disk < 0 && m->disk == 0)))
        log_line(LOG_WARN, "%s: has no ram or disk: this machine's count (--mem-ram, --mem-disk)",
                 c->machine);
    return OK;
}

enum err run_rates(struct run *r)
{
    const struct config *c = r->config;
    if (c->machine)
        TRY(read_machine(r));
    TRY(read_budgets(r, c));
    if (r->keeps_rates)
        return OK;
    if (!c->machine)
        TRY(probe_machine(r));
    TRY(probe_matmuls_of_model(r));
    return find_pace(r);
}
