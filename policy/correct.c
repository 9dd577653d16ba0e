/* policy/correct.c - see correct.h. */
#include "policy/correct.h"

#include <string.h>

#include "policy/rates.h"

#define BEARS 0.3 // of the time: what a lane must be busy to be believed

static double between(const struct lane_seconds at[2], int lane)
{
    return at[1].s[lane] - at[0].s[lane];
}

void correct_lanes(const struct lane_seconds foreseen[2], const struct lane_seconds measured[2],
                   double slower[N_WORK_LANES])
{
    double wall_s = measured[1].wall_s - measured[0].wall_s;
    for (int i = 0; i < N_WORK_LANES; i++) {
        double was = between(measured, i), told = between(foreseen, i);
        if (told > 0 && was > 0 && max_d(was, told) >= BEARS * wall_s)
            slower[i] = was / told;
    }
}

double change_stay_s(const struct change *c)
{
    return c->passes_left * c->pass_s;
}

double change_go_s(const struct change *c)
{
    double slower = c->stay_s > 0 ? change_stay_s(c) / c->stay_s : 1;
    return c->open_s + c->go_s * max_d(slower, 1);
}

/* The lane whose seconds a rate makes. */
static enum lane lane_of(const struct machine_rate_info *rate, int device)
{
    if (rate->part == MACHINE_DISK)
        return strstr(rate->key, "write") ? LANE_NVME_WRITE : LANE_NVME_READ;
    if (rate->part == MACHINE_CPU)
        return LANE_CPU;
    if (strcmp(rate->key, "h2d") == 0 || strcmp(rate->key, "duplex") == 0)
        return LANE_H2D;
    return device && strcmp(rate->key, "d2h") != 0 ? LANE_GPU : LANE_D2H;
}

static int ends_with(const char *key, const char *end)
{
    size_t n = strlen(key), m = strlen(end);
    return n >= m && strcmp(key + n - m, end) == 0;
}

void correct_rates(struct machine *m, struct plan_costs *costs, int device,
                   const double slower[N_WORK_LANES])
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
    double by = slower[LANE_CPU];
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
