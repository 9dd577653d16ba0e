/* engine/api/text.c - see text.h.
 *
 * Owns: the check of ids. Refuses: the check of messages (engine/job/request_chat.c). */
#include "engine/api/text.h"

#include <stdlib.h>

#include "engine/job/request_chat.h"

enum err text_decode(const struct opened *o, const int32_t *ids, int64_t n, int skip_special,
                     char **text, int64_t *n_text)
{
    const struct tokenizer *tok = o->tokenizer;
    *text = NULL;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab(tok))
            return fail(ERR_ROW, "ids[%lld] must be a token id: an integer from 0 to %d",
                        (long long)i, tokenizer_vocab(tok) - 1);
    tokenizer_decode(tok, ids, n, skip_special, NULL, 0, n_text); // returns the size
    char *p = malloc((size_t)*n_text + 1);
    if (!p)
        return fail(ERR_FIT, "no memory for text");
    CHECK(tokenizer_decode(tok, ids, n, skip_special, p, *n_text, n_text) == OK);
    p[*n_text] = 0;
    *text = p;
    return OK;
}

int64_t text_epoch(void)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    return epoch ? strtoll(epoch, NULL, 10) : 0;
}

static json_t *not_null(json_t *value)
{
    return json_is_null(value) ? NULL : value;
}

enum err text_chat(const struct opened *o, const json_t *row, char **text, int64_t *n)
{
    struct row_error error = {.code = ""};
    struct chat chat = {.messages = json_object_get(row, "messages"),
                        .tools = not_null(json_object_get(row, "tools")),
                        .kwargs = not_null(json_object_get(row, "chat_template_kwargs")),
                        .tmpl = o->tmpl,
                        .tok = o->tokenizer,
                        .epoch = text_epoch(),
                        .error = &error};
    enum err err = chat_render(&chat, text, n);
    if (err != OK)
        return err == ERR_ROW ? fail(ERR_ROW, "%s", error.message) : err;
    char *p = realloc(*text, (size_t)*n + 1); // chat_render() allocated more than the text
    if (!p) {
        free(*text);
        *text = NULL;
        return fail(ERR_FIT, "no memory for messages");
    }
    p[*n] = 0;
    *text = p;
    return OK;
}
