/* offload/peers.c - see peers.h. */
#include "offload/peers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/thread.h"
#include "kernels/device.h"

#define LOOK_NS 20000 // between two looks at the messages under way

struct peers {
    struct peers_library *library;
    int rank, n;

    pthread_t thread;
    int started;
    pthread_mutex_t lock; // guards MPI and the fields below
    pthread_cond_t changed;
    struct parcel *under_way;
    int stop;
};

int peers_rank(const struct peers *p)
{
    return p->rank;
}

int peers_n(const struct peers *p)
{
    return p->n;
}

/* ---- the thread ---- */

/* Looks at every message once; those that are done leave the list. The lock is held. */
static void look(struct peers *p)
{
    struct parcel **at = &p->under_way;
    while (*at) {
        struct parcel *parcel = *at;
        int done = 0, code = p->library->test(&parcel->request, &done, &parcel->n_bytes);
        if (code == 0 && !done) {
            at = &parcel->next;
            continue;
        }
        *at = parcel->next;
        parcel->err = code == 0 ? OK : ERR_IO;
        parcel->busy = 0;
        pthread_cond_broadcast(&p->changed);
    }
}

static void *peers_main(void *arg)
{
    struct peers *p = arg;
    thread_short_slice();
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        look(p);
        if (!p->under_way) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- open and close ---- */

/* MPI is a launcher's: a process that was started alone would hang or be a job of one rank. */
static int is_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "MPI_LOCALNRANKS", "SLURM_PROCID"};
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found |= getenv(names[i]) != NULL;
    return found;
}

static enum err open_library(struct peers *p)
{
    char path[4096];
    TRY(device_library_path("mpi", path, sizeof path));
    /* MPI opens parts of itself, which look for its names among the global ones. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return fail(ERR_DEVICE, "--pipeline: %s", dlerror());
    void *symbol = dlsym(library, PEERS_ENTRY);
    peers_entry_fn entry;
    memcpy(&entry, &symbol, sizeof entry); // ISO C cannot cast it
    p->library = symbol ? entry() : NULL;
    if (!p->library || p->library->version != PEERS_VERSION)
        return fail(ERR_DEVICE, "%s: belongs to another version of sluice (make mpi)", path);
    return OK;
}

static enum err open_steps(struct peers *p)
{
    if (!is_launched())
        return fail(ERR_USAGE, "--pipeline: start the ranks with mpirun -np R (or srun --mpi)");
    TRY(open_library(p));
    if (p->library->start(&p->rank, &p->n) != 0)
        return fail(ERR_DEVICE, "--pipeline: MPI: %s", p->library->why);
    const int n = p->n;
    if (n < 2 || n > PEERS_MAX) { // every rank finds this
        p->library->end();
        p->n = 0;
        return fail(ERR_USAGE, "--pipeline: %d ranks; it takes 2 to %d (mpirun -np R)", n,
                    PEERS_MAX);
    }
    TRY(thread_need(&p->thread, peers_main, p, "--pipeline", "messages"));
    p->started = 1;
    return OK;
}

enum err peers_open(struct peers **out)
{
    struct peers *p = *out = calloc(1, sizeof *p);
    if (!p)
        return fail(ERR_FIT, "no memory for --pipeline");
    pthread_condattr_t monotonic;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    enum err err = open_steps(p);
    if (err == OK)
        return OK;
    peers_close(p, err);
    *out = NULL;
    return err;
}

void peers_close(struct peers *p, int failed)
{
    if (!p)
        return;
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        p->stop = 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    if (p->n > 0 && failed)
        p->library->abort(failed); // does not return
    else if (p->n > 0)
        p->library->end();
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- messages ---- */

/* Puts a message among those under way. The lock is held. */
static void put(struct peers *p, struct parcel *parcel, int code)
{
    parcel->busy = code == 0;
    parcel->err = code == 0 ? OK : ERR_IO;
    if (code != 0)
        return;
    parcel->next = p->under_way;
    p->under_way = parcel;
    pthread_cond_broadcast(&p->changed);
}

void peers_send(struct peers *p, int to, enum peers_tag tag, const void *buf, int64_t n,
                struct parcel *parcel)
{
    pthread_mutex_lock(&p->lock);
    put(p, parcel, p->library->send(buf, n, to, (int)tag, &parcel->request));
    pthread_mutex_unlock(&p->lock);
}

void peers_receive(struct peers *p, int from, enum peers_tag tag, void *buf, int64_t cap,
                   struct parcel *parcel)
{
    pthread_mutex_lock(&p->lock);
    put(p, parcel, p->library->receive(buf, cap, from, (int)tag, &parcel->request));
    pthread_mutex_unlock(&p->lock);
}

enum err peers_wait(struct peers *p, struct parcel *parcel, const atomic_int *stop)
{
    int stopped = 0;
    pthread_mutex_lock(&p->lock);
    while (parcel->busy && !stopped) {
        struct timespec until; // setting `stop` does not end the wait: look at it now and then
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 50000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->changed, &p->lock, &until);
        stopped = parcel->busy && stop && *stop;
    }
    const enum err err = parcel->err;
    pthread_mutex_unlock(&p->lock);
    if (stopped)
        return fail(ERR_STOPPED, "interrupted; the same command resumes");
    return err == OK ? OK : fail(err, "--pipeline: MPI: %s", p->library->why);
}

void peers_cancel(struct peers *p, struct parcel *parcel)
{
    pthread_mutex_lock(&p->lock);
    struct parcel **at = &p->under_way;
    while (*at && *at != parcel)
        at = &(*at)->next;
    if (*at) {
        *at = parcel->next;
        p->library->cancel(&parcel->request);
        parcel->busy = 0;
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- setup ---- */

enum err peers_tell(struct peers *p, void *buf, int64_t n)
{
    struct parcel parcel = {0};
    enum err err = OK;
    if (p->rank > 0) {
        peers_receive(p, 0, PEERS_SETUP, buf, n, &parcel);
        return peers_wait(p, &parcel, NULL);
    }
    for (int to = 1; to < p->n && err == OK; to++) {
        peers_send(p, to, PEERS_SETUP, buf, n, &parcel);
        err = peers_wait(p, &parcel, NULL);
    }
    return err;
}

enum err peers_gather(struct peers *p, const void *mine, int64_t n, void *all)
{
    struct parcel parcel = {0};
    enum err err = OK;
    if (p->rank > 0) {
        peers_send(p, 0, PEERS_SETUP, mine, n, &parcel);
        return peers_wait(p, &parcel, NULL);
    }
    memcpy(all, mine, (size_t)n);
    for (int from = 1; from < p->n && err == OK; from++) {
        peers_receive(p, from, PEERS_SETUP, (uint8_t *)all + from * n, n, &parcel);
        err = peers_wait(p, &parcel, NULL);
    }
    return err;
}
