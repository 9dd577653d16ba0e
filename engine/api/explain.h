/* engine/api/explain.h - why a plan is what it is: its lanes, the plans beside it, what would make
 * the job faster.
 *
 * Owns: the choice of what is worth a line, its words and its JSON. Refuses: choosing anything for
 * a run. All figures are predictions by the rates that the plan itself was made with. */
#ifndef ENGINE_API_EXPLAIN_H
#define ENGINE_API_EXPLAIN_H

#include <jansson.h>

#include "engine/api/variant.h"

#define EXPLAIN_MOSTLY       0.80 // of a job: nothing else is worth a line
#define EXPLAIN_SETTLED      24   // plans of a search that are looked at
#define EXPLAIN_ALTERNATIVES 5
#define EXPLAIN_HELPS        12

/* A plan that is nearly as fast, and really another one. */
struct explain_alternative {
    struct plan plan;
    struct plan_bytes bytes;
    double job_s, make_s; // once, before it: its encoded weights
    char freeze[512];     // the flags that make `run` take it
};

/* One thing that would make the job faster. */
struct explain_help {
    char what[64];
    char flags[64];     // empty: no flag does it
    double job_s, gain; // the job with it; the share by which tokens/s grow
    int64_t more;       // bytes, where it is memory
    int rounds;         // 1: answers are rounded otherwise, and as good
    struct quality quality[VARIANT_CHANGES];
    int n_quality; // 0: it costs no quality
    char quality_text[64];
};

struct explain {
    struct plan_choice settled[EXPLAIN_SETTLED];
    struct plan_ranking ranking; // over `settled`
    struct explain_alternative alternatives[EXPLAIN_ALTERNATIVES];
    int n_alternatives;
    struct explain_help helps[EXPLAIN_HELPS]; // the greatest gain first
    int n_helps;
    double matmul_share; // of the job: its matmuls, which no placement makes faster
};

/* Before run_plan: r's search fills the ranking. */
void explain_begin(struct explain *e, struct run *r);
/* r is planned: its lanes, alternatives and helps, quietly; nothing is measured. */
enum err explain_plan(struct explain *e, struct run *r);
/* The part of it that searches again (explain_help.c). */
enum err explain_find_helps(struct explain *e, struct run *r);

/* Output tokens per second of r's work in a job of job_s seconds. */
double explain_tokens_per_s(const struct run *r, double job_s);
/* Adds `lanes`, `quality`, `alternatives` and `would_help` to a plan file. */
void explain_json(const struct explain *e, const struct run *r, json_t *root);

#endif
