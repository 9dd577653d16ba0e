/* engine/app/commands_allow.c - `plan --allow`: what lossy options would gain (see commands.h).
 *
 * Owns: the list of options, which of their combinations are worth a line, the lines. Refuses: to
 * run any of them. */
#include "engine/app/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/app/variant.h"

#define OPTIONS_MAX 16   // of each kind
#define LINES_MAX   12   // that are lossy
#define WORTH       1.02 // times what fewer options give: what one more has to bring

/* One KV policy that is allowed. */
struct policy {
    char name[48], budget[40]; // "h2o=0.2", "0.2"
    struct evict evict;
};

/* All that is allowed, by what it changes; the first of each is: no change. */
struct options {
    enum pack_weights weights[OPTIONS_MAX];
    enum compute computes[2];
    struct policy policies[OPTIONS_MAX];
    enum kv_format formats[OPTIONS_MAX];
    int n_weights, n_computes, n_policies, n_formats;
};

/* A combination, by index into each list of the options. */
enum { WEIGHTS, COMPUTE, POLICY, FORMAT, N_CHOICES };
struct line {
    int choice[N_CHOICES];
    int fits, shown;
    double rate, ram_mib;
    const char *bound;
};

static const struct {
    const char *word;
    enum pack_weights weights;
    enum kv_format format;
} words[] = {{"q8", PACK_Q8, N_KV_FORMATS},
             {"q4", PACK_Q4, N_KV_FORMATS},
             {"kv-q8", PACK_AUTO, KV_Q8},
             {"kv-q4", PACK_AUTO, KV_Q4},
             {"mixed", PACK_AUTO, KV_MIXED}};
#define N_WORDS (int)(sizeof words / sizeof *words)

static enum err read_policy(const struct config *c, const char *word, struct policy *p)
{
    struct config with = *c;
    char policy[48];
    const char *equals = strchr(word, '=');
    if (!equals || strlen(word) >= sizeof p->name || strlen(equals) > sizeof p->budget)
        return fail(ERR_USAGE,
                    "--allow: invalid value '%s' (expected q8, q4, int8, kv-q8, kv-q4, mixed or "
                    "POLICY=BUDGET, h2o=0.2)",
                    word);
    snprintf(p->name, sizeof p->name, "%s", word);
    snprintf(p->budget, sizeof p->budget, "%s", equals + 1);
    snprintf(policy, sizeof policy, "%.*s", (int)(equals - word), word);
    with.kv_policy = policy;
    with.kv_budget = p->budget;
    return run_read_evict(&p->evict, &with);
}

static enum err read_option(const struct config *c, const char *word, struct options *o)
{
    if (strcmp(word, "int8") == 0) {
        o->computes[1] = COMPUTE_INT8;
        o->n_computes = 2;
        return OK;
    }
    for (int i = 0; i < N_WORDS; i++) {
        if (strcmp(word, words[i].word) != 0)
            continue;
        if (words[i].weights != PACK_AUTO)
            o->weights[o->n_weights++] = words[i].weights;
        else
            o->formats[o->n_formats++] = words[i].format;
        return OK;
    }
    return read_policy(c, word, &o->policies[o->n_policies++]);
}

static enum err read_options(const struct config *c, struct options *o)
{
    char copy[256];
    const char *seen[OPTIONS_MAX];
    int n = 0, again;
    *o = (struct options){.weights = {PACK_AUTO},
                          .computes = {N_COMPUTES},
                          .formats = {N_KV_FORMATS},
                          .n_weights = 1,
                          .n_computes = 1,
                          .n_policies = 1,
                          .n_formats = 1};
    if (snprintf(copy, sizeof copy, "%s", c->allow) >= (int)sizeof copy)
        return fail(ERR_USAGE, "--allow: too long");
    for (char *save = NULL, *word = strtok_r(copy, ", ", &save); word;
         word = strtok_r(NULL, ", ", &save)) {
        for (again = 0; again < n && strcmp(seen[again], word) != 0; again++)
            continue;
        if (again < n)
            continue;
        if (n == OPTIONS_MAX - 1)
            return fail(ERR_USAGE, "--allow: more than %d options", OPTIONS_MAX - 1);
        seen[n++] = word;
        TRY(read_option(c, word, o));
    }
    return n > 0 ? OK : fail(ERR_USAGE, "--allow: needs options (q8,q4,int8,h2o=0.2,mixed)");
}

/* ---- combinations ---- */

/* int8 multiplies q8 and q4; over other weights it is bf16. */
static int takes_int8(const struct run *r, const struct options *o, const int choice[N_CHOICES])
{
    enum dtype now = run_weights(r);
    return choice[WEIGHTS]
               ? o->weights[choice[WEIGHTS]] == PACK_Q8 || o->weights[choice[WEIGHTS]] == PACK_Q4
               : now == DTYPE_Q8 || now == DTYPE_Q4;
}

static int counts(const struct options *o, int choice)
{
    const int n[N_CHOICES] = {o->n_weights, o->n_computes, o->n_policies, o->n_formats};
    return n[choice];
}

/* Where a combination stands in the table of all. */
static int place_of(const struct options *o, const int choice[N_CHOICES])
{
    int at = 0;
    for (int i = 0; i < N_CHOICES; i++)
        at = at * counts(o, i) + choice[i];
    return at;
}

static struct variant variant_of(const struct options *o, const int choice[N_CHOICES])
{
    struct variant v = variant_none();
    v.weights = o->weights[choice[WEIGHTS]];
    v.compute = o->computes[choice[COMPUTE]];
    v.kv_format = o->formats[choice[FORMAT]];
    v.measures = 1;
    if (choice[POLICY]) {
        v.evict = &o->policies[choice[POLICY]].evict;
        v.budget_text = o->policies[choice[POLICY]].budget;
    }
    return v;
}

static void name_line(const struct options *o, const int choice[N_CHOICES], char *buf, int cap)
{
    const char *parts[N_CHOICES] = {0};
    int at = 0;
    buf[0] = 0;
    for (int i = 0; i < N_WORDS; i++) {
        if (choice[WEIGHTS] && words[i].weights == o->weights[choice[WEIGHTS]])
            parts[WEIGHTS] = words[i].word;
        if (choice[FORMAT] && words[i].format == o->formats[choice[FORMAT]])
            parts[FORMAT] = words[i].word;
    }
    parts[COMPUTE] = choice[COMPUTE] ? "int8" : NULL;
    parts[POLICY] = choice[POLICY] ? o->policies[choice[POLICY]].name : NULL;
    for (int i = 0; i < N_CHOICES && at < cap; i++)
        if (parts[i])
            at += snprintf(buf + at, (size_t)(cap - at), "%s%s", at ? " + " : "", parts[i]);
}

static enum err plan_line(struct run *r, const struct options *o, struct line *l)
{
    struct variant_plan p;
    const struct variant v = variant_of(o, l->choice);
    enum err err = variant_plan(r, &v, &p);
    if (err == ERR_FIT)
        return OK;
    TRY(err);
    l->fits = 1;
    l->rate = variant_rate(&p);
    l->ram_mib = (double)p.bytes.ram / 1048576.0;
    l->bound = p.time.bound;
    return OK;
}

/* How many things a combination changes; `single`: 1 for one option, int8 with its weights too. */
static int changes(const int choice[N_CHOICES], int *single)
{
    int n = 0;
    for (int i = 0; i < N_CHOICES; i++)
        n += choice[i] > 0;
    *single = n == 1 || (n == 2 && choice[WEIGHTS] && choice[COMPUTE]);
    return n;
}

/* Of the combinations with one change fewer: the rate of the fastest, and whether one has a line.
 */
static int parts_of(const struct options *o, const struct line *all, const int choice[N_CHOICES],
                    double *rate)
{
    int any = 0;
    *rate = 0;
    for (int i = 0; i < N_CHOICES; i++) {
        int fewer[N_CHOICES];
        memcpy(fewer, choice, sizeof fewer);
        fewer[i] = 0;
        const struct line *part = &all[place_of(o, fewer)];
        if (choice[i] == 0)
            continue;
        any |= part->shown;
        *rate = part->rate > *rate ? part->rate : *rate;
    }
    return any;
}

/* Plans what one more change may make faster, those with few changes first. What brings nothing
 * over its parts costs quality for nothing: it has no line. */
static enum err plan_lines(struct run *r, const struct options *o, struct line *all, int n_all)
{
    for (int n = 1; n <= N_CHOICES; n++)
        for (int i = 0; i < n_all; i++) {
            struct line *l = &all[i];
            int single;
            double parts;
            if (changes(l->choice, &single) != n ||
                (l->choice[COMPUTE] && !takes_int8(r, o, l->choice)))
                continue;
            if (!parts_of(o, all, l->choice, &parts) && !single)
                continue;
            TRY(plan_line(r, o, l));
            l->shown = single || (l->fits && l->rate >= WORTH * parts);
        }
    return OK;
}

/* Single options before others, then by rate: whose line is left out where they are too many. */
static int more_wanted(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int x_single, y_single;
    changes(x->choice, &x_single);
    changes(y->choice, &y_single);
    if (x->shown != y->shown)
        return y->shown - x->shown;
    if (x_single != y_single)
        return y_single - x_single;
    return (x->rate < y->rate) - (x->rate > y->rate);
}

static int faster(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return (x->rate < y->rate) - (x->rate > y->rate);
}

static void print_line(const struct run *r, const struct options *o, const struct line *l,
                       double lossless)
{
    char name[128], quality[160];
    struct quality q[VARIANT_CHANGES];
    const struct variant v = variant_of(o, l->choice);
    int n_q = variant_quality(r, &v, q);
    name_line(o, l->choice, name, sizeof name);
    variant_quality_text(q, n_q, quality, sizeof quality);
    if (l->fits)
        printf("%-28s %10.4g %7.2fx %10.1f  %-11s %s\n", name, l->rate,
               lossless > 0 ? l->rate / lossless : 0, l->ram_mib, l->bound, quality);
    else
        printf("%-28s %10s %8s %10s  %-11s %s\n", name, "-", "", "-", "no plan fits", quality);
}

/* On what the figures of these lines were measured, and what was not. */
static void print_sources(const struct run *r, const struct options *o, const struct line *lines,
                          int n)
{
    char told[8][sizeof((struct quality *)0)->on];
    int n_told = 0, int8 = 0;
    for (int i = 0; i < n; i++) {
        int8 |= lines[i].choice[COMPUTE];
        const struct variant v = variant_of(o, lines[i].choice);
        struct quality q[VARIANT_CHANGES];
        int n_q = variant_quality(r, &v, q);
        for (int k = 0; k < n_q; k++) {
            int is_told = q[k].more < 0;
            for (int t = 0; t < n_told; t++)
                is_told |= strcmp(told[t], q[k].on) == 0;
            if (is_told || n_told == 8)
                continue;
            snprintf(told[n_told++], sizeof told[0], "%s", q[k].on);
            printf("Measured on %s.\n", q[k].on);
        }
    }
    if (int8 && r->config->machine && !r->plans_device)
        printf("int8 at the rates of bf16: %s has no others.\n", r->config->machine);
}

static enum err compare(struct run *r, const struct options *o, struct line *all, int n_all)
{
    const char *title = r->evict.policy == EVICT_FULL ? "default (lossless)" : "as asked";
    double lossless = r->time.job_s > 0 ? (double)r->work.output_tokens / r->time.job_s : 0;
    for (int i = 0; i < n_all; i++) {
        int at = i;
        for (int k = N_CHOICES - 1; k >= 0; k--, at /= counts(o, k + 1))
            all[i].choice[k] = at % counts(o, k);
    }
    TRY(plan_lines(r, o, all, n_all));
    qsort(all, (size_t)n_all, sizeof *all, more_wanted);
    int n = 0, single = 1;
    while (n < n_all && all[n].shown && (changes(all[n].choice, &single), single || n < LINES_MAX))
        n++;
    qsort(all, (size_t)n, sizeof *all, faster);
    printf("%-28s %10s %8s %10s  %-11s %s\n", "allowed (predicted)", "tokens/s", "", "RAM MiB",
           "bound", "more perplexity");
    printf("%-28s %10.4g %7.2fx %10.1f  %-11s %s\n", title, lossless, 1.0,
           (double)r->bytes.ram / 1048576.0, r->time.bound, "-");
    for (int i = 0; i < n; i++)
        print_line(r, o, &all[i], lossless);
    print_sources(r, o, all, n);
    printf("Lossy options change the answers: they are never chosen, only told. To use them: "
           "--weights q8|q4, --compute int8, --kv-policy and --kv-budget, --kv-format.\n");
    return OK;
}

static enum err plan_quietly(struct run *r)
{
    enum log_level level = log_level_max;
    log_level_max = LOG_ERROR;
    r->keep_rows = 1;
    enum err err = command_plan_work(r);
    if (err == OK)
        err = run_plan(r);
    log_level_max = level;
    return err;
}

enum err command_allow(struct run *r)
{
    struct options o;
    enum dtype now = run_weights(r);
    TRY(read_options(r->config, &o));
    if (o.n_computes > 1 && o.n_weights == 1 && now != DTYPE_Q8 && now != DTYPE_Q4)
        o.weights[o.n_weights++] = PACK_Q8; // there is nothing else to multiply in int8
    TRY(plan_quietly(r));
    int n_all = o.n_weights * o.n_computes * o.n_policies * o.n_formats;
    struct line *all = calloc((size_t)n_all, sizeof *all);
    if (!all)
        return fail(ERR_FIT, "memory: plan tables");
    enum err err = compare(r, &o, all, n_all);
    free(all);
    return err;
}
