/* policy/eta.c - see eta.h. */
#include "policy/eta.h"

#include "policy/rates.h"

#include <math.h>

#define PRIOR  0.05 // share of the job's time with which earlier runs count
#define RECENT 0.5  // passes count less when older than this share of the time so far,
#define AHEAD  0.5  // or than this share of the time that is left,
#define LEAST  2.0  // but not below this many seconds

void eta_begin(struct eta *e, double job_s, double first_s, double times)
{
    *e = (struct eta){.left_s = job_s, .next_s = first_s};
    e->predicted_s = PRIOR * job_s;
    e->measured_s = times * e->predicted_s;
}

void eta_pass(struct eta *e, double measured_s, double predicted_s)
{
    const double left_s = eta_seconds(e, 0);
    e->elapsed_s += measured_s;
    double recent_s = min_d(RECENT * e->elapsed_s, AHEAD * max_d(left_s, 0));
    double kept = exp(-measured_s / max_d(recent_s, LEAST));
    e->measured_s = kept * e->measured_s + measured_s;
    e->predicted_s = kept * e->predicted_s + predicted_s;
    if (e->left_s >= 0)
        e->left_s = max_d(e->left_s - predicted_s, 0);
    e->next_s = min_d(predicted_s, max_d(e->left_s, 0));
}

void eta_left(struct eta *e, double left_s, double next_s)
{
    e->left_s = left_s;
    e->next_s = min_d(next_s, left_s);
}

double eta_seconds(const struct eta *e, double share)
{
    if (e->left_s < 0 || e->predicted_s <= 0)
        return -1;
    return (e->left_s - min_d(max_d(share, 0), 1) * e->next_s) * e->measured_s / e->predicted_s;
}
