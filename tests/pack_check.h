/* tests/pack_check.h - whether each piece of a pack has the checksum that the pack names for it. */
#ifndef TESTS_PACK_CHECK_H
#define TESTS_PACK_CHECK_H

#include "engine/model/model.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Of absent layers there is none. */
static inline enum err pack_check(const char *path)
{
    struct model m;
    TRY(model_open(&m, path));
    enum err e = OK;
    uint8_t *buf = malloc(PIECE_BYTES);
    int fd = open(path, O_RDONLY);
    for (int i = 0; i < m.n_layers; i++) {
        const struct model_layer *l = &m.layers[i];
        for (int64_t k = 0; !l->absent && k < model_pieces(l) && e == OK; k++) {
            int64_t n = min_i64(PIECE_BYTES, l->n_bytes - k * PIECE_BYTES);
            e = model_read_at(fd, path, l->offset + k * PIECE_BYTES, n, buf);
            if (e == OK)
                e = model_piece_check(&m, i, k, buf, n);
        }
    }
    close(fd);
    free(buf);
    model_close(&m);
    return e;
}

#endif
