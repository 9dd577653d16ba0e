/* tests/fuzz_test.c - every input in tests/fuzz/corpus through its harness: what the fuzzers
 * reached, and every finding that was fixed. ./build/tests/fuzz_test [NAME FILE...] replays files
 * of yours.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CORPUS     "tests/fuzz/corpus"
#define INPUT_MAX  (1 << 16)
#define INPUTS_MIN 3 // a folder that is missing or was emptied is no test

static const struct fuzz_target *const targets[] = {
    &fuzz_codec,      &fuzz_config,    &fuzz_encode,   &fuzz_gguf,        &fuzz_journal,
    &fuzz_json,       &fuzz_machine,   &fuzz_manifest, &fuzz_model_cfg,   &fuzz_pack,
    &fuzz_plan,       &fuzz_quantized, &fuzz_rows,     &fuzz_safetensors, &fuzz_template,
    &fuzz_token_blob, &fuzz_tokenizer,
};
#define N_TARGETS (sizeof targets / sizeof *targets)

/* From an exact-size copy, so that ASan sees one byte too many. */
static void replay(const struct fuzz_target *t, const char *path)
{
    static uint8_t bytes[INPUT_MAX];
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot be read", path);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_true(n < sizeof bytes);
    fclose(f);
    uint8_t *exact = malloc(n + !n);
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    fuzz_files_clear();
    t->one(exact, n);
    assert_int_equal(fuzz_files_open(), 0);
    free(exact);
}

static void corpus(void **state)
{
    const struct fuzz_target *t = *state;
    char folder[128], path[512];
    int n = 0;
    snprintf(folder, sizeof folder, CORPUS "/%s", t->name);
    DIR *dir = opendir(folder);
    if (!dir)
        fail_msg("%s: no such folder (run from the top of the tree)", folder);
    if (t->init)
        t->init();
    for (const struct dirent *d; (d = readdir(dir));) {
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        replay(t, path);
        n++;
    }
    closedir(dir);
    assert_true(n >= INPUTS_MIN);
}

static int files(const char *name, int n, char **paths)
{
    for (size_t i = 0; i < N_TARGETS; i++) {
        if (strcmp(targets[i]->name, name) != 0)
            continue;
        if (targets[i]->init)
            targets[i]->init();
        for (int k = 0; k < n; k++)
            replay(targets[i], paths[k]);
        return 0;
    }
    fprintf(stderr, "%s: no such harness\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_TARGETS];
    log_level_max = LOG_ERROR;
    if (argc > 1)
        return files(argv[1], argc - 2, argv + 2);
    for (size_t i = 0; i < N_TARGETS; i++)
        tests[i] = (struct CMUnitTest){
            .name = targets[i]->name, .test_func = corpus, .initial_state = (void *)targets[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
