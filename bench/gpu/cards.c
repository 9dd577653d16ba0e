/* bench/gpu/cards.c - published data of cards, and counts from machine code, for model.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/model.h"

#define GIB ((int64_t)1 << 30)

/* From datasheets of NVIDIA: "T4 Tensor Core GPU", "A10", "Ada GPU Architecture" whitepaper (RTX
 * 4090), "A100 Tensor Core GPU" (40 GB PCIe; 80 GB PCIe), "H100" (SXM5), "H200" (SXM). Boost
 * clocks. tensor_share: on sm_90 the share that mma.sync reaches compared with wgmma in published
 * micro-benchmarks; elsewhere the share left at the card's power limit (A10 150 W; T4, 70 W:
 * FlexGen's constants give 21.24e12 of f16 matmuls, its experimental/cost_model.py). latency_s,
 * near_s: published micro-benchmarks under load, rounded. h2d, d2h: published measurements from
 * pinned RAM over PCIe 3, 4 and 5 x16. queue_s: published measurements of cudaLaunchKernel. */
static const struct gpu_card cards[] = {
    {"t4", 75, 40, 1.59e9, 16 * GIB, 320e9, 0.6e-6, 0.25e-6, 65e12, 0.33, 8.1e12, 12.89e9, 12.89e9,
     2e-6, 2.5e-6},
    {"a10", 86, 72, 1.695e9, 24 * GIB, 600e9, 0.6e-6, 0.25e-6, 125e12, 0.76, 31.2e12, 24.8e9,
     24.8e9, 2e-6, 2.5e-6},
    {"rtx4090", 89, 128, 2.52e9, 24 * GIB, 1008e9, 0.6e-6, 0.25e-6, 165.2e12, 0.95, 82.6e12, 24.8e9,
     24.8e9, 2e-6, 2.5e-6},
    {"a100-40", 80, 108, 1.41e9, 40 * GIB, 1555e9, 0.6e-6, 0.25e-6, 312e12, 0.9, 19.5e12, 24.8e9,
     24.8e9, 2e-6, 2.5e-6},
    {"a100", 80, 108, 1.41e9, 80 * GIB, 1935e9, 0.6e-6, 0.25e-6, 312e12, 0.9, 19.5e12, 24.8e9,
     24.8e9, 2e-6, 2.5e-6},
    {"h100", 90, 132, 1.83e9, 80 * GIB, 3350e9, 0.75e-6, 0.25e-6, 989e12, 0.62, 67e12, 55e9, 55e9,
     2e-6, 2.5e-6},
    {"h200", 90, 132, 1.83e9, 141 * GIB, 4800e9, 0.75e-6, 0.25e-6, 989e12, 0.62, 67e12, 55e9, 55e9,
     2e-6, 2.5e-6},
};
#define N_CARDS (int)(sizeof cards / sizeof cards[0])

const struct gpu_card *gpu_card_at(int i)
{
    return i >= 0 && i < N_CARDS ? &cards[i] : NULL;
}

const struct gpu_card *gpu_card_by_name(const char *name)
{
    for (int i = 0; i < N_CARDS; i++)
        if (strcmp(cards[i].name, name) == 0)
            return &cards[i];
    return NULL;
}

/* Used until a table of `make sass` is read: instructions and loads of commit bddb59c, counted by
 * hand. Two lines of a kernel are two loops, which read the same number of bytes. On sm_75 a tile's
 * copies are single bytes: 32 is the need of the load units per mma of k = 8, in instructions.
 * Values of matmul_int8_mma_tile and matmul_q_tile are the first ones counted, for q4. */
static const struct gpu_fact counted[] = {
    {"matmul_mma_tile<16,32", 75, 58.0, 1100, 4, 64, ""},
    {"matmul_mma_tile<64,64", 75, 32.0, 4400, 1, 128, ""},
    {"matmul_mma_tile<128,128", 75, 32.0, 4400, 1, 256, ""},
    {"matmul_mma_tile<16,32", 80, 29.4, 114688, 4, 64, ""},
    {"matmul_mma_tile<64,64", 80, 12.4, 65536, 4, 128, ""},
    {"matmul_mma_tile<128,128", 80, 8.0, 32768, 2, 256, ""},
    {"matmul_q_tile<16,", 75, 13.3, 13824, 3, 128, ""},
    {"matmul_q_tile<64,", 75, 4.5, 6912, 3, 128, ""},
    {"matmul_q_tile<128,64,", 75, 4.5, 2304, 1, 128, ""},
    {"matmul_q_tile<128,128,", 75, 4.3, 4608, 1, 256, ""},
    {"matmul_q_tile<16,", 80, 23.3, 55296, 3, 128, ""},
    {"matmul_q_tile<64,", 80, 7.4, 27648, 3, 128, ""},
    {"matmul_q_tile<128,64,", 80, 7.0, 13824, 2, 128, ""},
    {"matmul_q_tile<128,128,", 80, 6.2, 13824, 1, 256, ""},
    {"matmul_int8_mma_tile<16,", 75, 7.4, 18432, 4, 128, ""},
    {"matmul_int8_mma_tile<32,", 75, 6.1, 13824, 3, 128, ""},
    {"matmul_int8_mma_tile<64,", 75, 4.9, 9216, 2, 128, ""},
    {"matmul_int8_mma_tile<128,", 75, 3.9, 9216, 2, 256, ""},
    {"matmul_int8_mma_tile<16,", 80, 26.9, 69120, 3, 128, ""},
    {"matmul_int8_mma_tile<32,", 80, 20.4, 46080, 2, 128, ""},
    {"matmul_int8_mma_tile<64,", 80, 16.1, 36864, 2, 128, ""},
    {"matmul_int8_mma_tile<128,", 80, 14.3, 18432, 2, 256, ""},
    {"forced_split<1>", 75, 0, 32768, 4, 256, ""}, // q . k: 8 loads of 4 bytes a thread
    {"forced_split<1>", 75, 0, 4096, 4, 256, ""},  // weight x v: 2 loads, of 4 of 8 warps
    {"forced_split<2>", 75, 0, 24576, 3, 256, ""},
    {"forced_split<2>", 75, 0, 3072, 3, 256, ""},
    {"forced_split<4>", 75, 0, 16384, 2, 256, ""},
    {"forced_split<4>", 75, 0, 2048, 2, 256, ""},
    {"forced_split<8>", 75, 0, 16384, 2, 256, ""},
    {"forced_split<8>", 75, 0, 2048, 2, 256, ""},
    {"prompt_rows<", 75, 0, 0, 2, 256, ""},
    {"norm_row", 75, 0, 0, 1, 16, ""}, // threads: those that sum up one row
    {"head_row", 75, 0, 0, 1, 16, ""},
};

static struct gpu_fact facts[GPU_FACTS_MAX];
static int n_facts;

/* 1 if `name` begins with `beginning`, ignoring blanks: "x<1, 2>" is "x<1,2>". */
static int name_begins(const char *name, const char *beginning)
{
    for (; *beginning; name++) {
        if (*name == ' ')
            continue;
        if (*name != *beginning)
            return 0;
        beginning++;
    }
    return 1;
}

/* A tile exists for bf16 and for f16, whose mma is half as long. sm_75 runs the f16 tile, with
 * fewer instructions per mma; other cards run the one with more. */
static double per_mma_of(double so_far, const struct gpu_fact *f)
{
    if (so_far == 0 || f->per_mma == 0)
        return so_far + f->per_mma;
    return (f->arch < 80) == (f->per_mma < so_far) ? f->per_mma : so_far;
}

/* The mean over a kernel's loops in a table; blocks_per_sm 0: not in the table. Loops read the same
 * number of bytes, so times add up, and bytes in flight are a harmonic mean. */
static struct gpu_fact mean_of(const struct gpu_fact *all, int n, const char *kernel,
                               const char *loop, int arch)
{
    struct gpu_fact mean = {.arch = arch};
    double turns = 0, loads = 0;
    snprintf(mean.kernel, sizeof mean.kernel, "%s", kernel);
    for (int i = 0; i < n; i++) {
        const struct gpu_fact *f = &all[i];
        if (f->arch != arch || !name_begins(f->kernel, kernel) ||
            (f->loop[0] && !strstr(f->loop, loop)))
            continue;
        mean.per_mma = per_mma_of(mean.per_mma, f);
        mean.blocks_per_sm = f->blocks_per_sm;
        mean.threads = f->threads;
        if (f->bytes_in_flight > 0) {
            turns += 1 / f->bytes_in_flight;
            loads++;
        }
    }
    mean.bytes_in_flight = loads > 0 ? loads / turns : 0;
    return mean;
}

struct gpu_fact gpu_fact_of(const struct gpu_card *card, const char *kernel, const char *loop)
{
    static const int archs[] = {90, 89, 86, 80, 75};
    const struct gpu_fact *tables[] = {facts, counted};
    const int n[] = {n_facts, (int)(sizeof counted / sizeof counted[0])};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 5; i++) {
            if (archs[i] > card->arch)
                continue;
            const struct gpu_fact f = mean_of(tables[t], n[t], kernel, loop, archs[i]);
            if (f.blocks_per_sm > 0)
                return f;
        }
    return (struct gpu_fact){.blocks_per_sm = 1, .threads = 256};
}

/* ---- the table of counts ---- */

/* Reads cell i of a CSV line, whose cells may be quoted. */
static void cell_of(const char *line, int i, char *to, size_t cap)
{
    size_t n = 0;
    int quoted = 0;
    for (; *line && *line != '\n' && i >= 0; line++) {
        if (*line == '"')
            quoted = !quoted;
        else if (*line == ',' && !quoted)
            i--;
        else if (i == 0 && n + 1 < cap)
            to[n++] = *line;
    }
    to[n] = 0;
}

/* The index of the column with that name; -1: none. */
static int column_of(const char *head, const char *name)
{
    char cell[64];
    for (int i = 0; i < 64; i++) {
        cell_of(head, i, cell, sizeof cell);
        if (strcmp(cell, name) == 0)
            return i;
    }
    return -1;
}

/* In the order of struct columns below. */
static const char *const names[] = {
    "kernel",  "arch", "instructions_per_mma", "bytes_in_flight_per_sm", "blocks_per_sm",
    "threads", "loop", "commit"};
#define N_NAMES (int)(sizeof names / sizeof names[0])

/* An empty cell is 0: a loop without mma, or without loads. */
static double number(const char *cell)
{
    return strtod(cell, NULL);
}

static struct gpu_fact fact_read(const char *line, const int columns[N_NAMES],
                                 char commit[256])
{
    struct gpu_fact f = {0};
    char cell[N_NAMES][256];
    for (int i = 0; i < N_NAMES; i++)
        cell_of(line, columns[i], cell[i], sizeof cell[i]);
    snprintf(f.kernel, sizeof f.kernel, "%.*s", GPU_KERNEL_NAME - 1, cell[0]);
    f.arch = (int)number(cell[1] + strcspn(cell[1], "0123456789")); // "sm_90" or "90"
    f.per_mma = number(cell[2]);
    f.bytes_in_flight = number(cell[3]);
    f.blocks_per_sm = (int)number(cell[4]);
    f.threads = (int)number(cell[5]);
    snprintf(f.loop, sizeof f.loop, "%.15s", cell[6]);
    if (strcmp(commit, cell[7]) != 0)
        n_facts = 0; // the following rows are newer
    memcpy(commit, cell[7], sizeof cell[7]);
    return f;
}

enum err gpu_facts_read(const char *path)
{
    char line[1024], commit[256] = "";
    int columns[N_NAMES];
    FILE *f = fopen(path, "r");
    if (!f)
        return fail(ERR_INPUT, "%s: %s", path, strerror(errno));
    n_facts = 0;
    line[0] = 0;
    enum err e = fgets(line, sizeof line, f) ? OK : fail(ERR_INPUT, "%s: is empty", path);
    for (int i = 0; i < N_NAMES && e == OK; i++) {
        columns[i] = column_of(line, names[i]);
        if (columns[i] < 0)
            e = fail(ERR_INPUT, "%s: line 1: column %s is missing", path, names[i]);
    }
    while (e == OK && fgets(line, sizeof line, f)) {
        const struct gpu_fact fact = fact_read(line, columns, commit);
        if (n_facts == GPU_FACTS_MAX)
            e = fail(ERR_INPUT, "%s: more than %d loops", path, GPU_FACTS_MAX);
        else
            facts[n_facts++] = fact;
    }
    fclose(f);
    return e;
}
