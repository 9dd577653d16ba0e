/* policy/evict_row.h - the limits of one row, resolved from a run's budget. */
#ifndef POLICY_EVICT_ROW_H
#define POLICY_EVICT_ROW_H

#include <stdint.h>

struct evict_row {
    int budget; // slots the row may hold per layer and KV head; INT32_MAX: never evicts
    int recent; // last positions protected
    int sink;   // first positions protected
};

#endif
