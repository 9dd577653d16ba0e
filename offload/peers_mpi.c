/* offload/peers_mpi.c - sluice-mpi.so: the calls of offload/peers.h over the MPI that it is built
 * against (make mpi). A library of its own because every MPI has another binary interface. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "offload/peers.h"

#define COUNT_MAX (1 << 30) // bytes of one message: counts of MPI are int

struct peers_library *sluice_mpi(void);

static struct peers_library library;

static int check(int code)
{
    int n = 0;
    if (code != MPI_SUCCESS)
        MPI_Error_string(code, library.why, &n);
    return code;
}

static int start(int *rank, int *n)
{
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int given = 0, length = 0;
    if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given)) != MPI_SUCCESS)
        return -1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Get_library_version(version, &length);
    for (int i = 0; i < length; i++) // the first words of it
        if (version[i] == ',' || version[i] == '\n')
            version[i] = 0;
    library.name = version;
    if (given < MPI_THREAD_SERIALIZED) {
        snprintf(library.why, sizeof library.why, "%.200s: is built without threads", version);
        return -1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    return check(MPI_Comm_size(MPI_COMM_WORLD, n));
}

static int begin(void **request, MPI_Request **r, int64_t n)
{
    *request = *r = malloc(sizeof **r);
    if (*r && n <= COUNT_MAX)
        return 0;
    snprintf(library.why, sizeof library.why, "a message of %lld bytes", (long long)n);
    free(*r);
    *request = NULL;
    return -1;
}

static int send_bytes(const void *buf, int64_t n, int to, int tag, void **request)
{
    MPI_Request *r;
    if (begin(request, &r, n) != 0)
        return -1;
    return check(MPI_Isend(buf, (int)n, MPI_BYTE, to, tag, MPI_COMM_WORLD, r));
}

static int receive(void *buf, int64_t cap, int from, int tag, void **request)
{
    MPI_Request *r;
    if (begin(request, &r, cap) != 0)
        return -1;
    return check(MPI_Irecv(buf, (int)cap, MPI_BYTE, from, tag, MPI_COMM_WORLD, r));
}

static int test(void **request, int *done, int64_t *n_bytes)
{
    MPI_Status status;
    int n = 0;
    *done = 0;
    int code = check(MPI_Test(*request, done, &status));
    if (code == MPI_SUCCESS && *done && MPI_Get_count(&status, MPI_BYTE, &n) == MPI_SUCCESS)
        *n_bytes = n == MPI_UNDEFINED ? 0 : n;
    if (code == MPI_SUCCESS && !*done)
        return 0;
    free(*request);
    *request = NULL;
    return code;
}

static int cancel(void **request)
{
    int code = check(MPI_Cancel(*request));
    if (code == MPI_SUCCESS)
        code = check(MPI_Wait(*request, MPI_STATUS_IGNORE));
    free(*request);
    *request = NULL;
    return code;
}

static int end(void)
{
    return check(MPI_Finalize());
}

static void abort_all(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

static struct peers_library library = {.version = PEERS_VERSION,
                                       .start = start,
                                       .send = send_bytes,
                                       .receive = receive,
                                       .test = test,
                                       .cancel = cancel,
                                       .end = end,
                                       .abort = abort_all};

__attribute__((visibility("default"))) struct peers_library *sluice_mpi(void)
{
    return &library;
}
