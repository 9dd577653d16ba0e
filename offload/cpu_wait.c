/* offload/cpu_wait.c - see cpu_wait.h. */
#include "offload/cpu_wait.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

void cpu_wait_read(struct cpu_wait *w, const char *folder)
{
    const char *tasks = folder ? folder : "/proc/self/task";
    DIR *dir = opendir(tasks);
    w->n = 0;
    w->ns = clock_ns();
    for (const struct dirent *e; dir && w->n < CPU_WAIT_TASKS && (e = readdir(dir));) {
        char path[512], *end;
        unsigned long long ran_ns, waited_ns;
        long id = strtol(e->d_name, &end, 10);
        if (end == e->d_name || *end)
            continue;
        snprintf(path, sizeof path, "%s/%ld/schedstat", tasks, id);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%llu %llu", &ran_ns, &waited_ns) == 2) {
            w->task[w->n].id = id;
            w->task[w->n].ran_s = (double)ran_ns * 1e-9;
            w->task[w->n++].waited_s = (double)waited_ns * 1e-9;
        }
        if (f)
            fclose(f);
    }
    if (dir)
        closedir(dir);
}

struct span {
    double ran_s, waited_s;
};

static int by_ran(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->ran_s < y->ran_s) - (x->ran_s > y->ran_s);
}

double cpu_wait_share(const struct cpu_wait *from, const struct cpu_wait *to, int threads)
{
    struct span of[CPU_WAIT_TASKS];
    double lost_s = 0, wall_s = (double)(to->ns - from->ns) * 1e-9;
    if (from->n == 0 || to->n == 0 || wall_s <= 0 || threads < 1)
        return -1;
    for (int i = 0; i < to->n; i++) {
        of[i] = (struct span){to->task[i].ran_s, to->task[i].waited_s};
        for (int k = 0; k < from->n; k++)
            if (from->task[k].id == to->task[i].id) {
                of[i].ran_s -= from->task[k].ran_s;
                of[i].waited_s -= from->task[k].waited_s;
            }
    }
    qsort(of, (size_t)to->n, sizeof *of, by_ran);
    for (int i = 0; i < to->n; i++)
        lost_s += i < threads ? of[i].waited_s : -of[i].ran_s;
    return lost_s > 0 ? lost_s / (threads * wall_s) : 0;
}
