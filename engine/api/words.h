/* engine/api/words.h - numbers and names as people read them.
 *
 * Functions that take `text` fill it and return it: a call can be an argument of printf. */
#ifndef ENGINE_API_WORDS_H
#define ENGINE_API_WORDS_H

#define WORDS_BYTES 24

/* Three significant digits, no exponent: "0.0123", "1.80", "36.5", "584", "12345". */
const char *words_digits(double x, char text[WORDS_BYTES]);
/* "42s", "3m20s", "5h07m"; "-" where seconds are negative: not known. */
const char *words_clock(double s, char text[WORDS_BYTES]);
/* A prediction is not exact: "0.4 s", "9.6 s", "51 s", "12 min", "5.1 h". */
const char *words_about(double s, char text[WORDS_BYTES]);
/* What a sentence calls a resource of a plan or a trace: "NVMe reads" for "nvme-read". */
const char *words_resource(const char *name);

#endif
