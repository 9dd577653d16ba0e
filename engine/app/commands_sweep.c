/* engine/app/commands_sweep.c - `plan --sweep FLAG=...`: the plan at each value of a flag (see
 * commands.h).
 *
 * Owns: which flags can be swept, the values of a range or list, the CSV. Refuses: to keep a run
 * from one point to the next: each reads all that its flags fix, as `plan` with that flag does.
 * What is measured is measured once, and what is free is looked at once: points that are alike give
 * rows that are alike. */
#include "engine/app/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/app/compute.h"
#include "engine/app/plot.h"

#define POINTS_MAX 64
#define TEXT_MAX   32 // bytes of a number

/* What a plan depends on. */
enum swept { NUMBERS, WORDS };
static const struct {
    const char *flag;
    enum swept is;
} swept[] = {{"mem-device", NUMBERS},
             {"mem-ram", NUMBERS},
             {"mem-disk", NUMBERS},
             {"threads", NUMBERS},
             {"batch", NUMBERS},
             {"batches", NUMBERS},
             {"weights-resident", NUMBERS},
             {"weights-decoded", NUMBERS},
             {"ahead-weights", NUMBERS},
             {"ahead-state", NUMBERS},
             {"prefill-tokens", NUMBERS},
             {"kv-budget", NUMBERS},
             {"kv-budget-of", WORDS},
             {"kv-budget-layers", WORDS},
             {"kv-recent", NUMBERS},
             {"kv-sink", NUMBERS},
             {"limit", NUMBERS},
             {"prompt-len", NUMBERS},
             {"gen-len", NUMBERS},
             {"num-prompts", NUMBERS},
             {"device", WORDS},
             {"compute", WORDS},
             {"matmul", WORDS},
             {"isa", WORDS},
             {"weights", WORDS},
             {"weights-codec", WORDS},
             {"percent", WORDS},
             {"attn", WORDS},
             {"io", WORDS},
             {"share-prefixes", WORDS},
             {"kv-policy", WORDS},
             {"kv-scope", WORDS},
             {"kv-positions", WORDS},
             {"kv-format", WORDS},
             {"machine", WORDS}};
#define N_SWEPT (int)(sizeof swept / sizeof *swept)

struct sweep {
    const struct config *base; // borrowed
    char flag[64];
    enum swept is;
    int doubles;                        // 1: the values are a range
    char list[4096];                    // what values of a list point into
    char numbers[POINTS_MAX][TEXT_MAX]; // the same of a range
    const char *values[POINTS_MAX];
    int n;
    struct plot plot;
    struct budget room; // as found at the first point
    struct pack_codec_sample codec;
    char codec_pack[4096]; // whose it is; "": nobody's yet
};

/* ---- values ---- */

/* The flag's value as the config reads it: 1G as 1073741824. */
static enum err read_value(const struct sweep *s, const char *text, char *buf, int cap)
{
    struct config c = *s->base;
    TRY(config_set(&c, CMD_PLAN, s->flag, text));
    config_text(&c, s->flag, buf, cap);
    return OK;
}

/* "0.2", "10%", "16": the number, what follows it, and whether it has a decimal point. */
static int number_of(const char *text, double *x, const char **unit, int *has_point)
{
    char *end;
    *x = strtod(text, &end);
    *unit = end;
    *has_point = strchr(text, '.') != NULL;
    return end != text && (*end == 0 || strcmp(end, "%") == 0) && *x > 0;
}

static void put_number(double x, int has_point, const char *unit, char *buf)
{
    if (!has_point) {
        snprintf(buf, TEXT_MAX, "%.0f%s", x, unit);
        return;
    }
    int n = snprintf(buf, TEXT_MAX, "%.9f", x);
    while (buf[n - 1] == '0') // between A and B, so it is below 1.0
        buf[--n] = 0;
}

/* A, 2A, 4A, ... and B. */
static enum err read_range(struct sweep *s, const char *dots)
{
    char a[TEXT_MAX], b[TEXT_MAX], from[TEXT_MAX];
    const char *text = strchr(s->base->sweep, '=') + 1, *unit, *last_unit;
    double first, last;
    int point, last_point;
    if (s->is == WORDS)
        return fail(ERR_USAGE, "--sweep: --%s takes words: a list A,B,C", s->flag);
    if (dots - text >= TEXT_MAX || strlen(dots + 2) >= TEXT_MAX)
        return fail(ERR_USAGE, "--sweep: '%s' is not FLAG=A..B", s->base->sweep);
    snprintf(from, sizeof from, "%.*s", (int)(dots - text), text);
    TRY(read_value(s, from, a, sizeof a));
    TRY(read_value(s, dots + 2, b, sizeof b));
    if (!number_of(a, &first, &unit, &point) || !number_of(b, &last, &last_unit, &last_point) ||
        last < first)
        return fail(ERR_USAGE, "--sweep: '%s' needs 0 < A <= B", s->base->sweep);
    if (strcmp(unit, last_unit) != 0 || point != last_point)
        return fail(ERR_USAGE, "--sweep: '%s': %s and %s are not of one kind", s->base->sweep, from,
                    dots + 2);
    s->doubles = 1;
    for (double x = first; s->n < POINTS_MAX - 1 && x < last; x *= 2)
        put_number(x, point, unit, s->numbers[s->n++]);
    snprintf(s->numbers[s->n++], TEXT_MAX, "%s", b);
    for (int i = 0; i < s->n; i++)
        s->values[i] = s->numbers[i];
    return OK;
}

static enum err read_list(struct sweep *s, const char *text)
{
    if (snprintf(s->list, sizeof s->list, "%s", text) >= (int)sizeof s->list)
        return fail(ERR_USAGE, "--sweep: too long");
    for (char *save = NULL, *word = strtok_r(s->list, ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        if (s->n == POINTS_MAX)
            return fail(ERR_USAGE, "--sweep: more than %d values", POINTS_MAX);
        s->values[s->n++] = word;
    }
    return s->n > 0 ? OK : fail(ERR_USAGE, "--sweep: '%s' has no values", s->base->sweep);
}

static enum err read_flag(struct sweep *s, const char *name, int n)
{
    snprintf(s->flag, sizeof s->flag, "%.*s", n, name);
    for (int i = 0; i < N_SWEPT; i++)
        if (strcmp(swept[i].flag, s->flag) == 0) {
            s->is = swept[i].is;
            return OK;
        }
    struct config c = *s->base;
    TRY(config_set(&c, CMD_PLAN, s->flag, "0")); // an unknown flag has a sentence of its own
    return fail(ERR_USAGE, "--sweep: --%s cannot be swept: no plan follows from it alone", s->flag);
}

/* What would give the same row at every point. */
static enum err refuse_idle(const struct sweep *s)
{
    const struct config *c = s->base;
    int made_up = strcmp(s->flag, "prompt-len") == 0 || strcmp(s->flag, "gen-len") == 0 ||
                  strcmp(s->flag, "num-prompts") == 0;
    int evicts = strncmp(s->flag, "kv-", 3) == 0 && strcmp(s->flag, "kv-policy") != 0 &&
                 strcmp(s->flag, "kv-format") != 0;
    if (c->in && made_up)
        return fail(ERR_USAGE, "--sweep: --%s has no effect on the rows of -i", s->flag);
    if (!c->in && strcmp(s->flag, "limit") == 0)
        return fail(ERR_USAGE, "--sweep: --limit has no effect without -i (--num-prompts)");
    if (evicts && strcmp(c->kv_policy, "full") == 0)
        return fail(ERR_USAGE, "--sweep: --%s has no effect: --kv-policy full keeps everything",
                    s->flag);
    if (c->machine && strcmp(s->flag, "threads") == 0)
        return fail(ERR_USAGE,
                    "--sweep: --threads has no effect: the rates of %s are those of its "
                    "own threads",
                    c->machine);
    if (strcmp(s->flag, "weights") == 0 && c->model && model_is_pack(c->model))
        return fail(ERR_USAGE, "--sweep: --weights has no effect: %s is a pack", c->model);
    return OK;
}

/* All values are looked at before the first is planned. */
static enum err read_sweep(struct sweep *s, const struct config *c)
{
    const char *text = c->sweep, *eq = strchr(text, '='), *dots = strstr(text, "..");
    s->base = c;
    s->room = (struct budget){-1, -1, -1};
    if (!eq || eq - text >= (int)sizeof s->flag)
        return fail(ERR_USAGE, "--sweep: '%s' is not FLAG=A..B or FLAG=A,B,C", text);
    TRY(read_flag(s, text, (int)(eq - text)));
    TRY(refuse_idle(s));
    if (dots > eq && !strchr(dots, '/')) // ../a.cfg is no range
        TRY(read_range(s, dots));
    else
        TRY(read_list(s, eq + 1));
    for (int i = 0; i < s->n; i++) {
        struct compute_setup compute;
        struct evict evict;
        enum kv_format kv_format;
        struct config with = *c;
        TRY(config_set(&with, CMD_PLAN, s->flag, s->values[i]));
        TRY(compute_read(&compute, &with));
        TRY(run_read_evict(&evict, &with));
        TRY(run_read_kv_format(&kv_format, &with));
    }
    return OK;
}

/* ---- rows ---- */

static void put_csv(const char *text, const char *end)
{
    if (!strpbrk(text, ",\"\n\r")) {
        printf("%s%s", text, end);
        return;
    }
    printf("\"");
    for (; *text; text++)
        printf(*text == '"' ? "\"\"" : "%c", *text);
    printf("\"%s", end);
}

static double rate_of(const struct run *r)
{
    return r->time.job_s > 0 ? (double)r->work.output_tokens / r->time.job_s : 0.0;
}

/* int8 multiplies q8 and q4; over other weights it is bf16. */
static enum compute computed(const struct run *r)
{
    int int8 = model_tile_dtype(COMPUTE_INT8, run_weights(r)) != DTYPE_BF16;
    return r->ops.compute == COMPUTE_INT8 && !int8 ? COMPUTE_BF16 : r->ops.compute;
}

static void print_head(void)
{
    printf("flag,value,kv_policy,kv_budget,kv_format,weights,compute,batch,batches,"
           "weights_resident,prefill_tokens,device_mib,ram_mib,disk_mib,pass_s,job_s,"
           "output_tokens_per_s,bound,why\n");
}

/* why NULL: r has a plan. */
static void print_row(const struct sweep *s, const struct run *r, const char *why)
{
    const struct plan *p = &r->plan;
    const struct config *c = r->config;
    const double mib = 1048576.0;
    char value[4096];
    config_text(c, s->flag, value, sizeof value);
    put_csv(s->flag, ",");
    put_csv(value, ",");
    put_csv(evict_policy_name(r->evict.policy), ",");
    put_csv(r->evict.policy == EVICT_FULL ? "" : c->kv_budget, ",");
    put_csv(kv_format_name(r->kv_format), ",");
    put_csv(dtype_info(run_weights(r))->name, ",");
    put_csv(compute_name(computed(r)), ",");
    if (why) {
        printf(",,,,,,,,,,,");
        put_csv(why, "\n");
        return;
    }
    printf("%d,%d,%d,%d,", p->batch, p->batches, p->resident, p->prefill_tokens);
    printf("%.1f,%.1f,%.1f,", (double)r->bytes.device / mib, (double)r->bytes.ram / mib,
           (double)r->bytes.disk / mib);
    printf("%.6g,%.6g,%.6g,%s,\n", r->time.pass_s, r->time.job_s, rate_of(r), r->time.bound);
}

/* ---- points ---- */

/* What an earlier point measured, or found free, that holds here too. */
static void take_known(const struct sweep *s, struct run *r)
{
    r->room = s->room;
    if (strcmp(s->flag, "device") == 0)
        r->room.device = -1; // of each its own
    if (strcmp(s->codec_pack, r->opened.pack_path) == 0)
        r->codec_sample = s->codec;
}

static void keep_known(struct sweep *s, const struct run *r)
{
    s->room = r->room;
    if (r->codec_sample.share == 0)
        return;
    s->codec = r->codec_sample;
    snprintf(s->codec_pack, sizeof s->codec_pack, "%s", r->opened.pack_path);
}

/* Where a plan stands in the drawing: numbers of a range where they are, words side by side. */
static void draw_point(struct sweep *s, int i, double rate, const char *bound)
{
    double x = i;
    char label[64];
    const char *slash = strrchr(s->values[i], '/');
    snprintf(label, sizeof label, "%s", slash ? slash + 1 : s->values[i]);
    if (s->doubles)
        x = strtod(s->values[i], NULL);
    if (s->doubles && strncmp(s->flag, "mem-", 4) == 0)
        snprintf(label, sizeof label, x < 1 << 30 ? "%.4gM" : "%.4gG",
                 x / (x < 1 << 30 ? 1048576.0 : 1073741824.0));
    plot_point(&s->plot, x, label, rate, bound);
}

/* One row; a value that does not fit is a row as well. */
static enum err plan_point(struct sweep *s, struct run *r, int i)
{
    enum log_level level = log_level_max;
    if (i > 0 && strcmp(s->flag, "weights") != 0) // warnings once, progress of packing always
        log_level_max = LOG_ERROR;
    enum err err = run_prepare(r, r->config);
    r->elsewhere = r->config->machine != NULL;
    r->keep_rows = 1;
    r->plan_told = PLAN_BY_COMMAND;
    log_level_max = LOG_ERROR;
    if (err == OK) {
        take_known(s, r);
        err = command_plan_work(r);
    }
    int is_ready = err == OK;
    if (is_ready) {
        err = run_plan(r);
        keep_known(s, r);
    }
    log_level_max = level;
    if (err != OK && (err != ERR_FIT || !is_ready))
        return err;
    if (strcmp(s->flag, "mem-device") == 0 && !r->plans_device)
        return fail(ERR_USAGE, "--sweep: --mem-device has no effect: there is no device but the "
                               "CPU (--mem-ram)");
    if (i == 0)
        print_head();
    print_row(s, r, err == OK ? NULL : err_text());
    draw_point(s, i, err == OK ? rate_of(r) : -1, err == OK ? r->time.bound : NULL);
    return fflush(stdout) == 0 ? OK : fail(ERR_IO, "stdout: the sweep cannot be written");
}

static enum err plan_points(struct sweep *s)
{
    for (int i = 0; i < s->n; i++) {
        struct run *r = NULL;
        struct config c = *s->base;
        TRY(config_set(&c, CMD_PLAN, s->flag, s->values[i]));
        TRY(command_begin(&r, &c));
        TRY(command_end(r, plan_point(s, r, i)));
    }
    return OK;
}

enum err command_sweep(const struct config *c)
{
    struct sweep *s = calloc(1, sizeof *s);
    if (!s)
        return fail(ERR_FIT, "memory: a sweep");
    enum err err = read_sweep(s, c);
    if (err == OK && c->plot)
        err = plot_open(&s->plot, c->plot);
    if (err == OK)
        err = plan_points(s);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    const char *slash = c->model ? strrchr(c->model, '/') : NULL;
    enum err drawn =
        plot_close(&s->plot, err == OK ? slash ? slash + 1 : c->model : NULL, s->flag, s->doubles);
    free(s);
    return err != OK ? fail(err, "%s", why) : drawn;
}
