/* policy/rates.h - arithmetic on seconds and rates, of policy only. */
#ifndef POLICY_RATES_H
#define POLICY_RATES_H

#include "kernels/base/num.h"

/* Seconds for `amount` bytes or operations; 0 if the rate is unknown. */
static inline double rate(double amount, double per_s)
{
    return per_s > 0 ? amount / per_s : 0;
}

#endif
