/* engine/model/containers/gguf_header.c - see gguf_header.h.
 *
 * Owns: parsing. Every length is compared with the rest of the file before it is used; the buffer
 * grows with the parsed part, at most to twice its size, so a false header costs no memory. Note: a
 * string follows its 8-byte length and is moved down over the length once that is read, which
 * leaves room for a NUL: names need no copies. Strings inside arrays are not moved. */
#include "engine/model/containers/gguf_header.h"
#include "engine/model/containers/gguf_nvfp4.h"
#include "engine/data/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_BYTES_MIN    14 // length, one byte of name, type, one byte of value
#define TENSOR_BYTES_MIN 33 // length, one byte of name, n_dims, one dimension, type, offset
#define FILL_BYTES_MIN   (64 << 10)

static const struct {
    const char *name;
    int bytes; // least bytes of one value in a file
} types[N_GGUF_TYPES] = {
    [GGUF_U8] = {"u8", 1},   [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2}, [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},   [GGUF_STR] = {"str", 8},
    [GGUF_U64] = {"u64", 8}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* Names of GGUF tensor types that sluice does not decode, for the message. */
static const char *const other_tensor_types[] = {
    [9] = "q8_1", [15] = "q8_k", [24] = "i8",  [25] = "i16",
    [26] = "i32", [27] = "i64",  [28] = "f64", [41] = "q1_0",
};

/* ERR_INPUT "FILE: PLACE: ...". */
static enum err bad(const struct gguf_header *h, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static enum err bad(const struct gguf_header *h, const char *fmt, ...)
{
    char what[400], where[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (h->place_index < 0)
        snprintf(where, sizeof where, "%s", h->place);
    else if (h->place_name_at < 0)
        snprintf(where, sizeof where, "%s #%lld", h->place, (long long)h->place_index);
    else
        snprintf(where, sizeof where, "%s \"%.80s\"", h->place,
                 (const char *)h->bytes + h->place_name_at);
    return fail(ERR_INPUT, "%s: %s: %s", h->label, where, what);
}

static void place_set(struct gguf_header *h, const char *place, int64_t index)
{
    h->place = place;
    h->place_index = index;
    h->place_name_at = -1;
}

enum err gguf_header_read(const struct gguf_header *h, int64_t offset, int64_t n_bytes, void *buf)
{
    uint8_t *to = buf;
    while (n_bytes > 0) {
        const ssize_t n = pread(h->fd, to, (size_t)min_i64(n_bytes, 1 << 30), offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(ERR_IO, "%s: read at %lld: %s", h->label, (long long)offset,
                        strerror(errno));
        if (n == 0)
            return fail(ERR_CORRUPT,
                        "%s: read at %lld: changed while reading: the file had %lld bytes",
                        h->label, (long long)offset, (long long)h->n_file_bytes);
        to += n;
        offset += n;
        n_bytes -= n;
    }
    return OK;
}

static int64_t remaining(const struct gguf_header *h)
{
    return h->n_file_bytes - h->at;
}

/* Makes the next n bytes available at h->bytes + h->at; `field` names them. */
static enum err want(struct gguf_header *h, int64_t n, const char *field)
{
    if (n > remaining(h))
        return bad(h, "truncated in %s: %lld bytes needed, %lld remain (incomplete download?)",
                   field, (long long)n, (long long)remaining(h));
    if (n > GGUF_HEADER_BYTES_MAX - h->at)
        return bad(h, "%s: the header is larger than %lld MiB", field, GGUF_HEADER_BYTES_MAX >> 20);
    if (h->at + n <= h->n_bytes)
        return OK;
    int64_t target = max_i64(h->at + n, max_i64(2 * h->n_bytes, FILL_BYTES_MIN));
    target = min_i64(target, min_i64(h->n_file_bytes, GGUF_HEADER_BYTES_MAX));
    uint8_t *bytes = realloc(h->bytes, (size_t)target);
    if (!bytes)
        return fail(ERR_FIT, "%s: header: no memory for %lld bytes", h->label, (long long)target);
    h->bytes = bytes;
    TRY(gguf_header_read(h, h->n_bytes, target - h->n_bytes, bytes + h->n_bytes));
    h->n_bytes = target;
    return OK;
}

static enum err take_u32(struct gguf_header *h, const char *field, uint32_t *out)
{
    TRY(want(h, 4, field));
    memcpy(out, h->bytes + h->at, 4);
    h->at += 4;
    return OK;
}

static enum err take_u64(struct gguf_header *h, const char *field, uint64_t *out)
{
    TRY(want(h, 8, field));
    memcpy(out, h->bytes + h->at, 8);
    h->at += 8;
    return OK;
}

/* Skips a string; *text_at: offset of its text. */
static enum err take_str_in_place(struct gguf_header *h, const char *field, int64_t *text_at,
                                  int64_t *n_bytes)
{
    uint64_t n;
    TRY(take_u64(h, field, &n));
    if (n > (uint64_t)remaining(h) || n > GGUF_STRING_BYTES_MAX)
        return bad(h, "%s: string of %llu bytes, %lld remain (max %lld MiB)%s", field,
                   (unsigned long long)n, (long long)remaining(h), GGUF_STRING_BYTES_MAX >> 20,
                   n > (uint64_t)remaining(h) ? " (file truncated?)" : "");
    TRY(want(h, (int64_t)n, field));
    *text_at = h->at;
    *n_bytes = (int64_t)n;
    h->at += *n_bytes;
    return OK;
}

/* The same, and moves the text over its length and appends NUL. */
static enum err take_str(struct gguf_header *h, const char *field, int64_t *text_at,
                         int64_t *n_bytes)
{
    TRY(take_str_in_place(h, field, text_at, n_bytes));
    *text_at -= 8;
    memmove(h->bytes + *text_at, h->bytes + *text_at + 8, (size_t)*n_bytes);
    h->bytes[*text_at + *n_bytes] = 0;
    return OK;
}

static enum err name_check(const struct gguf_header *h, const char *what, int64_t at, int64_t n,
                           int64_t n_max)
{
    if (n == 0)
        return bad(h, "bad %s: it is empty", what);
    if (n > n_max)
        return bad(h, "bad %s: %lld bytes (max %lld)", what, (long long)n, (long long)n_max);
    const uint8_t *nul = memchr(h->bytes + at, 0, (size_t)n);
    if (nul)
        return bad(h, "bad %s: byte %lld is NUL", what, (long long)(nul - (h->bytes + at)));
    return OK;
}

static enum err array_read(struct gguf_header *h, struct gguf_value *v)
{
    uint32_t element;
    uint64_t n;
    int64_t text_at, n_bytes;
    TRY(take_u32(h, "array element type", &element));
    if (element >= N_GGUF_TYPES || element == GGUF_ARRAY)
        return bad(h, "bad value type %d of array elements%s", (int)element,
                   element == GGUF_ARRAY ? " (arrays of arrays are not supported)" : "");
    TRY(take_u64(h, "array length", &n));
    const int size = types[element].bytes;
    if (n > (uint64_t)(remaining(h) / size))
        return bad(h, "array of %llu %s, %lld bytes remain (file truncated?)",
                   (unsigned long long)n, types[element].name, (long long)remaining(h));
    v->element = (enum gguf_type)element;
    v->n = (int64_t)n;
    v->at = h->at;
    if (element == GGUF_STR) {
        for (int64_t i = 0; i < v->n; i++)
            TRY(take_str_in_place(h, "array element", &text_at, &n_bytes));
        return OK;
    }
    TRY(want(h, v->n * size, "array")); // no overflow: n * size <= remaining
    h->at += v->n * size;
    return OK;
}

static enum err alignment_check(struct gguf_header *h, const struct gguf_value *v)
{
    uint32_t alignment = 0;
    if (v->type == GGUF_U32)
        memcpy(&alignment, h->bytes + v->at, 4);
    char type[32];
    if (v->type != GGUF_U32)
        return bad(h, "alignment must be a power of two <= 1 MiB, u32, but is %s",
                   gguf_type_text(v, type));
    if (alignment == 0 || alignment > GGUF_ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return bad(h, "alignment must be a power of two <= 1 MiB, u32, but is %u", alignment);
    h->alignment = alignment;
    return OK;
}

static enum err value_read(struct gguf_header *h, struct gguf_value *v)
{
    uint32_t type;
    int64_t n_key_bytes;
    TRY(take_str(h, "name", &v->key_at, &n_key_bytes));
    TRY(name_check(h, "key", v->key_at, n_key_bytes, GGUF_KEY_BYTES_MAX));
    h->place_name_at = v->key_at;
    TRY(take_u32(h, "value type", &type));
    if (type >= N_GGUF_TYPES)
        return bad(h, "bad value type %d", (int)type);
    v->type = (enum gguf_type)type;
    if (type == GGUF_STR)
        return take_str(h, "value", &v->at, &v->n);
    if (type == GGUF_ARRAY)
        return array_read(h, v);
    TRY(want(h, types[type].bytes, "value"));
    v->at = h->at;
    h->at += types[type].bytes;
    return OK;
}

static enum err tensor_type_read(struct gguf_header *h, struct source_tensor *t)
{
    uint32_t id;
    TRY(take_u32(h, "type", &id));
    t->dtype = id == GGUF_NVFP4_ID ? gguf_nvfp4_dtype(t->dims[t->n_dims - 1])
               : id <= INT32_MAX   ? dtype_by_ggml_id((int)id)
                                   : N_DTYPES;
    if (t->dtype != N_DTYPES)
        return OK;
    const uint32_t n_others = sizeof other_tensor_types / sizeof *other_tensor_types;
    if (id < n_others && other_tensor_types[id])
        return bad(h, "tensor type %s is not supported (requantise to q4_k, q5_k, q6_k or q8_0)",
                   other_tensor_types[id]);
    return bad(h, "unknown tensor type %d", (int)id);
}

/* Dimensions: the file orders them fast to slow, sluice slow to fast. */
static enum err dims_read(struct gguf_header *h, struct source_tensor *t)
{
    uint32_t n_dims;
    uint64_t dim;
    int64_t n_numbers = 1;
    TRY(take_u32(h, "number of dimensions", &n_dims));
    if (n_dims < 1 || n_dims > SOURCE_DIMS_MAX)
        return bad(h, "bad dims: %u of them (1 to %d)", n_dims, SOURCE_DIMS_MAX);
    t->n_dims = (int)n_dims;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        TRY(take_u64(h, "dimensions", &dim));
        if (dim == 0 || dim > INT64_MAX)
            return bad(h, "bad dims: dimension %d is %lld", t->n_dims - 1 - i, (long long)dim);
        t->dims[i] = (int64_t)dim;
        if (__builtin_mul_overflow(n_numbers, t->dims[i], &n_numbers))
            return bad(h, "size overflows: more than 2^63 numbers");
    }
    return OK;
}

static enum err tensor_read(struct gguf_header *h, struct source_tensor *t, int64_t *name_at)
{
    int64_t n_name_bytes;
    uint64_t offset;
    TRY(take_str(h, "name", name_at, &n_name_bytes));
    TRY(name_check(h, "name", *name_at, n_name_bytes, GGUF_NAME_BYTES_MAX));
    h->place_name_at = *name_at;
    TRY(dims_read(h, t));
    TRY(tensor_type_read(h, t));
    TRY(take_u64(h, "offset", &offset));
    const int64_t k = t->dims[t->n_dims - 1], row_bytes = dtype_row_bytes(t->dtype, k);
    const struct dtype_info *info = dtype_info(t->dtype);
    if (k % info->block != 0)
        return bad(h, "row of %lld numbers is not a multiple of the block of %s, %d", (long long)k,
                   info->name, info->block);
    t->n_bytes = row_bytes;
    for (int i = 0; i < t->n_dims - 1; i++)
        if (t->n_bytes < 0 || __builtin_mul_overflow(t->n_bytes, t->dims[i], &t->n_bytes))
            t->n_bytes = -1;
    if (t->n_bytes < 0)
        return bad(h, "size overflows: more than 2^63 bytes");
    if (offset > (uint64_t)h->n_file_bytes)
        return bad(h, "offset %llu lies beyond the %lld bytes of the file (incomplete download?)",
                   (unsigned long long)offset, (long long)h->n_file_bytes);
    t->offset = (int64_t)offset;
    return OK;
}

/* Makes offsets relative to the file instead of the data section; tensors must be contiguous. */
static enum err tensors_place(struct gguf_header *h)
{
    int64_t expected = 0;
    for (int64_t i = 0; i < h->n_tensors; i++) {
        struct source_tensor *t = &h->tensors[i];
        const int64_t n_bytes = gguf_file_bytes(t, t->n_bytes);
        int64_t end;
        place_set(h, "tensor", i);
        h->place_name_at = h->name_at[i];
        if (t->offset % h->alignment != 0)
            return bad(h, "offset %lld is not a multiple of the alignment %lld",
                       (long long)t->offset, (long long)h->alignment);
        if (t->offset != expected)
            return bad(h, "offset %lld, expected %lld (tensors must not overlap or leave gaps)",
                       (long long)t->offset, (long long)expected);
        t->offset += h->data_at; // both <= the file's size
        if (__builtin_add_overflow(t->offset, n_bytes, &end))
            return bad(h, "data section overflows: offset %lld and %lld bytes",
                       (long long)t->offset, (long long)n_bytes);
        if (end > h->n_file_bytes)
            return bad(h, "offset %lld: ends at %lld, the file has %lld bytes: incomplete download",
                       (long long)t->offset, (long long)end, (long long)h->n_file_bytes);
        expected = round_up(end - h->data_at, h->alignment);
    }
    return OK;
}

/* Names what a file that is not GGUF may be, from its first n >= 4 bytes. */
static enum err not_gguf(const struct gguf_header *h, const uint8_t *p, int64_t n)
{
    static const struct {
        const char *start, *what;
        int n, at;
    } kinds[] = {
        {"version https://git-lfs", "a Git-LFS pointer, not GGUF (run `git lfs pull`)", 23, 0},
        {"PK\3\4", "a zip archive (a PyTorch checkpoint?), not GGUF", 4, 0},
        {"\x80\2", "a pickle file, not GGUF", 2, 0},
        {"\x1f\x8b", "gzip data, not GGUF (unpack it)", 2, 0},
        {"\x28\xb5\x2f\xfd", "zstd data, not GGUF (unpack it)", 4, 0},
        {"{\"", "a safetensors file, not GGUF (give its directory)", 2, 8},
        {"GGML", "an old ggml file, not GGUF (convert it)", 4, 0},
        {"GGJT", "an old ggml file, not GGUF (convert it)", 4, 0},
        {"lmgg", "an old ggml file, not GGUF (convert it)", 4, 0},
        {"tjgg", "an old ggml file, not GGUF (convert it)", 4, 0},
        {"fmgg", "an old ggml file, not GGUF (convert it)", 4, 0},
        {"FUGG", "a byte-swapped GGUF file (convert it)", 4, 0},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].at + kinds[i].n &&
            memcmp(p + kinds[i].at, kinds[i].start, (size_t)kinds[i].n) == 0)
            return bad(h, "this is %s", kinds[i].what);
    int64_t first = 0;
    while (first < n - 1 && isspace(p[first]))
        first++;
    if (p[first] == '<')
        return bad(h, "this is an HTML or XML page, not GGUF (a failed download?)");
    return bad(h, "not GGUF: the file starts with bytes %02x %02x %02x %02x", p[0], p[1], p[2],
               p[3]);
}

static enum err count_take(struct gguf_header *h, const char *what, int64_t item_bytes_min,
                           int64_t n_max, int64_t *out)
{
    uint64_t n;
    char field[32];
    snprintf(field, sizeof field, "number of %s", what);
    TRY(take_u64(h, field, &n));
    if (n > (uint64_t)(remaining(h) / item_bytes_min))
        return bad(h, "claims %llu %s, the file can hold at most %lld (file truncated?)",
                   (unsigned long long)n, what, (long long)(remaining(h) / item_bytes_min));
    if (n > (uint64_t)n_max)
        return bad(h, "claims %llu %s, at most %lld are supported", (unsigned long long)n, what,
                   (long long)n_max);
    *out = (int64_t)n;
    return OK;
}

static enum err start_read(struct gguf_header *h)
{
    uint32_t version;
    place_set(h, "header", -1);
    TRY(want(h, 4, "magic"));
    if (memcmp(h->bytes, "GGUF", 4) != 0)
        return not_gguf(h, h->bytes, min_i64(h->n_bytes, 4096));
    h->at += 4;
    TRY(take_u32(h, "version", &version));
    if (version != 2 && version != 3) {
        const uint32_t swapped = __builtin_bswap32(version);
        if (swapped >= 1 && swapped <= 3)
            return bad(h, "big-endian file (only little-endian GGUF is supported)");
        return bad(h, "version %u unsupported (supported: 2 and 3)", version);
    }
    int64_t n_tensors, n_keys;
    TRY(count_take(h, "tensors", TENSOR_BYTES_MIN, GGUF_TENSORS_MAX, &n_tensors));
    TRY(count_take(h, "keys", KEY_BYTES_MIN, GGUF_KEYS_MAX, &n_keys));
    h->values = calloc((size_t)n_keys + 1, sizeof *h->values);
    h->tensors = calloc((size_t)n_tensors + 1, sizeof *h->tensors);
    h->name_at = calloc((size_t)n_tensors + 1, sizeof *h->name_at);
    if (!h->values || !h->tensors || !h->name_at)
        return fail(ERR_FIT, "%s: header: no memory for %lld keys and %lld tensors", h->label,
                    (long long)n_keys, (long long)n_tensors);
    h->n_keys = n_keys;
    h->n_tensors = n_tensors;
    return OK;
}

/* Offsets become pointers once the buffer no longer moves. */
static enum err names_settle(struct gguf_header *h)
{
    uint8_t *bytes = realloc(h->bytes, (size_t)h->at);
    if (bytes) {
        h->bytes = bytes;
        h->n_bytes = h->at;
    }
    for (int64_t i = 0; i < h->n_keys; i++)
        h->values[i].key = (const char *)h->bytes + h->values[i].key_at;
    for (int64_t i = 0; i < h->n_tensors; i++)
        h->tensors[i].name = (const char *)h->bytes + h->name_at[i];
    TRY(names_open(&h->keys, h->values, sizeof *h->values, h->n_keys, h->label));
    for (int64_t i = 0; i < h->n_keys; i++)
        if (names_add(&h->keys, i) >= 0) {
            place_set(h, "key", i);
            h->place_name_at = h->values[i].key_at;
            return bad(h, "duplicate key");
        }
    return OK;
}

static enum err header_parse(struct gguf_header *h)
{
    TRY(start_read(h));
    for (int64_t i = 0; i < h->n_keys; i++) {
        struct gguf_value *v = &h->values[i];
        place_set(h, "key", i);
        TRY(value_read(h, v));
        if (strcmp((const char *)h->bytes + v->key_at, "general.alignment") == 0)
            TRY(alignment_check(h, v));
    }
    for (int64_t i = 0; i < h->n_tensors; i++) {
        place_set(h, "tensor", i);
        TRY(tensor_read(h, &h->tensors[i], &h->name_at[i]));
    }
    h->data_at = round_up(h->at, h->alignment);
    TRY(tensors_place(h));
    TRY(names_settle(h));
    free(h->name_at);
    h->name_at = NULL;
    return OK;
}

static enum err header_file_open(struct gguf_header *h)
{
    struct stat st;
    // O_NONBLOCK: opening a FIFO must not wait for a writer
    h->fd = open(h->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (h->fd < 0 || fstat(h->fd, &st) != 0)
        return fail(file_open_code(), "%s: open: %s", h->label, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(ERR_INPUT, "%s: open: not a regular file%s", h->label,
                    S_ISDIR(st.st_mode)    ? " (a directory)"
                    : S_ISFIFO(st.st_mode) ? " (a FIFO)"
                                           : "");
    h->n_file_bytes = st.st_size;
    return OK;
}

enum err gguf_header_open(struct gguf_header *h, const char *path)
{
    *h = (struct gguf_header){.fd = -1, .alignment = 32};
    const size_t n = strlen(path), room = sizeof h->label - 4;
    snprintf(h->label, sizeof h->label, "%s%s", n > room ? "..." : "",
             n > room ? path + n - room : path);
    h->path = strdup(path);
    if (!h->path)
        return fail(ERR_FIT, "%s: open: no memory", h->label);
    TRY(header_file_open(h));
    return header_parse(h);
}

void gguf_header_close(struct gguf_header *h)
{
    names_close(&h->keys);
    free(h->name_at);
    free(h->tensors);
    free(h->values);
    free(h->bytes);
    free(h->path);
    if (h->fd >= 0)
        close(h->fd);
    *h = (struct gguf_header){.fd = -1};
}

const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key)
{
    const int64_t i = names_find(&h->keys, key);
    return i < 0 ? NULL : &h->values[i];
}

int gguf_type_bytes(enum gguf_type type)
{
    return types[type].bytes;
}

const char *gguf_type_text(const struct gguf_value *v, char buf[32])
{
    if (v->type != GGUF_ARRAY)
        return types[v->type].name;
    snprintf(buf, 32, "array of %s", types[v->element].name);
    return buf;
}
