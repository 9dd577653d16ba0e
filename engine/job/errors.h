/* engine/job/errors.h - why rows failed, in groups that a person can read.
 *
 * Owns: what makes two failed rows one group: the same code, the same field and the same message
 * but for the values of the row. A value of the row is a number that is no part of a word, or text
 * in single quotes. Where such values differ the message of the group has "..." instead, so
 * `messages has 700 tokens, the model's context is 512` becomes `messages has ... tokens, the
 * model's context is 512`. A word in double quotes says what kind of error it is and stays.
 *
 * Note: memory is bounded. Rows of more kinds than there is room for are counted by code only. */
#ifndef ENGINE_JOB_ERRORS_H
#define ENGINE_JOB_ERRORS_H

#include <jansson.h>

#include "kernels/base/base.h"

/* The error of one row, as it stands in the output. */
struct row_error {
    char code[48]; // "invalid_json", "unsupported_field", "context_length_exceeded", ...
    char message[400];
    char field[64]; // that --ignore-fields may name; "": none
};

#define JOB_ERROR_CODES 16 // sluice has fewer; what a damaged file says beyond them is dropped
#define JOB_ERROR_KINDS 32
#define JOB_ERROR_LINES 5

/* Of all rows of the job that failed, in earlier runs too. */
struct job_errors {
    int n_codes, n_kinds;
    struct job_error_code {
        char code[48];
        int64_t n; // rows
    } codes[JOB_ERROR_CODES];
    struct job_error_kind {
        struct row_error error; // the message with "..." where rows differ
        int64_t n;              // rows
        int64_t lines[JOB_ERROR_LINES];
        int n_lines; // the first lines of the input (from 1) with this error, ascending
    } kinds[JOB_ERROR_KINDS];
};

/* One row that failed, of that line of the input. */
void errors_add(struct job_errors *e, const struct row_error *error, int64_t line);
/* The failed row whose line of OUT stands at `offset` of the file, n bytes long. What cannot be
 * read is not counted. ERR_FIT. */
enum err errors_add_row(struct job_errors *e, int fd, int64_t offset, int64_t n);
/* Rows whose kind has no group. */
int64_t errors_ungrouped(const struct job_errors *e);
/* Sets "errors", {code: rows}, and "error_kinds", [{"code","message","rows","lines"}], of an
 * object. */
void errors_put(const struct job_errors *e, json_t *to);
/* Adds what errors_put() left in an object. */
void errors_take(struct job_errors *e, const json_t *from);

#endif
