/* policy/attention.h - how long a batch attends in a layer of a kind.
 *
 * Owns: seconds of slots and of pairs of a prompt, by the rates of where rows attend. Refuses: what
 * goes on beside it (policy/pass.h). */
#ifndef POLICY_ATTENTION_H
#define POLICY_ATTENTION_H

#include "policy/pass.h"

double attention_cpu_s(const struct setting *set, const struct load *l, int kind);
double attention_device_s(const struct setting *set, const struct kv_load *kv);

#endif
