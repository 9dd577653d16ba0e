/* tests/family_fake.h - a model file that is two lists in memory: the functions of
 * engine/model/containers/source.h, and how a test fills the lists and reads the model, for
 * tests/family_*test.c, each of which includes this once. */
#ifndef TESTS_FAMILY_FAKE_H
#define TESTS_FAMILY_FAKE_H

#define FAKE_MAX 200

/* A source that is two lists; the functions of source.h below read them. */
struct fake {
    struct fake_value {
        char key[80];
        enum { FAKE_INT, FAKE_FLOAT, FAKE_BOOL, FAKE_STR, FAKE_NULL } kind;
        double number;
        const char *str;
    } values[FAKE_MAX];
    int n_values;
    struct source_tensor tensors[FAKE_MAX];
    char names[FAKE_MAX][160];
    int n_tensors;
    const float *rope_freqs; // bytes of rope_freqs.weight
    const float *numbers;    // of the tensors that are one number, in their order
    const char *types[8];    // layer_types, mlp_layer_types
    int n_types;
    int64_t ints[8];
    int n_ints;
    const char *ints_key; // NULL: "mlp_only_layers"
    int64_t more_ints[8]; // of another key
    int n_more_ints;
    const char *more_key;
    double floats[8]; // of floats_key
    int n_floats;
    const char *floats_key;
    const char *class_name; // architectures
};

static struct fake fake;

const char *source_key(const struct source *s, const char *key, char *buf, int64_t buf_bytes)
{
    if (!s->section)
        return key;
    snprintf(buf, (size_t)buf_bytes, "%s.%s", s->section, key);
    return buf;
}

static const struct fake_value *value_find(const struct source *s, const char *plain, int kind,
                                           int *found, enum err *e)
{
    char full[SOURCE_KEY_BYTES];
    const char *key = source_key(s, plain, full, sizeof full);
    *e = OK;
    *found = 0;
    for (int i = 0; i < fake.n_values; i++) {
        const struct fake_value *v = &fake.values[i];
        if (strcmp(v->key, key) != 0 || v->kind == FAKE_NULL)
            continue;
        *found = 1;
        if ((int)v->kind == kind || (kind == FAKE_FLOAT && v->kind == FAKE_INT))
            return v;
        *e = fail(ERR_INPUT, "fake: %s: wrong type", key);
    }
    return NULL;
}

enum err source_int(const struct source *s, const char *key, int64_t min, int64_t max, int64_t *out,
                    int *found)
{
    enum err e;
    const struct fake_value *v = value_find(s, key, FAKE_INT, found, &e);
    if (v && (v->number < (double)min || v->number > (double)max))
        return fail(ERR_INPUT, "fake: %s: out of range", key);
    if (v)
        *out = (int64_t)v->number;
    return e;
}

enum err source_float(const struct source *s, const char *key, double *out, int *found)
{
    enum err e;
    const struct fake_value *v = value_find(s, key, FAKE_FLOAT, found, &e);
    if (v)
        *out = v->number;
    return e;
}

enum err source_bool(const struct source *s, const char *key, int *out, int *found)
{
    enum err e;
    const struct fake_value *v = value_find(s, key, FAKE_BOOL, found, &e);
    if (v)
        *out = (int)v->number;
    return e;
}

enum err source_str(const struct source *s, const char *key, const char **out, int64_t *n_bytes,
                    int *found)
{
    enum err e;
    const struct fake_value *v = value_find(s, key, FAKE_STR, found, &e);
    if (v) {
        *out = v->str;
        *n_bytes = (int64_t)strlen(v->str);
    }
    return e;
}

enum err source_str_list(const struct source *s, const char *key, const char **out,
                         int64_t capacity, int64_t *n, int *found)
{
    (void)s;
    *n = 0;
    if (strcmp(key, "architectures") == 0 && fake.class_name) {
        out[0] = fake.class_name;
        *n = 1;
    }
    for (int i = 0; strstr(key, "layer_types") && i < fake.n_types && i < capacity; i++) {
        out[i] = fake.types[i];
        *n = i + 1;
    }
    *found = *n > 0;
    return OK;
}

enum err source_int_list(const struct source *s, const char *key, int64_t min, int64_t max,
                         int64_t *out, int64_t capacity, int64_t *n, int *found)
{
    const int more = fake.more_key && strcmp(key, fake.more_key) == 0;
    const int64_t *ints = more ? fake.more_ints : fake.ints;
    const int n_ints = more ? fake.n_more_ints : fake.n_ints;
    *n = *found = 0;
    if (n_ints == 0 ||
        (!more && strcmp(key, fake.ints_key ? fake.ints_key : "mlp_only_layers") != 0)) {
        const enum err e = source_int(s, key, min, max, out, found); // one is a list, too
        *n = *found;
        return e;
    }
    for (int i = 0; i < n_ints; i++) {
        if (i == capacity || ints[i] < min || ints[i] > max)
            return fail(ERR_INPUT, "fake: %s: out of range", key);
        out[i] = ints[i];
    }
    *n = n_ints;
    *found = 1;
    return OK;
}

enum err source_float_list(const struct source *s, const char *key, double *out, int64_t capacity,
                           int64_t *n, int *found)
{
    (void)s, (void)capacity;
    *found = fake.floats_key && strcmp(fake.floats_key, key) == 0;
    *n = *found ? fake.n_floats : 0;
    memcpy(out, fake.floats, (size_t)*n * sizeof *out);
    return OK;
}

int source_null(const struct source *s, const char *key)
{
    char full[SOURCE_KEY_BYTES];
    for (int i = 0; i < fake.n_values; i++)
        if (strcmp(fake.values[i].key, source_key(s, key, full, sizeof full)) == 0)
            return fake.values[i].kind == FAKE_NULL;
    return 0;
}

enum err source_check_ends(const struct source *s, int64_t vocab)
{
    (void)s, (void)vocab;
    return OK;
}

void source_weigh(const struct source *s, const char *key, double *out, int *found)
{
    char full[SOURCE_KEY_BYTES];
    *found = fake.n_ints > 0 && fake.ints_key && strcmp(fake.ints_key, key) == 0;
    if (*found)
        *out = NAN;
    for (int i = 0; i < fake.n_values; i++)
        if (strcmp(fake.values[i].key, source_key(s, key, full, sizeof full)) == 0) {
            int number = fake.values[i].kind != FAKE_STR;
            *out = number ? fake.values[i].number : NAN;
            *found = 1;
        }
}

int source_is_part(const struct source *s, const struct source_tensor *t)
{
    (void)s, (void)t;
    return 0;
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    (void)s;
    for (int i = 0; i < fake.n_tensors; i++)
        if (strcmp(fake.names[i], name) == 0)
            return &fake.tensors[i];
    return NULL;
}

static int is_number(const struct source_tensor *t)
{
    return strstr(t->name, ".act_fn.") || strstr(t->name, ".layer_scalar") ||
           strstr(t->name, ".layer_output_scale.");
}

enum err source_read(const struct source *s, const struct source_tensor *t, int64_t offset,
                     int64_t n_bytes, void *buf)
{
    (void)s;
    if (t->dtype == N_DTYPES)
        return fail(ERR_INPUT, "fake: tensor %s: format not supported", t->name);
    if (is_number(t)) {
        int at = 0;
        for (int i = 0; &fake.tensors[i] != t; i++)
            at += is_number(&fake.tensors[i]);
        memcpy(buf, fake.numbers + at, (size_t)n_bytes);
        return OK;
    }
    assert_string_equal(t->name, "rope_freqs.weight");
    assert_true(offset == 0 && n_bytes <= t->n_bytes);
    memcpy(buf, fake.rope_freqs, (size_t)n_bytes);
    return OK;
}

/* ---- what tests make of it ---- */

static struct source source;
static struct family_model model;

__attribute__((unused)) static struct fake_value *value(const char *key)
{
    for (int i = 0; i < fake.n_values; i++)
        if (strcmp(fake.values[i].key, key) == 0)
            return &fake.values[i];
    return NULL;
}

/* Sets or replaces a value. */
__attribute__((unused)) static void set(const char *key, int kind, double number, const char *str)
{
    struct fake_value *v = value(key);
    if (!v)
        v = &fake.values[fake.n_values++];
    assert_true(fake.n_values < FAKE_MAX);
    snprintf(v->key, sizeof v->key, "%s", key);
    v->kind = (unsigned)kind;
    v->number = number;
    v->str = str;
}

__attribute__((unused)) static void set_int(const char *key, double number)
{
    set(key, FAKE_INT, number, NULL);
}

__attribute__((unused)) static void set_float(const char *key, double number)
{
    set(key, FAKE_FLOAT, number, NULL);
}

__attribute__((unused)) static void set_flag(const char *key, int flag)
{
    set(key, FAKE_BOOL, flag, NULL);
}

__attribute__((unused)) static void set_str(const char *key, const char *str)
{
    set(key, FAKE_STR, 0, str);
}

__attribute__((unused)) static void set_null(const char *key)
{
    set(key, FAKE_NULL, 0, NULL);
}

__attribute__((unused)) static void unset(const char *key)
{
    value(key)->key[0] = 0;
}

__attribute__((unused)) static struct source_tensor *add(const char *name, int n_dims, int64_t n,
                                                         int64_t k)
{
    int i = fake.n_tensors++;
    assert_true(i < FAKE_MAX);
    snprintf(fake.names[i], sizeof fake.names[i], "%s", name);
    fake.tensors[i] = (struct source_tensor){
        .name = fake.names[i], .dtype = DTYPE_BF16, .n_dims = n_dims, .dims = {n, k}};
    fake.tensors[i].n_bytes = 2 * n * (n_dims == 2 ? k : 1);
    return &fake.tensors[i];
}

__attribute__((unused)) static struct source_tensor *tensor(const char *name)
{
    struct source_tensor *t = (struct source_tensor *)source_find(&source, name);
    assert_non_null(t);
    return t;
}

__attribute__((unused)) static void drop(const char *name)
{
    fake.names[tensor(name) - fake.tensors][0] = 0;
}

__attribute__((unused)) static void expect_good(void)
{
    enum err e = family_read(&model, &source);
    if (e != OK)
        print_error("%s\n", err_text());
    assert_int_equal(e, OK);
}

/* The sentence must hold `word`. */
__attribute__((unused)) static void expect_bad(const char *word)
{
    enum err e = family_read(&model, &source);
    if (e != ERR_INPUT || !strstr(err_text(), word))
        print_error("expected an error with \"%s\", got %d: %s\n", word, e, err_text());
    assert_int_equal(e, ERR_INPUT);
    assert_non_null(strstr(err_text(), word));
}

__attribute__((unused)) static void start(enum source_kind kind)
{
    memset(&fake, 0, sizeof fake);
    source = (struct source){.kind = kind, .path = "fake"};
}

#define N_LAYERS 2
#define DIM      512
#define HEADS    8
#define KV_HEADS 2
#define HEAD_DIM 64
#define FFN      640
#define VOCAB    1000

/* One tensor per line: its name after the layer's prefix, outputs, inputs (0: a vector). */
struct line {
    const char *name;
    int n, k;
};

__attribute__((unused)) static void add_layers(const char *prefix, const struct line *lines,
                                               int n_lines)
{
    char full[160];
    for (int i = 0; i < N_LAYERS; i++)
        for (int j = 0; j < n_lines; j++) {
            snprintf(full, sizeof full, "%s%d.%s", prefix, i, lines[j].name);
            add(full, lines[j].k ? 2 : 1, lines[j].n, lines[j].k);
        }
}

/* A Hugging Face model with llama's keys of sizes, and the tensors outside its layers. */
__attribute__((unused)) static void start_hf(const char *type)
{
    start(SOURCE_HF);
    set_str("model_type", type);
    set_int("num_hidden_layers", N_LAYERS);
    set_int("hidden_size", DIM);
    set_int("intermediate_size", FFN);
    set_int("num_attention_heads", HEADS);
    set_int("num_key_value_heads", KV_HEADS);
    set_int("vocab_size", VOCAB);
    set_int("max_position_embeddings", 4096);
    add("model.embed_tokens.weight", 2, VOCAB, DIM);
    add("model.norm.weight", 1, DIM, 0);
    add("lm_head.weight", 2, VOCAB, DIM);
}

#endif
