/* bench/peak_amx.c - see peak.h: tdpbf16ps on tiles of 16 rows, 16 outputs and 32 numbers; under
 * f32 the set is AVX-512. */
#include "bench/peak.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

struct tile_shapes {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

int64_t peak_amx(enum compute compute, int64_t rounds)
{
    static const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16},
    };
    if (compute == COMPUTE_F32)
        return peak_avx512(compute, rounds);
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); // zeroes the tiles
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return rounds * 4 * 2 * 16 * 16 * 32;
}
#else
int64_t peak_amx(enum compute compute, int64_t rounds)
{
    return peak_portable(compute, rounds);
}
#endif
