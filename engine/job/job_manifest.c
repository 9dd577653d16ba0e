/* engine/job/job_manifest.c - see job_impl.h. Owns OUT.job.json: the identity of the job as
 * readable keys, so that messages can name a difference.
 *
 * Note: the path of the input is stored for people; its size and hash are compared. */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST_BYTES_MAX (1 << 20)
#define LINE_BYTES         2304 // of a key, or of a value
#define EVERY_FIELD        "*"  // ignore_fields of a job begun with --unknown-fields warn

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

/* Adds the lines of the fingerprint whose keys are new. */
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
    char hash[24], fields[LINE_BYTES];
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
    ignore_text(&c->defaults.ignore, fields, sizeof fields);
    add_line(&o, "ignore_fields", fields);
    if (c->fingerprint)
        add_fingerprint(&o, c->fingerprint);
    out_bytes(&o, "", 1);
    if (o.failed) {
        out_free(&o);
        return fail(ERR_FIT, "no memory for the job's identity");
    }
    job->identity = o.p;
    job->id = manifest_id(job);
    return OK;
}

uint64_t manifest_id(const struct job *job)
{
    return hash_bytes(job->identity, (int64_t)strlen(job->identity) + 1, 0);
}

/* ---- out ---- */

static void out_pair(struct out *o, const char *indent, const char *key, const char *value)
{
    out_text(o, indent);
    out_string(o, key, (int64_t)strlen(key));
    out_text(o, ": ");
    out_string(o, value, (int64_t)strlen(value));
}

/* ,"key": x */
static void out_entry(struct out *o, const char *key, int64_t x)
{
    out_text(o, ",\n  \"");
    out_text(o, key);
    out_text(o, "\": ");
    out_int(o, x);
}

static void out_marks(struct out *o, const struct input_marks *m)
{
    char digits[16];
    out_text(o, ",\n  \"input_marks\": {\"every\": ");
    out_int(o, m->every);
    out_text(o, ", \"rows\": ");
    out_int(o, m->n_rows);
    out_text(o, ", \"sums\": \"");
    for (int64_t i = 0; i * m->every < m->n_rows; i++) {
        snprintf(digits, sizeof digits, "%08lx", (unsigned long)m->sums[i]);
        out_text(o, digits);
    }
    out_text(o, "\"}");
}

/* ,"errors": {...}, "error_kinds": [...] */
static void out_errors(struct out *o, const struct job_errors *errors)
{
    json_t *root = json_object();
    errors_put(errors, root);
    char *text = json_dumps(root, JSON_EMBED);
    out_text(o, ",\n  ");
    out_text(o, text ? text : "");
    o->failed |= !text;
    free(text);
    json_decref(root);
}

static void out_end(struct out *o, const struct manifest_end *end, const struct job_errors *errors)
{
    out_entry(o, "ok", end->ok);
    out_entry(o, "failed", end->failed);
    out_errors(o, errors);
    out_entry(o, "output_tokens", end->out_tokens);
    out_entry(o, "out_bytes", end->out_bytes);
    out_entry(o, "out_crc32c", end->out_crc);
    out_entry(o, "ended_unix_s", end->ended_unix_s);
}

/* Checksum of prompt_cap, which decides which rows are errors and is not part of the identity. */
static void cap_check(const char *journal_id, int64_t cap, char check[16])
{
    char text[64];
    int n = snprintf(text, sizeof text, "%.24s %lld", journal_id, (long long)cap);
    snprintf(check, 16, "%08x", crc32c(0, text, n));
}

static void manifest_text(const struct job *job, const struct manifest_end *end, struct out *o)
{
    const char *at = job->identity, *comma = "\n";
    char key[LINE_BYTES], value[LINE_BYTES], id[24];
    out_text(o, "{\n");
    out_pair(o, "  ", "input", job->config.in_path);
    out_text(o, ",\n  \"identity\": {");
    while (next_line(&at, key, value, sizeof key)) {
        out_text(o, comma);
        out_pair(o, "    ", key, value);
        comma = ",\n";
    }
    out_text(o, "\n  }");
    snprintf(id, sizeof id, "%016llx", (unsigned long long)job->id);
    out_text(o, ",\n");
    out_pair(o, "  ", "journal", id);
    out_marks(o, &job->marks);
    out_entry(o, "rows", job->counts.rows);
    out_entry(o, "started_unix_s", job->started_unix_s);
    out_text(o, ",\n  \"predicted_elapsed_s\": ");
    if (job->predicted_s >= 0)
        out_number(o, job->predicted_s);
    else
        out_text(o, "null");
    out_text(o, ",\n");
    out_pair(o, "  ", "plan_flags", job->plan_flags);
    out_text(o, ",\n  \"prompt_cap\": "); // 0: none; null: no run has planned yet
    if (job->cap_fixed) {
        char check[16];
        out_int(o, job->config.prompt_cap);
        cap_check(id, job->config.prompt_cap, check);
        out_text(o, ",\n");
        out_pair(o, "  ", "prompt_cap_check", check);
    } else {
        out_text(o, "null");
    }
    out_text(o, ",\n  \"complete\": ");
    out_text(o, end && end->complete ? "true" : "false");
    if (end && end->complete)
        out_end(o, end, &job->errors);
    out_text(o, "\n}\n");
}

static enum err write_file(const char *path, const struct out *o)
{
    int fd = open(path, O_WRONLY | WHOLE_NEW, 0666);
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
    const char *tmp = job->paths.manifest_tmp;
    manifest_text(job, end, &o);
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

enum err manifest_once(const struct job *job)
{
    struct out o = {0};
    manifest_text(job, NULL, &o);
    enum err err = o.failed ? fail(ERR_FIT, "no memory for the job's identity")
                            : claims_once(job->config.claims, CLAIMS_JOB, o.p, o.n);
    out_free(&o);
    return err;
}

/* ---- in ---- */

/* The manifest as a tree, which the caller frees. *root NULL: no file, or not JSON. */
static enum err read_tree(const struct job *job, json_t **root, int *found)
{
    char *text;
    int64_t n;
    *root = NULL;
    enum err err = file_load(job->paths.manifest, MANIFEST_BYTES_MAX, &text, &n, found);
    if (err == ERR_INPUT)
        return fail(ERR_JOB, "%s", err_text());
    TRY(err);
    if (!*found)
        return OK;
    json_error_t why;
    *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!*root && json_error_code(&why) == json_error_out_of_memory)
        return fail(ERR_FIT, "%.512s: no memory", job->paths.manifest);
    return OK;
}

/* A number among the strings of the identity; -1: missing, or not a number. */
static int64_t count_of(const json_t *identity, const char *key)
{
    const char *text = json_string_value(json_object_get(identity, key));
    char *end = NULL;
    long long x = text ? strtoll(text, &end, 10) : -1;
    return text && end != text && !*end ? x : -1;
}

static void read_marks(const json_t *from, struct input_marks *m)
{
    const char *sums = json_string_value(json_object_get(from, "sums"));
    m->every = json_integer_value(json_object_get(from, "every"));
    m->n_rows = json_integer_value(json_object_get(from, "rows"));
    int64_t n = m->every > 0 && m->n_rows > 0 ? ceil_div(m->n_rows, m->every) : 0;
    if (!sums || n > INPUT_MARKS || (int64_t)strlen(sums) != 8 * n)
        n = m->n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        char digits[9];
        snprintf(digits, sizeof digits, "%.8s", sums + 8 * i);
        m->sums[i] = (uint32_t)strtoul(digits, NULL, 16);
    }
}

enum err manifest_old_input(struct job *job)
{
    json_t *root;
    int found;
    enum err err = read_tree(job, &root, &found);
    if (err == ERR_JOB)
        return OK; // manifest_read() says why
    TRY(err);
    if (root) {
        job->old.n_bytes = count_of(json_object_get(root, "identity"), "input_bytes");
        read_marks(json_object_get(root, "input_marks"), &job->old.marks);
    }
    json_decref(root);
    return OK;
}

static enum err differs(const struct job *job, const char *key, const char *was, const char *is)
{
    return fail(ERR_JOB, "%.400s: %s: was %.200s, is %.200s (use --overwrite or another -o)",
                job->paths.manifest, key, was, is);
}

/* The input has changed, and not only by added rows: reports where. */
static enum err input_differs(const struct job *job)
{
    const struct old_input *old = &job->old;
    char what[160];
    if (old->first_bad > 0 && old->first_bad == old->last_bad)
        snprintf(what, sizeof what, "line %lld has changed", (long long)old->first_bad);
    else if (old->first_bad > 0)
        snprintf(what, sizeof what, "a line of %lld to %lld has changed", (long long)old->first_bad,
                 (long long)old->last_bad);
    else if (job->n_rows < old->marks.n_rows)
        snprintf(what, sizeof what, "had %lld rows, has %lld", (long long)old->marks.n_rows,
                 (long long)job->n_rows);
    else if (old->n_bytes == job->in.file.n_bytes)
        snprintf(what, sizeof what, "has as many bytes as before, but their content differs");
    else
        snprintf(what, sizeof what, "had %lld bytes, has %lld; blank lines or line ends changed",
                 (long long)old->n_bytes, (long long)job->in.file.n_bytes);
    return fail(ERR_JOB,
                "%.400s: input: %.400s: %s (rows may be added behind the others; else use "
                "--overwrite or another -o)",
                job->paths.manifest, job->config.in_path, what);
}

/* OK: the input is unchanged, or (*grown 1) the old input plus added lines. */
static enum err compare_input(const struct job *job, const json_t *identity, int *grown)
{
    const char *hash = json_string_value(json_object_get(identity, "input_hash"));
    const struct jsonl *in = &job->in;
    int64_t was = job->old.n_bytes;
    char text[24], ends[2] = {'\n', '\n'};
    *grown = was >= 0 && was < in->file.n_bytes;
    if (was < 0 || was > in->file.n_bytes || !hash)
        return input_differs(job);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)(*grown ? in->mark_hash : in->hash));
    if (strcmp(text, hash) != 0)
        return input_differs(job);
    if (*grown && was > 0)
        TRY(file_read(&in->file, was - 1, 2, ends));
    return ends[0] == '\n' || ends[1] == '\n' ? OK : input_differs(job);
}

/* ignore_fields differs. OK: names were added, together with retry_errors. */
static enum err admit_fields(const struct job *job, const char *was, const char *is)
{
    const struct ignore_list *now = &job->config.defaults.ignore;
    struct ignore_list before;
    char give[LINE_BYTES];
    if (strcmp(was, EVERY_FIELD) == 0)
        return fail(
            ERR_JOB,
            "%.400s: the job was begun by an older sluice with --unknown-fields warn, which "
            "ignored every unknown field (that sluice can finish the job; another -o, or "
            "--overwrite, starts over)",
            job->paths.manifest);
    TRY(ignore_parse(&before, was));
    const struct ignore_list gone = ignore_without(&before, now), all = ignore_union(now, &before);
    ignore_text(&all, give, sizeof give);
    if (gone.n > 0)
        return fail(ERR_JOB,
                    "%.400s: the job was begun with --ignore-fields %.400s (give "
                    "--ignore-fields %.400s again)",
                    job->paths.manifest, was, give);
    if (job->config.retry_errors)
        return OK;
    return fail(ERR_JOB,
                "%.400s: the job was begun %s%.400s, not with --ignore-fields %.400s (add "
                "--retry-errors: failed rows are run again with that list, the others stay)",
                job->paths.manifest, *was ? "with --ignore-fields " : "without --ignore-fields",
                was, is);
}

/* A key that differs. OK when that only admits more rows. */
static enum err admit(const struct job *job, const char *key, const char *was, const char *is)
{
    if (strcmp(key, "limit") == 0) {
        long long before = strtoll(was, NULL, 10), now = strtoll(is, NULL, 10);
        if (before > 0 && (now == 0 || now > before))
            return OK;
    }
    return strcmp(key, "ignore_fields") == 0 ? admit_fields(job, was, is)
                                             : differs(job, key, was, is);
}

/* The value of a key in the old identity; NULL: missing. Older versions had --unknown-fields in
 * place of --ignore-fields; its `error` ignored nothing. */
static const char *value_of(const json_t *identity, const char *key)
{
    const char *was = json_string_value(json_object_get(identity, key));
    const char *older = json_string_value(json_object_get(identity, "unknown_fields"));
    if (was || strcmp(key, "ignore_fields") != 0 || !older)
        return was;
    return strcmp(older, "error") == 0 ? "" : EVERY_FIELD;
}

static enum err compare(const struct job *job, const json_t *identity, int *grown)
{
    const char *at = job->identity;
    char key[LINE_BYTES], value[LINE_BYTES];
    size_t n = 0;
    int input_done = 0;
    *grown = 0;
    while (next_line(&at, key, value, sizeof key)) {
        const char *was = value_of(identity, key);
        n++;
        if (strncmp(key, "input_", 6) == 0) {
            int more = 0;
            if (!input_done++)
                TRY(compare_input(job, identity, &more));
            *grown |= more;
        } else if (!was) {
            return differs(job, key, "not there", value);
        } else if (strcmp(was, value) != 0) {
            TRY(admit(job, key, was, value));
            *grown = 1;
        }
    }
    if (n == json_object_size(identity))
        return OK;
    const char *name;
    json_t *was;
    json_object_foreach((json_t *)identity, name, was) // a key that this version lacks
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

static enum err read_root(struct job *job, const json_t *root, struct manifest_end *end)
{
    const json_t *identity = json_object_get(root, "identity");
    const char *id = json_string_value(json_object_get(root, "journal"));
    if (!json_is_object(identity) || !id)
        return fail(ERR_JOB, "%.512s: not a job's manifest (use --overwrite or another -o)",
                    job->paths.manifest);
    TRY(compare(job, identity, &end->grown));
    end->found = 1;
    end->journal_id = strtoull(id, NULL, 16);
    end->complete = json_is_true(json_object_get(root, "complete"));
    end->ok = json_integer_value(json_object_get(root, "ok"));
    end->failed = json_integer_value(json_object_get(root, "failed"));
    end->out_tokens = json_integer_value(json_object_get(root, "output_tokens"));
    end->out_bytes = json_integer_value(json_object_get(root, "out_bytes"));
    end->out_crc = (uint32_t)json_integer_value(json_object_get(root, "out_crc32c"));
    end->ended_unix_s = json_integer_value(json_object_get(root, "ended_unix_s"));
    const json_t *cap = json_object_get(root, "prompt_cap");
    end->prompt_cap = json_is_integer(cap) ? max_i64(json_integer_value(cap), -1) : -1;
    const char *check = json_string_value(json_object_get(root, "prompt_cap_check"));
    char right[16];
    cap_check(id, end->prompt_cap, right);
    if (check && end->prompt_cap >= 0 && strcmp(check, right) != 0) // older jobs have none
        return fail(ERR_JOB,
                    "%.512s: prompt_cap: is not what the job wrote (use --overwrite or another -o)",
                    job->paths.manifest);
    if (end->complete)
        errors_take(&end->errors, root);
    return OK;
}

enum err manifest_read(struct job *job, struct manifest_end *end)
{
    json_t *root;
    int found;
    *end = (struct manifest_end){0};
    TRY(read_tree(job, &root, &found));
    if (!found)
        return OK;
    enum err err = read_root(job, root, end);
    json_decref(root);
    return err;
}
