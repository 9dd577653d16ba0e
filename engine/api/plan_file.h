/* engine/api/plan_file.h - plans as files (`plan -o` writes, `run --plan` reads) and as text. */
#ifndef ENGINE_API_PLAN_FILE_H
#define ENGINE_API_PLAN_FILE_H

#include <jansson.h>

#include "engine/api/run.h"

struct explain;

/* The --percent of a plan, "0 50 0 100 0 100"; valid until the next call in this thread. */
const char *plan_percent(const struct plan *p);
const char *plan_codec_name(const struct plan *p); // as --weights-codec
/* Sets every field of `wish` that --plan's file names and no flag names. A flag, even `auto`,
 * overrides the file, with a warning. With another number of batches the file's counts apply as
 * shares. ERR_USAGE names file and key. */
enum err plan_file_read(const struct run *r, struct plan_wish *wish);
/* Prints a line for every field of r->decision.plan that differs from `wish`. */
void plan_tell_changes(const struct run *r, const struct plan_wish *wish);
/* The fields of a plan that a plan file can request. The caller owns the result. */
json_t *plan_fields_json(const struct plan *p);
/* Writes JSON to a file, numbers with `digits` digits. ERR_IO, ERR_FIT, and see whole_open(). */
enum err json_save(const json_t *root, const char *path, int digits);
/* The plan, its bytes by tier, its predicted times and its explanation. The caller owns it. */
json_t *plan_json(const struct run *r, const struct explain *e);
/* Writes plan_json() to a file; path NULL: stdout. */
enum err plan_file_write(const struct run *r, const struct explain *e, const char *path);
/* One line: "280 rows at once, weights in RAM, KV in RAM, about 10 s, limited by the CPU". */
void plan_words(const struct run *r, char *buf, int cap);
/* "7 of 42 parts in RAM (2 held decoded), 35 streamed from NVMe". A part is a layer, or a slice of
 * the output matrix. */
void plan_layers_text(const struct run *r, char *buf, int cap);
/* "full bf16", "h2o (budget 0.2, at most 64 slots a row) q8". */
void plan_kv_text(const struct run *r, char *buf, int cap);
/* Where KV and hidden states are kept: "in RAM", "25 % in device memory, 75 % on NVMe"; valid until
 * the next call in this thread. */
const char *plan_kv_tiers(const struct plan *p);
const char *plan_hidden_tiers(const struct plan *p);
/* 1 if --percent asked for hidden states away from the ops but they stay in their frames, because
 * they would be read before they are written. */
int plan_hidden_stayed(const struct run *r);
/* Seconds of a mean pass, and the number of passes. */
json_t *plan_time_json(const struct plan_time *t);
/* {policy, budget, format, slots, scope, positions, simulated}: the KV cache in plans, summaries
 * and scores. slots: maximum of one row, layer and head. The caller owns it. */
json_t *plan_kv_json(const struct run *r);
/* Writes the flags that make `run` use exactly plan p (r's own, or another of its job), with --isa
 * and --threads, into buf. plan_freeze: r's own plan. */
void plan_freeze_as(const struct run *r, const struct plan *p, char *buf, int cap);
void plan_freeze(const struct run *r, char *buf, int cap);

#endif
