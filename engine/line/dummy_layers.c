/* engine/line/dummy_layers.c - see dummy_layers.h.
 *
 * Note: resident layers of an on-demand pack are generated even when the file has them, so that the
 * speed of a run does not depend on what earlier runs streamed. */
#include "engine/line/dummy_layers.h"

#include "engine/model/dummy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define GROUP_MAX 64 // layers made at once, one thread each

struct made_layer {
    int layer;
    uint8_t *to; // NULL: into the file
    enum err err;
    char text[256]; // text of err: error texts are kept per thread
};

struct group {
    const struct pack_provider *provider;
    struct model *model;
    int fd;
    struct made_layer layers[GROUP_MAX];
    int n;
};

static const struct model *planned(const struct dummy_layers *d)
{
    return d->part ? d->part : d->model;
}

/* A line layer of the plan, by its number in the whole model; -1: the rank has none of it. */
static int whole_layer(const struct dummy_layers *d, int layer)
{
    const int first = planned(d)->first;
    return layer > 0 ? layer + first : first > 0 ? -1 : 0;
}

static void make_task(void *ctx, int thread, int n_threads)
{
    struct group *g = ctx;
    int64_t first, last;
    pool_split(g->n, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++) {
        struct made_layer *l = &g->layers[i];
        l->err = pack_layer_make(g->provider, g->model, l->layer, g->fd, l->to);
        if (l->err != OK)
            snprintf(l->text, sizeof l->text, "%s", err_text());
    }
}

/* Generates the wanted layers in ascending order, into `home`; home NULL: into the file. */
static enum err make_layers(const struct dummy_layers *d, const struct pack_provider *provider,
                            const uint8_t *wanted, int64_t total_bytes, int fd, struct home *home)
{
    struct group g = {.provider = provider, .model = d->model, .fd = fd};
    const int most = (int)min_i64(pool_threads(d->pool), GROUP_MAX);
    int64_t done_bytes = 0;
    for (int layer = 0; layer < planned(d)->n_layers;) {
        for (g.n = 0; layer < planned(d)->n_layers && g.n < most; layer++)
            if (wanted[layer])
                g.layers[g.n++] =
                    (struct made_layer){.layer = whole_layer(d, layer),
                                        .to = home ? home_weights_claim(home, layer) : NULL};
        pool_run(d->pool, make_task, &g);
        for (int i = 0; i < g.n; i++) {
            if (g.layers[i].err != OK)
                return fail(g.layers[i].err, "%s", g.layers[i].text);
            done_bytes += d->model->layers[g.layers[i].layer].n_bytes;
        }
        if (d->progress && g.n > 0)
            TRY(d->progress(d->ctx, done_bytes, total_bytes));
    }
    return OK;
}

/* Another run may have added layers or replaced the pack since the model was opened. */
static enum err read_again(struct model *m, int fd)
{
    struct model now;
    TRY(model_open_fd(&now, m->path, fd));
    if (now.fingerprint != m->fingerprint || now.n_layers != m->n_layers ||
        now.n_pieces != m->n_pieces || !now.on_demand) {
        model_close(&now);
        return fail(ERR_INPUT, "%s: another run replaced this pack (start again)", m->path);
    }
    for (int i = 0; i < m->n_layers; i++)
        m->layers[i].absent = now.layers[i].absent;
    memcpy(m->piece_crcs, now.piece_crcs, (size_t)m->n_pieces * sizeof *m->piece_crcs);
    memcpy(m->row_crcs, now.row_crcs, (size_t)m->shape.vocab * sizeof *m->row_crcs);
    model_close(&now);
    return OK;
}

static int64_t wanted_absent(const struct dummy_layers *d, const struct plan *plan,
                             uint8_t wanted[PLAN_LAYERS_MAX])
{
    int64_t n_bytes = 0;
    for (int layer = 0; layer < planned(d)->n_layers; layer++) {
        const int whole = whole_layer(d, layer);
        const struct model_layer *l = &d->model->layers[max_i64(whole, 0)];
        wanted[layer] = whole >= 0 && l->absent && !plan_layer_made(plan, layer);
        n_bytes += wanted[layer] ? l->n_bytes : 0;
    }
    return n_bytes;
}

static enum err check_disk(const struct model *m, int fd, int64_t n_bytes)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0)
        return fail(ERR_IO, "%s: %s", m->path, strerror(errno));
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (free_bytes < (double)n_bytes)
        return fail(ERR_IO,
                    "%s: the streamed layers need %lld bytes, the disk has %.0f bytes free (set "
                    "SLUICE_CACHE_DIR, or raise --mem-ram)",
                    m->path, (long long)n_bytes, free_bytes);
    return OK;
}

/* The caller holds the lock: no other process reads or writes the directory of the pack. */
static enum err add_layers(const struct dummy_layers *d, const struct pack_provider *provider,
                           const struct plan *plan, int fd)
{
    uint8_t wanted[PLAN_LAYERS_MAX];
    TRY(read_again(d->model, fd));
    int64_t n_bytes = wanted_absent(d, plan, wanted);
    if (n_bytes == 0)
        return OK;
    TRY(check_disk(d->model, fd, n_bytes));
    log_line(LOG_INFO, "pack: adding %.1f MiB of dummy layers to %s: the plan streams them",
             (double)n_bytes / 1048576.0, d->model->path);
    TRY(make_layers(d, provider, wanted, n_bytes, fd, NULL));
    if (fsync(fd) != 0)
        return fail(ERR_IO, "%s: fsync: %s", d->model->path, strerror(errno));
    return pack_directory_write(provider, d->model, fd);
}

enum err dummy_layers_store(const struct dummy_layers *d, const struct plan *plan)
{
    struct model *m = d->model;
    uint8_t wanted[PLAN_LAYERS_MAX];
    CHECK(planned(d)->n_layers <= PLAN_LAYERS_MAX);
    if (!m->on_demand || wanted_absent(d, plan, wanted) == 0)
        return OK;
    struct pack_provider provider;
    TRY(dummy_of_model(&provider, m));
    int fd = open(m->path, O_RDWR | O_CLOEXEC);
    enum err e = fd < 0 ? fail(ERR_IO, "%s: open: %s", m->path, strerror(errno)) : OK;
    if (e == OK) {
        model_lock(fd, MODEL_DIRECTORY, 1, 1); // may fail: then one process at a time
        e = add_layers(d, &provider, plan, fd);
        close(fd);
    }
    dummy_close(&provider);
    return e;
}

enum err dummy_layers_fill(const struct dummy_layers *d, struct home *home)
{
    struct model *m = d->model;
    uint8_t wanted[PLAN_LAYERS_MAX];
    int64_t n_bytes = 0;
    if (!m->on_demand)
        return OK;
    for (int layer = 0; layer < planned(d)->n_layers; layer++) {
        const int whole = whole_layer(d, layer);
        wanted[layer] = whole >= 0 && plan_layer_made(home->plan, layer);
        n_bytes += wanted[layer] ? m->layers[whole].n_bytes : 0;
    }
    if (n_bytes == 0)
        return OK;
    struct pack_provider provider;
    TRY(dummy_of_model(&provider, m));
    enum err e = make_layers(d, &provider, wanted, n_bytes, -1, home);
    dummy_close(&provider);
    return e;
}
