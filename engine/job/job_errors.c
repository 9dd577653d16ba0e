/* engine/job/job_errors.c - see job_impl.h. Owns the count of error rows by code, so that the end
 * of a run can say why rows failed.
 *
 * A newcomer would miss: rows that failed in an earlier run are read back from their lines; of a
 * job that is complete only what OUT.job.json says is known. */
#include "engine/job/job_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX ((int64_t)1 << 20) // of an error row: message and custom_id are shorter

void errors_add(struct job_errors *e, const char *code, int64_t n, int64_t line,
                const char *message)
{
    int i = 0;
    while (i < e->n && strcmp(e->code[i].code, code) != 0)
        i++;
    if (i == JOB_ERROR_CODES)
        i--; // more codes than there are
    struct job_error_code *c = &e->code[i];
    if (i == e->n) {
        *c = (struct job_error_code){0};
        snprintf(c->code, sizeof c->code, "%s", code);
        snprintf(c->message, sizeof c->message, "%s", message);
        e->n++;
    }
    c->n += n;
    if (line > 0 && c->n_lines < JOB_ERROR_LINES)
        c->lines[c->n_lines++] = line;
}

/* An error row as it stands in OUT. */
static void add_text(struct job *job, const char *text, int64_t n)
{
    json_error_t why;
    json_t *root = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, &why);
    const json_t *error = json_object_get(root, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message"));
    if (code)
        errors_add(&job->errors, code, 1, json_integer_value(json_object_get(error, "line")),
                   message ? message : "");
    json_decref(root);
}

enum err errors_load(struct job *job)
{
    char *text = NULL;
    for (int64_t k = 0; k < job->n_rows; k++) {
        const struct job_row *row = &job->rows[k];
        if (row->state != ROW_FAILED || row->n > LINE_BYTES_MAX)
            continue;
        if (!text)
            text = malloc((size_t)LINE_BYTES_MAX);
        if (!text)
            return fail(ERR_FIT, "no memory for error rows");
        ssize_t n = pread(job->partial_fd, text, row->n, (off_t)row->place);
        if (n == (ssize_t)row->n)
            add_text(job, text, n);
    }
    free(text);
    return OK;
}

const struct job_errors *job_errors(const struct job *job)
{
    return &job->errors;
}
