/* bench/attention_look.c - see attention.h: a CPU device that observes launches. */
#include "bench/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/pool.h"

const char *const look_names[N_LOOK_FIGURES] = {"sparsity", "slots_95", "top_5",   "top_10",
                                                "top_20",   "power",    "power_r2"};

struct look_scratch {
    float *keys;     // [n_prompt][head_dim]
    double *weights; // [n_prompt] of a query
};

enum tally { TALLY_WEIGHTS, TALLY_SMALL, TALLY_SLOTS, N_TALLIES };

static int downward(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* ---- one query ---- */

/* Writes exp(logit - greatest) of keys [low, query] to w; returns their sum, with the sink. */
static double query_weights(const struct look *l, const struct attend_prompt_args *a,
                            const float *keys, int head, int64_t token, int low, int query,
                            double *w)
{
    const float *q = a->q + token * a->q_stride + (int64_t)head * l->head_dim;
    double greatest = a->sinks ? a->sinks[head] : -INFINITY, sum = 0;
    for (int j = low; j <= query; j++) {
        const float *k = keys + (int64_t)j * l->head_dim;
        double dot = 0;
        for (int i = 0; i < l->head_dim; i++)
            dot += (double)q[i] * k[i];
        dot *= a->scale;
        w[j] = a->cap > 0 ? a->cap * tanh(dot / a->cap) : dot;
        greatest = fmax(greatest, w[j]);
    }
    for (int j = low; j <= query; j++) {
        w[j] = exp(w[j] - greatest);
        sum += w[j];
    }
    return sum + (a->sinks ? exp(a->sinks[head] - greatest) : 0);
}

static void tally_query(double *tally, double *w, int n)
{
    double sum = 0, held = 0;
    int slots = 0;
    qsort(w, (size_t)n, sizeof *w, downward);
    for (int j = 0; j < n; j++) {
        sum += w[j];
        tally[TALLY_SMALL] += w[j] < LOOK_SMALL * w[0];
    }
    while (slots < n && held < LOOK_MASS * sum)
        held += w[slots++];
    tally[TALLY_WEIGHTS] += n;
    tally[TALLY_SLOTS] += (double)slots / n;
}

/* ---- a tile of queries ---- */

struct tile_look {
    struct look *look;
    const struct attend_prompt_args *args;
    const struct prompt_span *span;
};

static void look_head(const struct tile_look *t, int head, const struct look_scratch *s)
{
    struct look *l = t->look;
    const struct attend_prompt_args *a = t->args;
    const uint8_t *pages = prompt_span_pages(a, t->span);
    const int last = t->span->first + t->span->n, kv_head = head / (l->n_heads / l->n_kv_heads);
    double *mass = l->mass + (int64_t)head * l->n_prompt;
    for (int j = 0; j < last; j++)
        kv_get(&a->layout, pages + j / PAGE_SLOTS * a->layout.page_bytes, j % PAGE_SLOTS, kv_head,
               s->keys + (int64_t)j * l->head_dim, NULL);
    for (int query = t->span->first; query < last; query++) {
        int low = prompt_low(a, query), n = query + 1 - low;
        double sum = query_weights(l, a, s->keys, head, t->span->token + query - t->span->first,
                                   low, query, s->weights);
        for (int j = low; j <= query; j++)
            mass[j] += s->weights[j] / sum;
        if (n < LOOK_LEAST)
            continue;
        tally_query(l->tally + head * N_TALLIES, s->weights + low, n);
        l->seen[head]++;
    }
}

static void look_heads(void *ctx, int thread, int n_threads)
{
    const struct tile_look *t = ctx;
    int64_t first, last;
    pool_split(t->look->n_heads, thread, n_threads, &first, &last);
    for (int64_t head = first; head < last; head++)
        look_head(t, (int)head, &t->look->scratch[thread]);
}

/* ---- a layer ---- */

/* Fits a line through (log rank, log weight). */
static void fit_power(const double *sorted, int n, double *power, double *r2)
{
    double x = 0, y = 0, xx = 0, xy = 0, yy = 0, m = 0;
    for (int i = 0; i < n && sorted[i] > 0; i++, m++) {
        double u = log(i + 1.0), v = log(sorted[i]);
        x += u, y += v, xx += u * u, xy += u * v, yy += v * v;
    }
    double sx = m * xx - x * x, sy = m * yy - y * y, sxy = m * xy - x * y;
    *power = sx > 0 ? -sxy / sx : 0;
    *r2 = sx > 0 && sy > 0 ? sxy * sxy / (sx * sy) : 0;
}

/* Adds a head's figures for this prompt to the sums and clears its mass. */
static void end_head(struct look *l, int head)
{
    static const double shares[] = {0.05, 0.10, 0.20};
    double *mass = l->mass + (int64_t)head * l->n_prompt, *tally = l->tally + head * N_TALLIES;
    double *to = l->figures + ((int64_t)l->layer * l->n_heads + head) * N_LOOK_FIGURES;
    double sum = 0, power, r2;
    qsort(mass, (size_t)l->n_prompt, sizeof *mass, downward);
    for (int i = 0; i < l->n_prompt; i++)
        sum += mass[i];
    for (int k = 0; k < 3; k++) {
        double held = 0;
        for (int i = 0; i < ceil(shares[k] * l->n_prompt); i++)
            held += mass[i];
        to[LOOK_TOP_5 + k] += held / sum;
    }
    fit_power(mass, l->n_prompt, &power, &r2);
    to[LOOK_POWER] += power;
    to[LOOK_POWER_R2] += r2;
    to[LOOK_SPARSITY] += tally[TALLY_SMALL] / fmax(tally[TALLY_WEIGHTS], 1);
    to[LOOK_SLOTS] += tally[TALLY_SLOTS] / fmax((double)l->seen[head], 1);
    memset(mass, 0, (size_t)l->n_prompt * sizeof *mass);
    memset(tally, 0, N_TALLIES * sizeof *tally);
    l->seen[head] = 0;
}

/* Like --kv-dump: slots of pages, then the ring's last tokens. */
static void keep_layer(struct look *l, const struct prompt_keep_args *a)
{
    const int ring = a->kv.rings ? evict_ring_slots(&a->limits) : 0, n = a->n_prompt;
    const int slots = evict_slots_after(&a->evict, &a->limits, ring, 0, 0, n);
    const struct kv_row kv = kv_row_at(&a->kv, a->row, &a->limits, slots);
    for (int head = 0; head < l->n_kv_heads; head++) {
        uint8_t *kept =
            l->kept +
            (((int64_t)l->set * l->n_layers + l->layer) * l->n_kv_heads + head) * l->n_prompt;
        const int32_t *held = kv.slot_pos ? kv.slot_pos + (int64_t)head * kv.slots_cap : NULL;
        memset(kept, 0, (size_t)l->n_prompt);
        for (int s = 0; s < slots; s++)
            if (!held || held[s] >= 0)
                kept[held ? held[s] : s] = 1;
        for (int pos = n - evict_ring_used(ring, n); pos < n; pos++)
            kept[pos] = 1;
    }
}

/* A pass has one prompt, so the layers arrive in order, each as tiles, then prompt_keep. */
static void look_launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    struct look *l = (struct look *)(void *)s->device; // first member
    device_cpu()->api->launch(s, op, ops, args);
    if (op == OP_attend_prompt && l->set < 0) {
        const struct attend_prompt_args *a = args;
        for (int i = 0; i < a->n_spans; i++) {
            struct tile_look t = {.look = l, .args = a, .span = &a->spans[i]};
            pool_run(ops->pool, look_heads, &t);
        }
    }
    if (op != OP_prompt_keep)
        return;
    for (int head = 0; head < l->n_heads && l->set < 0; head++)
        end_head(l, head);
    if (l->set >= 0)
        keep_layer(l, args);
    l->layer++;
}

/* ---- open, close, begin, compare ---- */

static enum err take_room(struct look *l)
{
    size_t heads = (size_t)l->n_heads, tokens = (size_t)l->n_prompt, layers = (size_t)l->n_layers;
    size_t kv = layers * (size_t)l->n_kv_heads, sets = (size_t)l->n_sets;
    l->mass = calloc(heads * tokens, sizeof *l->mass);
    l->figures = calloc(layers * heads * N_LOOK_FIGURES, sizeof *l->figures);
    l->tally = calloc(heads * N_TALLIES, sizeof *l->tally);
    l->seen = calloc(heads, sizeof *l->seen);
    l->kept = calloc(sets * kv * tokens + 1, 1);
    l->overlap = calloc(sets * sets * kv + 1, sizeof *l->overlap);
    l->scratch = calloc((size_t)l->n_threads, sizeof *l->scratch);
    int made = l->mass && l->figures && l->tally && l->seen && l->kept && l->overlap && l->scratch;
    for (int i = 0; made && i < l->n_threads; i++) {
        l->scratch[i].keys = malloc(tokens * (size_t)l->head_dim * sizeof(float));
        l->scratch[i].weights = malloc(tokens * sizeof(double));
        made = l->scratch[i].keys && l->scratch[i].weights;
    }
    return made ? OK
                : fail(ERR_FIT, "no memory for the figures of attention (fewer --prefix tokens)");
}

enum err look_open(struct look *l, struct device *device, const struct shape *shape, int n_prompt,
                   int n_threads, int n_sets)
{
    *l = (struct look){.api = *device->api,
                       .n_layers = shape->n_layers,
                       .n_heads = shape->n_heads,
                       .n_kv_heads = shape->n_kv_heads,
                       .head_dim = shape->head_dim,
                       .n_prompt = n_prompt,
                       .n_threads = n_threads,
                       .n_sets = n_sets};
    l->api.launch = look_launch;
    l->device.api = &l->api;
    return take_room(l);
}

void look_close(struct look *l)
{
    for (int i = 0; l->scratch && i < l->n_threads; i++) {
        free(l->scratch[i].keys);
        free(l->scratch[i].weights);
    }
    free(l->scratch);
    free(l->mass);
    free(l->figures);
    free(l->tally);
    free(l->seen);
    free(l->kept);
    free(l->overlap);
    *l = (struct look){0};
}

void look_begin(struct look *l, int set)
{
    l->set = set;
    l->layer = 0;
    l->n_prompts += set < 0;
}

static double jaccard(const uint8_t *a, const uint8_t *b, int n)
{
    int both = 0, any = 0;
    for (int i = 0; i < n; i++) {
        both += a[i] & b[i];
        any += a[i] | b[i];
    }
    return any > 0 ? (double)both / any : 1;
}

void look_compare(struct look *l)
{
    int64_t of_set = (int64_t)l->n_layers * l->n_kv_heads;
    for (int a = 0; a < l->n_sets; a++)
        for (int b = 0; b < l->n_sets; b++)
            for (int64_t i = 0; i < of_set; i++)
                l->overlap[((int64_t)a * l->n_sets + b) * of_set + i] +=
                    jaccard(l->kept + (a * of_set + i) * l->n_prompt,
                            l->kept + (b * of_set + i) * l->n_prompt, l->n_prompt);
}

void look_means(struct look *l)
{
    int64_t n_figures = (int64_t)l->n_layers * l->n_heads * N_LOOK_FIGURES;
    int64_t n_overlaps = (int64_t)l->n_sets * l->n_sets * l->n_layers * l->n_kv_heads;
    for (int64_t i = 0; i < n_figures; i++)
        l->figures[i] /= l->n_prompts;
    for (int64_t i = 0; i < n_overlaps; i++)
        l->overlap[i] /= l->n_prompts;
}
