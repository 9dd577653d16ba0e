/* engine/job/request_chat.h - a row's conversation as the text that the model's template makes of
 * it.
 *
 * Owns: what messages, tools and chat_template_kwargs may hold. Refuses: JSON text, tokens. For
 * request.c and for `tokenize`, which shows what `run` would compute on. */
#ifndef ENGINE_JOB_REQUEST_CHAT_H
#define ENGINE_JOB_REQUEST_CHAT_H

#include "engine/job/request.h"

struct chat {
    json_t *messages;                 // changed: see chat_render
    json_t *tools;                    // or NULL: not given
    json_t *kwargs;                   // further variables of the template, or NULL
    const struct template *tmpl;      // or NULL: the model has none
    struct tokenizer *tok;            // or NULL
    int64_t epoch;                    // of strftime_now
    const struct ignore_list *ignore; // see struct request_defaults; NULL: an empty list
    uint32_t *ignored;                // bits of the list, set for what was ignored
    struct row_error *error;          // filled with ERR_ROW
};

/* Checks the three and renders them. In a message the parts of a list of texts are joined by
 * newlines, and a member that is null is taken out (content is not); all other members reach the
 * template as they are. What the template never names is unsupported, but for members that say
 * nothing to the model. *text: owned by the caller, [n], NULL on error. */
enum err chat_render(const struct chat *c, char **text, int64_t *n);

#endif
