/* engine/chat/template_series.h - filters of lists, for the table in template_filter.c. Internal to
 * template*.c. */
#ifndef ENGINE_CHAT_TEMPLATE_SERIES_H
#define ENGINE_CHAT_TEMPLATE_SERIES_H

#include "engine/chat/template_call.h"

/* With plain parameters: a[] is bound to the names in FILTERS. */
typedef enum err tc_plain(struct tv_mem *m, struct tv in, struct tv *a, struct tv *out);
tc_plain ts_join, ts_sum, ts_sort, ts_unique, ts_min, ts_max, ts_items, ts_dictsort, ts_batch,
    ts_slice, ts_groupby;

/* With a filter or a test, and its arguments, among their own. */
typedef enum err tc_any(struct tv_mem *m, struct tv in, const struct tc_args *args, struct tv *out);
tc_any ts_map, ts_select, ts_reject, ts_selectattr, ts_rejectattr;

#endif
