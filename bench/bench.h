/* bench/bench.h - what the benchmarks share: one table writer, medians, the compute roof.
 *
 * Owns: the form of the rows on stdout (aligned text, --csv, --json). Refuses: measuring inside the
 * engine: benchmarks use the doors that everybody uses. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <jansson.h>

#include "engine/api/compute.h"
#include "engine/api/config.h"

struct bench_device; // bench/device.h

/* Rows appear on stdout as they are measured; with --json all at the end. The keys of the first row
 * are the columns of all. */
struct bench_table {
    const struct config *config; // borrowed
    json_t *head;    // owned; facts of the whole table: keys of --json, columns of --csv
    json_t *columns; // owned; the first row
    json_t *rows;    // owned; --json only
};

/* The head says from the start: command, version, machine, date. */
void bench_table_open(struct bench_table *t, const struct config *c);
/* One more line of the head, before the first row. Takes the value. */
void bench_table_note(struct bench_table *t, const char *key, json_t *value);
/* Takes the row (an object of strings and numbers). ERR_FIT: row is NULL, no memory for it. */
enum err bench_row(struct bench_table *t, json_t *row);
/* What is known behind the last row: a number, or a list of strings; with --csv a line on stderr.
 * Takes the value. */
void bench_table_foot(struct bench_table *t, const char *key, json_t *value);
enum err bench_table_close(struct bench_table *t);

#define BENCH_RUNS_MAX 100
int bench_runs(const struct config *c); // --runs within 1..BENCH_RUNS_MAX
double bench_median(double *values, int n);

/* FLOPs per second of all threads in a loop that touches registers only, in the matmul's own
 * instruction: what no matmul can exceed. */
double bench_peak_flops(const struct ops *ops, double seconds);

/* ---- ops ---- */

#define BENCH_WINDOW_S 0.05 // a run of one case takes at least this long

/* A model's layers, in numbers. */
struct bench_model {
    char name[64];
    int dim, n_heads, n_kv_heads, head_dim, ffn;
    int head;      // outputs of the head that are computed at once
    int rope_dim;  // 0: no RoPE
    int gated;     // 1: a gate and gate_mul
    int norm_kind; // enum norm_kind
};

struct bench_roof {
    double flops, ram;  // per second; of a device: its own memory
    const char *memory; // what that is called: "ram", "memory"
};

#define BENCH_CASES_MAX 1024

/* Cases take turns: all are measured once, then all again, so that a slow moment of the machine
 * hits a turn of many cases and not all turns of one. The n-th case of every turn is the same. */
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
    int n_turns, turn, at; // `at`: the case that comes next
};

struct bench_run {
    struct bench_table *table;
    struct bench_turns *turns;
    const struct bench_roof *roof;
    const char *only;                           // NULL: all ops
    int policies[N_EVICT_POLICIES], n_policies; // of attend_forced, beside full and h2o
    struct bench_device *device;                // borrowed; NULL: this CPU
};

/* One op at one shape, measured in this turn. */
struct bench_result {
    const char *op, *model, *shape;
    double flops, bytes, seconds; // of one call
    double ram;                   // bytes per second that bound it; 0: those of the run's roof
    double step_s;                // of the decode step that it is a part of; 0: of none
    double low_s, high_s; // what stands as the least and the most; both 0: those of the turns
    const char *kind;     // NULL; "pairs": seconds are what a call takes longer than another one,
                          // "launch": what it takes to launch one; neither has a roof
};
/* Keeps the figures of the turn; the last one makes the row: medians, the least and the most. A
 * device's rows have one column more, `step`: their share of that decode step. */
enum err bench_result(const struct bench_run *run, const struct bench_result *r);

/* What reads weights, at the shapes of one model. */
enum err bench_matmuls(const struct bench_run *run, const struct ops *ops,
                       const struct bench_model *model);
enum err bench_decode(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model);

/* attend_forced at the shape of one model: rows whose KV comes from RAM. */
enum err bench_forced(const struct bench_run *run, const struct ops *ops,
                      const struct bench_model *model);

/* What `bench ops` does on a device with memory of its own (bench/ops_device.c): its roofs, the
 * times of a launch, and what of each op differs from the CPU's. */
enum err bench_device_roofs(struct bench_device *d, struct bench_roof *roof);
enum err bench_device_launch(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_matmuls(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_decode(const struct bench_run *run, const struct bench_model *model);
enum err bench_device_forced(const struct bench_run *run, const struct bench_model *model);
/* Seconds of the matmuls of one layer of m tokens. */
enum err bench_device_layer(struct bench_device *d, const struct bench_model *model, int m,
                            double *seconds);
/* The layers whose shapes matmuls are measured at: outputs and inputs. */
#define BENCH_LAYERS 5
void bench_layers(const struct bench_model *model, int layers[BENCH_LAYERS][2]);
/* One panel of numbers that are good as any format's, everywhere; row: a row of it. */
void bench_panel(enum dtype dtype, int k, uint8_t *row, uint8_t *panel);

enum err bench_ops(const struct config *c);
enum err bench_copies(const struct config *c);
enum err bench_io(const struct config *c);
enum err bench_throughput(const struct config *c);
enum err bench_frontier(const struct config *c);
enum err bench_attention(const struct config *c);

/* Output tokens a second of one run of the job that c's flags make up (bench/throughput.c). */
enum err bench_rate(const struct config *c, double *tokens_per_s);

#define BENCH_LIST_MAX 32
/* A flag's "a,b,c", in room that lasts as long as the list. */
struct bench_list {
    char room[512];
    const char *words[BENCH_LIST_MAX];
    int n;
};
/* ERR_USAGE: nothing, or too much. */
enum err bench_list_read(struct bench_list *l, const char *flag, const char *text);
/* The policies of --policies that evict, by number; all of the table where
 * it says all, or nothing. */
enum err bench_policies(const struct config *c, int policies[], int *n);

#endif
