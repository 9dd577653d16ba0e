/* engine/api/report.h - what the user sees of a run: the progress line, the end report (predicted
 * and measured side by side, per lane), and the summary file.
 *
 * Owns: the words and figures on stderr and in --summary. Refuses: any decision, and stdout. Use:
 * run_plan -> report_open -> run.tick = report_tick, run.tick_ctx = &report -> run_walk (and
 * job_complete) -> report_end -> run_close. */
#ifndef ENGINE_API_REPORT_H
#define ENGINE_API_REPORT_H

#include <stdio.h>

#include "engine/api/run.h"

#define REPORT_SAMPLES 64 // the last 30 seconds, one sample every half second

struct report_sample {
    int64_t ns, output_tokens, cpu_ns, gpu_ns, stall_ns;
    int64_t bytes[N_LANES]; // moved by each lane
};

struct report {
    const struct run *run; // borrowed
    enum config_progress progress;
    int color;       // 1: the terminal supports color and NO_COLOR is not set
    int shown;       // 1: a bar is on the terminal
    int64_t last_ns; // time when the line was last drawn
    struct report_sample samples[REPORT_SAMPLES]; // ring buffer
    int64_t n_samples;
    double read_before; // bytes/s of O_DIRECT reads of the pack before the run; 0: not measured
    double measure_s;   // seconds of that measurement, which are not part of startup_s
    struct json_t **summary; // where report_end puts the summary; NULL: not wanted
    int64_t rejected;        // rows that failed before this run computed anything
};

/* Figures at the end of a run. The report and the summary print only these. */
struct report_figures {
    struct job_counts counts;
    enum err err;     // how the run ended
    char error[1024]; // its sentence, "" when err is OK
    double elapsed_s; // from step 0 to the last durable row (interrupted: to the last step)
    double walk_s;    // from step 0 to the last step
    double startup_s; // open, pack, probe, plan
    double passes;
    double output_per_s, total_per_s;
    double steady_per_s; // 0: less than one pass between the first finished row and the empty queue
    const char *bound;   // the busiest lane
    double read_rate;    // read bytes/s used by the roofline
    int rates_measured;  // 1: measured before and after the run; 0: the probed rate
    double roofline;     // required time / measured time; 0: rate unknown
    int64_t peak_ram_bytes, peak_disk_bytes, peak_device_bytes;
};

/* Reads --progress. With --summary and streamed weights, measures reads of the pack for five
 * seconds. ERR_USAGE: bad --progress, or the directory of --summary does not exist. */
enum err report_open(struct report *report, const struct run *run);
/* Called every step with the report as ctx; most calls only read the clock. */
void report_tick(void *report);
/* Prints why rows failed: per kind of error the number of rows, the first line numbers, and the
 * flag that helps, if any. ignored: the fields already named by --ignore-fields. Prints nothing
 * without failed rows. */
void report_errors(const struct job_errors *errors, const struct ignore_list *ignored,
                   int is_dry_run, FILE *out);
/* Prints the end report on stderr and writes the summary, also for a stopped run. Returns err, or
 * the summary's error when err is OK; err_text() of err is kept. */
enum err report_end(struct report *report, enum err err);

/* The parts of report_end, public for tests. */
void report_measure(struct report_figures *f, const struct run *run,
                    const struct job_counts *counts, double read_rate_measured);
void report_print(const struct report_figures *f, const struct run *run, FILE *out);
/* The content of --summary. The caller owns it. */
struct json_t *report_summary_json(const struct report_figures *f, const struct run *run);
/* The summary of a job that had no rows left to run: no plan, no times. The caller owns it. */
struct json_t *report_summary_done(const struct job_counts *counts, enum err err,
                                   const struct run *run);
/* Of a lane: predicted seconds per pass and bytes of the job, probed bytes per second; 0: none. */
double report_lane_predicted(const struct run *run, enum lane lane);
double report_lane_predicted_bytes(const struct run *run, enum lane lane);
double report_lane_probed(const struct run *run, enum lane lane);
/* The lane's share of the predicted mean pass, and 1 if the plan names the lane as the limit. */
double report_lane_share(const struct run *run, enum lane lane);
int report_lane_limits(const struct run *run, enum lane lane);
/* 1 for lanes that appear in the report and in the summary. */
int report_lane_shown(const struct run *run, enum lane lane);
/* The lane that limited the run between two samples. */
const char *report_bound_now(const struct run *run, const struct report_sample *from,
                             const struct report_sample *to);
/* One progress line without control characters, at most cap - 1 characters. The most important
 * parts come first; parts that do not fit are left out. left_s: seconds to the end; negative:
 * unknown. Returns the length. */
int report_line(const struct report *report, const struct job_counts *counts, double left_s,
                char *text, int cap);
/* The error of a prediction in percent: (predicted - measured) / measured. Negative: the run was
 * slower than predicted. 0: nothing was measured. */
double report_error_percent(double predicted, double measured);

#endif
