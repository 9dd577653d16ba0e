/* engine/data/out.c - see out.h. */
#include "engine/data/out.h"

#include "kernels/base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void out_free(struct out *o)
{
    free(o->p);
    *o = (struct out){0};
}

int out_room(struct out *o, int64_t n)
{
    if (o->failed || n <= o->cap - o->n)
        return !o->failed;
    int64_t cap = max_i64(256, 2 * (o->n + n));
    char *grown = realloc(o->p, (size_t)cap);
    if (!grown) {
        o->failed = 1;
        return 0;
    }
    o->p = grown;
    o->cap = cap;
    return 1;
}

void out_bytes(struct out *o, const char *p, int64_t n)
{
    if (n <= 0 || !out_room(o, n))
        return;
    memcpy(o->p + o->n, p, (size_t)n);
    o->n += n;
}

void out_text(struct out *o, const char *text)
{
    out_bytes(o, text, (int64_t)strlen(text));
}

void out_int(struct out *o, int64_t x)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)x);
    out_text(o, text);
}

void number_text(char *text, double x)
{
    char raw[NUMBER_TEXT_BYTES];
    snprintf(raw, sizeof raw, isfinite(x) ? "%.9g" : "null", x);
    for (const char *p = raw; *p; p++) { // any other character is the locale's decimal point
        int point = isfinite(x) && !strchr("0123456789+-e", *p);
        if (!point || p[1] == 0 || strchr("0123456789", p[1])) // its last byte, if it has several
            *text++ = point ? '.' : *p;
    }
    *text = 0;
}

void out_number(struct out *o, double x)
{
    char text[NUMBER_TEXT_BYTES];
    number_text(text, x);
    out_text(o, text);
}

/* Bytes of the well-formed UTF-8 character at p, or 0. */
static int utf8_length(const unsigned char *p, int64_t n)
{
    if (p[0] < 0x80)
        return 1;
    int len = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (p[0] >= 0xf0 && p[0] <= 0xf4)
        len = 4;
    if (len == 0 || len > n)
        return 0;
    for (int i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    int beyond = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
                 (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return beyond ? 0 : len;
}

int out_is_utf8(const char *p, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int len = utf8_length((const unsigned char *)p + i, n - i);
        if (len == 0)
            return 0;
        i += len;
    }
    return 1;
}

static void out_escape(struct out *o, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *simple = c ? strchr(from, c) : NULL;
    char text[8];
    if (simple)
        snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    out_text(o, text);
}

void out_string(struct out *o, const char *p, int64_t n)
{
    out_text(o, "\"");
    int64_t start = 0; // of the run that needs no escape
    for (int64_t i = 0; i < n;) {
        unsigned char c = (unsigned char)p[i];
        int len = utf8_length((const unsigned char *)p + i, n - i);
        if (len > 0 && c >= 0x20 && c != '"' && c != '\\') {
            i += len;
            continue;
        }
        out_bytes(o, p + start, i - start);
        if (len == 0)
            out_text(o, "\xef\xbf\xbd");
        else
            out_escape(o, c);
        start = ++i;
    }
    out_bytes(o, p + start, n - start);
    out_text(o, "\"");
}
