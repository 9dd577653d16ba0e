/* policy/machine.c - see machine.h.
 *
 * Owns: how unmeasured rates follow from measured ones. Refuses: text (offload/machine_file.c) and
 * clocks. */
#include "policy/machine.h"

#include <math.h>
#include <stdlib.h>

#include "policy/plan.h"
#include "policy/rates.h"

#define DECODE_FLOPS 16 // extra cost of a number that must be decoded
#define ROWS_BUSY    64 // attending rows that keep all threads busy; one of matmul_rows

#define INFO(key, part, needed, max, unit) {#key, unit, MACHINE_##part, needed, max},
const struct machine_rate_info machine_rates[N_MACHINE_RATES] = {MACHINE_RATES(INFO)};
#undef INFO

/* Common drives, if not measured: latency of a read of 1 MiB; overhead of a transfer; a row of 4
 * KiB with a full queue. And the network of common machines. */
#define PIECE_LATENCY_S 1.5e-4
#define DEPTH_SHARE     0.95 // of the full rate
#define DEPTH_LEAST     2    // one piece in flight leaves the disk idle until its end is seen
#define TICKET_S        1e-4
#define GATHER_S        2e-5
#define NET             1.17e9 // 10 Gbit Ethernet, less headers

const int matmul_rows[N_MATMUL_ROWS] = {1, 4, 16, 64, 256};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x. */
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

struct rate rate_of_samples(double *samples, int n)
{
    struct rate r = {.value = median(samples, n), .n = n};
    for (int i = 0; i < n; i++)
        samples[i] = fabs(samples[i] - r.value);
    r.spread = median(samples, n);
    return r;
}

/* ---- the disk ---- */

/* Rate with 1, 2, 4 or IO_DEPTH pieces in flight, at most that of more pieces. */
static double read_rate_at(const struct machine *m, int in_flight)
{
    const double most = m->nvme_read.value;
    const double given = in_flight == 1   ? m->nvme_read_d1.value
                         : in_flight == 2 ? m->nvme_read_d2.value
                         : in_flight == 4 ? m->nvme_read_d4.value
                                          : most;
    if (given > 0 || most <= 0)
        return min_d(given, most);
    return min_d(in_flight * PIECE_BYTES / (PIECE_BYTES / most + PIECE_LATENCY_S), most);
}

double machine_read_rate(const struct machine *m, int in_flight)
{
    int below = 1;
    if (in_flight >= IO_DEPTH)
        return m->nvme_read.value;
    while (below * 2 <= in_flight)
        below *= 2;
    double from = read_rate_at(m, below), to = read_rate_at(m, below * 2);
    return from + (to - from) * (in_flight - below) / below;
}

int machine_depth(const struct machine *m)
{
    int depth = DEPTH_LEAST;
    while (depth < IO_DEPTH && machine_read_rate(m, depth) < DEPTH_SHARE * m->nvme_read.value)
        depth *= 2;
    return m->nvme_read.value > 0 ? depth : IO_DEPTH;
}

double machine_ticket_s(const struct machine *m)
{
    return m->ticket_s.value > 0 ? m->ticket_s.value : TICKET_S;
}

static double net_rate(const struct machine *m)
{
    return m->net > 0 ? (double)m->net : NET;
}

double machine_hop(const struct machine *a, const struct machine *b, int one_box)
{
    return one_box && a->p2p > 0 ? (double)a->p2p : min_d(net_rate(a), net_rate(b));
}

double machine_gather_s(const struct machine *m)
{
    return m->gather_s.value > 0 ? m->gather_s.value : GATHER_S;
}

/* ---- attention on a device ---- */

double machine_device_attend_read(const struct machine *m)
{
    return m->device_attend_read.value > 0 ? m->device_attend_read.value : m->device_read.value;
}

double machine_device_attend_flops(const struct machine *m)
{
    return m->device_attend_flops.value > 0 ? m->device_attend_flops.value : m->device_flops.value;
}

/* ---- matmuls ---- */

double machine_matmul(const struct machine *m, enum matmul_format format, int i)
{
    static const double bytes[N_MATMUL_FORMATS] = {4, 2, 68 / 64.0, 36 / 64.0}; // of one number
    double given = m->rates[machine_matmul_rate(format, i)].value;
    double flops = 2.0 * matmul_rows[i];
    double work = flops + (format == MATMUL_Q8 || format == MATMUL_Q4 ? DECODE_FLOPS : 0);
    if (given > 0)
        return given;
    return rate(flops,
                max_d(rate(bytes[format], m->ram_read.value), rate(work, m->matmul_flops.value)));
}

void machine_complete(struct machine *m)
{
    static const int nearest[N_MATMUL_ROWS] = {3, 2, 4, 1, 0}; // to M = 64
    static const enum matmul_format formats[N_MATMUL_FORMATS] = {MATMUL_BF16, MATMUL_F32, MATMUL_Q8,
                                                                 MATMUL_Q4};
    for (int f = 0; f < N_MATMUL_FORMATS; f++)
        for (int i = 0; i < N_MATMUL_ROWS && m->matmul_flops.value <= 0; i++)
            m->matmul_flops = m->rates[machine_matmul_rate(formats[f], nearest[i])];
}

static double seconds_of(const struct machine *m, const double numbers[N_MATMUL_FORMATS], int i)
{
    double s = 0;
    for (int f = 0; f < N_MATMUL_FORMATS; f++)
        s += rate(numbers[f] * 2 * matmul_rows[i], machine_matmul(m, (enum matmul_format)f, i));
    return s;
}

void model_rates_ascend(struct model_rates *r)
{
    for (int i = N_MATMUL_ROWS - 2; i >= 0; i--) {
        r->rows_s[i] = min_d(r->rows_s[i], r->rows_s[i + 1]);
        r->attend_s[i] = min_d(r->attend_s[i], r->attend_s[i + 1]);
    }
    for (int state = 0; state < N_WEIGHT_STATES; state++)
        for (int i = N_MATMUL_ROWS - 2; i >= 0; i--) {
            r->layer_s[state][i] = min_d(r->layer_s[state][i], r->layer_s[state][i + 1]);
            r->head_s[state][i] = min_d(r->head_s[state][i], r->head_s[state][i + 1]);
        }
}

/* s[N_MATMUL_ROWS] interpolated at any number of tokens, `tile` (one of matmul_rows) at once. */
static double seconds_at(const double *s, int tile, double tokens)
{
    int last = N_MATMUL_ROWS - 1, i = 0;
    while (matmul_rows[last] > tile)
        last--;
    double tiles = floor(max_d(tokens, 0) / tile), rest = max_d(tokens, 0) - tiles * tile;
    while (rest > matmul_rows[i]) // rest is less than a tile
        i++;
    double from = i > 0 ? matmul_rows[i - 1] : 0, from_s = i > 0 ? s[i - 1] : 0;
    return tiles * s[last] + from_s + (s[i] - from_s) * (rest - from) / (matmul_rows[i] - from);
}

/* Experts of a layer at matmul_rows[i] tokens: the chosen ones, each with its share of the
 * tokens. */
static double experts_s(const struct machine *m, const struct model_weights *w, int state, int i)
{
    double s[N_MATMUL_ROWS], each = (double)matmul_rows[i] * w->n_used / w->n_experts;
    for (int j = 0; j < N_MATMUL_ROWS; j++)
        s[j] = seconds_of(m, w->experts[state], j);
    return min_d(each, 1) * seconds_at(s, matmul_rows[N_MATMUL_ROWS - 1], max_d(each, 1));
}

void model_rates_derive(struct model_rates *r, const struct machine *m,
                        const struct model_weights *w)
{
    *r = (struct model_rates){0};
    for (int state = 0; state < N_WEIGHT_STATES; state++)
        for (int i = 0; i < N_MATMUL_ROWS; i++) {
            r->layer_s[state][i] = seconds_of(m, w->layer[state], i);
            r->head_s[state][i] = seconds_of(m, w->head[state], i);
            if (w->n_experts > 0)
                r->layer_s[state][i] += experts_s(m, w, state, i);
        }
    model_rates_ascend(r);
}

double model_layer_s(const struct model_rates *r, enum weight_state state, double tokens)
{
    return seconds_at(r->layer_s[state], PLAN_TILE_TOKENS, tokens);
}

double model_head_s(const struct model_rates *r, enum weight_state state, double positions)
{
    return seconds_at(r->head_s[state], PLAN_TILE_POSITIONS, positions);
}

double model_rows_s(const struct model_rates *r, double tokens)
{
    return seconds_at(r->rows_s, PLAN_TILE_TOKENS, tokens);
}

double model_prompts_s(const struct model_rates *r, double prompts, double tokens, double pairs)
{
    return prompts * r->prompt_s + tokens * r->prompt_token_s + pairs * r->pair_s;
}

double model_attend_s(const struct model_rates *r, double tokens, double slots)
{
    const int tile = ROWS_BUSY;
    double each = min_d(tokens, tile);
    int i = 0;
    if (tokens <= 0)
        return 0;
    while (matmul_rows[i] < each)
        i++;
    double slot_s = r->slot_s[i];
    if (i > 0)
        slot_s += (r->slot_s[i - 1] - slot_s) * (matmul_rows[i] - each) /
                  (matmul_rows[i] - matmul_rows[i - 1]);
    return seconds_at(r->attend_s, tile, tokens) + slots * slot_s;
}
