/* tests/fuzz/fuzz_safetensors.c - one safetensors file: opened, every tensor found and read. */
#include "engine/model/containers/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void one(const uint8_t *data, size_t n)
{
    struct safetensors st;
    fuzz_file("t", data, n);
    safetensors_init(&st);
    if (safetensors_add(&st, FUZZ_DIR "/t") == OK) {
        int64_t total = 0;
        for (int64_t i = 0; i < st.n_tensors; i++) {
            const struct source_tensor *t = &st.tensors[i];
            uint8_t bytes[256];
            const int64_t some = min_i64(t->n_bytes, (int64_t)sizeof bytes);
            CHECK(safetensors_find(&st, t->name) == t || strlen(t->name) == 0);
            CHECK(*safetensors_format(&st, t));
            CHECK(safetensors_read(&st, t, t->n_bytes - some, some, bytes) == OK);
            total += t->n_bytes;
        }
        CHECK(total <= (int64_t)n - 8); // no byte twice
    }
    safetensors_close(&st);
}

const struct fuzz_target fuzz_safetensors = {.name = "safetensors", .one = one};
