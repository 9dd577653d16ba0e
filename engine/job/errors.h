/* engine/job/errors.h - why rows failed, in groups that a person can read.
 *
 * Owns: the groups. Rows with the same code, field and message are one group, apart from the values
 * of each row: numbers that are no part of a word, and text in single quotes. Where such values
 * differ the group's message has "...": `messages has 700 tokens, the model's context is 512`
 * becomes `messages has ... tokens, the model's context is 512`. A word in double quotes names the
 * kind of error and stays.
 *
 * Note: memory is bounded. Rows beyond JOB_ERROR_KINDS groups are counted by code only. */
#ifndef ENGINE_JOB_ERRORS_H
#define ENGINE_JOB_ERRORS_H

#include <jansson.h>

#include "kernels/base/base.h"

/* The error of one row, as in the output. */
struct row_error {
    char code[48]; // "invalid_json", "unsupported_field", "context_length_exceeded", ...
    char message[400];
    char field[64]; // field that --ignore-fields may name; "": none
};

#define JOB_ERROR_CODES 16 // sluice has fewer; more codes in a damaged file are dropped
#define JOB_ERROR_KINDS 32
#define JOB_ERROR_LINES 5

/* The errors of all failed rows of the job, earlier runs included. */
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

/* Adds one failed row; `line` is its line of the input. */
void errors_add(struct job_errors *e, const struct row_error *error, int64_t line);
/* Adds the failed row whose line of OUT is the n bytes at `offset` of the file. An unreadable line
 * is not counted. ERR_FIT. */
enum err errors_add_row(struct job_errors *e, int fd, int64_t offset, int64_t n);
/* Number of failed rows without a group. */
int64_t errors_ungrouped(const struct job_errors *e);
/* Sets "errors", {code: rows}, and "error_kinds", [{"code","message","rows","lines"}], of an
 * object. */
void errors_put(const struct job_errors *e, json_t *to);
/* Adds the counts that errors_put() wrote into an object. */
void errors_take(struct job_errors *e, const json_t *from);

#endif
