/* engine/line/layer_latent.c - latent attention (MLA): layer_impl.h.
 *
 * A token's key is the rotated numbers that all heads share, then the latent, which is its value,
 * too: one KV head. The matrices that would make a head's own keys and values of the latent are
 * applied to its query and to its output instead. Against own keys and values of n + r and v
 * numbers, a pair of query and key costs 2 (2 l + 2 r) FLOPs a head, where it would cost 2 (n + r +
 * v): 3.6 times as many in DeepSeek-V3 (l 512, r 64, n and v 128); making keys and values of the
 * latent costs as much per token as these matrices do. Prompts take the same way, so that a pass
 * holds no keys and values of all heads.
 *
 * Attention's output has a number for each of the key's: the rotated ones are left out here. */
#include "engine/line/layer_impl.h"

#define LATENT_EPS 1e-6f // of these norms, whatever the model's other norms have

static void norm_part(struct layer_work *w, const float *weight, float *x, int dim, int stride,
                      int m)
{
    const struct norm_args args = {.x = x,
                                   .y = x,
                                   .weight = weight,
                                   .m = m,
                                   .dim = dim,
                                   .x_stride = stride,
                                   .y_stride = stride,
                                   .kind = NORM_RMS,
                                   .eps = LATENT_EPS};
    ops_run_norm(&w->ops, &args);
}

/* y = x W_h^T of every head h: its numbers are x_head and y_head apart. Each head's rows of the
 * role's matrix are whole panels. */
static void project_heads(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                          enum tensor_role role, const float *x, int x_head, float *y, int y_head,
                          int m)
{
    const int n_heads = w->shape->n_heads;
    const struct matmul_part all = {
        .w = model_weight(l, role, weights), .y = y, .y_stride = (int64_t)n_heads * y_head};
    struct ops ops = w->ops;
    ops.matmul = MATMUL_OWN; // a library has prepared whole matrices only
    for (int head = 0; head < n_heads; head++) {
        struct matmul_args args = {.x = x + (int64_t)head * x_head,
                                   .m = m,
                                   .x_stride = (int64_t)n_heads * x_head,
                                   .parts = {expert_part(&all, n_heads, head, 0)},
                                   .n_parts = 1,
                                   .scratch = w->scratch};
        args.parts[0].y = y + (int64_t)head * y_head;
        ops_run_matmul(&ops, &args);
    }
}

void latent_before(struct layer_work *w, const struct model_layer *l, const uint8_t *weights,
                   const float *x, int m)
{
    const struct shape *s = w->shape;
    const int query = shape_query_dim(s, w->layer), turned = s->rope_dim;
    const struct projection q = {ROLE_Q, N_ROLES, w->attn, ACT_NONE, 0, 0};
    const struct projection first[] = {{ROLE_K, N_ROLES, w->k, ACT_NONE, 0, 0},
                                       {ROLE_Q_A, N_ROLES, w->v, ACT_NONE, 0, 0}};
    layer_project(w, l, weights, first, s->latent_query > 0 ? 2 : 1, x, m);
    norm_part(w, model_vector(l, ROLE_K_NORM_W, weights), w->k + turned, s->head_dim - turned,
              s->head_dim, m);
    if (s->latent_query > 0) {
        norm_part(w, model_vector(l, ROLE_Q_NORM_W, weights), w->v, s->latent_query,
                  s->latent_query, m);
        x = w->v;
    }
    layer_project(w, l, weights, &q, 1, x, m);
    const struct mix_args copy = {.x = w->q,
                                  .y = w->attn,
                                  .m = m * s->n_heads,
                                  .n = turned,
                                  .x_stride = s->head_dim,
                                  .y_stride = query,
                                  .b = 1};
    ops_run_mix(&w->ops, &copy);
    project_heads(w, l, weights, ROLE_LATENT_K, w->attn + turned, query, w->q + turned, s->head_dim,
                  m);
}

void latent_after(struct layer_work *w, const struct model_layer *l, const uint8_t *weights, int m)
{
    const struct shape *s = w->shape;
    project_heads(w, l, weights, ROLE_LATENT_V, w->attn + s->rope_dim, s->head_dim, w->q,
                  s->latent_value, m);
}
