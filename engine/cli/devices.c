/* engine/cli/devices.c - see devices.h: which devices, what each process gets, and its life.
 *
 * Note: the first process packs the model, measures the machine and plans before the others start:
 * they find pack and rates in the cache, and no process measures while another works. Its plan also
 * decides which weights all share in RAM, before any other process takes memory. Who takes
 * over the rows of a process that died is not decided here (engine/job/claims.h). */
#include "engine/cli/devices_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/job/claims.h"
#include "engine/line/shared.h"
#include "engine/model/model.h"
#include "engine/model/pack.h"
#include "offload/machine.h"
#include "offload/probe.h"

#define WORKER_ENV  "SLUICE_DEVICES_WORKER" // "PART,SHARED_FD,NODE...": set for a worker only
#define TOLD_FD     3                       // of a worker: its summary
#define SHARED_FD   4                       // of a worker: the memory file for weights
#define FLAGS_ADDED 10
#define WAIT_MS     100
#define MIB         (1 << 20)
/* Every process may use this much RAM for code beside its --mem-ram. */
#define CODE_BYTES ((int64_t)24 * MIB)

extern char **environ;

/* ---- which devices ---- */

/* Numbers of "0,2" in order. ERR_USAGE: not such a list, or a number comes twice. */
static enum err read_numbers(const char *value, const char *list, long *numbers, int *n)
{
    *n = 0;
    for (const char *at = list; *n < DEVICES_MAX; at++) {
        char *end;
        numbers[*n] = strtol(at, &end, 10);
        if (*at < '0' || *at > '9' || (*end && *end != ','))
            break;
        for (int i = 0; i < *n; i++)
            if (numbers[i] == numbers[*n])
                return fail(ERR_USAGE, "--devices %s: %ld is given twice", value, numbers[i]);
        ++*n;
        if (!*end)
            return OK;
        at = end;
    }
    return fail_choice("devices", value, "all|0,2");
}

/* "all", "0,2", or either of another kind than cuda: "PATH.so:0,2". */
static enum err find_devices(struct devices *d, const char *value)
{
    struct device_place places[DEVICES_MAX];
    const char *colon = strrchr(value, ':'), *list = colon ? colon + 1 : value;
    const char *kind = colon ? value : "cuda";
    const int n_kind = colon ? (int)(colon - value) : 4, all = strcmp(list, "all") == 0;
    long numbers[DEVICES_MAX];
    int there = 0;
    if (!all)
        TRY(read_numbers(value, list, numbers, &d->n));
    TRY(device_count(kind, n_kind, places, &there));
    d->n = all ? there : d->n;
    for (int i = 0; i < d->n; i++) {
        struct worker *w = &d->workers[i];
        const int k = all ? i : (int)min_i64(numbers[i], there);
        if (k >= there)
            return fail(ERR_USAGE,
                        "--devices %s: there is no device %ld (this machine has 0 to %d)", value,
                        numbers[i], there - 1);
        if (snprintf(w->device, sizeof w->device, "%.*s:%d", n_kind, kind, k) >=
            (int)sizeof w->device)
            return fail(ERR_USAGE, "--devices: the path is too long");
        w->name = strrchr(w->device, '/') ? strrchr(w->device, '/') + 1 : w->device;
        w->lines_fd = w->told_fd = -1;
        d->nodes[i] = machine_pci_node("", places[k].pci);
    }
    return OK;
}

/* ---- the work directory ---- */

static int has(const struct devices *d, const char *file)
{
    char path[CLAIMS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", d->dir, file);
    return access(path, F_OK) == 0;
}

static int is_empty(const char *dir)
{
    DIR *folder = opendir(dir);
    int n = 0;
    while (folder && n <= 2 && readdir(folder)) // "." and ".."
        n++;
    if (folder)
        closedir(folder);
    return folder && n <= 2;
}

/* --work-dir, or OUT.work. What a user has there under that name by chance is left alone. */
static enum err find_folder(struct devices *d)
{
    const struct config *c = d->config;
    struct stat st;
    if (snprintf(d->dir, sizeof d->dir, "%s%s", c->work_dir ? c->work_dir : c->out,
                 c->work_dir ? "" : ".work") >= CLAIMS_PATH_BYTES / 2)
        return fail(ERR_USAGE, "%.512s: the path is too long", c->out);
    if (c->work_dir || lstat(d->dir, &st) != 0)
        return OK;
    if (!S_ISDIR(st.st_mode) || !(has(d, CLAIMS_JOB) || has(d, CLAIMS_DIR) || is_empty(d->dir)))
        return fail(ERR_USAGE,
                    "%.512s: --devices: is there, and is not the folder of a job (--work-dir DIR "
                    "names another)",
                    d->dir);
    return OK;
}

/* Removes OUT.work after a refusal: no worker has planned, so none has a row. Each call fails while
 * other files are in the way. */
static void drop_folder(const struct devices *d)
{
    static const char *const files[] = {CLAIMS_JOB, CLAIMS_OUT};
    char path[CLAIMS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/" CLAIMS_DIR, d->dir);
    if (d->config->work_dir || has(d, CLAIMS_CAP) || rmdir(path) != 0)
        return;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", d->dir, files[i]);
        unlink(path);
    }
    rmdir(d->dir);
}

/* ---- what each process gets ---- */

/* Where a run without --offload-dir has its files: beside the pack. */
static enum err offload_folder(const struct config *c, char *dir, int cap)
{
    if (!c->offload_dir && !(c->model && model_is_pack(c->model)))
        return pack_cache_dir(dir, cap);
    snprintf(dir, (size_t)cap, "%s", c->offload_dir ? c->offload_dir : c->model);
    char *slash = strrchr(dir, '/');
    if (!c->offload_dir)
        snprintf(slash ? slash + (slash == dir) : dir, 2, slash ? "" : ".");
    return OK;
}

static enum err divide(struct devices *d)
{
    const struct config *c = d->config;
    struct machine_info info;
    char dir[4096];
    int64_t ram, disk;
    TRY(offload_folder(c, dir, sizeof dir));
    TRY(machine_read(&info, dir));
    machine_room(&info, &ram, &disk);
    if (c->machine) {
        struct machine m = {0};
        TRY(machine_file_read(&m, c->machine));
        ram = m.ram > 0 ? min_i64(ram, m.ram) : ram;
        disk = m.disk > 0 ? min_i64(disk, m.disk) : disk;
    }
    ram = c->mem_ram >= 0 ? c->mem_ram : ram;
    disk = c->mem_disk >= 0 ? c->mem_disk : disk;
    d->ram = ram / d->n - CODE_BYTES;
    d->disk = disk / d->n < MIB ? 0 : disk / d->n; // flags take no smaller sizes
    d->threads = max_i64((c->threads > 0 ? c->threads : info.n_threads) / d->n, 1);
    if (d->ram < MIB)
        return fail(ERR_FIT,
                    "--mem-ram: %.1f MiB are too few for %d processes, which need %d MiB each for "
                    "code alone (more --mem-ram, or fewer --devices)",
                    (double)ram / MIB, d->n, (int)(CODE_BYTES / MIB) + 1);
    return OK;
}

/* ---- a worker's process ---- */

static int worker_part = -1; // of this process

void devices_worker_begin(struct config *c)
{
    const char *text = getenv(WORKER_ENV);
    int nodes[DEVICES_MAX], n = 0;
    if (!text)
        return;
    char *at;
    worker_part = (int)strtol(text, &at, 10);
    c->shared_fd = *at == ',' ? (int)strtol(at + 1, &at, 10) : 0;
    if (c->shared_fd > 0)
        (void)fcntl(c->shared_fd, F_SETFD, FD_CLOEXEC);
    while (*at == ',' && n < DEVICES_MAX)
        nodes[n++] = (int)strtol(at + 1, &at, 10);
    unsetenv(WORKER_ENV);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); // a parent that was killed leaves no process behind
    if (worker_part < n)
        machine_share_cpus(nodes, n, worker_part);
    c->workers = n;
    c->devices = NULL;
    c->summary = NULL;
    c->progress = PROGRESS_NONE;
}

int devices_is_worker(void)
{
    return worker_part >= 0;
}

void devices_tell(struct json_t *summary)
{
    if (summary)
        (void)json_dumpfd(summary, TOLD_FD, JSON_COMPACT);
    json_decref(summary);
}

/* The user's words, then flags that win over them. */
static int spawn(const struct devices *d, const struct worker *w, posix_spawn_file_actions_t *files,
                 pid_t *pid)
{
    const struct config *c = d->config;
    char ram[24], disk[24], threads[24], env[32 + 12 * DEVICES_MAX];
    const char *added[FLAGS_ADDED] = {"--device",  w->device, "--work-dir", d->dir,
                                      "--mem-ram", ram,       "--mem-disk", disk,
                                      "--threads", threads};
    char **argv = calloc((size_t)c->n_words + FLAGS_ADDED + 3, sizeof *argv);
    if (!argv)
        return ENOMEM;
    snprintf(ram, sizeof ram, "%lld", (long long)d->ram);
    snprintf(disk, sizeof disk, "%lld", (long long)d->disk);
    snprintf(threads, sizeof threads, "%lld", (long long)d->threads);
    int n = snprintf(env, sizeof env, "%d,%d", (int)(w - d->workers),
                     d->shared_fd >= 0 ? SHARED_FD : 0);
    for (int i = 0; i < d->n; i++)
        n += snprintf(env + n, sizeof env - (size_t)n, ",%d", d->nodes[i]);
    argv[0] = (char *)(uintptr_t) "sluice";
    argv[1] = (char *)(uintptr_t)d->command;
    memcpy(argv + 2, c->words, (size_t)c->n_words * sizeof *argv);
    memcpy(argv + 2 + c->n_words, added, sizeof added);
    setenv(WORKER_ENV, env, 1);
    const int why = posix_spawn(pid, "/proc/self/exe", files, NULL, argv, environ);
    unsetenv(WORKER_ENV);
    free(argv);
    return why;
}

static void start(struct devices *d, struct worker *w)
{
    posix_spawn_file_actions_t files;
    int lines[2] = {-1, -1}, told[2] = {-1, -1};
    int why = pipe2(lines, O_CLOEXEC) != 0 || pipe2(told, O_CLOEXEC) != 0 ? errno : 0;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, lines[1], STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&files, told[1], TOLD_FD);
    if (d->shared_fd >= 0)
        posix_spawn_file_actions_adddup2(&files, d->shared_fd, SHARED_FD);
    why = why ? why : spawn(d, w, &files, &w->pid);
    posix_spawn_file_actions_destroy(&files);
    for (int i = 0; i < 2; i++)
        if ((i ? told : lines)[1] >= 0)
            close((i ? told : lines)[1]);
    w->lines_fd = lines[0];
    w->told_fd = told[0];
    w->running = !why;
    d->n_started++;
    if (!why)
        return;
    w->ended = 1;
    w->ended_ns = clock_ns();
    w->code = ERR_FIT;
    snprintf(w->error, sizeof w->error, "cannot start a process: %s", strerror(why));
}

/* ---- what a worker says ---- */

/* 1 if a warning is new: workers of one job have many in common. */
static int is_new(struct devices *d, const char *text)
{
    const uint64_t hash = hash_bytes(text, (int64_t)strlen(text), 0);
    for (int i = 0; i < d->n_warned; i++)
        if (d->warned[i] == hash)
            return 0;
    if (d->n_warned < (int)(sizeof d->warned / sizeof d->warned[0]))
        d->warned[d->n_warned++] = hash;
    return 1;
}

/* One line of a worker's stderr. Its error is for the end; warnings are passed on, and what the
 * first worker says of the job; the rest is detail. */
static void take_line(struct devices *d, struct worker *w)
{
    static const char error[] = "sluice: error: ";
    const size_t n_error = strlen(error);
    char level[8] = "";
    int at = 0;
    if (strncmp(w->line, error, n_error) == 0) {
        snprintf(w->error, sizeof w->error, "%s", w->line + n_error);
        return;
    }
    const int logged = sscanf(w->line, "%*fs %7s %n", level, &at) == 1 && at > 0;
    const int warns = logged && strcmp(level, "warn") == 0;
    const int tells = logged && strcmp(level, "info") == 0 && w == d->workers;
    if (warns && !is_new(d, w->line + at))
        return;
    devices_clear(d);
    log_line(warns   ? LOG_WARN
             : tells ? LOG_INFO
                     : LOG_DEBUG,
             "%s: %s", w->name, w->line + (logged ? at : 0));
}

static void take_text(struct devices *d, struct worker *w, const char *text, ssize_t n)
{
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] != '\n' && w->n_line < WORKER_LINE_BYTES - 1) {
            w->line[w->n_line++] = text[i];
        } else if (text[i] == '\n') {
            w->line[w->n_line] = 0;
            take_line(d, w);
            w->n_line = 0;
        }
    }
}

/* Reads what is there; closes a pipe at its end. */
static void read_pipe(struct devices *d, struct worker *w, int *fd)
{
    char text[4096];
    ssize_t n = read(*fd, text, sizeof text);
    if (n < 0 && errno == EINTR)
        return;
    if (n > 0 && fd == &w->lines_fd)
        take_text(d, w, text, n);
    else if (n > 0)
        out_bytes(&w->told, text, n);
    if (n > 0)
        return;
    close(*fd);
    *fd = -1;
}

static void listen_to(struct devices *d, int wait_ms)
{
    struct pollfd fds[2 * DEVICES_MAX];
    int *ends[2 * DEVICES_MAX];
    struct worker *of[2 * DEVICES_MAX];
    int n = 0;
    for (int i = 0; i < d->n_started; i++)
        for (int k = 0; k < 2; k++) {
            struct worker *w = &d->workers[i];
            int *fd = k ? &w->told_fd : &w->lines_fd;
            if (*fd < 0)
                continue;
            fds[n] = (struct pollfd){.fd = *fd, .events = POLLIN};
            ends[n] = fd;
            of[n++] = w;
        }
    if (poll(fds, (nfds_t)n, wait_ms) <= 0)
        return;
    for (int i = 0; i < n; i++)
        if (fds[i].revents)
            read_pipe(d, of[i], ends[i]);
}

/* ---- the life of the workers ---- */

static int is_done(enum err code)
{
    return code == OK || code == ERR_ROWS;
}

/* A failure that every device would meet alike. */
static int is_shared(enum err code)
{
    return is_done(code) || code == ERR_USAGE || code == ERR_INPUT || code == ERR_STOPPED;
}

static void take_end(struct devices *d, struct worker *w, int status)
{
    while (w->lines_fd >= 0) // to the end of both
        read_pipe(d, w, &w->lines_fd);
    while (w->told_fd >= 0)
        read_pipe(d, w, &w->told_fd);
    w->running = 0;
    w->ended = 1;
    w->ended_ns = clock_ns();
    w->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    w->code = w->signal ? ERR_STOPPED : (enum err)WEXITSTATUS(status);
    w->summary = w->told.failed ? NULL : json_loadb(w->told.p, (size_t)w->told.n, 0, NULL);
    const json_t *rows = json_object_get(json_object_get(w->summary, "worker"), "rows");
    w->rows = rows ? json_integer_value(rows) : w->rows;
    if (!w->signal)
        return;
    claims_bury(d->dir, w->pid);
    snprintf(w->error, sizeof w->error, "ended by signal %d (%s); the same command resumes",
             w->signal, strsignal(w->signal));
}

/* Tells of a worker that failed while others can do its rows. */
static void warn_of(struct devices *d, const struct worker *w)
{
    int others = d->n_started < d->n && !d->no_more;
    for (int i = 0; i < d->n_started; i++)
        others |= d->workers[i].running;
    if (is_done(w->code) || (w->code == ERR_STOPPED && !w->signal) || d->stopping || !others)
        return;
    devices_clear(d);
    if (w->signal)
        log_line(LOG_WARN, "%s: ended by signal %d (%s); the other devices take over its rows",
                 w->name, w->signal, strsignal(w->signal));
    else
        log_line(LOG_WARN, "%s: exit %d: %s; the other devices take over its rows", w->name,
                 (int)w->code, w->error);
}

static void reap(struct devices *d)
{
    for (int i = 0; i < d->n_started; i++) {
        struct worker *w = &d->workers[i];
        int status;
        if (w->running && waitpid(w->pid, &status, WNOHANG) == w->pid) {
            take_end(d, w, status);
            d->no_more |= d->n_started == 1 && !w->signal && is_shared(w->code);
            warn_of(d, w);
        }
    }
}

static int any_running(const struct devices *d)
{
    int n = 0;
    for (int i = 0; i < d->n_started; i++)
        n += d->workers[i].running;
    return n > 0;
}

/* A memory file whose descriptor is above those that a worker gets. Without it each process has its
 * own weights. */
static int make_shared(void)
{
    const int fd = shared_make();
    const int above = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, SHARED_FD + 1);
    if (fd >= 0)
        close(fd);
    return above;
}

/* 1 when the others may start: the first has planned and decided what all share. If it ended before
 * that, they share nothing. */
static int may_start(struct devices *d)
{
    const int decided = d->shared_fd < 0 || shared_decided(d->shared_fd);
    if (d->n_started > 1 || (d->planned_ns && decided))
        return 1;
    if (d->workers[0].ended && !decided) {
        close(d->shared_fd);
        d->shared_fd = -1;
    }
    return d->workers[0].ended;
}

static void live(struct devices *d)
{
    const struct config *c = d->config;
    start(d, &d->workers[0]);
    while (any_running(d) || (d->n_started < d->n && !d->no_more)) {
        if (!d->planned_ns && has(d, CLAIMS_CAP))
            d->planned_ns = clock_ns();
        while (d->n_started < d->n && !d->no_more && may_start(d))
            start(d, &d->workers[d->n_started]);
        listen_to(d, WAIT_MS);
        reap(d);
        if (*c->interrupted && !d->stopping) {
            d->stopping = d->no_more = 1;
            for (int i = 0; i < d->n_started; i++)
                if (d->workers[i].running)
                    kill(d->workers[i].pid, SIGTERM);
        }
        devices_progress(d);
    }
}

/* What became of the job. Who stopped in time tells more than who failed; then the first counts. */
static enum err outcome(const struct devices *d)
{
    const struct worker *first = NULL;
    for (int i = 0; i < d->n_started; i++) {
        const struct worker *w = &d->workers[i];
        if (is_done(w->code))
            return w->code;
        const int stopped = w->code == ERR_STOPPED && !w->signal;
        const int before = first && first->code == ERR_STOPPED && !first->signal;
        if (!first || stopped > before || (stopped == before && w->ended_ns < first->ended_ns))
            first = w;
    }
    if (d->stopping)
        return fail(ERR_STOPPED, "interrupted; the same command resumes");
    if (first->code == ERR_FIT)
        return fail(ERR_FIT,
                    "%s: %s; sizes are those of one of %d processes: --mem-ram is for all, and %d "
                    "MiB of it are for each one's code",
                    first->name, first->error, d->n, (int)(CODE_BYTES / MIB));
    return fail(first->code, "%s: %s", first->name, first->error);
}

static enum err run_all(struct devices *d)
{
    TRY(divide(d));
    d->shared_fd = make_shared();
    devices_look(d, &d->before);
    d->start_ns = d->printed_ns = clock_ns();
    log_line(LOG_INFO,
             "devices: %d processes share the job in %s; each has %.0f MiB of RAM and %lld "
             "thread%s",
             d->n, d->dir, (double)d->ram / MIB, (long long)d->threads, d->threads == 1 ? "" : "s");
    live(d);
    if (d->shared_fd >= 0)
        close(d->shared_fd);
    enum err err = devices_report(d, outcome(d));
    if (!is_done(err) && !d->stopping)
        drop_folder(d);
    return err;
}

enum err devices_run(struct config *c, const char *command, int *alone)
{
    struct devices *d = calloc(1, sizeof *d);
    *alone = 0;
    if (!d)
        return fail(ERR_FIT, "no memory for --devices");
    d->config = c;
    d->command = command;
    enum err err = find_devices(d, c->devices);
    if (err == OK)
        err = find_folder(d);
    if (err == OK && d->n == 1) {
        static char device[sizeof d->workers[0].device], dir[sizeof d->dir];
        snprintf(device, sizeof device, "%s", d->workers[0].device);
        snprintf(dir, sizeof dir, "%s", d->dir);
        c->device = device;
        if (has(d, CLAIMS_JOB)) // begun on more devices
            c->work_dir = dir;
        *alone = 1;
    } else if (err == OK) {
        err = run_all(d);
    }
    for (int i = 0; i < d->n; i++) {
        out_free(&d->workers[i].told);
        json_decref(d->workers[i].summary);
    }
    free(d);
    return err;
}
