/* tests/state_problem.h - problems of conv and recur for their tests: rows, states, a layer's q, k
 * and v. The includer's CONV and RECUR run the ops. */
#ifndef TESTS_STATE_PROBLEM_H
#define TESTS_STATE_PROBLEM_H

#include "tests/ops_help.h"

/* k_heads, v_heads, k_dim, v_dim, taps, tiled */
static const int shapes[][6] = {
    {1, 1, 16, 16, 4, 0},  {2, 4, 32, 48, 4, 0},  {1, 3, 64, 80, 2, 0}, {2, 2, 128, 128, 4, 0},
    {4, 8, 16, 112, 8, 0}, {1, 2, 256, 32, 3, 0}, {3, 6, 32, 48, 4, 1}, {2, 8, 16, 16, 3, 1}};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))

#define ROWS   3
#define TOKENS 41

/* A problem's arrays; x has q, k and v side by side, as a layer has. */
struct problem {
    int k_heads, v_heads, k_dim, v_dim, taps, tiled, channels;
    int64_t stride, state_bytes;
    float *x, *dt, *beta, *a, *dt_bias, *skip, *weight, *bias;
};

/* s: one of shapes[]. */
static inline struct problem problem_make(const int *s)
{
    const int k_heads = s[0], v_heads = s[1], k_dim = s[2], v_dim = s[3], taps = s[4];
    struct problem p = {k_heads, v_heads, k_dim, v_dim, taps, .tiled = s[5]};
    p.channels = 2 * k_heads * k_dim + v_heads * v_dim;
    p.stride = p.channels + 5;
    p.state_bytes =
        round_up(((int64_t)v_heads * k_dim * v_dim + (int64_t)(taps - 1) * p.channels) * 4, 4096);
    p.x = noise_array(1, TOKENS * p.stride, 1);
    p.dt = noise_array(2, TOKENS * v_heads, 3);
    p.beta = noise_array(3, TOKENS * v_heads, 2);
    p.a = noise_array(4, v_heads, 1);
    p.dt_bias = noise_array(5, v_heads, 1);
    p.skip = noise_array(6, v_heads, 1);
    p.weight = noise_array(7, p.channels * taps, 1);
    p.bias = noise_array(8, p.channels, 1);
    for (int h = 0; h < v_heads; h++)
        p.a[h] = -fabsf(p.a[h]) - 0.01f;
    return p;
}

static inline void problem_free(struct problem *p)
{
    float *all[] = {p->x, p->dt, p->beta, p->a, p->dt_bias, p->skip, p->weight, p->bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What a run makes: convolved inputs, outputs, states. */
struct made {
    float *x, *out;
    uint8_t *states;
};

static inline void made_free(struct made *m)
{
    free(m->x);
    free(m->out);
    free(m->states);
}

/* Rows begin at these tokens; row 1 goes on from a state that is not zero. */
static const int starts[ROWS + 1] = {0, 7, 24, TOKENS};

/* The whole problem, each row's tokens cut into spans of at most `most` tokens, one call per round
 * of spans. delta: the gated delta net; else Mamba-2. */
static inline struct made run(const struct ops *ops, const struct problem *p, int delta, int most)
{
    const int64_t at = (int64_t)p->v_heads * p->k_dim * p->v_dim * 4, k = p->k_heads * p->k_dim;
    struct made m = {.x = copy_of(p->x, TOKENS * p->stride * 4),
                     .out = noise_array(9, TOKENS * p->v_heads * p->v_dim, 1),
                     .states = (uint8_t *)noise_array(10, ROWS * p->state_bytes / 4, 0.5)};
    for (int done = 0; done < TOKENS; done += most) {
        struct state_span spans[ROWS];
        int n = 0;
        for (int row = 0; row < ROWS; row++) {
            const int first = starts[row] + done, left = starts[row + 1] - first;
            if (left > 0)
                spans[n++] = (struct state_span){row, first, left < most ? left : most,
                                                 row != 1 && done == 0};
        }
        const struct state_rows rows = {m.states, p->state_bytes, spans, n};
        struct conv_args conv = {.x = m.x,
                                 .weight = p->weight,
                                 .bias = delta ? NULL : p->bias,
                                 .x_stride = p->stride,
                                 .n = p->channels,
                                 .taps = p->taps,
                                 .act = ACT_SILU,
                                 .rows = rows,
                                 .offset = at};
        struct recur_args recur = {.q = m.x,
                                   .k = m.x + k,
                                   .v = m.x + 2 * k,
                                   .dt = p->dt,
                                   .beta = delta ? p->beta : NULL,
                                   .a = p->a,
                                   .dt_bias = p->dt_bias,
                                   .skip = delta ? NULL : p->skip,
                                   .out = m.out,
                                   .qkv_stride = p->stride,
                                   .dt_stride = p->v_heads,
                                   .beta_stride = p->v_heads,
                                   .out_stride = p->v_heads * p->v_dim,
                                   .k_heads = p->k_heads,
                                   .v_heads = p->v_heads,
                                   .k_dim = p->k_dim,
                                   .v_dim = p->v_dim,
                                   .tiled = p->tiled,
                                   .corrects = delta,
                                   .unit_eps = delta ? 1e-6f : 0,
                                   .q_scale = delta ? 0.25f : 1,
                                   .rows = rows};
        CONV(ops, &conv);
        RECUR(ops, &recur);
    }
    return m;
}

#endif
