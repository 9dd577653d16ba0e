/* engine/model/containers/safetensors.c - see safetensors.h. Owns the header grammar and every
 * check of a byte range.
 *
 * File: u64 header length (little-endian), header JSON, data. data_offsets count from the end of
 * the header and must tile the data without hole or overlap. Note: the spec wants the header to
 * begin with '{' and lets spaces follow it; the reference reader accepts white space on both sides,
 * and so does sluice. */
#include "engine/model/containers/safetensors.h"

#include "engine/data/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_DEPTH_MAX 4
#define RANK_MAX         8
#define TEXT_BLOCK_BYTES (256 << 10)

struct safetensors_slot {
    uint32_t hash; // upper half of the hash: saves most comparisons of names
    int32_t index; // tensor + 1; 0: free
};

struct safetensors_text {
    struct safetensors_text *next;
    int64_t used, capacity;
    char bytes[];
};

/* Every format of the specification; those without an enum dtype are listed but cannot be read. */
static const struct format {
    const char *name;
    int bits;
    enum dtype dtype;
} formats[] = {
    {"F32", 32, DTYPE_F32},       {"F16", 16, DTYPE_F16},   {"BF16", 16, DTYPE_BF16},
    {"F64", 64, N_DTYPES},        {"I64", 64, N_DTYPES},    {"I32", 32, N_DTYPES},
    {"I16", 16, N_DTYPES},        {"I8", 8, N_DTYPES},      {"U64", 64, N_DTYPES},
    {"U32", 32, N_DTYPES},        {"U16", 16, N_DTYPES},    {"U8", 8, N_DTYPES},
    {"BOOL", 8, N_DTYPES},        {"C64", 64, N_DTYPES},    {"F8_E4M3", 8, N_DTYPES},
    {"F8_E5M2", 8, N_DTYPES},     {"F8_E8M0", 8, N_DTYPES}, {"F8_E4M3FNUZ", 8, N_DTYPES},
    {"F8_E5M2FNUZ", 8, N_DTYPES}, {"F6_E2M3", 6, N_DTYPES}, {"F6_E3M2", 6, N_DTYPES},
    {"F4", 4, N_DTYPES},
};
#define N_FORMATS ((int)(sizeof formats / sizeof *formats))

void safetensors_init(struct safetensors *st)
{
    *st = (struct safetensors){.seed = mix64((uint64_t)clock_ns() ^ (uint64_t)(uintptr_t)st)};
}

void safetensors_close(struct safetensors *st)
{
    for (int i = 0; i < st->n_files; i++)
        file_close(&st->files[i]);
    for (struct safetensors_text *t = st->text; t;) {
        struct safetensors_text *next = t->next;
        free(t);
        t = next;
    }
    free(st->files);
    free(st->tensors);
    free(st->formats);
    free(st->slots);
    *st = (struct safetensors){0};
}

const char *safetensors_format(const struct safetensors *st, const struct source_tensor *t)
{
    return formats[st->formats[t - st->tensors]].name;
}

enum err safetensors_read(const struct safetensors *st, const struct source_tensor *t,
                          int64_t offset, int64_t n_bytes, void *buf)
{
    CHECK(offset >= 0 && n_bytes >= 0 && offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    return file_read(&st->files[t->file], t->offset + offset, n_bytes, buf);
}

/* ---- memory and names ---- */

static enum err no_memory(void)
{
    return fail(ERR_FIT, "no memory for the list of tensors");
}

/* A copy of the name at a stable address; NULL: no memory. */
static const char *text_keep(struct safetensors *st, const char *str, int64_t n_str)
{
    struct safetensors_text *t = st->text;
    if (!t || t->capacity - t->used < n_str + 1) {
        int64_t capacity = max_i64(TEXT_BLOCK_BYTES, n_str + 1);
        t = malloc(sizeof *t + (size_t)capacity);
        if (!t)
            return NULL;
        *t = (struct safetensors_text){.next = st->text, .capacity = capacity};
        st->text = t;
    }
    char *copy = t->bytes + t->used;
    memcpy(copy, str, (size_t)n_str);
    copy[n_str] = 0;
    t->used += n_str + 1;
    return copy;
}

static struct safetensors_slot *slot_find(const struct safetensors *st, const char *name,
                                          uint64_t hash)
{
    uint64_t mask = (uint64_t)st->n_slots - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        struct safetensors_slot *s = &st->slots[i];
        if (s->index == 0 || (s->hash == (uint32_t)(hash >> 32) &&
                              strcmp(st->tensors[s->index - 1].name, name) == 0))
            return s;
    }
}

static uint64_t name_hash(const struct safetensors *st, const char *name)
{
    return hash_bytes(name, (int64_t)strlen(name), st->seed);
}

const struct source_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    if (st->n_slots == 0)
        return NULL;
    const struct safetensors_slot *s = slot_find(st, name, name_hash(st, name));
    return s->index ? &st->tensors[s->index - 1] : NULL;
}

/* Doubles the index when it is half full. */
static enum err slots_room(struct safetensors *st)
{
    if (2 * (st->n_tensors + 1) <= st->n_slots)
        return OK;
    int64_t n_slots = max_i64(1024, 2 * st->n_slots);
    struct safetensors_slot *slots = calloc((size_t)n_slots, sizeof *slots);
    if (!slots)
        return no_memory();
    free(st->slots);
    st->slots = slots;
    st->n_slots = n_slots;
    for (int64_t i = 0; i < st->n_tensors; i++) {
        uint64_t hash = name_hash(st, st->tensors[i].name);
        *slot_find(st, st->tensors[i].name, hash) =
            (struct safetensors_slot){(uint32_t)(hash >> 32), (int32_t)i + 1};
    }
    return OK;
}

static enum err tensors_room(struct safetensors *st)
{
    if (st->n_tensors < st->tensors_cap)
        return OK;
    int64_t cap = max_i64(256, 2 * st->tensors_cap);
    struct source_tensor *tensors = realloc(st->tensors, (size_t)cap * sizeof *tensors);
    if (!tensors)
        return no_memory();
    st->tensors = tensors;
    uint8_t *grown = realloc(st->formats, (size_t)cap);
    if (!grown)
        return no_memory();
    st->formats = grown;
    st->tensors_cap = cap;
    return OK;
}

/* Appends an empty tensor named by j's current key. */
static enum err tensor_add(struct safetensors *st, struct json *j)
{
    if (st->n_tensors == SAFETENSORS_TENSORS_MAX)
        return json_fail(j, "more than %d tensors", SAFETENSORS_TENSORS_MAX);
    if (j->n_str == 0 || (int64_t)strlen(j->str) != j->n_str)
        return json_fail(j, "bad tensor name \"%.200s\"", j->str);
    TRY(tensors_room(st));
    TRY(slots_room(st));
    uint64_t hash = name_hash(st, j->str);
    struct safetensors_slot *s = slot_find(st, j->str, hash);
    if (s->index) {
        int file = st->tensors[s->index - 1].file;
        if (file == st->n_files - 1)
            return json_fail(j, "duplicate key \"%.200s\"", j->str);
        return json_fail(j, "tensor %.200s is also in %.300s", j->str, st->files[file].path);
    }
    const char *name = text_keep(st, j->str, j->n_str);
    if (!name)
        return no_memory();
    st->tensors[st->n_tensors++] =
        (struct source_tensor){.name = name, .dtype = N_DTYPES, .file = st->n_files - 1};
    *s = (struct safetensors_slot){(uint32_t)(hash >> 32), (int32_t)st->n_tensors};
    return OK;
}

/* ---- one header entry ---- */

/* Members of an entry read so far; -1: missing. */
struct entry {
    int format;
    int rank;
    int64_t dims[RANK_MAX];
    int64_t begin, end;
};

static enum err dtype_read(struct json *j, const char *name, struct entry *e)
{
    if (json_next(j) == JSON_STR)
        for (int i = 0; i < N_FORMATS; i++)
            if (json_is(j, formats[i].name))
                e->format = i;
    if (j->err != OK)
        return j->err;
    if (e->format < 0)
        return json_fail(j, "tensor %.200s: unsupported dtype %.40s", name,
                         j->str ? j->str : json_kind_name(j->last));
    return OK;
}

static enum err shape_read(struct json *j, const char *name, struct entry *e)
{
    enum json_kind kind = json_next(j);
    e->rank = 0;
    if (kind == JSON_ARRAY_BEGIN) {
        while ((kind = json_next(j)) == JSON_INT && j->i64 >= 0) {
            if (e->rank == RANK_MAX)
                return json_fail(j, "tensor %.200s: bad dimension: more than %d", name, RANK_MAX);
            e->dims[e->rank++] = j->i64;
        }
    }
    if (kind == JSON_ERROR)
        return j->err;
    if (kind != JSON_ARRAY_END)
        return json_fail(j, "tensor %.200s: bad dimension", name);
    return OK;
}

static enum err offsets_read(struct json *j, const char *name, struct entry *e)
{
    int64_t value[2] = {0, 0};
    int n = 0;
    enum json_kind kind = json_next(j);
    if (kind == JSON_ARRAY_BEGIN)
        while ((kind = json_next(j)) == JSON_INT && j->i64 >= 0 && n < 2)
            value[n++] = j->i64;
    if (kind == JSON_ERROR)
        return j->err;
    if (kind != JSON_ARRAY_END || n != 2 || value[0] > value[1])
        return json_fail(j, "tensor %.200s: bad data_offsets", name);
    e->begin = value[0];
    e->end = value[1];
    return OK;
}

/* Bytes of the shape in its format; -1: beyond 64 bits, -2: not whole bytes. */
static int64_t entry_bytes(const struct entry *e)
{
    int64_t n_bits = formats[e->format].bits;
    for (int i = 0; i < e->rank; i++)
        if (__builtin_mul_overflow(n_bits, e->dims[i], &n_bits))
            return -1;
    return n_bits % 8 ? -2 : n_bits / 8;
}

/* Checks an entry against itself and against the size of the file's data. */
static enum err entry_check(struct json *j, const char *name, const struct entry *e,
                            int64_t data_at, int64_t data_bytes)
{
    if (e->format < 0)
        return json_fail(j, "tensor %.200s: unsupported dtype: missing", name);
    if (e->rank < 0)
        return json_fail(j, "tensor %.200s: bad dimension: shape is missing", name);
    if (e->begin < 0)
        return json_fail(j, "tensor %.200s: bad data_offsets: missing", name);
    int64_t n_bytes = entry_bytes(e);
    if (n_bytes == -1)
        return json_fail(j, "tensor %.200s: size overflows", name);
    if (n_bytes == -2)
        return json_fail(j, "tensor %.200s: unsupported dtype %s: not whole bytes", name,
                         formats[e->format].name);
    if (e->end - e->begin != n_bytes)
        return json_fail(j, "tensor %.200s: shape needs %lld bytes, offsets give %lld", name,
                         (long long)n_bytes, (long long)(e->end - e->begin));
    int64_t ends_at;
    if (__builtin_add_overflow(data_at, e->end, &ends_at))
        ends_at = INT64_MAX;
    if (e->end > data_bytes)
        return json_fail(j,
                         "tensor %.200s: bad data_offsets: ends at %lld, file has %lld: "
                         "incomplete download?",
                         name, (long long)ends_at, (long long)(data_at + data_bytes));
    return OK;
}

static void tensor_fill(struct safetensors *st, const struct entry *e, int64_t data_at)
{
    struct source_tensor *t = &st->tensors[st->n_tensors - 1];
    st->formats[st->n_tensors - 1] = (uint8_t)e->format;
    t->offset = data_at + e->begin;
    t->n_bytes = e->end - e->begin;
    int folded = e->rank > SOURCE_DIMS_MAX ? e->rank - SOURCE_DIMS_MAX : 0;
    t->n_dims = e->rank - folded;
    t->dtype = folded ? N_DTYPES : formats[e->format].dtype;
    for (int i = 1; i < t->n_dims; i++)
        t->dims[i] = e->dims[i + folded];
    t->dims[0] = 1;
    for (int i = 0; i <= folded; i++)
        t->dims[0] *= e->dims[i]; // in entry_bytes's order, which checked for overflow
}

/* Reads one tensor: {"dtype", "shape", "data_offsets"}; other members are skipped. */
static enum err entry_read(struct safetensors *st, struct json *j, struct json_keys *others,
                           int64_t data_at, int64_t data_bytes)
{
    const char *name = st->tensors[st->n_tensors - 1].name;
    struct entry e = {.format = -1, .rank = -1, .begin = -1};
    json_keys_clear(others);
    if (json_next(j) != JSON_OBJECT_BEGIN)
        return j->err != OK ? j->err : json_fail(j, "tensor %.200s: expected object", name);
    while (json_next(j) == JSON_KEY) {
        int is_dtype = json_is(j, "dtype"), is_shape = json_is(j, "shape");
        int is_offsets = json_is(j, "data_offsets");
        if ((is_dtype && e.format >= 0) || (is_shape && e.rank >= 0) ||
            (is_offsets && e.begin >= 0))
            return json_fail(j, "tensor %.200s: duplicate key \"%s\"", name, j->str);
        if (is_dtype) {
            TRY(dtype_read(j, name, &e));
        } else if (is_shape) {
            TRY(shape_read(j, name, &e));
        } else if (is_offsets) {
            TRY(offsets_read(j, name, &e));
        } else {
            TRY(json_keys_add(others, j));
            TRY(json_skip(j));
        }
    }
    if (j->err != OK)
        return j->err;
    TRY(entry_check(j, name, &e, data_at, data_bytes));
    tensor_fill(st, &e, data_at);
    return OK;
}

static enum err metadata_read(struct json *j, struct json_keys *keys)
{
    json_keys_clear(keys);
    if (json_next(j) != JSON_OBJECT_BEGIN)
        return j->err != OK ? j->err : json_fail(j, "__metadata__: expected object");
    while (json_next(j) == JSON_KEY) {
        TRY(json_keys_add(keys, j));
        if (json_next(j) != JSON_STR)
            return j->err != OK ? j->err : json_fail(j, "metadata values must be strings");
    }
    return j->err;
}

static enum err entries_read(struct safetensors *st, struct json *j, struct json_keys *keys,
                             int64_t data_at, int64_t data_bytes)
{
    int has_metadata = 0;
    TRY(json_expect(j, JSON_OBJECT_BEGIN));
    while (json_next(j) == JSON_KEY) {
        if (json_is(j, "__metadata__")) {
            if (has_metadata++)
                return json_fail(j, "duplicate key \"__metadata__\"");
            TRY(metadata_read(j, keys));
        } else {
            TRY(tensor_add(st, j));
            TRY(entry_read(st, j, keys, data_at, data_bytes));
        }
    }
    if (j->err != OK)
        return j->err;
    return json_expect(j, JSON_END);
}

/* ---- the tiling of the data ---- */

struct range {
    int64_t begin, end; // in the file
    const char *name;
};

static int range_order(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorted ranges: each must begin where the last ended. */
static enum err ranges_check(const struct range *ranges, int64_t n, const struct file *f,
                             int64_t data_at)
{
    int64_t at = data_at;
    for (int64_t i = 0; i < n; i++) {
        if (ranges[i].begin < at)
            return fail(ERR_INPUT, "%.512s: tensor %.200s overlaps tensor %.200s", f->path,
                        ranges[i].name, ranges[i - 1].name);
        if (ranges[i].begin > at)
            return fail(ERR_INPUT, "%.512s: %lld bytes not covered, before tensor %.200s", f->path,
                        (long long)(ranges[i].begin - at), ranges[i].name);
        at = ranges[i].end;
    }
    if (at != f->n_bytes)
        return fail(ERR_INPUT, "%.512s: %lld bytes not covered, after the last tensor", f->path,
                    (long long)(f->n_bytes - at));
    return OK;
}

/* Checks that the tensors from `first` on tile the last file's data, empty tensors aside. */
static enum err tiling_check(const struct safetensors *st, int64_t first, int64_t data_at)
{
    struct range *ranges = malloc((size_t)(st->n_tensors - first + 1) * sizeof *ranges);
    if (!ranges)
        return no_memory();
    int64_t n = 0;
    int sorted = 1; // as most writers do
    for (int64_t i = first; i < st->n_tensors; i++) {
        const struct source_tensor *t = &st->tensors[i];
        if (t->n_bytes == 0)
            continue;
        ranges[n] = (struct range){t->offset, t->offset + t->n_bytes, t->name};
        sorted &= n == 0 || ranges[n - 1].begin <= ranges[n].begin;
        n++;
    }
    if (!sorted)
        qsort(ranges, (size_t)n, sizeof *ranges, range_order);
    enum err e = ranges_check(ranges, n, &st->files[st->n_files - 1], data_at);
    free(ranges);
    return e;
}

/* ---- one file ---- */

/* The kind of a file that is not safetensors, by its first bytes; NULL: unknown. */
static const char *other_kind(const char *head, int64_t n)
{
    static const struct {
        const char *magic;
        int n;
        const char *kind;
    } kinds[] = {
        {"version https://git-lfs", 23, "a Git-LFS pointer, not safetensors (run git lfs pull)"},
        {"PK\x03\x04", 4, "a zip archive (pickle), not safetensors"},
        {"\x80\x02", 2, "a pickle, not safetensors"},
        {"\x80\x03", 2, "a pickle, not safetensors"},
        {"\x80\x04", 2, "a pickle, not safetensors"},
        {"\x80\x05", 2, "a pickle, not safetensors"},
        {"GGUF", 4, "a GGUF file, not safetensors"},
        {"<", 1, "HTML or XML, not safetensors (a failed download?)"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].n && memcmp(head, kinds[i].magic, (size_t)kinds[i].n) == 0)
            return kinds[i].kind;
    return NULL;
}

/* The length of the header, checked against the file's size. */
static enum err header_length(const struct file *f, int64_t *n_bytes)
{
    unsigned char head[64] = {0};
    int64_t n_head = min_i64(f->n_bytes, (int64_t)sizeof head);
    TRY(file_read(f, 0, n_head, head));
    const char *kind = other_kind((const char *)head, n_head);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    int in_range = n_head >= 8 && n >= 1 && n <= SAFETENSORS_HEADER_BYTES_MAX;
    // A real header's length may happen to look like another kind's magic.
    if (kind &&
        (!in_range || (int64_t)n > f->n_bytes - 8 || memchr("{ \t\r\n", head[8], 5) == NULL))
        return fail(ERR_INPUT, "%.512s: this is %s", f->path, kind);
    if (n_head < 8)
        return fail(ERR_INPUT, "%.512s: header length needs 8 bytes, file has %lld", f->path,
                    (long long)n_head);
    if (!in_range)
        return fail(ERR_INPUT, "%.512s: header length %llu out of range (max %d)", f->path,
                    (unsigned long long)n, SAFETENSORS_HEADER_BYTES_MAX);
    if ((int64_t)n > f->n_bytes - 8)
        return fail(ERR_INPUT, "%.512s: header needs %llu bytes, %lld remain; truncated download?",
                    f->path, (unsigned long long)n, (long long)(f->n_bytes - 8));
    *n_bytes = (int64_t)n;
    return OK;
}

static enum err header_parse(struct safetensors *st, const char *header, int64_t n_bytes)
{
    const struct file *f = &st->files[st->n_files - 1];
    int64_t first = st->n_tensors, data_at = 8 + n_bytes, at = 0;
    while (at < n_bytes && header[at] && strchr(" \t\r\n", header[at]))
        at++;
    if (at == n_bytes || header[at] != '{')
        return fail(ERR_INPUT, "%.512s: header is not UTF-8 JSON (byte %lld)", f->path,
                    (long long)at);
    struct json j;
    struct json_keys keys;
    char where[560]; // bytes count from the start of the header
    snprintf(where, sizeof where, "%.512s: header", f->path);
    json_init(&j, header, n_bytes, where, HEADER_DEPTH_MAX);
    json_keys_init(&keys);
    enum err e = entries_read(st, &j, &keys, data_at, f->n_bytes - data_at);
    json_keys_close(&keys);
    json_close(&j);
    TRY(e);
    return tiling_check(st, first, data_at);
}

enum err safetensors_add(struct safetensors *st, const char *path)
{
    if (st->n_files == st->files_cap) {
        int cap = st->files_cap ? 2 * st->files_cap : 8;
        struct file *files = realloc(st->files, (size_t)cap * sizeof *files);
        if (!files)
            return no_memory();
        st->files = files;
        st->files_cap = cap;
    }
    struct file *f = &st->files[st->n_files];
    TRY(file_open(f, path));
    st->n_files++;
    int64_t n_bytes = 0;
    TRY(header_length(f, &n_bytes));
    char *header = malloc((size_t)n_bytes);
    if (!header)
        return fail(ERR_FIT, "%.512s: no memory for a header of %lld bytes", f->path,
                    (long long)n_bytes);
    enum err e = file_read(f, 8, n_bytes, header);
    if (e == OK)
        e = header_parse(st, header, n_bytes);
    free(header);
    return e;
}
