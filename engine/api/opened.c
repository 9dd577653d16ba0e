/* engine/api/opened.c - opens MODEL as a pack with its tokenizer and chat template (see run.h). */
#include "engine/api/run.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/containers/hf.h"
#include "engine/model/containers/source.h"
#include "engine/model/dummy.h"
#include "engine/model/pack.h"
#include "offload/machine_file.h"
#include "offload/probe_cache.h"

#define BAR_NS   250000000LL
#define LINES_NS 10000000000LL

enum config_progress progress_of(const struct config *c)
{
    if (c->quiet)
        return PROGRESS_NONE;
    if (c->progress == PROGRESS_AUTO)
        return isatty(STDERR_FILENO) ? PROGRESS_BAR : PROGRESS_LINES;
    return (enum config_progress)c->progress;
}

struct pack_progress pack_progress_begin(const struct config *c)
{
    int bar = progress_of(c) == PROGRESS_BAR, none = progress_of(c) == PROGRESS_NONE;
    return (struct pack_progress){.interrupted = c->interrupted,
                                  .bar = bar && !none,
                                  .lines = !bar && !none,
                                  .all_lines = c->progress == PROGRESS_LINES,
                                  .last_ns = bar ? 0 : clock_ns()};
}

enum err pack_progress_show(void *ctx, int64_t done_bytes, int64_t total_bytes)
{
    struct pack_progress *p = ctx;
    if (*p->interrupted)
        return fail(ERR_STOPPED,
                    "interrupted while packing; the same command starts the pack again");
    int64_t now = clock_ns(), every = p->bar ? BAR_NS : LINES_NS;
    int last = done_bytes >= total_bytes;
    double percent = 100.0 * (double)done_bytes / (double)max_i64(total_bytes, 1);
    double mib = (double)total_bytes / 1048576.0;
    if (now - p->last_ns < every && !(last && (p->bar || p->all_lines)))
        return OK;
    p->last_ns = now;
    if (p->bar && last)
        fputs("\r\033[K", stderr);
    else if (p->bar)
        fprintf(stderr, "\rpacking %5.1f %% of %.1f MiB ", percent, mib);
    else if (p->lines)
        log_line(LOG_INFO, "packing %5.1f %% of %.1f MiB", percent, mib);
    return OK;
}

enum err opened_pack(const char *model, struct pack_request *request, const struct config *c)
{
    struct source source;
    struct pack_provider provider = {0};
    struct pack_progress progress = pack_progress_begin(c);
    void *blob = NULL;
    int64_t blob_bytes = 0;
    request->provider = &provider;
    request->progress = pack_progress_show;
    request->ctx = &progress;
    if (dummy_is_config(model)) {
        TRY(dummy_open(&provider, model));
        enum err e = pack_write(request);
        dummy_close(&provider);
        return e;
    }
    request->on_demand = 0;
    TRY(source_open(&source, model));
    enum err err = pack_source_open(&provider, &source);
    if (err == OK) // the files are a model
        log_line(LOG_INFO, "pack: packing %s to %s", model, request->path);
    enum err built = err == OK ? token_build(&source, &blob, &blob_bytes) : OK;
    if (built == ERR_FIT || built == ERR_IO) { // the pack would lack a tokenizer forever
        err = built;
    } else if (built != OK) {
        log_line(LOG_WARN, "pack: %s; the model runs on token ids only", err_text());
        blob = NULL;
        blob_bytes = 0;
    }
    request->tokenizer = blob;
    request->tokenizer_bytes = blob_bytes;
    if (err == OK)
        err = pack_write(request);
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    free(blob);
    pack_source_close(&provider);
    source_close(&source);
    return err == OK ? OK : fail(err, "%s", text);
}

/* Sets the time of last use, which `cache list` and `cache prune` read. */
static void note_use(const char *path)
{
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    utimensat(AT_FDCWD, path, now, 0);
}

static enum err stop_asked(void *ctx)
{
    const struct config *c = ctx;
    return *c->interrupted ? fail(ERR_STOPPED, "interrupted while the model was read") : OK;
}

/* The hashes of a model, and the file that stores `content`, the hash of the whole model. */
struct hashes {
    uint64_t look, sample, content;
    char path[4200];
    int kept;
};

/* Refuses an unusable model before all of its files are read for the hash. */
static enum err check_model(const char *model)
{
    struct source source;
    struct pack_provider provider;
    TRY(source_open(&source, model));
    enum err err = pack_source_open(&provider, &source);
    pack_source_close(&provider);
    source_close(&source);
    return err;
}

/* The content hash is cached until the model's files change (at most a month, like measurements).
 * For a dummy model the hash includes its name, which determines its weights. */
static enum err hashes_of(struct hashes *h, const struct config *c)
{
    const char *model = c->model;
    char text[MACHINE_FILE_BYTES_MAX + 1];
    char dir[4096], key[64], name[256];
    *h = (struct hashes){0};
    TRY(pack_source_look(model, &h->look));
    TRY(pack_source_hash(model, &h->sample));
    TRY(pack_cache_dir(dir, sizeof dir));
    snprintf(key, sizeof key, "1 %016llx %016llx", (unsigned long long)h->look,
             (unsigned long long)h->sample);
    TRY(probe_cache_path(dir, "source", key, h->path, sizeof h->path));
    int64_t n = probe_cache_read(h->path, text);
    unsigned long long content;
    text[max_i64(n, 0)] = 0;
    h->kept = n > 0 && sscanf(text, "%llx", &content) == 1;
    if (h->kept) {
        h->content = content;
        return OK;
    }
    TRY(dummy_is_config(model) ? OK : check_model(model));
    TRY(pack_source_content(model, stop_asked, (void *)(uintptr_t)c, &h->content));
    if (!dummy_is_config(model))
        return OK;
    pack_source_name(model, name, sizeof name);
    h->content = hash_bytes(name, (int64_t)strlen(name), h->content);
    return OK;
}

static void keep_content(const struct hashes *h)
{
    char text[64];
    int n = snprintf(text, 32, "%016llx\n", (unsigned long long)h->content);
    probe_cache_write(h->path, text, n, 0);
}

/* Earlier versions named packs after file sizes and times: renames such a pack. */
static void adopt(const char *model, enum pack_weights weights, uint64_t look, const char *path)
{
    char old[4096], old_codec[4200], codec[4200];
    if (access(path, F_OK) == 0 || pack_cache_path(model, weights, look, old, sizeof old) != OK ||
        access(old, F_OK) != 0 || rename(old, path) != 0)
        return;
    snprintf(old_codec, sizeof old_codec, "%s.zst", old);
    snprintf(codec, sizeof codec, "%s.zst", path);
    rename(old_codec, codec);
}

/* 1: a plan for a model config. It needs only the pack's directory, so no pack is kept. */
static int pack_passes(const struct config *c)
{
    return c->looks && dummy_is_config(c->model);
}

/* Opens the model's pack in the cache. Packs on first use, and again if the pack is unusable
 * (another version, damaged). */
static enum err open_cached(struct opened *o, const struct config *c, enum pack_weights weights,
                            uint64_t source)
{
    int foreign = 0;
    if (access(o->pack_path, R_OK) == 0) {
        enum err e = model_open(&o->model, o->pack_path);
        if (e == OK && o->model.dummy)
            e = dummy_check(&o->model);
        foreign = e == OK && o->model.source != 0 && o->model.source != source;
        if (foreign)
            e = fail(ERR_CORRUPT, "%s: was made from another model than %s", o->pack_path,
                     c->model);
        if (e == OK) {
            note_use(o->pack_path);
            return OK;
        }
        model_close(&o->model);
        log_line(LOG_WARN, "pack: %s; packing again", err_text());
    }
    const size_t n = strlen(o->pack_path);
    if (pack_passes(c))
        snprintf(o->pack_path + n, sizeof o->pack_path - n, ".%ld.plan", (long)getpid());
    struct pack_request request = {
        .path = o->pack_path, .weights = weights, .source = source, .on_demand = 1};
    enum err err = opened_pack(c->model, &request, c);
    if ((err == ERR_IO || err == ERR_USAGE) && foreign) { // no space, or a symbolic link
        char why[1024];
        snprintf(why, sizeof why, "%s", err_text());
        return fail(ERR_CORRUPT,
                    "%s: was made from another model and cannot be replaced: %s (set "
                    "SLUICE_CACHE_DIR)",
                    o->pack_path, why);
    }
    if (err != OK)
        return err;
    err = model_open(&o->model, o->pack_path);
    if (pack_passes(c))
        unlink(o->pack_path); // the open file is enough, and a killed plan leaves nothing behind
    return err;
}

static enum err open_model(struct opened *o, const struct config *c)
{
    enum pack_weights weights = pack_weights_by_name(c->weights);
    if (weights == N_PACK_WEIGHTS)
        return fail_choice("weights", c->weights, "auto|f32|f16|bf16|bf12|q8|q4");
    if (!model_is_pack(c->model)) {
        struct hashes h;
        TRY(hashes_of(&h, c));
        TRY(pack_cache_path(c->model, weights, h.content, o->pack_path, sizeof o->pack_path));
        adopt(c->model, weights, h.look, o->pack_path);
        TRY(open_cached(o, c, weights, h.sample));
        if (!h.kept && !pack_passes(c))
            keep_content(&h);
        pack_source_name(c->model, o->name, sizeof o->name);
        if (!o->model.dummy)
            o->model.name = o->name;
        return OK;
    }
    snprintf(o->pack_path, sizeof o->pack_path, "%s", c->model);
    return model_open(&o->model, o->pack_path);
}

enum err opened_open(struct opened *o, const struct config *c)
{
    memset(o, 0, sizeof *o);
    if (!c->model)
        return fail(ERR_USAGE, "no model (-m MODEL)");
    TRY(open_model(o, c));
    if (hf_has_adapter(c->model))
        log_line(LOG_WARN,
                 "%s: adapter_model.safetensors is not used (merge the adapter first; peft: "
                 "merge_and_unload)",
                 c->model);
    if (!o->model.tokenizer)
        return OK;
    TRY(tokenizer_open(&o->tokenizer, o->model.tokenizer, o->model.tokenizer_bytes, o->pack_path));
    int64_t n;
    const char *text = tokenizer_template(o->tokenizer, &n);
    if (text && template_parse(&o->tmpl, text, n, c->model) != OK) {
        /* Error rows must not contain the model's path. */
        const char *what = strstr(err_text(), TEMPLATE_WHAT);
        log_line(LOG_WARN, "%s; rows with messages become error rows", err_text());
        o->tmpl = template_broken(what ? what + strlen(TEMPLATE_WHAT) : err_text());
    }
    return OK;
}

void opened_close(struct opened *o)
{
    template_free(o->tmpl);
    tokenizer_close(o->tokenizer);
    model_close(&o->model);
    memset(o, 0, sizeof *o);
}
