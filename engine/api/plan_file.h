/* engine/api/plan_file.h - plans as files: `plan -o plan.json` writes one, `run --plan` takes it.
 */
#ifndef ENGINE_API_PLAN_FILE_H
#define ENGINE_API_PLAN_FILE_H

#include <jansson.h>

#include "engine/api/run.h"

struct explain;

/* The --percent of a plan, "0 50 0 100 0 100"; valid until the next call of this thread. */
const char *plan_percent(const struct plan *p);
const char *plan_codec_name(const struct plan *p); // as --weights-codec
/* Fixes every field that --plan's file names and no flag does: a flag beats the file, and is told;
 * `auto` is one, too. Under other batches the file's shares hold. ERR_USAGE names file and key. */
enum err plan_file_read(const struct run *r, struct plan_wish *wish);
/* A line for every field of r->decision.plan that is not as `wish` asked for. */
void plan_tell_changes(const struct run *r, const struct plan_wish *wish);
/* What of a plan can be asked for, as a plan file has it. The caller owns it. */
json_t *plan_fields_json(const struct plan *p);
/* Writes a tree to a file, numbers with so many digits. ERR_IO, ERR_FIT, and see whole_open(). */
enum err json_save(const json_t *root, const char *path, int digits);
/* The plan, its bytes by tier, its predicted times and what explains it. The caller owns it. */
json_t *plan_json(const struct run *r, const struct explain *e);
/* The same into a file; path NULL: stdout. */
enum err plan_file_write(const struct run *r, const struct explain *e, const char *path);
/* "280 rows at once, weights in RAM, KV in RAM, about 10 s, limited by the CPU": a plan that was
 * chosen, in one line. */
void plan_words(const struct run *r, char *buf, int cap);
/* "7 of 42 parts in RAM (2 held decoded), 35 streamed from NVMe". A part is a layer, or a slice of
 * the output matrix. */
void plan_layers_text(const struct run *r, char *buf, int cap);
/* "full bf16", "h2o (budget 0.2, at most 64 slots a row) q8". */
void plan_kv_text(const struct run *r, char *buf, int cap);
/* "in RAM", "25 % in device memory, 75 % on NVMe": where KV and hidden states live; valid until the
 * next call of this thread. */
const char *plan_kv_tiers(const struct plan *p);
const char *plan_hidden_tiers(const struct plan *p);
/* 1 when hidden states were asked to leave the ops (--percent) but stay in their frames: they would
 * be read before they are written. */
int plan_hidden_stayed(const struct run *r);
/* Seconds of a mean pass, and how many passes. */
json_t *plan_time_json(const struct plan_time *t);
/* {policy, budget, format, slots, scope, positions, simulated}: what plans, summaries and scores
 * say of the KV cache. slots: the most of one row, layer and head. The caller owns it. */
json_t *plan_kv_json(const struct run *r);
/* The flags that make `run` take exactly this plan (r's own, or another of its job), with --isa and
 * --threads; into buf. */
void plan_freeze_as(const struct run *r, const struct plan *p, char *buf, int cap);
void plan_freeze(const struct run *r, char *buf, int cap);

#endif
