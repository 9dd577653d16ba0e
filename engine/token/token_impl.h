/* engine/token/token_impl.h - what the token*.c files share: the blob's layout, the open tokenizer,
 * the draft that loaders fill. Nobody else includes it. */
#ifndef ENGINE_TOKEN_TOKEN_IMPL_H
#define ENGINE_TOKEN_TOKEN_IMPL_H

#include "engine/token/token.h"

#define TOKEN_MAGIC           0x4b544c53u // "SLTK"
#define TOKEN_VERSION         1u
#define TOKEN_BLOB_BYTES_MAX  ((int64_t)256 << 20)
#define TOKEN_VOCAB_MAX       (1 << 22)
#define TOKEN_MERGES_MAX      (1 << 23)
#define TOKEN_PIECE_BYTES_MAX 16384
#define TOKEN_ADDED_BYTES_MAX 4096
#define TOKEN_STEPS_MAX       16
#define TOKEN_EXTRA_MAX       64 // ids that add_special puts on one side; stop ids
#define TOKEN_PATTERN_MAX     65536
#define TOKEN_GAPS_MAX        65536 // ids without a token that a vocabulary may have

/* A piece is stored as the bytes it stands for. BPE pieces are spelled in the byte alphabet and can
 * come out of merges; RAW ones hold other characters; ADDED ones are spelled in the alphabet, but
 * the model's own vocabulary does not have them. Two pieces of one kind never have equal bytes. */
enum piece_kind {
    PIECE_GAP = 0,
    PIECE_BPE = 1,
    PIECE_RAW = 2,
    PIECE_ADDED = 3,
    PIECE_KIND_MASK = 3,
    PIECE_SPECIAL = 4,
};

enum added_flag { ADDED_LSTRIP = 1, ADDED_RSTRIP = 2, ADDED_WORD = 4, ADDED_NORMALIZED = 8 };

enum step_kind {
    STEP_NFC,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWER,
    STEP_PREPEND,     // a
    STEP_REPLACE,     // a -> b
    STEP_SPLIT_REGEX, // a; the first kind that splits
    STEP_SPLIT_STRING,
    STEP_DIGITS,
    STEP_PUNCTUATION,
    STEP_PREFIX_SPACE, // a space in front of each piece that has none
    STEP_KINDS,
};

enum step_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_BEHAVIORS,
};

enum token_flag { TOKEN_IGNORE_MERGES = 1, TOKEN_FUSE_UNK = 2 };

struct token_span { // of the text pool
    uint32_t at, n;
};

/* The blob: this head, then the arrays named below in this order, then the text pool. All sizes
 * follow from the counts, so the only offsets to distrust are spans of the pool. Little endian. */
struct token_head {
    uint32_t magic, version;
    uint64_t n_bytes;
    uint32_t n_vocab, n_merges, n_added, n_added_raw, n_steps, n_prefix, n_suffix, n_stops, n_text;
    uint32_t flags;
    int32_t bos, eos, unk; // -1: none
    uint32_t has_template;
    struct token_span bos_text, eos_text, chat_template;
};

struct token_merge { // rank = index
    uint32_t left, right, result;
};

struct token_added { // raw ones first, then those matched in normalized text; each group by bytes
    uint32_t id, flags;
    struct token_span match;
};

struct token_step { // normalizers first
    uint32_t kind, behavior, invert;
    struct token_span a, b;
};

struct token_buffer { // grows on demand, within its share of the scratch limit
    void *p;          // owned
    int64_t cap;
};

/* Each buffer has its own share of the limit, so that whether a text fits depends on nothing but
 * the text: not on what earlier texts have left allocated. */
enum buffer_kind { BUFFER_BPE, BUFFER_NORM, BUFFER_NORM_2, BUFFER_CODES, BUFFER_PREFIXED, BUFFERS };

struct regex; // token_regex.c

/* A piece of text on its way through the splitting steps. */
struct split_level {
    const char *text;
    int64_t n;
    int64_t search;           // where the next search starts
    int64_t prev;             // end of the last event
    int64_t match, match_end; // pending match; -1: none
    int64_t last_match_end;   // -1: none
    int done;                 // no more matches
    int has_next, next_is_match;
    int64_t next_at, next_end; // the event looked ahead at
};

struct tokenizer {
    uint8_t *blob; // owned
    const struct token_head *head;
    const uint32_t *piece_at; // [n_vocab + 1]
    const struct token_merge *merges;
    const struct token_added *added;
    const struct token_step *steps;
    const int32_t *prefix, *suffix, *stops;
    const uint8_t *piece_kind; // [n_vocab]
    const char *text;

    int n_normalizers;                    // steps before this index normalize
    struct regex *regex[TOKEN_STEPS_MAX]; // owned; NULL for steps without a pattern
    uint32_t *merge_slots;                // owned; [merge_mask + 1], rank + 1 or 0
    uint32_t merge_mask;
    uint32_t *piece_slots; // owned; [piece_mask + 1], id + 1 or 0; only under ignore_merges
    uint32_t piece_mask;
    int32_t byte_id[256];                          // -1: no token
    uint8_t first_raw[256], first_normalized[256]; // an added token starts with this byte
    int64_t piece_bytes_max;
    uint64_t seed;   // of both hash tables, so that a file cannot be made to collide
    int64_t n_bytes; // all of the above

    int64_t scratch_max, scratch_used;
    struct token_buffer buffers[BUFFERS];
    struct split_level levels[TOKEN_STEPS_MAX + 1];
};

/* Where encode puts ids. */
struct token_sink {
    int32_t *ids;
    int64_t cap, n;
};

static inline void sink_put(struct token_sink *s, int32_t id)
{
    if (s->n < s->cap)
        s->ids[s->n] = id;
    s->n++;
}

/* token.c: at least n bytes in a buffer, contents kept. ERR_ROW beyond its share, ERR_FIT. */
enum err scratch_grow(struct tokenizer *tok, enum buffer_kind kind, int64_t n);

/* token_bpe.c */
enum err bpe_open(struct tokenizer *tok);
void bpe_close(struct tokenizer *tok);
enum err bpe_encode(struct tokenizer *tok, const char *word, int64_t n, struct token_sink *sink);

/* token_split.c: splits text without added tokens, feeds every pre-token to bpe_encode. */
enum err split_encode(struct tokenizer *tok, const char *text, int64_t n, struct token_sink *sink);

/* token_norm.c: runs the normalizers; *out is `text` itself or scratch, valid until the next call.
 */
enum err norm_run(struct tokenizer *tok, const char *text, int64_t n, const char **out,
                  int64_t *n_out);

/* token_unicode.c */
int32_t utf8_at(const char *p, int64_t n, int *n_char); // n > 0 and valid UTF-8
int32_t utf8_before(const char *p, int64_t n, int *n_char);
int64_t utf8_valid(const char *p, int64_t n); // bytes of the longest valid prefix
int char_is_space(int32_t c);                 // White_Space
int char_is_word(int32_t c);                  // \w
int char_is_numeric(int32_t c);               // N*
int char_is_punctuation(int32_t c);           // P*, and ASCII punctuation
int char_is_inert(int32_t c);                 // no mark, no decomposition, to the library

/* token_regex.c. e: the class of error for a pattern that is not followed. */
enum err regex_open(struct regex **r, const char *pattern, int64_t n, const char *file, enum err e);
void regex_close(struct regex *r); // accepts NULL
int64_t regex_bytes(const struct regex *r);
/* First match at or after `from`; *at = -1 when there is none. ERR_ROW: the match limit is hit. */
enum err regex_find(struct regex *r, const char *text, int64_t n, int64_t from, int64_t *at,
                    int64_t *end);

/* token_draft.c: what loaders fill, piece by piece, and draft_finish turns into a blob. */
struct draft_piece {
    struct token_span bytes; // of the draft's bytes
    uint8_t kind;
};

struct draft_entry { // a vocabulary entry before ids are placed
    int64_t id;
    struct draft_piece piece;
};

struct token_draft {
    const char *file; // borrowed; for messages
    char *bytes;      // owned, like all arrays here; of the pieces
    int64_t n_bytes, bytes_cap;
    char *text; // all other strings
    int64_t n_text, text_cap;
    struct draft_entry *entries;
    int64_t n_entries, entries_cap;
    struct draft_piece *pieces; // [n_vocab], after draft_place
    int64_t n_vocab, pieces_cap, n_placed;
    uint32_t *slots; // hash of pieces -> id + 1
    int64_t n_slots;
    uint64_t seed;
    struct token_merge *merges;
    int64_t n_merges, merges_cap, n_merges_read;
    struct token_added *added;
    int64_t n_added, added_cap;
    struct token_step steps[TOKEN_STEPS_MAX];
    int n_steps, n_byte_level;
    int32_t prefix[TOKEN_EXTRA_MAX], suffix[TOKEN_EXTRA_MAX], stops[TOKEN_EXTRA_MAX];
    int n_prefix, n_suffix, n_stops;
    uint32_t flags;
    int32_t bos, eos, unk;
    struct token_span bos_text, eos_text, chat_template;
    int has_template;
};

void draft_init(struct token_draft *d, const char *file);
void draft_close(struct token_draft *d);
/* Copies a string (valid UTF-8, or ERR_INPUT) into the pool. */
enum err draft_text(struct token_draft *d, const char *text, int64_t n, struct token_span *span);
/* A vocabulary entry as its file spells it (in the byte alphabet). Ids in any order. */
enum err draft_token(struct token_draft *d, int64_t id, const char *text, int64_t n);
/* Once, after the last draft_token: gives each id its piece. */
enum err draft_place(struct token_draft *d);
/* The id of an entry as its file spells it; -1: none. Needs draft_place, as all below. */
enum err draft_find(struct token_draft *d, const char *text, int64_t n, int32_t *id);
/* Ranks are the order of calls. */
enum err draft_merge(struct token_draft *d, const char *left, int64_t n_left, const char *right,
                     int64_t n_right);
/* "left right" */
enum err draft_merge_line(struct token_draft *d, const char *line, int64_t n);
/* id -1: the vocabulary must have the text. flags: enum added_flag. */
enum err draft_added(struct token_draft *d, int64_t id, const char *text, int64_t n, uint32_t flags,
                     int special);
/* Normalizers before splitting steps; a, b: see enum step_kind. */
enum err draft_step(struct token_draft *d, struct token_step step);
/* The one ByteLevel step, which ends the list. */
enum err draft_byte_level(struct token_draft *d, int add_prefix_space, int use_regex);
/* Appends to prefix, suffix or stops. what: for messages. */
enum err draft_extra(struct token_draft *d, int32_t *list, int *n_list, int64_t id,
                     const char *what);
/* Sorts, checks and writes the blob, then proves that tokenizer_open accepts it. */
enum err draft_finish(struct token_draft *d, void **blob, int64_t *n_bytes);
/* Doubles an array of `size`-byte elements until it holds `need`. */
enum err draft_grow(const struct token_draft *d, void **array, int64_t *cap, int64_t need,
                    int64_t size);

/* token_json.c: tokenizer.json, n bytes at buf. */
enum err token_load_json(struct token_draft *d, const char *buf, int64_t n);
struct json;
/* {"token": id, ...} from its opening brace on, into draft_token. */
enum err token_load_vocab(struct json *j, struct token_draft *d);
/* token_dir.c, token_gguf.c: everything of a model into a new draft's blob. */
enum err token_load_dir(struct token_draft *d, const char *dir);
struct gguf;
enum err token_load_gguf(struct token_draft *d, const struct gguf *g);

#endif
