/* engine/data/json.c - see json.h. Owns the grammar, the conversion of numbers and strings, the key
 * set.
 *
 * Refuses recursion: an open container is one byte, and `state` says which tokens may come next.
 * Note: a string is always copied to the scratch buffer, even without escapes, because the input
 * has no room for its NUL. Digits go through strtod_l, because strtod obeys LC_NUMERIC. */
#include "engine/data/json.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES_MAX 1024 // a longer one is an attack, not a number

enum json_state {
    WANT_VALUE,        // the top, or after "key": or after a comma of an array
    WANT_VALUE_OR_END, // after [
    WANT_KEY_OR_END,   // after {
    WANT_COMMA_OR_END, // after a value inside a container
    WANT_NOTHING,      // after the top value
};

void json_init(struct json *j, const char *buf, int64_t n_bytes, const char *file, int depth_max)
{
    CHECK(n_bytes >= 0 && depth_max >= 0 && depth_max <= JSON_DEPTH_MAX);
    *j = (struct json){.buf = buf,
                       .file = file,
                       .n_bytes = n_bytes,
                       .depth_max = depth_max,
                       .last = JSON_NIL,
                       .state = WANT_VALUE};
}

void json_close(struct json *j)
{
    free(j->scratch);
    j->scratch = NULL;
    j->scratch_cap = 0;
}

const char *json_kind_name(enum json_kind kind)
{
    static const char *const names[] = {
        [JSON_OBJECT_BEGIN] = "object",
        [JSON_OBJECT_END] = "end of object",
        [JSON_ARRAY_BEGIN] = "array",
        [JSON_ARRAY_END] = "end of array",
        [JSON_KEY] = "key",
        [JSON_STR] = "string",
        [JSON_INT] = "integer",
        [JSON_FLOAT] = "number",
        [JSON_BOOL] = "true or false",
        [JSON_NIL] = "null",
        [JSON_NONFINITE] = "infinite or not a number",
        [JSON_END] = "end of file",
        [JSON_ERROR] = "error",
    };
    return names[kind];
}

static enum json_kind refuse(struct json *j, int64_t at, const char *what)
{
    j->err = fail(ERR_INPUT, "%s: %s at byte %lld", j->file, what, (long long)at);
    j->last = JSON_ERROR;
    return JSON_ERROR;
}

/* Invalid JSON; the message says so if the text ends too early. */
static enum json_kind refuse_syntax(struct json *j, int64_t at)
{
    return refuse(j, at, at >= j->n_bytes ? "invalid JSON: ends too early" : "invalid JSON");
}

enum err json_fail(struct json *j, const char *fmt, ...)
{
    char what[768];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    refuse(j, j->offset, what);
    return j->err;
}

/* ---- strings ---- */

static int scratch_room(struct json *j, int64_t n_bytes)
{
    if (n_bytes <= j->scratch_cap)
        return 1;
    int64_t cap = max_i64(256, n_bytes + n_bytes / 2);
    char *grown = realloc(j->scratch, (size_t)cap);
    if (!grown) {
        j->err =
            fail(ERR_FIT, "%s: no memory for a string of %lld bytes", j->file, (long long)n_bytes);
        j->last = JSON_ERROR;
        return 0;
    }
    j->scratch = grown;
    j->scratch_cap = cap;
    return 1;
}

/* Bytes at p that are plain ASCII: neither quote, backslash, control nor high bit. Eight at a time.
 */
static int64_t plain_run(const char *p, int64_t n)
{
    const uint64_t ones = 0x0101010101010101ull, high = 0x8080808080808080ull;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
        // (x - ones) & ~x sets the high bit of a zero byte. Higher bytes after a hit may be
        // flagged, too, but a block without a hit is right; the loop below finds the exact byte.
        uint64_t hit =
            ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 0x20) & ~w) | w;
        if (hit & high)
            break;
    }
    for (; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\')
            break;
    }
    return i;
}

/* Bytes of the well-formed UTF-8 character at p (2 to 4), or 0. Table 3-7 of the Unicode standard.
 */
static int utf8_length(const unsigned char *p, int64_t n)
{
    int len = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (p[0] >= 0xf0 && p[0] <= 0xf4)
        len = 4;
    if (len == 0 || len > n)
        return 0;
    for (int i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

/* The four hex digits of \uXXXX, or -1. */
static int hex4(const char *p, int64_t n)
{
    int value = 0;
    if (n < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)p[i], digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (c | 0x20) - 'a' + 10;
        else
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static int utf8_put(char *out, int32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | (c >> 6));
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | (c >> 12));
        out[1] = (char)(0x80 | ((c >> 6) & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (c >> 18));
    out[1] = (char)(0x80 | ((c >> 12) & 0x3f));
    out[2] = (char)(0x80 | ((c >> 6) & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Decodes the escape at p (its backslash) into out[4], *n_out. Returns its length, 0 if it is
 * invalid. */
static int escape_read(const char *p, int64_t n, char *out, int *n_out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (n < 2 || p[1] == 0)
        return 0;
    const char *simple = strchr(from, p[1]);
    if (simple) {
        out[0] = to[simple - from];
        *n_out = 1;
        return 2;
    }
    int32_t c = p[1] == 'u' ? hex4(p + 2, n - 2) : -1;
    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff))
        return 0;
    int taken = 6;
    if (c >= 0xd800 && c <= 0xdbff) { // a high surrogate needs a low one
        int32_t low = n >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8, n - 8) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        taken = 12;
    }
    *n_out = utf8_put(out, c);
    return taken;
}

/* Reads the string whose opening quote is at pos. Sets str, n_str, and pos to after the closing
 * quote. */
static int string_read(struct json *j)
{
    int64_t at = j->pos + 1, n_out = 0;
    for (;;) {
        int64_t run = plain_run(j->buf + at, j->n_bytes - at);
        if (!scratch_room(j, n_out + run + 5)) // + one character + NUL
            return 0;
        memcpy(j->scratch + n_out, j->buf + at, (size_t)run);
        n_out += run;
        at += run;
        if (at >= j->n_bytes) {
            refuse(j, j->pos, "invalid JSON: string has no end");
            return 0;
        }
        unsigned char c = (unsigned char)j->buf[at];
        if (c == '"')
            break;
        int taken, n_put;
        if (c == '\\') {
            taken = escape_read(j->buf + at, j->n_bytes - at, j->scratch + n_out, &n_put);
        } else {
            taken = n_put = utf8_length((const unsigned char *)j->buf + at, j->n_bytes - at);
            memcpy(j->scratch + n_out, j->buf + at, (size_t)n_put);
        }
        if (taken == 0) {
            refuse(j, at, c >= 0x80 ? "invalid string (not UTF-8)" : "invalid string");
            return 0;
        }
        at += taken;
        n_out += n_put;
    }
    j->scratch[n_out] = 0;
    j->str = j->scratch;
    j->n_str = n_out;
    j->pos = at + 1;
    return 1;
}

/* ---- numbers and words ---- */

static int64_t digits_end(const struct json *j, int64_t at)
{
    while (at < j->n_bytes && j->buf[at] >= '0' && j->buf[at] <= '9')
        at++;
    return at;
}

/* Exact, or 0 when it needs more than 64 bits. text: digits with an optional sign. */
static int int_from(const char *text, int64_t *out)
{
    int negative = text[0] == '-';
    int64_t value = 0; // negative, because that range is larger by one
    for (const char *p = text + negative; *p; p++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, *p - '0', &value))
            return 0;
    if (!negative && value == INT64_MIN)
        return 0;
    *out = negative ? value : -value;
    return 1;
}

static int double_from(const char *text, double *out)
{
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); // glibc: a static object, no cost
    CHECK(c_locale != (locale_t)0);
    *out = strtod_l(text, NULL, c_locale);
    freelocale(c_locale);
    return __builtin_isfinite(*out);
}

static enum json_kind number_read(struct json *j)
{
    int64_t at = j->pos + (j->buf[j->pos] == '-'), first = at;
    at = digits_end(j, at);
    if (at == first || (j->buf[first] == '0' && at - first > 1))
        return refuse_syntax(j, at == first ? at : first);
    int is_int = 1;
    if (at < j->n_bytes && j->buf[at] == '.') {
        first = at + 1;
        at = digits_end(j, first);
        if (at == first)
            return refuse_syntax(j, at);
        is_int = 0;
    }
    if (at < j->n_bytes && (j->buf[at] == 'e' || j->buf[at] == 'E')) {
        first = at + 1;
        if (first < j->n_bytes && (j->buf[first] == '+' || j->buf[first] == '-'))
            first++;
        at = digits_end(j, first);
        if (at == first)
            return refuse_syntax(j, at);
        is_int = 0;
    }
    char text[NUMBER_BYTES_MAX + 1];
    if (at - j->pos > NUMBER_BYTES_MAX)
        return refuse(j, j->pos, "number of more than 1024 characters");
    memcpy(text, j->buf + j->pos, (size_t)(at - j->pos));
    text[at - j->pos] = 0;
    j->pos = at;
    if (is_int && int_from(text, &j->i64)) {
        j->f64 = (double)j->i64;
        return JSON_INT;
    }
    if (!double_from(text, &j->f64))
        return refuse(j, j->offset, "number too large");
    j->big = is_int;
    return JSON_FLOAT;
}

static enum json_kind word_read(struct json *j)
{
    static const struct {
        const char *text;
        int n;
        enum json_kind kind;
        int value;
    } words[] = {{"true", 4, JSON_BOOL, 1},          {"false", 5, JSON_BOOL, 0},
                 {"null", 4, JSON_NIL, 0},           {"NaN", 3, JSON_NONFINITE, 0},
                 {"Infinity", 8, JSON_NONFINITE, 0}, {"-Infinity", 9, JSON_NONFINITE, 0}};
    for (int i = 0; i < (j->nonfinite ? 6 : 3); i++) {
        if (j->n_bytes - j->pos >= words[i].n &&
            memcmp(j->buf + j->pos, words[i].text, (size_t)words[i].n) == 0) {
            j->pos += words[i].n;
            j->i64 = words[i].value;
            return words[i].kind;
        }
    }
    return refuse_syntax(j, j->pos);
}

/* ---- tokens ---- */

static int space_skip(struct json *j)
{
    while (j->pos < j->n_bytes) {
        char c = j->buf[j->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return 1;
        j->pos++;
    }
    return 0;
}

static void value_done(struct json *j)
{
    j->state = j->depth ? WANT_COMMA_OR_END : WANT_NOTHING;
}

static enum json_kind container_begin(struct json *j, int is_object)
{
    if (j->depth >= j->depth_max) {
        char what[64];
        snprintf(what, sizeof what, "nesting deeper than %d", j->depth_max);
        return refuse(j, j->pos, what);
    }
    j->is_object[j->depth++] = (uint8_t)is_object;
    j->pos++;
    j->state = is_object ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
    return is_object ? JSON_OBJECT_BEGIN : JSON_ARRAY_BEGIN;
}

static enum json_kind container_end(struct json *j)
{
    enum json_kind kind = j->is_object[--j->depth] ? JSON_OBJECT_END : JSON_ARRAY_END;
    j->pos++;
    value_done(j);
    return kind;
}

static enum json_kind value_read(struct json *j)
{
    char c = j->buf[j->pos];
    if (c == '{' || c == '[')
        return container_begin(j, c == '{');
    enum json_kind kind;
    if (c == '"')
        kind = string_read(j) ? JSON_STR : JSON_ERROR;
    else if ((c >= '0' && c <= '9') ||
             (c == '-' && !(j->nonfinite && j->pos + 1 < j->n_bytes && j->buf[j->pos + 1] == 'I')))
        kind = number_read(j);
    else
        kind = word_read(j);
    value_done(j);
    return kind;
}

static enum json_kind key_read(struct json *j)
{
    if (j->buf[j->pos] != '"')
        return refuse_syntax(j, j->pos);
    if (!string_read(j))
        return JSON_ERROR;
    if (!space_skip(j) || j->buf[j->pos] != ':')
        return refuse_syntax(j, j->pos);
    j->pos++;
    j->state = WANT_VALUE;
    return JSON_KEY;
}

static enum json_kind token_read(struct json *j)
{
    j->str = NULL;
    j->n_str = 0;
    j->big = 0;
    if (!space_skip(j)) {
        j->offset = j->pos;
        return j->state == WANT_NOTHING ? JSON_END : refuse_syntax(j, j->pos);
    }
    int in_object = j->depth && j->is_object[j->depth - 1];
    char closing = in_object ? '}' : ']', c = j->buf[j->pos];
    j->offset = j->pos;
    switch ((enum json_state)j->state) {
    case WANT_NOTHING:
        return refuse(j, j->pos, "invalid JSON: more text after the end");
    case WANT_VALUE:
        return value_read(j);
    case WANT_VALUE_OR_END:
        return c == closing ? container_end(j) : value_read(j);
    case WANT_KEY_OR_END:
        return c == closing ? container_end(j) : key_read(j);
    case WANT_COMMA_OR_END:
        break;
    }
    if (c == closing)
        return container_end(j);
    if (c != ',')
        return refuse_syntax(j, j->pos);
    j->pos++;
    if (!space_skip(j))
        return refuse_syntax(j, j->pos);
    j->offset = j->pos;
    return in_object ? key_read(j) : value_read(j);
}

enum json_kind json_next(struct json *j)
{
    if (j->last != JSON_ERROR)
        j->last = token_read(j);
    return j->last;
}

enum err json_skip(struct json *j)
{
    if (j->last == JSON_KEY)
        json_next(j);
    int depth = j->depth;
    if (j->last == JSON_OBJECT_BEGIN || j->last == JSON_ARRAY_BEGIN)
        while (j->last != JSON_ERROR && j->depth >= depth)
            json_next(j);
    return j->last == JSON_ERROR ? j->err : OK;
}

int json_is(const struct json *j, const char *text)
{
    int64_t n = (int64_t)strlen(text);
    return j->str && j->n_str == n && memcmp(j->str, text, (size_t)n) == 0;
}

enum err json_expect(struct json *j, enum json_kind kind)
{
    enum json_kind is = json_next(j);
    if (is == JSON_ERROR)
        return j->err;
    if (is != kind)
        return json_fail(j, "expected %s, is %s", json_kind_name(kind), json_kind_name(is));
    return OK;
}

/* ---- the keys of one object ---- */

struct json_keys_slot {
    uint64_t hash;
    int64_t at, n_bytes; // in text
    int64_t scope;
    uint32_t round;
};

void json_keys_init(struct json_keys *k)
{
    *k = (struct json_keys){.seed = mix64((uint64_t)clock_ns() ^ (uint64_t)(uintptr_t)k),
                            .round = 1};
}

void json_keys_clear(struct json_keys *k)
{
    k->n_keys = k->n_text = 0;
    if (++k->round == 0) { // wrapped: old rounds would look like this one
        if (k->slots)
            memset(k->slots, 0, (size_t)k->n_slots * sizeof *k->slots);
        k->round = 1;
    }
}

void json_keys_close(struct json_keys *k)
{
    free(k->slots);
    free(k->text);
    *k = (struct json_keys){0};
}

static struct json_keys_slot *slot_find(const struct json_keys *k, uint64_t hash, int64_t scope,
                                        const char *str, int64_t n_str)
{
    uint64_t mask = (uint64_t)k->n_slots - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        struct json_keys_slot *s = &k->slots[i];
        if (s->round != k->round)
            return s;
        if (s->hash == hash && s->scope == scope && s->n_bytes == n_str &&
            (n_str == 0 || memcmp(k->text + s->at, str, (size_t)n_str) == 0))
            return s;
    }
}

/* Makes room for one more key of n_str bytes; the table stays at most half full. */
static int keys_room(struct json_keys *k, int64_t n_str)
{
    if (k->n_text + n_str + 1 > k->text_cap) { // never NULL, even for an empty key
        int64_t cap = max_i64(1024, 2 * (k->n_text + n_str + 1));
        char *grown = realloc(k->text, (size_t)cap);
        if (!grown)
            return 0;
        k->text = grown;
        k->text_cap = cap;
    }
    if (2 * (k->n_keys + 1) <= k->n_slots)
        return 1;
    struct json_keys next = *k;
    next.n_slots = max_i64(32, 2 * k->n_slots);
    next.slots = calloc((size_t)next.n_slots, sizeof *next.slots);
    if (!next.slots)
        return 0;
    for (int64_t i = 0; i < k->n_slots; i++) {
        const struct json_keys_slot *s = &k->slots[i];
        if (s->round == k->round)
            *slot_find(&next, s->hash, s->scope, k->text + s->at, s->n_bytes) = *s;
    }
    free(k->slots);
    *k = next;
    return 1;
}

enum json_keys_answer json_keys_put(struct json_keys *k, int64_t scope, const char *str,
                                    int64_t n_str)
{
    if (!keys_room(k, n_str))
        return JSON_KEYS_NO_MEMORY;
    uint64_t hash = hash_bytes(str, n_str, k->seed + (uint64_t)scope);
    struct json_keys_slot *s = slot_find(k, hash, scope, str, n_str);
    if (s->round == k->round)
        return JSON_KEYS_SEEN;
    *s = (struct json_keys_slot){hash, k->n_text, n_str, scope, k->round};
    if (n_str > 0) // a first key that is empty has no text to point into
        memcpy(k->text + k->n_text, str, (size_t)n_str);
    k->n_text += n_str;
    k->n_keys++;
    return JSON_KEYS_NEW;
}

enum err json_keys_add(struct json_keys *k, struct json *j)
{
    CHECK(j->last == JSON_KEY);
    enum json_keys_answer answer = json_keys_put(k, 0, j->str, j->n_str);
    if (answer == JSON_KEYS_SEEN)
        return json_fail(j, "duplicate key \"%.200s\"", j->str);
    if (answer == JSON_KEYS_NO_MEMORY) {
        j->last = JSON_ERROR;
        return j->err = fail(ERR_FIT, "%s: no memory for %lld keys", j->file, (long long)k->n_keys);
    }
    return OK;
}
