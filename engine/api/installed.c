/* engine/api/installed.c - see installed.h.
 *
 * Note: reads the program's folder from /proc, so an installed tree may be moved. */
#include "engine/api/installed.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM 16384 // bytes of all paths that one command finds

/* Returns one copy per distinct text; NULL: no room left. */
static const char *keep(const char *text)
{
    static char room[ROOM];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    size_t at = 0, n = strlen(text) + 1;
    pthread_mutex_lock(&lock);
    while (room[at] && strcmp(room + at, text) != 0)
        at += strlen(room + at) + 1;
    const int fits = at + n < sizeof room;
    if (fits)
        memcpy(room + at, text, n);
    pthread_mutex_unlock(&lock);
    return fits ? room + at : NULL;
}

const char *installed_path(const char *path)
{
    static const char *const folders[] = {"", "../share/sluice/"};
    char program[PATH_MAX], found[2 * PATH_MAX], whole[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (strncmp(path, "configs/", 8) != 0 || access(path, F_OK) == 0 || n < 0)
        return path;
    program[n] = 0;
    *(strrchr(program, '/') + 1) = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(found, sizeof found, "%s%s%s", program, folders[i], path);
        if (realpath(found, whole))
            return keep(whole) ? keep(whole) : path;
    }
    return path;
}
