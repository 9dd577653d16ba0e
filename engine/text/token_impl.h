/* engine/text/token_impl.h - shared by the token*.c files only: the blob's layout, the open
 * tokenizer, the draft that loaders fill. */
#ifndef ENGINE_TEXT_TOKEN_IMPL_H
#define ENGINE_TEXT_TOKEN_IMPL_H

#include "engine/text/token.h"

#define TOKEN_MAGIC           0x4b544c53u // "SLTK"
#define TOKEN_VERSION         2u
#define TOKEN_BLOB_BYTES_MAX  ((int64_t)256 << 20)
#define TOKEN_VOCAB_MAX       (1 << 22)
#define TOKEN_MERGES_MAX      (1 << 23)
#define TOKEN_PIECE_BYTES_MAX 16384
#define TOKEN_ADDED_BYTES_MAX 4096
#define TOKEN_LOOKUP_BYTES_MAX                                                                     \
    512 // a piece of Unigram, or that merges by score: looked up at each position
#define TOKEN_STEPS_MAX   16
#define TOKEN_EXTRA_MAX   64 // most ids that add_special puts on one side; most stop ids
#define TOKEN_PATTERN_MAX 65536
#define TOKEN_GAPS_MAX    65536 // most ids without a token

/* A piece is stored as its bytes (TOKEN_BYTES), or as the vocabulary spells it. BPE pieces can
 * result from text; RAW pieces cannot (characters outside the byte alphabet; SentencePiece's
 * control, unknown, byte and user-defined pieces); ADDED pieces could, but are not in the model's
 * own vocabulary. Two pieces of one kind never have equal bytes. */
enum piece_kind {
    PIECE_GAP = 0,
    PIECE_BPE = 1,
    PIECE_RAW = 2,
    PIECE_ADDED = 3,
    PIECE_KIND_MASK = 3,
    PIECE_SPECIAL = 4,
    PIECE_USER = 8, // in drafts: user-defined, not yet an added token
};

enum added_flag { ADDED_LSTRIP = 1, ADDED_RSTRIP = 2, ADDED_WORD = 4, ADDED_NORMALIZED = 8 };

enum step_kind {
    STEP_NFC,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWER,
    STEP_PREPEND,       // a
    STEP_REPLACE,       // a -> b
    STEP_REPLACE_REGEX, // a -> b
    STEP_STRIP,         // white space; behavior: enum strip_side
    STEP_CHARSMAP,      // the charsmap, grapheme by grapheme, as `tokenizers`
    STEP_SENTENCEPIECE, // charsmap and white space, as sentencepiece; behavior: enum spm_flag
    STEP_SPLIT_REGEX,   // a; the first kind that splits
    STEP_SPLIT_STRING,
    STEP_DIGITS,
    STEP_PUNCTUATION,
    STEP_WHITESPACE,
    STEP_PREFIX_SPACE, // adds a space before each piece without one
    STEP_METASPACE,    // spaces become a, also one in front; behavior: enum prepend_scheme
    STEP_KINDS,
};

enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

enum prepend_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS, PREPEND_SCHEMES };

enum spm_flag {
    SPM_PREFIX = 1,       // a space in front (add_dummy_prefix)
    SPM_PREFIX_FIRST = 2, // only of a text, not after a special token
    SPM_TRIM = 4,         // remove_extra_whitespaces
    SPM_ESCAPE = 8,       // spaces become U+2581
    SPM_SUFFIX = 16,      // SPM_PREFIX's space goes to the end
    SPM_FLAGS = 31,
};

enum step_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_BEHAVIORS,
};

enum token_model { MODEL_BPE, MODEL_UNIGRAM, MODELS };

enum token_flag {
    TOKEN_IGNORE_MERGES = 1, // a pre-token that is a token needs no merges
    TOKEN_FUSE_UNK = 2,
    TOKEN_BYTES = 4,         // pieces and symbols are bytes; else UTF-8 and characters
    TOKEN_BYTE_FALLBACK = 8, // a character without a token becomes byte tokens <0xNN>
    TOKEN_BY_SCORE = 16,     // BPE: best score merges first. Unigram: float sums
    TOKEN_FLAGS = 31,
};

enum decode_flag {
    DECODE_BYTE_RUN = 1,   // <0xNN> is a byte; a bad one breaks its whole run (`tokenizers`)
    DECODE_BYTE_CHAR = 2,  // <0xNN> is a byte; only bad bytes are replaced (sentencepiece)
    DECODE_FIRST_BARE = 4, // the first token loses every `space` (Metaspace)
    DECODE_LEAD = 8,       // drops a `space` at the start of the text (sentencepiece)
    DECODE_LEAD_ALL = 16,  // ... all of them
    DECODE_FLAGS = 31,
};
#define DECODE_STRIP_MAX 1024
#define SPM_SPACE        "\xe2\x96\x81" // U+2581

struct token_span { // of the text pool
    uint32_t at, n;
};

/* The blob: this head, scores, the arrays below in this order, the text pool. All sizes follow from
 * the counts, so only spans of the pool need checks. Little endian. */
struct token_head {
    uint32_t magic, version;
    uint64_t n_bytes;
    uint32_t n_vocab, n_merges, n_added, n_added_raw, n_steps, n_prefix, n_suffix, n_stops, n_text;
    uint32_t flags;
    int32_t bos, eos, unk; // -1: none
    uint32_t has_template;
    uint32_t model, decode; // enum token_model; enum decode_flag
    uint32_t n_strip;       // leading spaces that decoding drops
    uint32_t n_scores;      // 0 or n_vocab
    struct token_span bos_text, eos_text, chat_template;
    struct token_span space, shown; // decoding replaces each `space` of a piece by `shown`
    struct token_span unk_text;     // decoded unknown token, if it differs from its piece
    struct token_span charsmap;     // bytes, not text
};
_Static_assert(sizeof(struct token_head) % 8 == 0, "scores follow");

struct token_merge { // rank = index
    uint32_t left, right, result;
};

struct token_added { // raw ones, then those matched in normalized text; each group sorted by bytes
    uint32_t id, flags;
    struct token_span match;
};

struct token_step { // normalizers first
    uint32_t kind, behavior, invert;
    struct token_span a, b;
};

struct token_buffer { // grows on demand, up to its share of the scratch limit
    void *p;          // owned
    int64_t cap;
};

/* Each buffer has its own share of the limit, so that whether a text fits depends on the text
 * alone, not on earlier allocations. */
enum buffer_kind { BUFFER_BPE, BUFFER_NORM, BUFFER_NORM_2, BUFFER_CODES, BUFFER_PREFIXED, BUFFERS };

struct regex; // token_regex.c

/* A piece of text being split by a step. */
struct split_level {
    const char *text;
    int64_t n;
    int64_t search;           // start of the next search
    int64_t prev;             // end of the last event
    int64_t match, match_end; // pending match; -1: none
    int64_t last_match_end;   // -1: none
    int done;                 // no more matches
    int has_next, next_is_match;
    int64_t next_at, next_end; // the next event, read ahead
};

struct tokenizer {
    uint8_t *blob; // owned
    const struct token_head *head;
    const double *scores;     // [n_vocab], if n_scores > 0
    const uint32_t *piece_at; // [n_vocab + 1]
    const struct token_merge *merges;
    const struct token_added *added;
    const struct token_step *steps;
    const int32_t *prefix, *suffix, *stops;
    const uint8_t *piece_kind; // [n_vocab]
    const char *text;

    int n_normalizers;                    // steps before this index are normalizers
    struct regex *regex[TOKEN_STEPS_MAX]; // owned; NULL for steps without a pattern
    uint32_t *merge_slots;                // owned; [merge_mask + 1], rank + 1 or 0
    uint32_t merge_mask;
    uint32_t *piece_slots; // owned; [piece_mask + 1], id + 1 or 0, of BPE pieces; if needed
    uint32_t piece_mask;
    int cuts_at_space;    // 1: long words may be cut before a U+2581, see cuts_find()
    uint32_t *path_order; // owned; [path_first[256]] ids of BPE pieces by bytes; Unigram
    uint32_t path_first[257];
    double unk_score;      // Unigram
    uint32_t *shown_at;    // owned; [n_vocab + 1], without TOKEN_BYTES: decoded pieces
    char *shown;           // owned
    int32_t byte_id[256];  // -1: no token; the byte, or <0xNN>
    int32_t ascii_id[128]; // -1: the character has no token; without TOKEN_BYTES
    uint8_t first_raw[256], first_normalized[256]; // 1: an added token starts with this byte
    int64_t piece_bytes_max;
    uint64_t seed;   // of both hash tables, so that files cannot force collisions
    int64_t n_bytes; // all of the above

    int64_t scratch_max, scratch_used;
    struct token_buffer buffers[BUFFERS];
    struct split_level levels[TOKEN_STEPS_MAX + 1];
};

/* The output of encode. */
struct token_sink {
    int32_t *ids;
    int64_t cap, n;
    int is_first; // 1: the next piece starts the text
};

static inline void sink_put(struct token_sink *s, int32_t id)
{
    if (s->n < s->cap)
        s->ids[s->n] = id;
    s->n++;
}

/* token.c: reserves n bytes in a buffer, contents kept. ERR_ROW: beyond its share. ERR_FIT. */
enum err scratch_grow(struct tokenizer *tok, enum buffer_kind kind, int64_t n);

/* token_bpe.c */
enum err bpe_open(struct tokenizer *tok);
void bpe_close(struct tokenizer *tok);
enum err bpe_encode(struct tokenizer *tok, const char *word, int64_t n, struct token_sink *sink);
int bytes_known(const struct tokenizer *tok, const char *p, int64_t n); // each byte has a token

/* token_unigram.c */
enum err unigram_open(struct tokenizer *tok);
void unigram_close(struct tokenizer *tok);
enum err unigram_encode(struct tokenizer *tok, const char *word, int64_t n,
                        struct token_sink *sink);

/* token_split.c: splits text without added tokens, and encodes every pre-token. */
enum err split_encode(struct tokenizer *tok, const char *text, int64_t n, struct token_sink *sink);

/* token_norm.c: runs the normalizers; *out is `text` itself or scratch, valid until the next call.
 */
enum err norm_run(struct tokenizer *tok, const char *text, int64_t n, int is_first,
                  const char **out, int64_t *n_out);
struct norm_out {
    struct tokenizer *tok;
    enum buffer_kind to;
    int64_t n;
    int is_first;
};
enum err norm_put(struct norm_out *o, const char *p, int64_t n);

/* token_charsmap.c: the two steps that use sentencepiece's table of replacements. */
enum err charsmap_check(const struct tokenizer *tok, const char *file);
enum err charsmap_run(struct norm_out *o, const char *p, int64_t n);
enum err spm_run(struct norm_out *o, uint32_t flags, const char *p, int64_t n);

/* token.c: bytes of the longest user-defined piece at the start of the text; 0: none. */
int64_t user_piece_bytes(const struct tokenizer *tok, const char *text, int64_t n);
uint32_t piece_bytes(const struct tokenizer *tok, uint32_t id);
int byte_token(const char *piece, int64_t n); // the byte of "<0xNN>"; -1: another piece

/* token_decode.c: checks and builds the decoded pieces. */
enum err shown_open(struct tokenizer *tok);
void shown_close(struct tokenizer *tok);

/* token_unicode.c */
int32_t utf8_at(const char *p, int64_t n, int *n_char); // n > 0 and valid UTF-8
int32_t utf8_before(const char *p, int64_t n, int *n_char);
int64_t utf8_valid(const char *p, int64_t n); // bytes of the longest valid prefix
int char_is_space(int32_t c);                 // White_Space
int char_is_word(int32_t c);                  // \w
int char_is_numeric(int32_t c);               // N*
int char_is_punctuation(int32_t c);           // P*, and ASCII punctuation
int char_is_inert(int32_t c);                 // the library sees no mark and no decomposition

/* token_regex.c. e: error code for an unsupported pattern. */
enum err regex_open(struct regex **r, const char *pattern, int64_t n, const char *file, enum err e);
void regex_close(struct regex *r); // accepts NULL
int64_t regex_bytes(const struct regex *r);
/* First match at or after `from`; *at = -1: none. ERR_ROW: the match limit was reached. */
enum err regex_find(struct regex *r, const char *text, int64_t n, int64_t from, int64_t *at,
                    int64_t *end);

/* token_draft.c: filled by loaders; draft_finish makes a blob from it. */
struct draft_piece {
    struct token_span bytes; // within the draft's `bytes`
    uint8_t kind;
    double score;
};

struct draft_entry { // a vocabulary entry before draft_place
    int64_t id;
    struct draft_piece piece;
};

struct token_draft {
    const char *file; // borrowed; for messages
    char *bytes;      // of the pieces; owned, like all arrays here
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
    enum token_model model;
    uint32_t decode, n_strip;
    int has_scores, n_decoders; // n_decoders: place of the last one (token_steps.c)
    int32_t prefix[TOKEN_EXTRA_MAX], suffix[TOKEN_EXTRA_MAX], stops[TOKEN_EXTRA_MAX];
    int n_prefix, n_suffix, n_stops;
    uint32_t flags;
    int32_t bos, eos, unk;
    struct token_span bos_text, eos_text, chat_template, space, shown, unk_text, charsmap;
    int has_template;
};

void draft_init(struct token_draft *d, const char *file);
void draft_close(struct token_draft *d);
/* Copies a string (valid UTF-8, or ERR_INPUT) into the pool. */
enum err draft_text(struct token_draft *d, const char *text, int64_t n, struct token_span *span);
/* The same for arbitrary bytes. */
enum err draft_bytes(struct token_draft *d, const void *bytes, int64_t n, struct token_span *span);
/* Adds a vocabulary entry as spelled in the file (with TOKEN_BYTES, to be set before, in the byte
 * alphabet). Ids in any order. */
enum err draft_token(struct token_draft *d, int64_t id, const char *text, int64_t n);
/* The same with a known kind, as plain bytes. */
enum err draft_piece_put(struct token_draft *d, int64_t id, const char *bytes, int64_t n,
                         enum piece_kind kind, double score);
/* Call once after the last draft_token: assigns the piece of each id. */
enum err draft_place(struct token_draft *d);
/* The id of an entry as spelled in the file; -1: none. Like all below, after draft_place. */
enum err draft_find(struct token_draft *d, const char *text, int64_t n, int32_t *id);
/* Ranks follow the order of calls. */
enum err draft_merge(struct token_draft *d, const char *left, int64_t n_left, const char *right,
                     int64_t n_right);
/* Adds every merge of two pieces to a third: for TOKEN_BY_SCORE. */
enum err draft_merges_all(struct token_draft *d);
/* "left right" */
enum err draft_merge_line(struct token_draft *d, const char *line, int64_t n);
/* id -1: the vocabulary must contain the text. flags: enum added_flag. */
enum err draft_added(struct token_draft *d, int64_t id, const char *text, int64_t n, uint32_t flags,
                     int special);
/* Normalizers come before splitting steps; a, b: see enum step_kind. */
enum err draft_step(struct token_draft *d, struct token_step step);
/* The single ByteLevel step, which must be the last. */
enum err draft_byte_level(struct token_draft *d, int add_prefix_space, int use_regex);
/* Appends to prefix, suffix or stops. what: for messages. */
enum err draft_extra(struct token_draft *d, int32_t *list, int *n_list, int64_t id,
                     const char *what);
/* Sorts, checks and writes the blob, then checks that tokenizer_open accepts it. */
enum err draft_finish(struct token_draft *d, void **blob, int64_t *n_bytes);

/* token_json.c: tokenizer.json, n bytes at buf. */
enum err token_load_json(struct token_draft *d, const char *buf, int64_t n);
struct json;
/* token_steps.c: one of the lists of steps of tokenizer.json. */
enum section { SECTION_NORMALIZER, SECTION_PRE_TOKENIZER, SECTION_POST_PROCESSOR, SECTION_DECODER };
enum err token_load_steps(struct json *j, struct token_draft *d, enum section section);
/* token_protobuf.c: tokenizer.model, n bytes at buf. */
enum err token_load_spm(struct token_draft *d, const char *buf, int64_t n);
/* token_spm.c: SentencePiece's rules, for any file format. */
struct spm {
    enum token_model model;
    int byte_fallback, has_spaces_last; // treat_whitespace_as_suffix
    int prefix, trim, escape;           // of the normalizer
};
enum spm_type { SPM_NORMAL = 1, SPM_UNKNOWN, SPM_CONTROL, SPM_USER_DEFINED, SPM_UNUSED, SPM_BYTE };
enum err spm_piece(struct token_draft *d, const struct spm *m, int64_t id, const char *text,
                   int64_t n, double score, int64_t type);
/* Call after the last piece. unk: the unknown token, -1: none. */
enum err spm_finish(struct token_draft *d, const struct spm *m, int32_t unk);
/* token_rules.c: how a named model splits a text. patterns: split off in turn; NULL ends them. */
#define SPLITS_MOST 6
struct split_rule {
    const char *name, *patterns[SPLITS_MOST + 1];
    int nfc, digits, byte_level_regex;
    int ignore_merges, adds_bos; // of a GGUF file that does not say
};
/* ERR_INPUT: no model has this name. */
enum err split_rule_find(const struct token_draft *d, const char *name, int64_t n,
                         const struct split_rule **rule);
/* Appends the normalizers, the splits and ByteLevel. */
enum err split_rule_apply(struct token_draft *d, const struct split_rule *rule);
/* token_tiktoken.c: lines of base64 and rank. rule: the name of the model's splitting rule. */
enum err token_load_tiktoken(struct token_draft *d, const char *buf, int64_t n, const char *rule);
int token_is_tiktoken(const char *buf, int64_t n);
/* token_tekken.c: tekken.json, n bytes at buf. */
enum err token_load_tekken(struct token_draft *d, const char *buf, int64_t n);
/* Decodes base64 in place; returns the length; -1: not base64. */
int64_t base64_decode(char *text, int64_t n);
/* Reads {"token": id, ...} from its opening brace on, into draft_token. */
enum err token_load_vocab(struct json *j, struct token_draft *d);
/* token_dir.c, token_gguf.c: load a whole model into a new draft. */
enum err token_load_dir(struct token_draft *d, const char *dir);
struct gguf;
enum err token_load_gguf(struct token_draft *d, const struct gguf *g);

#endif
