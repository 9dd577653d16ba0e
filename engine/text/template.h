/* engine/text/template.h - renders the chat templates that models ship (the Jinja dialect of
 * Hugging Face).
 *
 * Owns: parsed templates and the rendering limits. Refuses: files, tokenising, choosing a template.
 * Templates are untrusted input, run by an interpreter. A template sees plain JSON data; it cannot
 * change its inputs, and steps, nesting, memory and output are limited. User text is data and never
 * parsed as template code. */
#ifndef ENGINE_TEXT_TEMPLATE_H
#define ENGINE_TEXT_TEMPLATE_H

#include <jansson.h>

#include "kernels/base/base.h"

#define TEMPLATE_TEXT_BYTES_MAX (1 << 20)    // longest template text
#ifndef TEMPLATE_STEPS_MAX                   // `make fuzz` asks for less of both
#define TEMPLATE_RENDER_BYTES_MAX (16 << 20) // memory of one render, freed at its end
#define TEMPLATE_STEPS_MAX        10000000   // evaluated nodes + 64-byte pieces of processed text
#endif
#define TEMPLATE_DEPTH_MAX 600 // nested evaluations (macro calls, nested data)

#define TEMPLATE_WHAT "chat template: " // starts WHAT of a message

struct template; // opaque: parsed, immutable, may be shared by threads

/* Parses `text` (n_bytes, UTF-8, copied). `file` is a name for messages, copied too. ERR_INPUT
 * "FILE: chat template: line L: WHAT": bad or unsupported syntax, unknown filters and tests (inside
 * an `if` branch these fail only when the branch runs, as in Jinja); ERR_FIT: no memory. On error
 * *out is NULL. */
enum err template_parse(struct template **out, const char *text, int64_t n_bytes, const char *file);

/* Stands in for a template that template_parse() refused, so that each row with messages can report
 * why: template_why() returns the reason, and NULL for every other template. NULL: no memory. */
struct template *template_broken(const char *why);
const char *template_why(const struct template *t);

/* The variables of a template, all borrowed for the call. Also defined: `documents` (null unless in
 * extra), raise_exception, strftime_now, namespace and range. */
struct template_input {
    const json_t *messages; // array
    const json_t *tools;    // array; NULL: null in the template
    const json_t *extra;    // object of further variables, or NULL; overrides the fields below, but
                            // not those above, as in transformers
    int add_generation_prompt; // 0 or 1; not overridden by extra
    const char *bos_token;     // UTF-8; NULL: undefined in the template
    const char *eos_token;     // UTF-8; NULL: undefined in the template
    int64_t now_epoch;         // time for strftime_now, in UTC and the C locale
};

/* Renders into out[0, cap): *n_out bytes of UTF-8, not NUL-terminated. ERR_ROW:
 * raise_exception(...), a run-time error or a limit; out is undefined then. Maps
 * TEMPLATE_RENDER_BYTES_MAX of address space for the call; only touched pages use memory. */
enum err template_render(const struct template *t, const struct template_input *input, char *out,
                         int64_t cap, int64_t *n_out);

/* 1 if the template contains this name as a variable, an attribute or a string. If not, it cannot
 * test for such a variable or key, except by iterating over all keys. */
int template_names(const struct template *t, const char *name);

/* Frees; accepts NULL. */
void template_free(struct template *t);

#endif
