/* bench/gpu/table.c - the program gpu_model: what jobs are expected to take on cards, as CSV, and
 * the rates of a card for a machine file. Every number that it prints is modelled, none measured.
 *
 *   gpu_model [--sass FILE] [--commit WORD]         the table
 *   gpu_model [--sass FILE] --machine CARD          keys of configs/machine-*.cfg */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/step.h"
#include "engine/model/dummy.h"

#define GIB ((int64_t)1 << 30)

/* Published: H2O (Zhang et al. 2023): OPT-6.7B with 2,048 + 2,048 tokens on an A100. */
#define H2O_JOB(card_name, kv, share, tokens_per_s, rows)                                          \
    {                                                                                              \
        "OPT-6.7B 2048+2048", "opt-6.7b-4k", card_name, kv, share, tokens_per_s, DTYPE_BF16, rows, \
            1, 2048, 2048, 0                                                                       \
    }
#define PUBLISHED(card_name)                                                                       \
    H2O_JOB(card_name, "full", 1, 494, 24), H2O_JOB(card_name, "h2o", 0.2, 919, 24),               \
        H2O_JOB(card_name, "h2o", 0.2, 1161, 64)
#define STREAMED(card_name)                                                                        \
    {                                                                                              \
        "OPT-30B in 16 GB", "opt-30b", card_name, "full", 1, 0, DTYPE_BF16, 144, 3, 512, 32,       \
            12 * GIB                                                                               \
    }

static const struct card_job jobs[] = {
    STREAMED("t4"),
    STREAMED("a10"),
    STREAMED("rtx4090"),
    STREAMED("h100"),
    PUBLISHED("a100"),
    PUBLISHED("h100"),
    {"Llama-3-70B in q4", "llama-3-70b", "h100", "full", 1, 0, DTYPE_Q4, 16, 1, 512, 128, 0},
    {"Llama-3-70B in q4", "llama-3-70b", "h100", "full", 1, 0, DTYPE_Q4, 128, 1, 512, 128, 0},
    {"Qwen3-30B-A3B in q4", "qwen3-30b-a3b", "rtx4090", "full", 1, 0, DTYPE_Q4, 32, 1, 512, 128, 0},
    {"Qwen3-30B-A3B", "qwen3-30b-a3b", "h100", "full", 1, 0, DTYPE_BF16, 64, 1, 512, 128, 0},
};

static const char *const spent_names[N_SPENT] = {"weights",        "decode", "attention",
                                                 "norms and rows", "head",   "small copies"};

static const char *bound_of(const struct modelled *s)
{
    int most = 0;
    for (int i = 1; i < N_SPENT; i++)
        most = s->s[i] > s->s[most] ? i : most;
    return s->link_s > step_card_s(s) ? "link" : spent_names[most];
}

static enum err row_print(const struct card_job *job)
{
    struct pack_provider model;
    struct modelled step;
    char path[256];
    snprintf(path, sizeof path, "configs/%s.cfg", job->config);
    const struct gpu_card *card = gpu_card_by_name(job->card);
    TRY(dummy_open(&model, path));
    step_price(&step, job, &model.shape, card);
    dummy_close(&model);
    const double job_s = step.prompt_s + (job->new - 1) * step_s(&step);
    printf("%s,%s,%s,%s,%d,%d,%d,%d,%s,%g", job->name, job->config, job->card,
           dtype_info(job->stored)->name, job->rows, job->batches, job->prompt, job->new, job->kv,
           job->kv_share);
    for (int i = 0; i < N_SPENT; i++)
        printf(",%.6f", step.s[i]);
    printf(",%.6f,%.6f,%s,%d,%.1f,%.3f,%.1f", step.link_s, step_s(&step), bound_of(&step),
           step.commands, job->rows / step_s(&step), step.prompt_s,
           (double)job->rows * job->new / job_s);
    if (job->published > 0)
        printf(",%g\n", job->published);
    else
        printf(",\n");
    return OK;
}

static enum err table_print(const char *command, const char *commit)
{
    printf("# table: gpu-model\n# command: %s\n# commit: %s\n", command, commit);
    printf("# note: modelled from published rates and counted instructions, nothing measured\n");
    printf("job,model,card,weights,rows,batches,prompt,new,kv,kv_share,matmul_s,decode_weights_s,"
           "attention_s,rows_s,head_s,small_copies_s,link_s,step_s,bound,commands,"
           "step_tokens_per_s,prompt_s,tokens_per_s,published_a100_tokens_per_s\n");
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        TRY(row_print(&jobs[i]));
    return OK;
}

/* Prints lines of a machine file. The shape: 7,168 wide, 56 heads of 128 numbers, no GQA. */
static enum err machine_print(const char *name)
{
    struct pack_provider model;
    struct machine m;
    const struct gpu_card *c = gpu_card_by_name(name);
    if (!c)
        return fail(ERR_USAGE,
                    "--machine: no card '%s' (t4, a10, rtx4090, a100-40, a100, h100, "
                    "h200)",
                    name);
    TRY(dummy_open(&model, "configs/opt-30b.cfg"));
    step_rates(&m, &model.shape, c);
    dummy_close(&model);
    for (int i = 0; i < N_MACHINE_RATES; i++)
        if (m.rates[i].value > 0)
            printf("%s = %.4g # %s\n", machine_rates[i].key, m.rates[i].value,
                   machine_rates[i].unit);
    return OK;
}

int main(int argc, char **argv)
{
    const char *machine = NULL, *commit = "unknown";
    char command[512] = "gpu_model";
    enum err e = OK;
    for (int i = 1; i < argc && e == OK; i += 2) {
        if (i + 1 == argc)
            e = fail(ERR_USAGE, "%s: needs a value", argv[i]);
        else if (strcmp(argv[i], "--sass") == 0)
            e = gpu_facts_read(argv[i + 1]);
        else if (strcmp(argv[i], "--machine") == 0)
            machine = argv[i + 1];
        else if (strcmp(argv[i], "--commit") == 0)
            commit = argv[i + 1];
        else
            e = fail(ERR_USAGE, "%s: unknown flag (--sass, --machine, --commit)", argv[i]);
        if (e == OK && strcmp(argv[i], "--commit") != 0)
            snprintf(command + strlen(command), sizeof command - strlen(command), " %s %s", argv[i],
                     argv[i + 1]);
    }
    if (e == OK)
        e = machine ? machine_print(machine) : table_print(command, commit);
    if (e != OK)
        fprintf(stderr, "sluice: error: gpu_model: %s\n", err_text());
    return (int)e; // same exit codes as the program: below 100
}
