/* engine/api/variant.h - a job planned as if some of its flags were others: weights in another
 * format, another compute format, KV format or policy, attention elsewhere, another machine or
 * budget.
 *
 * Owns: planning such a variant beside the plan there is; what each change was measured to cost in
 * quality, on this model (frontier_file.h) or, by a table, on another. Refuses: running one, and
 * choosing one. Note: only sizes change: a plan reads no weights. */
#ifndef ENGINE_API_VARIANT_H
#define ENGINE_API_VARIANT_H

#include "engine/api/run.h"
#include "engine/model/pack.h"

/* What is other than in the run; the rest stays. */
struct variant {
    enum pack_weights weights;     // PACK_AUTO: as they are. Of the others neither auto nor bf12
    enum compute compute;          // N_COMPUTES: as it is
    enum kv_format kv_format;      // N_KV_FORMATS: as it is
    const struct evict *evict;     // borrowed; NULL: as it is
    const char *budget_text;       // with evict: its --kv-budget, for variant_flags
    enum config_attn attn;         // where rows attend; ATTN_AUTO: as it is
    const struct budget *budget;   // borrowed; NULL: the run's
    const struct machine *machine; // borrowed; NULL: the run's. Rates of matmuls follow from it
};
struct variant variant_none(void);

/* What becomes of it. */
struct variant_plan {
    struct plan plan;
    struct plan_bytes bytes;
    struct plan_time time;
    int64_t output_tokens;
};

/* Plans r's job as `v` says, without a line on stderr. r is planned (run_plan) and not changed.
 * ERR_FIT: it does not fit; ERR_USAGE: the flags that were given forbid it; err_text() says why. */
enum err variant_plan(const struct run *r, const struct variant *v, struct variant_plan *out);

/* The flags that make it: "--weights q8 --kv-policy h2o --kv-budget 0.2". Budgets and machines have
 * none here. */
void variant_flags(const struct variant *v, char *buf, int cap);

/* What one change costs, measured. */
struct quality {
    char what[40]; // the change: "q8", "int8", "h2o", "kv-q8"; "h2o + kv-q8": both at once
    double more;   // perplexity, percent; below 0: not measured
    char on[128];  // model, text and what else it holds for; "" where not measured
};
#define VARIANT_CHANGES 4 // most of one variant
/* Of each change of v, which is one of r's; returns how many there are. 0: its answers are the
 * run's own. What `bench frontier` measured on r's model counts before the table. */
int variant_quality(const struct run *r, const struct variant *v,
                    struct quality q[VARIANT_CHANGES]);
/* "q8 not measured, h2o +25.5 %", of perplexity; "" when nothing changes answers. */
void variant_quality_text(const struct quality *q, int n, char *buf, int cap);

#endif
