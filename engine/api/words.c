/* engine/api/words.c - see words.h. */
#include "engine/api/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *words_digits(double x, char text[WORDS_BYTES])
{
    int decimals = 0;
    for (double scaled = fabs(x); scaled > 0 && scaled < 99.95 && decimals < 6; scaled *= 10)
        decimals++;
    snprintf(text, WORDS_BYTES, "%.*f", x == 0 ? 2 : decimals, x);
    return text;
}

const char *words_clock(double s, char text[WORDS_BYTES])
{
    if (s < 0)
        snprintf(text, WORDS_BYTES, "-");
    else if (s < 99.5)
        snprintf(text, WORDS_BYTES, "%.0fs", s);
    else if (s < 6000)
        snprintf(text, WORDS_BYTES, "%.0fm%02.0fs", floor(s / 60), floor(fmod(s, 60)));
    else
        snprintf(text, WORDS_BYTES, "%.0fh%02.0fm", floor(s / 3600), floor(fmod(s, 3600) / 60));
    return text;
}

const char *words_about(double s, char text[WORDS_BYTES])
{
    if (s < 9.95)
        snprintf(text, WORDS_BYTES, "%.1f s", s);
    else if (s < 99.5)
        snprintf(text, WORDS_BYTES, "%.0f s", s);
    else if (s < 5970)
        snprintf(text, WORDS_BYTES, "%.0f min", s / 60);
    else
        snprintf(text, WORDS_BYTES, "%.1f h", s / 3600);
    return text;
}

const char *words_resource(const char *name)
{
    static const char *const words[][2] = {
        {"nvme-read", "NVMe reads"},     {"nvme-write", "NVMe writes"},
        {"h2d", "copies to the device"}, {"d2h", "copies from the device"},
        {"gpu", "the device"},           {"cpu", "the CPU"},
        {"stall", "waits for transfers"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], name) == 0)
            return words[i][1];
    return name;
}
