/* policy/attention.h - how long a batch's attention takes in a layer of a kind.
 *
 * Owns: seconds of slots and of prompt pairs, by the rates of the processor that attends. Refuses:
 * overlap with other work (policy/pass.h). */
#ifndef POLICY_ATTENTION_H
#define POLICY_ATTENTION_H

#include "policy/pass.h"

double attention_cpu_s(const struct setting *set, const struct load *l, int kind);
double attention_device_s(const struct setting *set, const struct load *l, int kind);

#endif
