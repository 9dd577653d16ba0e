/* engine/text/template.h - renders the chat templates that models ship (the Jinja dialect of
 * Hugging Face).
 *
 * Owns: parsed templates and the rendering limits. Refuses: files, tokenising, choosing a template.
 * A template is hostile input: it is interpreted, never trusted. What it sees is plain JSON data;
 * it can neither change its inputs nor run for long (steps), deep (nesting) or wide (memory,
 * output). User text is data and is never parsed as template code. */
#ifndef ENGINE_TEXT_TEMPLATE_H
#define ENGINE_TEXT_TEMPLATE_H

#include <jansson.h>

#include "kernels/base/base.h"

#define TEMPLATE_TEXT_BYTES_MAX (1 << 20)    // longest template text
#ifndef TEMPLATE_STEPS_MAX                   // `make fuzz` asks for less of both
#define TEMPLATE_RENDER_BYTES_MAX (16 << 20) // working memory of one render, given back at its end
#define TEMPLATE_STEPS_MAX        10000000   // nodes evaluated + 64-byte pieces of text handled
#endif
#define TEMPLATE_DEPTH_MAX 600 // nested evaluations (macro calls, nested data)

#define TEMPLATE_WHAT "chat template: " // begins WHAT of a message

struct template; // opaque: parsed, immutable, may be shared by threads

/* Parses `text` (n_bytes, UTF-8, copied). `file` is a name for messages, copied as well. ERR_INPUT
 * "FILE: chat template: line L: WHAT" for bad or unsupported syntax, unknown filters and tests (but
 * inside an `if` branch those are errors only once the branch runs, as in Jinja); ERR_FIT when
 * memory is refused. On error *out is NULL. */
enum err template_parse(struct template **out, const char *text, int64_t n_bytes, const char *file);

/* A template in place of one that template_parse() refused, so that each row with messages can say
 * why: template_why() is that sentence, and NULL for every other template. NULL: no memory. */
struct template *template_broken(const char *why);
const char *template_why(const struct template *t);

/* What a template sees, all borrowed for the call. Besides these: `documents` (null unless in
 * extra), raise_exception, strftime_now, namespace and range. */
struct template_input {
    const json_t *messages;    // array
    const json_t *tools;       // array, or NULL: the template sees none
    const json_t *extra;       // object of further variables, or NULL; what is named above wins,
                               // what is named below does not, as in transformers
    int add_generation_prompt; // 0 or 1; wins
    const char *bos_token;     // UTF-8; NULL: undefined in the template
    const char *eos_token;     // likewise
    int64_t now_epoch;         // what strftime_now formats, in UTC and the C locale
};

/* Renders into out[0, cap): *n_out bytes of UTF-8, not terminated. ERR_ROW with one sentence for
 * raise_exception(...), a run-time error or a limit; then out's contents are meaningless. Maps
 * TEMPLATE_RENDER_BYTES_MAX of address space for the call; only what is touched becomes memory. */
enum err template_render(const struct template *t, const struct template_input *input, char *out,
                         int64_t cap, int64_t *n_out);

/* Does the template say this name anywhere: a variable, an attribute or a string? One that
 * does not, cannot tell whether there is such a variable or key, unless it goes through all keys.
 */
int template_names(const struct template *t, const char *name);

/* Frees; accepts NULL. */
void template_free(struct template *t);

#endif
