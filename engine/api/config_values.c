/* engine/api/config_values.c - values of flags as text: sizes, counts, durations, numbers, words.
 */
#include "engine/api/config_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits, one point, no exponent; correctly rounded (0.3 must be the nearest double: a budget of
 * 0.3 of 240 tokens is 72 slots, not 73). The program stays in the C locale, where strtod expects
 * points. */
static const char *parse_decimal(const char *text, double *x)
{
    const char *p = text + (*text == '-');
    size_t whole = strspn(p, "0123456789");
    size_t part = p[whole] == '.' ? strspn(p + whole + 1, "0123456789") : 0;
    if (whole + part == 0)
        return text;
    const char *end = p + whole + (p[whole] == '.' ? part + 1 : 0);
    char digits[64];
    snprintf(digits, sizeof digits, "%.*s", (int)min_i64(end - text, 63), text);
    *x = strtod(digits, NULL);
    return end;
}

/* Reads the unit at *at and moves *at past it. A single letter is binary if upper case (24G is GiB,
 * 24g is GB); with_bytes: also KB, MB, ... (decimal), KiB or Ki, ... (binary), B. 0: none. */
static double unit_read(const char **at, int with_bytes)
{
    static const char letters[] = "kKmMgGtT";
    const char *letter = **at ? strchr(letters, **at) : NULL;
    int binary = letter && (letter - letters) % 2 == 1;
    double unit = 1;
    *at += letter != NULL;
    if (with_bytes && letter && **at == 'i') {
        binary = 1;
        *at += 1;
        *at += **at == 'B' || **at == 'b';
    } else if (with_bytes && (**at == 'B' || **at == 'b')) {
        binary = 0;
        *at += 1;
    }
    for (int power = letter ? (int)(letter - letters) / 2 + 1 : 0; power > 0; power--)
        unit *= binary ? 1024 : 1000;
    return unit;
}

enum err parse_size(const char *flag, const char *text, int64_t *bytes)
{
    double x = 0;
    const char *end = parse_decimal(text, &x);
    double unit = unit_read(&end, 1);
    if (parse_decimal(text, &x) == text || *end || x * unit > 9e18 || x < -1)
        return fail(ERR_USAGE, "--%s: cannot read '%s' (e.g. 512M, 24G, 2.3GiB, 300MB)", flag,
                    text);
    *bytes = (int64_t)(x * unit);
    return OK;
}

enum err parse_count(const char *flag, const char *text, int64_t *n)
{
    double x = 0;
    const char *end = parse_decimal(text, &x);
    double unit = unit_read(&end, 0);
    if (parse_decimal(text, &x) == text || *end || x * unit > 9e15 || x < -9e15)
        return fail(ERR_USAGE, "--%s: cannot read '%s' (a whole number: 12, 10k, 32K)", flag, text);
    if ((double)(int64_t)(x * unit) != x * unit)
        return fail(ERR_USAGE, "--%s: '%s' is not a whole number", flag, text);
    *n = (int64_t)(x * unit);
    return OK;
}

enum err parse_number(const char *flag, const char *text, double *x)
{
    const char *end = parse_decimal(text, x);
    if (end == text || *end)
        return fail(ERR_USAGE, "--%s: '%s' is not a number", flag, text);
    return OK;
}

enum err parse_duration(const char *flag, const char *text, double *seconds)
{
    *seconds = 0;
    const char *p = text;
    while (*p) {
        double x = 0;
        const char *end = parse_decimal(p, &x);
        double unit = *end == 's' || (!*end && p == text) ? 1
                      : *end == 'm'                       ? 60
                      : *end == 'h'                       ? 3600
                      : *end == 'd'                       ? 86400
                                                          : 0;
        if (end == p || unit == 0 || x < 0)
            return fail(ERR_USAGE, "--%s: cannot read '%s' (e.g. 90s, 15m, 3h50m)", flag, text);
        *seconds += x * unit;
        p = *end ? end + 1 : end;
    }
    return p == text ? fail(ERR_USAGE, "--%s: empty duration", flag) : OK;
}

/* text NULL: the flag was given without a value. */
enum err parse_switch(const char *flag, const char *text, int *on)
{
    static const char *const words[] = {"0", "1", "false", "true", "off", "on", "no", "yes"};
    *on = 1;
    if (!text)
        return OK;
    for (int i = 0; i < 8; i++)
        if (strcmp(text, words[i]) == 0) {
            *on = i % 2;
            return OK;
        }
    return fail_choice(flag, text, "on|off");
}

enum err config_choose(const char *flag, const char *value, const char *choices, int *out)
{
    const size_t n = strlen(value);
    const char *at = choices;
    for (int i = 0; *at; i++) {
        const size_t word = strcspn(at, "|");
        if (word == n && memcmp(at, value, n) == 0) {
            *out = i;
            return OK;
        }
        at += word + (at[word] == '|');
    }
    return fail_choice(flag, value, choices);
}
