/* engine/chat/template_text.c - see template_text.h.
 *
 * Owns: the rules of Python's str. Refuses: allocating; results are spans of the input or bytes in
 * a caller's buffer. The one fact: lengths and indices in templates count code points, never bytes.
 */
#include "engine/chat/template_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int32_t tt_decode(const char *s, int64_t n, int32_t *cp)
{
    unsigned char c = (unsigned char)s[0];
    int32_t bytes = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (bytes == 1 || bytes > n) {
        *cp = c;
        return 1;
    }
    int32_t v = c & (0xff >> (bytes + 1));
    for (int32_t i = 1; i < bytes; i++)
        v = v << 6 | ((unsigned char)s[i] & 0x3f);
    *cp = v;
    return bytes;
}

int32_t tt_encode(int32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int32_t bytes = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int32_t i = bytes - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00 >> bytes & 0xff) | cp);
    return bytes;
}

int tt_valid(const char *s, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)s + i, n - i, &cp);
        if (used <= 0)
            return 0;
        i += used;
    }
    return 1;
}

int64_t tt_count(const char *s, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

int64_t tt_offset(const char *s, int64_t n, int64_t index)
{
    int64_t i = 0;
    while (i < n && index > 0) {
        i++;
        while (i < n && ((unsigned char)s[i] & 0xc0) == 0x80)
            i++;
        index--;
    }
    return i;
}

int tt_is_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

int tt_is_printable(int32_t cp)
{
    if (cp < 0x80)
        return cp >= 0x20 && cp < 0x7f;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return 0;
    default:
        return 1;
    }
}

int32_t tt_to_upper(int32_t cp)
{
    return cp < 0x80 ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : utf8proc_toupper(cp);
}

int32_t tt_to_lower(int32_t cp)
{
    return cp < 0x80 ? (cp >= 'A' && cp <= 'Z' ? cp + 32 : cp) : utf8proc_tolower(cp);
}

static int in_set(int32_t cp, const char *chars, int64_t n_chars)
{
    if (!chars)
        return tt_is_space(cp);
    for (int64_t i = 0; i < n_chars;) {
        int32_t c;
        i += tt_decode(chars + i, n_chars - i, &c);
        if (c == cp)
            return 1;
    }
    return 0;
}

struct tt_span tt_strip_chars(const char *s, int64_t n, const char *chars, int64_t n_chars,
                              enum tt_side side)
{
    int32_t cp;
    while ((side & TT_LEFT) && n > 0) {
        int32_t used = tt_decode(s, n, &cp);
        if (!in_set(cp, chars, n_chars))
            break;
        s += used;
        n -= used;
    }
    while ((side & TT_RIGHT) && n > 0) {
        int64_t at = n - 1;
        while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80)
            at--;
        tt_decode(s + at, n - at, &cp);
        if (!in_set(cp, chars, n_chars))
            break;
        n = at;
    }
    return (struct tt_span){s, n};
}

struct tt_span tt_strip(const char *s, int64_t n, enum tt_side side)
{
    return tt_strip_chars(s, n, NULL, 0, side);
}

int64_t tt_find(const char *s, int64_t n, const char *what, int64_t n_what)
{
    if (n_what == 0)
        return 0;
    const char *p = n_what > n ? NULL : memmem(s, (size_t)n, what, (size_t)n_what);
    return p ? p - s : -1;
}

/* The digits and exponent of "%.*e": [-]d.ddde[+-]xx rewritten as Python writes it. */
static int float_layout(const char *digits, int n_digits, int exponent, char *out)
{
    int n = 0;
    if (exponent >= 16 || exponent < -4) {
        out[n++] = digits[0];
        if (n_digits > 1) {
            out[n++] = '.';
            memcpy(out + n, digits + 1, (size_t)n_digits - 1);
            n += n_digits - 1;
        }
        return n + snprintf(out + n, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        n += snprintf(out, 8, "0.%.*s", -exponent - 1, "0000");
        memcpy(out + n, digits, (size_t)n_digits);
        return n + n_digits;
    }
    for (int i = 0; i < n_digits || i <= exponent + 1; i++) {
        if (i == exponent + 1)
            out[n++] = '.';
        if (i < n_digits || i <= exponent + 1)
            out[n++] = i < n_digits ? digits[i] : '0';
    }
    return n;
}

int tt_float(double f, char *out)
{
    if (isnan(f))
        return snprintf(out, 8, "nan");
    if (isinf(f))
        return snprintf(out, 8, f < 0 ? "-inf" : "inf");
    char e[40];
    int precision = 0;
    for (; precision < 17; precision++) {
        snprintf(e, sizeof e, "%.*e", precision, f);
        if (strtod(e, NULL) == f)
            break;
    }
    char digits[20] = "";
    int n_digits = 0, n = 0;
    const char *p = e;
    if (*p == '-') {
        out[n++] = '-';
        p++;
    }
    for (; *p && *p != 'e'; p++) {
        if (*p != '.')
            digits[n_digits++] = *p;
    }
    return n + float_layout(digits, n_digits, (int)strtol(p + 1, NULL, 10), out + n);
}
