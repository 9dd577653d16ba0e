/* engine/cli/devices.h - --devices: the GPUs of one machine share a job.
 *
 * Owns: one process a device, each a worker of the job's work directory (engine/job/claims.h): its
 * flags, budgets and CPUs; what the user sees of all of them. Refuses: rows, and any order among
 * the workers: the work directory has it. */
#ifndef ENGINE_CLI_DEVICES_H
#define ENGINE_CLI_DEVICES_H

#include "engine/api/config.h"

struct json_t;

/* Runs `command` of c in a process a device, until OUT is complete, no process is left, or a signal
 * has stopped them. *alone 1: there is one device; c names it and the caller runs the job. OK and
 * ERR_ROWS: OUT is complete, by at least one of them; ERR_STOPPED; ERR_USAGE: devices that do not
 * exist; else the error of the first process that failed. */
enum err devices_run(struct config *c, const char *command, int *alone);

/* In a process that devices_run() started: takes its CPUs, and leaves progress and --summary to the
 * parent. Anywhere else it does nothing. */
void devices_worker_begin(struct config *c);
/* 1: this is such a process; its summary goes to the parent by devices_tell(), which accepts NULL
 * and takes over the reference. */
int devices_is_worker(void);
void devices_tell(struct json_t *summary);

#endif
