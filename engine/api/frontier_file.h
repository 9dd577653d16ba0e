/* engine/api/frontier_file.h - the quality cost of KV policies, budgets and formats for a model, as
 * measured by `bench frontier`: frontier-FINGERPRINT.csv in the cache folder.
 *
 * Owns: the file format. Refuses: measuring (bench/frontier.c) and judging the figures (variant.c).
 * Note: whole rows are appended and never changed, so a stopped benchmark continues from the file;
 * of equal rows the last one counts. */
#ifndef ENGINE_API_FRONTIER_FILE_H
#define ENGINE_API_FRONTIER_FILE_H

#include "kernels/base/base.h"
#include "policy/evict.h"

#define FRONTIER_KV 168

/* One policy, budget and format. */
struct frontier_row {
    /* Hash of what else the perplexity depends on: rows with equal conditions can be compared. */
    char conditions[17];
    char text[64]; // name of the text file
    int64_t prefix, window, windows;
    char kv[FRONTIER_KV]; // frontier_kv()
    char format[8];
    double ppl, more;         // perplexity; increase over full bf16 in percent
    double needle, no_needle; // log-probability of a pass key; of one not in the text. NAN: none
    char job[17];             // hash of the measured job; "": no job was measured
    double tokens_per_s;      // of that job; 0: none
};

/* The same text for all spellings of a share: 0.50 is "0.5"; fraction 1.0 is "1.0", count 1 "1". */
struct frontier_share {
    char text[32];
};
struct frontier_share frontier_share(double share, int is_fraction);
/* 1 if frontier_add() made the file: its name is frontier-HASH.csv and its first line matches. */
int frontier_is(const char *path, const char *name);
/* The file of the model with this fingerprint. */
enum err frontier_path(uint64_t fingerprint, char *path, int cap);
/* A policy and its parameters except defaults: "h2o=0.2", "streaming=512 sink=8". */
void frontier_kv(const struct evict *e, char kv[FRONTIER_KV]);
/* The last row with the kv and format of `like`, and with its conditions and job if these are not
 * "". Without conditions: the row with the most scored tokens. Skips invalid lines. 0: no such
 * row. */
int frontier_find(const char *path, const struct frontier_row *like, struct frontier_row *row);
/* Appends a row; creates the file if missing. ERR_IO. */
enum err frontier_add(const char *path, const struct frontier_row *row);

#endif
