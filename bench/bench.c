/* bench/bench.c - `bench`: the sub-commands, and the table that they print.
 *
 * Owns: text, CSV and JSON of the same rows. Refuses: rows with different columns. Note: text and
 * CSV rows are printed at once, so a stopped benchmark loses no finished row. A CSV has one line of
 * names and then rows, as pandas.read_csv expects: each fact of the head has its own column. */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/api/version.h"
#include "engine/cli/commands.h"
#include "kernels/base/whole.h"

#define COMMAND_MAX 4096

/* The command line of this process, without the program's folder; quotes words with blanks. */
static void command_read(char *text, size_t cap)
{
    char words[COMMAND_MAX];
    FILE *f = fopen("/proc/self/cmdline", "r");
    size_t n = f ? fread(words, 1, sizeof words - 1, f) : 0, at = 0;
    if (f)
        fclose(f);
    words[n] = 0;
    text[0] = 0;
    for (size_t i = 0; i < n && at < cap; i += strlen(words + i) + 1) {
        const char *word = words + i, *slash = i == 0 ? strrchr(word, '/') : NULL;
        const char *quote = strpbrk(word, " \n") ? "'" : "";
        int wrote = snprintf(text + at, cap - at, "%s%s%s%s", i == 0 ? "" : " ", quote,
                             slash ? slash + 1 : word, quote);
        at += (size_t)max_i64(wrote, 0);
    }
}

static void machine_line(char *text, size_t cap)
{
    struct machine_info info;
    if (machine_read(&info, NULL) != OK)
        info = (struct machine_info){0};
    snprintf(text, cap, "%s; %d cpus; %.1f GiB", info.cpu_name, info.n_cpus,
             (double)info.ram_bytes / (1 << 30));
}

void bench_table_open(struct bench_table *t, const struct config *c)
{
    char text[COMMAND_MAX];
    time_t now = time(NULL);
    struct tm tm;
    *t = (struct bench_table){
        .config = c, .head = json_object(), .rows = c->json ? json_array() : NULL};
    command_read(text, sizeof text);
    bench_table_note(t, "command", json_string(text));
    bench_table_note(t, "version", json_string(SLUICE_VERSION));
    machine_line(text, sizeof text);
    bench_table_note(t, "machine", json_string(text));
    strftime(text, sizeof text, "%Y-%m-%dT%H:%MZ", gmtime_r(&now, &tm));
    bench_table_note(t, "date", json_string(text));
}

void bench_table_note(struct bench_table *t, const char *key, json_t *value)
{
    json_object_set_new(t->head, key, value);
}

static int column_width(const char *key, const json_t *value)
{
    int least = json_is_string(value) ? 18 : 10, n = (int)strlen(key);
    return n > least ? n : least;
}

static void value_text(char *text, size_t cap, const json_t *value, int digits)
{
    if (json_is_integer(value))
        snprintf(text, cap, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, cap, "%.*g", digits, json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, cap, "%s", json_is_true(value) ? "true" : "false");
    else
        snprintf(text, cap, "%s", json_is_string(value) ? json_string_value(value) : "");
}

/* Quotes if needed; a quote inside is doubled. */
static void print_csv(const char *text)
{
    if (!strpbrk(text, ",\" \n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++)
        printf(*text == '"' ? "\"\"" : "%c", *text);
    putchar('"');
}

/* Sizes are printed in MiB for people, in bytes for programs. */
static int is_size(const char *key, const json_t *value)
{
    size_t n = strlen(key), end = strlen("_bytes");
    return json_is_integer(value) && n > end && strcmp(key + n - end, "_bytes") == 0;
}

static void print_cell(const struct bench_table *t, const char *key, const json_t *value, int first)
{
    char text[COMMAND_MAX];
    value_text(text, sizeof text, value, t->config->csv ? 7 : 4);
    if (t->config->csv) {
        printf("%s", first ? "" : ",");
        print_csv(text);
        return;
    }
    if (is_size(key, value))
        snprintf(text, sizeof text, "%.4g", (double)json_integer_value(value) / (1 << 20));
    int width = column_width(key, value);
    printf("%s%*s", first ? "" : "  ", json_is_string(value) ? -width : width, text);
}

/* Columns are looked up by name, because a missing key would shift the following values. */
static void print_row(const struct bench_table *t, const json_t *row)
{
    const char *key;
    json_t *column;
    int first = 1;
    json_object_foreach(t->columns, key, column)
    {
        const json_t *value = json_object_get(row, key);
        if (value || t->config->csv)
            print_cell(t, key, value, first);
        else
            printf("  %*s", column_width(key, column), "");
        first = 0;
    }
    putchar('\n');
    fflush(stdout);
}

static void print_names(const struct bench_table *t)
{
    const char *key;
    json_t *column;
    int first = 1;
    json_object_foreach(t->columns, key, column)
    {
        int width = column_width(key, column);
        char name[64];
        snprintf(name, sizeof name, "%s", key);
        if (is_size(key, column))
            snprintf(name + strlen(name) - strlen("bytes"), sizeof "mib", "mib");
        if (t->config->csv)
            printf("%s%s", first ? "" : ",", key);
        else // right-aligned like the numbers below
            printf("%s%*s", first ? "" : "  ", json_is_string(column) ? -width : width, name);
        first = 0;
    }
    putchar('\n');
}

enum err bench_row(struct bench_table *t, json_t *row)
{
    if (!row)
        return fail(ERR_FIT, "no memory for a row of the benchmark");
    if (t->config->json) {
        if (json_array_append_new(t->rows, row) != 0)
            return fail(ERR_FIT, "no memory for a row of the benchmark");
        return OK;
    }
    if (t->config->csv && json_object_update_missing(row, t->head) != 0)
        return fail(ERR_FIT, "no memory for a row of the benchmark");
    if (!t->columns) {
        t->columns = json_incref(row);
        print_names(t);
    }
    print_row(t, row);
    json_decref(row);
    return OK;
}

/* Joins a list: "a, b". */
static void list_text(char *text, size_t cap, const json_t *list)
{
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < json_array_size(list) && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, "%s%s", i ? ", " : "",
                              json_string_value(json_array_get(list, i)));
}

void bench_table_foot(struct bench_table *t, const char *key, json_t *value)
{
    char text[COMMAND_MAX];
    if (json_is_array(value))
        list_text(text, sizeof text, value);
    else
        value_text(text, sizeof text, value, t->config->csv ? 7 : 4);
    if (t->config->csv)
        log_line(LOG_INFO, "%s: %s", key, text);
    else if (!t->config->json)
        printf("%s: %s\n", key, text);
    json_object_set_new(t->head, key, value);
}

enum err bench_table_close(struct bench_table *t)
{
    enum err err = OK;
    if (t->config->json) {
        json_object_set_new(t->head, "rows", t->rows);
        if (json_dumpf(t->head, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0)
            err = fail(ERR_IO, "stdout: cannot be written");
        putchar('\n');
    }
    json_decref(t->head);
    json_decref(t->columns);
    *t = (struct bench_table){0};
    return err;
}

int bench_runs(const struct config *c)
{
    return (int)min_i64(max_i64(c->runs, 1), BENCH_RUNS_MAX);
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, double_compare);
    return values[n / 2];
}

enum err bench_list_read(struct bench_list *l, const char *flag, const char *text)
{
    l->n = 0;
    if (snprintf(l->room, sizeof l->room, "%s", text) >= (int)sizeof l->room)
        return fail(ERR_USAGE, "--%s: too long", flag);
    for (char *save = NULL, *word = strtok_r(l->room, ", ", &save); word;
         word = strtok_r(NULL, ", ", &save)) {
        if (l->n == BENCH_LIST_MAX)
            return fail(ERR_USAGE, "--%s: more than %d values", flag, BENCH_LIST_MAX);
        l->words[l->n++] = word;
    }
    return l->n > 0 ? OK : fail(ERR_USAGE, "--%s: has no values", flag);
}

enum err bench_policies(const struct config *c, int policies[], int *n)
{
    struct bench_list list;
    *n = 0;
    const int all = !c->policies || strcmp(c->policies, "all") == 0;
    for (int i = 0; i < N_EVICT_POLICIES && all; i++)
        if (i != EVICT_FULL)
            policies[(*n)++] = i;
    if (all)
        return OK;
    TRY(bench_list_read(&list, "policies", c->policies));
    for (int i = 0; i < list.n; i++) {
        int policy = evict_policy_by_name(list.words[i]), again = 0;
        if (policy == N_EVICT_POLICIES)
            return fail_choice("policies", list.words[i], EVICT_NAMES);
        for (int k = 0; k < *n; k++)
            again |= policies[k] == policy;
        if (policy != EVICT_FULL && !again)
            policies[(*n)++] = policy;
    }
    return OK;
}

/* With -o the output goes to the file instead of stdout; a stopped benchmark keeps its rows. */
static enum err run_to_file(enum err (*run)(const struct config *c), const struct config *c)
{
    static struct whole_file file;
    if (!c->out)
        return run(c);
    TRY(whole_open(&file, c->out));
    if (dup2(fileno(file.f), STDOUT_FILENO) < 0) {
        whole_drop(&file);
        return fail(ERR_FIT, "%s: %s", c->out, strerror(errno));
    }
    enum err err = run(c);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int saved = errno;
        whole_drop(&file);
        clearerr(stdout);
        return fail(ERR_IO, "%s: cannot be written: %s", c->out, strerror(saved));
    }
    enum err written = OK;
    if (lseek(STDOUT_FILENO, 0, SEEK_END) > 0)
        written = whole_end(&file);
    else
        whole_drop(&file); // no row was printed
    return err != OK ? fail(err, "%s", why) : written;
}

enum err command_bench(const struct config *c)
{
    static const struct {
        const char *name;
        enum err (*run)(const struct config *c);
    } benches[] = {{"ops", bench_ops},           {"io", bench_io},
                   {"copies", bench_copies},     {"throughput", bench_throughput},
                   {"frontier", bench_frontier}, {"attention", bench_attention}};
    const char *name = c->n_args > 0 ? c->args[0] : "";
    for (int i = 0; i < (int)(sizeof benches / sizeof benches[0]); i++) {
        if (strcmp(name, benches[i].name) != 0)
            continue;
        return run_to_file(benches[i].run, c);
    }
    return fail(
        ERR_USAGE,
        "bench: unknown benchmark '%s' (ops, io, copies, throughput, frontier or attention)", name);
}
