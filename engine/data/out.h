/* engine/data/out.h - a growing text buffer for JSON output.
 *
 * Owns: escapes and the format of numbers, independent of the locale, so that equal values are
 * equal bytes. Refuses: files, and what a line means. */
#ifndef ENGINE_DATA_OUT_H
#define ENGINE_DATA_OUT_H

#include <stdint.h>

/* Once memory runs out `failed` is 1, and every later call does nothing. */
struct out {
    char *p; // owned
    int64_t n, cap;
    int failed;
};

void out_free(struct out *o);
void out_bytes(struct out *o, const char *p, int64_t n);
void out_text(struct out *o, const char *text); // NUL-terminated
/* Makes room for n more bytes after the text; 0: failed. */
int out_room(struct out *o, int64_t n);
/* 1: well-formed UTF-8. */
int out_is_utf8(const char *p, int64_t n);
/* A JSON string, quotes included; invalid UTF-8 becomes U+FFFD. */
void out_string(struct out *o, const char *p, int64_t n);
void out_int(struct out *o, int64_t x);
/* Nine significant digits (a float round-trips exactly) and a decimal point in every locale; null
 * if the number is not finite. */
void out_number(struct out *o, double x);

#define NUMBER_TEXT_BYTES 32
/* The same into text[NUMBER_TEXT_BYTES], NUL-terminated. */
void number_text(char *text, double x);

#endif
