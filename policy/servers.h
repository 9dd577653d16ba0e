/* policy/servers.h - the disk and the link of a machine, which serve the transfers of a played
 * pass.
 *
 * Owns: which transfer continues, how fast, and when it is done. Refuses: what moves and when it is
 * needed (policy/pass.c). The disk has as many pieces in flight as the mover, and is slower with
 * few; the link serves one transfer at a time; data that crosses both is copied while its next
 * piece is read. */
#ifndef POLICY_SERVERS_H
#define POLICY_SERVERS_H

#include "policy/machine.h"
#include "kernels/base/limits.h"

/* A pending transfer over the disk, the link, or both. */
struct item {
    int64_t due;           // step that needs it; the earliest is served first, piece by piece
    double disk_s, link_s; // seconds left
    double from;           // earliest start
    double *ready;         // set when it is done; NULL: no waiter
    int write;             // 1: crosses the link before it goes to the disk
    int pieces, flying;    // disk: pieces in all, and in flight
    double piece_s;        // disk: seconds of one piece
    int wants;             // pieces that would be in flight if all were chosen now
    double held_s;         // disk: seconds left of pieces in flight beyond `wants`
};

struct server {
    struct item *items; // pending
    int n;
    int flying;  // pieces of all items
    int depth;   // disk: the most of them in flight
    double free; // served until this time
};

struct servers {
    struct server disk, link; // the caller allocates `cap` items each
    int cap;
    double piece_s; // of the last piece over the link
    double ticket_s;
    double speed[IO_DEPTH + 1]; // of the disk, by pieces in flight, relative to its full rate
    double beside;              // factor on that while ops compute; 1 beside a device
    double busy_s[2];           // of the disk with reads, and with writes, in flight
};

/* Sets all but the arrays of items. */
void servers_make(struct servers *s, const struct machine *m, int device);
void servers_start(struct servers *s); // resets to time 0, idle
/* Queues a transfer: a read at the disk first, a write at the link if it crosses the link. Beyond
 * `cap` it is dropped: no step may wait for it. */
void servers_take(struct servers *s, const struct item *item);
/* Serves both until `to`, while ops compute. */
void servers_go(struct servers *s, double to);
/* Serves both until *ready is set, while nothing computes. Returns *ready. */
double servers_wait(struct servers *s, const double *ready);

#endif
