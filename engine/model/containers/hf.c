/* engine/model/containers/hf.c - see hf.h. Owns the search for the weight files and the check of
 * the shard index.
 *
 * Note: the index is parsed twice, first for the names of the shards, then, with the shards open,
 * to look up every tensor; so a million entries need no memory of their own. */
#include "engine/model/containers/hf.h"

#include "engine/data/json.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_BYTES_MAX SAFETENSORS_HEADER_BYTES_MAX
#define INDEX_DEPTH_MAX 16
#define SHARDS_MAX      10000

static char *path_join(const char *dir, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static enum err no_memory(void)
{
    return fail(ERR_FIT, "no memory for a path");
}

static enum err load(const char *dir, const char *name, int64_t max_bytes, char **buf,
                     int64_t *n_bytes, int *found)
{
    *found = 0;
    *buf = NULL;
    char *path = path_join(dir, name);
    if (!path)
        return no_memory();
    enum err e = file_load(path, max_bytes, buf, n_bytes, found);
    free(path);
    return e;
}

static enum err values_load(struct values *v, const char *dir, const char *name, int *found)
{
    char *buf;
    int64_t n_bytes = 0;
    TRY(load(dir, name, HF_CONFIG_BYTES_MAX, &buf, &n_bytes, found));
    if (!*found)
        return OK;
    char *path = path_join(dir, name);
    enum err e = path ? values_read(v, buf, n_bytes, path) : no_memory();
    free(path);
    free(buf);
    return e;
}

/* ---- the index of a sharded model ---- */

static enum err shard_name_check(struct json *j)
{
    const char *name = j->str;
    int leaves = name[0] == '/';
    for (const char *part = name; part && !leaves; part = strchr(part, '/')) {
        part += *part == '/';
        leaves = strncmp(part, "..", 2) == 0 && (part[2] == 0 || part[2] == '/');
    }
    if (leaves)
        return json_fail(j, "shard path leaves the model directory: \"%.200s\"", name);
    if (j->n_str == 0 || (int64_t)strlen(name) != j->n_str)
        return json_fail(j, "bad shard name \"%.200s\"", name);
    return OK;
}

/* Appends a shard name seen for the first time to hf->shards. */
static enum err shard_keep(struct hf *hf, struct json *j, struct json_keys *seen)
{
    TRY(shard_name_check(j));
    enum json_keys_answer answer = json_keys_put(seen, 0, j->str, j->n_str);
    if (answer == JSON_KEYS_SEEN)
        return OK;
    if (hf->n_shards == SHARDS_MAX)
        return json_fail(j, "more than %d shards", SHARDS_MAX);
    if ((hf->n_shards & (hf->n_shards - 1)) == 0) { // grows at powers of two
        size_t n = hf->n_shards ? 2 * (size_t)hf->n_shards : 1;
        char **grown = realloc(hf->shards, n * sizeof *grown);
        if (!grown)
            return no_memory();
        hf->shards = grown;
    }
    char *name = answer == JSON_KEYS_NEW ? strdup(j->str) : NULL;
    if (!name)
        return no_memory();
    hf->shards[hf->n_shards++] = name;
    return OK;
}

/* Moves j into the object "weight_map". */
static enum err weight_map_enter(struct json *j)
{
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while (json_next(j) == JSON_KEY) {
        if (json_is(j, "weight_map"))
            return json_expect(j, JSON_OBJECT_BEGIN);
        TRY(json_skip(j));
    }
    return j->err != OK ? j->err : json_fail(j, "weight_map is missing");
}

/* The rest of the index after weight_map, which must be unique. */
static enum err weight_map_leave(struct json *j)
{
    while (json_next(j) == JSON_KEY) {
        if (json_is(j, "weight_map"))
            return json_fail(j, "duplicate key \"weight_map\"");
        TRY(json_skip(j));
    }
    return j->err != OK ? j->err : json_expect(j, JSON_END);
}

/* First parse: checks the whole index and lists the shards. */
static enum err shards_list(struct hf *hf, struct json *j, struct json_keys *tensors,
                            struct json_keys *seen)
{
    TRY(weight_map_enter(j));
    while (json_next(j) == JSON_KEY) {
        if (tensors->n_keys == SAFETENSORS_TENSORS_MAX)
            return json_fail(j, "more than %d tensors", SAFETENSORS_TENSORS_MAX);
        TRY(json_keys_add(tensors, j));
        TRY(json_expect(j, JSON_STR));
        TRY(shard_keep(hf, j, seen));
    }
    if (j->err != OK)
        return j->err;
    if (hf->n_shards == 0)
        return json_fail(j, "weight_map is empty");
    return weight_map_leave(j);
}

/* Second parse: checks that every tensor is in the shard that the index names. */
static enum err tensors_check(const struct hf *hf, struct json *j)
{
    TRY(weight_map_enter(j));
    while (json_next(j) == JSON_KEY) {
        const struct source_tensor *t = safetensors_find(&hf->weights, j->str);
        if (!t)
            return json_fail(j, "tensor %.200s is missing from every shard", j->str);
        TRY(json_expect(j, JSON_STR));
        if (strcmp(j->str, hf->shards[t->file]) != 0)
            return json_fail(j, "tensor %.200s: expected in %.200s, found in %.200s", t->name,
                             j->str, hf->shards[t->file]);
    }
    return j->err;
}

/* All missing shards in one line (as many as fit). */
static enum err shards_present(const struct hf *hf, const char *index)
{
    char list[512] = "";
    int used = 0, n_missing = 0, n_listed = 0;
    for (int i = 0; i < hf->n_shards; i++) {
        struct stat s;
        char *path = path_join(hf->dir, hf->shards[i]);
        if (!path)
            return no_memory();
        int missing = stat(path, &s) != 0 && (errno == ENOENT || errno == ENOTDIR);
        free(path);
        n_missing += missing;
        int n = missing ? (int)strlen(hf->shards[i]) + 2 : 0;
        if (n == 0 || used + n >= (int)sizeof list)
            continue;
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s", used ? ", " : "",
                         hf->shards[i]);
        n_listed++;
    }
    if (n_missing == 0)
        return OK;
    if (n_listed < n_missing)
        return fail(ERR_INPUT, "%.300s: missing shard(s): %s and %d more", index, list,
                    n_missing - n_listed);
    return fail(ERR_INPUT, "%.300s: missing shard(s): %s", index, list);
}

static enum err shards_open(struct hf *hf)
{
    for (int i = 0; i < hf->n_shards; i++) {
        char *path = path_join(hf->dir, hf->shards[i]);
        if (!path)
            return no_memory();
        enum err e = safetensors_add(&hf->weights, path);
        free(path);
        TRY(e);
    }
    return OK;
}

static enum err index_read(struct hf *hf, const char *buf, int64_t n_bytes, const char *index)
{
    struct json j;
    struct json_keys tensors, seen;
    json_init(&j, buf, n_bytes, index, INDEX_DEPTH_MAX);
    json_keys_init(&tensors);
    json_keys_init(&seen);
    enum err e = shards_list(hf, &j, &tensors, &seen);
    json_keys_close(&tensors);
    json_keys_close(&seen);
    json_close(&j);
    TRY(e);
    TRY(shards_present(hf, index));
    TRY(shards_open(hf));
    json_init(&j, buf, n_bytes, index, INDEX_DEPTH_MAX);
    e = tensors_check(hf, &j);
    json_close(&j);
    return e;
}

/* ---- the weights ---- */

static int ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), n_tail = strlen(tail);
    return n >= n_tail && strcmp(name + n - n_tail, tail) == 0;
}

/* Without model.safetensors: reports what the directory has instead. */
static enum err weights_absent(const struct hf *hf)
{
    static const struct {
        const char *tail, *hint;
    } others[] = {
        {".safetensors", "expected model.safetensors or model.safetensors.index.json"},
        {".bin", "only safetensors are read"},
        {".pth", "only safetensors are read"},
        {".pt", "only safetensors are read"},
        {".gguf", "give the .gguf file itself as the model"},
    };
    enum { N_OTHERS = sizeof others / sizeof *others };
    char first[N_OTHERS][256] = {{0}}; // alphabetically first name of each kind
    DIR *d = opendir(hf->dir);
    if (!d)
        return fail(file_open_code(), "%.512s: %s", hf->dir, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(d));)
        for (int i = 0; i < N_OTHERS; i++)
            if (ends_with(entry->d_name, others[i].tail) &&
                (!first[i][0] || strcmp(entry->d_name, first[i]) < 0))
                snprintf(first[i], sizeof first[i], "%s", entry->d_name);
    closedir(d);
    for (int i = 0; i < N_OTHERS; i++)
        if (first[i][0])
            return fail(ERR_INPUT, "%.512s: no model.safetensors, but %s (%s)", hf->dir, first[i],
                        others[i].hint);
    return fail(ERR_INPUT, "%.512s: no model.safetensors and no model.safetensors.index.json",
                hf->dir);
}

static enum err weights_open_single(struct hf *hf, const char *name)
{
    hf->shards = malloc(sizeof *hf->shards);
    char *copy = strdup(name);
    if (!hf->shards || !copy) {
        free(copy);
        return no_memory();
    }
    hf->shards[hf->n_shards++] = copy;
    return shards_open(hf);
}

static enum err weights_open(struct hf *hf)
{
    static const char single[] = "model.safetensors", sharded[] = "model.safetensors.index.json";
    struct stat s;
    char *path = path_join(hf->dir, single);
    if (!path)
        return no_memory();
    int is_single = lstat(path, &s) == 0; // a dangling link gets its own message
    free(path);
    if (is_single)
        return weights_open_single(hf, single);
    char *buf;
    int64_t n_bytes = 0;
    int found;
    TRY(load(hf->dir, sharded, INDEX_BYTES_MAX, &buf, &n_bytes, &found));
    if (!found)
        return weights_absent(hf);
    path = path_join(hf->dir, sharded);
    enum err e = path ? index_read(hf, buf, n_bytes, path) : no_memory();
    free(path);
    free(buf);
    return e;
}

/* ---- the directory ---- */

void hf_close(struct hf *hf)
{
    if (!hf)
        return;
    values_close(&hf->config);
    values_close(&hf->generation);
    values_close(&hf->quant);
    safetensors_close(&hf->weights);
    for (int i = 0; i < hf->n_shards; i++)
        free(hf->shards[i]);
    free(hf->shards);
    free(hf->dir);
    free(hf);
}

int hf_has_adapter(const char *dir)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    return n > 0 && n < (int)sizeof path && access(path, F_OK) == 0;
}

static enum err dir_read(struct hf *hf)
{
    struct stat s;
    int found;
    if (stat(hf->dir, &s) != 0)
        return fail(ERR_INPUT, "%.512s: %s", hf->dir, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return fail(ERR_INPUT, "%.512s: not a directory", hf->dir);
    TRY(values_load(&hf->config, hf->dir, "config.json", &found));
    if (!found && hf_has_adapter(hf->dir))
        return fail(ERR_INPUT,
                    "%.512s: this is a LoRA adapter, not a model (merge it into its base model "
                    "first; peft: merge_and_unload)",
                    hf->dir);
    if (!found)
        return fail(ERR_INPUT, "%.512s/config.json: not found (is this a model directory?)",
                    hf->dir);
    TRY(values_load(&hf->generation, hf->dir, "generation_config.json", &found));
    TRY(values_load(&hf->quant, hf->dir, "hf_quant_config.json", &found));
    return weights_open(hf);
}

enum err hf_open(struct hf **out, const char *dir)
{
    *out = NULL;
    struct hf *hf = calloc(1, sizeof *hf);
    if (!hf)
        return no_memory();
    safetensors_init(&hf->weights);
    hf->dir = strdup(dir);
    enum err e = hf->dir ? dir_read(hf) : no_memory();
    if (e != OK) {
        hf_close(hf);
        return e;
    }
    *out = hf;
    return OK;
}

enum err hf_int_array(const struct hf *hf, const char *key, int64_t min, int64_t max, int64_t *out,
                      int64_t capacity, int64_t *n, int *found)
{
    return values_int_list(&hf->config, key, min, max, out, capacity, n, found);
}

enum err hf_str_array(const struct hf *hf, const char *key, const char **out, int64_t capacity,
                      int64_t *n, int *found)
{
    return values_str_list(&hf->config, key, out, capacity, n, found);
}

enum err hf_eos_ids(const struct hf *hf, int64_t vocab, int64_t ids[HF_EOS_MAX], int64_t *n)
{
    const struct {
        const struct values *values;
        const char *key;
    } places[] = {{&hf->generation, "eos_token_id"},
                  {&hf->config, "eos_token_id"},
                  {&hf->config, "text_config.eos_token_id"}};
    int64_t spare[HF_EOS_MAX];
    *n = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int64_t n_here = 0;
        int found;
        TRY(values_int_list(places[i].values, places[i].key, 0, vocab - 1, *n ? spare : ids,
                            HF_EOS_MAX, &n_here, &found));
        if (found && n_here == 0)
            return fail(ERR_INPUT, "%.512s: %s: empty list", places[i].values->file, places[i].key);
        *n = *n ? *n : n_here;
    }
    return OK;
}
