/* engine/api/config.h - one table of knobs: the command line, --config files, --help and the report
 * read it.
 *
 * Owns: parsing of values (sizes, counts, durations, fractions) and the defaults. Refuses: checks
 * of several values (run_setup.c). The command line overrides --config. */
#ifndef ENGINE_API_CONFIG_H
#define ENGINE_API_CONFIG_H

#include <stdatomic.h>

#include "kernels/base/base.h"

#define CONFIG_AUTO -1

/* Commands that accept a knob, or-ed in its row of the table. */
enum config_command {
    CMD_RUN = 1,
    CMD_GEN = 2,
    CMD_SCORE = 4,
    CMD_PLAN = 8,
    CMD_PROBE = 16,
    CMD_PACK = 32,
    CMD_INSPECT = 128,
    CMD_TOKENIZE = 256,
    CMD_STATUS = 512,
    CMD_MERGE = 1024,
    CMD_CACHE = 2048,
    CMD_BENCH_THROUGHPUT = 1 << 20,
    CMD_BENCH_OPS = 1 << 22,
    CMD_BENCH_IO = 1 << 23,
    CMD_BENCH_FRONTIER = 1 << 24,
    CMD_BENCH_ATTENTION = 1 << 25,
    CMD_BENCH_COPIES = 1 << 26,
    CMD_BENCH = CMD_BENCH_THROUGHPUT | CMD_BENCH_OPS | CMD_BENCH_IO | CMD_BENCH_COPIES |
                CMD_BENCH_FRONTIER | CMD_BENCH_ATTENTION,
};

/* A command as --help shows it. */
struct config_command_row {
    const char *name; // one word, or two: "bench sweep"
    enum config_command id;
    int words; // most words that are not flags, including the second word of `name`
    const char *usage, *help;
    const char *first; // the flags that --help shows first, separated by blanks
};
extern const struct config_command_row config_commands[];
extern const int config_n_commands;

enum config_attn { ATTN_AUTO, ATTN_CPU, ATTN_DEVICE };
enum config_codec { CODEC_AUTO, CODEC_NONE, CODEC_ZSTD };
enum config_progress { PROGRESS_AUTO, PROGRESS_BAR, PROGRESS_LINES, PROGRESS_NONE };
enum config_order { ORDER_INPUT, ORDER_COMPLETION };
enum config_on_off { CONFIG_ON, CONFIG_OFF };

#define CONFIG_STOPS_MAX 16
#define CONFIG_KNOBS_MAX 128
#define CONFIG_ARGS_MAX  1024

struct config {
    const char *model, *in, *out, *prompt, *prompt_file, *text;
    const char *machine, *machines, *plan, *summary, *trace, *kv_dump, *kv_trace, *offload_dir,
        *config, *work_dir, *compare, *policies, *budgets, *kv_formats;
    const char *device, *devices, *compute, *isa, *weights, *kv_policy, *kv_format, *ignore_fields,
        *shard, *kv_budget, *kv_budget_layers, *kv_recent, *resident, *percent;
    /* Flags whose value is one of a few words: the index of the word in the table. */
    int matmul;         // enum matmul_by
    int io;             // enum ring_kind
    int kv_scope;       // enum evict_scope; -1: the default of the policy
    int kv_positions;   // enum evict_positions
    int kv_budget_of;   // 0 total, 1 prompt
    int attn;           // enum config_attn
    int weights_codec;  // enum config_codec
    int progress;       // enum config_progress
    int order;          // enum config_order
    int share_prefixes; // enum config_on_off
    int replan;         // enum config_on_off
    int64_t mem_device, mem_ram, mem_disk, cache_max;
    int64_t threads, batch, batches, decoded, ahead_weights, ahead_state, prefill_tokens;
    int64_t kv_sink, max_tokens, top_k, seed, limit, max_errors, prefix, window;
    int64_t prompt_len, gen_len, num_prompts, runs, needles;
    double temperature, top_p, min_p, repetition_penalty, time_limit_s;
    int measure, chat, ignore_eos, retry_errors, overwrite, missing, pipeline, dry_run, json, csv,
        full, reset, decode, kv_simulate, verbose, quiet, help, no_advice;
    const char *stops[CONFIG_STOPS_MAX];
    int n_stops;
    const char *args[CONFIG_ARGS_MAX]; // words that are not flags
    int n_args;
    char **words; // borrowed: [n_words] of the command line, behind the command
    int n_words;
    const atomic_int *interrupted; // borrowed; becomes 1 when the command must stop
    char *file_text;               // owned: text of --config; values point into it
    char percent_text[128];        // the six words of --percent, joined
    int to_stdout;                 // 1: `-o -` of a job; `out` is the file that is copied to stdout
    int made_input;                // 1: this command created the file of -i from stdin
    /* Processes that divide this machine's memory, and its cores, between them where no flag says
     * how much to take; 0: this one is alone. */
    int share_memory, share_cores;
    int workers;           // processes that share the job on this machine; 0: not known
    int shared_fd;         // memory file for weights of these (engine/line/shared.h); 0: none
    int looks;             // 1: the command (plan) keeps no packed model for later commands
    int compares_policies; // 1: the KV policy flags apply to --policies
    unsigned char given[CONFIG_KNOBS_MAX]; // by row of the table: 1 if the user set it
};

/* Sets the defaults, then --config, then the command line. ERR_USAGE: the sentence names the flag,
 * and the nearest known one. argv must live as long as the config. */
enum err config_parse(struct config *c, enum config_command command, int argc, char **argv);
void config_free(struct config *c);
/* Parses more words of a command line over the values in `c`. They must live as long as `c`. */
enum err config_words(struct config *c, enum config_command command, int argc, char **argv);
/* The value of a single-value flag as text: plain numbers, sizes in bytes. */
void config_text(const struct config *c, const char *name, char *buf, int cap);
/* 1 if the command line or --config named this flag, even with its default. */
int config_given(const struct config *c, const char *name);
/* A flag that names a file, and the file. */
struct config_path {
    const char *flag, *path;
    int written; // 1: the command writes the file, 0: reads it
};
/* Lists the file flags that have a value; returns how many. cap CONFIG_KNOBS_MAX is enough. */
int config_paths(const struct config *c, struct config_path *paths, int cap);
/* The command that the first words name, "bench sweep" before "bench"; NULL: unknown. */
const struct config_command_row *config_command_find(int argc, char **argv);
enum err config_command_unknown(const char *word); // ERR_USAGE: the sentence suggests a command
const struct config_command_row *config_command_by_id(enum config_command id);

/* "24G" GiB, "24g" GB, "512M", decimal fractions; "300MB" decimal and "300MiB" (or "300Mi") binary
 * in upper or lower case; plain numbers are bytes. */
enum err parse_size(const char *flag, const char *text, int64_t *bytes);
/* "32K" = 32 x 1024, "10k" = 10,000; whole numbers. */
enum err parse_count(const char *flag, const char *text, int64_t *n);
/* "90s", "15m", "2h", "3h50m"; a plain number is seconds. */
enum err parse_duration(const char *flag, const char *text, double *seconds);
enum err parse_number(const char *flag, const char *text, double *x);
/* Which of the words "a|b|c" the value is, from 0. ERR_USAGE. */
enum err config_choose(const char *flag, const char *value, const char *choices, int *out);

#endif
