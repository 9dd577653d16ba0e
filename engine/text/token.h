/* engine/text/token.h - text to token ids and back: byte-level BPE, SentencePiece (BPE and
 * Unigram), tiktoken.
 *
 * Owns: the tokenizer blob (stored in a pack) and the open tokenizer made from it. Ids and texts
 * equal those of the `tokenizers` library for a tokenizer.json, and those of `sentencepiece` for a
 * tokenizer.model and for GGUF's copy of one; special tokens written in a text are parsed. Refuses:
 * WordPiece, and any normalizer, pre-tokenizer, decoder or pattern without an exact equivalent here
 * (ERR_INPUT "unsupported step X").
 *
 *     token_build(&source, &blob, &n);             // while packing; free(blob)
 *     tokenizer_open(&tok, blob, n, "x.pack");      // while running; the blob is copied
 *     tokenizer_encode(tok, text, n, 1, ids, cap, &n_ids);
 *     tokenizer_close(tok);
 *
 * Threads: encode uses scratch memory in the tokenizer: one encoder at a time. Decode, detokenizers
 * and getters only read. */
#ifndef ENGINE_TEXT_TOKEN_H
#define ENGINE_TEXT_TOKEN_H

#include "engine/model/containers/source.h"

#define TOKEN_TEXT_BYTES_MAX    ((int64_t)64 << 20) // longest text of one encode
#define TOKEN_SCRATCH_BYTES     ((int64_t)64 << 20) // default of tokenizer_limit
#define DETOKENIZER_PENDING_MAX 240 // longest run of byte tokens (`tokenizers`) kept, see below

struct tokenizer; // opaque: holds compiled patterns and hash tables

/* Makes the blob from a model's own files: GGUF metadata, or tokenizer.json, or vocab.json +
 * merges.txt, or tekken.json, or tokenizer.model (also spiece.model, *.tiktoken), plus
 * tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and
 * chat_template.jinja. The caller frees *blob (malloc). ERR_INPUT names the file and the place;
 * ERR_FIT: no memory. */
enum err token_build(const struct source *s, void **blob, int64_t *n_bytes);
/* The same for the Hugging Face directory `dir`, without a source. */
enum err token_build_dir(const char *dir, void **blob, int64_t *n_bytes);

/* Opens a blob and copies its bytes; does not trust them: ERR_CORRUPT says what is wrong with
 * `file`. ERR_FIT: no memory. */
enum err tokenizer_open(struct tokenizer **tok, const void *blob, int64_t n_bytes,
                        const char *file);
void tokenizer_close(struct tokenizer *tok); // accepts NULL

/* Bytes held now: blob copy, hash tables, patterns, scratch. */
int64_t tokenizer_bytes(const struct tokenizer *tok);
/* Limits the scratch memory of encode, which grows on demand to the largest text seen. Half of the
 * limit is for the longest pre-token (16 bytes per byte); an eighth each for normalized text (twice
 * with several normalizers), for 8 bytes per character of the longest stretch without ASCII or
 * ideographs, and for a text with added spaces. A text that needs more is ERR_ROW, independent of
 * earlier texts. Frees what is held now. */
void tokenizer_limit(struct tokenizer *tok, int64_t scratch_bytes_max);

/* Encodes UTF-8. add_special: adds the tokenizer's own ids (BOS, ...) around the text. Writes at
 * most `cap` ids (NULL with 0 is fine) and always sets *n_ids to the count needed. ERR_ROW: cap is
 * too small, or the text is not UTF-8, too long, or needs too much scratch. O(n log n) in the
 * longest pre-token, no recursion. */
enum err tokenizer_encode(struct tokenizer *tok, const char *text, int64_t n_bytes, int add_special,
                          int32_t *ids, int64_t cap, int64_t *n_ids);

/* The same into *ids, malloc'd to the needed length; the caller frees it; NULL on error. Prefixes
 * and normalizers can make more tokens than bytes. ERR_FIT: no memory. */
enum err tokenizer_encode_all(struct tokenizer *tok, const char *text, int64_t n_bytes,
                              int add_special, int32_t **ids, int64_t *n_ids);

/* The text of n ids. Invalid UTF-8 becomes U+FFFD: one per maximal broken part in byte-level
 * vocabularies; one per byte for byte tokens <0xNN>, and under `tokenizers` rules then for their
 * whole run (judged per DETOKENIZER_PENDING_MAX bytes: a longer run keeps its earlier valid part).
 * Unknown ids give nothing. skip_special omits special tokens. *n_out is the count needed; ERR_ROW:
 * more than cap. No NUL is written. */
enum err tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, int64_t n,
                          int skip_special, char *out, int64_t cap, int64_t *n_out);

/* Streaming: each feed returns the bytes that no later id can change. The results of all feeds and
 * the flush together equal tokenizer_decode of all ids. Plain value, may be copied. */
struct detokenizer {
    const struct tokenizer *tok; // borrowed
    int skip_special;
    int n_strip;   // leading spaces still to drop
    int has_token; // 1: a token was fed
    int has_text;  // 1: some text was returned
    int no_lead;   // 1: the leading space was dropped
    int is_broken; // 1: the current run of byte tokens has a bad byte
    int n_pending;
    uint8_t pending[DETOKENIZER_PENDING_MAX];
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, int skip_special);
/* Feeds one id. ERR_ROW: cap is too small; writes nothing and keeps the state. *n_out is the count
 * needed; tokenizer_feed_max(tok) always suffices. */
enum err detokenizer_feed(struct detokenizer *d, int32_t id, char *out, int64_t cap,
                          int64_t *n_out);
/* Ends the text: returns the pending bytes, or U+FFFD for them, at most DETOKENIZER_PENDING_MAX * 3
 * bytes, and resets the detokenizer. */
enum err detokenizer_flush(struct detokenizer *d, char *out, int64_t cap, int64_t *n_out);
int64_t tokenizer_feed_max(const struct tokenizer *tok);

int tokenizer_vocab(const struct tokenizer *tok);    // ids are 0 .. vocab - 1, some may be gaps
int32_t tokenizer_bos(const struct tokenizer *tok);  // -1: none
int32_t tokenizer_eos(const struct tokenizer *tok);  // -1: none
int tokenizer_adds_bos(const struct tokenizer *tok); // add_special puts BOS first
/* Ids that end a generation, ascending; borrowed. */
const int32_t *tokenizer_stops(const struct tokenizer *tok, int *n);
/* Texts; borrowed, not NUL-terminated. NULL: the model has none. */
const char *tokenizer_template(const struct tokenizer *tok, int64_t *n);
const char *tokenizer_bos_text(const struct tokenizer *tok, int64_t *n);
const char *tokenizer_eos_text(const struct tokenizer *tok, int64_t *n);
/* The bytes of one token inside a text (not always whole UTF-8 characters). NULL: a gap or a bad
 * id. */
const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, int64_t *n);
int tokenizer_is_special(const struct tokenizer *tok, int32_t id);

#endif
