/* kernels/base/trace.c - see trace.h. */
#include "kernels/base/trace.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/whole.h"

const char *lane_name(enum lane lane)
{
    static const char *const names[] = {"nvme-read", "nvme-write", "h2d",  "d2h",
                                        "gpu",       "cpu",        "stall"};
    return names[lane];
}

enum err trace_open(struct trace *t, int64_t capacity)
{
    memset(t, 0, sizeof *t);
    t->capacity = capacity;
    for (int lane = 0; capacity > 0 && lane < N_LANES; lane++) {
        t->events[lane] = calloc((size_t)capacity, sizeof *t->events[lane]);
        if (!t->events[lane]) {
            trace_close(t);
            return fail(ERR_FIT, "--trace: no memory for %lld events a lane", (long long)capacity);
        }
    }
    return OK;
}

void trace_note(struct trace *t, enum lane lane, struct trace_event event)
{
    event.pass = t->first_pass + (t->pass_steps > 0 ? event.step / t->pass_steps : 0);
    event.pass = event.step < 0 ? -1 : event.pass;
    t->totals[lane].events++;
    if (t->capacity > 0)
        t->events[lane][t->n_events[lane] % t->capacity] = event;
    t->n_events[lane]++;
}

void trace_add(struct trace *t, enum lane lane, struct trace_event event)
{
    struct lane_total *total = &t->totals[lane];
    total->busy_ns += event.end_ns - event.start_ns;
    total->bytes += event.bytes > 0 ? event.bytes : 0;
    atomic_store_explicit(&t->busy_ns[lane], total->busy_ns, memory_order_relaxed);
    trace_note(t, lane, event);
}

/* Writes the fields that are known (not negative). */
static void write_args(const struct trace_event *e, FILE *f)
{
    const struct {
        const char *name;
        int64_t value;
    } args[] = {{"pass", e->pass}, {"layer", e->layer}, {"batch", e->batch}, {"bytes", e->bytes}};
    const char *comma = "";
    fputs(",\"args\":{", f);
    for (int i = 0; i < 4; i++) {
        if (args[i].value < 0)
            continue;
        fprintf(f, "%s\"%s\":%lld", comma, args[i].name, (long long)args[i].value);
        comma = ",";
    }
    fputs("}}", f);
}

static void write_lane(const struct trace *t, enum lane lane, int64_t origin_ns, FILE *f)
{
    fprintf(f,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%"
            "s\"}}",
            (int)lane, lane_name(lane));
    int64_t n = min_i64(t->n_events[lane], t->capacity);
    for (int64_t i = 0; i < n; i++) {
        const struct trace_event *e = &t->events[lane][(t->n_events[lane] - n + i) % t->capacity];
        fprintf(f,
                ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,"
                "\"pid\":1,\"tid\":%d",
                e->name, lane_name(lane), (double)(e->start_ns - origin_ns) * 1e-3,
                (double)(e->end_ns - e->start_ns) * 1e-3, (int)lane);
        write_args(e, f);
    }
}

enum err trace_write(const struct trace *t, const char *path)
{
    struct whole_file file;
    TRY(whole_open(&file, path));
    FILE *f = file.f;
    int64_t origin_ns = INT64_MAX;
    for (int lane = 0; lane < N_LANES; lane++) {
        int64_t n = min_i64(t->n_events[lane], t->capacity);
        for (int64_t i = 0; i < n; i++)
            origin_ns = min_i64(origin_ns, t->events[lane][i].start_ns);
    }
    fprintf(
        f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\","
           "\"pid\":1,\"args\":{\"name\":\"sluice\"}}");
    for (int lane = 0; lane < N_LANES; lane++)
        if (t->n_events[lane] > 0)
            write_lane(t, lane, origin_ns, f);
    fprintf(f, "\n]}\n");
    return whole_end(&file);
}

void trace_close(struct trace *t)
{
    for (int lane = 0; lane < N_LANES; lane++)
        free(t->events[lane]);
    memset(t, 0, sizeof *t);
}
