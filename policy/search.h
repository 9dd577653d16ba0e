/* policy/search.h - the fastest plan that fits. */
#ifndef POLICY_SEARCH_H
#define POLICY_SEARCH_H

#include "policy/cost.h"

/* Bytes of `memory` that a search for this wish and work may take, 8-aligned. */
int64_t plan_search_bytes(const struct plan_wish *wish, const struct work *work, int layers);
/* The fastest plan by plan_cost that plan_check accepts; weights are encoded when their share was
 * measured and that is worth it, the making of the file included. 0, or -1 with `why`. */
int plan_search(const struct setting *set, const struct plan_wish *wish,
                const struct budget *budget, void *memory, struct plan *plan, char *why,
                int why_cap);

#endif
