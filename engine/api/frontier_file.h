/* engine/api/frontier_file.h - what KV policies, budgets and formats cost a model, as `bench
 * frontier` measured it: frontier-FINGERPRINT.csv in the cache folder.
 *
 * Owns: the file's form. Refuses: measuring (bench/frontier.c), and judging the figures
 * (variant.c). Note: rows are only ever added, whole, so that a benchmark that is
 * stopped goes on from what is there; the last of rows that say the same is the one that counts. */
#ifndef ENGINE_API_FRONTIER_FILE_H
#define ENGINE_API_FRONTIER_FILE_H

#include "kernels/base/base.h"
#include "policy/evict.h"

#define FRONTIER_KV 168

/* One policy, budget and format. */
struct frontier_row {
    /* Hash of all that the perplexity depends on besides these three: rows of one can be compared.
     */
    char conditions[17];
    char text[64]; // name of the file
    int64_t prefix, window, windows;
    char kv[FRONTIER_KV]; // frontier_kv()
    char format[8];
    double ppl, more;         // perplexity; more than with full bf16, percent
    double needle, no_needle; // log-probability of a pass key; of one that stood nowhere. NAN: none
    char job[17];             // hash of the job that was measured; "": none was
    double tokens_per_s;      // of it; 0: none
};

/* The same text for every way to write a share: 0.50 is "0.5"; 1.0, a fraction, is "1.0", and 1, a
 * count, is "1". */
struct frontier_share {
    char text[32];
};
struct frontier_share frontier_share(double share, int is_fraction);
/* 1: a file that frontier_add() made: frontier-HASH.csv with its first line. */
int frontier_is(const char *path, const char *name);
/* The file of a model (its fingerprint). */
enum err frontier_path(uint64_t fingerprint, char *path, int cap);
/* A policy and what it keeps, without what is its default: "h2o=0.2", "streaming=512 sink=8". */
void frontier_kv(const struct evict *e, char kv[FRONTIER_KV]);
/* The last row that has all that `like` says: its kv and format, and, where they are not "",
 * conditions and job. Without conditions it is the one for which the most tokens were scored. 0:
 * there is none. Lines that are no rows are passed over. */
int frontier_find(const char *path, const struct frontier_row *like, struct frontier_row *row);
/* Adds a row; the file is made where it is not there. ERR_IO. */
enum err frontier_add(const char *path, const struct frontier_row *row);

#endif
