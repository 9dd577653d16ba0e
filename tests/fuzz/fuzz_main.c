/* tests/fuzz/fuzz_main.c - one target (-DFUZZ_TARGET=fuzz_NAME) under libFuzzer. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    log_level_max = LOG_ERROR; // warnings about odd models are no news here
    if (FUZZ_TARGET.init)
        FUZZ_TARGET.init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_files_clear();
    FUZZ_TARGET.one(data, n);
    CHECK(fuzz_files_open() == 0);
    return 0;
}
