/* engine/text/token_unicode.c - character classes for tokenizers, and UTF-8.
 *
 * Owns: which characters are space, word, number, punctuation, based on utf8proc's tables. Refuses:
 * strings (token_norm.c). Note: the `tokenizers` library (0.23.3) uses older tables than utf8proc
 * for normalization and punctuation. The characters that differ, found by comparing every assigned
 * one, are listed here; tests/token_live.py repeats the comparison. */
#include "engine/text/token_impl.h"

#include <utf8proc.h>

struct char_range {
    int32_t from, to;
};

static int in_ranges(const struct char_range *ranges, int n, int32_t c)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (ranges[mid].to < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && ranges[lo].from <= c;
}

int char_is_inert(int32_t c)
{
    static const struct char_range inert[] = {
        {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
        {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
        {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
        {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
        {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50},
        {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
        {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
        {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
        {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
        {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
        {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    return c >= inert[0].from && in_ranges(inert, sizeof inert / sizeof *inert, c);
}

int64_t utf8_valid(const char *p, int64_t n)
{
    int64_t i = 0;
    while (i < n) {
        uint8_t c = (uint8_t)p[i];
        int more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : 3;
        if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || i + more >= n)
            return i;
        for (int k = 1; k <= more; k++) {
            uint8_t d = (uint8_t)p[i + k];
            uint8_t low = k > 1 ? 0x80 : c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
            uint8_t high = k > 1 ? 0xbf : c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
            if (d < low || d > high)
                return i;
        }
        i += 1 + more;
    }
    return n;
}

int32_t utf8_at(const char *p, int64_t n, int *n_char)
{
    int32_t c;
    *n_char = (int)utf8proc_iterate((const utf8proc_uint8_t *)p, min_i64(n, 4), &c);
    CHECK(*n_char > 0);
    return c;
}

int32_t utf8_before(const char *p, int64_t n, int *n_char)
{
    int64_t at = n - 1;
    while (at > 0 && ((uint8_t)p[at] & 0xc0) == 0x80)
        at--;
    return utf8_at(p + at, n - at, n_char);
}

int char_is_space(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (c >= 9 && c <= 13) || c == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

int char_is_word(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC ||
           c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

int char_is_numeric(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

int char_is_punctuation(int32_t c)
{
    static const struct char_range newer[] = {
        {0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},
        {0xc84, 0xc84},     {0x1b7d, 0x1b7e},   {0x2e43, 0x2e4f},   {0x2e52, 0x2e5d},
        {0x10ead, 0x10ead}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x1144b, 0x1144f},
        {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9},
        {0x1183b, 0x1183b}, {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46},
        {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11c41, 0x11c45}, {0x11c70, 0x11c71},
        {0x11ef7, 0x11ef8}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16e97, 0x16e9a},
        {0x16fe2, 0x16fe2}, {0x1e95e, 0x1e95f}};
    utf8proc_category_t k = utf8proc_category(c);
    if (c < 0x80 && c > 0x20)
        return c != 0x7f && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9');
    if (c == 0x166d || c == 0x111c9) // punctuation in older Unicode
        return 1;
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO &&
           !in_ranges(newer, sizeof newer / sizeof *newer, c);
}
