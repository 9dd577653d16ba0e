/* policy/correct.c - see correct.h. */
#include "policy/correct.h"

#include <math.h>
#include <string.h>

#include "policy/rates.h"

#define SAYS             0.05 // of the time: what a lane must be busy to be believed
#define BEARS            0.3  // to bear on the time of a pass
#define OFF              1.2
#define SHOWS            0.5 // of all the time: what a lane must be busy to be kept
#define REFERENCE_TOKENS 64

static double between(const struct lane_seconds at[2], int lane)
{
    return at[1].s[lane] - at[0].s[lane];
}

void correct_lanes(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_PLAN_LANES])
{
    double wall_s = measured[1].wall_s - measured[0].wall_s;
    for (int i = 0; i < N_PLAN_LANES; i++) {
        double was = between(measured, i), told = between(foreseen, i);
        if (told > 0 && was > 0 && max_d(was, told) >= SAYS * wall_s)
            slower[i] = was / told;
    }
}

void correct_shown(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_PLAN_LANES])
{
    double wall_s = measured[1].wall_s - measured[0].wall_s, most = 0;
    for (int i = 0; i < N_PLAN_LANES; i++)
        most = max_d(most, between(measured, i));
    for (int i = 0; i < N_PLAN_LANES; i++) {
        double was = between(measured, i), told = between(foreseen, i);
        int computes = i == PLAN_CPU || i == PLAN_GPU;
        slower[i] = told > 0 && was >= SHOWS * wall_s && (computes || was >= most) ? was / told : 0;
    }
}

void correct_reference(const struct machine *m, const struct model_rates *rates,
                       double seconds[N_PLAN_LANES])
{
    const double tokens = REFERENCE_TOKENS;
    seconds[PLAN_NVME_READ] = rate(1, m->nvme_read.value);
    seconds[PLAN_NVME_WRITE] = rate(1, m->nvme_write.value);
    seconds[PLAN_H2D] = rate(1, m->h2d.value);
    seconds[PLAN_D2H] = rate(1, m->d2h.value);
    seconds[PLAN_GPU] = rate(1, m->device_flops.value);
    seconds[PLAN_CPU] = model_layer_s(rates, WEIGHTS_STORED, tokens) + model_rows_s(rates, tokens);
}

struct shown_run shown_of(const double slower[N_PLAN_LANES], const struct rate lanes[N_PLAN_LANES],
                          const double reference[N_PLAN_LANES])
{
    struct shown_run run;
    for (int i = 0; i < N_PLAN_LANES; i++) {
        run.slower[i] = slower[i] * lanes[i].value;
        run.reference[i] = reference[i];
    }
    return run;
}

void shown_add(struct shown *s, const struct shown_run *run)
{
    if (s->n == SHOWN_RUNS)
        memmove(s->runs, s->runs + 1, sizeof *run * (size_t)--s->n);
    s->runs[s->n++] = *run;
}

void shown_lanes(const struct shown *s, const double reference[N_PLAN_LANES],
                 struct rate lanes[N_PLAN_LANES])
{
    for (int lane = 0; lane < N_PLAN_LANES; lane++) {
        double samples[SHOWN_RUNS + 1];
        int n = 0;
        samples[n++] = 1;
        for (int i = 0; i < s->n; i++) {
            const struct shown_run *run = &s->runs[i];
            if (run->slower[lane] > 0 && run->reference[lane] > 0 && reference[lane] > 0)
                samples[n++] = run->slower[lane] * run->reference[lane] / reference[lane];
        }
        lanes[lane] = rate_of_samples(samples, n);
        lanes[lane].n = n - 1;
    }
}

static double off(double slower, double known)
{
    return slower > known ? slower / known : known / slower;
}

int correct_due(const struct lane_seconds measured[2], const double slower[N_PLAN_LANES],
                const double known[N_PLAN_LANES])
{
    double wall_s = measured[1].wall_s - measured[0].wall_s, most = OFF;
    int worst = -1;
    for (int i = 0; i < N_PLAN_LANES; i++) {
        double was = between(measured, i), told = was / slower[i] * known[i];
        if (off(slower[i], known[i]) <= most || max_d(was, told) <= BEARS * wall_s)
            continue;
        most = off(slower[i], known[i]);
        worst = i;
    }
    return worst;
}

/* The lane whose seconds a rate makes. */
static enum plan_lane lane_of(const struct machine_rate_info *rate, int device)
{
    if (rate->part == MACHINE_DISK)
        return strstr(rate->key, "write") ? PLAN_NVME_WRITE : PLAN_NVME_READ;
    if (rate->part == MACHINE_CPU)
        return PLAN_CPU;
    if (strcmp(rate->key, "h2d") == 0 || strcmp(rate->key, "duplex") == 0)
        return PLAN_H2D;
    return device && strcmp(rate->key, "d2h") != 0 ? PLAN_GPU : PLAN_D2H;
}

static int ends_with(const char *key, const char *end)
{
    size_t n = strlen(key), m = strlen(end);
    return n >= m && strcmp(key + n - m, end) == 0;
}

void correct_rates(struct machine *m, struct plan_costs *costs, int device,
                   const double slower[N_PLAN_LANES])
{
    for (int i = 0; i < N_MACHINE_RATES; i++) {
        double by = slower[lane_of(&machine_rates[i], device)];
        double *value = &m->rates[i].value;
        if (ends_with(machine_rates[i].key, "_s"))
            *value *= by;
        else if (!ends_with(machine_rates[i].key, "_bytes") &&
                 !ends_with(machine_rates[i].key, "_beside")) // a share
            *value /= by;
    }
    double by = slower[PLAN_CPU];
    struct model_rates *r = &costs->rates;
    for (int state = 0; state < N_WEIGHT_STATES; state++)
        for (int i = 0; i < N_MATMUL_ROWS; i++) {
            r->layer_s[state][i] *= by;
            r->head_s[state][i] *= by;
        }
    for (int i = 0; i < N_MATMUL_ROWS; i++) {
        r->rows_s[i] *= by;
        r->attend_s[i] *= by;
        r->slot_s[i] *= by;
    }
    r->prompt_s *= by;
    r->prompt_token_s *= by;
    r->pair_s *= by;
    costs->attend_rate /= by;
    costs->codec_rate /= by;
}
