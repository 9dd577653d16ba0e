/* policy/servers.c - see servers.h. */
#include "policy/servers.h"

#include <math.h>
#include <string.h>

#include "policy/rates.h"

void servers_make(struct servers *s, const struct machine *m, int device)
{
    const double most = m->nvme_read.value, beside = m->read_beside.value;
    *s = (struct servers){.piece_s = rate(PIECE_BYTES, m->h2d.value),
                          .ticket_s = machine_ticket_s(m),
                          .beside = !device && beside > 0 ? min_d(beside, 1) : 1};
    for (int i = 1; i <= IO_DEPTH; i++)
        s->speed[i] = most > 0 ? machine_read_rate(m, i) / most : 1;
    s->disk.depth = machine_depth(m);
}

void servers_start(struct servers *s)
{
    s->disk.n = s->link.n = 0;
    s->disk.flying = 0;
    s->disk.free = s->link.free = 0;
    s->busy_s[0] = s->busy_s[1] = 0;
}

static void pend(struct servers *s, struct server *server, const struct item *item)
{
    int i = server->n;
    if (server->n == s->cap)
        return; // more pending than frames allow: no step waits for it
    server->n++;
    for (; i > 0 && server->items[i - 1].due < item->due; i--)
        server->items[i] = server->items[i - 1];
    server->items[i] = *item; // the earliest due is last
}

static void drop(struct server *server, int i)
{
    server->n--;
    memmove(&server->items[i], &server->items[i + 1],
            (size_t)(server->n - i) * sizeof server->items[0]);
}

void servers_take(struct servers *s, const struct item *item)
{
    int disk = item->write ? item->link_s == 0 : item->disk_s > 0;
    pend(s, disk ? &s->disk : &s->link, item);
}

/* Ends the disk part: queues the link part, or completes. */
static void disk_done(struct servers *s, int i)
{
    struct item item = s->disk.items[i];
    drop(&s->disk, i);
    s->disk.flying -= item.flying;
    item.flying = 0;
    if (item.link_s > 0 && !item.write) {
        item.from = s->disk.free - max_d(item.link_s - s->piece_s, 0); // copied meanwhile
        pend(s, &s->link, &item);
    } else if (item.ready) {
        *item.ready = s->disk.free + s->ticket_s;
    }
}

static void link_done(struct servers *s, int i)
{
    struct item item = s->link.items[i];
    drop(&s->link, i);
    if (item.ready)
        *item.ready = s->link.free;
    if (item.write && item.disk_s > 0) {
        item.from = s->link.free;
        item.link_s = 0;
        pend(s, &s->disk, &item);
    }
}

/* ---- the disk ---- */

/* Assigns the pieces in flight to the transfers due first. Pieces already in flight stay there
 * until they are done, on average with half of each left. Returns the number in flight; *next: when
 * one more may start. */
static int disk_fly(struct server *disk, double *next)
{
    int wanted = 0, n = 0, seen = 0, first = disk->n;
    *next = INFINITY;
    for (int i = disk->n - 1; i >= 0 && (wanted < disk->depth || seen < disk->flying); i--) {
        struct item *item = &disk->items[i];
        first = i;
        item->wants = 0;
        if (item->from > disk->free)
            *next = min_d(*next, wanted < disk->depth ? item->from : INFINITY);
        else
            item->wants = item->pieces < disk->depth - wanted ? item->pieces : disk->depth - wanted;
        wanted += item->wants;
        seen += item->flying;
        if (item->wants >= item->flying)
            item->held_s = 0;
        else if (item->held_s == 0)
            item->held_s = min_d(item->flying * item->piece_s / 2, item->disk_s);
        n += item->held_s > 0 ? item->flying : 0;
    }
    for (int i = disk->n - 1; i >= first; i--) {
        struct item *item = &disk->items[i];
        if (item->held_s > 0)
            continue;
        item->flying = item->wants < disk->depth - n ? item->wants : disk->depth - n;
        n += item->flying;
    }
    disk->flying = n;
    return n;
}

/* Advances all pieces in flight at `share` of their rate, for most_s or until a transfer is done,
 * or the pieces that it holds beyond `wants` are. Returns the transfer that is done, or -1. */
static int disk_go(struct servers *s, int n, double share, double most_s)
{
    struct server *disk = &s->disk;
    double speed = share * s->speed[n] / n, took = most_s;
    int done = -1, flies[2] = {0};
    for (int i = disk->n - 1, fly = n; fly > 0; fly -= disk->items[i--].flying) {
        const struct item *item = &disk->items[i];
        double left = item->held_s > 0 ? min_d(item->held_s, item->disk_s) : item->disk_s;
        if (item->flying == 0 || left > took * item->flying * speed)
            continue;
        took = left / (item->flying * speed);
        done = left < item->disk_s ? -1 : i;
    }
    for (int i = disk->n - 1, fly = n; fly > 0; i--) {
        struct item *item = &disk->items[i];
        double went = took * item->flying * speed;
        fly -= item->flying;
        item->disk_s = max_d(item->disk_s - went, 0);
        flies[item->write] |= item->flying > 0;
        if (item->held_s > 0 && (item->held_s -= went) <= 1e-12) {
            item->held_s = 0;
            disk->flying -= item->flying - item->wants;
            item->flying = item->wants;
        }
    }
    for (int write = 0; write < 2; write++)
        s->busy_s[write] += flies[write] ? took : 0;
    disk->free += took;
    return done;
}

/* Serves until `to`; with `one`, while nothing computes, until one transfer is done. */
static void serve_disk(struct servers *s, double to, int one)
{
    struct server *disk = &s->disk;
    while (disk->n > 0 && disk->free < to) {
        double next;
        int n = disk_fly(disk, &next);
        if (n == 0) {
            if (next >= to)
                break;
            disk->free = next;
            continue;
        }
        int done = disk_go(s, n, one ? 1 : s->beside, min_d(to, next) - disk->free);
        if (done < 0)
            continue;
        disk_done(s, done);
        if (one)
            return;
    }
    if (!one && disk->free < to)
        disk->free = to;
}

/* ---- the link ---- */

/* The earliest due transfer that may begin; -1: none, *next is when one may. */
static int choose(const struct server *server, double *next)
{
    *next = INFINITY;
    for (int i = server->n - 1; i >= 0; i--) {
        if (server->items[i].from <= server->free)
            return i;
        *next = min_d(*next, server->items[i].from);
    }
    return -1;
}

static void serve_link(struct servers *s, double to, int one)
{
    struct server *link = &s->link;
    while (link->n > 0 && link->free < to) {
        double next;
        int i = choose(link, &next);
        if (i < 0) {
            if (next >= to)
                break;
            link->free = next;
            continue;
        }
        double take = min_d(link->items[i].link_s, to - link->free);
        link->items[i].link_s -= take;
        link->free += take;
        if (link->items[i].link_s > 0)
            continue;
        link_done(s, i);
        if (one)
            return;
    }
    if (!one && link->free < to)
        link->free = to;
}

void servers_go(struct servers *s, double to)
{
    serve_disk(s, to, 0);
    serve_link(s, to, 0);
}

double servers_wait(struct servers *s, const double *ready)
{
    while (*ready == INFINITY && s->disk.n + s->link.n > 0) {
        double next;
        /* Serve the link first while it has a transfer that may begin. */
        int link = s->link.n > 0 && (s->disk.n == 0 || choose(&s->link, &next) >= 0);
        if (link)
            serve_link(s, INFINITY, 1);
        else
            serve_disk(s, INFINITY, 1);
    }
    return *ready == INFINITY ? 0 : *ready;
}
