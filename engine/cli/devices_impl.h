/* engine/cli/devices_impl.h - the processes of --devices, as their parent knows them; private to
 * devices*.c. */
#ifndef ENGINE_CLI_DEVICES_IMPL_H
#define ENGINE_CLI_DEVICES_IMPL_H

#include <jansson.h>
#include <sys/types.h>

#include "engine/cli/devices.h"
#include "engine/data/out.h"
#include "kernels/device.h"

#define WORKER_LINE_BYTES 1280

/* The process of one device. */
struct worker {
    char device[512]; // its --device
    const char *name; // the same without a folder, for messages
    pid_t pid;
    int running, ended;
    enum err code; // how it ended; by a signal: ERR_STOPPED
    int signal;    // 0: it ended by itself
    int64_t ended_ns;
    int lines_fd, told_fd; // its stderr; its summary; -1: closed
    char line[WORKER_LINE_BYTES];
    int n_line;
    char error[WORKER_LINE_BYTES]; // its error line
    struct out told;               // owned: the text of its summary
    json_t *summary;               // owned; NULL: it did not come to that
    int64_t rows;                  // that it has made durable, as far as is known
};

/* How far the job is. */
struct tally {
    int64_t rows, ok, failed, left, tokens; // tokens: durable, of unfinished rows as well
};

struct devices {
    const struct config *config; // borrowed
    const char *command;
    struct worker workers[DEVICES_MAX];
    int n, n_started;
    int no_more;                // 1: workers that have not been started never will be
    int stopping;               // 1: all were told to stop
    int nodes[DEVICES_MAX];     // NUMA node of each device; -1: unknown
    char dir[4200];             // the work directory
    int64_t ram, disk, threads; // of each process
    int shared_fd;              // owned: memory file for weights (engine/line/shared.h); -1: none
    uint64_t warned[32];        // hashes of warnings that were passed on
    int n_warned;
    struct tally before, now;
    int64_t start_ns, planned_ns; // planned_ns: the first worker had a plan; 0: not yet
    int64_t looked_ns, look_cost_ns, printed_ns;
    int shown; // 1: a bar is on the terminal
};

/* engine/cli/devices_report.c */
/* Where the job stands by its files; zeros: it has none yet. */
void devices_look(struct devices *d, struct tally *p);
/* Shows progress when it is time to. */
void devices_progress(struct devices *d);
/* Takes the bar from the terminal, so that a line can be printed. */
void devices_clear(struct devices *d);
/* Prints how the job ended and writes --summary. Returns err, or the error of the summary where err
 * is OK; the text of err is kept. */
enum err devices_report(struct devices *d, enum err err);

#endif
