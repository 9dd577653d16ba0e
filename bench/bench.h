/* bench/bench.h - shared by the benchmarks: one table writer, medians, the compute roof.
 *
 * Owns: the form of the rows on stdout (aligned text, --csv, --json). Refuses: measuring inside the
 * engine: benchmarks use its public functions. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <jansson.h>

#include "engine/api/compute.h"
#include "engine/api/config.h"

struct bench_device; // bench/device.h

/* Rows are printed when measured; with --json all at the end. The keys of the first row are the
 * columns of all rows. */
struct bench_table {
    const struct config *config; // borrowed
    json_t *head;    // owned; facts about the whole table: keys of --json, columns of --csv
    json_t *columns; // owned; the first row
    json_t *rows;    // owned; --json only
};

/* Fills the head with command, version, machine and date. */
void bench_table_open(struct bench_table *t, const struct config *c);
/* Adds a line to the head, before the first row. Takes ownership of the value. */
void bench_table_note(struct bench_table *t, const char *key, json_t *value);
/* Prints a row (an object of strings and numbers) and takes ownership. ERR_FIT: row is NULL. */
enum err bench_row(struct bench_table *t, json_t *row);
/* Prints a value after the last row: a number, or a list of strings; with --csv a line on stderr.
 * Takes ownership of the value. */
void bench_table_foot(struct bench_table *t, const char *key, json_t *value);
enum err bench_table_close(struct bench_table *t);

#define BENCH_RUNS_MAX 100
int bench_runs(const struct config *c); // --runs limited to 1..BENCH_RUNS_MAX
double bench_median(double *values, int n);

/* FLOPs per second of all threads in a loop on registers, with the matmul's own instruction: an
 * upper bound for every matmul. */
double bench_peak_flops(const struct ops *ops, double seconds);

/* ---- ops ---- */

#define BENCH_WINDOW_S 0.05 // least duration of one measurement

/* The shape of a model's layers. */
struct bench_model {
    char name[64];
    int dim, n_heads, n_kv_heads, head_dim, ffn;
    int head;      // outputs of the head computed at once
    int rope_dim;  // 0: no RoPE
    int gated;     // 1: has a gate and gate_mul
    int norm_kind; // enum norm_kind
};

struct bench_roof {
    double flops, ram;  // per second; ram of a device: its own memory
    const char *memory; // its name: "ram" or "memory"
};

#define BENCH_CASES_MAX 1024

/* Cases take turns: all are measured once, then all again, so that a slow moment of the machine
 * affects one turn of many cases and not all turns of one. Case n is the same in every turn. */
enum bench_figure {
    FIGURE_S,
    FIGURE_LEAST_S,
    FIGURE_STEP_S,
    FIGURE_LOW_S,
    FIGURE_HIGH_S,
    N_FIGURES
};
struct bench_turns {
    double *figures;       // owned; [N_FIGURES][BENCH_CASES_MAX][n_turns]
    int n_turns, turn, at; // at: the next case
};

struct bench_run {
    struct bench_table *table;
    struct bench_turns *turns;
    const struct bench_roof *roof;
    const char *only;                           // NULL: all ops
    int policies[N_EVICT_POLICIES], n_policies; // of attend_forced, in addition to full and h2o
    struct bench_device *device;                // borrowed; NULL: this CPU
};

/* One op at one shape, in one turn. */
struct bench_result {
    const char *op, *model, *shape;
    double flops, bytes, seconds; // per call
    double ram;                   // bytes per second of its roof; 0: the run's
    double step_s;                // of the decode step with this op; 0: none
    double low_s, high_s;         // printed as least and most; both 0: those of the turns
    const char *kind; // NULL; "pairs": seconds are a difference between two calls, "launch":
                      // seconds of a launch; both have no roof
};
/* Stores the figures of the turn; the last turn prints the row: medians, least and most. On a
 * device there is one more column, `step`: the share of the decode step. */
enum err bench_result(const struct bench_run *run, const struct bench_result *r);

/* The ops that read weights, at the shapes of one model. */
enum err bench_matmuls(const struct bench_run *run, const struct ops *ops,
                       const struct bench_model *model);
enum err bench_decode(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model);

/* attend_forced at the shape of one model: rows with KV from RAM. */
enum err bench_forced(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model);

/* `bench ops` on a device with separate memory (bench/ops_device.c): roofs, launch times, and the
 * ops that differ from the CPU's. */
enum err bench_device_roofs(struct bench_device *d, struct bench_roof *roof);
enum err bench_device_launch(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_matmuls(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_decode(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_forced(const struct bench_run *run, const struct bench_model *model);
/* Seconds of the matmuls of one layer for m tokens. */
enum err bench_device_layer(struct bench_device *d, const struct bench_model *model, int m,
                            double *seconds);
/* Shapes of the measured matmuls: outputs and inputs. */
#define BENCH_LAYERS 5
void bench_layers(const struct bench_model *model, int layers[BENCH_LAYERS][2]);
/* Fills one panel with small numbers valid in any format; row: memory for one row. */
void bench_panel(enum dtype dtype, int k, uint8_t *row, uint8_t *panel);

enum err bench_ops(const struct config *c);
enum err bench_copies(const struct config *c);
enum err bench_io(const struct config *c);
enum err bench_throughput(const struct config *c);
enum err bench_frontier(const struct config *c);
enum err bench_attention(const struct config *c);

/* Output tokens per second of one run of the synthetic job of c's flags (bench/throughput.c). */
enum err bench_rate(const struct config *c, double *tokens_per_s);

#define BENCH_LIST_MAX 32
/* A flag's "a,b,c"; the words point into the list. */
struct bench_list {
    char room[512];
    const char *words[BENCH_LIST_MAX];
    int n;
};
/* ERR_USAGE: empty, or too long. */
enum err bench_list_read(struct bench_list *l, const char *flag, const char *text);
/* Reads --policies: numbers of the evicting policies; all of them for `all` or no flag. */
enum err bench_policies(const struct config *c, int policies[], int *n);

#endif
