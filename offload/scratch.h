/* offload/scratch.h - the files that a run writes: one without a name in each folder of a list.
 *
 * Owns: reading a list of folders ("/a,/b"), room in them, the files. A list that is itself the
 * path of a folder is that folder. Refuses: transfers (ring), dividing the space (engine). */
#ifndef OFFLOAD_SCRATCH_H
#define OFFLOAD_SCRATCH_H

#include "offload/ring.h"

#define SCRATCH_MAX        RING_STRIPES_MAX
#define SCRATCH_PATH_BYTES 4096

/* A closed one has n = 0. */
struct scratch {
    int fds[SCRATCH_MAX]; // owned
    int n;
};

/* Folders in the list; more than SCRATCH_MAX count as SCRATCH_MAX + 1. */
int scratch_count(const char *list);
/* ERR_USAGE: a folder that does not exist, an empty name, too many. Warns of folders that share a
 * file system: two files there are not faster than one. */
enum err scratch_check(const char *list);

/* What file systems of the folders have, for this user; -1: unknown. Files are of equal size, so
 * the folder with the least room counts for all. */
struct scratch_room {
    int64_t free_bytes, total_bytes;
    uint64_t id;                   // equal for lists of the same file systems in the same order
    unsigned dev_major, dev_minor; // of the first folder
};
enum err scratch_room(const char *list, struct scratch_room *room);

/* ERR_IO: a folder where no file can be made. */
enum err scratch_open(struct scratch *s, const char *list);
/* Reserves n_bytes in all; as many stripes in each file. ERR_IO: too little room. */
enum err scratch_reserve(const struct scratch *s, const char *list, int64_t n_bytes);
/* Adds the files to a ring, as one file. */
enum err scratch_add(const struct scratch *s, struct ring *ring, const char *name, int *file);
void scratch_close(struct scratch *s); // accepts a closed one

#endif
