/* engine/api/report.c - see report.h: the progress line and the end report.
 *
 * Owns: when a line is drawn (four times a second on a terminal, every ten seconds elsewhere) and
 * its text; the end report's figures, which report_end.c prints. Refuses: stdout. Note: percent is
 * a share of time, so percent and the time left always agree. */
#include "engine/api/report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/api/plan_file.h"
#include "engine/api/replan.h"
#include "engine/api/words.h"
#include "offload/disk_probe.h"

#define BAR_NS     250000000LL
#define LINES_NS   10000000000LL
#define CALL_NS    1000000000LL // between calls of run.progress
#define SAMPLE_NS  500000000LL
#define WINDOW_NS  30000000000LL
#define ROOFLINE_S 5.0
#define WORTH_S    30.0 // a shorter run does not justify ten seconds of reads
#define LINE_BYTES 400

/* ---- opening ---- */

static void read_progress(struct report *p, const struct config *c)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    p->progress = progress_of(c);
    p->color =
        isatty(STDERR_FILENO) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

static int streams_weights(const struct run *r)
{
    return r->decision.plan.resident + r->decision.plan.weights_ram < r->decision.plan.layers - 1;
}

/* 1: the file has holes, or cannot be opened. */
static int has_holes(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int whole = fd >= 0 && fstat(fd, &st) == 0 && lseek(fd, 0, SEEK_HOLE) == st.st_size;
    if (fd >= 0)
        close(fd);
    return !whole;
}

/* Bytes per second of O_DIRECT reads of the pack; 0: cannot be measured, for example when layers of
 * dummy weights were never written (holes), or not what the run reads (copies in several folders).
 * 1 MiB x 4 is small, as the run's budget is spent. */
static double read_rate(const struct run *r)
{
    struct disk_probe d;
    struct disk_load load = {
        .io = r->session->io, .block_bytes = 1 << 20, .depth = 4, .seconds_max = ROOFLINE_S};
    double rate = 0;
    if (r->costs.copies_weights || has_holes(r->session->opened.pack_path) ||
        disk_probe_open_file(&d, r->session->opened.pack_path) != OK)
        return 0;
    if (disk_probe_rate(&d, &load, &rate) != OK)
        rate = 0;
    disk_probe_close(&d);
    return rate;
}

enum err report_open(struct report *p, const struct run *run)
{
    *p = (struct report){.run = run};
    read_progress(p, run->config);
    if (run->config->summary) {
        int64_t start_ns = clock_ns();
        if (streams_weights(run) && run->decision.time.job_s >= WORTH_S)
            p->read_before = read_rate(run);
        p->measure_s = (double)(clock_ns() - start_ns) * 1e-9;
    }
    if (run->job) {
        struct job_counts counts;
        job_counts(run->job, &counts);
        p->rejected = counts.resumed > 0 ? 0 : counts.failed;
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

/* The oldest sample not older than `age_ns`; the start of the run if there is none. */
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

static double rate_between(int64_t amount, int64_t ns)
{
    return ns > 0 ? (double)amount * 1e9 / (double)ns : 0;
}

/* Share of this run's time, 0..1, consistent with the time left; negative: unknown. Rows and tokens
 * do not measure time: a prompt of 900 tokens is one pass, and so is each output token. */
static double share_done(const struct report *p, double left_s)
{
    double elapsed_s = (double)(clock_ns() - p->run->engine.start_ns) * 1e-9;
    if (left_s < 0 || elapsed_s < 0)
        return -1;
    return elapsed_s + left_s > 0 ? elapsed_s / (elapsed_s + left_s) : 1;
}

/* Appends a part if the whole part fits. Returns the line's length. */
static int add_part(char *text, int n, int cap, const char *part)
{
    int more = (int)strlen(part);
    if (n + more >= cap)
        return n;
    memcpy(text + n, part, (size_t)more + 1);
    return n + more;
}

/* " (103 rejected, 2 failed)": rows refused before the run, and rows that failed later. */
static void failed_text(const struct report *p, const struct job_counts *counts, char *text,
                        size_t cap)
{
    int64_t rejected = min_i64(p->rejected, counts->failed), failed = counts->failed - rejected;
    char some[32] = "", others[32] = "";
    if (rejected > 0)
        snprintf(some, sizeof some, "%lld rejected", (long long)rejected);
    if (failed > 0)
        snprintf(others, sizeof others, "%lld failed", (long long)failed);
    snprintf(text, cap, counts->failed > 0 ? " (%s%s%s)" : "", some,
             rejected > 0 && failed > 0 ? ", " : "", others);
}

/* Appends a lane's rate, and its share of the probed rate. */
static int add_rate(const struct report *p, char *text, int n, int cap, enum lane lane,
                    const char *what, double per_s)
{
    char part[80];
    snprintf(part, sizeof part, "  %s %.2f of %.2f GB/s", what, per_s * 1e-9,
             report_lane_probed(p->run, lane) * 1e-9);
    return add_part(text, n, cap, part);
}

int report_line(const struct report *p, const struct job_counts *counts, double left_s, char *text,
                int cap)
{
    const struct run *r = p->run;
    struct report_sample now = sample_now(p, counts);
    struct report_sample window = sample_since(p, now.ns, WINDOW_NS);
    struct report_sample recent = sample_since(p, now.ns, 2 * SAMPLE_NS);
    double share = share_done(p, left_s);
    char percent[16] = "    -", failed[72], part[160];
    char tokens[WORDS_BYTES] = "-", mean[WORDS_BYTES], left[WORDS_BYTES];
    if (share >= 0)
        snprintf(percent, sizeof percent, "%5.1f", 100 * share);
    failed_text(p, counts, failed, sizeof failed);
    if (now.output_tokens > 0)
        words_digits(rate_between(now.output_tokens - window.output_tokens, now.ns - window.ns),
                     tokens);
    snprintf(part, sizeof part, "%s %%  rows %lld/%lld%s  %s tok/s  ETA %s", percent,
             (long long)counts->done, (long long)counts->rows, failed, tokens,
             words_clock(left_s, left));
    snprintf(text, (size_t)cap, "%s", part);
    int n = (int)strlen(text);
    snprintf(part, sizeof part, "  limited by %s",
             words_resource(report_bound_now(r, &recent, &now)));
    n = add_part(text, n, cap, part);
    int64_t ns = now.ns - recent.ns;
    double rates[N_LANES];
    for (int lane = 0; lane < N_LANES; lane++)
        rates[lane] = rate_between(now.bytes[lane] - recent.bytes[lane], ns);
    if (rates[LANE_NVME_READ] > 0)
        n = add_rate(p, text, n, cap, LANE_NVME_READ, "read", rates[LANE_NVME_READ]);
    if (rates[LANE_NVME_WRITE] > 0)
        n = add_rate(p, text, n, cap, LANE_NVME_WRITE, "write", rates[LANE_NVME_WRITE]);
    if (r->decision.plan.device)
        n = add_rate(p, text, n, cap, LANE_H2D, "to the device", rates[LANE_H2D]);
    if (now.output_tokens > 0) {
        snprintf(part, sizeof part, "  mean %s tok/s",
                 words_digits(rate_between(now.output_tokens, now.ns - r->engine.start_ns), mean));
        n = add_part(text, n, cap, part);
    }
    return n;
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw_bar(struct report *p, const struct job_counts *counts, double left_s)
{
    enum { CELLS = 20 };
    char line[LINE_BYTES], bar[CELLS + 1];
    int columns = terminal_columns(), full = (int)(fmax(share_done(p, left_s), 0) * CELLS);
    for (int i = 0; i < CELLS; i++)
        bar[i] = i < full ? '#' : '.';
    bar[CELLS] = 0;
    int with_bar = columns >= 100; // the figures matter more than the picture
    int64_t room = columns - 1 - (with_bar ? CELLS + 3 : 0); // the last column stays empty
    report_line(p, counts, left_s, line, (int)min_i64(max_i64(room, 0) + 1, LINE_BYTES));
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
    if ((p->progress == PROGRESS_NONE && !p->run->progress) || !p->run->job)
        return;
    int64_t last = p->n_samples ? p->samples[(p->n_samples - 1) % REPORT_SAMPLES].ns : 0;
    int64_t every = p->progress == PROGRESS_BAR     ? BAR_NS
                    : p->progress == PROGRESS_LINES ? LINES_NS
                                                    : CALL_NS;
    if (p->last_ns == 0) // the first line is drawn when there are figures
        p->last_ns = now;
    if (now - last < SAMPLE_NS && now - p->last_ns < every)
        return;
    struct job_counts counts;
    job_counts(p->run->job, &counts);
    if (now - p->last_ns >= every) {
        p->last_ns = now;
        char line[LINE_BYTES];
        double left_s = replan_left_s(p->run->replan);
        if (p->run->progress)
            p->run->progress(p->run->progress_ctx, &counts,
                             (double)(now - p->run->engine.start_ns) * 1e-9, left_s);
        if (p->progress == PROGRESS_BAR)
            draw_bar(p, &counts, left_s);
        else if (p->progress == PROGRESS_LINES &&
                 report_line(p, &counts, left_s, line, sizeof line) > 0)
            fprintf(stderr, "%8.1fs %s\n", (double)(now - p->run->engine.start_ns) * 1e-9, line);
    }
    if (now - last >= SAMPLE_NS)
        p->samples[p->n_samples++ % REPORT_SAMPLES] = sample_now(p, &counts);
}

/* ---- end ---- */

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
    /* An interrupted run does not measure for five more seconds. */
    int whole = err == OK || err == ERR_ROWS;
    double after = p->read_before > 0 && whole ? read_rate(r) : 0;
    report_measure(&f, r, &counts, after > 0 ? (p->read_before + after) / 2 : p->read_before);
    f.startup_s = fmax(f.startup_s - p->measure_s, 0);
    f.err = err;
    snprintf(f.error, sizeof f.error, "%s", whole ? "" : text);
    if (!r->config->quiet)
        report_print(&f, r, stderr);
    json_t *summary = r->config->summary || p->summary ? report_summary_json(&f, r) : NULL;
    enum err written = r->config->summary ? json_save(summary, r->config->summary, 9) : OK;
    if (p->summary)
        *p->summary = summary;
    else
        json_decref(summary);
    if (err != OK) {
        if (written != OK)
            log_line(LOG_WARN, "%s", err_text());
        return fail(err, "%s", text);
    }
    return written;
}
