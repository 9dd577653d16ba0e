/* engine/api/text.h - text functions of an opened model: ids to text, conversations to prompts.
 *
 * Owns: what `tokenize` and libsluice share. Refuses: JSON of answers; encoding
 * (tokenizer_encode_all()). */
#ifndef ENGINE_API_TEXT_H
#define ENGINE_API_TEXT_H

#include "engine/api/run.h"

/* Decodes n ids. *text: [n_text] bytes of UTF-8, then NUL; owned by the caller, NULL on error.
 * ERR_ROW: an id is not in the vocabulary. Requires o->tokenizer. */
enum err text_decode(const struct opened *o, const int32_t *ids, int64_t n, int skip_special,
                     char **text, int64_t *n_text);
/* Renders the chat template for a row with "messages", "tools" and "chat_template_kwargs", as `run`
 * does; the template's clock is SOURCE_DATE_EPOCH. Changes the messages
 * (engine/job/request_chat.h). *text: as above. ERR_ROW. */
enum err text_chat(const struct opened *o, const json_t *row, char **text, int64_t *n);
/* The clock of chat templates and of `created`: SOURCE_DATE_EPOCH, or 0. */
int64_t text_epoch(void);

#endif
