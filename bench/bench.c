/* bench/bench.c - `bench`: the sub-commands, and the table that they print.
 *
 * Owns: text, CSV and JSON of the same rows. Refuses: columns that change from row to row.
 * A newcomer would miss: text and CSV rows are printed at once, so that a long benchmark that is
 * stopped has lost nothing. */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run.h"

void bench_table_open(struct bench_table *t, const struct config *c)
{
    *t = (struct bench_table){.config = c, .rows = c->json ? json_array() : NULL};
}

static int column_width(const char *key, const json_t *value)
{
    int least = json_is_string(value) ? 18 : 10, n = (int)strlen(key);
    return n > least ? n : least;
}

static void print_cell(const struct bench_table *t, const char *key, const json_t *value, int first)
{
    char text[256];
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof text, t->config->csv ? "%.7g" : "%.4g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    else
        snprintf(text, sizeof text, "%s", json_is_string(value) ? json_string_value(value) : "");
    if (t->config->csv) {
        const char *quote = strpbrk(text, ",\" ") ? "\"" : "";
        printf("%s%s%s%s", first ? "" : ",", quote, text, quote);
        return;
    }
    int width = column_width(key, value);
    printf("%s%*s", first ? "" : "  ", json_is_string(value) ? -width : width, text);
}

static void print_row(const struct bench_table *t, json_t *row, int names)
{
    const char *key;
    json_t *value;
    int first = 1;
    json_object_foreach(row, key, value)
    {
        json_t *name = names ? json_string(key) : NULL;
        if (names && !t->config->csv && !json_is_string(value)) // names stand above their numbers
            printf("%s%*s", first ? "" : "  ", column_width(key, value), key);
        else
            print_cell(t, key, names ? name : value, first);
        json_decref(name);
        first = 0;
    }
    putchar('\n');
    fflush(stdout);
}

enum err bench_row(struct bench_table *t, json_t *row)
{
    if (!row)
        return fail(ERR_FIT, "memory: a row of the benchmark");
    if (t->config->json) {
        if (json_array_append_new(t->rows, row) != 0)
            return fail(ERR_FIT, "memory: a row of the benchmark");
        return OK;
    }
    if (t->n++ == 0)
        print_row(t, row, 1);
    print_row(t, row, 0);
    json_decref(row);
    return OK;
}

enum err bench_table_close(struct bench_table *t)
{
    enum err err = OK;
    if (t->config->json) {
        json_t *root = t->head ? t->head : json_object();
        json_object_set_new(root, "rows", t->rows);
        if (json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0)
            err = fail(ERR_IO, "stdout: cannot be written");
        putchar('\n');
        json_decref(root);
    } else {
        json_decref(t->head);
    }
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

enum err command_bench(const struct config *c)
{
    static const struct {
        const char *name;
        enum err (*run)(const struct config *c);
    } benches[] = {{"ops", bench_ops},
                   {"io", bench_io},
                   {"throughput", bench_throughput},
                   {"sweep", bench_sweep}};
    if (c->n_args == 0)
        return fail(ERR_USAGE, "bench: which? (ops|io|throughput|sweep)");
    for (int i = 0; i < (int)(sizeof benches / sizeof benches[0]); i++) {
        if (strcmp(c->args[0], benches[i].name) != 0)
            continue;
        if (c->out && !freopen(c->out, "w", stdout)) // what would stand on stdout stands there
            return fail(ERR_IO, "%s: %s", c->out, strerror(errno));
        return benches[i].run(c);
    }
    return fail(ERR_USAGE, "bench: '%s' is none of ops|io|throughput|sweep", c->args[0]);
}
