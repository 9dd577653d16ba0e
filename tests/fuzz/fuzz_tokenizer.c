/* tests/fuzz/fuzz_tokenizer.c - a model's tokenizer files, the blob made of them, and text through
 * tokenizers that are sound. */
#include "engine/text/token_impl.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS_MAX  8192
#define TEXT_MAX 65536

/* The text that every made tokenizer gets. */
static const char SOME[] = "ab <|end|>1234 a\xcc\x81 \xc3\xa9!?\n\n x\xf0\x9f\x98\x80";

void fuzz_tokenizer_use(struct tokenizer *tok, const char *text, int64_t n)
{
    static int32_t ids[IDS_MAX];
    static char whole[TEXT_MAX], fed[TEXT_MAX];
    int64_t n_ids, n_whole, n_fed = 0, n_out;
    tokenizer_limit(tok, 1 << 20);
    if (tokenizer_encode(tok, text, n, 1, ids, IDS_MAX, &n_ids) != OK)
        return;
    for (int64_t i = 0; i < n_ids; i++)
        CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab(tok));
    if (tokenizer_decode(tok, ids, n_ids, 0, whole, TEXT_MAX, &n_whole) != OK)
        return;
    struct detokenizer d;
    detokenizer_init(&d, tok, 0);
    for (int64_t i = 0; i < n_ids; i++) {
        CHECK(detokenizer_feed(&d, ids[i], fed + n_fed, TEXT_MAX - n_fed, &n_out) == OK);
        n_fed += n_out;
    }
    CHECK(detokenizer_flush(&d, fed + n_fed, TEXT_MAX - n_fed, &n_out) == OK);
    n_fed += n_out;
    CHECK(n_fed == n_whole && memcmp(fed, whole, (size_t)n_fed) == 0);
    CHECK(utf8_valid(whole, n_whole) == n_whole);
}

static void all_ids(struct tokenizer *tok)
{
    const int n = tokenizer_vocab(tok);
    int n_stops;
    int64_t n_bytes, n_out;
    char out[16];
    for (int32_t id = -1; id < n && id < 300; id++) {
        const char *piece = tokenizer_piece(tok, id, &n_bytes);
        fuzz_touch(piece, n_bytes);
        (void)tokenizer_is_special(tok, id);
        (void)tokenizer_decode(tok, &id, 1, 1, out, sizeof out, &n_out);
    }
    const int32_t *stops = tokenizer_stops(tok, &n_stops);
    for (int i = 0; i < n_stops; i++)
        CHECK(stops[i] >= 0 && stops[i] < n);
    const char *text = tokenizer_template(tok, &n_bytes);
    fuzz_touch(text, n_bytes);
    text = tokenizer_bos_text(tok, &n_bytes);
    fuzz_touch(text, n_bytes);
    text = tokenizer_eos_text(tok, &n_bytes);
    fuzz_touch(text, n_bytes);
}

/* ---- files: 'T' tokenizer.json, or 'V' vocab.json and merges.txt; then the configs. 'M'
 * tokenizer.model, or 'K' tekken.json, which is all the rest ---- */

static const char MODEL_CONFIG[] =
    "{\"bos_token\":\"<s>\",\"legacy\":false,\"added_tokens_decoder\":"
    "{\"8\":{\"content\":\"<|end|>\",\"special\":true}}}";
static const char MODEL_ADDED[] = "{\"!?\":9}";

static void files_one(const uint8_t *data, size_t n)
{
    static const char *const names[2][5] = {{"tokenizer.json", "tokenizer_config.json",
                                             "special_tokens_map.json", "generation_config.json",
                                             "chat_template.jinja"},
                                            {"vocab.json", "merges.txt", "tokenizer_config.json",
                                             "special_tokens_map.json", "config.json"}};
    if (n == 0)
        return;
    const uint8_t *at = data + 1, *end = data + n;
    const int as_vocab = data[0] == 'V';
    if (data[0] == 'M') {
        fuzz_file("tokenizer.model", at, (size_t)(end - at));
        fuzz_file("tokenizer_config.json", MODEL_CONFIG, sizeof MODEL_CONFIG - 1);
        fuzz_file("added_tokens.json", MODEL_ADDED, sizeof MODEL_ADDED - 1);
        at = end;
    }
    if (data[0] == 'K') {
        fuzz_file("tekken.json", at, (size_t)(end - at));
        at = end;
    }
    for (int i = 0; i < 5 && at < end; i++) {
        size_t n_text;
        const uint8_t *text = fuzz_part(&at, end, &n_text);
        fuzz_file(names[as_vocab][i], text, n_text);
    }
    void *blob;
    int64_t n_blob;
    struct tokenizer *tok;
    if (token_build_dir(FUZZ_DIR, &blob, &n_blob) != OK)
        return;
    CHECK(tokenizer_open(&tok, blob, n_blob, "blob") == OK);
    free(blob);
    fuzz_tokenizer_use(tok, SOME, sizeof SOME - 1);
    all_ids(tok);
    tokenizer_close(tok);
}

const struct fuzz_target fuzz_tokenizer = {.name = "tokenizer", .one = files_one};

/* ---- the blob, as it stands in a pack ---- */

static void blob_one(const uint8_t *data, size_t n)
{
    static uint8_t blob[1 << 16];
    struct tokenizer *tok;
    if (n > sizeof blob)
        return;
    memcpy(blob, data, n);
    if (n >= sizeof(struct token_head)) { // else no change of length would come far
        struct token_head *h = (struct token_head *)(void *)blob;
        h->n_bytes = n;
    }
    if (tokenizer_open(&tok, blob, (int64_t)n, "blob") != OK)
        return;
    fuzz_tokenizer_use(tok, SOME, sizeof SOME - 1);
    all_ids(tok);
    tokenizer_close(tok);
}

const struct fuzz_target fuzz_token_blob = {.name = "token_blob", .one = blob_one};

/* ---- text: the first byte chooses the tokenizer ---- */

#define N_BYTE_LEVEL 4
#define N_SOUND      (N_BYTE_LEVEL + 3)
static struct tokenizer *sound[N_SOUND];

static size_t byte_spell(int b, char *out)
{
    const int plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    int code = plain ? b : 256;
    for (int k = 0; k < b && !plain; k++)
        code += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static void sound_make(int which)
{
    static const struct {
        const char *pattern, *pattern_b;
        int normalizer;
    } kinds[N_SOUND] = {
        {NULL, NULL, -1},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         NULL, -1},
        {"\\p{N}{1,3}", "[a-z]+", STEP_NFC},
        {NULL, NULL, STEP_LOWER},
    };
    struct token_draft d;
    void *blob;
    int64_t n_blob;
    draft_init(&d, "sound");
    d.flags = TOKEN_BYTES;
    for (int b = 0; b < 256; b++) {
        char text[2];
        CHECK(draft_token(&d, b, text, (int64_t)byte_spell(b, text)) == OK);
    }
    static const char *const more[] = {"he", "ll", "hell", "hello", "aa", "aaaa"};
    for (int i = 0; i < 6; i++)
        CHECK(draft_token(&d, 256 + i, more[i], (int64_t)strlen(more[i])) == OK);
    CHECK(draft_place(&d) == OK);
    CHECK(draft_merge(&d, "h", 1, "e", 1) == OK && draft_merge(&d, "l", 1, "l", 1) == OK);
    CHECK(draft_merge(&d, "he", 2, "ll", 2) == OK && draft_merge(&d, "hell", 4, "o", 1) == OK);
    CHECK(draft_merge(&d, "a", 1, "a", 1) == OK && draft_merge(&d, "aa", 2, "aa", 2) == OK);
    CHECK(draft_added(&d, 262, "<|end|>", 7, 0, 1) == OK);
    CHECK(draft_added(&d, 263, "<>", 2, ADDED_LSTRIP | ADDED_RSTRIP, 0) == OK);
    CHECK(draft_added(&d, 264, "word", 4, ADDED_WORD | ADDED_NORMALIZED, 0) == OK);
    struct token_step step = {.kind = (uint32_t)kinds[which].normalizer};
    if (kinds[which].normalizer >= 0)
        CHECK(draft_step(&d, step) == OK);
    const char *const patterns[] = {kinds[which].pattern, kinds[which].pattern_b};
    for (int i = 0; i < 2; i++)
        if (patterns[i]) {
            step = (struct token_step){.kind = STEP_SPLIT_REGEX, .behavior = SPLIT_ISOLATED};
            CHECK(draft_text(&d, patterns[i], (int64_t)strlen(patterns[i]), &step.a) == OK);
            CHECK(draft_step(&d, step) == OK);
        }
    CHECK(draft_byte_level(&d, which == 3, which == 0) == OK);
    CHECK(draft_finish(&d, &blob, &n_blob) == OK);
    draft_close(&d);
    CHECK(tokenizer_open(&sound[which], blob, n_blob, "sound") == OK);
    free(blob);
}

/* SentencePiece: BPE with bytes, BPE without, Unigram that trims. */
static void spm_make(int which)
{
    static const char *const pieces[] = {
        "\xe2\x96\x81",  "a",       "e", "h", "l", "o", "he", "ll", "hell", "hello", "aa", "aaaa",
        "\xe2\x96\x81h", "\xc3\xa9"};
    const struct spm m = {.model = which == 2 ? MODEL_UNIGRAM : MODEL_BPE,
                          .byte_fallback = which != 1,
                          .prefix = 1,
                          .trim = which == 2,
                          .escape = 1};
    struct token_draft d;
    void *blob;
    int64_t n_blob, id = 0;
    char text[16];
    draft_init(&d, "sound");
    CHECK(spm_piece(&d, &m, id++, "<unk>", 5, 0, SPM_UNKNOWN) == OK);
    CHECK(spm_piece(&d, &m, id++, "<s>", 3, 0, SPM_CONTROL) == OK);
    CHECK(spm_piece(&d, &m, id++, "<|end|>", 7, 0, SPM_USER_DEFINED) == OK);
    for (int b = 0; b < 256 && m.byte_fallback; b++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        CHECK(spm_piece(&d, &m, id++, text, 6, 0, SPM_BYTE) == OK);
    }
    for (int i = 0; i < 14; i++)
        CHECK(spm_piece(&d, &m, id++, pieces[i], (int64_t)strlen(pieces[i]), -1 - i % 5,
                        SPM_NORMAL) == OK);
    CHECK(draft_place(&d) == OK && spm_finish(&d, &m, 0) == OK);
    CHECK(draft_added(&d, id, "<>", 2, ADDED_LSTRIP | ADDED_RSTRIP, 0) == OK);
    CHECK(draft_finish(&d, &blob, &n_blob) == OK);
    draft_close(&d);
    CHECK(tokenizer_open(&sound[N_BYTE_LEVEL + which], blob, n_blob, "sound") == OK);
    free(blob);
}

static void sound_init(void)
{
    for (int i = 0; i < N_BYTE_LEVEL; i++)
        sound_make(i);
    for (int i = 0; i < N_SOUND - N_BYTE_LEVEL; i++)
        spm_make(i);
}

/* Without a normalizer, what comes back is what went in, but for spaces that <> takes;
 * SentencePiece with bytes puts back its own space. */
static void encode_one(const uint8_t *data, size_t n)
{
    static int32_t ids[IDS_MAX];
    static char back[TEXT_MAX];
    if (n == 0 || n > IDS_MAX / 2)
        return;
    const int which = data[0] % N_SOUND;
    const char *text = (const char *)data + 1;
    const int64_t n_text = (int64_t)n - 1;
    int64_t n_ids, n_back;
    struct tokenizer *tok = sound[which];
    const int valid = utf8_valid(text, n_text) == n_text;
    fuzz_tokenizer_use(tok, text, n_text);
    const enum err e = tokenizer_encode(tok, text, n_text, 0, ids, IDS_MAX, &n_ids);
    CHECK(valid ? e == OK : e == ERR_ROW);
    if (!valid || (which > 1 && which != N_BYTE_LEVEL) || memmem(text, (size_t)n_text, "<>", 2) ||
        (which > 1 && memmem(text, (size_t)n_text, SPM_SPACE, 3)))
        return;
    CHECK(tokenizer_decode(tok, ids, n_ids, 0, back, TEXT_MAX, &n_back) == OK);
    CHECK(n_back == n_text && memcmp(back, text, (size_t)n_text) == 0);
}

const struct fuzz_target fuzz_encode = {.name = "encode", .init = sound_init, .one = encode_one};
