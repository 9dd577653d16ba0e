/* engine/job/request_chat.h - a row's messages as the text that the model's chat template renders.
 *
 * Owns: what messages, tools and chat_template_kwargs may hold. Refuses: JSON text, tokens. Used by
 * request.c and by `tokenize`, which shows the tokens that `run` would compute on. */
#ifndef ENGINE_JOB_REQUEST_CHAT_H
#define ENGINE_JOB_REQUEST_CHAT_H

#include "engine/job/request.h"

struct chat {
    json_t *messages;                 // changed: see chat_render
    json_t *tools;                    // or NULL: not given
    json_t *kwargs;                   // further variables of the template, or NULL
    const struct template *tmpl;      // or NULL: the model has none
    struct tokenizer *tok;            // or NULL
    int64_t epoch;                    // the time of strftime_now
    const struct ignore_list *ignore; // see struct request_defaults; NULL: an empty list
    uint32_t *ignored;                // bits of the list, set for what was ignored
    struct row_error *error;          // filled with ERR_ROW
};

/* Checks messages, tools and kwargs and renders them. In a message, text parts are joined by
 * newlines and null members are removed (except content); other members reach the template
 * unchanged. A field that the template never names is unsupported, except members that mean nothing
 * to the model. *text: [n], owned by the caller; NULL on error. */
enum err chat_render(const struct chat *c, char **text, int64_t *n);

#endif
