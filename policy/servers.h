/* policy/servers.h - the disk and the link of a machine, as they serve the transfers of a play.
 *
 * Owns: which transfer goes on, how fast, and when it is there. Refuses: what moves and when it is
 * wanted (policy/pass.c). The disk has as many pieces in flight as the mover does and gives to few
 * less than to many; the link takes one transfer at a time; what goes over both is copied on while
 * its next piece is read. */
#ifndef POLICY_SERVERS_H
#define POLICY_SERVERS_H

#include "policy/machine.h"
#include "kernels/base/limits.h"

/* A transfer on its way: over the disk, the link, or both. */
struct item {
    int64_t due;           // step; the earliest goes first, a piece at a time
    double disk_s, link_s; // left
    double from;           // when it may begin
    double *ready;         // written when it is done; NULL: nobody waits
    int write;             // over the link before it goes to the disk
    int pieces, flying;    // of the disk: that it has, and of these in flight
    double piece_s;        // of the disk: one of them
    int wants;             // pieces that would be in flight if all could be chosen anew
    double held_s;         // of the disk: what is left of pieces in flight beyond `wants`
};

struct server {
    struct item *items; // pending
    int n;
    int flying;  // pieces of all of them
    double free; // busy, or looked at, until here
};

struct servers {
    struct server disk, link; // the caller gives them room for `cap` items
    int cap;
    double piece_s; // of the last piece over the link
    double ticket_s;
    double speed[IO_DEPTH + 1];      // of the disk by pieces in flight; 1: all that it gives
    double beside;                   // of that, while ops compute; 1 beside a device
    double busy_s[2];                // of the disk with reads, and with writes, in flight
};

/* But for the room of items. */
void servers_make(struct servers *s, const struct machine *m, int device);
void servers_start(struct servers *s); // at 0, idle, busy for 0 s
/* Takes a transfer on: a read to the disk first, a write to the link, where it has to go there. One
 * more than there is room for is dropped: nobody may wait for it. */
void servers_take(struct servers *s, const struct item *item);
/* Both go on until `to`, beside ops. */
void servers_go(struct servers *s, double to);
/* And until *ready is written, while nothing computes. Returns it. */
double servers_wait(struct servers *s, const double *ready);

#endif
