/* engine/data/near.h - how far apart two words are, for "did you mean". */
#ifndef ENGINE_DATA_NEAR_H
#define ENGINE_DATA_NEAR_H

/* Is `known` a likely meaning of the wrong word: one letter in four differs, at most two? *least is
 * the distance to beat, 0 at first; it becomes that of the nearest word so far. */
int is_near(const char *word, const char *known, int *least);

#endif
