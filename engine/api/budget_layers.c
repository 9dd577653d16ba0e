/* engine/api/budget_layers.c - see budget_layers.h. */
#include "engine/api/budget_layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/file.h"
#include "policy/kv_kinds.h"

#define FILE_BYTES_MAX (1 << 20)
#define PYRAMID_BETA   20.0
#define FLAG           "--kv-budget-layers"

/* State while a file is read. */
struct reading {
    const char *path;
    int line, layer_column, slots_column; // line number; columns of a table
    int n_layers;
    double *sum;             // [n_layers]
    int n[SHAPE_LAYERS_MAX]; // number of summed values
    int layer;               // next layer of a list
};

static enum err refuse(const struct reading *f, const char *what)
{
    return fail(ERR_USAGE, "%s:%d: " FLAG ": %s", f->path, f->line, what);
}

static enum err take(struct reading *f, double layer, double share)
{
    if (!(layer >= 0 && layer < f->n_layers))
        return fail(ERR_USAGE, "%s:%d: " FLAG ": the model has %d decoder layers", f->path, f->line,
                    f->n_layers);
    if (!(share > 0) || !isfinite(share))
        return refuse(f, "a layer's share must be a number above 0");
    f->sum[(int)layer] += share;
    f->n[(int)layer]++;
    return OK;
}

/* Reads the first line that is no comment: column names, or already the numbers. */
static void take_head(struct reading *f, const char *line)
{
    int column = 0;
    f->layer_column = f->slots_column = -1;
    for (const char *at = line; *at; column++) {
        size_t n = strcspn(at, ",");
        if (n == strlen("layer") && strncmp(at, "layer", n) == 0)
            f->layer_column = column;
        if (n == strlen("slots_95") && strncmp(at, "slots_95", n) == 0)
            f->slots_column = column;
        at += n + (at[n] == ',');
    }
}

static enum err take_row(struct reading *f, const char *line)
{
    double layer = -1, share = NAN;
    int column = 0;
    for (const char *at = line; *at; column++) {
        size_t n = strcspn(at, ",");
        if (column == f->layer_column)
            layer = strtod(at, NULL);
        if (column == f->slots_column)
            share = strtod(at, NULL);
        at += n + (at[n] == ',');
    }
    return take(f, layer, share);
}

static enum err take_list(struct reading *f, const char *line)
{
    for (const char *at = line + strspn(line, " \t,"); *at; at += strspn(at, " \t,")) {
        char *end;
        double share = strtod(at, &end);
        if (end == at)
            return refuse(
                f, "expected one number per layer, or a table with columns layer and slots_95");
        TRY(take(f, f->layer++, share));
        at = end;
    }
    return OK;
}

static enum err take_lines(struct reading *f, char *text)
{
    int began = 0, is_table = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        f->line++;
        line[strcspn(line, "#\r")] = 0;
        if (line[strspn(line, " \t")] == 0)
            continue;
        if (!began++) {
            take_head(f, line);
            is_table = f->layer_column >= 0 && f->slots_column >= 0;
            if (is_table)
                continue;
        }
        TRY(is_table ? take_row(f, line) : take_list(f, line));
    }
    for (int layer = 0; layer < f->n_layers; layer++)
        if (f->n[layer] == 0)
            return fail(ERR_USAGE, "%s: " FLAG ": no value for layer %d (the model has %d)",
                        f->path, layer, f->n_layers);
    return OK;
}

static enum err read_file(const char *path, int n_layers, double *share)
{
    struct reading f = {.path = path, .n_layers = n_layers, .sum = share};
    int64_t n;
    int found;
    char *text;
    enum err err = file_load(path, FILE_BYTES_MAX, &text, &n, &found);
    if (err != OK)
        return fail(err == ERR_INPUT ? ERR_USAGE : err, FLAG ": %s", err_text());
    if (!found)
        return fail(ERR_USAGE,
                    FLAG ": invalid value '%s' (expected even, pyramid[:BETA] or a file)", path);
    memset(share, 0, (size_t)n_layers * sizeof *share);
    err = take_lines(&f, text);
    for (int layer = 0; layer < n_layers && err == OK; layer++)
        share[layer] /= f.n[layer];
    free(text);
    return err;
}

enum err budget_layers_read(const char *text, int n_layers, double *share)
{
    const size_t n = strlen("pyramid");
    char *end;
    double beta = PYRAMID_BETA;
    for (int layer = 0; layer < n_layers; layer++)
        share[layer] = 1;
    if (strcmp(text, "even") == 0)
        return OK;
    if (strncmp(text, "pyramid", n) != 0 || (text[n] && text[n] != ':'))
        return read_file(text, n_layers, share);
    if (text[n] == ':') {
        beta = strtod(text + n + 1, &end);
        if (end == text + n + 1 || *end || !(beta >= 1) || !isfinite(beta))
            return fail(ERR_USAGE, FLAG ": '%s' is out of range (pyramid:BETA, BETA at least 1)",
                        text);
    }
    kv_pyramid(share, n_layers, beta);
    return OK;
}
