/* offload/tier_nvme.c - a file as a tier, for what the run itself writes.
 *
 * Note: the file has no name, so its space is freed even if the process is killed. */
#include "offload/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum err file_open(const char *dir, int *fd)
{
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return OK;
    char name[4096]; // file systems without O_TMPFILE
    snprintf(name, sizeof name, "%s/sluice-scratch-XXXXXX", dir);
    *fd = mkostemp(name, O_CLOEXEC);
    if (*fd < 0)
        return fail(ERR_IO, "%s: cannot create a scratch file: %s (--offload-dir)", dir,
                    strerror(errno));
    unlink(name);
    return OK;
}

enum err tier_nvme_open(struct tier *t, const struct tier_config *config)
{
    TRY(file_open(config->dir, &t->fd));
    int e = posix_fallocate(t->fd, 0, t->n_bytes);
    if (e == EOPNOTSUPP || e == EINVAL)
        e = ftruncate(t->fd, t->n_bytes) == 0 ? 0 : errno;
    if (e == 0)
        return OK;
    close(t->fd);
    return fail(ERR_IO, "%s: cannot reserve %lld bytes of scratch: %s (--offload-dir, --mem-disk)",
                config->dir, (long long)t->n_bytes, strerror(e));
}

void tier_nvme_close(struct tier *t)
{
    close(t->fd);
}
