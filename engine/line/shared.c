/* engine/line/shared.c - see shared.h. */
#include "engine/line/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct head {
    int64_t decided, n_bytes;
    int32_t resident, weights_ram;
    _Atomic uint8_t ready[PLAN_LAYERS_MAX];
};
_Static_assert(sizeof(struct head) <= PLAN_SHARED_HEAD, "the head has room");

int shared_make(void)
{
    return memfd_create("sluice-weights", MFD_CLOEXEC);
}

/* Zeros if nothing is decided: the file is empty then. */
static struct head head_of(int fd)
{
    struct head head = {0};
    if (pread(fd, &head, sizeof head, 0) != sizeof head)
        head = (struct head){0};
    return head;
}

int shared_decided(int fd)
{
    return head_of(fd).decided != 0;
}

enum err shared_decide(int fd, const struct plan_shared *shared)
{
    const struct head head = {.n_bytes = shared->n_bytes,
                              .resident = shared->resident,
                              .weights_ram = shared->weights_ram};
    const int64_t decided = 1;
    if (ftruncate(fd, max_i64(shared->n_bytes, PLAN_SHARED_HEAD)) != 0 ||
        pwrite(fd, &head, sizeof head, 0) != sizeof head ||
        pwrite(fd, &decided, sizeof decided, 0) != sizeof decided) // last: others read it
        return fail(ERR_FIT, "memory: weights for several devices: %s", strerror(errno));
    return OK;
}

void shared_read(int fd, int workers, struct plan_shared *shared)
{
    const struct head head = head_of(fd);
    *shared = (struct plan_shared){.workers = workers, .resident = -1};
    if (head.decided && head.n_bytes == 0)
        *shared = (struct plan_shared){0};
    else if (head.decided)
        *shared = (struct plan_shared){workers, head.resident, head.weights_ram, head.n_bytes};
}

static int lock_byte(int fd, int at, short kind)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

enum shared_turn shared_begin(void *base, int fd, int layer)
{
    struct head *head = base;
    if (atomic_load(&head->ready[layer]))
        return SHARED_READY;
    if (!lock_byte(fd, layer, F_WRLCK))
        return SHARED_BUSY;
    if (!atomic_load(&head->ready[layer]))
        return SHARED_MINE;
    lock_byte(fd, layer, F_UNLCK); // it became ready in between
    return SHARED_READY;
}

void shared_end(void *base, int fd, int layer, int right)
{
    struct head *head = base;
    if (right)
        atomic_store(&head->ready[layer], 1);
    lock_byte(fd, layer, F_UNLCK);
}
