/* engine/api/words.h - numbers and names in readable form.
 *
 * Functions with a parameter `text` fill it and return it, for use in printf. */
#ifndef ENGINE_API_WORDS_H
#define ENGINE_API_WORDS_H

#define WORDS_BYTES 24

/* Three significant digits, no exponent: "0.0123", "1.80", "36.5", "584", "12345". */
const char *words_digits(double x, char text[WORDS_BYTES]);
/* "42s", "3m20s", "5h07m"; "-" for negative (unknown) seconds. */
const char *words_clock(double s, char text[WORDS_BYTES]);
/* Rounded, because a prediction is not exact: "0.4 s", "9.6 s", "51 s", "12 min", "5.1 h". */
const char *words_about(double s, char text[WORDS_BYTES]);
/* The name of a lane or resource in sentences: "NVMe reads" for "nvme-read". */
const char *words_resource(const char *name);

#endif
