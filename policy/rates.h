/* policy/rates.h - arithmetic on seconds and rates, of policy only. */
#ifndef POLICY_RATES_H
#define POLICY_RATES_H

#include "kernels/base/num.h"

/* Seconds of so many bytes or operations; a rate that is not known costs nothing. */
static inline double rate(double amount, double per_s)
{
    return per_s > 0 ? amount / per_s : 0;
}

#endif
