/* engine/data/near.c - see near.h. */
#include "engine/data/near.h"

#include <string.h>

/* Levenshtein distance of a and b in bytes; 99: b is longer than 62 bytes. */
static int edit_distance(const char *a, const char *b)
{
    int row[64], n = (int)strlen(b);
    if (n > 62)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            int best = row[j] < row[j + 1] ? row[j] + 1 : row[j + 1] + 1;
            row[j + 1] = change < best ? change : best;
        }
    }
    return row[n];
}

int is_near(const char *word, const char *known, int *least)
{
    size_t n = strlen(word) / 4;
    int most = n < 2 ? (int)n : 2, d = edit_distance(word, known);
    if (d > most || (*least > 0 && d >= *least))
        return 0;
    *least = d;
    return 1;
}
