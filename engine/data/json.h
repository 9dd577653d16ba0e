/* engine/data/json.h - a bounded pull parser ("next token") for the JSON files that come with a
 * model.
 *
 * Owns: RFC 8259 to the letter, unescaping, exact 64-bit integers, the byte offset of every error.
 * Refuses: building trees, NaN and Infinity (unless asked), lone surrogates, invalid UTF-8,
 * comments, nesting beyond the caller's limit. Memory: one scratch buffer as long as the longest
 * string; time: linear.
 *
 *     struct json j;
 *     json_init(&j, buf, n_bytes, "DIR/config.json", 64);
 *     for (enum json_kind k = json_next(&j); k != JSON_END; k = json_next(&j)) {
 *         if (k == JSON_ERROR) { enum err e = j.err; json_close(&j); return e; }
 *         ...
 *     }
 *     json_close(&j); */
#ifndef ENGINE_DATA_JSON_H
#define ENGINE_DATA_JSON_H

#include "kernels/base/base.h"

#define JSON_DEPTH_MAX 1024 // the largest depth_max that a caller may ask for

enum json_kind { // STR and NIL are short so that jansson's header can be included beside this one
    JSON_OBJECT_BEGIN,
    JSON_OBJECT_END,
    JSON_ARRAY_BEGIN,
    JSON_ARRAY_END,
    JSON_KEY,   // str, n_str; the next token is (the first of) its value
    JSON_STR,   // str, n_str
    JSON_INT,   // i64, and f64 as the nearest double
    JSON_FLOAT, // f64, always finite; `big` says that it was an integer beyond 64 bits
    JSON_BOOL,  // i64 is 0 or 1
    JSON_NIL,
    JSON_NONFINITE, // NaN, Infinity or -Infinity; only if `nonfinite`
    JSON_END,       // one whole value and nothing but whitespace after it
    JSON_ERROR,     // err is set and the sentence is recorded; stays so
};

struct json {
    const char *str; // of JSON_KEY, JSON_STR: unescaped UTF-8, NUL-terminated, may hold NULs inside
    int64_t n_str;   // its bytes, the final NUL not counted; both valid until the next call
    int64_t i64;
    double f64;
    int big;
    int depth;      // containers open after the token: a BEGIN counts itself, an END does not
    int64_t offset; // of the first byte of the token
    enum err err;   // OK, ERR_INPUT, or ERR_FIT (no memory for a string)

    int nonfinite; // the caller's, set after json_init(): 1 takes these words, which Python writes

    // Private.
    const char *buf;  // borrowed: the caller's, until json_close
    const char *file; // borrowed: likewise
    int64_t n_bytes, pos;
    int depth_max;
    enum json_kind last;
    int state;
    char *scratch; // owned
    int64_t scratch_cap;
    uint8_t is_object[JSON_DEPTH_MAX];
};

/* Starts on n_bytes at buf (no NUL needed). `file` begins every message. depth_max: containers that
 * may be open at once. buf and file must outlive the parser. Cannot fail, allocates nothing. */
void json_init(struct json *j, const char *buf, int64_t n_bytes, const char *file, int depth_max);
void json_close(struct json *j);

/* The next token. A JSON_ERROR is final: return j->err. */
enum json_kind json_next(struct json *j);

/* Skips one value, checking its syntax: after JSON_KEY the member's value, after a BEGIN the rest
 * of that container including its END, after any other token nothing. */
enum err json_skip(struct json *j);

/* 1: the current key or string is exactly this text. */
int json_is(const struct json *j, const char *text);

/* Reads the next token, which must be of this kind: ERR_INPUT "FILE: expected KIND, is KIND at byte
 * k". */
enum err json_expect(struct json *j, enum json_kind kind);

/* Refuses the content: records "FILE: WHAT at byte k" (of the last token) and returns ERR_INPUT.
 * The parser is then in error, as after bad syntax. */
enum err json_fail(struct json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "string", "integer", "number", "true or false", "null", "object", "array", ... for messages. */
const char *json_kind_name(enum json_kind kind);

/* The keys seen in one object, to refuse duplicates ("a" and "\u0061" are the same key). Linear
 * time: the hash is seeded per set, so that a file cannot be made to collide. */
struct json_keys {
    struct json_keys_slot *slots; // owned
    int64_t n_slots, n_keys;      // n_slots: a power of two, or 0
    char *text;                   // owned: the keys, one after the other
    int64_t n_text, text_cap;
    uint64_t seed;
    uint32_t round; // entries of an earlier round are free: clearing is O(1)
};

void json_keys_init(struct json_keys *k);
/* Forgets the keys, keeps the memory: ready for the next object. */
void json_keys_clear(struct json_keys *k);
/* Adds a key of the object numbered `scope` (one set can serve a whole tree). JSON_KEYS_NEW, or why
 * not. */
enum json_keys_answer { JSON_KEYS_NEW, JSON_KEYS_SEEN, JSON_KEYS_NO_MEMORY };
enum json_keys_answer json_keys_put(struct json_keys *k, int64_t scope, const char *str,
                                    int64_t n_str);
/* Adds the current key of j; a second time is json_fail(j, "duplicate key ..."). ERR_FIT: no
 * memory. */
enum err json_keys_add(struct json_keys *k, struct json *j);
void json_keys_close(struct json_keys *k);

#endif
