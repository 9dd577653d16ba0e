/* engine/app/report_errors.c - see report.h. Owns the words for rows that failed: which codes, how
 * many of each, where the first are, what helps. */
#include "engine/app/report.h"

#include <string.h>

static const struct {
    const char *code, *hint;
} hints[] = {
    {"unsupported_field", "--unknown-fields warn --retry-errors ignores such fields"},
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

void report_errors(const struct run *r, FILE *out)
{
    if (!r->job)
        return;
    const struct job_errors *errors = job_errors(r->job);
    for (int i = 0; i < errors->n; i++) {
        const struct job_error_code *c = &errors->code[i];
        const char *hint = hint_of(c->code);
        fprintf(out, "  %lld x %s", (long long)c->n, c->code);
        for (int k = 0; k < c->n_lines; k++)
            fprintf(out, "%s%lld",
                    k > 0      ? ", "
                    : c->n > 1 ? ", lines "
                               : ", line ",
                    (long long)c->lines[k]);
        fprintf(out, "%s", c->n_lines > 0 && c->n > c->n_lines ? ", ..." : "");
        fprintf(out, c->message[0] ? ": %s" : "%s", c->message);
        if (hint)
            fprintf(out, " (%s)", hint);
        fputs("\n", out);
    }
}
