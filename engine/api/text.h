/* engine/api/text.h - the text side of an opened model: ids to text, conversations to prompts.
 *
 * Owns: what `tokenize` and libsluice share. Refuses: JSON of answers, encoding
 * (tokenizer_encode_all() is all of that). */
#ifndef ENGINE_API_TEXT_H
#define ENGINE_API_TEXT_H

#include "engine/api/run.h"

/* The text of n ids. *text: [n_text] bytes of UTF-8, then NUL; owned by the caller, NULL on error.
 * ERR_ROW: an id that the model does not have. The model has a tokenizer. */
enum err text_decode(const struct opened *o, const int32_t *ids, int64_t n, int skip_special,
                     char **text, int64_t *n_text);
/* What `run` makes of a row with "messages", "tools" and "chat_template_kwargs"; the template's
 * clock is SOURCE_DATE_EPOCH. The messages are changed (engine/job/request_chat.h). *text: as
 * above. ERR_ROW. */
enum err text_chat(const struct opened *o, const json_t *row, char **text, int64_t *n);

#endif
