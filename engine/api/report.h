/* engine/api/report.h - what the user sees of a run: the progress line, the end report (predicted
 * and measured side by side, per lane), and the summary file.
 *
 * Owns: the words and figures on stderr and in --summary. Refuses: deciding anything, and stdout.
 * Use: run_plan -> report_open -> run.tick = report_tick, run.tick_ctx = &report -> run_walk (and
 * job_complete) -> report_end -> run_close. */
#ifndef ENGINE_API_REPORT_H
#define ENGINE_API_REPORT_H

#include <stdio.h>

#include "engine/api/run.h"

#define REPORT_SAMPLES 64 // of the last 30 seconds, one every half second

struct report_sample {
    int64_t ns, output_tokens, cpu_ns, gpu_ns, stall_ns;
    int64_t bytes[N_LANES]; // moved by each lane
};

struct report {
    const struct run *run; // borrowed
    enum config_progress progress;
    int color;       // 1: the terminal takes it and NO_COLOR is not set
    int shown;       // 1: a bar stands on the terminal
    int64_t last_ns; // when the line was drawn last
    struct report_sample samples[REPORT_SAMPLES]; // ring
    int64_t n_samples;
    double read_before;      // bytes/s of the pack, O_DIRECT, before the run; 0: not measured
    double measure_s;        // that this took; not the run's start-up
    struct json_t **summary; // where report_end puts the summary; NULL: not wanted
    int64_t rejected;        // rows that failed before this run computed anything
};

/* What is known at the end; every figure of the report and of the summary comes from here. */
struct report_figures {
    struct job_counts counts;
    enum err err;     // how the run ended
    char error[1024]; // its sentence, "" when err is OK
    double elapsed_s; // from step 0 to the last row durable (interrupted: to the last step)
    double walk_s;    // from step 0 to the last step
    double startup_s; // open, pack, probe, plan
    double passes;
    double output_per_s, total_per_s;
    double
        steady_per_s;  // 0: less than a pass lay between the first finished row and the empty queue
    const char *bound; // the lane that was busiest
    double read_rate;  // bytes/s of the roofline
    int rates_measured; // 1: reads before and after the run; 0: the probe's rate
    double roofline;    // required time / measured time; 0: no rate is known
    int64_t peak_ram_bytes, peak_disk_bytes, peak_device_bytes;
};

/* Reads --progress, and with --summary and streamed weights measures the pack for five seconds.
 * ERR_USAGE: bad --progress, or --summary in a directory that is not there. */
enum err report_open(struct report *report, const struct run *run);
/* Called every step with the report as ctx; looks at the clock and mostly returns. */
void report_tick(void *report);
/* Why rows failed: a line for each kind of error, with how many rows, the first of their lines, and
 * the flag that helps where there is one. ignored: what --ignore-fields names already. Nothing when
 * no row failed. */
void report_errors(const struct job_errors *errors, const struct ignore_list *ignored,
                   int is_dry_run, FILE *out);
/* The end report on stderr and the summary, also of a run that was stopped. Returns err, or the
 * summary's error when err is OK; the sentence of err stays the thread's last. */
enum err report_end(struct report *report, enum err err);

/* The parts of report_end, apart for tests. */
void report_measure(struct report_figures *f, const struct run *run,
                    const struct job_counts *counts, double read_rate_measured);
void report_print(const struct report_figures *f, const struct run *run, FILE *out);
/* What --summary writes. The caller owns it. */
struct json_t *report_summary_json(const struct report_figures *f, const struct run *run);
/* The part of a summary that a job has which found no row to run: no plan, no times. The caller
 * owns it. */
struct json_t *report_summary_done(const struct job_counts *counts, enum err err,
                                   const struct run *run);
/* Seconds of a pass that the plan gives a lane, the bytes that it says of the job, and the lane's
 * rate in bytes per second; 0: none. */
double report_lane_predicted(const struct run *run, enum lane lane);
double report_lane_predicted_bytes(const struct run *run, enum lane lane);
double report_lane_probed(const struct run *run, enum lane lane);
/* The lane's share of the predicted mean pass, and whether the plan names it as the limit. */
double report_lane_share(const struct run *run, enum lane lane);
int report_lane_limits(const struct run *run, enum lane lane);
/* 1 for lanes that have a line in the report and a place in the summary. */
int report_lane_shown(const struct run *run, enum lane lane);
/* The lane that bound the run between two samples. */
const char *report_bound_now(const struct run *run, const struct report_sample *from,
                             const struct report_sample *to);
/* One progress line without control characters, at most cap - 1 characters: what matters most comes
 * first, and a part that has no room is left out. left_s: seconds to the end; negative: not known.
 * Returns its length. */
int report_line(const struct report *report, const struct job_counts *counts, double left_s,
                char *text, int cap);
/* What a prediction is wrong by: (predicted - measured) / measured, in percent. Negative: the run
 * took longer than predicted. 0: nothing was measured. */
double report_error_percent(double predicted, double measured);

#endif
