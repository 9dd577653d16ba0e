/* engine/job_manifest.c - see job_impl.h. Owns OUT.job.json: whose job this is, in words that a
 * person can read, so that a difference can be named.
 *
 * A newcomer would miss: the path of the input is told but not compared; its size and hash are. */
#include "engine/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST_BYTES_MAX (1 << 20)
#define LINE_BYTES         2048 // of a key, or of a value

/* ---- identity ---- */

static void add_line(struct out *o, const char *key, const char *value)
{
    out_text(o, key);
    out_text(o, "=");
    out_text(o, value);
    out_text(o, "\n");
}

static void add_count(struct out *o, const char *key, int64_t value)
{
    out_text(o, key);
    out_text(o, "=");
    out_int(o, value);
    out_text(o, "\n");
}

/* The next "key=value" line; 0 at the end. */
static int next_line(const char **at, char *key, char *value, size_t cap)
{
    while (**at == '\n')
        (*at)++;
    if (!**at)
        return 0;
    size_t n = strcspn(*at, "\n"), n_key = strcspn(*at, "=\n");
    snprintf(key, cap, "%.*s", (int)n_key, *at);
    snprintf(value, cap, "%.*s", n > n_key ? (int)(n - n_key - 1) : 0,
             n > n_key ? *at + n_key + 1 : "");
    *at += n;
    return 1;
}

/* Lines of the fingerprint whose keys are not there yet: a key names one thing. */
static void add_fingerprint(struct out *o, const char *at)
{
    char key[LINE_BYTES], value[LINE_BYTES], seen[LINE_BYTES], ignored[LINE_BYTES];
    while (next_line(&at, key, value, sizeof key)) {
        out_bytes(o, "", 1); // the lines so far as a string
        const char *have = o->failed ? "" : o->p;
        int twice = 0;
        while (!twice && next_line(&have, seen, ignored, sizeof seen))
            twice = strcmp(seen, key) == 0;
        o->n -= !o->failed;
        if (!twice)
            add_line(o, key, value);
    }
}

enum err manifest_identity(struct job *job)
{
    const struct job_config *c = &job->config;
    struct out o = {0};
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)job->in.hash);
    add_line(&o, "version", c->version ? c->version : "");
    add_line(&o, "job", c->kind == REQUEST_SCORE ? "score" : "run");
    add_count(&o, "input_bytes", job->in.file.n_bytes);
    add_line(&o, "input_hash", hash);
    add_count(&o, "limit", c->limit);
    add_count(&o, "shard", c->n_shards > 1 ? c->shard : 0);
    add_count(&o, "shards", max_i64(c->n_shards, 1));
    add_line(&o, "order", c->completion_order ? "completion" : "input");
    add_count(&o, "epoch", c->defaults.epoch);
    if (c->fingerprint)
        add_fingerprint(&o, c->fingerprint);
    out_bytes(&o, "", 1);
    if (o.failed) {
        out_free(&o);
        return fail(ERR_FIT, "no memory for the job's identity");
    }
    job->identity = o.p;
    job->id = hash_bytes(o.p, o.n, 0);
    return OK;
}

/* ---- out ---- */

static void out_pair(struct out *o, const char *indent, const char *key, const char *value)
{
    out_text(o, indent);
    out_string(o, key, (int64_t)strlen(key));
    out_text(o, ": ");
    out_string(o, value, (int64_t)strlen(value));
}

static void manifest_text(const struct job *job, const struct manifest_end *end, struct out *o)
{
    const char *at = job->identity, *comma = "\n";
    char key[LINE_BYTES], value[LINE_BYTES];
    out_text(o, "{\n");
    out_pair(o, "  ", "input", job->config.in_path);
    out_text(o, ",\n  \"identity\": {");
    while (next_line(&at, key, value, sizeof key)) {
        out_text(o, comma);
        out_pair(o, "    ", key, value);
        comma = ",\n";
    }
    out_text(o, "\n  },\n  \"rows\": ");
    out_int(o, job->counts.rows);
    out_text(o, ",\n  \"predicted_elapsed_s\": ");
    if (job->predicted_s >= 0)
        out_number(o, job->predicted_s);
    else
        out_text(o, "null");
    out_text(o, ",\n  \"prompt_cap\": "); // 0: none; null: nobody has planned yet
    if (job->cap_fixed)
        out_int(o, job->config.prompt_cap);
    else
        out_text(o, "null");
    out_text(o, ",\n  \"complete\": ");
    out_text(o, end && end->complete ? "true" : "false");
    if (end && end->complete) {
        out_text(o, ",\n  \"ok\": ");
        out_int(o, end->ok);
        out_text(o, ",\n  \"failed\": ");
        out_int(o, end->failed);
        out_text(o, ",\n  \"out_bytes\": ");
        out_int(o, end->out_bytes);
        out_text(o, ",\n  \"out_crc32c\": ");
        out_int(o, end->out_crc);
    }
    out_text(o, "\n}\n");
}

static enum err write_file(const char *path, const struct out *o)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    enum err err = write_all(fd, path, 0, o->p, o->n);
    if (err == OK && fsync(fd) != 0)
        err = fail(ERR_IO, "%.512s: fsync: %s", path, strerror(errno));
    if (close(fd) != 0 && err == OK)
        err = fail(ERR_IO, "%.512s: %s", path, strerror(errno));
    return err;
}

enum err manifest_write(const struct job *job, const struct manifest_end *end)
{
    struct out o = {0};
    char tmp[4200];
    manifest_text(job, end, &o);
    snprintf(tmp, sizeof tmp, "%s.tmp", job->paths.manifest);
    enum err err = o.failed ? fail(ERR_FIT, "no memory for %.512s", tmp) : write_file(tmp, &o);
    out_free(&o);
    if (err == OK && rename(tmp, job->paths.manifest) != 0)
        err = fail(ERR_IO, "%.512s: rename: %s", tmp, strerror(errno));
    if (err != OK) {
        unlink(tmp);
        return err;
    }
    return files_sync_dir(job);
}

/* ---- in ---- */

static enum err differs(const struct job *job, const char *key, const char *was, const char *is)
{
    return fail(ERR_JOB, "%.512s: %s: was %.100s, is %.100s (use --overwrite or another -o)",
                job->paths.manifest, key, was, is);
}

static enum err compare(const struct job *job, const json_t *identity)
{
    const char *at = job->identity;
    char key[LINE_BYTES], value[LINE_BYTES];
    size_t n = 0;
    while (next_line(&at, key, value, sizeof key)) {
        const char *was = json_string_value(json_object_get(identity, key));
        if (!was || strcmp(was, value) != 0)
            return differs(job, key, was ? was : "not there", value);
        n++;
    }
    if (n == json_object_size(identity))
        return OK;
    const char *name;
    json_t *was;
    json_object_foreach((json_t *)identity, name, was) // one that is not ours any more
    {
        int ours = 0;
        for (at = job->identity; !ours && next_line(&at, key, value, sizeof key);)
            ours = strcmp(key, name) == 0;
        if (!ours)
            return differs(job, name, json_is_string(was) ? json_string_value(was) : "?",
                           "not there");
    }
    return OK;
}

static enum err read_root(const struct job *job, const json_t *root, struct manifest_end *end)
{
    const json_t *identity = json_object_get(root, "identity");
    if (!json_is_object(identity))
        return fail(ERR_JOB, "%.512s: not a job's manifest (use --overwrite or another -o)",
                    job->paths.manifest);
    TRY(compare(job, identity));
    end->found = 1;
    end->complete = json_is_true(json_object_get(root, "complete"));
    end->ok = json_integer_value(json_object_get(root, "ok"));
    end->failed = json_integer_value(json_object_get(root, "failed"));
    end->out_bytes = json_integer_value(json_object_get(root, "out_bytes"));
    end->out_crc = (uint32_t)json_integer_value(json_object_get(root, "out_crc32c"));
    const json_t *cap = json_object_get(root, "prompt_cap");
    end->prompt_cap = json_is_integer(cap) ? max_i64(json_integer_value(cap), -1) : -1;
    return OK;
}

enum err manifest_read(const struct job *job, struct manifest_end *end)
{
    char *text;
    int64_t n;
    int found;
    *end = (struct manifest_end){0};
    enum err err = file_load(job->paths.manifest, MANIFEST_BYTES_MAX, &text, &n, &found);
    if (err == ERR_INPUT)
        return fail(ERR_JOB, "%s", err_text());
    TRY(err);
    if (!found)
        return OK;
    json_error_t why;
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    err = read_root(job, root, end);
    json_decref(root);
    return err;
}
