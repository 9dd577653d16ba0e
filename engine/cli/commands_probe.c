/* engine/cli/commands_probe.c - `probe`: measures this machine, prints or writes a machine file.
 *
 * Owns: the form of the answer. Refuses: reading the cache: this command measures, or (--reset)
 * empties the cache. Without -o the machine file is printed on stdout, so `sluice probe >
 * machine.cfg` works too. */
#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "engine/api/compute.h"
#include "engine/api/version.h"
#include "engine/cli/commands.h"
#include "engine/model/pack.h"
#include "offload/machine_file.h"
#include "offload/probe.h"
#include "offload/probe_cache.h"

#define SPREAD_LARGE 0.2 // relative to the value

/* Prints every rate by its key, as a number; `spreads` holds [spread, samples] of each. */
static enum err print_json(const struct machine *m, const struct compute_setup *s)
{
    json_t *spreads = json_object();
    json_t *root =
        json_pack("{ss ss si ss ss}", "version", SLUICE_VERSION, "cpu", s->info.cpu_name, "threads",
                  m->threads, "isa", isa_name(s->ops.isa), "compute", compute_name(s->ops.compute));
    for (int i = 0; i < N_MACHINE_RATES && root; i++) {
        const struct rate *r = &m->rates[i];
        if (r->value <= 0)
            continue;
        json_object_set_new(root, machine_rates[i].key, json_real(r->value));
        json_object_set_new(spreads, machine_rates[i].key, json_pack("[fi]", r->spread, r->n));
    }
    if (root && m->device_memory > 0)
        json_object_set_new(root, "device_memory", json_integer(m->device_memory));
    int bad = !root || json_object_set_new(root, "spreads", spreads) != 0 ||
              json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0;
    json_decref(root);
    putchar('\n');
    return bad ? fail(ERR_IO, "stdout: cannot be written") : OK;
}

/* Warns of rates with a large spread: other processes were busy, or the rate varies. */
static void warn_of_spreads(const struct machine *m)
{
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (m->rates[i].spread > SPREAD_LARGE * m->rates[i].value)
            log_line(LOG_WARN, "probe: %s: its samples are %.0f %% apart: is the machine busy?",
                     machine_rates[i].key, 100 * m->rates[i].spread / m->rates[i].value);
}

static enum err print_machine(const struct machine *m, const struct config *c,
                              const struct compute_setup *s, const char *dir,
                              const struct device_info *device)
{
    char comment[1400], date[32], text[MACHINE_TEXT_BYTES];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    snprintf(comment, sizeof comment,
             "cpu: %s, %s\n%s%s%sdate: %s\nversion: %s, %s probe of %.800s", s->info.cpu_name,
             isa_name(s->ops.isa), m->h2d.value > 0 ? "device: " : "",
             m->h2d.value > 0 ? device->model : "", m->h2d.value > 0 ? "\n" : "", date,
             SLUICE_VERSION, c->full ? "full" : "short", dir);
    if (c->out)
        TRY(machine_file_write(m, c->out, comment));
    if (c->json)
        return print_json(m, s);
    if (c->out)
        return OK;
    int n = machine_text_format(m, comment, text, sizeof text);
    return n > 0 && fputs(text, stdout) >= 0 ? OK : fail(ERR_IO, "stdout: cannot be written");
}

/* Removes the measurements for every model and folder; the next run measures again. */
static enum err reset(const struct config *c)
{
    char dir[4096];
    int64_t n, n_bytes;
    TRY(pack_cache_dir(dir, sizeof dir));
    TRY(probe_cache_reset(dir, &n, &n_bytes));
    printf(c->json ? "{\"removed_files\": %lld, \"removed_bytes\": %lld}\n"
                   : "removed %lld files, %lld bytes\n",
           (long long)n, (long long)n_bytes);
    return OK;
}

enum err command_probe(const struct config *c)
{
    if (c->reset)
        return reset(c);
    const char *dir = c->offload_dir ? c->offload_dir : ".";
    struct compute_setup s;
    struct machine m;
    struct device *device;
    struct device_info info;
    TRY(device_open(c->device, &device));
    enum err err = compute_open(&s, c, dir);
    if (err == OK) {
        struct probe_config probe = {.ops = &s.ops,
                                     .dir = dir,
                                     .io = s.io,
                                     .full = c->full,
                                     .verbose = 1,
                                     .info = &s.info,
                                     .device = device};
        err = probe_run(&m, &probe);
    }
    if (err == OK)
        err = compute_device_room(device, &m.device_memory);
    if (err == OK)
        err = device->api->info(device, &info);
    if (err == OK) {
        machine_room(&s.info, &m.ram, &m.disk);
        warn_of_spreads(&m);
        err = print_machine(&m, c, &s, dir, &info);
    }
    compute_close(&s);
    device_close(device);
    return err;
}
