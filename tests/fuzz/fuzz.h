/* tests/fuzz/fuzz.h - what the fuzzing harnesses share: a target each, and files that lie in
 * memory.
 *
 * A harness is one struct fuzz_target. fuzz_main.c runs one of them under libFuzzer (`make fuzz`);
 * tests/fuzz_test.c runs all of them over the inputs in corpus/ (`make check`).
 * Note: the product opens the files by name as ever. memfile.c stands behind its
 * calls by the linker's --wrap, so that no run touches a disk or even the kernel. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "kernels/base/base.h"

#include <stddef.h>
#include <stdint.h>

struct fuzz_target {
    const char *name;
    void (*init)(void); // once; may be NULL
    /* One input. Nothing that it allocates may be left behind. */
    void (*one)(const uint8_t *data, size_t n);
};

extern const struct fuzz_target fuzz_codec, fuzz_config, fuzz_encode, fuzz_gguf, fuzz_journal,
    fuzz_json, fuzz_machine, fuzz_manifest, fuzz_model_cfg, fuzz_pack, fuzz_plan, fuzz_quantized,
    fuzz_rows, fuzz_safetensors, fuzz_template, fuzz_token_blob, fuzz_tokenizer;

#define FUZZ_DIR        "/fuzz-memory" // the only folder whose files lie in memory
#define FUZZ_FILES_MAX  8
#define FUZZ_WRITE_ROOM (64 << 10) // a written file may grow by this much

/* The file FUZZ_DIR/name holds these bytes (borrowed) from now on. It is n_bytes long, which may be
 * more than there are: then `head` stands at its start, `tail` at its end, zeros between. */
void fuzz_file(const char *name, const void *data, size_t n);
void fuzz_file_sparse(const char *name, int64_t n_bytes, const void *head, int64_t n_head,
                      const void *tail, int64_t n_tail);
/* The same for a file that the product writes: a copy, in one buffer for all inputs. */
void fuzz_file_writable(const char *name, const void *data, size_t n);
/* No file is there. */
void fuzz_files_clear(void);
/* Descriptors of files in memory that are open: 0 when nothing leaked. */
int fuzz_files_open(void);

/* The next part of an input: the bytes up to the next 0xff, which no text has, or the end. */
static inline const uint8_t *fuzz_part(const uint8_t **at, const uint8_t *end, size_t *n)
{
    const uint8_t *from = *at, *to = from;
    while (to < end && *to != 0xff)
        to++;
    *n = (size_t)(to - from);
    *at = to < end ? to + 1 : to;
    return from;
}

/* Looks at every byte. */
static inline void fuzz_touch(const void *bytes, int64_t n)
{
    volatile uint64_t sum = bytes ? hash_bytes(bytes, n, 0) : 0;
    (void)sum;
}

/* Rows and vectors of a model, as a packer reads them. */
struct pack_provider;
void fuzz_provider_use(const struct pack_provider *p);

/* Ids for `text` and back, in every way there is; a bug in one of them stops the process. */
struct tokenizer;
void fuzz_tokenizer_use(struct tokenizer *tok, const char *text, int64_t n);

#endif
