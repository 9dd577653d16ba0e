/* engine/cli/devices_report.c - of devices_impl.h: what the user sees of all processes together.
 *
 * Owns: the progress line, the end report and --summary of --devices. What the job has done is read
 * from its files, as `status` reads them; what a process has done is what it tells. */
#include "engine/cli/devices_impl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/plan_file.h"
#include "engine/api/report.h"
#include "engine/api/version.h"
#include "engine/api/words.h"
#include "engine/job/claims.h"
#include "engine/job/job_status.h"

#define LOOK_NS    1000000000LL  // between looks at the job, at least
#define LOOK_SHARE 50            // of the time goes to looks, at most one part in so many
#define LINES_NS   10000000000LL // between progress lines where there is no terminal

/* ---- how far the job is ---- */

/* Of a job in the work directory, else of one that is complete. *s is zero if there is none; the
 * caller frees it. */
static void read_status(const struct devices *d, struct job_status *s)
{
    char path[CLAIMS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/" CLAIMS_JOB, d->dir);
    *s = (struct job_status){0};
    enum err err = access(path, F_OK) == 0 ? job_status_shared(s, d->dir) : ERR_INPUT;
    if (err != OK) { // it may have ended just now
        job_status_free(s);
        err = job_status_read(s, d->config->out);
    }
    if (err == OK && (s->n_workers > 0 || s->state == JOB_COMPLETE))
        return;
    job_status_free(s);
    *s = (struct job_status){0};
}

/* Rows that a worker has by its file in the work directory: NAME has its process id. */
static void take_rows(struct devices *d, const struct job_status *s)
{
    char id[32];
    for (int i = 0; i < d->n_started; i++) {
        struct worker *w = &d->workers[i];
        snprintf(id, sizeof id, ".%lld.", (long long)w->pid);
        for (int k = 0; k < s->n_workers && !w->summary; k++)
            if (strstr(s->workers[k].name, id))
                w->rows = max_i64(w->rows, s->workers[k].rows);
    }
}

static struct tally tally_of(const struct job_status *s)
{
    return (struct tally){s->rows, s->ok, s->failed, s->left, s->output_tokens + s->live_tokens};
}

void devices_look(struct devices *d, struct tally *p)
{
    struct job_status s;
    const int64_t start = clock_ns();
    read_status(d, &s);
    *p = tally_of(&s);
    take_rows(d, &s);
    job_status_free(&s);
    d->looked_ns = clock_ns();
    d->look_cost_ns = d->looked_ns - start;
}

/* ---- progress ---- */

static double seconds_of(const struct devices *d)
{
    return (double)(clock_ns() - (d->planned_ns ? d->planned_ns : d->start_ns)) * 1e-9;
}

static double per_s(int64_t n, double s)
{
    return s > 0 ? (double)n / s : 0;
}

static void progress_text(const struct devices *d, char *text, size_t cap)
{
    const struct tally *now = &d->now;
    const double s = seconds_of(d);
    const int64_t done = now->ok + now->failed, here = done - d->before.ok - d->before.failed;
    char failed[40] = "", speed[WORDS_BYTES], left[WORDS_BYTES];
    if (now->failed > 0)
        snprintf(failed, sizeof failed, " (%lld failed)", (long long)now->failed);
    size_t n = (size_t)snprintf(
        text, cap, "rows %lld/%lld%s  %s tok/s  ETA %s", (long long)done, (long long)now->rows,
        failed, words_digits(per_s(now->tokens - d->before.tokens, s), speed),
        words_clock(here > 0 ? (double)now->left * s / (double)here : -1, left));
    for (int i = 0; i < d->n_started && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, "  %s %lld", d->workers[i].name,
                              (long long)d->workers[i].rows);
}

void devices_clear(struct devices *d)
{
    if (d->shown)
        fputs("\r\033[K", stderr);
    d->shown = 0;
}

void devices_progress(struct devices *d)
{
    const enum config_progress mode = progress_of(d->config);
    const int64_t every = mode == PROGRESS_BAR ? LOOK_NS : LINES_NS, now = clock_ns();
    char text[1024];
    if (now - d->looked_ns < max_i64(LOOK_NS, LOOK_SHARE * d->look_cost_ns) || !d->planned_ns)
        return;
    devices_look(d, &d->now);
    if (mode == PROGRESS_NONE || now - d->printed_ns < every)
        return;
    d->printed_ns = now;
    progress_text(d, text, sizeof text);
    if (mode == PROGRESS_BAR)
        fprintf(stderr, "\r%.*s\033[K", 200, text);
    else
        log_line(LOG_INFO, "%s", text);
    d->shown = mode == PROGRESS_BAR;
}

/* ---- the end ---- */

static int64_t number_in(const json_t *object, const char *key, const char *inner)
{
    return json_integer_value(json_object_get(json_object_get(object, key), inner));
}

static const char *ending(enum err err)
{
    return err == OK || err == ERR_ROWS ? "done" : err == ERR_STOPPED ? "stopped" : "failed";
}

static void print(const struct devices *d, const struct job_status *s, double elapsed_s,
                  enum err err)
{
    const int64_t made = s->output_tokens + s->live_tokens - d->before.tokens;
    char failed[40] = "", speed[WORDS_BYTES], time[WORDS_BYTES];
    if (s->failed > 0)
        snprintf(failed, sizeof failed, ", %lld failed", (long long)s->failed);
    fprintf(stderr, "%s: %lld of %lld rows ok%s; %s output tokens/s on %d devices, %s s\n",
            ending(err), (long long)s->ok, (long long)s->rows, failed,
            words_digits(per_s(made, elapsed_s), speed), d->n_started,
            words_digits(elapsed_s, time));
    report_errors(&s->errors, &s->ignore, 0, stderr);
    for (int i = 0; i < d->n_started; i++) {
        const struct worker *w = &d->workers[i];
        const int64_t tokens = number_in(w->summary, "worker", "output_tokens");
        const int64_t shared = number_in(w->summary, "plan", "shared_bytes");
        fprintf(stderr, "  %s: %lld rows", w->name, (long long)w->rows);
        if (w->summary)
            fprintf(stderr, ", %lld output tokens, %s a second; at most %lld MiB of RAM",
                    (long long)tokens, words_digits(per_s(tokens, elapsed_s), speed),
                    (long long)(number_in(w->summary, "peak_bytes", "ram") >> 20));
        if (shared > 0)
            fprintf(stderr, ", with its part of %lld MiB shared", (long long)(shared >> 20));
        if (w->error[0] && w->code != err)
            fprintf(stderr, "; %s", w->error);
        fputs("\n", stderr);
    }
}

static json_t *worker_json(const struct worker *w)
{
    json_t *j =
        json_pack("{s:s,s:I,s:I}", "device", w->name, "rows", (json_int_t)w->rows, "output_tokens",
                  (json_int_t)number_in(w->summary, "worker", "output_tokens"));
    json_object_set_new(j, "exit_code", w->signal ? json_null() : json_integer(w->code));
    json_object_set_new(j, "signal", w->signal ? json_integer(w->signal) : json_null());
    json_object_set_new(j, "error", w->error[0] ? json_string(w->error) : json_null());
    json_object_set(j, "summary", w->summary ? w->summary : json_null());
    return j;
}

static json_t *peak_json(const struct devices *d)
{
    static const char *const places[] = {"device", "ram", "disk"};
    json_t *peak = json_object();
    for (int k = 0; k < 3; k++) {
        int64_t sum = 0;
        for (int i = 0; i < d->n_started; i++)
            sum += number_in(d->workers[i].summary, "peak_bytes", places[k]);
        json_object_set_new(peak, places[k], json_integer(sum));
    }
    return peak;
}

static json_t *summary_json(const struct devices *d, const struct job_status *s, double elapsed_s,
                            enum err err, const char *error)
{
    const int64_t made = s->output_tokens + s->live_tokens - d->before.tokens;
    json_t *root = json_object(), *rows = json_object(), *list = json_array();
    const json_t *first = NULL; // says of the model what all say
    for (int i = 0; i < d->n_started; i++) {
        first = first ? first : d->workers[i].summary;
        json_array_append_new(list, worker_json(&d->workers[i]));
    }
    json_t *model = json_object_get(first, "model"),
           *dummy = json_object_get(first, "dummy_weights");
    json_object_set(root, "model", model ? model : json_null());
    json_object_set(root, "dummy_weights", dummy ? dummy : json_null());
    json_object_set_new(rows, "total", json_integer(s->rows));
    json_object_set_new(rows, "ok", json_integer(s->ok));
    json_object_set_new(rows, "failed", json_integer(s->failed));
    errors_put(&s->errors, rows);
    json_object_set_new(root, "rows", rows);
    json_object_set_new(root, "output_tokens", json_integer(made));
    json_object_set_new(
        root, "startup_s",
        json_real(d->planned_ns ? (double)(d->planned_ns - d->start_ns) * 1e-9 : 0));
    json_object_set_new(root, "elapsed_s", json_real(elapsed_s));
    json_object_set_new(root, "output_tokens_per_s", json_real(per_s(made, elapsed_s)));
    json_object_set_new(root, "peak_bytes", peak_json(d));
    json_object_set_new(root, "devices", list);
    json_object_set_new(root, "version", json_string(SLUICE_VERSION));
    json_object_set_new(root, "interrupted", json_boolean(err == ERR_STOPPED));
    json_object_set_new(root, "exit_code", json_integer(err));
    json_object_set_new(root, "error", *error ? json_string(error) : json_null());
    return root;
}

enum err devices_report(struct devices *d, enum err err)
{
    struct job_status s;
    const double elapsed_s = seconds_of(d);
    const int whole = err == OK || err == ERR_ROWS;
    char text[1024] = "";
    if (!whole)
        snprintf(text, sizeof text, "%s", err_text());
    devices_clear(d);
    read_status(d, &s);
    take_rows(d, &s);
    if (!d->config->quiet && s.rows > 0)
        print(d, &s, elapsed_s, err);
    json_t *summary = d->config->summary ? summary_json(d, &s, elapsed_s, err, text) : NULL;
    enum err written = summary ? json_save(summary, d->config->summary, 9) : OK;
    json_decref(summary);
    job_status_free(&s);
    if (whole && written == OK)
        return err;
    if (whole)
        return written;
    if (written != OK)
        log_line(LOG_WARN, "%s", err_text());
    return fail(err, "%s", text);
}
