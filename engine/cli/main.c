/* engine/cli/main.c - commands, signals, the exit code. The only exit() of the program. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/api/outputs.h"
#include "engine/api/version.h"
#include "engine/cli/commands.h"
#include "engine/cli/devices.h"
#include "engine/cli/help.h"
#include "engine/model/pack.h"
#include "kernels/base/thread.h"

#define LARGE_BYTES (1 << 20)
#define STACK_BYTES (512 << 10)

#define SAME_NS 200000000

static const struct {
    enum config_command id;
    enum err (*run)(const struct config *c);
} commands[] = {
    {CMD_RUN, command_run},     {CMD_GEN, command_gen},           {CMD_SCORE, command_score},
    {CMD_PLAN, command_plan},   {CMD_PROBE, command_probe},       {CMD_PACK, command_pack},
    {CMD_BENCH, command_bench}, {CMD_INSPECT, command_inspect},   {CMD_STATUS, command_status},
    {CMD_MERGE, command_merge}, {CMD_TOKENIZE, command_tokenize}, {CMD_CACHE, command_cache}};
#define N_COMMANDS (int)(sizeof commands / sizeof commands[0])

static atomic_int interrupted; // set by SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU

/* The first signal stops the run at the next step, the second at once: the journal stays valid.
 * Signals within SAME_NS count as one: timeout(1) signals its child, then its group. */
static void on_signal(int number)
{
    static _Atomic int64_t first_ns;
    int64_t now_ns = clock_ns();
    (void)number;
    if (!interrupted)
        first_ns = now_ns;
    else if (now_ns - first_ns > SAME_NS)
        _Exit(ERR_STOPPED);
    interrupted = 1;
}

#ifndef __SANITIZE_ADDRESS__
/* libhwloc crashes when it gets no memory (offload/machine.h): exits with a message and ERR_FIT. */
static void on_crash(int number)
{
    static const char text[] =
        "sluice: error: memory: libhwloc got none while reading the machine's topology\n";
    if (machine_in_library) {
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        _Exit(n > 0 ? ERR_FIT : ERR_INTERNAL);
    }
    signal(number, SIG_DFL); // the fault repeats and ends the process as before
}
#endif

static void catch_signals(void)
{
    /* SIGXCPU: ulimit -t. SIGUSR1: sent by Slurm before a job's time is over. A signal ignored at
     * the start stays ignored: nohup ignores SIGHUP, a script's `&` ignores SIGINT. */
    static const int stops[] = {SIGXCPU, SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    const struct sigaction stop = {.sa_handler = on_signal};
    struct sigaction before;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &stop, NULL);
#ifndef __SANITIZE_ADDRESS__ // ASan has its own
    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
#endif
    signal(SIGXFSZ, SIG_IGN); // exceeding a file size limit is then a write error
    signal(SIGPIPE, SIG_IGN);
}

/* Opens /dev/null for closed descriptors 0 to 2, else the next opened file would act as stdout. A
 * closed stdout becomes read-only, so writing data to it is an error, as on a full disk. */
static void keep_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

/* The exit code; ERR_IO if the text on stdout could not be written. */
static int finish(enum err err)
{
    int lost = ferror(stdout), flushed = fflush(stdout) == 0;
    if ((lost || !flushed) && (err == OK || err == ERR_ROWS))
        err = fail(ERR_IO, "stdout: cannot be written: %s",
                   flushed || errno == EBADF ? "closed, disk full, or its reader gone"
                                             : strerror(errno));
    if (err != OK && err != ERR_ROWS)
        fprintf(stderr, "sluice: error: %s\n", err_text());
    return err < 100 ? (int)err : (int)ERR_INTERNAL;
}

static enum err command_call(enum config_command id, const struct config *c)
{
    int i = 0;
    while (i < N_COMMANDS && !(commands[i].id & id))
        i++;
    CHECK(i < N_COMMANDS);
    return commands[i].run(c);
}

/* Checks variables that are numbers: a word would be read as 0. */
static enum err check_environment(void)
{
    static const struct {
        const char *name;
        int is_integer;
    } numbers[] = {{"SOURCE_DATE_EPOCH", 1}, {"SLUICE_SYNC_S", 0}, {"SLUICE_PROBE_SHARE", 0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *text = getenv(numbers[i].name);
        char *end = NULL;
        errno = 0;
        double x = text ? strtod(text, &end) : 0;
        if (text && (end == text || *end || errno || !(x >= 0 && x < 1e15) ||
                     (numbers[i].is_integer && strspn(text, "0123456789") != strlen(text))))
            return fail(ERR_USAGE, "%s: '%.100s' is not %s of at least 0 (unset it)",
                        numbers[i].name, text, numbers[i].is_integer ? "an integer" : "a number");
    }
    return OK;
}

/* In a container the user may have no home: then a job keeps packs beside OUT. */
static void cache_beside_out(const struct config *c, enum config_command command)
{
    char dir[4096], beside[4096];
    const char *asked = getenv("SLUICE_CACHE_DIR"); // a folder set by the user is not replaced
    if (!(command & (CMD_RUN | CMD_SCORE)) || !c->out || (asked && *asked) ||
        pack_cache_dir(dir, sizeof dir) == OK ||
        snprintf(beside, sizeof beside, "%s.cache", c->out) >= (int)sizeof beside)
        return;
    log_line(LOG_WARN, "%s; this job uses %s", err_text(), beside);
    pack_cache_use(beside);
}

static int sluice(int argc, char **argv)
{
    static struct config config;
    if (argc < 2) {
        help_usage(stderr);
        return ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        signal(SIGPIPE, SIG_DFL); // `sluice help | head` ends without an error
        return finish(help_words(argc - 2, argv + 2));
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ||
        strcmp(argv[1], "version") == 0) {
        version_print(argv[1][0] != '-' || (argc > 2 && strcmp(argv[2], "-v") == 0));
        return finish(OK);
    }
    const struct config_command_row *command = config_command_find(argc - 1, argv + 1);
    if (!command)
        return finish(config_command_unknown(argv[1]));
    enum err err = config_parse(&config, command->id, argc - 2, argv + 2);
    if (err != OK)
        return finish(err);
    config.interrupted = &interrupted;
    devices_worker_begin(&config);
    if (config.help) {
        signal(SIGPIPE, SIG_DFL); // as above
        help_command(command);
        return finish(OK);
    }
    log_level_max = config.quiet ? LOG_ERROR : config.verbose ? LOG_DEBUG : LOG_INFO;
    err = check_environment();
    if (err == OK)
        err = outputs_check(&config, command->id); // before any file is opened
    if (err == OK)
        cache_beside_out(&config, command->id);
    return finish(err == OK ? command_call(command->id, &config) : err);
}

struct call {
    int argc, code;
    char **argv;
};

static void *run_call(void *arg)
{
    struct call *call = arg;
    call->code = sluice(call->argc, call->argv);
    return NULL;
}

/* With a small `ulimit -s` the program runs on a thread with a larger stack. Signals are delivered
 * to that thread, so that its system calls are interrupted. */
static int run_apart(struct call *call)
{
    pthread_t thread;
    sigset_t all;
    if (thread_start(&thread, run_call, call) != 0)
        return sluice(call->argc, call->argv); // no thread available: use the small stack
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_join(thread, NULL);
    return call->code;
}

/* A function of its own: its frame is the growth. Only the deepest page is populated. */
static __attribute__((noinline)) void stack_touch(void)
{
    volatile char deepest[STACK_BYTES];
    deepest[0] = 0;
    (void)deepest[0];
}

/* Grows the stack to what the program needs, if there is memory for it: a stack that cannot grow
 * under `ulimit -v` later would end the process without a word. */
static enum err stack_grow(void)
{
    void *volatile room = malloc(LARGE_BYTES); // returned to the system when it is freed
    if (!room)
        return fail(ERR_FIT, "memory: the system refused %d bytes for the stack", LARGE_BYTES);
    free(room);
    stack_touch();
    return OK;
}

int main(int argc, char **argv)
{
    struct call call = {.argc = argc, .argv = argv};
    struct rlimit stack;
    mallopt(M_ARENA_MAX, 1); // memory freed by a thread serves all: the plan counts text once
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES); // buffers of a long line are returned to the system
    keep_standard_files();
    log_begin();
    catch_signals();
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < THREAD_STACK_BYTES)
        return run_apart(&call);
    const enum err err = stack_grow();
    return err == OK ? sluice(argc, argv) : finish(err);
}
