/* engine/text/token.h - text to token ids and back: byte-level BPE, SentencePiece (BPE and
 * Unigram), tiktoken.
 *
 * Owns: the tokenizer blob (what a pack stores) and the open tokenizer made from it. Ids and texts
 * are those of the `tokenizers` library for a tokenizer.json, and those of `sentencepiece` for a
 * tokenizer.model and for GGUF's copy of one; special tokens written in a text are parsed. Refuses:
 * WordPiece, and any normalizer, pre-tokenizer, decoder or pattern that it cannot follow exactly
 * (ERR_INPUT "unsupported step X").
 *
 *     token_build(&source, &blob, &n);             // while packing; free(blob)
 *     tokenizer_open(&tok, blob, n, "x.pack");      // while running; the blob is copied
 *     tokenizer_encode(tok, text, n, 1, ids, cap, &n_ids);
 *     tokenizer_close(tok);
 *
 * Threads: encode uses scratch memory inside the tokenizer, so one encoder at a time; decode,
 * detokenizers and the getters only read. */
#ifndef ENGINE_TEXT_TOKEN_H
#define ENGINE_TEXT_TOKEN_H

#include "engine/model/containers/source.h"

#define TOKEN_TEXT_BYTES_MAX    ((int64_t)64 << 20) // longest text of one encode
#define TOKEN_SCRATCH_BYTES     ((int64_t)64 << 20) // default of tokenizer_limit
#define DETOKENIZER_PENDING_MAX 240 // a run of byte tokens (`tokenizers`), see below

struct tokenizer; // opaque: holds compiled patterns and hash tables

/* Makes the blob from a model's own files: GGUF metadata, or tokenizer.json, or vocab.json +
 * merges.txt, or tekken.json, or tokenizer.model (also spiece.model, *.tiktoken), with what
 * tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and
 * chat_template.jinja add. *blob is malloc'd, the caller frees it. ERR_INPUT names the file and the
 * place; ERR_FIT when memory is short. */
enum err token_build(const struct source *s, void **blob, int64_t *n_bytes);
/* The same for the Hugging Face directory `dir`, without a source. */
enum err token_build_dir(const char *dir, void **blob, int64_t *n_bytes);

/* Opens a blob, which is hostile until proven sound: ERR_CORRUPT says what is wrong with `file`.
 * The bytes are copied. ERR_FIT when memory is short. */
enum err tokenizer_open(struct tokenizer **tok, const void *blob, int64_t n_bytes,
                        const char *file);
void tokenizer_close(struct tokenizer *tok); // accepts NULL

/* Bytes held now: blob copy, hash tables, patterns, scratch. */
int64_t tokenizer_bytes(const struct tokenizer *tok);
/* Caps the scratch of encode, which grows on demand to the largest text seen and is never more than
 * the cap: 16 bytes per byte of the longest pre-token may take half of it; an eighth each is for
 * normalized text (twice, when there are several normalizers), for 8 bytes per character of its
 * longest stretch without ASCII or ideographs, and for a text that gets spaces of its own. A text
 * that needs more is ERR_ROW, whatever was encoded before it. Frees what is held now. */
void tokenizer_limit(struct tokenizer *tok, int64_t scratch_bytes_max);

/* Encodes UTF-8. add_special: put what the tokenizer adds by itself (BOS, ...) around the ids.
 * Writes at most `cap` ids (NULL with 0 is fine) and always sets *n_ids to the count needed.
 * ERR_ROW: cap is too small, the text is not UTF-8, too long, or needs too much scratch. O(n log n)
 * in the longest pre-token, no recursion. */
enum err tokenizer_encode(struct tokenizer *tok, const char *text, int64_t n_bytes, int add_special,
                          int32_t *ids, int64_t cap, int64_t *n_ids);

/* The same into *ids of any length, malloc'd; the caller frees it, NULL on error. A text may have
 * more tokens than bytes: prefixes, and what normalizers make of a character. ERR_FIT: no memory.
 */
enum err tokenizer_encode_all(struct tokenizer *tok, const char *text, int64_t n_bytes,
                              int add_special, int32_t **ids, int64_t *n_ids);

/* The text of n ids, as one. Bytes that are not UTF-8 become U+FFFD: one per maximal broken part
 * for byte-level vocabularies; one per byte where a character's bytes are tokens <0xNN>, and under
 * `tokenizers` rules then for the whole run of them (told for DETOKENIZER_PENDING_MAX bytes of a
 * run at a time: a longer one keeps what was whole before). Ids that the vocabulary does not have
 * give nothing. skip_special leaves special tokens out. *n_out is the count needed; ERR_ROW when it
 * is more than cap. Writes no NUL. */
enum err tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, int64_t n,
                          int skip_special, char *out, int64_t cap, int64_t *n_out);

/* Streaming: feed one id, get the bytes that no later id can change. What all feeds and the flush
 * return, put together, equals tokenizer_decode of all ids. Plain value, may be copied. */
struct detokenizer {
    const struct tokenizer *tok; // borrowed
    int skip_special;
    int n_strip;   // leading spaces that may still be dropped
    int has_token; // one was fed
    int has_text;  // some was given
    int no_lead;   // the leading space is gone
    int is_broken; // the run of byte tokens under way holds a bad byte
    int n_pending;
    uint8_t pending[DETOKENIZER_PENDING_MAX];
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, int skip_special);
/* Appends nothing beyond `cap`: ERR_ROW (and no change of state) when cap is too small, *n_out says
 * what is needed; tokenizer_feed_max(tok) is always enough. */
enum err detokenizer_feed(struct detokenizer *d, int32_t id, char *out, int64_t cap,
                          int64_t *n_out);
/* The end: what was pending, or U+FFFD for it: at most DETOKENIZER_PENDING_MAX * 3 bytes. Ready for
 * reuse after it. */
enum err detokenizer_flush(struct detokenizer *d, char *out, int64_t cap, int64_t *n_out);
int64_t tokenizer_feed_max(const struct tokenizer *tok);

int tokenizer_vocab(const struct tokenizer *tok);    // ids are 0 .. vocab - 1, some may be gaps
int32_t tokenizer_bos(const struct tokenizer *tok);  // -1: none
int32_t tokenizer_eos(const struct tokenizer *tok);  // -1: none
int tokenizer_adds_bos(const struct tokenizer *tok); // add_special puts BOS first
/* Ids that end a generation, ascending; borrowed. */
const int32_t *tokenizer_stops(const struct tokenizer *tok, int *n);
/* Texts; borrowed, not NUL-terminated. NULL when the model has none. */
const char *tokenizer_template(const struct tokenizer *tok, int64_t *n);
const char *tokenizer_bos_text(const struct tokenizer *tok, int64_t *n);
const char *tokenizer_eos_text(const struct tokenizer *tok, int64_t *n);
/* The bytes that one token stands for inside a text (not always whole UTF-8 characters). NULL for a
 * gap or a bad id. */
const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, int64_t *n);
int tokenizer_is_special(const struct tokenizer *tok, int32_t id);

#endif
