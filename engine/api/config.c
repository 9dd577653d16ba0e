/* engine/api/config.c - see config.h. To add a knob: a field in struct config and one row here,
 * below its heading in --help. */
#include "engine/api/config_impl.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/installed.h"

#define SIZE_LEAST (1 << 20) // a plain number below this is rarely meant as bytes
#define TEXT_BENCH (CMD_BENCH_FRONTIER | CMD_BENCH_ATTENTION)
#define TEXT_CMDS  (CMD_SCORE | TEXT_BENCH)
/* Benchmarks that run rows through the engine. */
#define BENCH_JOBS (CMD_BENCH_THROUGHPUT | TEXT_BENCH)
#define LINE_CMDS  (CMD_RUN | CMD_GEN | CMD_SCORE | CMD_PLAN | BENCH_JOBS)
#define MADE_CMDS  (CMD_PLAN | CMD_BENCH_THROUGHPUT | CMD_BENCH_FRONTIER)
#define AT(field)  offsetof(struct config, field)
#define HEADING(text)                                                                              \
    {                                                                                              \
        "", 0, KNOB_HEADING, 0, 0, NULL, "", text                                                  \
    }

/* `bench` comes before its subcommands and has the flags of all of them. */
const struct config_command_row config_commands[] = {
    {"run", CMD_RUN, 0, "-m MODEL -i IN.jsonl -o OUT.jsonl", "generate for every row of IN",
     "model input output mem-ram max-tokens"},
    {"gen", CMD_GEN, 0, "-m MODEL -p TEXT", "generate for one prompt; the text goes to stdout",
     "model prompt chat max-tokens mem-ram"},
    {"score", CMD_SCORE, 0, "-m MODEL (-i IN.jsonl -o OUT.jsonl | --text FILE)",
     "log-probabilities of continuations, or the perplexity of a text",
     "model input output text kv-policy"},
    {"plan", CMD_PLAN, 0, "-m MODEL (-i IN.jsonl | --prompt-len N --gen-len N --num-prompts N)",
     "predict what run would do on this machine, on --machine FILE, or on several --machines",
     "model input num-prompts mem-ram machine"},
    {"probe", CMD_PROBE, 0, "[--offload-dir DIR] [-o machine.cfg]",
     "measure how fast this machine computes, reads and writes",
     "output offload-dir device full reset"},
    {"pack", CMD_PACK, 1, "MODEL -o FILE", "convert a model to a pack, the file that runs read",
     "output weights"},
    {"bench", CMD_BENCH, 2, "throughput|ops|io|copies|frontier|attention [FLAGS]",
     "benchmarks; sluice help bench NAME lists the flags of one", ""},
    {"bench throughput", CMD_BENCH_THROUGHPUT, 1, "-m MODEL --num-prompts N --prompt-len N",
     "run made-up rows and report tokens/s", "model num-prompts prompt-len gen-len mem-ram"},
    {"bench ops", CMD_BENCH_OPS, 2, "[OP] [-m MODEL]",
     "time each kernel (OP: one of them), beside what the machine's rates allow",
     "model device threads compute runs"},
    {"bench io", CMD_BENCH_IO, 1, "[--offload-dir DIR]",
     "read and write speed of a disk by block size and number of requests in flight",
     "offload-dir io runs"},
    {"bench copies", CMD_BENCH_COPIES, 1, "[--device cuda]",
     "speed of copies to and from a GPU by size and number in flight", "device runs"},
    {"bench frontier", CMD_BENCH_FRONTIER, 1, "-m MODEL --text FILE",
     "quality lost and speed gained by each KV policy, budget and format",
     "model text policies budgets kv-formats"},
    {"bench attention", CMD_BENCH_ATTENTION, 1, "-m MODEL --text FILE",
     "how sparse the attention of each layer and head is, and which KV policies keep alike tokens",
     "model text policies kv-budget limit"},
    {"inspect", CMD_INSPECT, 1, "MODEL", "show the shape and the tensors of a model",
     "weights json"},
    {"status", CMD_STATUS, 1, "OUT.jsonl",
     "show how far a job is; reads its files only, so use it from any shell", "json"},
    {"merge", CMD_MERGE, CONFIG_ARGS_MAX, "-o OUT.jsonl PART.jsonl...",
     "join the OUTs of all shards (--shard i/N) of one job", "output missing overwrite"},
    {"cache", CMD_CACHE, CONFIG_ARGS_MAX, "list | rm NAME... | prune --max SIZE",
     "list or remove the packs and measurements that sluice keeps", "max json"},
    {"tokenize", CMD_TOKENIZE, 0, "-m MODEL < rows", "text to token ids and back", "model decode"},
};
const int config_n_commands = (int)(sizeof config_commands / sizeof config_commands[0]);

/* Range of each number that a row may also set (engine/job/request_fields.c). */
static const struct {
    const char *name;
    double min, max;
} ranges[] = {{"temperature", 0, 100},
              {"top-p", 1e-9, 1},
              {"min-p", 0, 1},
              {"repetition-penalty", 0.01, 100}};

const struct knob config_knobs[] = {
    HEADING("Model, input and output"),
    {"model", 'm', KNOB_FILE, AT(model), LINE_CMDS | CMD_BENCH_OPS | CMD_TOKENIZE, NULL, "MODEL",
     "Hugging Face folder, .gguf file, pack, or a model config: configs/NAME.cfg"},
    {"input", 'i', KNOB_FILE, AT(in), CMD_RUN | CMD_SCORE | CMD_PLAN, NULL, "FILE",
     "rows to compute, one JSON object a line; - is stdin (a job keeps the rows as OUT.input, so "
     "that it can resume)"},
    {"output", 'o', KNOB_OUTPUT, AT(out),
     CMD_RUN | CMD_SCORE | CMD_PLAN | CMD_PROBE | CMD_PACK | CMD_BENCH | CMD_MERGE, NULL, "FILE",
     "where the result is written; - is stdout (run, score: when the job ends; not of pack and "
     "merge)"},
    {"work-dir", 0, KNOB_STRING, AT(work_dir), CMD_RUN | CMD_SCORE, NULL, "DIR",
     "folder of the job's files: any number of machines that see it may run the same command and "
     "share its rows. With -o -: keeps the job so that it can resume (default: a new folder, "
     "removed at the end)"},
    {"prompt", 'p', KNOB_STRING, AT(prompt), CMD_GEN, NULL, "TEXT", "the prompt; - is stdin"},
    {"file", 'f', KNOB_FILE, AT(prompt_file), CMD_GEN, NULL, "FILE",
     "read the prompt from this file; - is stdin"},
    {"chat", 0, KNOB_SWITCH, AT(chat), CMD_GEN, NULL, "",
     "format the prompt with the model's chat template, as a user message"},
    {"text", 0, KNOB_FILE, AT(text), TEXT_CMDS, NULL, "FILE",
     "text file that is cut into windows and scored"},
    {"prefix", 0, KNOB_COUNT, AT(prefix), TEXT_CMDS, "512", "TOKENS",
     "first tokens of each window of --text: the prompt, which is not scored"},
    {"window", 0, KNOB_COUNT, AT(window), TEXT_CMDS, "1024", "TOKENS",
     "tokens of each window of --text, --prefix included"},
    {"decode", 0, KNOB_SWITCH, AT(decode), CMD_TOKENIZE, NULL, "",
     "the other direction: rows {\"ids\"} to {\"text\"}"},

    HEADING("Memory and disk"),
    {"mem-device", 0, KNOB_SIZE, AT(mem_device), LINE_CMDS | CMD_BENCH_OPS, "-1", "SIZE",
     "most memory to use on a GPU (default: what is free, less a margin)"},
    {"mem-ram", 0, KNOB_SIZE, AT(mem_ram), LINE_CMDS, "-1", "SIZE",
     "most RAM to use (default: what is free, less a margin)"},
    {"mem-disk", 0, KNOB_SIZE, AT(mem_disk), LINE_CMDS, "-1", "SIZE",
     "most disk space that the run itself may write, not counting packs; 0: none"},
    {"offload-dir", 0, KNOB_STRING, AT(offload_dir), LINE_CMDS | CMD_PROBE | CMD_BENCH_IO, NULL,
     "DIR[,DIR]",
     "folder for the KV cache and hidden states that do not fit in RAM (default: beside "
     "the pack; bench io: here); several, on different drives, are used as one, and streamed "
     "weights are copied there before the first pass"},

    HEADING("Compute"),
    {"device", 0, KNOB_STRING, AT(device), LINE_CMDS | CMD_PROBE | CMD_BENCH_OPS | CMD_BENCH_COPIES,
     "auto", "auto|cpu|cuda[:i]",
     "where to compute: cuda:1 is the second GPU (bench ops: auto is the CPU)"},
    {"devices", 0, KNOB_STRING, AT(devices), CMD_RUN | CMD_SCORE, NULL, "all|0,2",
     "GPUs of this machine that share the rows, a process each, through --work-dir (default: "
     "OUT.work). --mem-ram, --mem-disk and --threads are for all of them together; weights in RAM "
     "are there once"},
    {"threads", 't', KNOB_COUNT, AT(threads), LINE_CMDS | CMD_PROBE | CMD_BENCH_OPS, "0", "N",
     "compute threads (0: one per usable core)"},
    {"compute", 0, KNOB_STRING, AT(compute), LINE_CMDS | CMD_BENCH_OPS, "bf16", "bf16|f32|int8",
     "number format of matmul inputs; int8 acts on q8 and q4 weights, and is bf16 on others"},
    {"matmul", 0, KNOB_CHOICE, AT(matmul), LINE_CMDS, "own", "own|cublaslt",
     "matmul library on CUDA (bf16 only); changes output bytes"},
    {"isa", 0, KNOB_STRING, AT(isa), LINE_CMDS | CMD_PROBE | CMD_BENCH_OPS, "auto",
     "auto|amx|avx512|avx512f|avx2|portable",
     "CPU instruction set; changes output bytes under bf16"},
    {"weights", 0, KNOB_STRING, AT(weights), LINE_CMDS | CMD_PACK | CMD_INSPECT | CMD_TOKENIZE,
     "auto", "auto|f32|f16|bf16|bf12|q8|q4",
     "weight format of the pack (auto: as in the model's file; bf16 is stored as bf12, the same "
     "numbers in 12 bits, where that is smaller)"},

    HEADING("Placement (chosen by the planner where no flag is given)"),
    {"batch", 0, KNOB_COUNT, AT(batch), LINE_CMDS, "0", "N", "rows of one batch (0: auto)"},
    {"batches", 0, KNOB_COUNT, AT(batches), LINE_CMDS, "0", "N",
     "batches that share one read of the weights (0: auto)"},
    {"weights-resident", 0, KNOB_STRING, AT(resident), LINE_CMDS, "auto", "N|PCT%",
     "layers whose weights stay in RAM; the others are read from disk in every pass"},
    {"weights-decoded", 0, KNOB_COUNT, AT(decoded), LINE_CMDS, "-1", "N",
     "layers in RAM that are kept ready for matmuls: faster, but larger (-1: auto)"},
    {"weights-codec", 0, KNOB_CHOICE, AT(weights_codec), LINE_CMDS, "auto", "auto|none|zstd",
     "compression of weights that are read from disk; zstd writes PACK.zst once; same answers"},
    {"percent", 0, KNOB_SIX, AT(percent), LINE_CMDS, NULL, "wD wR kD kR hD hR",
     "FlexGen's six numbers: percent of weights, KV cache and hidden states on the device and in "
     "RAM, the rest on disk; without a GPU the two shares add up"},
    {"ahead-weights", 0, KNOB_COUNT, AT(ahead_weights), LINE_CMDS, "-1", "STEPS",
     "how many steps of streamed layers ahead weights are read, less than one pass (-1: auto)"},
    {"ahead-state", 0, KNOB_COUNT, AT(ahead_state), LINE_CMDS, "-1", "STEPS",
     "how many steps ahead the KV cache and hidden states are read (-1: auto)"},
    {"prefill-tokens", 0, KNOB_COUNT, AT(prefill_tokens), LINE_CMDS, "0", "N",
     "most prompt tokens, and scored tokens, in one pass (0: auto)"},
    {"attn", 0, KNOB_CHOICE, AT(attn), LINE_CMDS, "auto", "auto|cpu|device",
     "where attention runs (device: on the GPU; cpu: on the CPU, but of prompts on the GPU; auto: "
     "on a GPU if one is used)"},
    {"io", 0, KNOB_CHOICE, AT(io), LINE_CMDS | CMD_PROBE | CMD_BENCH_IO, "auto",
     "auto|uring|threads", "how files are read: through io_uring or by threads"},
    {"share-prefixes", 0, KNOB_CHOICE, AT(share_prefixes), LINE_CMDS, "on", "on|off",
     "compute a common beginning of prompts in a batch once; same bytes"},
    {"replan", 0, KNOB_CHOICE, AT(replan), LINE_CMDS, "on", "on|off",
     "change the plan during the run if RAM runs short or rows end before max_tokens; same "
     "bytes"},
    {"plan", 0, KNOB_FILE, AT(plan), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "take the placement from a file of sluice plan -o; flags win over the file"},
    {"machine", 0, KNOB_FILE, AT(machine), CMD_PLAN | CMD_RUN | CMD_SCORE | BENCH_JOBS, NULL,
     "FILE",
     "rates of a machine, and its memory where no flag says otherwise, from a file of "
     "sluice probe -o or configs/machine-*.cfg (default: this machine, measured)"},
    {"machines", 0, KNOB_STRING, AT(machines), CMD_PLAN, NULL, "FILE[*N],...",
     "predict the job on several machines, FILE*N being N like FILE: sharing the rows (--work-dir) "
     "and as a pipeline, and which is faster. A box of 4 GPUs is box.cfg*4 whose file has a "
     "quarter of its RAM and of its disk's rate, and p2p for the link between the GPUs"},

    HEADING("KV cache (full keeps everything; the other policies change the answers)"),
    {"kv-policy", 0, KNOB_STRING, AT(kv_policy), LINE_CMDS & ~TEXT_BENCH, "full", "NAME",
     "which KV cache entries are evicted when a row exceeds its budget; names below"},
    {"kv-budget", 0, KNOB_STRING, AT(kv_budget), LINE_CMDS & ~CMD_BENCH_FRONTIER, "0.2",
     "N|FRACTION",
     "KV cache entries per layer and KV head: a number, or a fraction of prompt + "
     "max_tokens"},
    {"kv-budget-of", 0, KNOB_CHOICE, AT(kv_budget_of), LINE_CMDS, "total", "total|prompt",
     "what a fraction in --kv-budget is a fraction of: prompt + max_tokens, or the prompt"},
    {"kv-budget-layers", 0, KNOB_FILE, AT(kv_budget_layers), LINE_CMDS, "even",
     "even|pyramid[:BETA]|FILE",
     "how the layers share the budget; FILE has one number a layer, or "
     "is what bench attention --csv wrote"},
    {"kv-recent", 0, KNOB_STRING, AT(kv_recent), LINE_CMDS, NULL, "N|FRACTION",
     "newest tokens that are never evicted (default: by policy)"},
    {"kv-sink", 0, KNOB_COUNT, AT(kv_sink), LINE_CMDS, "-1", "N",
     "first tokens that are never evicted (-1: by policy)"},
    {"kv-scope", 0, KNOB_CHOICE, AT(kv_scope), LINE_CMDS, NULL, "head|layer",
     "evict per KV head, or the same tokens in all heads of a layer (default: by policy)"},
    {"kv-positions", 0, KNOB_CHOICE, AT(kv_positions), LINE_CMDS, "true", "true|slot",
     "RoPE positions: true = original position, slot = rank in the cache (allows rows longer than "
     "the model's context)"},
    {"kv-format", 0, KNOB_STRING, AT(kv_format), LINE_CMDS & ~CMD_BENCH_FRONTIER, "bf16",
     "f32|bf16|q8|q4|mixed",
     "number format of the KV cache (mixed: the newest tokens in q8, older ones in q4)"},
    {"kv-simulate", 0, KNOB_SWITCH, AT(kv_simulate), CMD_RUN | CMD_SCORE, NULL, "",
     "keep all KV and mask what the policy would have evicted: quality without the saving"},
    {"kv-dump", 0, KNOB_OUTPUT, AT(kv_dump), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "write kept positions and evicted tokens as JSON lines"},
    {"kv-trace", 0, KNOB_OUTPUT, AT(kv_trace), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "write what each head keeps and evicts, token by token, as text to read"},

    HEADING("Sampling (the fields of a row win over these)"),
    {"max-tokens", 'n', KNOB_COUNT, AT(max_tokens), CMD_RUN | CMD_GEN, "0", "N",
     "most tokens to generate for a row (default 512; 16 for rows of /v1/completions; gen: 64)"},
    {"temperature", 0, KNOB_NUMBER, AT(temperature), CMD_RUN | CMD_GEN, "-1", "X",
     "randomness; 0 takes the likeliest token (default 1; gen: 0)"},
    {"top-p", 0, KNOB_NUMBER, AT(top_p), CMD_RUN | CMD_GEN, "1", "X",
     "sample from the likeliest tokens that sum to this probability, at most 1,024"},
    {"top-k", 0, KNOB_COUNT, AT(top_k), CMD_RUN | CMD_GEN, "0", "N",
     "sample from the N likeliest tokens, at most 1,024 (0: off)"},
    {"min-p", 0, KNOB_NUMBER, AT(min_p), CMD_RUN | CMD_GEN, "0", "X",
     "drop tokens less likely than X times the likeliest; acts on 1,024 tokens (0: off)"},
    {"repetition-penalty", 0, KNOB_NUMBER, AT(repetition_penalty), CMD_RUN | CMD_GEN, "1", "X",
     "make tokens that already occurred less likely (1: off)"},
    {"seed", 0, KNOB_COUNT, AT(seed), CMD_RUN | CMD_GEN | (MADE_CMDS & ~CMD_PLAN), "-1", "N",
     "seed of rows that have none; of the made-up rows of bench"},
    {"stop", 0, KNOB_STOPS, AT(stops), CMD_RUN | CMD_GEN, NULL, "TEXT",
     "stop a row where it generates this text; may be given up to 16 times"},
    {"ignore-eos", 0, KNOB_SWITCH, AT(ignore_eos), CMD_RUN | CMD_GEN | CMD_PLAN, NULL, "",
     "generate max_tokens tokens, also behind the end-of-text token"},

    HEADING("The job"),
    {"order", 0, KNOB_CHOICE, AT(order), CMD_RUN | CMD_SCORE, "input", "input|completion",
     "order of the rows in OUT"},
    {"limit", 0, KNOB_COUNT, AT(limit), CMD_RUN | CMD_SCORE | CMD_PLAN | TEXT_BENCH, "0", "N",
     "take the first N rows (or windows) only; a later command may raise N of the same job"},
    {"retry-errors", 0, KNOB_SWITCH, AT(retry_errors), CMD_RUN | CMD_SCORE, NULL, "",
     "run failed rows of this job again, also with more --ignore-fields"},
    {"max-errors", 0, KNOB_COUNT, AT(max_errors), CMD_RUN | CMD_SCORE, "-1", "N",
     "stop when more than N rows have failed"},
    {"ignore-fields", 0, KNOB_STRING, AT(ignore_fields), CMD_RUN | CMD_SCORE | CMD_PLAN, NULL,
     "A,B,C",
     "answer rows without these fields (tools, response_format, image_url, ...), which sluice "
     "cannot honour"},
    {"overwrite", 0, KNOB_SWITCH, AT(overwrite),
     CMD_RUN | CMD_SCORE | CMD_PLAN | CMD_PROBE | CMD_PACK | CMD_BENCH | CMD_MERGE, NULL, "",
     "replace the OUT of another job, and files that sluice did not write"},
    {"shard", 0, KNOB_STRING, AT(shard), CMD_RUN | CMD_SCORE, NULL, "i/N",
     "this process takes rows i, i+N, i+2N, ... (i counts from 0); auto takes i and N, and auto/N "
     "takes i, from the launcher (Slurm, Kubernetes, MPI, SkyPilot, torchrun)"},
    {"pipeline", 0, KNOB_SWITCH, AT(pipeline), CMD_RUN | CMD_SCORE, NULL, "",
     "cut the model's layers over the ranks that mpirun or srun started, so that each holds a part "
     "of the model; all need the same files"},
    {"missing", 0, KNOB_SWITCH, AT(missing), CMD_MERGE, NULL, "",
     "print the shards that are not complete, as 3,7-9 (for sbatch --array), and join nothing"},
    {"time-limit", 0, KNOB_DURATION, AT(time_limit_s), LINE_CMDS, "0", "D",
     "stop after this time, resumable (90s, 15m, 3h50m; a plain number is seconds)"},
    {"dry-run", 0, KNOB_SWITCH, AT(dry_run), CMD_RUN | CMD_SCORE, NULL, "",
     "check every row and print the plan, then stop; exit code 3 if rows are bad"},

    HEADING("Planning"),
    {"prompt-len", 0, KNOB_COUNT, AT(prompt_len), MADE_CMDS, "0", "TOKENS",
     "prompt length of made-up rows"},
    {"gen-len", 0, KNOB_COUNT, AT(gen_len), MADE_CMDS, "32", "TOKENS",
     "tokens to generate for each made-up row"},
    {"num-prompts", 0, KNOB_COUNT, AT(num_prompts), MADE_CMDS, "64", "N", "how many made-up rows"},
    {"no-advice", 0, KNOB_SWITCH, AT(no_advice), CMD_PLAN, NULL, "",
     "leave out other plans and what would make the job faster: three times as quick"},

    HEADING("Measuring"),
    {"compare", 0, KNOB_STRING, AT(compare), CMD_BENCH_THROUGHPUT, NULL, "'FLAGS;FLAGS'",
     "run the job with each of these sets of flags and with the automatic plan: one table of "
     "predicted and measured tokens/s"},
    {"policies", 0, KNOB_STRING, AT(policies), CMD_BENCH_OPS | TEXT_BENCH, NULL, "all|A,B,C",
     "KV policies to measure (default: all; bench ops: h2o)"},
    {"budgets", 0, KNOB_STRING, AT(budgets), CMD_BENCH_FRONTIER, "0.1,0.2,0.4", "A,B,C",
     "KV budgets to measure, each as --kv-budget takes it"},
    {"kv-formats", 0, KNOB_STRING, AT(kv_formats), CMD_BENCH_FRONTIER, "bf16", "A,B,C",
     "KV formats to measure"},
    {"needles", 0, KNOB_COUNT, AT(needles), CMD_BENCH_FRONTIER, "2", "N",
     "pass keys hidden at each of five depths of a window, to see which are found (0: none)"},
    {"measure", 0, KNOB_SWITCH, AT(measure), CMD_BENCH_FRONTIER, NULL, "",
     "run the job to get its tokens/s instead of predicting them"},
    {"runs", 0, KNOB_COUNT, AT(runs), CMD_BENCH_OPS | CMD_BENCH_IO | CMD_BENCH_COPIES, "3", "N",
     "repetitions; the median is printed"},
    {"full", 0, KNOB_SWITCH, AT(full), CMD_PROBE, NULL, "",
     "measure for minutes instead of seconds"},
    {"reset", 0, KNOB_SWITCH, AT(reset), CMD_PROBE, NULL, "",
     "measure nothing; forget what was probed and how long earlier runs took (packs stay)"},

    {"max", 0, KNOB_SIZE, AT(cache_max), CMD_CACHE, "-1", "SIZE",
     "cache prune: the size that may stay; what was not used for longest goes first"},

    HEADING("Reports and messages"),
    {"json", 0, KNOB_SWITCH, AT(json),
     CMD_PLAN | CMD_BENCH | CMD_INSPECT | CMD_PROBE | CMD_STATUS | CMD_CACHE, NULL, "",
     "print one JSON object to stdout"},
    {"csv", 0, KNOB_SWITCH, AT(csv), CMD_BENCH, NULL, "", "print CSV to stdout"},
    {"progress", 0, KNOB_CHOICE, AT(progress), CMD_RUN | CMD_SCORE | CMD_PACK | BENCH_JOBS, "auto",
     "auto|bar|lines|none", "how progress is shown on stderr"},
    {"summary", 0, KNOB_OUTPUT, AT(summary), CMD_RUN | CMD_SCORE | CMD_BENCH_THROUGHPUT, NULL,
     "FILE", "write what was planned and measured, as JSON"},
    {"trace", 0, KNOB_OUTPUT, AT(trace), CMD_RUN | CMD_SCORE, NULL, "FILE",
     "write a timeline of reads, writes and compute that Chrome (chrome://tracing) shows"},
    {"config", 0, KNOB_FILE, AT(config), ~0, NULL, "FILE",
     "read flags from a file of `key = value` lines; the command line wins"},
    {"verbose", 'v', KNOB_SWITCH, AT(verbose), ~0, NULL, "", "print more to stderr"},
    {"quiet", 'q', KNOB_SWITCH, AT(quiet), ~0, NULL, "", "print errors only to stderr"},
    {"help", 'h', KNOB_SWITCH, AT(help), ~0, NULL, "", "print this list"},
};
#define N_KNOBS (int)(sizeof config_knobs / sizeof config_knobs[0])
const int config_n_knobs = N_KNOBS;

static enum err knob_set(struct config *c, const struct knob *k, const char *value)
{
    void *field = (char *)c + k->offset;
    switch (k->kind) {
    case KNOB_HEADING:
        break;
    case KNOB_CHOICE:
        return config_choose(k->name, value, k->value, field);
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

/* Refuses numbers below 0 (or -1, if that means `auto`) and outside the range of a row's field. */
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

enum err knob_give(struct config *c, const struct knob *k, const char *value)
{
    TRY(knob_set(c, k, k->kind == KNOB_FILE ? installed_path(value) : value));
    TRY(check_range(c, k, value));
    c->given[k - config_knobs] = 1;
    return OK;
}

static const struct knob *knob_named(const char *name)
{
    int i = 0;
    while (i < N_KNOBS && strcmp(config_knobs[i].name, name) != 0)
        i++;
    CHECK(i < N_KNOBS);
    return &config_knobs[i];
}

int config_given(const struct config *c, const char *name)
{
    return c->given[knob_named(name) - config_knobs];
}

void config_text(const struct config *c, const char *name, char *buf, int cap)
{
    const struct knob *k = knob_named(name);
    const void *field = (const char *)c + k->offset;
    if (k->kind == KNOB_SIZE || k->kind == KNOB_COUNT) {
        snprintf(buf, (size_t)cap, "%lld", (long long)*(const int64_t *)field);
        return;
    }
    if (k->kind == KNOB_CHOICE) {
        const char *word = k->value;
        for (int i = 0; i < *(const int *)field; i++)
            word = strchr(word, '|') + 1;
        snprintf(buf, (size_t)cap, "%.*s", (int)strcspn(word, "|"), word);
        return;
    }
    CHECK(k->kind == KNOB_STRING || k->kind == KNOB_FILE || k->kind == KNOB_SIX);
    const char *text = *(const char *const *)field;
    snprintf(buf, (size_t)cap, "%s", text ? text : "");
}

int config_paths(const struct config *c, struct config_path *paths, int cap)
{
    int n = 0;
    for (int i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &config_knobs[i];
        if (k->kind != KNOB_FILE && k->kind != KNOB_OUTPUT)
            continue; // the field is not a pointer
        const char *path = *(const char *const *)(const void *)((const char *)c + k->offset);
        if (!path)
            continue;
        CHECK(n < cap);
        paths[n++] = (struct config_path){k->name, path, k->kind == KNOB_OUTPUT};
    }
    return n;
}

const struct knob *knob_find(const char *name, size_t n, int commands)
{
    for (int i = 0; i < N_KNOBS; i++)
        if (strlen(config_knobs[i].name) == n && memcmp(config_knobs[i].name, name, n) == 0 &&
            (config_knobs[i].commands & commands))
            return &config_knobs[i];
    return NULL;
}

const struct config_command_row *config_command_by_id(enum config_command id)
{
    int i = 0;
    while (i < config_n_commands && config_commands[i].id != id)
        i++;
    CHECK(i < config_n_commands);
    return &config_commands[i];
}

const struct config_command_row *config_command_find(int argc, char **argv)
{
    char pair[64];
    const char *names[] = {pair, argc > 0 ? argv[0] : ""};
    snprintf(pair, sizeof pair, "%s %s", names[1], argc > 1 ? argv[1] : "");
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < config_n_commands; i++)
            if (strcmp(names[k], config_commands[i].name) == 0)
                return &config_commands[i];
    return NULL;
}

enum err config_defaults(struct config *c)
{
    static const atomic_int never;
    c->interrupted = &never;
    c->kv_scope = CONFIG_AUTO;
    _Static_assert(N_KNOBS <= CONFIG_KNOBS_MAX, "config.given has room for every knob");
    for (int i = 0; i < N_KNOBS; i++)
        if (config_knobs[i].preset)
            TRY(knob_set(c, &config_knobs[i], config_knobs[i].preset));
    return OK;
}
