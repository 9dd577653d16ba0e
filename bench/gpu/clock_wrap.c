/* bench/gpu/clock_wrap.c - what the program `clock_sluice` does otherwise than `sluice`, so that
 * models larger than this machine's RAM run with a device that reads no numbers: memory is reserved
 * but not brought in, and weights that stay in RAM are not made. The linker wraps the calls. */
#include <sys/mman.h>

#include "engine/pack/pack.h"

#define BROUGHT_IN ((size_t)64 << 20) // bytes up to which memory is brought in as asked

void *__real_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset)
{
    return __real_mmap(at, n_bytes, protection,
                       flags | (flags & MAP_ANONYMOUS ? MAP_NORESERVE : 0), fd, offset);
}

int __real_madvise(void *at, size_t n_bytes, int advice);
int __wrap_madvise(void *at, size_t n_bytes, int advice);
int __wrap_madvise(void *at, size_t n_bytes, int advice)
{
    if (advice == MADV_POPULATE_WRITE && n_bytes > BROUGHT_IN)
        return 0;
    return __real_madvise(at, n_bytes, advice);
}

enum err __real_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to);
enum err __wrap_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to);
enum err __wrap_pack_layer_make(const struct pack_provider *p, struct model *m, int layer, int fd,
                                void *to)
{
    return to ? OK : __real_pack_layer_make(p, m, layer, fd, to);
}
