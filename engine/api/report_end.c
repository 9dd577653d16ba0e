/* engine/api/report_end.c - see report.h: the end report.
 *
 * Owns: which figures the end report has, their order and words: rows and speed first, the
 * prediction beside the measurement last. Refuses: arithmetic of figures (report_summary.c). */
#include "engine/api/report.h"

#include <string.h>

#include "engine/api/replan.h"
#include "engine/api/words.h"

#define SMALL_ROWS 8    // a job with fewer rows
#define SMALL_S    10.0 // and fewer seconds gets a report of three lines
#define MIB        1048576.0

double report_error_percent(double predicted, double measured)
{
    return measured > 0 ? 100 * (predicted - measured) / measured : 0;
}

static const char *ending(enum err err)
{
    return err == OK || err == ERR_ROWS ? "done" : err == ERR_STOPPED ? "stopped" : "failed";
}

static void print_rows(const struct report_figures *f, const struct run *r, FILE *out)
{
    const struct job_counts *n = &f->counts;
    char speed[WORDS_BYTES], failed[40] = "", all[WORDS_BYTES], mid[WORDS_BYTES], s[WORDS_BYTES];
    if (n->failed > 0)
        snprintf(failed, sizeof failed, ", %lld failed", (long long)n->failed);
    fprintf(out, "%s: %lld of %lld rows ok%s; %s output tokens/s\n", ending(f->err),
            (long long)n->ok, (long long)n->rows, failed, words_digits(f->output_per_s, speed));
    if (n->failed > 0 && r->job)
        report_errors(job_errors(r->job), job_ignore(r->job), 0, out);
    fprintf(out, "  %lld prompt + %lld output tokens in %s s: %s tokens/s",
            (long long)n->prompt_tokens, (long long)n->output_tokens, words_digits(f->elapsed_s, s),
            words_digits(f->total_per_s, all));
    if (f->steady_per_s > 0)
        fprintf(out, "; %s output tokens/s between the first finished row and the last new one",
                words_digits(f->steady_per_s, mid));
    fputs("\n", out);
}

/* 1: the run used this resource, or the plan said that the run would. */
static int is_used(const struct run *r, enum lane lane)
{
    const struct lane_total *total = &r->engine.trace.totals[lane];
    int computes = lane == LANE_CPU || lane == LANE_GPU || lane == LANE_STALL;
    return computes ? total->busy_ns > 0 || report_lane_predicted(r, lane) > 0
                    : total->bytes > 0 || report_lane_predicted_bytes(r, lane) > 0;
}

static void print_lane(const struct report_figures *f, const struct run *r, FILE *out,
                       enum lane lane)
{
    const struct lane_total *total = &r->engine.trace.totals[lane];
    double busy_s = (double)total->busy_ns * 1e-9, mib = (double)total->bytes / MIB;
    char predicted[WORDS_BYTES] = "-", measured[WORDS_BYTES], busy[WORDS_BYTES];
    if (lane != LANE_STALL)
        words_digits(report_lane_predicted(r, lane), predicted);
    fprintf(out, "  %-22s %9s %9s %6s %%", words_resource(lane_name(lane)), predicted,
            words_digits(f->passes > 0 ? busy_s / f->passes : 0, measured),
            words_digits(f->walk_s > 0 ? 100 * busy_s / f->walk_s : 0, busy));
    if (total->bytes > 0) {
        char amount[WORDS_BYTES], rate[WORDS_BYTES], probed[WORDS_BYTES];
        words_digits(mib < 1024 ? mib : mib / 1024, amount);
        words_digits(busy_s > 0 ? (double)total->bytes / busy_s * 1e-9 : 0, rate);
        fprintf(out, "  %s %s at %s GB/s (probe: %s)", amount, mib < 1024 ? "MiB" : "GiB", rate,
                words_digits(report_lane_probed(r, lane) * 1e-9, probed));
    }
    fputs("\n", out);
}

static void print_resources(const struct report_figures *f, const struct run *r, FILE *out)
{
    char predicted[WORDS_BYTES], measured[WORDS_BYTES];
    fprintf(out, "  %-22s %9s %9s %8s\n", "seconds a pass", "predicted", "measured", "busy");
    for (int lane = 0; lane < N_LANES; lane++)
        if (is_used(r, (enum lane)lane))
            print_lane(f, r, out, (enum lane)lane);
    fprintf(out, "  %-22s %9s %9s           %.0f passes (predicted: %.0f)\n", "a whole pass",
            words_digits(r->decision.time.pass_s, predicted),
            words_digits(f->passes > 0 ? f->walk_s / f->passes : 0, measured), f->passes,
            r->decision.time.passes);
}

static void print_memory(const struct report_figures *f, const struct run *r, FILE *out)
{
    char peak[WORDS_BYTES], budget[WORDS_BYTES];
    fprintf(out, "  memory: at most %s of %s MiB of RAM",
            words_digits((double)f->peak_ram_bytes / MIB, peak),
            words_digits((double)r->budget.ram / MIB, budget));
    if (r->decision.plan.device)
        fprintf(out, ", %s of %s MiB of device memory",
                words_digits((double)f->peak_device_bytes / MIB, peak),
                words_digits((double)r->budget.device / MIB, budget));
    if (f->peak_disk_bytes > 0)
        fprintf(out, ", %s MiB of disk", words_digits((double)f->peak_disk_bytes / MIB, peak));
    fputs("\n", out);
}

void report_print(const struct report_figures *f, const struct run *r, FILE *out)
{
    const struct plan_time *t = &r->decision.time;
    const int small = f->counts.rows < SMALL_ROWS && f->elapsed_s < SMALL_S;
    const int brief = small && log_level_max < LOG_DEBUG;
    char predicted[WORDS_BYTES], measured[WORDS_BYTES], start[WORDS_BYTES];
    print_rows(f, r, out);
    if (!brief) {
        print_resources(f, r, out);
        fprintf(out, "  limited by %s", words_resource(f->bound));
        if (t->bound && strcmp(t->bound, f->bound) != 0)
            fprintf(out, " (predicted: %s)", words_resource(t->bound));
        if (f->roofline > 0)
            fprintf(out, "; %.2f of the speed that %s allow", f->roofline,
                    f->rates_measured ? "rates measured beside the run" : "the probed rates");
        fputs("\n", out);
        print_memory(f, r, out);
    }
    if (replan_count(r->replan) > 0)
        fprintf(out, "  the plan changed %d times; predictions are those of the first plan\n",
                replan_count(r->replan));
    fprintf(out, "  job: predicted %s s, measured %s s", words_digits(t->job_s, predicted),
            words_digits(f->elapsed_s, measured));
    if (t->job_s > 0 && (f->err == OK || f->err == ERR_ROWS))
        fprintf(out, " (%+.1f %%)", report_error_percent(t->job_s, f->elapsed_s));
    fprintf(out, ", after %s s to start%s\n", words_digits(f->startup_s, start),
            brief ? " (-v: more)" : "");
}
