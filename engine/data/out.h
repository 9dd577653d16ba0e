/* engine/data/out.h - text that grows: JSON as it is written.
 *
 * Owns: escapes and the form of numbers, so that equal values are equal bytes (no locale). Refuses:
 * files, and what a line says. */
#ifndef ENGINE_DATA_OUT_H
#define ENGINE_DATA_OUT_H

#include <stdint.h>

/* A growing text. After memory ran out `failed` stays 1 and everything else does nothing. */
struct out {
    char *p; // owned
    int64_t n, cap;
    int failed;
};

void out_free(struct out *o);
void out_bytes(struct out *o, const char *p, int64_t n);
void out_text(struct out *o, const char *text); // NUL-terminated
/* Room for n bytes more behind the text; 0: failed. */
int out_room(struct out *o, int64_t n);
/* 1: well-formed UTF-8. */
int out_is_utf8(const char *p, int64_t n);
/* A JSON string, quotes included; what is not UTF-8 becomes U+FFFD. */
void out_string(struct out *o, const char *p, int64_t n);
void out_int(struct out *o, int64_t x);
/* Nine significant digits (a float comes back exactly), a point whatever the locale; null when the
 * number is not finite. */
void out_number(struct out *o, double x);

#define NUMBER_TEXT_BYTES 32
/* The same into text[NUMBER_TEXT_BYTES], NUL-terminated. */
void number_text(char *text, double x);

#endif
