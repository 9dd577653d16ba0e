/* tests/simt/ptx_read.c - see ptx.h: the text of a PTX file into instructions.
 *
 * Owns: statements, registers, constants, labels, which line of the source an instruction is of.
 * Refuses: what the kernels' PTX does not have (functions, variables of modules, tables of labels),
 * by ending the program with the line: a file is either understood whole or not run. */
#include "tests/simt/ptx.h"

#include "kernels/base/base.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX   32768 // of a statement; tables are long
#define NAMES_MAX  128
#define LABEL_SIZE 32

/* Registers PREFIX0 .. PREFIXn-1, or (n 0) the one of this name. */
struct registers {
    char prefix[32];
    int32_t first;
    int n, bits;
};

/* A name with a value: a parameter, a kernel's locals, shared memory, a table. */
struct symbol {
    char name[192];
    int64_t value;
};

struct label {
    char name[LABEL_SIZE];
    int at; // instruction
};

struct reader {
    struct ptx_file *file;
    const char *path, *at;
    int line, from, from_line; // of what comes next
    int begins;                // line of the statement
    char text[TEXT_MAX];       // the statement, its comments left out
    // of the kernel that is being read
    struct ptx_kernel *kernel;
    int scope; // braces
    struct registers registers[NAMES_MAX];
    struct symbol symbols[NAMES_MAX];
    int n_registers, n_symbols, n_outside, used_bytes; // n_outside: of symbols
    struct label *labels;                              // [labels_cap]
    char (*targets)[LABEL_SIZE];                       // [code_cap], of branches
    int64_t *constants;                                // [constants_cap]
    int n_labels, labels_cap, code_cap, n_constants, constants_cap;
};

void ptx_refuse(const char *path, int line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", path, line);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(PTX_UNREADABLE);
}

#define REFUSE(r, ...) ptx_refuse((r)->path, (r)->begins, __VA_ARGS__)

/* Room for one more of n. */
static void *grown(void *p, int n, int *cap, size_t each)
{
    if (n < *cap)
        return p;
    *cap = *cap ? 2 * *cap : 1024;
    p = realloc(p, (size_t)*cap * each);
    CHECK(p);
    return p;
}

/* ---- statements ---- */

enum statement { STATEMENT, LABEL, OPEN, CLOSE, HEADER, END };

static void skip_line(struct reader *r)
{
    while (*r->at && *r->at != '\n')
        r->at++;
}

/* Spaces and comments. */
static void skip_blank(struct reader *r)
{
    for (;; r->at++) {
        if (r->at[0] == '/' && r->at[1] == '/')
            skip_line(r);
        if (*r->at == '\n')
            r->line++;
        else if (!isspace((unsigned char)*r->at))
            return;
    }
}

static int begins_with(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* Directives that end with their line; 0 where none stands. */
static int line_directive(struct reader *r)
{
    static const char *const others[] = {".version ", ".target ", ".address_size "};
    int file, line, column;
    char text[1024], path[1024];
    if (*r->at != '.')
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(r->at, "\n"), r->at); // sscanf measures it all
    if (sscanf(text, ".loc %d %d %d", &file, &line, &column) == 3) {
        r->from = file;
        r->from_line = line;
    } else if (sscanf(text, ".file %d \"%1023[^\"]\"", &file, path) == 2) {
        if (file < 0 || file >= (int)(sizeof r->file->sources / sizeof *r->file->sources))
            REFUSE(r, ".file %d", file);
        r->file->sources[file] = strdup(path);
    } else if (sscanf(text, ".target sm_%d", &r->file->arch) != 1) {
        size_t i = 0;
        while (i < sizeof others / sizeof *others && !begins_with(text, others[i]))
            i++;
        if (i == sizeof others / sizeof *others)
            return 0;
    }
    skip_line(r);
    return 1;
}

/* Copies up to where a statement ends; blanks become one space. */
static enum statement read_statement(struct reader *r)
{
    int n = 0, depth = 0;
    const int is_header = begins_with(r->at, ".visible .entry") || begins_with(r->at, ".entry");
    for (;;) {
        const char *before = r->at;
        skip_blank(r);
        if (r->at > before && n > 0 && r->text[n - 1] != ' ')
            r->text[n++] = ' ';
        const char c = *r->at;
        if (n >= TEXT_MAX - 1 || !c)
            REFUSE(r, "a statement without an end: %.60s", r->text);
        r->text[n] = 0;
        if (is_header && c == '{')
            return HEADER;
        r->at++;
        if (c == ';' && depth == 0)
            return STATEMENT;
        if (c == ':' && depth == 0 && !strchr(r->text, ' '))
            return LABEL;
        depth += (c == '{') - (c == '}');
        r->text[n++] = c;
    }
}

static enum statement next(struct reader *r)
{
    do {
        skip_blank(r);
        r->begins = r->line;
    } while (line_directive(r));
    if (begins_with(r->at, ".section")) { // debugging: nothing else follows
        if (strstr(r->at, ".entry") || r->scope > 0)
            REFUSE(r, "a section before the last kernel");
        return END;
    }
    if (*r->at == 0)
        return END;
    if (*r->at == '{' || *r->at == '}')
        return *r->at++ == '{' ? OPEN : CLOSE;
    return read_statement(r);
}

/* ---- names ---- */

/* Below zero until the kernel's registers are all known: slots_settle(). */
static int32_t constant_slot(struct reader *r, int64_t value)
{
    for (int i = 0; i < r->n_constants; i++)
        if (r->constants[i] == value)
            return -1 - i;
    r->constants = grown(r->constants, r->n_constants, &r->constants_cap, sizeof *r->constants);
    r->constants[r->n_constants] = value;
    return -1 - r->n_constants++;
}

static int bits_of(const char *type)
{
    return strcmp(type, ".pred") == 0 ? 1 : atoi(type + 2);
}

/* ".reg .b32 %r<10>", or ".reg .b64 %tmp" */
static void read_registers(struct reader *r)
{
    struct registers *g = &r->registers[r->n_registers++];
    char type[8];
    int n = 0;
    if (r->n_registers == NAMES_MAX || strchr(r->text, ',') ||
        sscanf(r->text, ".reg %7s %31[^<]<%d>", type, g->prefix, &n) < 2)
        REFUSE(r, "registers: %s", r->text);
    g->bits = bits_of(type);
    g->n = n;
    g->first = r->kernel->n_slots;
    r->kernel->n_slots += n > 0 ? n : 1;
}

/* 1 when it is a register. */
static int register_at(const struct reader *r, const char *name, int32_t *slot, int *bits)
{
    static const struct {
        const char *name;
        int32_t slot;
    } special[] = {{"%tid.", SLOT_TID},
                   {"%ntid.", SLOT_NTID},
                   {"%ctaid.", SLOT_CTAID},
                   {"%nctaid.", SLOT_NCTAID}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (begins_with(name, special[i].name)) {
            const char axis = name[strlen(special[i].name)];
            *slot = special[i].slot + axis - 'x';
            *bits = 32;
            return axis >= 'x' && axis <= 'z';
        }
    for (int i = r->n_registers - 1; i >= 0; i--) {
        const struct registers *g = &r->registers[i];
        const size_t length = strlen(g->prefix);
        const int digits = isdigit((unsigned char)name[length > strlen(name) ? 0 : length]) != 0;
        if (!begins_with(name, g->prefix) || (g->n > 0 ? !digits : name[length] != 0))
            continue;
        *slot = g->first + (g->n > 0 ? atoi(name + length) : 0);
        *bits = g->bits;
        return *slot < g->first + (g->n > 0 ? g->n : 1);
    }
    return 0;
}

/* 1 when it is a number, or a symbol's address in its space. */
static int value_of(const struct reader *r, const char *text, int64_t *value)
{
    char *end;
    if (begins_with(text, "0f")) {
        *value = (int64_t)strtoull(text + 2, &end, 16);
        return *end == 0 && end == text + 10;
    }
    *value = *text == '-' ? strtoll(text, &end, 0) : (int64_t)strtoull(text, &end, 0);
    if (end > text && *end == 0)
        return 1;
    for (int i = 0; i < r->n_symbols; i++)
        if (strcmp(r->symbols[i].name, text) == 0) {
            *value = r->symbols[i].value;
            return 1;
        }
    return 0;
}

static void symbol_add(struct reader *r, const char *name, int64_t value)
{
    if (r->n_symbols == NAMES_MAX || strlen(name) >= sizeof r->symbols->name)
        REFUSE(r, "too many names, or too long: %s", name);
    snprintf(r->symbols[r->n_symbols].name, sizeof r->symbols->name, "%s", name);
    r->symbols[r->n_symbols++].value = value;
}

/* ---- operands ---- */

static char *trimmed(char *s)
{
    while (*s == ' ')
        s++;
    char *end = s + strlen(s);
    while (end > s && end[-1] == ' ')
        *--end = 0;
    return s;
}

/* The piece up to a comma outside of braces and brackets; *at goes behind it. NULL at the end. */
static char *piece(char **at)
{
    char *s = *at;
    int depth = 0;
    if (!s || !*s)
        return NULL;
    for (char *p = s;; p++) {
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        if (*p == 0 || (*p == ',' && depth == 0)) {
            *at = *p ? p + 1 : NULL;
            *p = 0;
            return trimmed(s);
        }
    }
}

static int32_t slot_of(struct reader *r, const char *text, int *bits)
{
    int32_t slot;
    int64_t value;
    *bits = 0;
    if (register_at(r, text, &slot, bits))
        return slot;
    if (!value_of(r, text, &value))
        REFUSE(r, "unknown operand %s", text);
    return constant_slot(r, value);
}

static void read_operand(struct reader *r, char *text, struct ptx_operand *o)
{
    char *bar = strchr(text, '|'), *plus;
    int bits;
    o->second = SLOT_ZERO;
    if (*text == '{') {
        char *rest = text + 1, *one;
        o->kind = OPERAND_LIST;
        text[strlen(text) - 1] = 0;
        while ((one = piece(&rest)) != NULL) {
            if (o->n == PTX_LIST_MAX)
                REFUSE(r, "too many registers");
            o->list[o->n++] = slot_of(r, one, &bits);
            o->bits = bits > o->bits ? bits : o->bits;
        }
    } else if (*text == '[') {
        o->kind = OPERAND_ADDRESS;
        text[strlen(text) - 1] = 0;
        plus = strchr(text, '+');
        if (plus) {
            *plus = 0;
            if (!value_of(r, trimmed(plus + 1), &o->offset))
                REFUSE(r, "unknown offset %s", plus + 1);
        }
        o->slot = slot_of(r, trimmed(text + 1), &bits);
    } else if (*text == '$') {
        o->kind = OPERAND_LABEL;
        o->label = text;
    } else {
        o->kind = OPERAND_SLOT;
        if (bar) {
            *bar = 0;
            o->second = slot_of(r, trimmed(bar + 1), &bits);
        }
        o->slot = slot_of(r, trimmed(text), &o->bits);
    }
}

void ptx_form(const struct ptx_words *w, const char *kinds)
{
    int same = w->n == (int)strlen(kinds);
    for (int i = 0; i < w->n && same; i++)
        same = "slab"[w->operand[i].kind] == kinds[i];
    if (!same)
        ptx_refuse(w->path, w->line, "%s with other operands than are known", w->name);
}

int64_t ptx_constant(const struct ptx_words *w, const struct ptx_operand *o)
{
    if (o->slot >= 0)
        ptx_refuse(w->path, w->line, "%s with a register where a number has to be", w->name);
    return w->constants[-1 - o->slot];
}

/* ---- instructions ---- */

static void name_cut(struct ptx_words *w)
{
    const char *at = w->name;
    for (int i = 0; *at; i++) {
        const size_t n = strcspn(at, ".");
        if (i == PTX_WORDS_MAX - 1 || n >= sizeof w->word[i])
            ptx_refuse(w->path, w->line, "unknown instruction %s", w->name);
        memcpy(w->word[i], at, n);
        at += n + (at[n] == '.');
    }
}

static struct ptx_inst *instruction_add(struct reader *r)
{
    struct ptx_kernel *k = r->kernel;
    int cap = r->code_cap;
    k->code = grown(k->code, k->n, &cap, sizeof *k->code);
    r->targets = grown(r->targets, k->n, &r->code_cap, sizeof *r->targets);
    k->code[k->n] = (struct ptx_inst){
        .guard = SLOT_TRUE, .line = r->begins, .from = r->from, .from_line = r->from_line};
    *r->targets[k->n] = 0;
    return &k->code[k->n++];
}

static void read_instruction(struct reader *r)
{
    struct ptx_inst *i = instruction_add(r);
    struct ptx_words w = {.path = r->path, .line = r->begins};
    char *at = trimmed(r->text), *rest, *one;
    int bits;
    if (*at == '@') {
        i->unless = at[1] == '!';
        rest = at + strcspn(at, " ");
        *rest++ = 0;
        i->guard = slot_of(r, at + 1 + i->unless, &bits);
        at = trimmed(rest);
    }
    rest = at + strcspn(at, " ");
    if (*rest)
        *rest++ = 0;
    w.name = i->name = strdup(at);
    w.constants = r->constants;
    name_cut(&w);
    while ((one = piece(&rest)) != NULL) {
        if (w.n == (int)(sizeof w.operand / sizeof *w.operand))
            REFUSE(r, "%s with too many operands", w.name);
        read_operand(r, one, &w.operand[w.n]);
        if (w.operand[w.n].kind == OPERAND_LABEL)
            snprintf(r->targets[r->kernel->n - 1], LABEL_SIZE, "%s", w.operand[w.n].label);
        w.n++;
    }
    w.constants = r->constants;
    if (!ptx_numbers(&w, i) && !ptx_memory(&w, i))
        REFUSE(r, "unknown instruction %s", w.name);
    if (r->used_bytes && i->space != SLOT_PARAM)
        REFUSE(r, "%s of bytes that are not used", w.name);
    r->used_bytes = 0;
}

/* ---- kernels ---- */

static void read_label(struct reader *r)
{
    r->labels = grown(r->labels, r->n_labels, &r->labels_cap, sizeof *r->labels);
    struct label *l = &r->labels[r->n_labels++];
    if (strlen(r->text) >= LABEL_SIZE)
        REFUSE(r, "label %s", r->text);
    snprintf(l->name, LABEL_SIZE, "%s", r->text);
    l->at = r->kernel->n;
}

/* ".param .u64 NAME", or ".param .align 8 .b8 NAME[64]" */
static void read_parameter(struct reader *r, const char *text)
{
    char type[8], name[192];
    int align, bytes = 0;
    if (sscanf(text, ".param .align %d .b8 %191[^[][%d]", &align, name, &bytes) != 3) {
        if (sscanf(text, ".param %7s %191s", type, name) != 2 || strlen(type) < 3)
            REFUSE(r, "parameter %s", text);
        align = bytes = bits_of(type) / 8;
    }
    if (align <= 0 || bytes <= 0)
        REFUSE(r, "parameter %s", text);
    const int at = (int)round_up(r->kernel->param_bytes, align);
    symbol_add(r, name, at);
    r->kernel->param_bytes = at + bytes;
}

static void read_header(struct reader *r)
{
    struct ptx_file *f = r->file;
    char *open = strchr(r->text, '('), *close = strchr(r->text, ')'), *rest = open + 1, *one;
    if (!open || !close || r->kernel)
        REFUSE(r, "kernel %s", r->text);
    *open = *close = 0;
    f->kernels = realloc(f->kernels, (size_t)(f->n + 1) * sizeof *f->kernels);
    CHECK(f->kernels);
    r->kernel = &f->kernels[f->n++];
    *r->kernel = (struct ptx_kernel){.file = f, .n_slots = N_FIXED_SLOTS, .threads_max = 1024};
    r->kernel->name = strdup(trimmed(strstr(r->text, ".entry ") + strlen(".entry ")));
    r->n_registers = r->n_labels = r->n_constants = r->code_cap = 0;
    r->n_symbols = r->n_outside; // shared_pool and tables stay
    while ((one = piece(&rest)) != NULL)
        if (*one)
            read_parameter(r, one);
    const char *most = strstr(close + 1, ".maxntid ");
    if (most)
        r->kernel->threads_max = atoi(most + strlen(".maxntid "));
}

static int label_at(const struct reader *r, const char *name)
{
    for (int i = 0; i < r->n_labels; i++)
        if (strcmp(r->labels[i].name, name) == 0)
            return r->labels[i].at;
    return -1;
}

static void slot_settle(const struct reader *r, int32_t *slot)
{
    if (*slot < 0)
        *slot = r->kernel->first_constant - 1 - *slot;
}

/* Constants take the slots behind the registers; branches find their labels. */
static void kernel_end(struct reader *r)
{
    struct ptx_kernel *k = r->kernel;
    k->first_constant = k->n_slots;
    k->n_slots += r->n_constants;
    k->constants = malloc((size_t)r->n_constants * sizeof *k->constants + 1);
    CHECK(k->constants);
    for (int i = 0; i < r->n_constants; i++)
        k->constants[i] = (uint64_t)r->constants[i];
    for (int at = 0; at < k->n; at++) {
        struct ptx_inst *i = &k->code[at];
        int32_t *const slots[] = {&i->guard, &i->d, &i->a, &i->b, &i->c, &i->e};
        for (size_t s = 0; s < sizeof slots / sizeof *slots; s++)
            slot_settle(r, slots[s]);
        for (int s = 0; s < PTX_LIST_MAX; s++)
            slot_settle(r, &i->list[s]);
        const int to = *r->targets[at] ? label_at(r, r->targets[at]) : 0;
        if (to < 0 || to >= k->n)
            ptx_refuse(r->path, i->line, "no label %s", r->targets[at]);
        i->to = &k->code[to];
    }
    const char *last = k->n > 0 ? k->code[k->n - 1].name : "";
    if (strcmp(last, "ret") != 0 && strcmp(last, "bra.uni") != 0 && strcmp(last, "trap") != 0)
        REFUSE(r, "%s does not end", k->name);
    r->kernel = NULL;
}

/* ".local .align 16 .b8 NAME[64]" */
static void read_locals(struct reader *r)
{
    char name[192];
    int align, bytes;
    if (sscanf(r->text, ".local .align %d .b8 %191[^[][%d]", &align, name, &bytes) != 3 ||
        r->kernel->local_bytes > 0 || align > 16 || bytes > PTX_LOCAL_BYTES)
        REFUSE(r, "locals: %s", r->text);
    r->kernel->local_bytes = bytes;
    symbol_add(r, name, 0);
}

static void read_inside(struct reader *r)
{
    if (begins_with(r->text, ".reg "))
        read_registers(r);
    else if (begins_with(r->text, ".local "))
        read_locals(r);
    else if (begins_with(r->text, ".pragma \"used_bytes_mask"))
        r->used_bytes = 1;
    else if (*r->text != '.')
        read_instruction(r);
    else if (!begins_with(r->text, ".pragma \"nounroll\""))
        REFUSE(r, "unknown directive %s", r->text);
}

/* ".global .align 2 .b8 NAME[4] = {1, 0, 2}"; zeros at the end may be left out. */
static void read_table(struct reader *r)
{
    struct ptx_file *f = r->file;
    char name[192], *end;
    int align, bytes, from = 0;
    if (sscanf(r->text, ".global .align %d .b8 %191[^[][%d] = {%n", &align, name, &bytes, &from) !=
            3 ||
        from == 0 || align > 16 || bytes <= 0 || f->n_tables == PTX_TABLES_MAX)
        REFUSE(r, "unknown directive %.60s", r->text);
    uint8_t *table = aligned_alloc(16, (size_t)round_up(bytes, 16));
    CHECK(table);
    memset(table, 0, (size_t)bytes);
    const char *at = r->text + from;
    for (int i = 0; *at != '}'; i++, at = end + (*end == ',')) {
        const unsigned long byte = strtoul(at, &end, 10);
        if (i == bytes || end == at || (*end != '}' && *end != ','))
            REFUSE(r, "a table of %d bytes: %s", bytes, name);
        table[i] = (uint8_t)byte;
    }
    f->tables[f->n_tables].at = table;
    f->tables[f->n_tables++].bytes = bytes;
    symbol_add(r, name, (int64_t)(uintptr_t)table);
    r->n_outside++;
}

/* Outside of kernels there are tables and the shared memory of a launch, by its one name. */
static void read_outside(struct reader *r)
{
    char name[192];
    int align;
    if (begins_with(r->text, ".global ")) {
        read_table(r);
        return;
    }
    if (sscanf(r->text, ".extern .shared .align %d .b8 %191[^[][]", &align, name) != 2 ||
        align > 16 || r->n_outside > r->file->n_tables)
        REFUSE(r, "unknown directive %s", r->text);
    symbol_add(r, name, 0);
    r->n_outside++;
}

static void read_all(struct reader *r)
{
    for (;;) {
        const enum statement kind = next(r);
        if (kind == END)
            break;
        if (kind == HEADER)
            read_header(r);
        else if (kind == STATEMENT && !r->kernel)
            read_outside(r);
        else if (!r->kernel)
            REFUSE(r, "outside of a kernel: %s", r->text);
        else if (kind == STATEMENT)
            read_inside(r);
        else if (kind == LABEL)
            read_label(r);
        else if (kind == OPEN)
            r->scope++;
        else if (--r->scope == 0)
            kernel_end(r);
    }
    if (r->kernel)
        REFUSE(r, "%s does not end", r->kernel->name);
}

static char *text_of(const char *path)
{
    FILE *f = fopen(path, "rb");
    long n = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (!text || fseek(f, 0, SEEK_SET) != 0 || fread(text, 1, (size_t)n, f) != (size_t)n)
        ptx_refuse(path, 0, "cannot be read");
    text[n] = 0;
    fclose(f);
    return text;
}

struct ptx_file *ptx_read(const char *path)
{
    char *text = text_of(path);
    struct reader *r = calloc(1, sizeof *r);
    struct ptx_file *file = calloc(1, sizeof *file);
    CHECK(r && file);
    file->path = strdup(path);
    *r = (struct reader){.file = file, .path = file->path, .at = text, .line = 1};
    read_all(r);
    for (int k = 0; k < file->n; k++)
        for (int i = 0; i < file->kernels[k].n; i++)
            file->kernels[k].code[i].kernel = &file->kernels[k];
    free(r->labels);
    free(r->targets);
    free(r->constants);
    free(r);
    free(text);
    return file;
}
