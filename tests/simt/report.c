/* tests/simt/report.c - see simt.h: the words of an error, and source lines.
 *
 * Owns: the first error; what -fsanitize=undefined calls. Refuses: a second one: what runs after
 * an error says nothing. Lines come from addr2line, which stands beside the compiler. */
#include "tests/simt/impl.h"
#include "tests/simt/ptx.h"

#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char text[1024];

const char *simt_error(void)
{
    return *text ? text : NULL;
}

void simt_clear(void)
{
    *text = 0;
}

int simt_failed(void)
{
    return *text != 0;
}

/* Where the program lies, which is the first of all objects. */
static int first_object(struct dl_phdr_info *info, size_t size, void *bias)
{
    (void)size;
    *(uintptr_t *)bias = info->dlpi_addr;
    return 1;
}

/* The innermost line of a .cu among those that were inlined there, else the innermost. */
char *simt_place(const void *pc, char *to)
{
    char program[256] = "", command[512], line[200];
    uintptr_t bias = 0;
    if (ptx_place(pc, to))
        return to;
    snprintf(to, 200, "an unknown line");
    dl_iterate_phdr(first_object, &bias);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return to;
    snprintf(command, sizeof command, "addr2line -i -s -e '%s' 0x%lx 2>/dev/null", program,
             (unsigned long)((uintptr_t)pc - 1 - bias));
    FILE *f = popen(command, "r");
    int found = 0;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, " \n")] = 0; // "FILE:LINE (discriminator 3)"
        if (found == 2 || (found == 1 && !strstr(line, ".cu:")))
            continue;
        found = strstr(line, ".cu:") ? 2 : 1;
        snprintf(to, 200, "%s", line);
    }
    if (f)
        pclose(f);
    return to;
}

void simt_fail(const void *pc, struct simt_site at, const char *fmt, ...)
{
    char place[256] = "", what[600];
    const struct thread *t = simt_thread();
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (!*text) {
        const char *name = at.file && strrchr(at.file, '/') ? strrchr(at.file, '/') + 1 : at.file;
        if (pc)
            simt_place(pc, place);
        else if (at.file)
            snprintf(place, sizeof place, "%s:%d", name, at.line);
        if (t)
            snprintf(text, sizeof text, "%s: %s block %u %u %u thread %d: %s", place, simt_now.name,
                     simt_now.block_at.x, simt_now.block_at.y, simt_now.block_at.z, t->index, what);
        else
            snprintf(text, sizeof text, "%s%s%s", place, *place ? ": " : "", what);
    }
    if (t)
        simt_give_up();
}

/* ---- undefined behaviour: each call brings a struct that begins with the place ---- */

struct place {
    const char *file;
    uint32_t line, column;
};

static void undefined(const struct place *at, const char *what)
{
    simt_fail(NULL, (struct simt_site){at->file, (int)at->line}, "undefined: %s", what);
}

#define UNDEFINED(name, what, ...)                                                                 \
    void __ubsan_handle_##name(const struct place *at, ##__VA_ARGS__);                             \
    void __ubsan_handle_##name(const struct place *at, ##__VA_ARGS__)                              \
    {                                                                                              \
        undefined(at, what);                                                                       \
    }
UNDEFINED(add_overflow, "a sum overflows")
UNDEFINED(sub_overflow, "a difference overflows")
UNDEFINED(mul_overflow, "a product overflows")
UNDEFINED(negate_overflow, "a negation overflows")
UNDEFINED(divrem_overflow, "a division by zero, or one that overflows")
UNDEFINED(shift_out_of_bounds, "a shift by too much, or of a negative number")
UNDEFINED(out_of_bounds, "an index beyond its array")
UNDEFINED(builtin_unreachable, "the end of a path that has none")
UNDEFINED(missing_return, "a function ends without its value")
UNDEFINED(load_invalid_value, "a value that its type does not have")
UNDEFINED(nonnull_arg, "NULL where it may not be")
UNDEFINED(pointer_overflow, "a pointer beyond its object")
UNDEFINED(invalid_builtin, "a count of zeros in zero")

struct type_mismatch {
    struct place at;
    const void *type;
    unsigned char log_alignment, kind;
};

void __ubsan_handle_type_mismatch_v1(const struct type_mismatch *m, uintptr_t p);
void __ubsan_handle_type_mismatch_v1(const struct type_mismatch *m, uintptr_t p)
{
    char what[128];
    snprintf(what, sizeof what, "an access through %s, which needs %d bytes of alignment",
             p ? "an unaligned pointer" : "NULL", 1 << m->log_alignment);
    undefined(&m->at, what);
}
