/* tests/hf_test.c - model directories, whole and broken: config.json and its getters,
 * generation_config, shards and their index, files of a limited size. One hostile file per check,
 * with code and a piece of the message. */
#include "engine/model/containers/hf.h"

#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/temp_dir.h"

/* A safetensors file of one-byte tensors with these names (NULL ends). */
static void shard_write(const char *file, const char *const *names)
{
    char header[2048] = "{";
    int used = 1, n = 0;
    for (; names[n]; n++)
        used += snprintf(header + used, sizeof header - (size_t)used,
                         "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                         n ? "," : "", names[n], n, n + 1);
    header[used++] = '}';
    char bytes[8 + 2048 + 16] = {(char)(used & 255), (char)(used >> 8)};
    memcpy(bytes + 8, header, (size_t)used);
    temp_write(file, bytes, 8 + used + n);
}

static void single_write(void)
{
    shard_write("model.safetensors", (const char *const[]){"w", NULL});
}

static struct hf *open_ok(void)
{
    struct hf *hf;
    if (hf_open(&hf, temp_dir) != OK)
        fail_msg("refused: %s", err_text());
    return hf;
}

static void refuses(const char *message)
{
    struct hf *hf;
    enum err e = hf_open(&hf, temp_dir);
    hf_close(hf);
    if (e != ERR_INPUT || !strstr(err_text(), message))
        fail_msg("code %d, '%s'; expected '%s'", e, e ? err_text() : "", message);
    if (!strstr(err_text(), temp_dir))
        fail_msg("'%s' does not name the directory", err_text());
}

static void refuses_config(const char *text, const char *message)
{
    temp_write_text("config.json", text);
    refuses(message);
}

static void test_config_files(void **state)
{
    (void)state;
    refuses("config.json: not found");
    single_write();
    refuses_config("", "config.json: empty file");
    refuses_config("[]", "config.json: expected object, is array at byte 0");
    refuses_config("null", "config.json: expected object, is null at byte 0");
    refuses_config(" 7", "config.json: expected object, is integer at byte 1");
    refuses_config("{", "config.json: invalid JSON: ends too early at byte 1");
    refuses_config("{\"a\":nan}", "config.json: invalid JSON at byte 5");
    refuses_config("{\"a\":-NaN}", "config.json: invalid JSON at byte 6");
    refuses_config("{\"a\":1e400}", "config.json: number too large at byte 5");
    refuses_config("{\"a\":\"\\ud800\"}", "config.json: invalid string at byte 6");
    refuses_config("{\"a\":1,\"b\":2,\"a\":1}", "config.json: duplicate key \"a\" at byte 13");
    refuses_config("{\"r\":{\"a\":1,\"\\u0061\":2}}", "config.json: duplicate key \"a\"");
    refuses_config("{}{}", "config.json: invalid JSON: more text after the end");
    char *deep = malloc(200001);
    for (int i = 0; i < 100000; i++)
        deep[i] = '[';
    deep[100000] = 0;
    memcpy(deep, "{\"a\":", 5);
    refuses_config(deep, "config.json: nesting deeper than 64");
    for (int i = 0; i < 200000; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    deep[200000] = 0;
    refuses_config(deep, "config.json: nesting deeper than 64");
    free(deep);
    FILE *f = fopen(temp_path("config.json"), "wb"); // sparse
    assert_int_equal(ftruncate(fileno(f), HF_CONFIG_BYTES_MAX + 1), 0);
    fclose(f);
    refuses("config.json: 16777217 bytes, at most 16777216 are read");
    unlink(temp_path("config.json"));
    assert_int_equal(mkdir(temp_path("config.json"), 0700), 0);
    refuses("config.json: not a regular file");
    rmdir(temp_path("config.json"));
    assert_int_equal(symlink("nowhere", temp_path("config.json")), 0);
    refuses("config.json: No such file");
}

static void test_config_limits(void **state)
{
    (void)state;
    single_write();
    enum { N = 1000000 };
    char *text = malloc(16 * N);
    int64_t n = (int64_t)snprintf(text, 64, "{\"eos_token_id\":[0");
    for (int i = 1; i < N; i++, n += 2)
        memcpy(text + n, ",0", 2);
    memcpy(text + n, "]}", 2);
    temp_write("config.json", text, n + 2);
    refuses("eos_token_id: more than 65536 entries");
    n = (int64_t)snprintf(text, 64, "{\"a\":0");
    for (int i = 0; i < N; i++)
        n += snprintf(text + n, 16, ",\"%d\":0", i);
    text[n++] = '}';
    temp_write("config.json", text, n);
    refuses("config.json: more than 200000 values");
    free(text);
}

static const char config_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":576,\"zero\":0,\"huge\":9223372036854775808,"
    "\"half\":4096.5,\"exp\":4e3,\"rms_norm_eps\":1e-05,\"rope_theta\":10000,\"tie\":true,\"off\":"
    "false,"
    "\"head_dim\":null,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"llama3\",\"deep\":{\"x\":3}"
    "},"
    "\"eos_token_id\":[1,2,3],\"bos_token_id\":1,\"layer_types\":[\"full\",\"sliding\"],\"none\":[]"
    ","
    "\"mixed\":[1,\"a\",[2],{\"b\":1},null,2.5],\"negative\":[-1],\"nul\":\"a\\u0000b\","
    "\"a.b\":5,\"empty\":{},\"text\":\"4096\",\"limit\":[0.0,Infinity],\"least\":-Infinity,\"odd\":"
    "NaN,\"\":9,\"last\":-7}";

static struct hf *open_config(void)
{
    single_write();
    temp_write_text("config.json", config_text);
    return open_ok();
}

static void int_is(const struct hf *hf, const char *key, int64_t value)
{
    int64_t out;
    int found;
    assert_int_equal(values_int(&hf->config, key, INT64_MIN, INT64_MAX, &out, &found), OK);
    assert_int_equal(found, 1);
    assert_int_equal(out, value);
}

static void absent_is(const struct hf *hf, const char *key)
{
    int64_t i = 42, n = 42;
    double f = 42;
    int b = 42, found = 1;
    const char *s = "42";
    assert_int_equal(values_int(&hf->config, key, 0, 1, &i, &found), OK);
    assert_int_equal(found, 0);
    found = 1;
    assert_int_equal(values_float(&hf->config, key, &f, &found), OK);
    assert_int_equal(found, 0);
    assert_int_equal(values_bool(&hf->config, key, &b, &found), OK);
    assert_int_equal(values_str(&hf->config, key, &s, &n, &found), OK);
    assert_int_equal(hf_int_array(hf, key, 0, 1, &i, 1, &n, &found), OK);
    assert_int_equal(hf_str_array(hf, key, &s, 1, &n, &found), OK);
    assert_int_equal(values_count(&hf->config, key, &n, &found), OK);
    assert_int_equal(found, 0);
    assert_true(i == 42 && n == 42 && f == 42 && b == 42 && strcmp(s, "42") == 0);
}

static void test_getters(void **state)
{
    (void)state;
    struct hf *hf = open_config();
    int_is(hf, "hidden_size", 576);
    int_is(hf, "rope_scaling.deep.x", 3);
    int_is(hf, "last", -7);
    absent_is(hf, "head_dim"); // null
    absent_is(hf, "no");
    absent_is(hf, "hidden");
    absent_is(hf, "hidden_size2");
    absent_is(hf, "hidden_size.x");
    absent_is(hf, "rope_scaling.no");
    absent_is(hf, "rope_scaling.deep.x.y");
    absent_is(hf, "factor");
    absent_is(hf, "a.b");
    absent_is(hf, "mixed.b");
    int found;
    double f;
    assert_int_equal(values_float(&hf->config, "rms_norm_eps", &f, &found), OK);
    assert_true(found && f == 1e-5);
    assert_int_equal(values_float(&hf->config, "rope_theta", &f, &found), OK);
    assert_true(found && f == 10000);
    int b;
    assert_int_equal(values_bool(&hf->config, "tie", &b, &found), OK);
    assert_true(found && b == 1);
    assert_int_equal(values_bool(&hf->config, "off", &b, &found), OK);
    assert_true(found && b == 0);
    const char *s;
    int64_t n;
    assert_int_equal(values_str(&hf->config, "rope_scaling.rope_type", &s, &n, &found), OK);
    assert_true(found && n == 6);
    assert_string_equal(s, "llama3");
    hf_close(hf);
}

static void int_fails(const struct hf *hf, const char *key, const char *message)
{
    int64_t out;
    int found;
    assert_int_equal(values_int(&hf->config, key, 1, 4096, &out, &found), ERR_INPUT);
    if (!strstr(err_text(), message))
        fail_msg("'%s', expected '%s'", err_text(), message);
}

static void test_getter_types(void **state)
{
    (void)state;
    struct hf *hf = open_config();
    int_fails(hf, "text", "config.json: text: expected integer, is string");
    int_fails(hf, "half", "config.json: half: expected integer, is number");
    int_fails(hf, "exp", "config.json: exp: expected integer, is number");
    int_fails(hf, "tie", "config.json: tie: expected integer, is true or false");
    int_fails(hf, "none", "config.json: none: expected integer, is array");
    int_fails(hf, "empty", "config.json: empty: expected integer, is object");
    int_fails(hf, "rope_scaling.factor", "config.json: rope_scaling.factor: expected integer");
    int_fails(hf, "zero", "config.json: zero: 0 out of range [1, 4096]");
    int_fails(hf, "rope_theta", "config.json: rope_theta: 10000 out of range [1, 4096]");
    int_fails(hf, "last", "config.json: last: -7 out of range [1, 4096]");
    int_fails(hf, "huge", "config.json: huge: 9.2233720368547758e+18 out of range [1, 4096]");
    int found, b;
    double f;
    const char *s;
    int64_t n;
    assert_int_equal(values_float(&hf->config, "text", &f, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "config.json: text: expected number, is string"));
    assert_int_equal(values_float(&hf->config, "least", &f, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "least: expected number, is infinite or not a number"));
    assert_int_equal(values_float(&hf->config, "odd", &f, &found), ERR_INPUT);
    assert_int_equal(values_bool(&hf->config, "zero", &b, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "zero: expected true or false, is integer"));
    assert_int_equal(values_str(&hf->config, "zero", &s, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "zero: expected string, is integer"));
    assert_int_equal(values_str(&hf->config, "nul", &s, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "nul: string contains a NUL byte"));
    hf_close(hf);
}

static void test_lists(void **state)
{
    (void)state;
    struct hf *hf = open_config();
    int64_t ids[4], n;
    const char *words[4];
    int found;
    assert_int_equal(hf_int_array(hf, "eos_token_id", 0, 99, ids, 4, &n, &found), OK);
    assert_true(found && n == 3 && ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
    assert_int_equal(hf_int_array(hf, "bos_token_id", 0, 99, ids, 4, &n, &found), OK);
    assert_true(found && n == 1 && ids[0] == 1);
    assert_int_equal(hf_int_array(hf, "none", 0, 99, ids, 4, &n, &found), OK);
    assert_true(found && n == 0);
    assert_int_equal(hf_str_array(hf, "layer_types", words, 4, &n, &found), OK);
    assert_true(found && n == 2);
    assert_string_equal(words[0], "full");
    assert_string_equal(words[1], "sliding");
    assert_int_equal(values_count(&hf->config, "layer_types", &n, &found), OK);
    assert_true(found && n == 2);
    assert_int_equal(values_count(&hf->config, "mixed", &n, &found), OK);
    assert_true(found && n == 6);
    assert_int_equal(values_count(&hf->config, "rope_scaling", &n, &found), OK);
    assert_true(found && n == 3);
    assert_int_equal(values_count(&hf->config, "zero", &n, &found), ERR_INPUT);
    assert_int_equal(hf_int_array(hf, "eos_token_id", 0, 99, ids, 2, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "eos_token_id: 3 entries, at most 2"));
    assert_int_equal(hf_int_array(hf, "eos_token_id", 0, 2, ids, 4, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "eos_token_id: 3 out of range [0, 2]"));
    assert_int_equal(hf_int_array(hf, "negative", 0, 2, ids, 4, &n, &found), ERR_INPUT);
    assert_int_equal(hf_int_array(hf, "mixed", 0, 2, ids, 4, &n, &found), ERR_INPUT);
    assert_int_equal(hf_int_array(hf, "layer_types", 0, 2, ids, 4, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "layer_types: expected integer, is string"));
    assert_int_equal(hf_str_array(hf, "eos_token_id", words, 4, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "eos_token_id: expected string, is integer"));
    hf_close(hf);
}

/* eos ids with these two files ("" : no such file) in a vocabulary of 100. */
static enum err eos(const char *config, const char *generation, int64_t ids[HF_EOS_MAX], int64_t *n)
{
    single_write();
    temp_write_text("config.json", config);
    unlink(temp_path("generation_config.json"));
    if (generation[0])
        temp_write_text("generation_config.json", generation);
    struct hf *hf = open_ok();
    enum err e = hf_eos_ids(hf, 100, ids, n);
    hf_close(hf);
    return e;
}

static void test_eos(void **state)
{
    (void)state;
    int64_t ids[HF_EOS_MAX], n;
    assert_int_equal(eos("{\"eos_token_id\":2}", "", ids, &n), OK);
    assert_true(n == 1 && ids[0] == 2);
    assert_int_equal(eos("{\"eos_token_id\":2}", "{\"eos_token_id\":[7,99]}", ids, &n), OK);
    assert_true(n == 2 && ids[0] == 7 && ids[1] == 99);
    assert_int_equal(eos("{\"eos_token_id\":2}", "{\"eos_token_id\":null}", ids, &n), OK);
    assert_true(n == 1 && ids[0] == 2);
    assert_int_equal(eos("{\"text_config\":{\"eos_token_id\":[4]}}", "{}", ids, &n), OK);
    assert_true(n == 1 && ids[0] == 4);
    assert_int_equal(eos("{}", "", ids, &n), OK);
    assert_int_equal(n, 0);
    assert_int_equal(eos("{}", "{\"eos_token_id\":[]}", ids, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "generation_config.json: eos_token_id: empty list"));
    assert_int_equal(eos("{\"eos_token_id\":-1}", "", ids, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "config.json: eos_token_id: -1 out of range [0, 99]"));
    assert_int_equal(eos("{\"eos_token_id\":100}", "", ids, &n), ERR_INPUT);
    assert_int_equal(eos("{\"eos_token_id\":-1}", "{\"eos_token_id\":2}", ids, &n), ERR_INPUT);
    assert_int_equal(eos("{\"eos_token_id\":\"x\"}", "", ids, &n), ERR_INPUT);
    assert_int_equal(eos("{}", "{\"eos_token_id\":[2,null]}", ids, &n), ERR_INPUT);
    char many[4 * HF_EOS_MAX];
    int64_t at = snprintf(many, sizeof many, "{\"eos_token_id\":[1");
    for (int i = 0; i < HF_EOS_MAX; i++)
        at += snprintf(many + at, sizeof many - (size_t)at, ",1");
    snprintf(many + at, sizeof many - (size_t)at, "]}");
    assert_int_equal(eos(many, "", ids, &n), ERR_INPUT);
    assert_non_null(strstr(err_text(), "eos_token_id: 65 entries, at most 64"));
    temp_write_text("generation_config.json", "[]");
    refuses("generation_config.json: expected object, is array");
    temp_write_text("generation_config.json", "");
    refuses("generation_config.json: empty file");
}

static void index_write(const char *text)
{
    temp_write_text("model.safetensors.index.json", text);
}

static void test_shards(void **state)
{
    (void)state;
    temp_write_text("config.json", "{}");
    shard_write("m1.safetensors", (const char *const[]){"a", "b", NULL});
    shard_write("m2.safetensors", (const char *const[]){"c", "extra", NULL});
    index_write("{\"metadata\":{\"total_size\":3},\"weight_map\":{\"a\":\"m1.safetensors\","
                "\"c\":\"m2.safetensors\",\"b\":\"m1.safetensors\"},\"more\":[1]}");
    struct hf *hf = open_ok();
    assert_int_equal(hf->weights.n_tensors, 4);
    assert_int_equal(hf->n_shards, 2);
    assert_int_equal(safetensors_find(&hf->weights, "c")->file, 1);
    hf_close(hf);
    single_write(); // stands above the index
    hf = open_ok();
    assert_int_equal(hf->weights.n_tensors, 1);
    hf_close(hf);
    unlink(temp_path("model.safetensors"));

    index_write("{\"weight_map\":{\"a\":\"m2.safetensors\",\"c\":\"m2.safetensors\",\"b\":\"m1."
                "safetensors\"}}");
    refuses("tensor a: expected in m2.safetensors, found in m1.safetensors");
    index_write("{\"weight_map\":{\"a\":\"m1.safetensors\",\"z\":\"m1.safetensors\"}}");
    refuses("index.json: tensor z is missing from every shard");
    shard_write("m3.safetensors", (const char *const[]){"x", "b", NULL});
    index_write("{\"weight_map\":{\"a\":\"m1.safetensors\",\"x\":\"m3.safetensors\"}}");
    refuses("tensor b is also in");
    index_write("{\"weight_map\":{\"a\":\"m9.safetensors\",\"b\":\"m1.safetensors\",\"c\":\"m8."
                "safetensors\"}}");
    refuses("index.json: missing shard(s): m9.safetensors, m8.safetensors");
}

static void test_many_missing_shards(void **state)
{
    (void)state;
    temp_write_text("config.json", "{}");
    char *text = malloc(100000);
    int64_t n = snprintf(text, 64, "{\"weight_map\":{");
    for (int i = 1; i <= 200; i++)
        n += snprintf(text + n, 100, "%s\"t%d\":\"model-%05d-of-00200.safetensors\"",
                      i > 1 ? "," : "", i, i);
    snprintf(text + n, 3, "}}");
    index_write(text);
    free(text);
    refuses("missing shard(s): model-00001-of-00200.safetensors, model-00002-of-00200");
    assert_non_null(strstr(err_text(), " more"));
}

static void test_index_files(void **state)
{
    (void)state;
    temp_write_text("config.json", "{}");
    shard_write("m1.safetensors", (const char *const[]){"a", NULL});
    static const char *const leaving[] = {
        "/etc/passwd", "../../etc/passwd", "..", "x/../../y", "a/..", "./../x"};
    char text[256];
    for (size_t i = 0; i < sizeof leaving / sizeof *leaving; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", leaving[i]);
        index_write(text);
        refuses("index.json: shard path leaves the model directory");
    }
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "index.json: invalid JSON: ends too early at byte 0"},
        {"[]", "index.json: expected object, is array"},
        {"{}", "index.json: weight_map is missing"},
        {"{\"weight_map\":[]}", "index.json: expected object, is array"},
        {"{\"weight_map\":{}}", "index.json: weight_map is empty"},
        {"{\"weight_map\":{\"a\":1}}", "index.json: expected string, is integer"},
        {"{\"weight_map\":{\"a\":\"\"}}", "index.json: bad shard name"},
        {"{\"weight_map\":{\"a\":\"m1\\u0000\"}}", "index.json: bad shard name"},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"\\u0061\":\"m1.safetensors\"}}",
         "duplicate key \"a\""},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\"},\"weight_map\":{}}",
         "duplicate key \"weight_map\""},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\"}", "ends too early"},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\"}}x", "more text after the end"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", "config.json: header length needs 8 bytes"},
        {"{\"weight_map\":{\"a\":\"m1.safetensors/x\"}}", "missing shard(s): m1.safetensors/x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        index_write(cases[i].text);
        refuses(cases[i].message);
    }
    index_write("{\"weight_map\":{\"a\":\"a..b.safetensors\"}}"); // no component is ".."
    refuses("missing shard(s): a..b.safetensors");
    // The hub's cache: every file is a link to a blob elsewhere.
    assert_int_equal(mkdir(temp_path("blobs"), 0700), 0);
    assert_int_equal(rename(temp_path("m1.safetensors"), temp_path("blobs/0a1b")), 0);
    assert_int_equal(symlink("blobs/0a1b", temp_path("m1.safetensors")), 0);
    index_write("{\"weight_map\":{\"a\":\"m1.safetensors\"}}");
    hf_close(open_ok());
}

static void test_no_weights(void **state)
{
    (void)state;
    temp_write_text("config.json", "{}");
    refuses("no model.safetensors and no model.safetensors.index.json");
    temp_write_text("model-q4.gguf", "GGUF");
    refuses("no model.safetensors, but model-q4.gguf (give the .gguf file itself");
    temp_write_text("pytorch_model-00002-of-00002.bin", "x");
    temp_write_text("pytorch_model-00001-of-00002.bin", "x");
    refuses("but pytorch_model-00001-of-00002.bin (only safetensors are read)");
    temp_write_text("adapter_model.safetensors", "x");
    refuses("but adapter_model.safetensors (expected model.safetensors");
    assert_int_equal(symlink("nowhere", temp_path("model.safetensors")), 0);
    refuses("model.safetensors: No such file");
}

static void test_not_a_directory(void **state)
{
    (void)state;
    struct hf *hf;
    temp_write_text("file", "x");
    assert_int_equal(hf_open(&hf, temp_path("file")), ERR_INPUT);
    assert_non_null(strstr(err_text(), "file: not a directory"));
    assert_null(hf);
    assert_int_equal(hf_open(&hf, temp_path("absent")), ERR_INPUT);
    assert_non_null(strstr(err_text(), "absent: No such file"));
    hf_close(NULL);
}

static void test_file_load(void **state)
{
    (void)state;
    char *buf;
    int64_t n;
    int found;
    assert_int_equal(file_load(temp_path("a.json"), 100, &buf, &n, &found), OK);
    assert_true(!found && !buf && n == 0);
    temp_write("a.json", "{\"a\0\"", 5);
    assert_int_equal(file_load(temp_path("a.json"), 5, &buf, &n, &found), OK);
    assert_true(found && n == 5);
    assert_memory_equal(buf, "{\"a\0\"", 6);
    free(buf);
    assert_int_equal(file_load(temp_path("a.json"), 4, &buf, &n, &found), ERR_INPUT);
    assert_non_null(strstr(err_text(), "a.json: 5 bytes, at most 4 are read"));
    assert_true(!found && !buf);
    temp_write("empty.txt", "", 0);
    assert_int_equal(file_load(temp_path("empty.txt"), 4, &buf, &n, &found), OK);
    assert_true(found && n == 0 && buf[0] == 0);
    free(buf);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temp_dir_setup, temp_dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_config_files),    TEST(test_config_limits),
        TEST(test_getters),         TEST(test_getter_types),
        TEST(test_lists),           TEST(test_eos),
        TEST(test_shards),          TEST(test_many_missing_shards),
        TEST(test_index_files),     TEST(test_no_weights),
        TEST(test_not_a_directory), TEST(test_file_load),
    };
    return cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
