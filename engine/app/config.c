/* engine/app/config.c - see config.h. To add a knob: a field in struct config and one row here. */
#include "engine/app/config.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/whole.h"
#include "policy/evict.h"

enum knob_kind {
    KNOB_STRING,
    KNOB_FILE,   // a path that is read
    KNOB_OUTPUT, // a path that is written
    KNOB_CHOICE, // one of the words of `value`
    KNOB_SIZE,
    KNOB_COUNT,
    KNOB_NUMBER,
    KNOB_DURATION,
    KNOB_SWITCH,
    KNOB_STOPS,
    KNOB_SIX
};

struct knob {
    const char *name; // long flag, without the dashes
    char letter;      // short flag, 0: none
    enum knob_kind kind;
    size_t offset;      // in struct config
    int commands;       // or-ed enum config_command
    const char *preset; // default as text, NULL: none
    const char *value;  // how the value is named in --help
    const char *help;
};

#define SIZE_LEAST (1 << 20) // a plain number below this is hardly meant as bytes
#define MODEL_CMDS (CMD_RUN | CMD_GEN | CMD_SCORE | CMD_PLAN | CMD_TOKENIZE | CMD_BENCH)
#define LINE_CMDS  (CMD_RUN | CMD_GEN | CMD_SCORE | CMD_PLAN | CMD_BENCH)
#define AT(field)  offsetof(struct config, field)

/* By bit of enum config_command; `words`: how many that are not flags it takes. */
static const struct {
    const char *name;
    int words;
} commands[] = {{"run", 0},
                {"gen", 0},
                {"score", 0},
                {"plan", 0},
                {"probe", 0},
                {"pack", 1},
                {"bench", 2},
                {"inspect", 1},
                {"tokenize", 0},
                {"status", 1},
                {"merge", CONFIG_ARGS_MAX}};
#define N_COMMANDS (int)(sizeof commands / sizeof commands[0])

/* Of the numbers that a row may set too: what a row's field takes (engine/job/request_fields.c). */
static const struct {
    const char *name;
    double min, max;
} ranges[] = {{"temperature", 0, 100},
              {"top-p", 1e-9, 1},
              {"min-p", 0, 1},
              {"repetition-penalty", 0.01, 100}};

static const struct knob knobs[] = {
    {"model", 'm', KNOB_FILE, AT(model), MODEL_CMDS, NULL, "MODEL",
     "Hugging Face directory, .gguf file, pack, or a model config from configs/"},
    {"input", 'i', KNOB_FILE, AT(in), CMD_RUN | CMD_SCORE | CMD_PLAN, NULL, "FILE",
     "rows, one JSON object a line; -: stdin (a job keeps it as OUT.input, to resume from)"},
    {"output", 'o', KNOB_OUTPUT, AT(out),
     CMD_RUN | CMD_SCORE | CMD_PLAN | CMD_PROBE | CMD_PACK | CMD_BENCH | CMD_MERGE, NULL, "FILE",
     "where the result goes (plan, probe, bench: - is stdout)"},
    {"prompt", 'p', KNOB_STRING, AT(prompt), CMD_GEN, NULL, "TEXT", "the prompt; -: stdin"},
    {"file", 'f', KNOB_FILE, AT(prompt_file), CMD_GEN, NULL, "FILE",
     "read the prompt from a file; -: stdin"},
    {"chat", 0, KNOB_SWITCH, AT(chat), CMD_GEN, NULL, "",
     "put the prompt through the chat template"},
    {"text", 0, KNOB_FILE, AT(text), CMD_SCORE | CMD_BENCH, NULL, "FILE",
     "perplexity of a text file (bench frontier, attention: what they measure on)"},
    {"prefix", 0, KNOB_COUNT, AT(prefix), CMD_SCORE | CMD_BENCH, "512", "TOKENS",
     "prompt part of a window of --text"},
    {"window", 0, KNOB_COUNT, AT(window), CMD_SCORE | CMD_BENCH, "1024", "TOKENS",
     "window of --text"},
    {"policies", 0, KNOB_STRING, AT(policies), CMD_BENCH, NULL, "all|A,B,C",
     "KV policies of bench frontier and attention (default: all), and ops (h2o)"},
    {"budgets", 0, KNOB_STRING, AT(budgets), CMD_BENCH, "0.1,0.2,0.4", "A,B,C",
     "KV budgets of bench frontier, as --kv-budget takes them"},
    {"kv-formats", 0, KNOB_STRING, AT(kv_formats), CMD_BENCH, "bf16", "A,B,C",
     "KV formats of bench frontier"},
    {"needles", 0, KNOB_COUNT, AT(needles), CMD_BENCH, "2", "N",
     "pass keys that bench frontier hides at each of five depths of a window; 0: none"},
    {"measure", 0, KNOB_SWITCH, AT(measure), CMD_BENCH, NULL, "",
     "bench frontier: run the job for its tokens/s instead of planning it"},
    {"mem-device", 0, KNOB_SIZE, AT(mem_device), LINE_CMDS, "-1", "SIZE",
     "device memory cap (default: what is free, less a margin)"},
    {"mem-ram", 0, KNOB_SIZE, AT(mem_ram), LINE_CMDS, "-1", "SIZE",
     "RAM cap (default: what is free, less a margin)"},
    {"mem-disk", 0, KNOB_SIZE, AT(mem_disk), LINE_CMDS, "-1", "SIZE",
     "disk that the run itself may write, packs apart; 0 forbids it"},
    {"offload-dir", 0, KNOB_STRING, AT(offload_dir), LINE_CMDS | CMD_PROBE, NULL, "DIR",
     "where KV and hidden states are offloaded (default: beside the pack)"},
    {"device", 0, KNOB_STRING, AT(device), LINE_CMDS | CMD_PROBE, "auto", "auto|cpu|cuda[:i]",
     "where to compute (bench ops: auto is the CPU)"},
    {"threads", 't', KNOB_COUNT, AT(threads), LINE_CMDS | CMD_PROBE, "0", "N",
     "compute threads (0: one per usable core)"},
    {"compute", 0, KNOB_STRING, AT(compute), LINE_CMDS, "bf16", "bf16|f32|int8",
     "format of matmul inputs (int8: over q8 and q4 weights; over others as bf16)"},
    {"matmul", 0, KNOB_CHOICE, AT(matmul), LINE_CMDS, "own", "own|cublaslt",
     "whose matmuls run on a CUDA device under bf16; part of the answer"},
    {"isa", 0, KNOB_STRING, AT(isa), LINE_CMDS | CMD_PROBE, "auto", "auto|amx|avx512|avx2|portable",
     "instruction set; part of the answer under bf16"},
    {"weights", 0, KNOB_STRING, AT(weights), LINE_CMDS | CMD_PACK | CMD_INSPECT | CMD_TOKENIZE,
     "auto", "auto|f32|f16|bf16|bf12|q8|q4",
     "weight format of the pack (auto: as in the file; bf16 as bf12, lossless, where smaller)"},
    {"batch", 0, KNOB_COUNT, AT(batch), LINE_CMDS, "0", "N", "rows of one batch (0: auto)"},
    {"batches", 0, KNOB_COUNT, AT(batches), LINE_CMDS, "0", "N",
     "batches that share one sweep of the weights (0: auto)"},
    {"weights-resident", 0, KNOB_STRING, AT(resident), LINE_CMDS, "auto", "N|PCT%",
     "layers kept in RAM"},
    {"weights-decoded", 0, KNOB_COUNT, AT(decoded), LINE_CMDS, "-1", "N",
     "resident layers decoded once and held as matmul tiles: faster, larger (-1: auto)"},
    {"weights-codec", 0, KNOB_STRING, AT(weights_codec), LINE_CMDS, "auto", "auto|none|zstd",
     "how streamed weights are stored (zstd: encoded in PACK.zst, made when needed; same answers)"},
    {"percent", 0, KNOB_SIX, AT(percent), LINE_CMDS, NULL, "wD wR kD kR hD hR",
     "FlexGen's six shares; on a CPU device and RAM add up"},
    {"ahead-weights", 0, KNOB_COUNT, AT(ahead_weights), LINE_CMDS, "-1", "STEPS",
     "look-ahead of weight reads, less than a pass (-1: auto)"},
    {"ahead-state", 0, KNOB_COUNT, AT(ahead_state), LINE_CMDS, "-1", "STEPS",
     "look-ahead of KV and hidden states (-1: auto)"},
    {"prefill-tokens", 0, KNOB_COUNT, AT(prefill_tokens), LINE_CMDS, "0", "N",
     "prompt and forced tokens admitted per pass (0: auto)"},
    {"attn", 0, KNOB_CHOICE, AT(attn), LINE_CMDS, "auto", "auto|cpu|device",
     "where attention runs (device: needs one)"},
    {"io", 0, KNOB_STRING, AT(io), LINE_CMDS | CMD_PROBE, "auto", "auto|uring|threads",
     "how files are read"},
    {"share-prefixes", 0, KNOB_CHOICE, AT(share_prefixes), LINE_CMDS, "on", "on|off",
     "prompts of a batch that begin alike compute their common prefix once; same bytes"},
    {"replan", 0, KNOB_CHOICE, AT(replan), LINE_CMDS, "on", "on|off",
     "another plan between two passes when rates are not as measured, or RAM runs short; same "
     "bytes"},
    {"plan", 0, KNOB_FILE, AT(plan), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "take placement from a plan file; flags beat it"},
    {"kv-policy", 0, KNOB_STRING, AT(kv_policy), LINE_CMDS, "full", "NAME", EVICT_NAMES},
    {"kv-budget", 0, KNOB_STRING, AT(kv_budget), LINE_CMDS, "0.2", "N|FRACTION",
     "slots per layer and KV head; a fraction counts prompt + max_tokens"},
    {"kv-budget-of", 0, KNOB_CHOICE, AT(kv_budget_of), LINE_CMDS, "total", "total|prompt",
     "what a fraction counts: prompt + max_tokens, or the prompt alone"},
    {"kv-budget-layers", 0, KNOB_FILE, AT(kv_budget_layers), LINE_CMDS, "even",
     "even|pyramid[:BETA]|FILE",
     "how layers share it: a number for each, or what bench attention --csv wrote"},
    {"kv-budget-heads", 0, KNOB_STRING, AT(kv_budget_heads), LINE_CMDS, "even",
     "even|adaptive[:ALPHA]",
     "how the heads of a layer share it behind a prompt, each sure of ALPHA of it (0.2)"},
    {"kv-recent", 0, KNOB_STRING, AT(kv_recent), LINE_CMDS, NULL, "N|FRACTION",
     "newest positions protected (default: by policy)"},
    {"kv-sink", 0, KNOB_COUNT, AT(kv_sink), LINE_CMDS, "-1", "N",
     "first positions protected (-1: by policy)"},
    {"kv-scope", 0, KNOB_CHOICE, AT(kv_scope), LINE_CMDS, NULL, "head|layer",
     "who chooses victims (default: by policy)"},
    {"kv-positions", 0, KNOB_CHOICE, AT(kv_positions), LINE_CMDS, "true", "true|slot",
     "keys turn by their positions, or by their ranks among the slots (rows beyond the context)"},
    {"kv-format", 0, KNOB_STRING, AT(kv_format), LINE_CMDS, "bf16", "f32|bf16|q8|q4|mixed",
     "format of stored K and V"},
    {"kv-simulate", 0, KNOB_SWITCH, AT(kv_simulate), CMD_RUN | CMD_SCORE, NULL, "",
     "keep everything and mask what would have gone"},
    {"kv-dump", 0, KNOB_OUTPUT, AT(kv_dump), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "kept positions and victims as JSON lines"},
    {"kv-trace", 0, KNOB_OUTPUT, AT(kv_trace), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "what heads hold and drop, token by token, to read"},
    {"max-tokens", 'n', KNOB_COUNT, AT(max_tokens), CMD_RUN | CMD_GEN, "0", "N",
     "tokens to generate (rows win; default: by form)"},
    {"temperature", 0, KNOB_NUMBER, AT(temperature), CMD_RUN | CMD_GEN, "-1", "X",
     "0: greedy (rows win; default 1)"},
    {"top-p", 0, KNOB_NUMBER, AT(top_p), CMD_RUN | CMD_GEN, "1", "X",
     "nucleus; chooses among the best 1,024"},
    {"top-k", 0, KNOB_COUNT, AT(top_k), CMD_RUN | CMD_GEN, "0", "N", "at most 1,024 act; 0: off"},
    {"min-p", 0, KNOB_NUMBER, AT(min_p), CMD_RUN | CMD_GEN, "0", "X",
     "chooses among the best 1,024; 0: off"},
    {"repetition-penalty", 0, KNOB_NUMBER, AT(repetition_penalty), CMD_RUN | CMD_GEN, "1", "X",
     "1: off"},
    {"seed", 0, KNOB_COUNT, AT(seed), CMD_RUN | CMD_GEN | CMD_BENCH, "-1", "N",
     "for rows without one"},
    {"stop", 0, KNOB_STOPS, AT(stops), CMD_RUN | CMD_GEN, NULL, "TEXT",
     "stop string; may be given again"},
    {"ignore-eos", 0, KNOB_SWITCH, AT(ignore_eos), CMD_RUN | CMD_GEN | CMD_PLAN, NULL, "",
     "generate to max_tokens"},
    {"order", 0, KNOB_CHOICE, AT(order), CMD_RUN | CMD_SCORE, "input", "input|completion",
     "order of OUT"},
    {"limit", 0, KNOB_COUNT, AT(limit), CMD_RUN | CMD_SCORE | CMD_PLAN | CMD_BENCH, "0", "N",
     "first N rows (or windows) only; may grow on a job that is there"},
    {"retry-errors", 0, KNOB_SWITCH, AT(retry_errors), CMD_RUN | CMD_SCORE, NULL, "",
     "run failed rows again, also under --unknown-fields warn"},
    {"max-errors", 0, KNOB_COUNT, AT(max_errors), CMD_RUN | CMD_SCORE, "-1", "N",
     "stop when more rows failed"},
    {"unknown-fields", 0, KNOB_CHOICE, AT(unknown_fields), CMD_RUN | CMD_SCORE, "error",
     "error|warn", "fields that sluice does not know"},
    {"overwrite", 0, KNOB_SWITCH, AT(overwrite),
     CMD_RUN | CMD_SCORE | CMD_PLAN | CMD_PROBE | CMD_PACK | CMD_BENCH | CMD_MERGE, NULL, "",
     "replace another job's OUT, and files that sluice did not write"},
    {"shard", 0, KNOB_STRING, AT(shard), CMD_RUN | CMD_SCORE, NULL, "i/N",
     "this process takes rows i, i+N, ... (i from 0)"},
    {"time-limit", 0, KNOB_DURATION, AT(time_limit_s), LINE_CMDS, "0", "D",
     "stop cleanly after this long (90s, 15m, 3h50m; a plain number is seconds)"},
    {"dry-run", 0, KNOB_SWITCH, AT(dry_run), CMD_RUN | CMD_SCORE, NULL, "",
     "check every row (why they are bad; exit 3) and print the plan, no more"},
    {"sweep", 0, KNOB_STRING, AT(sweep), CMD_PLAN, NULL, "FLAG=A..B|A,B,C",
     "plan at each value of a flag: A, 2A, 4A, ... B of counts, sizes and fractions, or a list; "
     "CSV on stdout"},
    {"compare", 0, KNOB_STRING, AT(compare), CMD_BENCH, NULL, "'FLAGS;FLAGS'",
     "bench throughput: run the job with each of these flags beside the automatic plan; one table"},
    {"plot", 0, KNOB_OUTPUT, AT(plot), CMD_PLAN | CMD_BENCH, NULL, "FILE.svg|FILE.png",
     "draw the sweep: a range along an axis that doubles, a list side by side; or what bench "
     "frontier or attention found (needs gnuplot)"},
    {"allow", 0, KNOB_STRING, AT(allow), CMD_PLAN, NULL, "q8,q4,int8,h2o=0.2,mixed",
     "compare with lossy weights (q8, q4), matmuls (int8), KV policies and formats (kv-q8, kv-q4, "
     "mixed), alone and together"},
    {"machine", 0, KNOB_FILE, AT(machine), CMD_PLAN | CMD_RUN | CMD_SCORE | CMD_BENCH, NULL,
     "FILE",
     "machine file: rates and, where no flag says them, budgets (default: this one's, probed)"},
    {"prompt-len", 0, KNOB_COUNT, AT(prompt_len), CMD_PLAN | CMD_BENCH, "0", "TOKENS",
     "prompt length of a made-up job"},
    {"gen-len", 0, KNOB_COUNT, AT(gen_len), CMD_PLAN | CMD_BENCH, "32", "TOKENS",
     "tokens to generate in a made-up job"},
    {"num-prompts", 0, KNOB_COUNT, AT(num_prompts), CMD_PLAN | CMD_BENCH, "64", "N",
     "rows of a made-up job"},
    {"runs", 0, KNOB_COUNT, AT(runs), CMD_BENCH, "3", "N",
     "repetitions of ops and io; medians are printed"},
    {"full", 0, KNOB_SWITCH, AT(full), CMD_PROBE, NULL, "",
     "measure for minutes instead of seconds"},
    {"reset", 0, KNOB_SWITCH, AT(reset), CMD_PROBE, NULL, "",
     "measure nothing: forget what was probed and what earlier runs took (packs stay)"},
    {"decode", 0, KNOB_SWITCH, AT(decode), CMD_TOKENIZE, NULL, "", "rows {\"ids\"} to {\"text\"}"},
    {"json", 0, KNOB_SWITCH, AT(json), CMD_PLAN | CMD_BENCH | CMD_INSPECT | CMD_PROBE | CMD_STATUS,
     NULL, "", "one JSON object on stdout"},
    {"csv", 0, KNOB_SWITCH, AT(csv), CMD_BENCH, NULL, "", "comma-separated rows on stdout"},
    {"progress", 0, KNOB_CHOICE, AT(progress), CMD_RUN | CMD_SCORE | CMD_PACK | CMD_BENCH, "auto",
     "auto|bar|lines|none", "progress on stderr"},
    {"summary", 0, KNOB_OUTPUT, AT(summary), CMD_RUN | CMD_SCORE | CMD_BENCH, NULL, "FILE",
     "what was planned and measured, as JSON"},
    {"trace", 0, KNOB_OUTPUT, AT(trace), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "Chrome trace of the lanes"},
    {"config", 0, KNOB_FILE, AT(config), ~0, NULL, "FILE", "any flag as `key = value`"},
    {"verbose", 'v', KNOB_SWITCH, AT(verbose), ~0, NULL, "", "more on stderr"},
    {"quiet", 'q', KNOB_SWITCH, AT(quiet), ~0, NULL, "", "errors only on stderr"},
    {"help", 'h', KNOB_SWITCH, AT(help), ~0, NULL, "", "this list"},
};
#define N_KNOBS (int)(sizeof knobs / sizeof knobs[0])

/* Digits, one point, no exponent; correctly rounded (0.3 must be the nearest double: a budget of
 * 0.3 of 240 tokens is 72 slots, not 73). The program never leaves the C locale, so strtod knows
 * points. */
static const char *parse_decimal(const char *text, double *x)
{
    const char *p = text + (*text == '-');
    size_t whole = strspn(p, "0123456789");
    size_t part = p[whole] == '.' ? strspn(p + whole + 1, "0123456789") : 0;
    if (whole + part == 0)
        return text;
    const char *end = p + whole + (p[whole] == '.' ? part + 1 : 0);
    char digits[64];
    snprintf(digits, sizeof digits, "%.*s", (int)min_i64(end - text, 63), text);
    *x = strtod(digits, NULL);
    return end;
}

/* The unit at *at, which moves behind it: a letter alone is binary when it is a capital (24G is
 * GiB, 24g is GB); with_bytes: also KB, MB, ... (decimal), KiB or Ki, ... (binary), B. 0: none. */
static double unit_read(const char **at, int with_bytes)
{
    static const char letters[] = "kKmMgGtT";
    const char *letter = **at ? strchr(letters, **at) : NULL;
    int binary = letter && (letter - letters) % 2 == 1;
    double unit = 1;
    *at += letter != NULL;
    if (with_bytes && letter && **at == 'i') {
        binary = 1;
        *at += 1;
        *at += **at == 'B' || **at == 'b';
    } else if (with_bytes && (**at == 'B' || **at == 'b')) {
        binary = 0;
        *at += 1;
    }
    for (int power = letter ? (int)(letter - letters) / 2 + 1 : 0; power > 0; power--)
        unit *= binary ? 1024 : 1000;
    return unit;
}

enum err parse_size(const char *flag, const char *text, int64_t *bytes)
{
    double x = 0;
    const char *end = parse_decimal(text, &x);
    double unit = unit_read(&end, 1);
    if (parse_decimal(text, &x) == text || *end || x * unit > 9e18 || x < -1)
        return fail(ERR_USAGE, "--%s: cannot read '%s' (e.g. 512M, 24G, 2.3GiB, 300MB)", flag,
                    text);
    *bytes = (int64_t)(x * unit);
    return OK;
}

enum err parse_count(const char *flag, const char *text, int64_t *n)
{
    double x = 0;
    const char *end = parse_decimal(text, &x);
    double unit = unit_read(&end, 0);
    if (parse_decimal(text, &x) == text || *end || x * unit > 9e15 || x < -9e15)
        return fail(ERR_USAGE, "--%s: cannot read '%s' (a whole number: 12, 10k, 32K)", flag, text);
    if ((double)(int64_t)(x * unit) != x * unit)
        return fail(ERR_USAGE, "--%s: '%s' is not a whole number", flag, text);
    *n = (int64_t)(x * unit);
    return OK;
}

enum err parse_number(const char *flag, const char *text, double *x)
{
    const char *end = parse_decimal(text, x);
    if (end == text || *end)
        return fail(ERR_USAGE, "--%s: '%s' is not a number", flag, text);
    return OK;
}

enum err parse_duration(const char *flag, const char *text, double *seconds)
{
    *seconds = 0;
    const char *p = text;
    while (*p) {
        double x = 0;
        const char *end = parse_decimal(p, &x);
        double unit = *end == 's' || (!*end && p == text) ? 1
                      : *end == 'm'                       ? 60
                      : *end == 'h'                       ? 3600
                      : *end == 'd'                       ? 86400
                                                          : 0;
        if (end == p || unit == 0 || x < 0)
            return fail(ERR_USAGE, "--%s: cannot read '%s' (e.g. 90s, 15m, 3h50m)", flag, text);
        *seconds += x * unit;
        p = *end ? end + 1 : end;
    }
    return p == text ? fail(ERR_USAGE, "--%s: empty duration", flag) : OK;
}

/* NULL: the flag alone. */
static enum err parse_switch(const char *flag, const char *text, int *on)
{
    static const char *const words[] = {"0", "1", "false", "true", "off", "on", "no", "yes"};
    *on = 1;
    if (!text)
        return OK;
    for (int i = 0; i < 8; i++)
        if (strcmp(text, words[i]) == 0) {
            *on = i % 2;
            return OK;
        }
    return fail(ERR_USAGE, "--%s: '%s' is none of on|off", flag, text);
}

/* `word` in "a|b|c". */
static int is_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (n > 0 && strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == '|'))
            return 1;
    return 0;
}

static enum err knob_set(struct config *c, const struct knob *k, const char *value)
{
    void *field = (char *)c + k->offset;
    switch (k->kind) {
    case KNOB_CHOICE:
        if (!is_choice(k->value, value))
            return fail(ERR_USAGE, "--%s: '%s' is none of %s", k->name, value, k->value);
        *(const char **)field = value;
        return OK;
    case KNOB_STRING:
    case KNOB_FILE:
    case KNOB_OUTPUT:
    case KNOB_SIX:
        *(const char **)field = value;
        return OK;
    case KNOB_SIZE:
        return parse_size(k->name, value, field);
    case KNOB_COUNT:
        return parse_count(k->name, value, field);
    case KNOB_NUMBER:
        return parse_number(k->name, value, field);
    case KNOB_DURATION:
        return parse_duration(k->name, value, field);
    case KNOB_SWITCH:
        return parse_switch(k->name, value, field);
    case KNOB_STOPS:
        if (c->n_stops == CONFIG_STOPS_MAX)
            return fail(ERR_USAGE, "--stop: at most %d", CONFIG_STOPS_MAX);
        c->stops[c->n_stops++] = value;
        return OK;
    }
    return OK;
}

/* What nobody can mean: numbers below 0, but -1 where that says `auto`, and what no row may have.
 */
static enum err check_range(const struct config *c, const struct knob *k, const char *value)
{
    const void *field = (const char *)c + k->offset;
    int64_t least = k->kind == KNOB_COUNT && k->preset && strcmp(k->preset, "-1") == 0 ? -1 : 0;
    if ((k->kind == KNOB_SIZE || k->kind == KNOB_COUNT) && *(const int64_t *)field < least)
        return fail(ERR_USAGE, "--%s: %s is out of range (at least %lld)", k->name, value,
                    (long long)least);
    if (k->kind == KNOB_SIZE && *(const int64_t *)field > 0 &&
        *(const int64_t *)field < SIZE_LEAST && strspn(value, "0123456789.") == strlen(value))
        return fail(ERR_USAGE, "--%s: %s means %s bytes (%sM, %sG?)", k->name, value, value, value,
                    value);
    for (int i = 0; i < (int)(sizeof ranges / sizeof ranges[0]); i++)
        if (strcmp(ranges[i].name, k->name) == 0 &&
            !(*(const double *)field >= ranges[i].min && *(const double *)field <= ranges[i].max))
            return fail(ERR_USAGE, "--%s: %s is out of range (%g to %g)", k->name, value,
                        ranges[i].min, ranges[i].max);
    return OK;
}

/* As the user asks: in range, and remembered. */
static enum err knob_give(struct config *c, const struct knob *k, const char *value)
{
    TRY(knob_set(c, k, value));
    TRY(check_range(c, k, value));
    c->given[k - knobs] = 1;
    return OK;
}

static const struct knob *knob_named(const char *name)
{
    int i = 0;
    while (i < N_KNOBS && strcmp(knobs[i].name, name) != 0)
        i++;
    CHECK(i < N_KNOBS);
    return &knobs[i];
}

int config_given(const struct config *c, const char *name)
{
    return c->given[knob_named(name) - knobs];
}

void config_text(const struct config *c, const char *name, char *buf, int cap)
{
    const struct knob *k = knob_named(name);
    const void *field = (const char *)c + k->offset;
    if (k->kind == KNOB_SIZE || k->kind == KNOB_COUNT) {
        snprintf(buf, (size_t)cap, "%lld", (long long)*(const int64_t *)field);
        return;
    }
    CHECK(k->kind == KNOB_STRING || k->kind == KNOB_FILE || k->kind == KNOB_CHOICE ||
          k->kind == KNOB_SIX);
    const char *text = *(const char *const *)field;
    snprintf(buf, (size_t)cap, "%s", text ? text : "");
}

static int edit_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);
    if (n > 62)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            int best = row[j] < row[j + 1] ? row[j] + 1 : row[j + 1] + 1;
            row[j + 1] = change < best ? change : best;
        }
    }
    return row[n];
}

static const struct knob *knob_find(const char *name, size_t n, int command)
{
    for (int i = 0; i < N_KNOBS; i++)
        if (strlen(knobs[i].name) == n && memcmp(knobs[i].name, name, n) == 0 &&
            (knobs[i].commands & command))
            return &knobs[i];
    return NULL;
}

static const char *command_name(int command)
{
    return commands[__builtin_ctz((unsigned)command)].name;
}

static void list_add(char *list, size_t cap, const char *dashes, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, cap - n, "%s%s%s", n ? ", " : "", dashes, name);
}

/* `name` is a word of the flag, or opens it: "mem" of mem-ram, "ram" of mem-ram. */
static int names_part(const char *name, const char *flag)
{
    size_t n = strlen(name);
    for (const char *at = flag; n > 1 && at; at = strchr(at, '-') ? strchr(at, '-') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == '-'))
            return 1;
    return 0;
}

/* Flags of the command that `name` may have meant: one letter in four wrong, or part of it. */
static void near_flags(const char *name, int command, const char *dashes, char *list, size_t cap)
{
    const struct knob *nearest = NULL;
    int least = (int)min_i64(2, (int64_t)strlen(name) / 4) + 1;
    for (int i = 0; i < N_KNOBS; i++) {
        int d = edit_distance(name, knobs[i].name);
        if ((knobs[i].commands & command) && d < least) {
            least = d;
            nearest = &knobs[i];
        }
    }
    if (nearest)
        list_add(list, cap, dashes, nearest->name);
    for (int i = 0; i < N_KNOBS && !nearest; i++)
        if ((knobs[i].commands & command) && names_part(name, knobs[i].name))
            list_add(list, cap, dashes, knobs[i].name);
}

static enum err unknown_flag(const char *name, size_t n, int command)
{
    char word[64], list[400] = "";
    snprintf(word, sizeof word, "%.*s", (int)min_i64((int64_t)n, 63), name);
    const struct knob *others = knob_find(word, strlen(word), ~command);
    for (int i = 0; others && i < N_COMMANDS; i++)
        if (others->commands & 1 << i)
            list_add(list, sizeof list, "", commands[i].name);
    if (others)
        return fail(ERR_USAGE, "--%s: unknown flag of %s (it belongs to %s)", word,
                    command_name(command), list);
    near_flags(word, command, "--", list, sizeof list);
    if (*list)
        return fail(ERR_USAGE, "--%s: unknown flag (did you mean %s?)", word, list);
    return fail(ERR_USAGE, "--%s: unknown flag (see sluice %s --help)", word,
                command_name(command));
}

/* One flag at argv[*i]; leaves *i at its last word. */
static enum err parse_flag(struct config *c, int command, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    const struct knob *k = NULL;
    const char *value = NULL;
    if (word[1] == '-') {
        const char *eq = strchr(word, '=');
        size_t n = eq ? (size_t)(eq - word - 2) : strlen(word + 2);
        k = knob_find(word + 2, n, command);
        value = eq ? eq + 1 : NULL;
        if (!k)
            return unknown_flag(word + 2, n, command);
    } else {
        for (int j = 0; j < N_KNOBS && !k; j++)
            if (knobs[j].letter == word[1] && !word[2] && (knobs[j].commands & command))
                k = &knobs[j];
        if (!k)
            return fail(ERR_USAGE, "%s: unknown flag (see sluice %s --help)", word,
                        command_name(command));
    }
    if (k->kind == KNOB_SWITCH)
        return knob_give(c, k, value);
    int words = k->kind == KNOB_SIX ? 6 : 1;
    if (!value) {
        if (*i + words >= argc)
            return fail(ERR_USAGE, "--%s: needs %s", k->name, k->value);
        value = argv[*i + 1];
        for (int j = 1; k->kind == KNOB_SIX && j < words; j++)
            argv[*i + j][strlen(argv[*i + j])] =
                ' '; // argv words lie one after the other: join them
        *i += words;
    }
    return knob_give(c, k, value);
}

/* One `key = value` of a --config file. */
static enum err parse_line(struct config *c, char *line, int command, const char *path, int number)
{
    size_t name = strcspn(line, " \t=");
    char *eq = strchr(line, '=');
    if (!eq)
        return fail(ERR_USAGE, "%s: line %d: no '='", path, number);
    char *value = eq + 1 + strspn(eq + 1, " \t");
    for (size_t end = strlen(value); end > 0 && strchr(" \t", value[end - 1]); end--)
        value[end - 1] = 0;
    const struct knob *k = knob_find(line, name, command);
    if (!k) {
        char list[400] = "";
        line[name] = 0;
        near_flags(line, command, "", list, sizeof list);
        return fail(ERR_USAGE, "%s: line %d: %.64s: unknown key%s%s%s", path, number, line,
                    *list ? " (did you mean " : "", list, *list ? "?)" : "");
    }
    if (knob_give(c, k, value) != OK)
        return fail(ERR_USAGE, "%s: line %d: %s", path, number, err_text());
    return OK;
}

/* key = value lines; # starts a comment. The text is kept for the life of the process: values point
 * into it. */
static enum err parse_file(struct config *c, const char *path, int command)
{
    const char *why;
    FILE *f = regular_open(path, &why);
    if (!f)
        return fail(ERR_USAGE, "%s: --config: %s", path, why);
    static char text[1 << 16];
    size_t n = fread(text, 1, sizeof text - 1, f);
    int bad = ferror(f) ? errno : 0;
    fclose(f);
    if (bad)
        return fail(ERR_USAGE, "%s: --config: %s", path, strerror(bad));
    if (n == sizeof text - 1)
        return fail(ERR_USAGE, "%s: --config: more than 64 KiB", path);
    text[n] = 0;
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        number++;
        line[strcspn(line, "#\r")] = 0;
        line += strspn(line, " \t");
        if (*line)
            TRY(parse_line(c, line, command, path, number));
    }
    return OK;
}

/* The file is read first, wherever it stands: the command line wins. */
static enum err parse_files(struct config *c, int argc, char **argv, int command)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            TRY(parse_file(c, argv[i] + 9, command));
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            TRY(parse_file(c, argv[i + 1], command));
    }
    return OK;
}

enum err config_words(struct config *c, enum config_command command, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] && argv[i][1] != '.' &&
            !isdigit((unsigned char)argv[i][1])) {
            TRY(parse_flag(c, command, argc, argv, &i));
            continue;
        }
        if (c->n_args == commands[__builtin_ctz((unsigned)command)].words)
            return fail(ERR_USAGE, "%s: one word too many (see sluice %s --help)", argv[i],
                        command_name(command));
        c->args[c->n_args++] = argv[i];
    }
    return OK;
}

enum err config_parse(struct config *c, enum config_command command, int argc, char **argv)
{
    memset(c, 0, sizeof *c);
    c->looks = command == CMD_PLAN;
    _Static_assert(N_KNOBS <= CONFIG_KNOBS_MAX, "config.given has room for every knob");
    for (int i = 0; i < N_KNOBS; i++)
        if (knobs[i].preset)
            TRY(knob_set(c, &knobs[i], knobs[i].preset));
    TRY(parse_files(c, argc, argv, command));
    return config_words(c, command, argc, argv);
}

enum err config_set(struct config *c, enum config_command command, const char *name,
                    const char *value)
{
    const struct knob *k = knob_find(name, strlen(name), command);
    return k ? knob_give(c, k, value) : unknown_flag(name, strlen(name), command);
}

int config_paths(const struct config *c, struct config_path *paths, int cap)
{
    int n = 0;
    for (int i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &knobs[i];
        if (k->kind != KNOB_FILE && k->kind != KNOB_OUTPUT)
            continue; // the field is no pointer
        const char *path = *(const char *const *)(const void *)((const char *)c + k->offset);
        if (!path)
            continue;
        CHECK(n < cap);
        paths[n++] = (struct config_path){k->name, path, k->kind == KNOB_OUTPUT};
    }
    return n;
}

void config_help(enum config_command command)
{
    for (int i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &knobs[i];
        if (!(k->commands & (int)command))
            continue;
        char flag[80];
        if (k->letter)
            snprintf(flag, sizeof flag, "-%c, --%s %s", k->letter, k->name, k->value);
        else
            snprintf(flag, sizeof flag, "    --%s %s", k->name, k->value);
        printf("  %-42s %s", flag, k->help);
        if (k->preset && strcmp(k->preset, "-1") != 0 && strcmp(k->preset, "0") != 0)
            printf(" [%s]", k->preset);
        printf("\n");
    }
    for (int i = 0; i < N_EVICT_POLICIES && (command & LINE_CMDS); i++)
        printf("%s  %-16s %s\n", i == 0 ? "\nKV policies, and what goes first:\n" : "",
               evict_policy_name(i), evict_policy_goes(i));
    printf("\nSizes: 24G and 24GiB are binary, 24g and 24GB decimal, 2.3G, 512M; counts: 32K is "
           "32,768, 10k is\n10,000; durations: 90s, 15m, 3h50m. --config files hold `key = value` "
           "lines; the command line wins.\n");
}

enum err config_choose(const char *flag, const char *value, const char *const *names, int *out)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(value, names[i]) == 0) {
            *out = i;
            return OK;
        }
    char list[200] = "";
    for (int i = 0; names[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? "|" : "", names[i]);
    }
    return fail(ERR_USAGE, "--%s: '%s' is none of %s", flag, value, list);
}
