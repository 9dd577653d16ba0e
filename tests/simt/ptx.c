/* tests/simt/ptx.c - see ptx.h: kernels by name, their threads, and what ran.
 *
 * SIMT_PTX names a folder with the PTX of every .cu for one architecture: all launches then run
 * that, with the architecture's tensor core and limits, whatever simt_arch_set() asks for.
 * SIMT_PTX_RAN names a file for what ran, written at the end of the program, line by line:
 *   file PATH | kernel NAME LAUNCHES | LINE TIMES OPCODE (of the last file and kernel)
 * Owns: which kernel belongs to a function of the program: nm knows the name at its address, which
 * is the one in the PTX. */
#include "tests/simt/ptx.h"

#include "kernels/base/base.h"

#include <dirent.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX     64
#define FUNCTIONS_MAX 512

static struct ptx_file *files[FILES_MAX];
static int n_files, is_open, is_on;
static uint64_t *registers; // [THREADS_MAX][registers_cap]
static int registers_cap;

/* Functions of this program whose address was asked for. */
static struct {
    const void *code;
    struct ptx_kernel *kernel;
} functions[FUNCTIONS_MAX];
static int n_functions;

/* ---- files ---- */

static void ran_write(void)
{
    FILE *f = fopen(getenv("SIMT_PTX_RAN"), "w");
    CHECK(f);
    for (int i = 0; i < n_files; i++) {
        fprintf(f, "file %s\n", files[i]->path);
        for (const struct ptx_kernel *k = files[i]->kernels; k < files[i]->kernels + files[i]->n;
             k++) {
            fprintf(f, "kernel %s %llu\n", k->name, (unsigned long long)k->launches);
            for (int at = 0; at < k->n; at++)
                fprintf(f, "%d %llu %s\n", k->code[at].line, (unsigned long long)k->code[at].ran,
                        k->code[at].name);
        }
    }
    CHECK(fclose(f) == 0);
}

struct ptx_file *ptx_add(const char *path)
{
    CHECK(n_files < FILES_MAX);
    return files[n_files++] = ptx_read(path);
}

static void folder_read(const char *folder)
{
    char path[1024];
    DIR *d = opendir(folder);
    if (!d)
        ptx_refuse(folder, 0, "cannot be read");
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".ptx") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        const int arch = ptx_add(path)->arch;
        simt_now.arch = files[0]->arch;
        if (arch != simt_now.arch)
            ptx_refuse(path, 0, "is of another architecture than %s", files[0]->path);
    }
    closedir(d);
    if (n_files == 0)
        ptx_refuse(folder, 0, "has no PTX");
}

int ptx_on(void)
{
    const char *folder = getenv("SIMT_PTX");
    if (!is_open && folder && *folder) {
        folder_read(folder);
        is_on = 1;
        if (getenv("SIMT_PTX_RAN"))
            CHECK(atexit(ran_write) == 0);
    }
    is_open = 1;
    return is_on;
}

/* ---- a function's kernel ---- */

/* Where the program lies, which is the first of all objects. */
static int first_object(struct dl_phdr_info *info, size_t size, void *bias)
{
    (void)size;
    *(uintptr_t *)bias = info->dlpi_addr;
    return 1;
}

/* The linker's name of what begins at `code`, "" when there is none. */
static void name_of(const void *code, char *to, size_t n)
{
    char program[256] = "", command[400], line[600];
    uintptr_t bias = 0;
    *to = 0;
    dl_iterate_phdr(first_object, &bias);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return;
    snprintf(command, sizeof command, "nm '%s'", program);
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        char name[512], kind;
        unsigned long long at;
        if (sscanf(line, "%llx %c %511s", &at, &kind, name) == 3 && strchr("tTW", kind) &&
            at == (uintptr_t)code - bias && strncmp(name, "_Z", 2) == 0)
            snprintf(to, n, "%s", name);
    }
    if (f)
        pclose(f);
}

/* g++ marks names that only one file sees by an L, nvcc does not. */
static int is_same_name(const char *ours, const char *nvcc)
{
    const char *rest = strncmp(ours, "_ZL", 3) == 0 ? ours + 3 : ours + 2;
    return strncmp(nvcc, "_Z", 2) == 0 && strcmp(rest, nvcc + 2) == 0;
}

static struct ptx_kernel *kernel_named(const char *name)
{
    struct ptx_kernel *found = NULL;
    for (int i = 0; i < n_files; i++)
        for (int j = 0; j < files[i]->n && strncmp(name, "_Z", 2) == 0; j++) {
            if (!is_same_name(name, files[i]->kernels[j].name))
                continue;
            if (found)
                ptx_refuse(files[i]->path, 0, "%s is also in %s", name, found->file->path);
            found = &files[i]->kernels[j];
        }
    return found;
}

int ptx_takes(struct ptx_kernel *k, int64_t param_bytes, int n_threads, struct simt_site at)
{
    if (k->param_bytes != param_bytes)
        simt_fail(NULL, at, "parameters of %lld bytes, of %d in the PTX", (long long)param_bytes,
                  k->param_bytes);
    else if (n_threads > k->threads_max)
        simt_fail(NULL, at, "a block of %d threads, of %d at most in the PTX", n_threads,
                  k->threads_max);
    else
        k->launches++;
    return !simt_failed();
}

struct ptx_kernel *ptx_find(const void *code, struct simt_site at)
{
    char name[512];
    int i = 0;
    while (i < n_functions && functions[i].code != code)
        i++;
    if (i == n_functions) {
        CHECK(n_functions < FUNCTIONS_MAX);
        name_of(code, name, sizeof name);
        functions[n_functions].code = code;
        functions[n_functions++].kernel = kernel_named(name);
    }
    if (!functions[i].kernel)
        simt_fail(NULL, at, "no PTX has this kernel");
    return functions[i].kernel;
}

/* ---- threads ---- */

static uint64_t *registers_of(const struct ptx_kernel *k, int thread)
{
    if (k->n_slots > registers_cap) { // before the first thread: a kernel's are all alike
        registers_cap = k->n_slots;
        free(registers);
        registers = malloc((size_t)registers_cap * THREADS_MAX * sizeof *registers);
        CHECK(registers);
    }
    return registers + (int64_t)registers_cap * thread;
}

static void dim_into(uint64_t *r, struct simt_dim d)
{
    r[0] = d.x;
    r[1] = d.y;
    r[2] = d.z;
}

void ptx_thread(const struct ptx_kernel *k)
{
    _Alignas(16) uint8_t local[PTX_LOCAL_BYTES];
    const struct thread *t = simt_now.now;
    uint64_t *r = registers_of(k, t->index);
    r[SLOT_ZERO] = 0;
    r[SLOT_TRUE] = 1;
    dim_into(r + SLOT_TID, t->idx);
    dim_into(r + SLOT_NTID, simt_now.block);
    dim_into(r + SLOT_CTAID, simt_now.block_at);
    dim_into(r + SLOT_NCTAID, simt_now.grid);
    r[SLOT_SHARED] = (uintptr_t)simt_take(0, 0, (int)simt_now.shared_bytes);
    r[SLOT_LOCAL] = (uintptr_t)local;
    r[SLOT_PARAM] = (uintptr_t)simt_now.args;
    memcpy(r + k->first_constant, k->constants,
           (size_t)(k->n_slots - k->first_constant) * sizeof *r);
    for (struct ptx_inst *i = k->code; i;) {
        if (r[i->guard] == (uint64_t)i->unless) {
            i++;
            continue;
        }
        i->ran++;
        i = i->run(r, i);
    }
}

/* ---- places ---- */

static const struct ptx_inst *instruction_at(const void *pc)
{
    for (int i = 0; i < n_files; i++)
        for (int j = 0; j < files[i]->n; j++) {
            const struct ptx_kernel *k = &files[i]->kernels[j];
            if ((uintptr_t)pc - (uintptr_t)k->code < (size_t)k->n * sizeof *k->code)
                return pc;
        }
    return NULL;
}

static const char *last_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "?";
}

int ptx_place(const void *pc, char *to)
{
    const struct ptx_inst *i = instruction_at(pc);
    if (!i)
        return 0;
    snprintf(to, 200, "%.80s:%d (%.80s:%d)", last_name(i->kernel->file->path), i->line,
             last_name(i->kernel->file->sources[i->from]), i->from_line);
    return 1;
}

struct simt_site ptx_site(const struct ptx_inst *i)
{
    return (struct simt_site){i->kernel->file->path, i->line};
}
