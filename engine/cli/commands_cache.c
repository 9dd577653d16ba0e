/* engine/cli/commands_cache.c - `cache list`, `cache rm NAME...`, `cache prune --max SIZE`: the
 * files that sluice keeps between runs.
 *
 * Owns: which files of the cache folder belong to sluice: only files whose name and first or last
 * bytes match those that sluice writes are listed and removed. Refuses: removing a pack that a
 * running process uses. Note: a removed file costs time only: it is made again when needed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/api/frontier_file.h"
#include "engine/cli/commands.h"
#include "engine/model/pack.h"
#include "engine/model/pack_codec.h"
#include "offload/probe_cache.h"

#define PACK_END    ".pack"
#define CODEC_END   ".pack.zst"
#define HASH_DIGITS 16

struct entry {
    char name[256], model[140]; // model: from the pack's name; "": no model
    const char *kind;
    int64_t n_bytes; // on the disk: less than the length while a pack lacks layers
    time_t used;
};

struct cache {
    char dir[4096];
    struct entry *entries; // owned; sorted by last use, oldest first
    int n;
};

static int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* The kind of the file; NULL: sluice did not make it. */
static const char *kind_of(const char *path, const char *name)
{
    if (ends_with(name, PACK_END))
        return model_is_pack(path) ? "pack" : NULL;
    if (ends_with(name, CODEC_END))
        return pack_codec_is(path) ? "encoded pack" : NULL;
    if (probe_cache_is(path, name))
        return strncmp(name, "probe-pace-", 11) == 0     ? "pace"
               : strncmp(name, "probe-source-", 13) == 0 ? "content"
                                                         : "machine";
    return frontier_is(path, name) ? "frontier" : NULL;
}

/* The model in NAME-HASH-WEIGHTS.pack. */
static void model_of(struct entry *e)
{
    const char *end = strstr(e->name, PACK_END);
    while (end && end > e->name && *end != '-')
        end--;
    if (end && end - e->name > HASH_DIGITS + 1)
        snprintf(e->model, sizeof e->model, "%.*s", (int)(end - e->name) - HASH_DIGITS - 1,
                 e->name);
}

static int path_of(const struct cache *c, const char *name, char path[4400])
{
    return snprintf(path, 4400, "%s/%s", c->dir, name) < 4400;
}

static void look(struct cache *c, const char *name)
{
    char path[4400];
    struct stat st;
    struct entry e = {.name = ""};
    if (!path_of(c, name, path) || lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    e.kind = kind_of(path, name);
    const struct timespec used[2] = {st.st_atim, {.tv_nsec = UTIME_OMIT}};
    utimensat(AT_FDCWD, path, used, AT_SYMLINK_NOFOLLOW); // reading its first bytes is no use
    if (!e.kind)
        return;
    snprintf(e.name, sizeof e.name, "%s", name);
    e.n_bytes = (int64_t)st.st_blocks * 512;
    e.used = st.st_atime > st.st_mtime ? st.st_atime : st.st_mtime;
    model_of(&e);
    c->entries[c->n++] = e;
}

static int by_use(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->used != y->used ? (x->used > y->used) - (x->used < y->used)
                              : strcmp(x->name, y->name);
}

static enum err cache_open(struct cache *c)
{
    *c = (struct cache){.dir = ""};
    TRY(pack_cache_dir(c->dir, sizeof c->dir));
    struct dirent **names = NULL;
    const int n = scandir(c->dir, &names, NULL, NULL), why = errno;
    c->entries = calloc((size_t)max_i64(n, 1), sizeof *c->entries);
    for (int i = 0; i < n; i++) {
        if (c->entries)
            look(c, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (n < 0 || !c->entries) {
        free(c->entries);
        return fail(ERR_IO, "%s: %s", c->dir, n < 0 ? strerror(why) : "no memory to list it");
    }
    qsort(c->entries, (size_t)c->n, sizeof *c->entries, by_use);
    return OK;
}

static void put_when(time_t when, char text[40])
{
    struct tm tm;
    snprintf(text, 40, "?");
    if (gmtime_r(&when, &tm))
        strftime(text, 40, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static enum err list_json(const struct cache *c)
{
    json_t *files = json_array();
    for (int i = 0; i < c->n; i++) {
        const struct entry *e = &c->entries[i];
        char when[40];
        put_when(e->used, when);
        json_array_append_new(files,
                              json_pack("{ss ss sI ss ss*}", "name", e->name, "kind", e->kind,
                                        "bytes", (json_int_t)e->n_bytes, "last_used", when, "model",
                                        e->model[0] ? e->model : NULL));
    }
    json_t *root = json_pack("{ss so}", "folder", c->dir, "files", files);
    int bad = !root || json_dumpf(root, stdout, JSON_INDENT(1)) != 0;
    json_decref(root);
    putchar('\n');
    return bad ? fail(ERR_IO, "stdout: cannot be written") : OK;
}

static enum err list(const struct cache *c, int json)
{
    int64_t total = 0;
    int wide = 4;
    if (json)
        return list_json(c);
    for (int i = 0; i < c->n; i++)
        wide = (int)max_i64(wide, (int64_t)strlen(c->entries[i].name));
    printf("%-*s  %-12s  %10s  %-20s  model\n", wide, "name", "kind", "MiB", "last used");
    for (int i = 0; i < c->n; i++) {
        const struct entry *e = &c->entries[i];
        char when[40];
        put_when(e->used, when);
        total += e->n_bytes;
        printf("%-*s  %-12s  %10.2f  %-20s  %s\n", wide, e->name, e->kind,
               (double)e->n_bytes / 1048576.0, when, e->model[0] ? e->model : "-");
    }
    printf("%d files, %.2f MiB in %s\n", c->n, (double)total / 1048576.0, c->dir);
    return OK;
}

/* 1 if the pack, or the pack of an encoded file, is in use. */
static int in_use(const struct cache *c, const struct entry *e)
{
    char path[4400];
    if (!strstr(e->name, PACK_END) || !path_of(c, e->name, path))
        return 0;
    if (ends_with(path, CODEC_END))
        path[strlen(path) - strlen(".zst")] = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int free_now = fd < 0 || model_lock(fd, MODEL_USED, 1, 0);
    if (fd >= 0)
        close(fd);
    return !free_now;
}

static enum err remove_entry(const struct cache *c, const struct entry *e)
{
    char path[4400];
    if (in_use(c, e))
        return fail(ERR_JOB, "%s: a running process uses it (wait until that process has ended)",
                    e->name);
    if (!path_of(c, e->name, path) || unlink(path) != 0)
        return fail(ERR_IO, "%s/%s: cannot be removed: %s", c->dir, e->name, strerror(errno));
    return OK;
}

static enum err remove_named(const struct cache *c, char *const *names, int n, int64_t *n_files,
                             int64_t *n_bytes)
{
    for (int i = 0; i < n; i++) {
        const struct entry *e = NULL;
        for (int k = 0; k < c->n && !e; k++)
            e = strcmp(c->entries[k].name, names[i]) == 0 ? &c->entries[k] : NULL;
        if (!e)
            return fail(ERR_USAGE,
                        "%.200s: no file of sluice's in %s has this name (sluice cache "
                        "list names all)",
                        names[i], c->dir);
        TRY(remove_entry(c, e));
        *n_files += 1;
        *n_bytes += e->n_bytes;
    }
    return OK;
}

/* Removes the least recently used files first; files in use are kept, and counted. */
static enum err prune(const struct cache *c, int64_t most, int64_t *n_files, int64_t *n_bytes)
{
    int64_t total = 0;
    for (int i = 0; i < c->n; i++)
        total += c->entries[i].n_bytes;
    for (int i = 0; i < c->n && total - *n_bytes > most; i++) {
        if (in_use(c, &c->entries[i]))
            continue;
        TRY(remove_entry(c, &c->entries[i]));
        *n_files += 1;
        *n_bytes += c->entries[i].n_bytes;
    }
    if (total - *n_bytes > most)
        log_line(LOG_WARN, "cache: %.2f MiB are left: running processes use them",
                 (double)(total - *n_bytes) / 1048576.0);
    return OK;
}

enum err command_cache(const struct config *c)
{
    enum { LIST, RM, PRUNE };
    struct cache cache;
    int64_t n_files = 0, n_bytes = 0;
    int what = LIST;
    if (c->n_args > 0)
        TRY(config_choose("cache", c->args[0], "list|rm|prune", &what));
    if (what == RM ? c->n_args < 2 : c->n_args > 1)
        return fail(ERR_USAGE,
                    what == RM ? "cache rm: needs the NAME of a file (sluice cache list)"
                               : "cache: '%s': takes no such word",
                    c->n_args > 1 ? c->args[1] : "");
    if ((what == PRUNE) != (c->cache_max >= 0))
        return fail(ERR_USAGE, "cache: prune and --max go together (cache prune --max 50G)");
    TRY(cache_open(&cache));
    enum err err = what == LIST ? list(&cache, c->json)
                   : what == RM ? remove_named(&cache, (char *const *)c->args + 1, c->n_args - 1,
                                               &n_files, &n_bytes)
                                : prune(&cache, c->cache_max, &n_files, &n_bytes);
    free(cache.entries);
    if (what != LIST && err == OK)
        printf(c->json ? "{\"removed_files\": %lld, \"removed_bytes\": %lld}\n"
                       : "removed %lld files, %lld bytes\n",
               (long long)n_files, (long long)n_bytes);
    return err;
}
