/* engine/model/pack.c - the bytes of a pack's header and metadata, the names of weight formats,
 * cache names, and the check of a whole file. See pack.h for the layout.
 *
 * Refuses: interpretation. A decoded shape is only numbers until model.c has checked it. Note:
 * formats are stored by name, so that a new line in the dtype table cannot change the meaning of an
 * old pack. */
#include "engine/model/pack.h"
#include "engine/data/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_BLOCK  4096 // bytes
#define HASH_BLOCKS 16   // per file

static const char *const weights_names[N_PACK_WEIGHTS] = {"auto", "f32", "f16", "bf16",
                                                          "q8",   "q4",  "bf12"};

const char *pack_weights_name(enum pack_weights w)
{
    CHECK(w >= 0 && w < N_PACK_WEIGHTS);
    return weights_names[w];
}

enum pack_weights pack_weights_by_name(const char *name)
{
    int w = 0;
    while (w < N_PACK_WEIGHTS && strcmp(weights_names[w], name) != 0)
        w++;
    return (enum pack_weights)w;
}

void pack_put(struct pack_out *o, const void *data, int64_t n_bytes)
{
    if (!o->failed && n_bytes > o->capacity - o->n_bytes) {
        int64_t capacity = max_i64(o->capacity * 2, o->n_bytes + n_bytes + 4096);
        uint8_t *grown = realloc(o->data, (size_t)capacity);
        o->failed = !grown;
        if (grown) {
            o->data = grown;
            o->capacity = capacity;
        }
    }
    if (o->failed || n_bytes == 0)
        return;
    memcpy(o->data + o->n_bytes, data, (size_t)n_bytes);
    o->n_bytes += n_bytes;
}

void pack_put_u32(struct pack_out *o, uint32_t v)
{
    uint8_t b[4];
    for (int i = 0; i < 4; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    pack_put(o, b, 4);
}

void pack_put_u64(struct pack_out *o, uint64_t v)
{
    pack_put_u32(o, (uint32_t)v);
    pack_put_u32(o, (uint32_t)(v >> 32));
}

const void *pack_get(struct pack_in *in, int64_t n_bytes)
{
    if (in->failed || n_bytes < 0 || n_bytes > in->n_bytes - in->at) {
        in->failed = 1;
        return NULL;
    }
    const uint8_t *p = in->data + in->at;
    in->at += n_bytes;
    return p;
}

uint32_t pack_get_u32(struct pack_in *in)
{
    const uint8_t *b = pack_get(in, 4);
    return b ? b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24 : 0;
}

uint64_t pack_get_u64(struct pack_in *in)
{
    uint64_t low = pack_get_u32(in);
    return low | (uint64_t)pack_get_u32(in) << 32;
}

/* One list for writer and reader. Append new fields, with a new PACK_VERSION. */
#define SHAPE_INTS(X)                                                                              \
    X(n_layers)                                                                                    \
    X(dim)                                                                                         \
    X(n_heads)                                                                                     \
    X(n_kv_heads)                                                                                  \
    X(head_dim)                                                                                    \
    X(ffn_dim)                                                                                     \
    X(vocab)                                                                                       \
    X(context)                                                                                     \
    X(embed_dim)                                                                                   \
    X(norm)                                                                                        \
    X(norm_place)                                                                                  \
    X(final_norm)                                                                                  \
    X(act)                                                                                         \
    X(position)                                                                                    \
    X(position_offset)                                                                             \
    X(rope_dim)                                                                                    \
    X(gated)                                                                                       \
    X(qk_norm)                                                                                     \
    X(branches)                                                                                    \
    X(rope_long)                                                                                   \
    X(sinks)                                                                                       \
    X(n_experts)                                                                                   \
    X(n_experts_used)                                                                              \
    X(route_alone)                                                                                 \
    X(dense_dim)                                                                                   \
    X(shared_dim)                                                                                  \
    X(shared_gate)                                                                                 \
    X(route_logistic)                                                                              \
    X(route_bias)                                                                                  \
    X(n_groups)                                                                                    \
    X(n_groups_used)                                                                               \
    X(bare_norm)                                                                                   \
    X(query_period)                                                                                \
    X(query_gate)                                                                                  \
    X(state)                                                                                       \
    X(state_k_heads)                                                                               \
    X(state_v_heads)                                                                               \
    X(state_k_dim)                                                                                 \
    X(state_v_dim)                                                                                 \
    X(state_taps)                                                                                  \
    X(latent_key)                                                                                  \
    X(latent_value)                                                                                \
    X(latent_query)                                                                                \
    X(group_best)                                                                                  \
    X(wide_head_dim)                                                                               \
    X(wide_kv_heads)                                                                               \
    X(tied_kv)                                                                                     \
    X(value_norm)                                                                                  \
    X(route_scales)                                                                                \
    X(expert_norms)                                                                                \
    X(state_tiled)                                                                                 \
    X(kv_own_layers)                                                                               \
    X(late_ffn_dim)                                                                                \
    X(layer_input)                                                                                 \
    X(expert_dim)
#define SHAPE_FLOATS(X)                                                                            \
    X(norm_eps)                                                                                    \
    X(embed_scale)                                                                                 \
    X(branch_scale)                                                                                \
    X(attn_scale)                                                                                  \
    X(logit_scale)                                                                                 \
    X(attn_softcap)                                                                                \
    X(logit_softcap)                                                                               \
    X(act_limit)                                                                                   \
    X(route_scale)                                                                                 \
    X(query_beta)                                                                                  \
    X(route_near)                                                                                  \
    X(mlp_scale)                                                                                   \
    X(state_dt_scale)                                                                              \
    X(beside_scale)

static void put_f32(struct pack_out *o, float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    pack_put_u32(o, u);
}

static float get_f32(struct pack_in *in)
{
    uint32_t u = pack_get_u32(in);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

void pack_put_shape(struct pack_out *o, const struct shape *s)
{
    pack_put(o, s->family, sizeof s->family);
#define PUT(field) pack_put_u32(o, (uint32_t)s->field);
    SHAPE_INTS(PUT)
#undef PUT
#define PUT(field) put_f32(o, s->field);
    SHAPE_FLOATS(PUT)
#undef PUT
    for (int r = 0; r < SHAPE_ROPES; r++) {
        put_f32(o, s->ropes[r].scale);
        for (int i = 0; i < SHAPE_ROPE_MAX; i++)
            put_f32(o, i < shape_rope_width(s, r) / 2 ? s->ropes[r].inv_freq[i] : 0);
    }
    pack_put(o, s->layer_rope, sizeof s->layer_rope);
    for (int i = 0; i < SHAPE_LAYERS_MAX; i++)
        pack_put_u32(o, (uint32_t)s->layer_window[i]);
    pack_put(o, s->layer_state, sizeof s->layer_state);
    pack_put(o, s->layer_bare, sizeof s->layer_bare);
    pack_put(o, s->layer_dense, sizeof s->layer_dense);
    pack_put(o, s->layer_wide, sizeof s->layer_wide);
    for (int i = 0; i < SHAPE_LAYERS_MAX; i++)
        put_f32(o, s->layer_scale[i]);
    for (int i = 0; i < 2 * s->n_layers && s->act == ACT_XIELU; i++)
        put_f32(o, s->layer_alpha[i / 2][i % 2]);
}

void pack_get_shape(struct pack_in *in, struct shape *s)
{
    *s = (struct shape){0};
    const void *family = pack_get(in, sizeof s->family);
    if (family)
        memcpy(s->family, family, sizeof s->family);
#define GET(field) s->field = (int)pack_get_u32(in);
    SHAPE_INTS(GET)
#undef GET
#define GET(field) s->field = get_f32(in);
    SHAPE_FLOATS(GET)
#undef GET
    for (int r = 0; r < SHAPE_ROPES; r++) {
        s->ropes[r].scale = get_f32(in);
        for (int i = 0; i < SHAPE_ROPE_MAX; i++)
            s->ropes[r].inv_freq[i] = get_f32(in);
    }
    const void *layer_rope = pack_get(in, sizeof s->layer_rope);
    if (layer_rope)
        memcpy(s->layer_rope, layer_rope, sizeof s->layer_rope);
    for (int i = 0; i < SHAPE_LAYERS_MAX; i++)
        s->layer_window[i] = (int32_t)pack_get_u32(in);
    const void *layer_state = pack_get(in, sizeof s->layer_state);
    if (layer_state)
        memcpy(s->layer_state, layer_state, sizeof s->layer_state);
    const void *layer_bare = pack_get(in, sizeof s->layer_bare);
    if (layer_bare)
        memcpy(s->layer_bare, layer_bare, sizeof s->layer_bare);
    const void *layer_dense = pack_get(in, sizeof s->layer_dense);
    if (layer_dense)
        memcpy(s->layer_dense, layer_dense, sizeof s->layer_dense);
    const void *layer_wide = pack_get(in, sizeof s->layer_wide);
    if (layer_wide)
        memcpy(s->layer_wide, layer_wide, sizeof s->layer_wide);
    for (int i = 0; i < SHAPE_LAYERS_MAX; i++)
        s->layer_scale[i] = get_f32(in);
    const int known = s->act == ACT_XIELU && s->n_layers > 0;
    const int n_alpha = known ? (int)min_i64(s->n_layers, SHAPE_LAYERS_MAX) : 0;
    for (int i = 0; i < 2 * n_alpha; i++) // the shape's numbers are checked later
        s->layer_alpha[i / 2][i % 2] = get_f32(in);
}

void pack_header_encode(const struct pack_header *h, uint8_t page[BLOCK_BYTES])
{
    struct pack_out o = {.data = page, .capacity = BLOCK_BYTES};
    memset(page, 0, BLOCK_BYTES);
    pack_put(&o, PACK_MAGIC, 8);
    pack_put_u32(&o, PACK_VERSION);
    pack_put_u32(&o, h->meta_crc);
    pack_put_u64(&o, (uint64_t)h->file_bytes);
    pack_put_u64(&o, (uint64_t)h->meta_offset);
    pack_put_u64(&o, (uint64_t)h->meta_bytes);
    pack_put_u32(&o, (uint32_t)h->range.known);
    pack_put(&o, &h->range.most, sizeof h->range.most);
    pack_put_u32(&o, (uint32_t)h->range.layer);
    pack_put_u32(&o, (uint32_t)h->range.role);
    pack_put_u64(&o, h->source);
    o.n_bytes = BLOCK_BYTES - 4;
    pack_put_u32(&o, crc32c(0, page, BLOCK_BYTES - 4));
}

enum err pack_header_decode(struct pack_header *h, const uint8_t page[BLOCK_BYTES],
                            const char *path)
{
    struct pack_in in = {.data = page, .n_bytes = BLOCK_BYTES};
    if (memcmp(pack_get(&in, 8), PACK_MAGIC, 8) != 0)
        return fail(ERR_INPUT, "%s: header: not a pack", path);
    uint32_t version = pack_get_u32(&in);
    h->meta_crc = pack_get_u32(&in);
    h->file_bytes = (int64_t)pack_get_u64(&in);
    h->meta_offset = (int64_t)pack_get_u64(&in);
    h->meta_bytes = (int64_t)pack_get_u64(&in);
    h->range.known = (int)pack_get_u32(&in);
    memcpy(&h->range.most, pack_get(&in, sizeof h->range.most), sizeof h->range.most);
    h->range.layer = (int)pack_get_u32(&in);
    h->range.role = (int)pack_get_u32(&in);
    h->source = pack_get_u64(&in);
    in.at = BLOCK_BYTES - 4;
    if (pack_get_u32(&in) != crc32c(0, page, BLOCK_BYTES - 4))
        return fail(ERR_CORRUPT, "%s: header: checksum mismatch (pack the model again)", path);
    if (version != PACK_VERSION)
        return fail(ERR_INPUT,
                    "%s: header: pack version %u, this program reads %d (pack the model "
                    "again)",
                    path, version, PACK_VERSION);
    return OK;
}

/* mkdir -p; the last components are created for the user only. */
static enum err make_folders(char *path)
{
    for (char *c = path + 1;; c++) {
        char end = *c;
        if (end != '/' && end != 0)
            continue;
        *c = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            return fail(ERR_IO, "%s: mkdir: %s (set SLUICE_CACHE_DIR)", path, strerror(errno));
        *c = end;
        if (end == 0)
            return OK;
    }
}

static char folder_in_use[PATH_MAX]; // "": use the environment

void pack_cache_use(const char *folder)
{
    snprintf(folder_in_use, sizeof folder_in_use, "%s", folder);
}

enum err pack_cache_dir(char *buf, int64_t buf_bytes)
{
    const char *own = folder_in_use[0] ? folder_in_use : getenv("SLUICE_CACHE_DIR");
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (own && *own)
        n = snprintf(buf, (size_t)buf_bytes, "%s", own);
    else if (xdg && *xdg == '/') // relative paths are ignored: the XDG rule
        n = snprintf(buf, (size_t)buf_bytes, "%s/sluice", xdg);
    else if (home && *home)
        n = snprintf(buf, (size_t)buf_bytes, "%s/.cache/sluice", home);
    else
        return fail(ERR_USAGE, "cache: no folder for packs (set SLUICE_CACHE_DIR or HOME)");
    if (n < 0 || n >= buf_bytes)
        return fail(ERR_USAGE, "cache: the folder's path is too long (set SLUICE_CACHE_DIR)");
    return make_folders(buf);
}

/* Sums over a model's files, independent of the order of listing. */
struct model_hash {
    uint64_t look;    // of name, size, time, first bytes: changes when a file is replaced
    uint64_t sample;  // of size, and blocks all over the file
    uint64_t content; // with `whole`: of name in its folder, size, and every byte
    int whole;
    enum err (*tick)(void *ctx); // with `whole`: called between pieces; an error stops reading
    void *ctx;
};

static int hash_blocks(int fd, int64_t n_bytes, uint64_t *hash)
{
    uint8_t block[HASH_BLOCK];
    uint64_t sum = mix64((uint64_t)n_bytes);
    const int64_t last = max_i64(n_bytes - HASH_BLOCK, 0);
    for (int i = 0; i < HASH_BLOCKS; i++) {
        ssize_t n = pread(fd, block, sizeof block, last * i / (HASH_BLOCKS - 1));
        if (n < 0)
            return 0;
        sum = hash_bytes(block, n, sum);
    }
    *hash += sum;
    return 1;
}

/* Hashes every byte of the file, and the part of its name that distinguishes the model's files. */
static enum err hash_whole(int fd, const char *path, const char *name, int64_t n_bytes,
                           struct model_hash *hash)
{
    uint8_t piece[16 * HASH_BLOCK];
    uint32_t crc = 0;
    int64_t at = 0;
    for (ssize_t n = 1; n > 0; at += n) {
        TRY(hash->tick ? hash->tick(hash->ctx) : OK);
        n = pread(fd, piece, sizeof piece, at);
        if (n < 0)
            return fail(ERR_IO, "%s: read: %s", path, strerror(errno));
        crc = crc32c(crc, piece, n);
    }
    uint64_t sample = 0;
    if (at != n_bytes || !hash_blocks(fd, n_bytes, &sample))
        return fail(ERR_INPUT, "%s: changed while it was read", path);
    uint64_t fields[3] = {(uint64_t)n_bytes, crc, sample};
    hash->content += hash_bytes(fields, sizeof fields, hash_bytes(name, (int64_t)strlen(name), 0));
    return OK;
}

/* `own`: the part of the name that distinguishes the model's files. */
static enum err hash_file(const char *path, const char *name, const char *own,
                          struct model_hash *hash)
{
    uint8_t head[HASH_BLOCK];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(file_open_code(), "%s: open: %s", path, strerror(errno));
    ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? pread(fd, head, sizeof head, 0) : -1;
    if (n >= 0 && !hash_blocks(fd, st.st_size, &hash->sample))
        n = -1;
    enum err whole = n >= 0 && hash->whole ? hash_whole(fd, path, own, st.st_size, hash) : OK;
    close(fd);
    TRY(whole);
    if (n < 0)
        return fail(ERR_INPUT, "%s: not a readable file", path);
    uint64_t fields[4] = {(uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
                          (uint64_t)st.st_mtim.tv_nsec, hash_bytes(head, n, 0)};
    hash->look += hash_bytes(fields, sizeof fields, hash_bytes(name, (int64_t)strlen(name), 0));
    return OK;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* `prefix`: of the shards of one GGUF model, else "". */
static int is_model_file(const char *name, const char *prefix)
{
    static const char *const ends[] = {".safetensors", ".json", ".txt",
                                       ".model",       ".gguf", ".jinja"};
    int counts = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        counts |= ends_with(name, ends[i]);
    return counts && strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Sums over the model files of a folder, independent of the order of listing; only names with
 * `prefix`. */
static enum err hash_folder(const char *folder, const char *prefix, struct model_hash *hash)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return fail(file_open_code(), "%s: open: %s", folder, strerror(errno));
    enum err e = OK;
    for (struct dirent *d = readdir(dir); d && e == OK; d = readdir(dir)) {
        char path[PATH_MAX];
        if (!is_model_file(d->d_name, prefix))
            continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, d->d_name) >= (int)sizeof path)
            e = fail(ERR_INPUT, "%s: path too long", folder);
        else
            e = hash_file(path, d->d_name, d->d_name + strlen(prefix), hash);
    }
    closedir(dir);
    return e;
}

/* "a/b-00001-of-00003.gguf" -> folder "a", prefix "b-"; returns 0 for files that are no shard. */
static int split_name(const char *path, char *folder, const char **prefix)
{
    const char *base = strrchr(path, '/');
    size_t n_base = strlen(base ? base + 1 : path), n_folder = base ? (size_t)(base - path) : 1;
    int no, count;
    const size_t tail = strlen("00001-of-00003.gguf");
    base = base ? base + 1 : path;
    if (n_base <= tail || sscanf(base + n_base - tail, "%5d-of-%5d.gguf", &no, &count) != 2)
        return 0;
    CHECK(n_folder + 1 < PATH_MAX);
    memcpy(folder, base == path ? "." : path, n_folder);
    folder[n_folder] = 0;
    char *copy = folder + n_folder + 1;
    if (n_folder + 1 + n_base - tail + 1 > PATH_MAX)
        return 0;
    memcpy(copy, base, n_base - tail);
    copy[n_base - tail] = 0;
    *prefix = copy;
    return 1;
}

int pack_is_source(const char *model_path, const struct stat *file)
{
    char folder[PATH_MAX];
    const char *prefix = "";
    struct stat st;
    int found = 0;
    if (stat(model_path, &st) != 0 || strlen(model_path) >= sizeof folder)
        return 0;
    if (S_ISDIR(st.st_mode))
        snprintf(folder, sizeof folder, "%s", model_path);
    else if (!split_name(model_path, folder, &prefix))
        return st.st_ino == file->st_ino && st.st_dev == file->st_dev;
    DIR *dir = opendir(folder);
    for (const struct dirent *d; dir && !found && (d = readdir(dir));)
        found = is_model_file(d->d_name, prefix) && fstatat(dirfd(dir), d->d_name, &st, 0) == 0 &&
                st.st_ino == file->st_ino && st.st_dev == file->st_dev;
    if (dir)
        closedir(dir);
    return found;
}

/* "OWNER/NAME" without a folder OWNER: a name on the Hugging Face hub. */
static int is_hub_id(const char *path)
{
    char owner[PATH_MAX];
    const char *slash = strchr(path, '/');
    if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || strchr(".~", path[0]))
        return 0;
    snprintf(owner, sizeof owner, "%.*s", (int)(slash - path), path);
    return access(owner, F_OK) != 0;
}

static enum err fail_hub_id(const char *id)
{
    char config[PATH_MAX], dummy[PATH_MAX + 40] = "";
    snprintf(config, sizeof config, "configs/%s.cfg", strchr(id, '/') + 1);
    for (char *c = config; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (access(config, F_OK) == 0)
        snprintf(dummy, sizeof dummy, ", or -m %s for dummy weights", config);
    return fail(ERR_INPUT,
                "%s: no such file or folder; sluice does not use the network (download it first: "
                "huggingface-cli download %s --local-dir DIR%s)",
                id, id, dummy);
}

/* `path` [PATH_MAX] receives the model's path without trailing slashes. */
static enum err hash_model(const char *model_path, char *path, struct model_hash *hash)
{
    char folder[PATH_MAX];
    size_t n = strlen(model_path);
    while (n > 1 && model_path[n - 1] == '/')
        n--;
    if (n == 0 || n >= PATH_MAX)
        return fail(ERR_USAGE, "MODEL: the path is empty or too long");
    memcpy(path, model_path, n);
    path[n] = 0;
    const char *base = strrchr(path, '/'), *prefix = "";
    base = base && base[1] ? base + 1 : path;
    struct stat st;
    if (stat(path, &st) != 0)
        return errno == ENOENT && is_hub_id(path)
                   ? fail_hub_id(path)
                   : fail(ERR_INPUT, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return hash_folder(path, "", hash);
    if (split_name(path, folder, &prefix))
        return hash_folder(folder, prefix, hash);
    return hash_file(path, base, "", hash);
}

enum err pack_source_hash(const char *model_path, uint64_t *hash)
{
    char path[PATH_MAX];
    struct model_hash of = {0};
    TRY(hash_model(model_path, path, &of));
    *hash = of.sample ? of.sample : 1;
    return OK;
}

enum err pack_source_look(const char *model_path, uint64_t *hash)
{
    char path[PATH_MAX];
    struct model_hash of = {.look = mix64(PACK_VERSION)};
    TRY(hash_model(model_path, path, &of));
    *hash = of.look;
    return OK;
}

enum err pack_source_content(const char *model_path, enum err (*tick)(void *ctx), void *ctx,
                             uint64_t *hash)
{
    char path[PATH_MAX];
    struct model_hash of = {.content = mix64(PACK_VERSION), .whole = 1, .tick = tick, .ctx = ctx};
    TRY(hash_model(model_path, path, &of));
    *hash = of.content;
    return OK;
}

/* Finds a pack in the folder by the end of its name, whatever model it is named after. */
static int find_pack(const char *folder, const char *end, char *buf, int64_t buf_bytes)
{
    DIR *dir = opendir(folder);
    int found = 0;
    for (const struct dirent *d; dir && !found && (d = readdir(dir));)
        found = ends_with(d->d_name, end) &&
                snprintf(buf, (size_t)buf_bytes, "%s/%s", folder, d->d_name) < buf_bytes;
    if (dir)
        closedir(dir);
    return found;
}

enum err pack_cache_path(const char *model_path, enum pack_weights weights, uint64_t hash,
                         char *buf, int64_t buf_bytes)
{
    char path[PATH_MAX], cache[PATH_MAX], end[64];
    snprintf(path, sizeof path, "%s", model_path);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    const char *base = strrchr(path, '/');
    base = base && base[1] ? base + 1 : path;
    TRY(pack_cache_dir(cache, sizeof cache));
    snprintf(end, sizeof end, "-%016llx-%s.pack", (unsigned long long)hash,
             pack_weights_name(weights));
    if (find_pack(cache, end, buf, buf_bytes))
        return OK;
    int n_out = snprintf(buf, (size_t)buf_bytes, "%s/%.128s%s", cache,
                         strcmp(base, ".") == 0 ? "model" : base, end);
    if (n_out < 0 || n_out >= buf_bytes)
        return fail(ERR_USAGE, "cache: the folder's path is too long (set SLUICE_CACHE_DIR)");
    return OK;
}
