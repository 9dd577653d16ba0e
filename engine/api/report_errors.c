/* engine/api/report_errors.c - see report.h. Owns: the words for failed rows: kinds of errors, rows
 * per kind, first lines, helpful flags. */
#include "engine/api/report.h"

#include <string.h>

#define KINDS_SHOWN 12

static const struct {
    const char *code, *hint;
} hints[] = {
    {"prompt_too_long_for_memory", "a larger --mem-ram with --retry-errors"},
    {"line_too_long_for_memory", "a larger --mem-ram with --retry-errors"},
    {"invalid_kv_budget", "a larger --kv-budget, with --overwrite: it changes every answer"},
    {"context_length_exceeded", "longer than the model takes: shorten these prompts"},
    {"duplicate_custom_id", "the later of two rows fails: give each its own"},
    {"numeric_error", "the model's numbers overflowed: --retry-errors tries again"},
};

static const char *hint_of(const char *code)
{
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (strcmp(hints[i].code, code) == 0)
            return hints[i].hint;
    return NULL;
}

static void print_kind(const struct job_error_kind *k, FILE *out)
{
    const char *hint = hint_of(k->error.code);
    fprintf(out, "  %lld x %s", (long long)k->n,
            k->error.message[0] ? k->error.message : k->error.code);
    for (int i = 0; i < k->n_lines; i++)
        fprintf(out, "%s%lld",
                i > 0      ? ", "
                : k->n > 1 ? ", lines "
                           : ", line ",
                (long long)k->lines[i]);
    fputs(k->n_lines > 0 && k->n > k->n_lines ? ", ..." : "", out);
    if (hint)
        fprintf(out, " (%s)", hint);
    fputs("\n", out);
}

/* The kind with most rows that is not in `shown`; the first of equal ones. */
static int largest(const struct job_errors *e, uint64_t shown)
{
    int best = -1;
    for (int i = 0; i < e->n_kinds; i++)
        if (!(shown >> i & 1) && (best < 0 || e->kinds[i].n > e->kinds[best].n))
            best = i;
    return best;
}

/* Prints the one --ignore-fields flag for all rows that fail only for fields which sluice lacks. */
static void print_ignore(const struct job_errors *e, const struct ignore_list *ignored,
                         int is_dry_run, FILE *out)
{
    struct ignore_list fields = *ignored;
    char text[IGNORE_MAX * IGNORE_NAME_BYTES + 1];
    for (int i = 0; i < e->n_kinds; i++) {
        struct ignore_list one = {.n = e->kinds[i].error.field[0] != 0};
        memcpy(one.names[0], e->kinds[i].error.field, sizeof one.names[0]);
        fields = ignore_union(&fields, &one);
    }
    if (fields.n == ignored->n)
        return;
    ignore_text(&fields, text, sizeof text);
    fprintf(out, "  to answer such rows without these fields: --ignore-fields %s%s\n", text,
            is_dry_run ? "" : " --retry-errors");
}

void report_errors(const struct job_errors *e, const struct ignore_list *ignored, int is_dry_run,
                   FILE *out)
{
    uint64_t shown = 0;
    int64_t left = errors_ungrouped(e);
    for (int i; (i = largest(e, shown)) >= 0; shown |= (uint64_t)1 << i)
        if (__builtin_popcountll(shown) < KINDS_SHOWN)
            print_kind(&e->kinds[i], out);
        else
            left += e->kinds[i].n;
    if (left > 0 && e->n_kinds > KINDS_SHOWN)
        fprintf(out, "  %lld rows with %s%d more kinds of errors (OUT has the error of each row)\n",
                (long long)left, errors_ungrouped(e) > 0 ? "at least " : "",
                e->n_kinds - KINDS_SHOWN);
    for (int i = 0; left > 0 && e->n_kinds == 0 && i < e->n_codes; i++) // from an older sluice
        fprintf(out, "  %lld x %s\n", (long long)e->codes[i].n, e->codes[i].code);
    print_ignore(e, ignored, is_dry_run, out);
}
