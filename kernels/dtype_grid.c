/* kernels/dtype_grid.c - see dtype_grid.h: decoders of rows.
 *
 * Owns: the grids in memory. Refuses: panels (kernels/dtype.c). */
#include "kernels/dtype_grid.h"
#include "kernels/dtype_blocks.h"

#define GRID_TABLE const
#include "kernels/dtype_grid_points.inc"

static inline __attribute__((always_inline)) void decode(enum dtype t, const uint8_t *blocks,
                                                         int64_t n, float *restrict out)
{
    struct grid_eight e;
    for (int64_t i = 0; i < n; i += GRID_BLOCK, blocks += dtype_info(t)->block_bytes) {
        const float d = f16_to_f32((uint16_t)grid_d(t, blocks, 2)) * grid_unit(t);
        for (int g = 0; g < GRID_EIGHTS; g++, out += 8) {
            grid_eight(t, blocks, 2, g, &e);
            const float scale = d * (float)e.scale;
            for (int j = 0; j < 8; j++) {
                const float x = scale * (float)(int32_t)grid_level_of(t, &e, j);
                out[j] = !grid_is_iq1(t) && e.signs >> j & 1 ? -x : x;
            }
        }
    }
}

#define DECODER(NAME, name, ...)                                                                   \
    DTYPE_CLONES void blocks_decode_##name(const uint8_t *blocks, int64_t n, float *restrict out)  \
    {                                                                                              \
        decode(DTYPE_##NAME, blocks, n, out);                                                      \
    }
GRID_FORMATS(DECODER)
