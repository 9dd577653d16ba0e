/* engine/text/token_rules.c - how the named models split a text before byte-level BPE.
 *
 * Owns: the table from a name (of tokenizer.ggml.pre) to normalizers and patterns. The names are
 * llama.cpp's, the patterns are those of the models' own tokenizers. Refuses: names missing in the
 * table. */
#include "engine/text/token_impl.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define NO_NUMBERS   "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3       CONTRACTIONS NO_NUMBERS "\\p{N}{1,3}" REST
#define QWEN2        CONTRACTIONS NO_NUMBERS "\\p{N}" REST
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORDS(upper, lower, end)                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" end "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower     \
    "*" end
#define WORDS_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN     WORDS(UPPER, LOWER, "") "|\\p{N}" WORDS_REST
#define O200K      WORDS(UPPER, LOWER, CONTRACTIONS "?") "|\\p{N}{1,3}" WORDS_REST
/* Chinese characters are words of their own; a class may not take another away here. */
#define NO_HAN(class) "(?:(?!\\p{Han})" class ")"
#define KIMI_WORDS    WORDS(NO_HAN(UPPER), NO_HAN(LOWER), CONTRACTIONS "?")
#define KIMI          "\\p{Han}+|" KIMI_WORDS "|\\p{N}{1,3}" REST
/* Marks belong to letters. */
#define QWEN35                                                                                     \
    CONTRACTIONS                                                                                   \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"           \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define SEED                                                                                       \
    CONTRACTIONS NO_NUMBERS "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define KANA_HAN "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define DEEPSEEK                                                                                   \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                        \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"                      \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Letters with case, as DeepSeek LLM's tokenizer.json lists them. */
#define CASED                                                                                      \
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"  \
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"           \
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"               \
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"               \
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"          \
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"         \
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"          \
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"    \
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"           \
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"               \
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"            \
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"         \
    "\U0001e900-\U0001e943]"
#define WIDE_PUNCTUATION "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
#define HAN_HANGUL       "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

static const struct split_rule RULES[] = {
    {.name = "gpt-2", .byte_level_regex = 1},
    {.name = "default", .byte_level_regex = 1},
    {.name = "phi-2", .byte_level_regex = 1},
    {.name = "smollm", .digits = 1, .byte_level_regex = 1},
    {.name = "starcoder", .digits = 1, .byte_level_regex = 1},
    {.name = "refact", .digits = 1, .byte_level_regex = 1},
    {.name = "minerva-7b", .digits = 1, .byte_level_regex = 1},
    {.name = "llama-bpe", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "llama3", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "llama-v3", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "lfm2", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "falcon-h1", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "falcon3", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "midm-2.0", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "pixtral", .patterns = {LLAMA3}, .ignore_merges = 1, .adds_bos = 1},
    {.name = "dbrx", .patterns = {LLAMA3}},
    {.name = "smaug-bpe", .patterns = {LLAMA3}},
    {.name = "exaone4", .byte_level_regex = 1},
    {.name = "olmo", .byte_level_regex = 1},
    {.name = "a.x-4.0", .byte_level_regex = 1},
    {.name = "gigachat", .byte_level_regex = 1},
    {.name = "mellum", .byte_level_regex = 1},
    {.name = "seed-coder", .patterns = {SEED}},
    {.name = "deepseek-v3", .patterns = {"\\p{N}{1,3}", KANA_HAN, DEEPSEEK}},
    {.name = "deepseek-llm",
     .patterns = {"[\\r\\n]", "\\s?" CASED "+", "\\s?" WIDE_PUNCTUATION "+", "\\s+$", HAN_HANGUL,
                  "\\p{N}"}},
    {.name = "deepseek-coder",
     .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_HANGUL, "\\p{N}"}},
    {.name = "hunyuan-dense", .patterns = {"\\p{N}{1,3}", KANA_HAN, DEEPSEEK}},
    {.name = "joyai-llm", .patterns = {"\\p{N}{1,3}", KANA_HAN, DEEPSEEK}},
    {.name = "kimi-k2", .patterns = {KIMI}},
    {.name = "qwen2", .patterns = {QWEN2}, .nfc = 1},
    {.name = "deepseek-r1-qwen", .patterns = {QWEN2}},
    {.name = "stablelm2", .patterns = {QWEN2}},
    {.name = "solar-open", .patterns = {QWEN2}},
    {.name = "hunyuan", .patterns = {QWEN2}},
    {.name = "kormo", .patterns = {QWEN2}},
    {.name = "megrez", .patterns = {QWEN2}},
    {.name = "qwen35", .patterns = {QWEN35}, .nfc = 1},
    {.name = "glm4", .patterns = {LLAMA3}},
    {.name = "chatglm-bpe", .patterns = {LLAMA3}},
    {.name = "command-r", .nfc = 1, .digits = 1, .byte_level_regex = 1},
    {.name = "gpt-4o", .patterns = {O200K}},
    {.name = "llama4", .patterns = {O200K}},
    {.name = "kanana2", .patterns = {O200K}},
    {.name = "minimax-m2", .patterns = {O200K}},
    {.name = "tekken", .patterns = {TEKKEN}, .ignore_merges = 1, .adds_bos = 1},
};

enum err split_rule_find(const struct token_draft *d, const char *name, int64_t n,
                         const struct split_rule **rule)
{
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        if ((int64_t)strlen(RULES[i].name) == n && !memcmp(RULES[i].name, name, (size_t)n)) {
            *rule = &RULES[i];
            return OK;
        }
    }
    return fail(ERR_INPUT, "%s: tokenizer.ggml.pre: unsupported pre-tokenizer '%.*s'", d->file,
                (int)min_i64(n, 60), name);
}

enum err split_rule_apply(struct token_draft *d, const struct split_rule *rule)
{
    if (rule->nfc)
        TRY(draft_step(d, (struct token_step){.kind = STEP_NFC}));
    if (rule->digits)
        TRY(draft_step(d, (struct token_step){.kind = STEP_DIGITS, .behavior = SPLIT_ISOLATED}));
    for (const char *const *pattern = rule->patterns; *pattern; pattern++) {
        struct token_step step = {.kind = STEP_SPLIT_REGEX, .behavior = SPLIT_ISOLATED};
        TRY(draft_text(d, *pattern, (int64_t)strlen(*pattern), &step.a));
        TRY(draft_step(d, step));
    }
    return draft_byte_level(d, 0, rule->byte_level_regex);
}
