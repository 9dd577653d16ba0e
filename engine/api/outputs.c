/* engine/api/outputs.c - see outputs.h.
 *
 * Note: two paths are the same file if they have one inode, or one name in one folder; the second
 * covers files that do not exist yet. Output of an earlier run is recognized by words that only
 * sluice writes, so that the same command can be repeated. */
#include "engine/api/outputs.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/data/file.h"
#include "engine/job/job.h"
#include "engine/model/pack.h"
#include "kernels/base/whole.h"

#define PATH_BYTES 4200
#define LOOK_BYTES 65536 // read at a file's beginning and end to find words that sluice writes
#define JOB_CMDS   (CMD_RUN | CMD_SCORE | CMD_MERGE)

/* A file that the command reads or writes. */
struct named {
    enum { READ, WRITTEN, COMPANION } role;
    const char *flag; // the flag of the file, or of OUT for its companions
    const char *word; // name in messages for files without a flag; else NULL
    char path[PATH_BYTES];
    int there, in_folder; // 1: file, folder are valid
    struct stat file, folder;
};

static _Thread_local struct named *list; // files of the command that is being checked
static _Thread_local int n_list, list_room;

/* Words in every file that sluice writes for a flag. */
static const struct {
    const char *flag;
    int commands;
    const char *words[2];
} ours[] = {{"output", CMD_PLAN, {"\"dummy_weights\": ", "\"predicted\": {"}},
            {"output", CMD_PROBE, {"# sluice machine file", ""}},
            {"output", CMD_PACK, {PACK_MAGIC, ""}},
            {"output", CMD_BENCH, {"command\"", "sluice bench "}},
            {"output", CMD_BENCH, {",command,version,machine,date", "sluice bench "}},
            {"output", JOB_CMDS, {"\"identity\": {", "\"journal\": "}}, // OUT.job.json
            {"summary", ~0, {"\"dummy_weights\": ", "\"peak_bytes\": "}},
            {"trace", ~0, {"\"traceEvents\":[", "{\"name\":\"sluice\"}"}},
            {"kv-dump", ~0, {"{\"row\":\"", "\",\"layer\":"}},
            {"kv-trace", ~0, {" layer 0 head 0 ", ": holds "}}};

static enum err name_file(int role, const char *flag, const char *word, const char *path,
                          const char *suffix)
{
    struct named *f = &list[n_list];
    char folder[PATH_BYTES];
    CHECK(n_list < list_room);
    f->role = role;
    f->flag = flag;
    f->word = word;
    if (snprintf(f->path, sizeof f->path, "%s%s", path, suffix) >= (int)sizeof f->path - 64)
        return fail(ERR_USAGE, "%.512s: --%s: the path is too long", path, flag);
    snprintf(folder, sizeof folder, "%s", f->path);
    f->there = stat(f->path, &f->file) == 0;
    f->in_folder = stat(dirname(folder), &f->folder) == 0;
    n_list += f->there || role != READ;
    return OK;
}

static enum err name_files(const struct config *c, enum config_command command)
{
    struct config_path paths[CONFIG_KNOBS_MAX];
    int n = config_paths(c, paths, CONFIG_KNOBS_MAX);
    n_list = 0;
    list_room = n + 2 * c->n_args + N_JOB_COMPANIONS;
    list = calloc((size_t)list_room, sizeof *list);
    if (!list)
        return fail(ERR_FIT, "no memory for the paths of the command");
    for (int i = 0; i < n; i++)
        if (paths[i].written || strcmp(paths[i].path, "-") != 0)
            TRY(name_file(paths[i].written ? WRITTEN : READ, paths[i].flag, NULL, paths[i].path,
                          ""));
    for (int i = 0; i < c->n_args && command == CMD_PACK; i++)
        TRY(name_file(READ, "", "the model", c->args[i], ""));
    for (int i = 0; i < c->n_args && command == CMD_MERGE; i++) {
        TRY(name_file(READ, "", "one of the parts", c->args[i], ""));
        TRY(name_file(READ, "", "one of the parts", c->args[i], job_suffixes[JOB_MANIFEST]));
    }
    for (int i = 0; i < N_JOB_COMPANIONS && c->out && (command & JOB_CMDS); i++)
        TRY(name_file(COMPANION, "output", "a file that the job of -o writes", c->out,
                      job_suffixes[i]));
    return OK;
}

static const char *base_of(const struct named *f)
{
    const char *slash = strrchr(f->path, '/');
    return slash ? slash + 1 : f->path;
}

static int one_inode(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static int one_file(const struct named *a, const struct named *b)
{
    if (a->there && b->there && one_inode(&a->file, &b->file))
        return 1;
    return a->in_folder && b->in_folder && one_inode(&a->folder, &b->folder) &&
           strcmp(base_of(a), base_of(b)) == 0;
}

/* 1 if both may name one file. OUT.input, rows from stdin, is input and companion of one job. */
static int may_be_one(const struct named *a, const struct named *b)
{
    const char *input = job_suffixes[JOB_INPUT];
    size_t n = strlen(a->path), n_input = strlen(input);
    int spooled = a->role == COMPANION && n > n_input &&
                  strcmp(a->path + n - n_input, input) == 0 && strcmp(b->flag, "input") == 0;
    return spooled || (a->role == COMPANION && b->role == COMPANION);
}

static enum err check_others(const struct named *f)
{
    for (int i = 0; i < n_list; i++) {
        const struct named *other = &list[i];
        if (other == f || may_be_one(f, other) || may_be_one(other, f) || !one_file(f, other))
            continue;
        return fail(ERR_USAGE, "%.400s: --%s: this is %s%s: %.400s (another path)", f->path,
                    f->flag, other->word ? other->word : "also the file of --",
                    other->word ? "" : other->flag, other->path);
    }
    return OK;
}

/* 1 if the file contains the words that sluice writes for this flag, or is empty. */
static int is_ours(const struct named *f, enum config_command command)
{
    char text[2 * LOOK_BYTES];
    const char *why;
    if (!f->there || f->file.st_size == 0)
        return 1;
    FILE *in = regular_open(f->path, &why);
    if (!in)
        return 0;
    size_t n = fread(text, 1, LOOK_BYTES, in);
    if (f->file.st_size > LOOK_BYTES &&
        fseek(in, -min_i64(f->file.st_size - LOOK_BYTES, LOOK_BYTES), SEEK_END) == 0)
        n += fread(text + n, 1, LOOK_BYTES, in);
    fclose(in);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (strcmp(ours[i].flag, f->flag) == 0 && (ours[i].commands & (int)command) &&
            memmem(text, n, ours[i].words[0], strlen(ours[i].words[0])) &&
            memmem(text, n, ours[i].words[1], strlen(ours[i].words[1])))
            return 1;
    return 0;
}

static enum err check_file(const struct named *f, const struct config *c,
                           enum config_command command)
{
    const char *model = command == CMD_PACK && c->n_args > 0 ? c->args[0] : c->model;
    int ours_now = is_ours(f, command);
    /* Whose OUT it is, the job checks. */
    int of_job = (command & JOB_CMDS) && strcmp(f->flag, "output") == 0;
    TRY(file_output_check(f->flag, f->path));
    TRY(check_others(f));
    if (f->there && model && !ours_now && pack_is_source(model, &f->file))
        return fail(ERR_USAGE, "%.512s: --%s: is a file of the model (another path)", f->path,
                    f->flag);
    if (!ours_now && !of_job && !c->overwrite)
        return fail(ERR_USAGE,
                    "%.512s: --%s: is there, and was not written by sluice for this flag "
                    "(--overwrite, or another path)",
                    f->path, f->flag);
    return OK;
}

/* The ways in which several processes do one job. */
enum { WORK_DIR = 1, DEVICES = 2, PIPELINE = 4 };

/* Refuses what only one process can do, and files that each process would write. */
static enum err check_ways(const struct config *c)
{
    const int way = c->pipeline                    ? PIPELINE
                    : c->devices                   ? DEVICES
                    : c->work_dir && !c->to_stdout ? WORK_DIR
                                                   : 0;
    const char *name = way == PIPELINE ? "pipeline" : way == DEVICES ? "devices" : "work-dir";
    const struct {
        const char *flag;
        int given, refused;
    } flags[] = {{"devices", c->devices != NULL, PIPELINE},
                 {"work-dir", c->work_dir != NULL, PIPELINE},
                 {"device", config_given(c, "device"), DEVICES},
                 {"output -", c->to_stdout, DEVICES | PIPELINE},
                 {"text", c->text != NULL, DEVICES},
                 {"dry-run", c->dry_run, DEVICES | PIPELINE},
                 {"trace", c->trace != NULL, DEVICES},
                 {"kv-dump", c->kv_dump != NULL, DEVICES | PIPELINE},
                 {"kv-trace", c->kv_trace != NULL, DEVICES | PIPELINE},
                 {"shard", c->shard != NULL, WORK_DIR | DEVICES},
                 {"overwrite", c->overwrite, WORK_DIR | DEVICES},
                 {"retry-errors", c->retry_errors, WORK_DIR | DEVICES},
                 {"order completion", c->order == ORDER_COMPLETION, WORK_DIR | DEVICES},
                 {"input -", c->in && strcmp(c->in, "-") == 0, WORK_DIR | DEVICES | PIPELINE}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].given && (flags[i].refused & way))
            return fail(ERR_USAGE, "--%s: does not go with --%s", name, flags[i].flag);
    return OK;
}

/* `-` means stdout for commands that print one document, or rows. A job writes its rows to a folder
 * first (engine/cli/spool.h); an existing file there is checked like any OUT. */
static enum err take_stdout(struct config *c, enum config_command command)
{
    static char path[PATH_BYTES];
    const int documents = CMD_PLAN | CMD_PROBE | CMD_BENCH, rows = CMD_RUN | CMD_SCORE;
    int is_stdout = c->out && strcmp(c->out, "-") == 0 && (command & (documents | rows));
    c->to_stdout = is_stdout && (command & rows) != 0;
    TRY(check_ways(c));
    if (!is_stdout)
        return OK;
    c->out = NULL;
    c->json |= command == CMD_PLAN;
    if (c->work_dir && access(c->work_dir, F_OK) == 0) {
        snprintf(path, sizeof path, "%.4096s/%s", c->work_dir, SPOOL_OUT);
        c->out = path;
    }
    return OK;
}

enum err outputs_check(struct config *c, enum config_command command)
{
    TRY(take_stdout(c, command));
    enum err err = name_files(c, command);
    for (int i = 0; err == OK && i < n_list; i++)
        if (list[i].role != READ)
            err = check_file(&list[i], c, command);
    free(list);
    list = NULL;
    TRY(err);
    int job = c->out && c->in && (command & (CMD_RUN | CMD_SCORE));
    return job ? job_paths_check(c->out, c->in, c->overwrite) : OK;
}
