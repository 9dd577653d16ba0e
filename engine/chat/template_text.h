/* engine/chat/template_text.h - UTF-8 text as Python's str sees it. Internal to template*.c.
 *
 * Owns: code points, white space, case, numbers as text. All text given here is valid UTF-8
 * (sources and JSON are checked before). Case mapping is one code point to one code point, but for
 * the German sharp s; white space is Python's str.isspace. */
#ifndef ENGINE_CHAT_TEMPLATE_TEXT_H
#define ENGINE_CHAT_TEMPLATE_TEXT_H

#include <stdint.h>

struct tt_span {
    const char *s;
    int64_t n; // bytes
};

enum tt_side { TT_LEFT = 1, TT_RIGHT = 2, TT_BOTH = 3 };

/* Code point at s (n >= 1 bytes left); returns its bytes. */
int32_t tt_decode(const char *s, int64_t n, int32_t *cp);
/* Writes cp (1 to 4 bytes); returns the bytes. */
int32_t tt_encode(int32_t cp, char *out);
/* 1 when s[0, n) is UTF-8 without surrogates. */
int tt_valid(const char *s, int64_t n);
/* Code points in s[0, n). */
int64_t tt_count(const char *s, int64_t n);
/* Byte offset of code point number `index` (0 .. count). */
int64_t tt_offset(const char *s, int64_t n, int64_t index);

int tt_is_space(int32_t cp);
int tt_is_printable(int32_t cp); // as repr() judges
int32_t tt_to_upper(int32_t cp);
int32_t tt_to_lower(int32_t cp);

/* s without white space at the ends that `side` names. */
struct tt_span tt_strip(const char *s, int64_t n, enum tt_side side);
/* s without the code points of `chars` at those ends. */
struct tt_span tt_strip_chars(const char *s, int64_t n, const char *chars, int64_t n_chars,
                              enum tt_side side);
/* First place of `what` in s, or -1. */
int64_t tt_find(const char *s, int64_t n, const char *what, int64_t n_what);

/* Python's repr of a float into out (at least 32 bytes); returns the bytes. */
int tt_float(double f, char *out);

#endif
