/* engine/app/report.c - see report.h: the progress line and the end report.
 *
 * Owns: when a line is drawn (four times a second on a terminal, every ten seconds elsewhere) and
 * how it reads. Refuses: anything on stdout. A newcomer would miss: percent counts tokens of work,
 * not rows, because rows finish in bursts; and a row that stops early takes its unused tokens out
 * of the count, so rows have a say too. */
#include "engine/app/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/app/replan.h"
#include "offload/disk_probe.h"

#define BAR_NS     250000000LL
#define LINES_NS   10000000000LL
#define SAMPLE_NS  500000000LL
#define WINDOW_NS  30000000000LL
#define ROOFLINE_S 5.0
#define WORTH_S    30.0 // a run predicted shorter than this is not worth ten seconds of reads
#define LINE_BYTES 400
#define SMALL_ROWS 8    // fewer rows than this, over within
#define SMALL_S    10.0 // so many seconds, end in three lines
#define MIB        1048576.0

/* ---- opening ---- */

static enum err read_progress(struct report *p, const struct config *c)
{
    int tty = isatty(STDERR_FILENO);
    const char *name = c->progress ? c->progress : "auto";
    if (strcmp(name, "auto") == 0)
        p->progress = tty ? PROGRESS_BAR : PROGRESS_LINES;
    else if (strcmp(name, "bar") == 0)
        p->progress = PROGRESS_BAR;
    else if (strcmp(name, "lines") == 0)
        p->progress = PROGRESS_LINES;
    else if (strcmp(name, "none") != 0)
        return fail(ERR_USAGE, "--progress: '%s' is none of auto|bar|lines|none", name);
    if (c->quiet)
        p->progress = PROGRESS_NONE;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    p->color = tty && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
    return OK;
}

static int streams_weights(const struct run *r)
{
    return r->plan.resident + r->plan.weights_ram < r->plan.layers - 1;
}

/* Bytes per second of the pack itself by O_DIRECT; 0 when it cannot be measured, as where layers of
 * dummy weights were never written: holes cost nothing to read. 1 MiB x 4 keeps the memory that
 * this takes small, since the run's budget is spent. */
static double read_rate(const struct run *r)
{
    struct disk_probe d;
    struct disk_load load = {
        .io = r->io, .block_bytes = 1 << 20, .depth = 4, .seconds_max = ROOFLINE_S};
    double rate = 0;
    if (disk_probe_open_file(&d, r->opened.pack_path) != OK)
        return 0;
    if (lseek(d.fd, 0, SEEK_HOLE) < d.file_bytes || disk_probe_rate(&d, &load, &rate) != OK)
        rate = 0;
    disk_probe_close(&d);
    return rate;
}

enum err report_open(struct report *p, const struct run *run)
{
    *p = (struct report){.run = run};
    TRY(read_progress(p, run->config));
    if (run->config->summary) {
        int64_t start_ns = clock_ns();
        if (streams_weights(run) && run->time.job_s >= WORTH_S)
            p->read_before = read_rate(run);
        p->measure_s = (double)(clock_ns() - start_ns) * 1e-9;
    }
    if (run->job) {
        struct job_counts counts;
        job_counts(run->job, &counts);
        p->rows_before = counts.done;
    }
    return OK;
}

/* ---- progress ---- */

static struct report_sample sample_now(const struct report *p, const struct job_counts *counts)
{
    const struct engine *e = &p->run->engine;
    const struct trace *t = &e->trace;
    struct report_sample s = {.ns = clock_ns(),
                              .output_tokens = counts->output_tokens,
                              .cpu_ns = t->totals[LANE_CPU].busy_ns,
                              .gpu_ns = t->totals[LANE_GPU].busy_ns,
                              .stall_ns = t->totals[LANE_STALL].busy_ns};
    for (int lane = 0; lane < N_LANES; lane++)
        s.bytes[lane] = t->moved_bytes[lane];
    return s;
}

/* The oldest sample that is at most `age_ns` old; the start of the run when there is none. */
static struct report_sample sample_since(const struct report *p, int64_t now_ns, int64_t age_ns)
{
    struct report_sample best = {.ns = p->run->engine.start_ns};
    int64_t n = min_i64(p->n_samples, REPORT_SAMPLES);
    for (int64_t i = 0; i < n; i++) { // newest first
        const struct report_sample *s = &p->samples[(p->n_samples - 1 - i) % REPORT_SAMPLES];
        if (now_ns - s->ns > age_ns)
            return i == 0 ? *s : best;
        best = *s;
    }
    return n < p->n_samples || n == 0 ? best
                                      : (struct report_sample){.ns = p->run->engine.start_ns};
}

/* Share of the work done, 0..1, of the rows that this run had to do. */
static double work_share(const struct report *p, const struct job_counts *counts)
{
    const struct work *w = &p->run->work;
    double all = (double)(w->prompt_tokens + w->output_tokens);
    double tokens = all > 0 ? (double)(counts->prompt_tokens + counts->output_tokens) / all : 0;
    double rows = (double)(counts->done - p->rows_before) / (double)max_i64(w->n_rows, 1);
    return fmin(fmax(tokens, rows), 1);
}

/* Prompts and output each at the rate they had so far: the slower of the two says when the run
 * ends. Infinity: nothing of it is done yet. */
static double seconds_left(double elapsed_s, int64_t done, int64_t all)
{
    if (done >= all)
        return 0;
    return done > 0 ? elapsed_s * (double)(all - done) / (double)done : INFINITY;
}

static void format_duration(double s, char *text, int cap)
{
    if (s < 100)
        snprintf(text, (size_t)cap, "%.0fs", s);
    else if (s < 6000)
        snprintf(text, (size_t)cap, "%.0fm%02.0fs", floor(s / 60), floor(fmod(s, 60)));
    else
        snprintf(text, (size_t)cap, "%.0fh%02.0fm", floor(s / 3600), floor(fmod(s, 3600) / 60));
}

static double rate_between(int64_t amount, int64_t ns)
{
    return ns > 0 ? (double)amount * 1e9 / (double)ns : 0;
}

int report_line(const struct report *p, const struct job_counts *counts, char *text, int cap)
{
    const struct run *r = p->run;
    struct report_sample now = sample_now(p, counts);
    struct report_sample window = sample_since(p, now.ns, WINDOW_NS);
    struct report_sample recent = sample_since(p, now.ns, 2 * SAMPLE_NS);
    double share = work_share(p, counts);
    double elapsed_s = (double)(now.ns - r->engine.start_ns) * 1e-9;
    char eta[32] = "?", failed[40] = "", write[64] = "", link[64] = "";
    double left_s = fmax(seconds_left(elapsed_s, counts->prompt_tokens, r->work.prompt_tokens),
                         seconds_left(elapsed_s, counts->output_tokens, r->work.output_tokens));
    if (share >= 1 || isfinite(left_s))
        format_duration(share >= 1 ? 0 : left_s, eta, sizeof eta);
    if (counts->failed > 0)
        snprintf(failed, sizeof failed, " (%lld failed)", (long long)counts->failed);
    int64_t ns = now.ns - recent.ns;
    double rates[N_LANES];
    for (int lane = 0; lane < N_LANES; lane++)
        rates[lane] = rate_between(now.bytes[lane] - recent.bytes[lane], ns);
    double written = rates[LANE_NVME_WRITE];
    if (written > 0)
        snprintf(write, sizeof write, "  write %.2f/%.2f", written * 1e-9,
                 r->machine.nvme_write.value * 1e-9);
    if (r->plan.device)
        snprintf(link, sizeof link, "  h2d %.2f/%.2f", rates[LANE_H2D] * 1e-9,
                 r->machine.h2d.value * 1e-9);
    int n = snprintf(text, (size_t)cap,
                     "%5.1f %%  rows %lld/%lld%s  out %.1f tok/s (30s) %.1f (mean)  ETA %s  "
                     "nvme-read %.2f/%.2f GB/s%s%s  bound %s",
                     100 * share, (long long)counts->done, (long long)counts->rows, failed,
                     rate_between(now.output_tokens - window.output_tokens, now.ns - window.ns),
                     rate_between(now.output_tokens, now.ns - r->engine.start_ns), eta,
                     rates[LANE_NVME_READ] * 1e-9, r->machine.nvme_read.value * 1e-9, write, link,
                     report_bound_now(r, &recent, &now));
    return n < cap ? n : cap - 1;
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw_bar(struct report *p, const struct job_counts *counts)
{
    enum { CELLS = 20 };
    char line[LINE_BYTES], bar[CELLS + 1];
    int columns = terminal_columns(), full = (int)(work_share(p, counts) * CELLS);
    for (int i = 0; i < CELLS; i++)
        bar[i] = i < full ? '#' : '.';
    bar[CELLS] = 0;
    int n = report_line(p, counts, line, sizeof line);
    int with_bar = columns >= 100; // the figures matter more than the picture
    int room = columns - 1 - (with_bar ? CELLS + 3 : 0);
    if (n > room)
        line[room > 0 ? room : 0] = 0;
    fputs("\r\033[K", stderr);
    if (with_bar)
        fprintf(stderr, p->color ? "[\033[32m%s\033[0m] " : "[%s] ", bar);
    fputs(line, stderr);
    fflush(stderr);
    p->shown = 1;
}

void report_tick(void *ctx)
{
    struct report *p = ctx;
    int64_t now = clock_ns();
    if (p->progress == PROGRESS_NONE || !p->run->job)
        return;
    int64_t last = p->n_samples ? p->samples[(p->n_samples - 1) % REPORT_SAMPLES].ns : 0;
    int64_t every = p->progress == PROGRESS_BAR ? BAR_NS : LINES_NS;
    if (p->last_ns == 0) // the first line comes when there is something to say
        p->last_ns = now;
    if (now - last < SAMPLE_NS && now - p->last_ns < every)
        return;
    struct job_counts counts;
    job_counts(p->run->job, &counts);
    if (now - p->last_ns >= every) {
        p->last_ns = now;
        char line[LINE_BYTES];
        if (p->progress == PROGRESS_BAR)
            draw_bar(p, &counts);
        else if (report_line(p, &counts, line, sizeof line) > 0)
            fprintf(stderr, "%8.1fs %s\n", (double)(now - p->run->engine.start_ns) * 1e-9, line);
    }
    if (now - last >= SAMPLE_NS)
        p->samples[p->n_samples++ % REPORT_SAMPLES] = sample_now(p, &counts);
}

/* ---- end ---- */

static void print_lane(const struct report_figures *f, const struct run *r, FILE *out,
                       enum lane lane)
{
    const struct lane_total *total = &r->engine.trace.totals[lane];
    double predicted_s = report_lane_predicted(r, lane), probed = report_lane_probed(r, lane);
    double busy_s = (double)total->busy_ns * 1e-9;
    char bytes[80] = "";
    if (total->bytes > 0)
        snprintf(bytes, sizeof bytes, "%12.1f MiB %7.2f GB/s (probed %.2f)",
                 (double)total->bytes / MIB, busy_s > 0 ? (double)total->bytes / busy_s * 1e-9 : 0,
                 probed * 1e-9);
    fprintf(out, "  %-12s %10.4f %10.4f %6.1f %%%s\n", lane_name(lane), predicted_s,
            f->passes > 0 ? busy_s / f->passes : 0, f->walk_s > 0 ? 100 * busy_s / f->walk_s : 0,
            bytes);
}

/* A few rows: the lanes of a pass, predicted and measured, in one line instead of a table. */
static void print_small(const struct report_figures *f, const struct run *r, FILE *out)
{
    const struct plan_time *t = &r->time;
    const struct lane_total *totals = r->engine.trace.totals;
    fprintf(out, "  s a pass, predicted/measured:");
    for (int i = 0; i < N_LANES; i++) {
        enum lane lane = (enum lane)i;
        double predicted_s = report_lane_predicted(r, lane);
        if (lane != LANE_STALL && (predicted_s > 0 || totals[lane].events > 0))
            fprintf(out, " %s %.4f/%.4f,", lane_name(lane), predicted_s,
                    f->passes > 0 ? (double)totals[lane].busy_ns * 1e-9 / f->passes : 0);
    }
    fprintf(out, " bound %s; job %.2f/%.2f s; peak %.1f of %.1f MiB (-v: more)\n", f->bound,
            t->job_s, f->elapsed_s, (double)f->peak_ram_bytes / MIB, (double)r->budget.ram / MIB);
}

static const char *ending(enum err err)
{
    return err == OK || err == ERR_ROWS ? "done" : err == ERR_STOPPED ? "stopped" : "failed";
}

void report_print(const struct report_figures *f, const struct run *r, FILE *out)
{
    const struct job_counts *n = &f->counts;
    const struct plan_time *t = &r->time;
    fprintf(out,
            "%s: %lld of %lld rows ok, %lld failed; %lld prompt + %lld output tokens in %.2f s\n",
            ending(f->err), (long long)n->ok, (long long)n->rows, (long long)n->failed,
            (long long)n->prompt_tokens, (long long)n->output_tokens, f->elapsed_s);
    if (n->failed > 0)
        report_errors(r, out);
    char steady[40] = "";
    if (f->steady_per_s > 0)
        snprintf(steady, sizeof steady, " (steady %.2f)", f->steady_per_s);
    fprintf(out, "  %.2f output tokens/s%s, %.2f with prompts; %.2f s to start\n", f->output_per_s,
            steady, f->total_per_s, f->startup_s);
    if (n->rows < SMALL_ROWS && f->elapsed_s < SMALL_S && log_level_max < LOG_DEBUG) {
        print_small(f, r, out);
        return;
    }
    fprintf(out, "  %-12s %10s %10s %8s\n", "lane", "predicted", "measured", "busy");
    fprintf(out, "  %-12s %10s %10s\n", "", "s a pass", "s a pass");
    for (int lane = 0; lane < N_LANES; lane++)
        if (report_lane_shown(r, (enum lane)lane))
            print_lane(f, r, out, (enum lane)lane);
    double pass_s = f->passes > 0 ? f->walk_s / f->passes : 0;
    fprintf(out, "  %-12s %10.4f %10.4f   passes: predicted %.0f, measured %.0f\n", "a pass",
            t->pass_s, pass_s, t->passes, f->passes);
    fprintf(out, "  job: predicted %.2f s, measured %.2f s", t->job_s, f->elapsed_s);
    if (t->job_s > 0 && (f->err == OK || f->err == ERR_ROWS))
        fprintf(out, " (%+.1f %%)", 100 * (f->elapsed_s / t->job_s - 1));
    fprintf(out, ", start-up not included; bound: %s (predicted %s)\n", f->bound,
            t->bound ? t->bound : "?");
    fprintf(out, "  memory: peak %.1f MiB RAM of --mem-ram %.1f MiB, %.1f MiB disk",
            (double)f->peak_ram_bytes / MIB, (double)r->budget.ram / MIB,
            (double)f->peak_disk_bytes / MIB);
    if (r->plan.device)
        fprintf(out, ", %.1f MiB device memory of --mem-device %.1f MiB",
                (double)f->peak_device_bytes / MIB, (double)r->budget.device / MIB);
    fputs("\n", out);
    if (f->roofline > 0)
        fprintf(out, "  roofline: %.2f of what %s allow\n", f->roofline,
                f->rates_measured ? "rates measured beside the run" : "probed rates");
    if (replan_count(r->replan) > 0)
        fprintf(out, "  plan: changed %d times; predictions are of the first\n",
                replan_count(r->replan));
}

enum err report_end(struct report *p, enum err err)
{
    const struct run *r = p->run;
    struct report_figures f;
    struct job_counts counts = {0};
    char text[1024] = "";
    if (err != OK)
        snprintf(text, sizeof text, "%s", err_text());
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = 0;
    if (r->job)
        job_counts(r->job, &counts);
    /* Who interrupts a run does not wait five seconds more; one end of it is then measure enough.
     */
    int whole = err == OK || err == ERR_ROWS;
    double after = p->read_before > 0 && whole ? read_rate(r) : 0;
    report_measure(&f, r, &counts, after > 0 ? (p->read_before + after) / 2 : p->read_before);
    f.startup_s = fmax(f.startup_s - p->measure_s, 0);
    f.err = err;
    snprintf(f.error, sizeof f.error, "%s", whole ? "" : text);
    if (!r->config->quiet)
        report_print(&f, r, stderr);
    enum err written = r->config->summary ? report_summary_write(&f, r, r->config->summary) : OK;
    if (err != OK) {
        if (written != OK)
            log_line(LOG_WARN, "%s", err_text());
        return fail(err, "%s", text);
    }
    return written;
}
