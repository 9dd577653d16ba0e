/* engine/api/pipeline.h - `--pipeline`: one job on several ranks, each with a part of the layers.
 *
 * Owns: how ranks agree before the first step: that they mean the same job, who has which layers,
 * one size of batches. Refuses: what crosses between them afterwards (engine/line/pipe.h). */
#ifndef ENGINE_API_PIPELINE_H
#define ENGINE_API_PIPELINE_H

#include "engine/api/run.h"

/* Joins the ranks; r->config becomes a copy for this rank: rank 0 alone reports, looks at the time
 * and reacts to signals. Errors as peers_open(). */
enum err pipeline_open(struct run *r);
/* Around work that finds what an earlier process left in the cache (the pack, measured rates): rank
 * 0 does it before the others begin. Nothing without a pipeline. */
enum err pipeline_turn_begin(const struct run *r);
enum err pipeline_turn_end(const struct run *r);
/* Cuts r->model to this rank's layers. ERR_USAGE: more ranks than layers. */
enum err pipeline_cut(struct run *r);
/* Bytes of each decoder layer, by which a model is cut for equal machines: the head counts with the
 * last. [shape.n_layers] */
void pipeline_layer_bytes(const struct model *model, double *n_bytes);
/* The same for any run and part; r->model becomes `part`, which the caller closes
 * (model_cut_close). ERR_FIT. */
enum err pipeline_part(struct run *r, struct model *part, int from, int to);
/* Opens the job: with its files on rank 0, which tells the others. ERR_JOB: a rank has another
 * model, other flags or another instruction set. */
enum err pipeline_job(struct run *r, enum request_kind kind);
/* For job_config on the other ranks. */
void pipeline_follow(const struct run *r, struct job_config *job);
/* Plans this rank's part, and again with the batches of the rank that has the least room. */
enum err pipeline_plan(struct run *r);
/* Groups of batches: one for each rank to work on, and one on its way. */
static inline int pipeline_groups(int ranks)
{
    return ranks + 1;
}
/* Lowers what all ranks have in common to what one rank's plan has. */
void pipeline_agree(struct ranks *all, const struct plan *plan);
/* Wishes what all ranks have in common (r->ranks); nothing without a pipeline. */
enum err pipeline_wish(const struct run *r, struct plan_wish *wish);
/* After the walk: rank 0 says how each rank spent its time. */
enum err pipeline_report(struct run *r);
struct peers *pipeline_peers(const struct run *r);
/* Leaves the ranks; an error before the job's end ends them all, with its exit code, after its
 * sentence. Returns this process's error: rank 0 alone says that rows have failed. */
enum err pipeline_close(struct run *r, enum err err);

#endif
