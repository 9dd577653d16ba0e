/* policy/pace.c - see pace.h. */
#include "policy/pace.h"

#include <math.h>
#include <string.h>

#include "policy/rates.h"

void pace_add(struct pace_runs *s, const struct pace_run *run)
{
    int same = 0, oldest = 0; // of the class, else of all
    for (int i = s->n - 1; i >= 0; i--)
        if (s->runs[i].class == run->class && ++same == PACE_RUNS)
            oldest = i;
    if (same >= PACE_RUNS || s->n == PACE_ALL) {
        s->n--;
        memmove(&s->runs[oldest], &s->runs[oldest + 1], sizeof *run * (size_t)(s->n - oldest));
    }
    s->runs[s->n++] = *run;
}

int pace_setup(int weights, int kv_format, int compute, int64_t ram)
{
    int power = 0;
    for (; ram > 1; ram /= 2)
        power++;
    return ((weights * 8 + kv_format) * 4 + compute) * 64 + power;
}

int pace_class(const struct plan *p, int setup)
{
    int tiers = 0;
    for (int layer = 1; layer < p->layers; layer++)
        tiers |= 1 << plan_layer_home(p, layer);
    for (int tier = 0; tier < N_TIERS; tier++) {
        tiers |= (plan_kv_count(p, (enum tier_kind)tier) > 0) << (N_TIERS + tier);
        tiers |= (plan_hidden_count(p, (enum tier_kind)tier) > 0) << (2 * N_TIERS + tier);
    }
    return setup * (1 << 3 * N_TIERS) + tiers;
}

/* 1 when a newer run of the same class follows. */
static int comes_again(const struct pace_runs *s, int i)
{
    for (int k = i + 1; k < s->n; k++)
        if (s->runs[k].class == s->runs[i].class)
            return 1;
    return 0;
}

void pace_make(struct pace *pace, const struct pace_runs *s)
{
    double logs = 0;
    pace->n = 0;
    for (int i = 0; i < s->n; i++) {
        double times[PACE_ALL];
        int n = 0;
        if (comes_again(s, i))
            continue;
        for (int k = 0; k <= i; k++)
            if (s->runs[k].class == s->runs[i].class)
                times[n++] = s->runs[k].times;
        struct rate r = rate_of_samples(times, n);
        r.value = min_d(max_d(r.value, 1 / PACE_LIMIT), PACE_LIMIT);
        logs += log(r.value);
        pace->known[pace->n].class = s->runs[i].class;
        pace->known[pace->n++].times = r;
    }
    pace->others = pace->n > 0 ? exp(logs / pace->n) : 1;
}

int pace_runs_known(const struct pace *pace)
{
    int n = 0;
    for (int i = 0; i < pace->n; i++)
        n += pace->known[i].times.n;
    return n;
}

struct rate pace_of(const struct pace *pace, const struct plan *p)
{
    if (!pace || pace->n == 0)
        return (struct rate){.value = 1};
    int class = pace_class(p, pace->setup);
    for (int i = 0; i < pace->n; i++)
        if (pace->known[i].class == class)
            return pace->known[i].times;
    return (struct rate){.value = pace->others};
}
