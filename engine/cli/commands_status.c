/* engine/cli/commands_status.c - `status`: a job's state, for another shell (see job_status.h). */
#include "engine/cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/api/outputs.h"
#include "engine/api/report.h"
#include "engine/job/claims.h"
#include "engine/job/job_status.h"
#include "engine/job/result.h"

static void put_count(struct out *o, const char *key, int64_t n)
{
    out_text(o, key);
    out_int(o, n);
}

/* ,"chunks":{...},"workers":[...] of a shared job */
static void put_workers(struct out *o, const struct job_status *s)
{
    if (s->n_workers == 0)
        return;
    put_count(o, ",\"chunks\":{\"total\":", s->chunks);
    put_count(o, ",\"claimed\":", s->claimed);
    out_text(o, "},\"workers\":[");
    for (int i = 0; i < s->n_workers; i++) {
        const struct job_worker *w = &s->workers[i];
        out_text(o, i > 0 ? ",{\"name\":" : "{\"name\":");
        out_string(o, w->name, (int64_t)strlen(w->name));
        out_text(o, ",\"state\":\"");
        out_text(o, w->state);
        put_count(o, "\",\"rows\":", w->rows);
        put_count(o, ",\"beat_age_s\":", w->beat_age_s);
        out_text(o, "}");
    }
    out_text(o, "]");
}

static enum err print_json(const struct job_status *s, const char *path)
{
    struct out o = {0};
    out_text(&o, "{\"out\":");
    out_string(&o, path, (int64_t)strlen(path));
    out_text(&o, ",\"input\":");
    out_string(&o, s->input, (int64_t)strlen(s->input));
    out_text(&o, ",\"job\":");
    out_string(&o, s->job, (int64_t)strlen(s->job));
    out_text(&o, ",\"state\":\"");
    out_text(&o, job_state_name(s->state));
    out_text(&o, "\",\"pid\":");
    out_text(&o, s->pid > 0 ? "" : "null");
    if (s->pid > 0)
        out_int(&o, s->pid);
    put_count(&o, ",\"rows\":{\"total\":", s->rows);
    put_count(&o, ",\"ok\":", s->ok);
    put_count(&o, ",\"failed\":", s->failed);
    put_count(&o, ",\"left\":", s->left);
    put_count(&o, ",\"live\":", s->live);
    put_count(&o, "},\"output_tokens\":", s->output_tokens);
    put_count(&o, ",\"live_tokens\":", s->live_tokens);
    put_count(&o, ",\"started_unix_s\":", s->started_unix_s);
    put_count(&o, ",\"last_commit_unix_s\":", s->last_unix_s);
    out_text(&o, ",\"elapsed_s\":");
    out_number(&o, s->elapsed_s);
    out_text(&o, ",\"predicted_elapsed_s\":");
    out_text(&o, s->predicted_s >= 0 ? "" : "null");
    if (s->predicted_s >= 0)
        out_number(&o, s->predicted_s);
    put_count(&o, ",\"journal_bytes\":", s->journal_bytes);
    put_workers(&o, s);
    json_t *errors = json_object();
    errors_put(&s->errors, errors);
    char *text = json_dumps(errors, JSON_COMPACT | JSON_EMBED);
    out_text(&o, ",");
    out_text(&o, text ? text : "");
    out_text(&o, "}\n");
    enum err err = o.failed || !text ? fail(ERR_FIT, "memory: status") : OK;
    free(text);
    json_decref(errors);
    if (err == OK)
        fwrite(o.p, 1, (size_t)o.n, stdout);
    out_free(&o);
    return err;
}

static void print_workers(const struct job_status *s, const char *started)
{
    const int64_t done = s->ok + s->failed;
    printf("  begun %s, %.0f s", started, s->elapsed_s);
    if (done > 0 && s->elapsed_s > 0)
        printf("; %.3g rows a minute, about %.0f min left at this pace",
               60.0 * (double)done / s->elapsed_s,
               (double)s->left * s->elapsed_s / (double)done / 60.0);
    printf("\n  chunks: %lld of %lld claimed\n  %-44s %-8s %10s  last beat\n",
           (long long)s->claimed, (long long)s->chunks, "worker", "state", "rows");
    for (int i = 0; i < s->n_workers; i++) {
        const struct job_worker *w = &s->workers[i];
        printf("  %-44s %-8s %10lld  %lld s ago\n", w->name, w->state, (long long)w->rows,
               (long long)w->beat_age_s);
    }
}

static void print_text(const struct job_status *s, const char *path)
{
    char started[40] = "?";
    time_t when = (time_t)s->started_unix_s;
    struct tm tm;
    if (gmtime_r(&when, &tm))
        strftime(started, sizeof started, "%Y-%m-%d %H:%M:%S UTC", &tm);
    printf("%s: %s", path, job_state_name(s->state));
    if (s->pid > 0)
        printf(", pid %lld", (long long)s->pid);
    printf("\n  rows: %lld of %lld ok, %lld failed, %lld to do", (long long)s->ok,
           (long long)s->rows, (long long)s->failed, (long long)s->left);
    if (s->live > 0)
        printf(" (%lld of these partly done)", (long long)s->live);
    printf("\n");
    report_errors(&s->errors, &s->ignore, 0, stdout);
    printf("  output tokens on disk: %lld", (long long)s->output_tokens);
    if (s->live > 0)
        printf(", and %lld of rows that are partly done", (long long)s->live_tokens);
    printf("\n");
    if (s->n_workers > 0) {
        print_workers(s, started);
        return;
    }
    printf("  last run: started %s, %.0f s", started, s->elapsed_s);
    if (s->predicted_s >= 0)
        printf(", predicted %.1f s", s->predicted_s);
    printf("\n");
}

enum err command_status(const struct config *c)
{
    if (c->n_args != 1)
        return fail(ERR_USAGE, "status: needs one OUT (the -o of a run)");
    struct job_status s;
    struct stat file;
    char path[4200];
    const char *out = c->args[0];
    const int in_folder = stat(out, &file) == 0 && S_ISDIR(file.st_mode); // of --work-dir
    snprintf(path, sizeof path, "%.4096s/" CLAIMS_JOB, out);
    if (in_folder && stat(path, &file) == 0) {
        TRY(job_status_shared(&s, out));
    } else {
        snprintf(path, sizeof path, "%.4096s/%s", out, SPOOL_OUT);
        out = in_folder ? path : out;
        TRY(job_status_read(&s, out));
    }
    enum err err = OK;
    if (c->json)
        err = print_json(&s, out);
    else
        print_text(&s, out);
    job_status_free(&s);
    return err;
}
