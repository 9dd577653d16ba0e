/* offload/probe_cache.h - small files of figures in the cache folder, each under a checksum.
 *
 * Owns: their names and age. Refuses: what stands in them (probe_cache.c, probe_model.c). */
#ifndef OFFLOAD_PROBE_CACHE_H
#define OFFLOAD_PROBE_CACHE_H

#include "offload/probe.h"

/* DIR/probe-WHAT-HASH.cfg. ERR_USAGE: too long. */
enum err probe_cache_path(const char *cache_dir, const char *what, const char *key, char *path,
                          int cap);
/* What rates of the CPU depend on: how it computes, and the memory that measuring takes. */
void probe_cache_key(const struct probe_config *c, char *key, int cap);
/* Bytes of text[MACHINE_FILE_BYTES_MAX] that can be trusted; -1: not there, old or damaged. */
int64_t probe_cache_read(const char *path, char *text);
/* 1 when what is kept there, `spread` apart by its value, is to be measured again: too far apart,
 * and an hour old. */
int probe_cache_again(const char *path, const struct probe_config *c, double spread);
/* Calls measure(ctx). *busy is 1 where other processes had the cores for more than
 * CPU_WAIT_STARVED of the time; a warning says so. */
enum err probe_judged(const struct probe_config *c, const char *what,
                      enum err (*measure)(void *ctx), void *ctx, int *busy);
/* text has room for 20 bytes behind its n. The file can be trusted for 30 days; busy 1: for two
 * minutes, so that a machine that stays busy need not measure at every start. */
void probe_cache_write(const char *path, char *text, int64_t n, int busy);

/* 1: a file that probe_cache_write() made: its name is probe-WHAT-HASH.cfg, its last line a
 * checksum. */
int probe_cache_is(const char *path, const char *name);
/* Removes every file of the folder that probe_cache_write() made: named probe-WHAT-HASH.cfg, its
 * last line a checksum; *n files, *n_bytes of them. A folder that is not there has none. */
enum err probe_cache_reset(const char *cache_dir, int64_t *n, int64_t *n_bytes);

#define PROBE_FIGURES_MAX 8
/* A few numbers > 0, kept as DIR/probe-WHAT-HASH.cfg. Once written, x has the digits that the file
 * has. 0: there are none that can be trusted, and x is as it was. */
int probe_figures_read(const char *path, double *x, int n);
void probe_figures_write(const char *path, double *x, int n);

#endif
