/* tests/tiles.h - AMX tile instructions in C, so that CPUs without AMX run the kernels that use
 * them. Included before the first line of kernels/ops.c and of kernels/cpu/(name)_amx.c (Makefile).
 *
 * Owns: the eight tile registers of a thread and what each instruction does to them (Intel SDM,
 * volume 2: TDPBF16PS, TDPBSSD), and a check of the shapes where the CPU would raise #UD. */
#ifndef TESTS_TILES_H
#define TESTS_TILES_H

#include "kernels/base/base.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define has_amx() 1

struct tile_register {
    int rows, row_bytes;
    union {
        uint8_t bytes[16][64];
        int8_t codes[16][64];
        uint16_t bf16[16][32];
        int32_t i32[16][16];
        float f32[16][16];
    };
};

static _Thread_local struct tile_register tile_registers[8];

/* s: the operand of LDTILECFG: byte 0 is the palette, from 16 on row lengths, from 48 on rows. */
static inline void tiles_configure(const void *s)
{
    const uint8_t *byte = s;
    CHECK(byte[0] == 1);
    for (int i = 0; i < 8; i++) {
        struct tile_register *t = &tile_registers[i];
        memset(t, 0, sizeof *t);
        t->row_bytes = byte[16 + 2 * i] | byte[17 + 2 * i] << 8;
        t->rows = byte[48 + i];
        CHECK(t->rows <= 16 && t->row_bytes <= 64);
    }
}

static inline void tile_clear(struct tile_register *t)
{
    CHECK(t->rows > 0 && t->row_bytes > 0);
    memset(t->bytes, 0, sizeof t->bytes);
}

static inline void tile_load(struct tile_register *t, const void *from, int64_t stride)
{
    tile_clear(t);
    for (int r = 0; r < t->rows; r++)
        memcpy(t->bytes[r], (const uint8_t *)from + r * stride, (size_t)t->row_bytes);
}

static inline void tile_store(const struct tile_register *t, void *to, int64_t stride)
{
    CHECK(t->rows > 0 && t->row_bytes > 0);
    for (int r = 0; r < t->rows; r++)
        memcpy((uint8_t *)to + r * stride, t->bytes[r], (size_t)t->row_bytes);
}

/* c += a . b, words of 4 bytes along the chain: the shapes must fit. */
static inline void tile_check(const struct tile_register *c, const struct tile_register *a,
                              const struct tile_register *b)
{
    CHECK(c->rows == a->rows && c->row_bytes == b->row_bytes && a->row_bytes == 4 * b->rows);
    CHECK(c->rows > 0 && b->rows > 0 && c != a && c != b && a != b);
}

/* Denormal operands and results count as 0. */
static inline float tile_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* x * w + sum; a result that only rounding as a denormal lifts to 2^-126 counts as 0, too. */
static inline float tile_fma(float x, float w, float sum)
{
    const float y = tile_flush(fmaf(x, w, sum));
    const float scaled = fmaf(x * 0x1p32f, w * 0x1p32f, sum * 0x1p64f);
    return fabsf(y) == 0x1p-126f && fabsf(scaled) < 0x1p-62f ? copysignf(0, y) : y;
}

static inline float tile_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &word, sizeof f);
    return tile_flush(f);
}

static inline void tile_dot_bf16(struct tile_register *c, const struct tile_register *a,
                                 const struct tile_register *b)
{
    tile_check(c, a, b);
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            float sum[2] = {0, 0};
            for (int k = 0; k < b->rows; k++)
                for (int half = 0; half < 2; half++)
                    sum[half] = tile_fma(tile_bf16(a->bf16[m][2 * k + half]),
                                         tile_bf16(b->bf16[k][2 * n + half]), sum[half]);
            c->f32[m][n] = tile_flush(tile_flush(c->f32[m][n]) + tile_flush(sum[0] + sum[1]));
        }
}

static inline void tile_dot_codes(struct tile_register *c, const struct tile_register *a,
                                  const struct tile_register *b)
{
    tile_check(c, a, b);
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->row_bytes / 4; n++)
            for (int k = 0; k < b->rows; k++)
                for (int i = 0; i < 4; i++)
                    c->i32[m][n] += a->codes[m][4 * k + i] * b->codes[k][4 * n + i];
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define TILE(i)                      (&tile_registers[i])
#define TILES_CONFIGURE(s)           tiles_configure(s)
#define _tile_release()              memset(tile_registers, 0, sizeof tile_registers)
#define _tile_loadd(i, from, stride) tile_load(TILE(i), from, stride)
#define _tile_stored(i, to, stride)  tile_store(TILE(i), to, stride)
#define _tile_zero(i)                tile_clear(TILE(i))
#define _tile_dpbf16ps(c, a, b)      tile_dot_bf16(TILE(c), TILE(a), TILE(b))
#define _tile_dpbssd(c, a, b)        tile_dot_codes(TILE(c), TILE(a), TILE(b))

#endif
