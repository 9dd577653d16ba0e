/* engine/job/claims.c - see claims.h.
 *
 * Note: the owner of a chunk is found by inode: a directory entry has the number of the file it
 * names, so one listing tells all owners. NAME.worker is therefore rewritten in place, never
 * renamed. */
#include "engine/job/claims.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/job/journal.h"
#include "kernels/base/thread.h"
#include "kernels/base/whole.h"

#define BEAT_BYTES   512 // of NAME.worker: one line of JSON, padded
#define LINK_TRIES   4   // a network file system may answer with ESTALE
#define WATCH_SHARE  4   // looks at other workers per beat
#define OPEN_TRIES   100 // of making the folder and a file in it
#define CLAIM_TRIES  1000
#define CHUNK_DIGITS 6

/* A worker as this process sees it. */
struct peer {
    char name[CLAIMS_NAME_BYTES];
    ino_t ino;               // of NAME.worker, and of its claims
    char beat[BEAT_BYTES];   // as read last
    int64_t seen_ns;         // when `beat` last changed
    enum worker_state state; // by `beat`
    int gone, settled;
};

struct chunk {
    int32_t owner; // number of a peer; -1: the chunk is free
    int32_t turn;  // times it was taken over
};

struct claims {
    char dir[CLAIMS_PATH_BYTES / 2];
    double beat_s;
    struct peer *peers; // owned: [n_peers]; the first is this process
    int n_peers, peers_cap;
    struct chunk *chunks; // owned: [n_chunks + 1]; the last stands for OUT
    int64_t n_chunks, n_rows, chunk_rows;
    int64_t next; // behind the chunk claimed last; -1: none was
    int64_t n_looks;
    int fd;   // of this worker's file
    int owns; // 1: a chunk was claimed

    pthread_t thread;
    int started;
    pthread_mutex_t writing; // of this worker's file; taken before `lock`
    int64_t n_beats;
    pthread_mutex_t lock; // guards the fields below; never held during I/O
    pthread_cond_t changed;
    int stop;
    enum worker_state state;
    int64_t rows;
};

const char *worker_state_name(enum worker_state state)
{
    static const char *const names[N_WORKER_STATES] = {"joined", "working", "left"};
    return names[state];
}

/* ---- paths ---- */

void claims_path(const struct claims *c, int w, const char *suffix, char path[CLAIMS_PATH_BYTES])
{
    snprintf(path, CLAIMS_PATH_BYTES, "%s/%s%s", c->dir, w < 0 ? "" : c->peers[w].name, suffix);
}

static void chunk_path(const struct claims *c, int64_t chunk, int turn,
                       char path[CLAIMS_PATH_BYTES])
{
    int n = snprintf(path, CLAIMS_PATH_BYTES, "%s/" CLAIMS_DIR "/%0*lld", c->dir, CHUNK_DIGITS,
                     (long long)chunk);
    if (turn > 0)
        snprintf(path + n, CLAIMS_PATH_BYTES - (size_t)n, ".%d", turn);
}

const char *claims_name(const struct claims *c)
{
    return c->peers[0].name;
}

const char *claims_dir(const struct claims *c)
{
    return c->dir;
}

static enum err io_error(const char *path, const char *call)
{
    return fail(ERR_IO, "%.512s: %s: %s (the same command resumes)", path, call, strerror(errno));
}

/* ---- the beat ---- */

/* Writes this worker's file. A beat that cannot be written is no error: others may take over
 * chunks, and the job's own writes tell what is wrong. */
static void beat_write(struct claims *c)
{
    char line[BEAT_BYTES + 1];
    pthread_mutex_lock(&c->writing);
    pthread_mutex_lock(&c->lock);
    int n = snprintf(
        line, sizeof line, "{\"worker\":\"%s\",\"beat\":%lld,\"state\":\"%s\",\"rows\":%lld}",
        c->peers[0].name, (long long)c->n_beats++, worker_state_name(c->state), (long long)c->rows);
    pthread_mutex_unlock(&c->lock);
    memset(line + n, ' ', (size_t)(BEAT_BYTES - n));
    line[BEAT_BYTES - 1] = '\n';
    if (pwrite(c->fd, line, BEAT_BYTES, 0) == BEAT_BYTES)
        (void)fdatasync(c->fd);
    pthread_mutex_unlock(&c->writing);
}

static void *beat_main(void *arg)
{
    struct claims *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + (int64_t)(c->beat_s * 1e9);
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        if (pthread_cond_timedwait(&c->changed, &c->lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&c->lock);
        beat_write(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void claims_state(struct claims *c, enum worker_state state)
{
    pthread_mutex_lock(&c->lock);
    const int changed = state != c->state;
    c->state = state;
    pthread_mutex_unlock(&c->lock);
    if (changed)
        beat_write(c);
}

void claims_count(struct claims *c, int64_t n_rows)
{
    pthread_mutex_lock(&c->lock);
    c->rows += n_rows;
    pthread_mutex_unlock(&c->lock);
}

int64_t claims_counted(struct claims *c)
{
    pthread_mutex_lock(&c->lock);
    const int64_t n = c->rows;
    pthread_mutex_unlock(&c->lock);
    return n;
}

int64_t claims_looks(const struct claims *c)
{
    return c->n_looks;
}

/* ---- open ---- */

static enum err peer_add(struct claims *c, const char *name, ino_t ino)
{
    if (c->n_peers == CLAIMS_WORKERS)
        return fail(ERR_FIT, "%.512s: more than %d workers have joined", c->dir, CLAIMS_WORKERS);
    if (c->n_peers == c->peers_cap) {
        int cap = c->peers_cap + 16 + c->peers_cap / 2;
        struct peer *grown = realloc(c->peers, (size_t)cap * sizeof *grown);
        if (!grown)
            return fail(ERR_FIT, "no memory for %d workers", cap);
        c->peers = grown;
        c->peers_cap = cap;
    }
    struct peer *p = &c->peers[c->n_peers++];
    *p = (struct peer){.ino = ino, .seen_ns = clock_ns()};
    snprintf(p->name, sizeof p->name, "%s", name);
    return OK;
}

static enum err make_dir(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return OK;
    return fail(ERR_USAGE, "%.512s: --work-dir: %s", path, strerror(errno));
}

/* "HOST.PID.", with which names of workers begin that are this process of this machine. */
static int name_begin(char *name, size_t cap, int64_t pid)
{
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "host");
    for (char *p = host; *p; p++)
        if (!isalnum((unsigned char)*p))
            *p = '-';
    return snprintf(name, cap, "%s.%lld.", host, (long long)pid);
}

/* HOST.PID.TIME: a process that starts again is another worker. */
static void own_name(char *name, size_t cap)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int n = name_begin(name, cap, getpid());
    snprintf(name + n, cap - (size_t)n, "%llx",
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
}

static enum err open_steps(struct claims *c, const char *dir, double beat_s)
{
    char path[CLAIMS_PATH_BYTES], name[CLAIMS_NAME_BYTES];
    struct stat s;
    c->beat_s = beat_s > 0 ? beat_s : CLAIMS_BEAT_S;
    c->next = -1;
    if (snprintf(c->dir, sizeof c->dir, "%s", dir) >= (int)sizeof c->dir)
        return fail(ERR_USAGE, "%.512s: --work-dir: the path is too long", dir);
    own_name(name, sizeof name);
    TRY(peer_add(c, name, 0));
    for (int i = 0; i < OPEN_TRIES && c->fd < 0; i++) { // who leaves may just remove the folder
        TRY(make_dir(c->dir));
        claims_path(c, -1, CLAIMS_DIR, path);
        (void)mkdir(path, 0777);
        claims_path(c, 0, CLAIMS_WORKER, path);
        c->fd = open(path, O_RDWR | WHOLE_NEW, 0666);
        if (c->fd < 0 && errno != ENOENT)
            break;
    }
    if (c->fd < 0 || fstat(c->fd, &s) != 0)
        return io_error(path, "open");
    c->peers[0].ino = s.st_ino;
    beat_write(c);
    TRY(thread_need(&c->thread, beat_main, c, "--work-dir", "beat"));
    c->started = 1;
    return OK;
}

enum err claims_open(struct claims **out, const char *dir, double beat_s)
{
    pthread_condattr_t monotonic;
    struct claims *c = *out = calloc(1, sizeof *c);
    if (!c)
        return fail(ERR_FIT, "no memory for --work-dir");
    c->fd = -1;
    pthread_mutex_init(&c->writing, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    enum err err = open_steps(c, dir, beat_s);
    if (err == OK)
        return OK;
    claims_close(c);
    *out = NULL;
    return err;
}

/* Replaces "working" by "left", and blanks, in a worker's file. */
static void write_left(const char *path)
{
    static const char working[] = "\"working\"", left[sizeof working] = "\"left\"   ";
    char beat[BEAT_BYTES + 1] = "";
    int fd = open(path, O_RDWR | WHOLE_OPEN);
    const char *at = fd >= 0 && pread(fd, beat, BEAT_BYTES, 0) > 0 ? strstr(beat, working) : NULL;
    if (at)
        (void)!pwrite(fd, left, strlen(left), at - beat);
    if (fd >= 0)
        close(fd);
}

void claims_bury(const char *dir, int64_t pid)
{
    char name[CLAIMS_NAME_BYTES], path[CLAIMS_PATH_BYTES];
    const int n = name_begin(name, sizeof name, pid);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, name, (size_t)n) != 0 || !strstr(e->d_name, CLAIMS_WORKER))
            continue;
        snprintf(path, sizeof path, "%.3800s/%.255s", dir, e->d_name);
        write_left(path);
    }
    if (d)
        closedir(d);
}

/* ---- files that are made once ---- */

/* 0: none has begun, or OUT is complete. */
static int has_job(const struct claims *c)
{
    char path[CLAIMS_PATH_BYTES];
    claims_path(c, -1, CLAIMS_JOB, path);
    return access(path, F_OK) == 0;
}

/* link(2). *made 0: the name exists. Makes the folder of the claims again: a worker that leaves
 * without a job removes it if it is empty. */
static enum err link_once(const struct claims *c, const char *from, const char *to, int *made)
{
    char claims[CLAIMS_PATH_BYTES];
    claims_path(c, -1, CLAIMS_DIR, claims);
    for (int i = 0; i < LINK_TRIES; i++) {
        *made = link(from, to) == 0;
        if (*made || errno == EEXIST)
            return OK;
        if (errno == ENOENT && i + 1 < LINK_TRIES)
            (void)mkdir(claims, 0777);
        else if (errno != ESTALE)
            break;
    }
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)
        return fail(ERR_IO, "%.512s: --work-dir: this file system has no hard links", to);
    return io_error(to, "link");
}

enum err claims_once(const struct claims *c, const char *file, const char *bytes, int64_t n)
{
    char path[CLAIMS_PATH_BYTES], temp[CLAIMS_PATH_BYTES];
    int made = 0;
    claims_path(c, -1, file, path);
    if (access(path, F_OK) == 0)
        return OK;
    claims_path(c, 0, ".tmp", temp);
    unlink(temp);
    int fd = open(temp, O_WRONLY | WHOLE_NEW, 0666);
    if (fd < 0)
        return io_error(temp, "open");
    enum err err = write_all(fd, temp, 0, bytes, n);
    if (err == OK && fsync(fd) != 0)
        err = io_error(temp, "fsync");
    close(fd);
    if (err == OK)
        err = link_once(c, temp, path, &made);
    unlink(temp);
    /* If another worker has ended the job meanwhile, it does not know of this file. */
    if (err == OK && made && strcmp(file, CLAIMS_JOB) != 0 && !has_job(c))
        unlink(path);
    return err;
}

/* ---- chunks ---- */

static int64_t rows_of_chunk(int64_t n_rows)
{
    return max_i64(1, ceil_div(n_rows, CLAIMS_CHUNKS));
}

int64_t claims_cut(int64_t n_rows)
{
    return ceil_div(n_rows, rows_of_chunk(n_rows));
}

enum err claims_rows(struct claims *c, int64_t n_rows)
{
    if (c->chunks)
        return OK;
    c->n_rows = n_rows;
    c->chunk_rows = rows_of_chunk(n_rows);
    c->n_chunks = claims_cut(n_rows);
    c->chunks = malloc((size_t)(c->n_chunks + 1) * sizeof *c->chunks);
    if (!c->chunks)
        return fail(ERR_FIT, "no memory for %lld chunks", (long long)c->n_chunks);
    for (int64_t i = 0; i <= c->n_chunks; i++)
        c->chunks[i] = (struct chunk){.owner = -1};
    return OK;
}

int64_t claims_chunks(const struct claims *c)
{
    return c->n_chunks;
}

int64_t claims_chunk_of(const struct claims *c, int64_t row)
{
    return row / c->chunk_rows;
}

void claims_range(const struct claims *c, int64_t chunk, int64_t *from, int64_t *to)
{
    *from = chunk * c->chunk_rows;
    *to = min_i64(*from + c->chunk_rows, c->n_rows);
}

int claims_workers(const struct claims *c)
{
    return c->n_peers;
}

int claims_owner(const struct claims *c, int64_t chunk)
{
    return c->chunks[chunk].owner;
}

int claims_turn(const struct claims *c, int64_t chunk)
{
    return c->chunks[chunk].turn;
}

/* ---- looks ---- */

/* Calls entry() for each name in DIR/SUB. */
static enum err list_dir(struct claims *c, const char *sub,
                         enum err (*entry)(struct claims *c, const char *name, ino_t ino))
{
    char path[CLAIMS_PATH_BYTES];
    claims_path(c, -1, sub, path);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? OK : io_error(path, "opendir"); // the job has ended
    enum err err = OK;
    for (struct dirent *e; err == OK && (e = readdir(d));)
        if (e->d_name[0] != '.')
            err = entry(c, e->d_name, e->d_ino);
    closedir(d);
    return err;
}

static enum err see_worker(struct claims *c, const char *name, ino_t ino)
{
    size_t n = strlen(name), n_end = strlen(CLAIMS_WORKER);
    char own[CLAIMS_NAME_BYTES];
    if (n <= n_end || n - n_end >= sizeof own || strcmp(name + n - n_end, CLAIMS_WORKER) != 0)
        return OK;
    snprintf(own, sizeof own, "%.*s", (int)(n - n_end), name);
    for (int w = 0; w < c->n_peers; w++)
        if (strcmp(c->peers[w].name, own) == 0)
            return OK;
    for (int w = 0; w < c->n_peers; w++) // who left without a chunk has left its inode, too
        if (c->peers[w].ino == ino)
            c->peers[w].ino = 0;
    return peer_add(c, own, ino);
}

static int by_inode(const struct claims *c, ino_t ino)
{
    for (int w = 0; w < c->n_peers; w++)
        if (c->peers[w].ino == ino)
            return w;
    return -1;
}

static enum err see_claim(struct claims *c, const char *name, ino_t ino)
{
    char *end;
    long long chunk = strtoll(name, &end, 10), turn = *end == '.' ? strtoll(end + 1, &end, 10) : 0;
    if (*end || chunk < 0 || chunk > c->n_chunks || turn < 0 || turn > INT32_MAX)
        return OK;
    struct chunk *k = &c->chunks[chunk];
    if (k->owner >= 0 && turn <= k->turn)
        return OK;
    int w = by_inode(c, ino);
    if (w < 0) { // joined since the folder was listed
        TRY(list_dir(c, "", see_worker));
        w = by_inode(c, ino);
    }
    if (w >= 0)
        *k = (struct chunk){.owner = w, .turn = (int32_t)turn};
    return OK;
}

enum worker_state worker_state_of(const char *beat)
{
    char word[40];
    for (int state = 0; state < N_WORKER_STATES; state++) {
        snprintf(word, sizeof word, "\"state\":\"%s\"",
                 worker_state_name((enum worker_state)state));
        if (strstr(beat, word))
            return (enum worker_state)state;
    }
    return WORKER_JOINED;
}

int64_t worker_rows_of(const char *beat)
{
    const char *at = strstr(beat, "\"rows\":");
    return at ? strtoll(at + strlen("\"rows\":"), NULL, 10) : 0;
}

/* Reads the beats of all other workers. */
static void watch(struct claims *c)
{
    char path[CLAIMS_PATH_BYTES], beat[BEAT_BYTES];
    const int64_t now = clock_ns();
    for (int w = 1; w < c->n_peers; w++) {
        struct peer *p = &c->peers[w];
        memset(beat, 0, sizeof beat);
        claims_path(c, w, CLAIMS_WORKER, path);
        int fd = open(path, O_RDONLY | WHOLE_OPEN);
        ssize_t n = fd >= 0 ? pread(fd, beat, sizeof beat - 1, 0) : -1;
        if (fd >= 0)
            close(fd);
        if (n > 0 && memcmp(beat, p->beat, sizeof beat) != 0) {
            memcpy(p->beat, beat, sizeof beat);
            p->seen_ns = now;
        }
        p->state = worker_state_of(p->beat);
        p->gone = p->state == WORKER_LEFT ||
                  (double)(now - p->seen_ns) * 1e-9 > c->beat_s * CLAIMS_BEATS_LOST;
        p->settled &= p->gone;
    }
}

/* Beats last: a worker says that it works before it claims. */
enum err claims_look(struct claims *c)
{
    TRY(list_dir(c, "", see_worker));
    TRY(list_dir(c, CLAIMS_DIR, see_claim));
    watch(c);
    c->n_looks++;
    return OK;
}

int claims_gone(const struct claims *c, int w)
{
    return w > 0 && c->peers[w].gone;
}

/* ---- claiming ---- */

/* The middle of the longest run of free chunks, or chunk 0 if that run begins there; -1: no chunk
 * is free. */
static int64_t free_chunk(const struct claims *c)
{
    int64_t best = -1, best_n = 0, start = 0;
    for (int64_t i = 0; i <= c->n_chunks; i++) {
        if (i < c->n_chunks && c->chunks[i].owner < 0)
            continue;
        if (i - start > best_n) {
            best_n = i - start;
            best = start == 0 ? 0 : start + best_n / 2;
        }
        start = i + 1;
    }
    return best;
}

enum err claims_next(struct claims *c, int64_t *chunk)
{
    char own[CLAIMS_PATH_BYTES], path[CLAIMS_PATH_BYTES];
    claims_path(c, 0, CLAIMS_WORKER, own);
    for (int i = 0; i < CLAIM_TRIES; i++) {
        int64_t k = c->next;
        int made;
        if (k < 0 || k >= c->n_chunks || c->chunks[k].owner >= 0) {
            TRY(claims_look(c));
            k = free_chunk(c);
        }
        *chunk = k;
        if (k < 0)
            return OK;
        chunk_path(c, k, 0, path);
        TRY(link_once(c, own, path, &made));
        if (made) {
            c->owns = 1;
            c->chunks[k] = (struct chunk){.owner = 0};
            c->next = k + 1;
            return OK;
        }
        c->next = -1;
    }
    return fail(ERR_IO, "%.512s: is taken, and the folder lists no worker that took it", path);
}

enum err claims_take_over(struct claims *c, int64_t chunk, int *mine)
{
    char own[CLAIMS_PATH_BYTES], path[CLAIMS_PATH_BYTES];
    struct chunk *k = &c->chunks[chunk];
    int turn = k->owner < 0 ? 0 : k->turn + 1;
    claims_path(c, 0, CLAIMS_WORKER, own);
    chunk_path(c, chunk, turn, path);
    TRY(link_once(c, own, path, mine));
    if (!*mine)
        return claims_look(c);
    c->owns = 1;
    *k = (struct chunk){.owner = 0, .turn = turn};
    return OK;
}

/* ---- waiting ---- */

void claims_settled(struct claims *c)
{
    for (int w = 1; w < c->n_peers; w++)
        c->peers[w].settled |= c->peers[w].gone;
}

/* Is there something to do for this worker? */
static enum err look_for_work(struct claims *c, int *found, int *make_out)
{
    TRY(claims_look(c));
    *found = !has_job(c) || free_chunk(c) >= 0;
    int working = 0;
    for (int w = 1; w < c->n_peers && !*found; w++) {
        const struct peer *p = &c->peers[w];
        *found = p->gone && p->state != WORKER_JOINED && !p->settled;
        working |= !p->gone && p->state != WORKER_JOINED;
    }
    if (*found || working)
        return OK;
    int maker = claims_owner(c, c->n_chunks);
    *make_out = maker == 0;
    if (maker < 0 || claims_gone(c, maker))
        TRY(claims_take_over(c, c->n_chunks, make_out));
    *found = *make_out;
    return OK;
}

enum err claims_wait(struct claims *c, const atomic_int *interrupted, double limit_s, int *make_out)
{
    const int64_t start = clock_ns();
    int found = 0;
    *make_out = 0;
    for (int64_t n = 0;; n++) {
        TRY(look_for_work(c, &found, make_out));
        if (found)
            return OK;
        if (n == 0)
            log_line(LOG_INFO, "work-dir: all rows are taken; waiting for the other workers");
        const int64_t next = clock_ns() + (int64_t)(c->beat_s * 1e9 / WATCH_SHARE);
        while (clock_ns() < next) {
            if (interrupted && *interrupted)
                return fail(ERR_STOPPED, "interrupted; the same command resumes");
            if (limit_s > 0 && (double)(clock_ns() - start) * 1e-9 > limit_s)
                return fail(ERR_STOPPED, "--time-limit reached; the same command resumes");
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
}

/* ---- the end ---- */

static enum err remove_claim(struct claims *c, const char *name, ino_t ino)
{
    char path[CLAIMS_PATH_BYTES];
    (void)ino;
    if (strspn(name, "0123456789.") != strlen(name))
        return OK;
    snprintf(path, sizeof path, "%s/" CLAIMS_DIR "/%.255s", c->dir, name);
    unlink(path);
    return OK;
}

static enum err remove_own_claim(struct claims *c, const char *name, ino_t ino)
{
    return ino == c->peers[0].ino ? remove_claim(c, name, ino) : OK;
}

/* Removes the files of worker w. */
static void remove_worker(const struct claims *c, int w)
{
    static const char *const ends[] = {".partial", ".journal", ".tmp", CLAIMS_WORKER};
    char path[CLAIMS_PATH_BYTES];
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        claims_path(c, w, ends[i], path);
        unlink(path);
    }
}

void claims_close(struct claims *c)
{
    char path[CLAIMS_PATH_BYTES];
    if (!c)
        return;
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        if (c->state == WORKER_WORKING)
            c->state = WORKER_LEFT;
        pthread_cond_signal(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        beat_write(c);
    }
    const int ended = !has_job(c);
    if (c->fd >= 0 && (ended || !c->owns))
        remove_worker(c, 0);
    if (c->fd >= 0)
        close(c->fd);
    if (ended) {
        (void)list_dir(c, CLAIMS_DIR, remove_own_claim); // made while another worker removed them
        claims_path(c, -1, CLAIMS_DIR, path);
        (void)rmdir(path); // fails while files are in it, as the next
        (void)rmdir(c->dir);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->writing);
    free(c->peers);
    free(c->chunks);
    free(c);
}

enum err claims_remove(struct claims *c)
{
    /* The job behind the others, so that who finds it removes what a killed process left; then
     * again what a worker made just before that: claims_once() sees the rest. */
    static const char *const files[] = {CLAIMS_CAP, CLAIMS_OUT, CLAIMS_JOB, CLAIMS_CAP, CLAIMS_OUT};
    char path[CLAIMS_PATH_BYTES];
    TRY(claims_look(c));
    TRY(list_dir(c, CLAIMS_DIR, remove_claim));
    for (int w = 0; w < c->n_peers; w++)
        remove_worker(c, w);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        claims_path(c, -1, files[i], path);
        unlink(path);
    }
    return OK; // claims_close() removes the folders
}
