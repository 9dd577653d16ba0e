/* engine/api/explain.h - explains a plan: its lanes, alternatives, and changes that would make the
 * job faster.
 *
 * Owns: which facts are worth a line, their words and JSON. Refuses: any choice for a run. All
 * figures are predicted with the rates that the plan was made with. */
#ifndef ENGINE_API_EXPLAIN_H
#define ENGINE_API_EXPLAIN_H

#include <jansson.h>

#include "engine/api/variant.h"

#define EXPLAIN_MOSTLY       0.80 // matmul_share above which only matmuls are named as the limit
#define EXPLAIN_SETTLED      24   // plans of the search that are examined
#define EXPLAIN_ALTERNATIVES 5
#define EXPLAIN_HELPS        12

/* A different plan that is nearly as fast. */
struct explain_alternative {
    struct plan plan;
    struct plan_bytes bytes;
    double job_s, make_s; // make_s: to encode the weights, once, before the job
    char freeze[512];     // the flags that make `run` take it
};

/* One change that would make the job faster. */
struct explain_help {
    char what[64];
    char flags[64];     // empty: no flag makes this change
    double job_s, gain; // job_s with the change; gain: relative growth of tokens/s
    int64_t more;       // additional bytes, if the change is memory
    int rounds;         // 1: answers are rounded differently but are as good
    struct quality quality[VARIANT_CHANGES];
    int n_quality; // 0: no cost in quality
    char quality_text[64];
};

struct explain {
    struct plan_choice settled[EXPLAIN_SETTLED];
    struct plan_ranking ranking; // into `settled`
    struct explain_alternative alternatives[EXPLAIN_ALTERNATIVES];
    int n_alternatives;
    struct explain_help helps[EXPLAIN_HELPS]; // sorted by gain, greatest first
    int n_helps;
    double matmul_share; // share of the job that matmuls need under any placement
};

/* Call before run_plan: the search of r fills the ranking. */
void explain_begin(struct explain *e, struct run *r);
/* Call after run_plan: fills lanes, alternatives and helps. Prints and measures nothing. */
enum err explain_plan(struct explain *e, struct run *r);
/* The part of explain_plan() that searches again (explain_help.c). */
enum err explain_find_helps(struct explain *e, struct run *r);

/* Output tokens per second of r's work in a job of job_s seconds. */
double explain_tokens_per_s(const struct run *r, double job_s);
/* Adds `lanes`, `quality`, `alternatives` and `would_help` to a plan file. */
void explain_json(const struct explain *e, const struct run *r, json_t *root);

#endif
