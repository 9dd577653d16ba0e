/* engine/cli/commands_merge.c - `merge`: joins the OUTs of all shards of one job into the OUT of
 * the job.
 *
 * Note: shard i of N has rows i, i + N, ... of the input, one line each, so taking one line from
 * each shard in turn restores input order. The manifest of the whole is that of a shard with other
 * sums: `run` without --shard finds the job complete. */
#include "engine/cli/commands.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/data/file.h"
#include "kernels/base/whole.h"

#define MANIFEST_BYTES_MAX (1 << 20)

struct part {
    const char *path; // borrowed
    json_t *root;     // owned: its manifest
    FILE *f;          // owned
    int64_t rows;
    uint32_t crc; // of the bytes read so far
};

struct merge {
    struct part *parts; // owned: [n], sorted by shard after by_shard()
    int64_t n, rows;
    struct whole_file out, manifest; // owned
    char *line;                      // owned
    size_t line_cap;
    int64_t written;
    uint32_t crc;
};

static const char *identity_of(const json_t *root, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(root, "identity"), key));
    return text ? text : "";
}

static int64_t number_of(const json_t *root, const char *key)
{
    return json_integer_value(json_object_get(root, key));
}

/* ---- reading the parts ---- */

static enum err part_open(struct part *p, const char *path)
{
    char manifest[4200], *text;
    int64_t n;
    int found;
    json_error_t why;
    struct stat s;
    p->path = path;
    snprintf(manifest, sizeof manifest, "%.4096s.job.json", path);
    TRY(file_load(manifest, MANIFEST_BYTES_MAX, &text, &n, &found));
    if (!found)
        return fail(ERR_INPUT, "%.512s: not the OUT of a job: %.512s is missing", path, manifest);
    p->root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!json_is_object(json_object_get(p->root, "identity")))
        return fail(ERR_INPUT, "%.512s: not a job's manifest", manifest);
    if (!json_is_true(json_object_get(p->root, "complete")))
        return fail(ERR_JOB,
                    "%.512s: shard %s/%s is not complete (the command that made it resumes)", path,
                    identity_of(p->root, "shard"), identity_of(p->root, "shards"));
    p->rows = number_of(p->root, "rows");
    p->f = fopen(path, "rb");
    if (!p->f || fstat(fileno(p->f), &s) != 0)
        return fail(ERR_INPUT, "%.512s: %s", path, strerror(errno));
    if (s.st_size != number_of(p->root, "out_bytes"))
        return fail(ERR_CORRUPT, "%.512s: has changed since its job ended", path);
    return OK;
}

/* Checks that two parts are shards of one job; names the first key that differs. */
static enum err same_job(const struct part *a, const struct part *b)
{
    const json_t *mine = json_object_get(a->root, "identity");
    const json_t *other = json_object_get(b->root, "identity");
    const char *key;
    json_t *value;
    json_object_foreach(
        (json_t *)mine, key,
        value) if (strcmp(key, "shard") != 0 &&
                   !json_equal(
                       value,
                       json_object_get(other, key))) return fail(ERR_JOB,
                                                                 "%.300s: another job than %.300s: "
                                                                 "%s is %.100s, not %.100s",
                                                                 b->path, a->path, key,
                                                                 identity_of(b->root, key),
                                                                 identity_of(a->root, key));
    if (json_object_size(mine) != json_object_size(other))
        return fail(ERR_JOB, "%.300s: another job than %.300s", b->path, a->path);
    return OK;
}

/* Sorts the parts by shard; names missing shards. */
static enum err by_shard(struct merge *m)
{
    int64_t n_shards = strtoll(identity_of(m->parts[0].root, "shards"), NULL, 10);
    if (n_shards < 1 || n_shards > CONFIG_ARGS_MAX)
        return fail(ERR_JOB, "%.512s: a shard of %lld, which cannot be merged", m->parts[0].path,
                    (long long)n_shards);
    struct part *sorted = calloc((size_t)n_shards, sizeof *sorted);
    if (!sorted)
        return fail(ERR_FIT, "no memory for the parts");
    enum err err = OK;
    for (int64_t i = 0; i < m->n && err == OK; i++) {
        int64_t shard = strtoll(identity_of(m->parts[i].root, "shard"), NULL, 10);
        if (shard < 0 || shard >= n_shards)
            err = fail(ERR_JOB, "%.512s: shard %lld of %lld", m->parts[i].path, (long long)shard,
                       (long long)n_shards);
        else if (sorted[shard].path)
            err = fail(ERR_JOB, "%.300s and %.300s are both shard %lld/%lld", sorted[shard].path,
                       m->parts[i].path, (long long)shard, (long long)n_shards);
        else
            sorted[shard] = m->parts[i];
    }
    char missing[200] = "";
    for (int64_t i = 0; i < n_shards; i++) {
        size_t n = strlen(missing);
        if (!sorted[i].path)
            snprintf(missing + n, sizeof missing - n, "%s%lld/%lld", n ? ", " : "", (long long)i,
                     (long long)n_shards);
    }
    if (err == OK && missing[0])
        err = fail(ERR_JOB, "merge: missing: shard %s", missing);
    if (err == OK)
        memcpy(m->parts, sorted, (size_t)m->n * sizeof *sorted); // one part per shard
    free(sorted);
    return err;
}

static enum err check_parts(struct merge *m)
{
    for (int64_t i = 1; i < m->n; i++)
        TRY(same_job(&m->parts[0], &m->parts[i]));
    TRY(by_shard(m));
    for (int64_t i = 0; i < m->n; i++)
        m->rows += m->parts[i].rows;
    for (int64_t i = 0; i < m->n; i++)
        if (m->parts[i].rows != (m->rows - i + m->n - 1) / m->n)
            return fail(ERR_JOB, "%.512s: has %lld rows of %lld", m->parts[i].path,
                        (long long)m->parts[i].rows, (long long)m->rows);
    return OK;
}

/* ---- the whole ---- */

static enum err copy_line(struct merge *m, struct part *p)
{
    ssize_t n = getline(&m->line, &m->line_cap, p->f);
    if (n <= 0 || m->line[n - 1] != '\n')
        return fail(ERR_CORRUPT, "%.512s: ends before its last row", p->path);
    p->crc = crc32c(p->crc, m->line, n);
    m->crc = crc32c(m->crc, m->line, n);
    m->written += n;
    if (fwrite(m->line, 1, (size_t)n, m->out.f) != (size_t)n)
        return fail(ERR_IO, "%.512s: %s", m->out.path, strerror(errno));
    return OK;
}

static enum err write_rows(struct merge *m)
{
    for (int64_t k = 0; k < m->rows; k++)
        TRY(copy_line(m, &m->parts[k % m->n]));
    for (int64_t i = 0; i < m->n; i++)
        if (fgetc(m->parts[i].f) != EOF ||
            m->parts[i].crc != (uint32_t)number_of(m->parts[i].root, "out_crc32c"))
            return fail(ERR_CORRUPT, "%.512s: has changed since its job ended", m->parts[i].path);
    return OK;
}

static void set_sum(struct merge *m, json_t *root, const char *key)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < m->n; i++)
        sum += number_of(m->parts[i].root, key);
    json_object_set_new(root, key, json_integer(sum));
}

static void sum_errors(const struct merge *m, json_t *root)
{
    struct job_errors errors = {0};
    for (int64_t i = 0; i < m->n; i++)
        errors_take(&errors, m->parts[i].root);
    errors_put(&errors, root);
}

/* Shards have different limits of prompts, or none if they had no row to plan for. */
static void merge_caps(const struct merge *m, json_t *root)
{
    const json_t *cap = json_object_get(root, "prompt_cap");
    int differ = 0, unlike = 0; // unlike: two shards have limits, which differ
    for (int64_t i = 1; i < m->n; i++) {
        const json_t *other = json_object_get(m->parts[i].root, "prompt_cap");
        differ |= !json_equal(cap, other);
        unlike |= json_is_integer(cap) && json_is_integer(other) && !json_equal(cap, other);
        cap = json_is_integer(cap) ? cap : other;
    }
    if (unlike)
        log_line(LOG_WARN, "merge: the shards ran with different limits of prompts, so that a "
                           "prompt may be an error row in one and answered in another "
                           "(--work-dir has one limit; run --retry-errors without --shard runs the "
                           "failed rows again)");
    if (differ)
        json_object_set_new(root, "prompt_cap", json_null());
}

/* Writes the manifest of the job without shards. */
static enum err write_manifest(struct merge *m)
{
    json_t *root = json_deep_copy(m->parts[0].root), *identity = json_object_get(root, "identity");
    static const char *const sums[] = {"rows", "ok", "failed", "output_tokens"};
    json_object_set_new(identity, "shard", json_string("0"));
    json_object_set_new(identity, "shards", json_string("1"));
    sum_errors(m, root);
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
        set_sum(m, root, sums[i]);
    merge_caps(m, root);
    json_object_set_new(root, "predicted_elapsed_s", json_null());
    json_object_set_new(root, "out_bytes", json_integer(m->written));
    json_object_set_new(root, "out_crc32c", json_integer(m->crc));
    json_object_set_new(root, "ended_unix_s", json_integer((json_int_t)time(NULL)));
    int failed = json_dumpf(root, m->manifest.f, JSON_INDENT(2)) != 0 && !ferror(m->manifest.f);
    json_decref(root);
    return failed ? fail(ERR_FIT, "no memory for the manifest")
                  : OK; // whole_end() reports errors of the file
}

/* Writes OUT and its manifest, under temporary names until both are complete. OUT is renamed first:
 * if another file has appeared under its name, no manifest may describe that file. */
static enum err make_whole(struct merge *m, const char *out)
{
    char manifest[4200];
    snprintf(manifest, sizeof manifest, "%.4096s%s", out, job_suffixes[JOB_MANIFEST]);
    TRY(whole_open(&m->out, out));
    enum err err = whole_open(&m->manifest, manifest);
    if (err == OK)
        err = write_rows(m);
    if (err == OK)
        err = write_manifest(m);
    if (err == OK)
        err = whole_end(&m->out);
    if (err == OK)
        err = whole_end(&m->manifest);
    whole_drop(&m->out);
    whole_drop(&m->manifest);
    return err;
}

/* OUT must not exist (except with --overwrite), and no job may be writing OUT. */
static enum err check_out(const struct config *c)
{
    char path[4200];
    snprintf(path, sizeof path, "%.4096s%s", c->out, job_suffixes[JOB_JOURNAL]);
    if (access(path, F_OK) == 0)
        return fail(ERR_JOB, "%.512s: a running job writes this file (another -o)", c->out);
    snprintf(path, sizeof path, "%.4096s%s", c->out, job_suffixes[JOB_MANIFEST]);
    if (c->overwrite || (access(c->out, F_OK) != 0 && access(path, F_OK) != 0))
        return OK;
    return fail(ERR_JOB, "%.512s: exists already (--overwrite, or another -o)",
                access(c->out, F_OK) == 0 ? c->out : path);
}

/* ---- --missing ---- */

/* 1: the OUT of a complete shard; *n_shards as its manifest says. */
static int is_complete(const char *path, int64_t *shard, int64_t *n_shards)
{
    struct part p = {0};
    const enum err err = part_open(&p, path);
    if (p.root) {
        *shard = strtoll(identity_of(p.root, "shard"), NULL, 10);
        *n_shards = strtoll(identity_of(p.root, "shards"), NULL, 10);
    }
    json_decref(p.root);
    if (p.f)
        fclose(p.f);
    return err == OK;
}

/* Prints runs of shards that no part completes: "3,7-9". */
static enum err print_missing(const struct config *c)
{
    int64_t n_shards = 0, shard = 0;
    for (int i = 0; i < c->n_args && n_shards == 0; i++)
        (void)is_complete(c->args[i], &shard, &n_shards);
    if (n_shards < 1 || n_shards > CONFIG_ARGS_MAX)
        return fail(ERR_INPUT, "merge: no part says how many shards the job has");
    const char *comma = "";
    char *done = calloc((size_t)n_shards + 1, 1);
    if (!done)
        return fail(ERR_FIT, "no memory for the parts");
    for (int i = 0; i < c->n_args; i++) {
        int64_t n = n_shards;
        if (is_complete(c->args[i], &shard, &n) && n == n_shards && shard >= 0 && shard < n)
            done[shard] = 1;
    }
    done[n_shards] = 1;
    for (int64_t i = 0; i < n_shards; i++) {
        int64_t end = i;
        while (!done[end])
            end++;
        if (end > i)
            printf("%s%lld", comma, (long long)i);
        if (end > i + 1)
            printf("-%lld", (long long)end - 1);
        comma = end > i ? "," : comma;
        i = end;
    }
    printf("\n");
    free(done);
    return OK;
}

enum err command_merge(const struct config *c)
{
    if (c->missing && c->n_args > 0)
        return print_missing(c);
    if (!c->out || c->n_args < 1)
        return fail(ERR_USAGE, "merge: needs -o OUT.jsonl and the OUTs of all shards");
    TRY(check_out(c));
    struct merge m = {.parts = calloc((size_t)c->n_args, sizeof *m.parts)};
    enum err err = m.parts ? OK : fail(ERR_FIT, "no memory for the parts");
    for (int i = 0; i < c->n_args && err == OK; i++)
        err = part_open(&m.parts[m.n++], c->args[i]);
    if (err == OK)
        err = check_parts(&m);
    if (err == OK)
        err = make_whole(&m, c->out);
    if (err == OK)
        log_line(LOG_INFO, "merge: %lld row%s of %lld shard%s", (long long)m.rows,
                 m.rows == 1 ? "" : "s", (long long)m.n, m.n == 1 ? "" : "s");
    for (int64_t i = 0; i < m.n; i++) {
        json_decref(m.parts[i].root);
        if (m.parts[i].f)
            fclose(m.parts[i].f);
    }
    free(m.parts);
    free(m.line);
    return err;
}
