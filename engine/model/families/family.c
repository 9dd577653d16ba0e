/* engine/model/families/family.c - the table of model families, and what readers share: keys with
 * ranges, tensors, dimensions.
 *
 * Refuses: guessing; an unknown architecture, key or size of a tensor is an error that names it.
 * Note: a family can have two file formats with different keys, names and row orders; readers
 * branch on source->kind, later code does not. */
#include "engine/model/families/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES  160 // longest tensor name or key
#define CLASSES_MAX 16

static const struct family {
    const char *name, *gguf, *hf, *hf_class;
    enum err (*read)(struct family_model *m, const struct source *s, const char *name);
} families[] = {
#define FAMILY(name, gguf, hf, hf_class, read) {name, gguf, hf, hf_class, read},
    FAMILIES(FAMILY)
#undef FAMILY
};
#define N_FAMILIES ((int)(sizeof families / sizeof *families))

static const char *full_key(char buf[NAME_BYTES], const char *name, const char *key)
{
    if (key[0] != '.')
        return key;
    snprintf(buf, NAME_BYTES, "%s%s", name, key);
    return buf;
}

enum err family_fail(const struct source *s, const char *name, const char *key, const char *fmt,
                     ...)
{
    char full[NAME_BYTES], sectioned[SOURCE_KEY_BYTES], what[720];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(ERR_INPUT, "%s%s: %s: %s", s->path, s->kind == SOURCE_HF ? "/config.json" : "",
                source_key(s, full_key(full, name, key), sectioned, sizeof sectioned), what);
}

enum err family_ints(const struct source *s, const char *name, const struct family_int *keys, int n,
                     struct shape *shape)
{
    for (int i = 0; i < n; i++) {
        int64_t value = 0;
        int found = 0;
        TRY(family_one_int(s, name, keys[i].key, 1, keys[i].max, &value, &found));
        int field = 0;
        memcpy(&field, (const char *)shape + keys[i].field, sizeof field);
        if (!found && field == 0 && keys[i].need == KEY_REQUIRED)
            return family_fail(s, name, keys[i].key, "missing");
        if (!found)
            continue;
        field = (int)value;
        memcpy((char *)shape + keys[i].field, &field, sizeof field);
    }
    return OK;
}

enum err family_float(const struct source *s, const char *name, const char *key, double min,
                      double max, double *out)
{
    char full[NAME_BYTES];
    double value = 0;
    int found = 0;
    TRY(source_float(s, full_key(full, name, key), &value, &found));
    if (!found)
        return OK;
    if (!(value >= min && value <= max))
        return family_fail(s, name, key, "%g is out of range [%g, %g]", value, min, max);
    *out = value;
    return OK;
}

enum err family_flag(const struct source *s, const char *name, const char *key, int *out)
{
    char full[NAME_BYTES];
    return source_bool(s, full_key(full, name, key), out, &(int){0}); // absent: *out stays
}

enum err family_number(const struct source *s, const char *tensor, double *out)
{
    const struct source_tensor *t = source_find(s, tensor);
    uint8_t raw[4];
    float f;
    if (!t)
        return OK;
    if ((t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16) ||
        t->n_bytes != dtype_row_bytes(t->dtype, 1))
        return fail(ERR_INPUT, "%s: tensor %s: expected one number", s->path, tensor);
    TRY(source_read(s, t, 0, t->n_bytes, raw));
    dtype_decode_row(t->dtype, raw, 1, &f);
    *out = (double)f;
    return OK;
}

enum err family_str(const struct source *s, const char *name, const char *key, char *buf,
                    int64_t buf_bytes)
{
    char full[NAME_BYTES];
    const char *value = NULL;
    int64_t n = 0;
    int found = 0;
    TRY(source_str(s, full_key(full, name, key), &value, &n, &found));
    if (!found)
        return OK;
    n = min_i64(n, buf_bytes - 1);
    memcpy(buf, value, (size_t)n);
    buf[n] = 0;
    return OK;
}

enum err family_act(const struct source *s, const char *name, const char *key, const char *act,
                    int *out)
{
    static const struct {
        const char *name;
        int act;
    } acts[] = {{"silu", ACT_SILU},           {"swish", ACT_SILU},
                {"gelu", ACT_GELU},           {"gelu_new", ACT_GELU_TANH},
                {"gelu_fast", ACT_GELU_TANH}, {"gelu_pytorch_tanh", ACT_GELU_TANH},
                {"relu", ACT_RELU},           {"relu2", ACT_RELU2},
                {"xielu", ACT_XIELU}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(act, acts[i].name) == 0) {
            *out = acts[i].act;
            return OK;
        }
    return family_fail(s, name, key, "unsupported: %s (supported: silu, gelu, gelu_new, relu)",
                       act);
}

void family_windows(struct shape *shape, int window, int every)
{
    for (int i = 0; i < shape->n_layers; i++)
        shape->layer_window[i] = every == 0 || (i + 1) % every != 0 ? window : 0;
}

void family_windows_end(struct shape *shape)
{
    for (int i = 0; i < shape->n_layers; i++)
        if (shape->layer_window[i] >= shape->context)
            shape->layer_window[i] = 0;
}

void family_defaults(struct shape *shape)
{
    shape->embed_scale = shape->logit_scale = shape->route_scale = 1;
    shape->branch_scale = shape->mlp_scale = 1;
    for (int r = 0; r < SHAPE_ROPES; r++)
        shape->ropes[r].scale = 1;
}

enum err family_heads(const struct source *s, const char *name, struct shape *shape,
                      const char *key_dim, const char *key_heads, const char *key_kv_heads,
                      const char *key_head_dim)
{
    if (shape->n_kv_heads == 0)
        shape->n_kv_heads = shape->n_heads;
    if (shape->n_kv_heads > shape->n_heads || shape->n_heads % shape->n_kv_heads != 0)
        return family_fail(s, name, key_heads, "%d is not a multiple of %s%s, %d", shape->n_heads,
                           key_kv_heads[0] == '.' ? name : "", key_kv_heads, shape->n_kv_heads);
    if (shape->head_dim == 0) {
        if (shape->dim % shape->n_heads != 0)
            return family_fail(s, name, key_dim, "%d is not a multiple of %s%s, %d", shape->dim,
                               key_heads[0] == '.' ? name : "", key_heads, shape->n_heads);
        shape->head_dim = shape->dim / shape->n_heads;
    }
    if (shape->head_dim > (shape->latent_key > 0 ? SHAPE_HEAD_MAX : 2 * SHAPE_ROPE_MAX) ||
        (int64_t)shape->head_dim * shape->n_heads > SHAPE_DIM_MAX)
        return family_fail(s, name, key_head_dim, "%d heads of %d numbers are too large",
                           shape->n_heads, shape->head_dim);
    if (shape->position == POSITION_ROPE && shape->head_dim % 2 != 0)
        return family_fail(s, name, key_head_dim, "%d is odd: heads are rotated in pairs",
                           shape->head_dim);
    return OK;
}

/* How the file calls a role's tensor. */
static const char *name_in_file(const struct family_model *m, enum tensor_role role)
{
    return m->fused && (role == ROLE_GATE || role == ROLE_UP) ? "ffn_gate_up_exps.weight"
                                                              : m->names->roles[role];
}

/* A role's tensor name; "%d" becomes the part. */
static void part_name(const char *name, int part, char buf[NAME_BYTES])
{
    const char *number = strstr(name, "%d");
    if (number)
        snprintf(buf, NAME_BYTES, "%.*s%d%s", (int)(number - name), name, part, number + 2);
    else
        snprintf(buf, NAME_BYTES, "%s", name);
}

/* The file's layer that has the role's tensor. */
static int file_layer(const struct family_model *m, enum tensor_role role, int layer)
{
    return m->n_file_layers > 0 ? m->file_layer[layer][role_is_mlp(role)] : layer;
}

static const char *tensor_name(const struct family_model *m, enum tensor_role role, int layer,
                               int part, char buf[NAME_BYTES])
{
    char name[NAME_BYTES];
    if (!name_in_file(m, role))
        return NULL;
    part_name(name_in_file(m, role), part, name);
    if (role_place(role) == ROLE_IN_DECODER)
        snprintf(buf, NAME_BYTES, "%s%s%d.%.80s", m->prefix, m->names->layer,
                 file_layer(m, role, layer), name);
    else
        snprintf(buf, NAME_BYTES, "%s%.80s",
                 role == ROLE_HEAD || role == ROLE_HEAD_B ? "" : m->prefix, name);
    return buf;
}

/* 1: the role's rows, or vector elements, are those of an expert's inner width. */
static int has_inner_rows(const struct family_model *m, enum tensor_role role)
{
    return role_is_experts(&m->shape, role) && role != ROLE_DOWN && role != ROLE_DOWN_B;
}

void family_file_dims(const struct family_model *m, enum tensor_role role, int layer, int *n,
                      int *k)
{
    role_dims(&m->shape, role, layer, n, k);
    if (has_inner_rows(m, role))
        *n = *n / m->shape.ffn_dim * m->file_ffn;
    else if (role_is_experts(&m->shape, role) && role == ROLE_DOWN)
        *k = m->file_ffn;
}

int family_file_row(const struct family_model *m, enum tensor_role role, int row)
{
    const int padded = m->shape.ffn_dim;
    if (!has_inner_rows(m, role))
        return row;
    return row % padded < m->file_ffn ? row / padded * m->file_ffn + row % padded : -1;
}

int family_parts(const struct family_model *m, enum tensor_role role)
{
    const char *name = name_in_file(m, role);
    int n, k;
    if (!name || !strstr(name, "%d"))
        return 1;
    role_dims(&m->shape, role, 0, &n, &k);
    return role_is_experts(&m->shape, role) ? m->shape.n_experts : n / m->shape.head_dim;
}

const struct source_tensor *family_part(const struct family_model *m, const struct source *s,
                                        enum tensor_role role, int layer, int part)
{
    char buf[NAME_BYTES];
    if (role == ROLE_HEAD && m->tied)
        role = ROLE_EMBED;
    const char *name = tensor_name(m, role, layer, part, buf);
    return name ? source_find(s, name) : NULL;
}

const struct source_tensor *family_tensor(const struct family_model *m, const struct source *s,
                                          enum tensor_role role, int layer)
{
    return family_part(m, s, role, layer, 0);
}

/* GGUF's llama and all cohere files store the rows of a head as (0, h, 1, h + 1, ...) with
 * h = rope_dim / 2, because they rotate neighbours. sluice rotates (i, i + h), so row p * h + i of
 * a head is row 2 i + p of the file. */
static int64_t unpaired_row(const struct family_model *m, enum tensor_role role, int64_t row)
{
    const role_set rotated = ROLE_BIT(ROLE_Q) | ROLE_BIT(ROLE_K) | ROLE_BIT(ROLE_Q_B) |
                             ROLE_BIT(ROLE_K_B) | ROLE_BIT(ROLE_Q_NORM_W) | ROLE_BIT(ROLE_K_NORM_W);
    if (!m->paired_rows || !(rotated & ROLE_BIT(role)))
        return row;
    int64_t half = m->shape.rope_dim / 2, in_head = row % m->shape.head_dim;
    if (in_head >= 2 * half)
        return row;
    return row - in_head + 2 * (in_head % half) + in_head / half;
}

/* Latent attention rotates the last numbers of a head of q, and of the key; sluice the first. */
static int64_t latent_row(const struct family_model *m, enum tensor_role role, int64_t row)
{
    const int64_t head = role == ROLE_Q ? shape_query_dim(&m->shape, 0) : m->shape.head_dim;
    const int64_t turned = m->shape.rope_dim, half = turned / 2, at = row % head;
    if (role != ROLE_Q && role != ROLE_K)
        return row;
    if (at >= turned)
        return row - turned;
    return row - at + head - turned + (m->paired_rows ? 2 * (at % half) + at / half : at);
}

int64_t family_source_row(const struct family_model *m, enum tensor_role role, int64_t row)
{
    const struct family_cut *c = &m->cut[role];
    row = m->shape.latent_key > 0 ? latent_row(m, role, row) : unpaired_row(m, role, row);
    return c->rows == 0 || family_cuts_inputs(m, role)
               ? row
               : c->first + row / c->group * c->stride + row % c->group;
}

void family_cut_qkv(struct family_model *m)
{
    static const enum tensor_role roles[][3] = {{ROLE_Q, ROLE_K, ROLE_V},
                                                {ROLE_Q_B, ROLE_K_B, ROLE_V_B}};
    const int64_t q = (int64_t)m->shape.n_heads * m->shape.head_dim;
    const int64_t kv = (int64_t)m->shape.n_kv_heads * m->shape.head_dim;
    for (int i = 0; i < 2; i++) {
        m->cut[roles[i][0]] = (struct family_cut){q + 2 * kv, 0, q, q};
        m->cut[roles[i][1]] = (struct family_cut){q + 2 * kv, q, kv, kv};
        m->cut[roles[i][2]] = (struct family_cut){q + 2 * kv, q + kv, kv, kv};
    }
}

void family_cut_experts(struct family_model *m)
{
    const int64_t ffn = m->shape.ffn_dim, all = 2 * ffn * m->shape.n_experts;
    m->cut[ROLE_GATE] = (struct family_cut){all, 0, ffn, 2 * ffn};
    m->cut[ROLE_UP] = (struct family_cut){all, ffn, ffn, 2 * ffn};
}

void family_cut_shared(struct family_model *m)
{
    const int64_t n = m->shape.shared_dim;
    m->cut[ROLE_SHARED_GATE] = (struct family_cut){2 * n, 0, n, n};
    m->cut[ROLE_SHARED_UP] = (struct family_cut){2 * n, n, n, n};
}

role_set family_roles(const struct shape *s, role_set optional)
{
    role_set roles = 0;
    for (int role = 0; role < N_ROLES; role++) {
        enum role_need need = role_need(s, role);
        if (need == ROLE_REQUIRED || (need == ROLE_OPTIONAL && (optional & ROLE_BIT(role))))
            roles |= ROLE_BIT(role);
    }
    return roles;
}

void family_roles_by_presence(struct family_model *m, const struct source *s)
{
    role_set there = 0;
    for (int role = 0; role < N_ROLES; role++) {
        int layer = 0;
        while (layer < m->shape.n_layers - 1 && !role_in_layer(&m->shape, role, layer))
            layer++;
        if (family_tensor(m, s, role, layer))
            there |= ROLE_BIT(role);
    }
    m->roles = family_roles(&m->shape, there);
}

enum err family_prefix(struct family_model *m, const struct source *s, const char *const *prefixes,
                       int n)
{
    char buf[NAME_BYTES];
    for (int i = 0; i < n; i++) {
        m->prefix = prefixes[i];
        if (family_tensor(m, s, ROLE_EMBED, 0))
            return OK;
    }
    m->prefix = prefixes[0];
    return fail(ERR_INPUT, "%s: tensor %s: missing", s->path,
                tensor_name(m, ROLE_EMBED, 0, 0, buf));
}

void family_tie(struct family_model *m, const struct source *s, int flag)
{
    m->tied = 0;
    m->tied = flag >= 0 ? flag : !family_tensor(m, s, ROLE_HEAD, 0);
}

/* Dimensions of a tensor. A tensor of all experts, or heads, counts as their matrices stacked, or
 * as their vectors concatenated. */
static int flat_dims(const struct family_model *m, enum tensor_role role,
                     const struct source_tensor *t, int64_t dims[SOURCE_DIMS_MAX])
{
    const int own = role_kind(role) == ROLE_IS_VECTOR ? 1 : 2;
    memcpy(dims, t->dims, sizeof t->dims);
    if (role == ROLE_CHOICE_B && t->n_dims == 2 && dims[0] == 1) { // of one group (ernie)
        dims[0] = dims[1];
        return own;
    }
    if (role == ROLE_STATE_CONV && dims[t->n_dims - 1] == m->shape.state_taps &&
        (t->n_dims == 2 || (t->n_dims == 3 && dims[1] == 1))) { // of a Conv1d
        dims[0] *= m->shape.state_taps;
        return own;
    }
    if (own == 1 && role_is_state(role) && t->n_dims == 2) { // of GGUF files
        dims[0] *= dims[1];
        return own;
    }
    if (role == ROLE_SHARE && t->n_dims == 1) { // a matrix of one row
        dims[1] = dims[0];
        dims[0] = 1;
        return own;
    }
    const int matrices = role_is_experts(&m->shape, role) ? m->shape.n_experts
                         : role_is_heads(role)            ? m->shape.n_heads
                                                          : 0;
    if (matrices == 0 || t->n_dims != own + 1 || dims[0] != matrices)
        return t->n_dims;
    dims[0] *= dims[1];
    dims[1] = dims[2];
    return own;
}

static void print_dims(char *buf, size_t buf_bytes, int n_dims, const int64_t *dims)
{
    size_t at = 0;
    for (int i = 0; i < n_dims && at < buf_bytes; i++)
        at +=
            (size_t)snprintf(buf + at, buf_bytes - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
}

/* Dimensions of one of a role's tensors in the file; a vector of heads may be [heads, head_dim]. */
static int expected_dims(const struct family_model *m, enum tensor_role role, int layer,
                         const struct source_tensor *t, int64_t dims[2])
{
    int n, k;
    family_file_dims(m, role, layer, &n, &k);
    dims[0] = m->cut[role].rows > 0 ? m->cut[role].rows : n / family_parts(m, role);
    dims[1] = k;
    if (role_kind(role) == ROLE_IS_VECTOR && t->n_dims == 2 && m->shape.qk_norm == QK_NORM_OWN &&
        (role == ROLE_Q_NORM_W || role == ROLE_K_NORM_W)) {
        dims[0] = n / m->shape.head_dim;
        dims[1] = m->shape.head_dim;
        return 2;
    }
    if (family_cuts_inputs(m, role)) {
        dims[1] = n / (m->cut[role].rows / m->cut[role].stride);
        return 2;
    }
    if (m->transposed & ROLE_BIT(role)) { // each expert's matrix separately
        const int matrices = role_is_experts(&m->shape, role) ? m->shape.n_experts : 1;
        dims[1] = dims[0] / matrices;
        dims[0] = (int64_t)k * matrices;
    }
    return role_kind(role) == ROLE_IS_VECTOR ? 1 : 2;
}

static enum err check_tensor(const struct family_model *m, const struct source *s,
                             enum tensor_role role, int layer, int part)
{
    char name[NAME_BYTES] = "", expected[64], has[100] = "";
    const struct source_tensor *t = family_part(m, s, role, layer, part);
    tensor_name(m, role == ROLE_HEAD && m->tied ? ROLE_EMBED : role, layer, part, name);
    if (!t)
        return fail(ERR_INPUT, "%s: tensor %s: missing", s->path, name);
    if (t->dtype == N_DTYPES) {
        TRY(source_read(s, t, 0, 0, NULL)); // fails with a message that names the format
        return fail(ERR_INPUT, "%s: tensor %s: unsupported format", s->path, name);
    }
    int64_t dims[2], flat[SOURCE_DIMS_MAX];
    int n_dims = expected_dims(m, role, layer, t, dims);
    if (flat_dims(m, role, t, flat) != n_dims || flat[0] != dims[0] ||
        (n_dims == 2 && flat[1] != dims[1])) {
        print_dims(expected, sizeof expected, n_dims, dims);
        print_dims(has, sizeof has, t->n_dims, t->dims);
        if ((role == ROLE_EMBED || role == ROLE_HEAD) && n_dims == t->n_dims &&
            t->dims[0] != dims[0])
            return fail(ERR_INPUT, "%s: tensor %s: vocab_size is %lld, the file has %lld rows",
                        s->path, name, (long long)dims[0], (long long)t->dims[0]);
        return fail(ERR_INPUT, "%s: tensor %s: expected [%s], the file has [%s]", s->path, name,
                    expected, has);
    }
    int64_t n = n_dims == 1 ? 1 : dims[0];
    if (t->n_bytes != dtype_row_bytes(t->dtype, n_dims == 1 ? dims[0] : dims[1]) * n)
        return fail(ERR_INPUT, "%s: tensor %s: %lld bytes are not %lld rows of %s", s->path, name,
                    (long long)t->n_bytes, (long long)n, dtype_info(t->dtype)->name);
    if (part > 0 && t->dtype != family_part(m, s, role, layer, 0)->dtype)
        return fail(ERR_INPUT, "%s: tensor %s: %s, but the first expert's is %s", s->path, name,
                    dtype_info(t->dtype)->name,
                    dtype_info(family_part(m, s, role, layer, 0)->dtype)->name);
    if ((m->transposed & ROLE_BIT(role)) && role_is_experts(&m->shape, role) && t->n_dims != 3) {
        print_dims(has, sizeof has, t->n_dims, t->dims);
        return fail(ERR_INPUT, "%s: tensor %s: expected one matrix per expert, the file has [%s]",
                    s->path, name, has);
    }
    if ((m->transposed & ROLE_BIT(role)) && dtype_info(t->dtype)->block > 1)
        return fail(ERR_INPUT, "%s: tensor %s: matrices stored by columns cannot be %s", s->path,
                    name, dtype_info(t->dtype)->name);
    return OK;
}

static enum err check_tensors(const struct family_model *m, const struct source *s)
{
    for (int role = 0; role < N_ROLES; role++) {
        if (!(m->roles & ROLE_BIT(role)))
            continue;
        int n = role_place(role) == ROLE_IN_DECODER ? m->shape.n_layers : 1;
        for (int layer = 0; layer < n; layer++)
            for (int part = 0;
                 role_in_layer(&m->shape, role, layer) && part < family_parts(m, role); part++)
                TRY(check_tensor(m, s, role, layer, part));
    }
    return OK;
}

/* Buffers that some libraries saved with the weights. */
static int is_buffer(const char *name)
{
    static const char *const buffers[] = {"rotary_emb.inv_freq",
                                          "attention.rotary_emb.inv_freq",
                                          "self_attn.rotary_emb.inv_freq",
                                          "attn.bias",
                                          "attn.masked_bias",
                                          "attention.bias",
                                          "attention.masked_bias",
                                          "attn_rot_embd.weight"};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (strcmp(name, buffers[i]) == 0)
            return 1;
    return 0;
}

static int is_role(const struct family_model *m, const char *name, int layer)
{
    char of_part[NAME_BYTES];
    if (m->shape.act == ACT_XIELU && strncmp(name, "mlp.act_fn.", 11) == 0)
        return 1; // a number, which the reader has put into the shape, as the next one
    if (m->shape.layer_scale[layer] > 0 &&
        (strcmp(name, "layer_scalar") == 0 || strcmp(name, "layer_output_scale.weight") == 0))
        return 1;
    for (int role = 0; role < N_ROLES; role++) {
        const int other = m->shape.beside_scale > 0 ? layer ^ 1 : layer; // of one layer of the file
        const int here = role_in_layer(&m->shape, role, layer) ||
                         role_in_layer(&m->shape, role, other) ||
                         (role_is_kv(role) && shape_borrows_kv(&m->shape, layer)); // ignored
        if (role_place(role) != ROLE_IN_DECODER || !(m->roles & ROLE_BIT(role)) || !here)
            continue;
        for (int part = 0; part < family_parts(m, role); part++) {
            part_name(name_in_file(m, role), part, of_part);
            if (strcmp(name, of_part) == 0)
                return 1;
        }
    }
    return 0;
}

/* ERR_INPUT if the layer has a weight without a role: the file is an unsupported model variant.
 * `of`: a role of the file's layer. */
static enum err check_strangers(const struct family_model *m, const struct source *s, int layer,
                                enum tensor_role of)
{
    char start[NAME_BYTES];
    int n = snprintf(start, sizeof start, "%s%s%d.", m->prefix, m->names->layer,
                     file_layer(m, of, layer));
    for (int64_t i = 0; i < s->n_tensors; i++) {
        const char *name = s->tensors[i].name;
        if (strncmp(name, start, (size_t)n) == 0 && !is_buffer(name + n) &&
            !is_role(m, name + n, layer) && !source_is_part(s, &s->tensors[i]))
            return fail(ERR_INPUT, "%s: tensor %s: unsupported: %s models have no such tensor",
                        s->path, name, m->shape.family);
    }
    return OK;
}

int family_has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = strstr(words, word); at; at = strstr(at + 1, word))
        if ((at == words || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
            return 1;
    return 0;
}

/* The part of the model that a tensor belongs to: the first member of its name, after "model.". */
static void part_of(const char *name, char part[NAME_BYTES])
{
    name += strncmp(name, "model.", 6) == 0 ? 6 : 0;
    snprintf(part, NAME_BYTES, "%.*s", (int)strcspn(name, "."), name);
}

/* 1: a tensor of a layer behind the last one: such layers predict further tokens (MTP). */
static int is_beyond(const struct family_model *m, const char *name)
{
    char start[NAME_BYTES];
    const int n = snprintf(start, sizeof start, "%s%s", m->prefix, m->names->layer);
    char *end;
    if (strncmp(name, start, (size_t)n) != 0)
        return 0;
    const long layer = strtol(name + n, &end, 10);
    const int n_layers = m->n_file_layers > 0 ? m->n_file_layers : m->shape.n_layers;
    return end > name + n && *end == '.' && layer >= n_layers;
}

void family_unused(const struct family_model *m, const struct source *s, struct family_unused *u)
{
    const char *head = m->names->roles[ROLE_HEAD] ? m->names->roles[ROLE_HEAD] : "";
    const size_t n_head = strcspn(head, "."); // a quantised head has other suffixes
    size_t used = 0;
    *u = (struct family_unused){0};
    for (int64_t i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        char part[NAME_BYTES] = "mtp";
        const int beyond = is_beyond(m, t->name);
        if (!beyond && (strncmp(t->name, m->prefix, strlen(m->prefix)) == 0 ||
                        (strncmp(t->name, head, n_head) == 0 && t->name[n_head] == '.')))
            continue;
        u->n_tensors++;
        u->n_bytes += t->n_bytes;
        if (!beyond)
            part_of(t->name, part);
        if (!family_has_word(u->parts, part) && used + strlen(part) + 2 < sizeof u->parts)
            used += (size_t)snprintf(u->parts + used, sizeof u->parts - used, "%s%s",
                                     used ? " " : "", part);
    }
}

#define LATENT   " deepseek_v3 deepseek_v2 glm4_moe_lite mistral4" // with latent attention
#define GRANITE  "granite granitemoe granitehybrid"
#define HUNYUAN  "hunyuan_dense hunyuan_moe"
#define DEEPSEEK " glm4_moe dots1 solar_open" LATENT // families with the router's keys of DeepSeek

/* Keys that change the computation, and the families that read them. In other families the key must
 * have its neutral value. */
static const struct neutral {
    const char *key;
    double neutral;
    const char *families; // "" none
} neutrals[] = {
    {"embedding_multiplier", 1, GRANITE " falcon_h1"},
    {"residual_multiplier", 1, GRANITE},
    {"attention_multiplier", 1, GRANITE},
    {"logits_scaling", 1, GRANITE},
    {"logit_scale", 1, "cohere cohere2"},
    {"attn_logit_softcapping", 0, "gemma2"},
    {"final_logit_softcapping", 0, "gemma2 gemma4"},
    {"query_pre_attn_scalar", 0, "gemma2 gemma3"},
    {"no_rope_layers", 0, "smollm3"},
    {"num_local_experts", 0,
     "qwen3_next qwen3_5_moe mixtral qwen2_moe qwen3_moe gpt_oss granitemoe granitehybrid olmoe "
     "minimax_m2 ernie4_5_moe lfm2_moe nemotron_h hunyuan_moe phimoe" DEEPSEEK},
    {"num_kv_shared_layers", 0, "gemma4"},
    {"use_double_wide_mlp", 0, "gemma4"},
    {"num_experts", 0,
     "gemma4 qwen2_moe qwen3_moe olmoe ernie4_5_moe qwen3_next qwen3_5_moe lfm2_moe " HUNYUAN},
    {"moe_num_experts", 0, "ernie4_5_moe"},
    {"moe_layer_interval", 1, ""},
    {"use_bias", 0, ""},
    {"conv_bias", 0, ""},
    {"mamba_proj_bias", 0, ""},
    {"moe_latent_size", 0, "nemotron_h"},
    {"n_routed_experts", 0, "nemotron_h" DEEPSEEK},
    {"n_shared_experts", 0, "nemotron_h" DEEPSEEK},
    {"first_k_dense_replace", 0, DEEPSEEK},
    {"n_group", 1, "hunyuan_moe nemotron_h" DEEPSEEK},
    {"group_limited_greedy", 0, ""},
    {"shared_expert_intermediate_size", 0, "qwen2_moe qwen3_next qwen3_5_moe"},
    {"routed_scaling_factor", 1, "hunyuan_moe nemotron_h lfm2_moe" DEEPSEEK},
    {"decoder_sparse_step", 1, "qwen2_moe qwen3_moe qwen3_next"},
    {"clip_qkv", 0, ""},
    {"qk_layernorm", 0, "stablelm"},
    {"use_qk_norm", 0, "glm4_moe minimax_m2 cohere " HUNYUAN},
    {"use_cla", 0, ""},
    {"use_parallel_residual", 0, "gpt_neox stablelm"},
    {"parallel_attn", 0, ""},
    {"alibi", 0, ""},
    {"kv_lora_rank", 0, LATENT},
    {"attention_chunk_size", 0, ""},
    {"attn_temperature_tuning", 0, ""},
    {"scale_attn_by_inverse_layer_idx", 0, ""},
    {"scale_attn_weights", 1, ""},
    {"use_mup", 0, ""},
    {"use_bidirectional_attention", 0, "gemma4"},
    {"add_cross_attention", 0, ""},
    {"is_encoder_decoder", 0, ""},
    {".expert_count", 0,
     "llama qwen2_moe qwen3_moe gpt_oss granitemoe granitehybrid olmoe minimax_m2 ernie4_5_moe "
     "lfm2_moe qwen3_next qwen3_5_moe nemotron_h gemma4 hunyuan_moe phimoe" DEEPSEEK},
    {".expert_shared_count", 0, "ernie4_5_moe hunyuan_moe nemotron_h" DEEPSEEK},
    {".expert_weights_scale", 1, "lfm2_moe nemotron_h" DEEPSEEK},
    {".expert_gating_func", 1, "gpt_oss minimax_m2 ernie4_5_moe lfm2_moe nemotron_h" DEEPSEEK},
    {".expert_group_count", 1, "nemotron_h" DEEPSEEK},
    {".moe_latent_size", 0, "nemotron_h"},
    {".leading_dense_block_count", 0, "ernie4_5_moe lfm2_moe" DEEPSEEK},
    {".embedding_scale", 1, GRANITE},
    {".residual_scale", 1, GRANITE},
    {".attention.scale", 0, GRANITE},
    {".logit_scale", 1, GRANITE " cohere cohere2"},
    {".attn_logit_softcapping", 0, "gemma2"},
    {".final_logit_softcapping", 0, "gemma2 gemma4"},
    {".embedding_length_per_layer_input", 0, "gemma4"},
    {".attention.shared_kv_layers", 0, "gemma4"},
    {".attention.clamp_kqv", 0, ""},
    {".attention.max_alibi_bias", 0, ""},
    {".attention.causal", 1, ""},
    {".use_parallel_residual", 0, "gpt_neox stablelm"},
};

enum err family_check_keys(const struct source *s, const char *family, const char *name)
{
    for (size_t i = 0; i < sizeof neutrals / sizeof *neutrals; i++) {
        char full[NAME_BYTES];
        double value = 0;
        int found = 0, of_gguf = neutrals[i].key[0] == '.';
        if (of_gguf != (s->kind == SOURCE_GGUF) || family_has_word(neutrals[i].families, family))
            continue;
        source_weigh(s, full_key(full, name, neutrals[i].key), &value, &found);
        if (found && value != neutrals[i].neutral)
            return family_fail(s, name, neutrals[i].key, "unsupported in %s models", family);
    }
    return OK;
}

static enum err unsupported(const struct source *s, const char *key, const char *what)
{
    char have[640] = "";
    size_t at = 0;
    for (int i = 0; i < N_FAMILIES && at < sizeof have; i++)
        if (i == 0 || strcmp(families[i].name, families[i - 1].name) != 0) // one has two rows
            at += (size_t)snprintf(have + at, sizeof have - at, "%s%s", i ? ", " : "",
                                   families[i].name);
    return family_fail(s, "", key, "unsupported architecture %s (supported: %s)", what, have);
}

static enum err find_family(const struct source *s, const struct family **found)
{
    char what[64] = "";
    int gguf = s->kind == SOURCE_GGUF;
    const char *key = gguf ? "general.architecture" : "model_type";
    TRY(family_str(s, "", key, what, sizeof what));
    for (int i = 0; i < N_FAMILIES; i++) {
        *found = &families[i];
        if (what[0] && strcmp(what, gguf ? families[i].gguf : families[i].hf) == 0)
            return OK;
    }
    if (what[0] || gguf)
        return what[0] ? unsupported(s, key, what) : family_fail(s, "", key, "missing");
    const char *classes[CLASSES_MAX]; // very old config.json files lack model_type
    int64_t n = 0;
    int there = 0;
    TRY(source_str_list(s, "architectures", classes, CLASSES_MAX, &n, &there));
    if (n == 0)
        return family_fail(s, "", key, "missing");
    for (int i = 0; i < N_FAMILIES; i++) {
        *found = &families[i];
        if (strcmp(classes[0], families[i].hf_class) == 0)
            return OK;
    }
    return unsupported(s, "architectures", classes[0]);
}

/* Experts are multiplied one by one, so their rows must fill panels of matrices. */
static enum err pad_experts(struct family_model *m, const struct source *s, const char *name)
{
    struct shape *shape = &m->shape;
    m->file_ffn = shape->ffn_dim;
    if (shape->n_experts == 0)
        return OK;
    if (shape->dim % FAMILY_EXPERT_ROWS != 0)
        return family_fail(s, name, s->kind == SOURCE_HF ? "hidden_size" : ".embedding_length",
                           "unsupported: %d is not a multiple of %d, which experts need",
                           shape->dim, FAMILY_EXPERT_ROWS);
    shape->ffn_dim = (int)round_up(shape->ffn_dim, FAMILY_EXPERT_ROWS);
    return OK;
}

/* Layers of a kind have the same roles. */
static int kind_of(const struct shape *s, int layer)
{
    return shape_has_experts(s, layer) + 2 * s->layer_state[layer] + 4 * s->layer_bare[layer] +
           8 * s->layer_wide[layer] + 16 * shape_borrows_kv(s, layer);
}

enum err family_read(struct family_model *m, const struct source *s)
{
    const struct family *f;
    *m = (struct family_model){.prefix = ""};
    family_defaults(&m->shape);
    TRY(find_family(s, &f));
    snprintf(m->shape.family, sizeof m->shape.family, "%s", f->name);
    const char *gguf_name = s->kind == SOURCE_GGUF ? f->gguf : f->name;
    TRY(family_check_keys(s, f->name, gguf_name));
    TRY(f->read(m, s, gguf_name));
    family_windows_end(&m->shape);
    TRY(pad_experts(m, s, gguf_name));
    const char *bad = shape_check(&m->shape);
    if (bad)
        return family_fail(s, "", bad, "out of range");
    TRY(source_check_ends(s, m->shape.vocab));
    TRY(check_tensors(m, s));
    for (int kind = 0; kind < 32; kind++) // the first layer of each kind
        for (int i = 0; i < m->shape.n_layers; i++)
            if (kind_of(&m->shape, i) == kind) {
                TRY(check_strangers(m, s, i, ROLE_NORM1_W));
                TRY(check_strangers(m, s, i, ROLE_NORM2_W));
                break;
            }
    return OK;
}
