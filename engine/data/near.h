/* engine/data/near.h - how far apart two words are, for "did you mean". */
#ifndef ENGINE_DATA_NEAR_H
#define ENGINE_DATA_NEAR_H

/* 1: `known` may be meant by the misspelled word (edit distance at most 2 and a quarter of the
 * word), and is nearer than *least (0: no limit yet), which then becomes the distance. */
int is_near(const char *word, const char *known, int *least);

#endif
