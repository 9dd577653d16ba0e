/* engine/app/plot.c - see plot.h.
 *
 * A newcomer would miss: the drawing is gnuplot's stdout, so a path never stands in a script, and
 * the script starts with the data, so that points can be written as they are planned. */
#include "engine/app/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static enum err start(struct plot *p, int out_fd, int read_fd)
{
    char *argv[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, read_fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    int e = posix_spawnp(&p->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (e == ENOENT)
        return fail(ERR_USAGE, "--plot: gnuplot is not there (install the package gnuplot-nox)");
    return e ? fail(ERR_USAGE, "--plot: gnuplot does not start: %s", strerror(e)) : OK;
}

/* Between quotes of a gnuplot string: what would end it, or mean something in it, becomes a blank.
 */
static void put_text(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc(strchr("\"\\\n{}^_@&~", *text) ? ' ' : *text, f);
}

static void put_script(FILE *f, const char *model, const char *flag)
{
    fputs("set terminal svg size 800,480 dynamic enhanced background rgb 'white' font 'sans,13'\n"
          "set encoding utf8\nset title \"predicted by sluice plan, ",
          f);
    put_text(f, model);
    fputs("\"\nset xlabel \"--", f);
    put_text(f, flag);
    fputs("\"\nset ylabel \"output tokens/s\"\nset logscale x 2\nset format x \"%.0b%B\"\n"
          "set yrange [0:*]\nset grid\nset key left top title \"bound by\"\n$sweep << END\n",
          f);
}

enum err plot_open(struct plot *p, const char *path, const char *model, const char *flag)
{
    int ends[2];
    *p = (struct plot){.path = path};
    int out_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out_fd < 0)
        return fail(ERR_USAGE, "--plot: %s: %s", path, strerror(errno));
    enum err e = pipe2(ends, O_CLOEXEC) == 0 ? OK : fail(ERR_IO, "pipe: %s", strerror(errno));
    if (e == OK) {
        e = start(p, out_fd, ends[0]);
        close(ends[0]);
        p->pipe = e == OK ? fdopen(ends[1], "w") : NULL;
        if (!p->pipe)
            close(ends[1]);
        if (e == OK && !p->pipe) {
            waitpid(p->pid, NULL, 0); // its input has ended
            e = fail(ERR_FIT, "memory: no room for a plot");
        }
    }
    close(out_fd);
    if (e != OK)
        unlink(path);
    else
        put_script(p->pipe, model, flag);
    return e;
}

void plot_point(struct plot *p, int64_t value, double tokens_per_s, const char *bound)
{
    if (p->pipe)
        fprintf(p->pipe, "%lld %.6g %s\n", (long long)value, tokens_per_s, bound);
}

enum err plot_close(struct plot *p, int draw)
{
    static const char *const lanes[] = {"cpu", "nvme-read", "nvme-write"};
    int status = 0;
    if (!p->pipe)
        return OK;
    fputs("END\n", p->pipe);
    if (draw) {
        fputs("plot $sweep using 1:2 with lines lc rgb 'gray50' notitle", p->pipe);
        for (int i = 0; i < 3; i++)
            fprintf(p->pipe,
                    ", '' using 1:(strcol(3) eq '%s' ? $2 : 1/0) with points pt 7 title '%s'",
                    lanes[i], lanes[i]);
        fputc('\n', p->pipe);
    }
    fclose(p->pipe);
    p->pipe = NULL;
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    int drawn = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!draw || !drawn)
        unlink(p->path);
    return draw && !drawn ? fail(ERR_IO, "--plot: gnuplot failed, %s was not made", p->path) : OK;
}
