/* offload/probe_cache.h - small files of figures in the cache folder, each with a checksum.
 *
 * Owns: their names and age. Refuses: their contents (probe_cache.c, probe_model.c). */
#ifndef OFFLOAD_PROBE_CACHE_H
#define OFFLOAD_PROBE_CACHE_H

#include "offload/probe.h"

/* path = DIR/probe-WHAT-HASH.cfg, with the hash of key. ERR_USAGE: too long. */
enum err probe_cache_path(const char *cache_dir, const char *what, const char *key, char *path,
                          int cap);
/* The key of CPU rates: how ops are computed, and the memory for measuring. */
void probe_cache_key(const struct probe_config *c, char *key, int cap);
/* Reads text[MACHINE_FILE_BYTES_MAX]. Returns its bytes; -1: missing, old or damaged. */
int64_t probe_cache_read(const char *path, char *text);
/* 1: the figures in `path` have to be measured again: their `spread` (by value) is too wide, and
 * the file is an hour old. */
int probe_cache_again(const char *path, const struct probe_config *c, double spread);
/* Calls measure(ctx). *busy is 1 if other processes had the cores for more than
 * CPU_WAIT_STARVED of the time; a warning says so. */
enum err probe_judged(const struct probe_config *c, const char *what,
                      enum err (*measure)(void *ctx), void *ctx, int *busy);
/* Adds the checksum (text needs 20 more bytes) and writes the file. It is valid for 30 days; busy
 * 1: for two minutes, so that a machine that stays busy need not measure at every start. */
void probe_cache_write(const char *path, char *text, int64_t n, int busy);

/* 1: probe_cache_write() made the file: its name is probe-WHAT-HASH.cfg, its last line a checksum.
 */
int probe_cache_is(const char *path, const char *name);
/* Removes all such files of the folder: *n files, *n_bytes in all. A missing folder has none. */
enum err probe_cache_reset(const char *cache_dir, int64_t *n, int64_t *n_bytes);

#define PROBE_FIGURES_MAX 8
/* A few numbers > 0, in a file DIR/probe-WHAT-HASH.cfg. Writing rounds x to the digits in the file.
 * Reading returns 0 and leaves x as it was if the file is missing, old or damaged. */
int probe_figures_read(const char *path, double *x, int n);
void probe_figures_write(const char *path, double *x, int n);

#endif
