/* engine/api/variant.h - plans a job as if some flags were different: another weight format,
 * compute format, KV format or policy, place of attention, machine or budget.
 *
 * Owns: planning such a variant beside the existing plan; the measured quality cost of each change,
 * on this model (frontier_file.h) or, from a table, on another. Refuses: running a variant, and
 * choosing one. Note: a variant changes sizes only; planning reads no weights. */
#ifndef ENGINE_API_VARIANT_H
#define ENGINE_API_VARIANT_H

#include "engine/api/run.h"
#include "engine/model/pack.h"

/* What differs from the run. The default of each field means: unchanged. */
struct variant {
    enum pack_weights weights;     // PACK_AUTO: unchanged; otherwise neither auto nor bf12
    enum compute compute;          // N_COMPUTES: unchanged
    enum kv_format kv_format;      // N_KV_FORMATS: unchanged
    const struct evict *evict;     // borrowed; NULL: unchanged
    const char *budget_text;       // --kv-budget of `evict`, for variant_flags
    enum config_attn attn;         // where rows attend; ATTN_AUTO: unchanged
    const struct budget *budget;   // borrowed; NULL: the run's
    const struct machine *machine; // borrowed; NULL: the run's. Matmul rates are derived from it
};
struct variant variant_none(void);

/* The result for a variant. */
struct variant_plan {
    struct plan plan;
    struct plan_bytes bytes;
    struct plan_time time;
    int64_t output_tokens;
};

/* Plans r's job with the changes `v`, silently. r must be planned (run_plan) and is not changed.
 * ERR_FIT: does not fit; ERR_USAGE: conflicts with the run's flags; err_text() says why. */
enum err variant_plan(const struct run *r, const struct variant *v, struct variant_plan *out);

/* "--weights q8 --kv-policy h2o --kv-budget 0.2", without budgets and machines. */
void variant_flags(const struct variant *v, char *buf, int cap);

/* The measured cost of one change. */
struct quality {
    char what[40]; // the change: "q8", "int8", "h2o", "kv-q8"; "h2o + kv-q8": both at once
    double more;   // increase of perplexity in percent; below 0: not measured
    char on[128];  // model, text and other conditions; "": not measured
};
/* What the change costs SmolLM2, from bench/results/quality-*.csv; `more` is below 0 and `on` is ""
 * if the change is not in that table. */
struct quality quality_of(const char *what);

#define VARIANT_CHANGES 4 // maximum changes in one variant
/* Fills q with the cost of each change of v, a variant of r. Returns the number of changes; 0:
 * answers are the same. Prefers measurements of `bench frontier` on r's model to the table. */
int variant_quality(const struct run *r, const struct variant *v,
                    struct quality q[VARIANT_CHANGES]);
/* "q8 not measured, h2o +25.4 %", of perplexity; "" if no change affects answers. */
void variant_quality_text(const struct quality *q, int n, char *buf, int cap);

#endif
