/* tests/simt/ptx_memory.c - see ptx.h: instructions that touch memory or meet other lanes, and
 * where a thread goes on.
 *
 * Owns: their forms. Refuses: what the kernels' PTX does not have. Every access goes through the
 * shim's shadow (bounds, unwritten bytes, races, copies in flight); parameters and locals, which
 * belong to one thread, are held to their size here. */
#include "tests/simt/ptx.h"

#include <stdlib.h>
#include <string.h>

/* ---- loads and stores ---- */

/* The address of an access of `bytes`; shared memory, parameters and locals end where they end. */
static uint8_t *address(const uint64_t *r, const struct ptx_inst *i, int64_t bytes)
{
    uint64_t at = r[i->a] + (uint64_t)i->offset;
    int64_t limit = INT64_MAX;
    const char *of = "";
    if (i->space == SLOT_SHARED) {
        at = (uint32_t)at;
        limit = simt_now.shared_bytes;
        of = "shared memory";
    } else if (i->space == SLOT_PARAM) {
        limit = i->kernel->param_bytes;
        of = "parameters";
    } else if (i->space == SLOT_LOCAL) {
        limit = i->kernel->local_bytes;
        of = "locals";
    }
    if (limit != INT64_MAX && (at > (uint64_t)limit || (int64_t)at + bytes > limit))
        simt_fail(i, ptx_site(i), "%s: bytes from %lld on of %lld of %s", i->name, (long long)at,
                  (long long)limit, of);
    if ((r[i->space] + at) % (uint64_t)bytes)
        simt_fail(i, ptx_site(i), "%s: %lld bytes that are not on a multiple of them", i->name,
                  (long long)bytes);
    return (uint8_t *)(uintptr_t)(r[i->space] + at);
}

static int in_table(const struct ptx_file *f, const uint8_t *p, int64_t bytes)
{
    for (int i = 0; i < f->n_tables; i++)
        if (p >= f->tables[i].at && p + bytes <= f->tables[i].at + f->tables[i].bytes)
            return 1;
    return 0;
}

static void touch(const struct ptx_inst *i, const void *p, int64_t bytes, enum access kind)
{
    if (kind == ACCESS_READ && in_table(i->kernel->file, p, bytes))
        return;
    if (i->space != SLOT_PARAM && i->space != SLOT_LOCAL)
        shadow_access(p, bytes, kind, i);
}

static uint64_t number_at(const uint8_t *p, int bytes)
{
    uint64_t x = 0;
    memcpy(&x, p, (size_t)bytes);
    return x;
}

static struct ptx_inst *run_load(uint64_t *r, struct ptx_inst *i)
{
    const uint8_t *p = address(r, i, i->n * i->bytes);
    touch(i, p, i->n * i->bytes, ACCESS_READ);
    for (int j = 0; j < i->n; j++)
        r[i->list[j]] = number_at(p + j * i->bytes, i->bytes);
    return i + 1;
}

/* mode: bits of the register, over which the sign spreads. */
static struct ptx_inst *run_load_signed(uint64_t *r, struct ptx_inst *i)
{
    const uint8_t *p = address(r, i, i->bytes);
    const int up = 64 - 8 * i->bytes;
    touch(i, p, i->bytes, ACCESS_READ);
    const int64_t x = (int64_t)(number_at(p, i->bytes) << up) >> up;
    r[i->list[0]] = (uint64_t)x & (UINT64_MAX >> (64 - i->mode));
    return i + 1;
}

static struct ptx_inst *run_store(uint64_t *r, struct ptx_inst *i)
{
    uint8_t *p = address(r, i, i->n * i->bytes);
    touch(i, p, i->n * i->bytes, ACCESS_WRITE);
    for (int j = 0; j < i->n; j++)
        memcpy(p + j * i->bytes, &r[i->list[j]], (size_t)i->bytes);
    return i + 1;
}

/* The word at *at when it names a space, else generic addresses. */
static int32_t space_of(const struct ptx_words *w, int *at)
{
    static const struct {
        const char *word;
        int32_t slot;
    } spaces[] = {{"global", SLOT_ZERO},
                  {"shared", SLOT_SHARED},
                  {"local", SLOT_LOCAL},
                  {"param", SLOT_PARAM}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (strcmp(w->word[*at], spaces[i].word) == 0) {
            ++*at;
            return spaces[i].slot;
        }
    return SLOT_ZERO;
}

/* Bytes of a type such as "u32"; 0 where it is none. */
static int type_bytes(const char *type)
{
    const int bits = *type && strchr("bsuf", *type) ? atoi(type + 1) : 0;
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? bits / 8 : 0;
}

static void address_into(const struct ptx_operand *o, struct ptx_inst *i)
{
    i->a = o->slot;
    i->offset = o->offset;
}

static int load_or_store(const struct ptx_words *w, struct ptx_inst *i)
{
    const int is_load = strcmp(w->word[0], "ld") == 0;
    int at = 1, n = 1;
    if (!is_load && strcmp(w->word[0], "st") != 0)
        return 0;
    i->space = space_of(w, &at);
    if (is_load && i->space == SLOT_ZERO && strcmp(w->word[at], "nc") == 0)
        at++; // .nc: no thread writes that memory
    if (strcmp(w->word[at], "v2") == 0 || strcmp(w->word[at], "v4") == 0)
        n = w->word[at++][1] - '0';
    i->n = (int16_t)n;
    i->bytes = (int16_t)type_bytes(w->word[at]);
    if (i->bytes == 0 || *w->word[at + 1])
        return 0;
    ptx_form(w, is_load ? (n > 1 ? "la" : "sa") : n > 1 ? "al" : "as");
    const struct ptx_operand *o = &w->operand[!is_load];
    if (n > 1 && o->n != n)
        ptx_refuse(w->path, w->line, "%s of %d registers", w->name, o->n);
    if (o->bits != 0 && o->bits < 8 * i->bytes)
        ptx_refuse(w->path, w->line, "%s with registers of %d bits", w->name, o->bits);
    memcpy(i->list, o->list, sizeof i->list);
    if (n == 1)
        i->list[0] = o->slot;
    address_into(&w->operand[is_load], i);
    i->run = is_load ? run_load : run_store;
    i->mode = o->bits;
    if (is_load && *w->word[at] == 's' && o->bits > 8 * i->bytes) {
        if (n > 1)
            ptx_refuse(w->path, w->line, "%s into wider registers", w->name);
        i->run = run_load_signed;
    }
    return 1;
}

/* ---- atomics ---- */

static struct ptx_inst *run_atomic(uint64_t *r, struct ptx_inst *i)
{
    uint8_t *p = address(r, i, i->bytes);
    r[i->d] = simt_atomic_at((enum simt_atomic)i->mode, p, i->bytes, r[i->b], 0, i);
    return i + 1;
}

static int atomic(const struct ptx_words *w, struct ptx_inst *i)
{
    static const struct {
        const char *name;
        enum simt_atomic op;
        int32_t space;
        int16_t bytes;
    } atomics[] = {{"atom.shared.add.u32", SIMT_ADD, SLOT_SHARED, 4},
                   {"atom.global.add.u32", SIMT_ADD, SLOT_ZERO, 4},
                   {"atom.global.or.b64", SIMT_OR, SLOT_ZERO, 8}};
    for (size_t at = 0; at < sizeof atomics / sizeof *atomics; at++) {
        if (strcmp(atomics[at].name, w->name) != 0)
            continue;
        ptx_form(w, "sas");
        i->run = run_atomic;
        i->mode = (int)atomics[at].op;
        i->space = atomics[at].space;
        i->bytes = atomics[at].bytes;
        i->d = w->operand[0].slot;
        address_into(&w->operand[1], i);
        i->b = w->operand[2].slot;
        return 1;
    }
    return 0;
}

/* ---- barriers and warps ---- */

static struct ptx_inst *run_barrier(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    simt_barrier(ptx_site(i));
    return i + 1;
}

static struct ptx_inst *run_syncwarp(uint64_t *r, struct ptx_inst *i)
{
    simt_warp(SIMT_SYNCWARP, (unsigned)r[i->a], 0, 0, LANES, ptx_site(i));
    return i + 1;
}

static struct ptx_inst *run_ballot(uint64_t *r, struct ptx_inst *i)
{
    r[i->d] = simt_warp(SIMT_BALLOT, (unsigned)r[i->b], r[i->a] & 1, 0, LANES, ptx_site(i));
    return i + 1;
}

/* Operand c: where segments end, 31 or (of up) 0, and above it which bits of the lane are theirs.
 * list: a predicate, whether there was such a lane in the segment. */
static struct ptx_inst *run_shuffle(uint64_t *r, struct ptx_inst *i)
{
    const enum simt_op op = (enum simt_op)i->mode;
    const unsigned c = (unsigned)r[i->c], mask = (unsigned)r[i->e];
    if ((c & 31) != (op == SIMT_SHFL_UP ? 0u : 31u) || c >> 13)
        simt_fail(i, ptx_site(i), "%s with bound %x", i->name, c);
    const int width = LANES - (int)(c >> 8 & 31);
    const int by = (int)r[i->b], lane = simt_now.now->index % LANES, first = lane & ~(width - 1);
    const int from = op == SIMT_SHFL_UP     ? lane - by
                     : op == SIMT_SHFL_DOWN ? lane + by
                     : op == SIMT_SHFL_XOR  ? lane ^ by
                                            : first;
    r[i->d] = (uint32_t)simt_warp(op, mask, (uint32_t)r[i->a], by, width, ptx_site(i));
    if (i->n > 0)
        r[i->list[0]] = from >= first && from < first + width;
    return i + 1;
}

static int shuffle(const struct ptx_words *w, struct ptx_inst *i)
{
    static const struct {
        const char *name;
        enum simt_op op;
    } kinds[] = {{"shfl.sync.idx.b32", SIMT_SHFL},
                 {"shfl.sync.up.b32", SIMT_SHFL_UP},
                 {"shfl.sync.down.b32", SIMT_SHFL_DOWN},
                 {"shfl.sync.bfly.b32", SIMT_SHFL_XOR}};
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        if (strcmp(kinds[at].name, w->name) != 0)
            continue;
        ptx_form(w, "sssss");
        i->run = run_shuffle;
        i->mode = (int)kinds[at].op;
        i->n = w->operand[0].second != SLOT_ZERO;
        i->list[0] = w->operand[0].second;
        i->d = w->operand[0].slot;
        i->a = w->operand[1].slot;
        i->b = w->operand[2].slot;
        i->c = w->operand[3].slot;
        i->e = w->operand[4].slot;
        return 1;
    }
    return 0;
}

static int barrier_or_vote(const struct ptx_words *w, struct ptx_inst *i)
{
    if (strcmp(w->name, "bar.sync") == 0) {
        ptx_form(w, "s");
        if (ptx_constant(w, &w->operand[0]) != 0)
            ptx_refuse(w->path, w->line, "a barrier that is not number 0");
        i->run = run_barrier;
    } else if (strcmp(w->name, "bar.warp.sync") == 0) {
        ptx_form(w, "s");
        i->a = w->operand[0].slot;
        i->run = run_syncwarp;
    } else if (strcmp(w->name, "vote.sync.ballot.b32") == 0) {
        ptx_form(w, "sss");
        i->d = w->operand[0].slot;
        i->a = w->operand[1].slot;
        i->b = w->operand[2].slot;
        i->run = run_ballot;
    }
    return i->run != NULL;
}

/* ---- asynchronous copies ---- */

static struct ptx_inst *run_copy(uint64_t *r, struct ptx_inst *i)
{
    const int bytes = i->bytes, from_bytes = i->c == SLOT_ZERO ? bytes : (int)r[i->c];
    uint8_t *to = address(r, i, bytes);
    simt_cp_async_at(to, (const void *)(uintptr_t)r[i->b], bytes, from_bytes, i);
    return i + 1;
}

static struct ptx_inst *run_commit(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    simt_cp_commit();
    return i + 1;
}

static struct ptx_inst *run_wait(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    simt_cp_wait(i->mode);
    return i + 1;
}

static int copy(const struct ptx_words *w, struct ptx_inst *i)
{
    const int whole = strcmp(w->name, "cp.async.cg.shared.global") == 0;
    if (whole || strcmp(w->name, "cp.async.ca.shared.global") == 0) {
        ptx_form(w, w->n == 4 ? "aass" : "aas");
        i->bytes = (int16_t)ptx_constant(w, &w->operand[2]);
        if (i->bytes != 16 && (whole || (i->bytes != 4 && i->bytes != 8)))
            ptx_refuse(w->path, w->line, "%s of %d bytes", w->name, i->bytes);
        if (w->operand[1].offset)
            ptx_refuse(w->path, w->line, "%s from an address with an offset", w->name);
        i->space = SLOT_SHARED;
        address_into(&w->operand[0], i);
        i->b = w->operand[1].slot;
        i->c = w->n == 4 ? w->operand[3].slot : SLOT_ZERO;
        i->run = run_copy;
    } else if (strcmp(w->name, "cp.async.commit_group") == 0) {
        ptx_form(w, "");
        i->run = run_commit;
    } else if (strcmp(w->name, "cp.async.wait_group") == 0) {
        ptx_form(w, "s");
        i->mode = (int)ptx_constant(w, &w->operand[0]);
        i->run = run_wait;
    }
    return i->run != NULL;
}

/* ---- tensor cores ---- */

static struct ptx_inst *run_ldmatrix(uint64_t *r, struct ptx_inst *i)
{
    uint32_t got[4];
    // Lanes behind those that name rows may have any address.
    const uint64_t at = (uint32_t)(r[i->a] + (uint64_t)i->offset);
    const void *row = (const void *)(uintptr_t)(r[SLOT_SHARED] + at);
    if (simt_now.now->index % LANES < 8 * i->n)
        row = address(r, i, 16);
    simt_ldmatrix_at(got, row, i->n, i->mode, ptx_site(i), i);
    for (int j = 0; j < i->n; j++)
        r[i->list[j]] = got[j];
    return i + 1;
}

static int ldmatrix(const struct ptx_words *w, struct ptx_inst *i)
{
    static const struct {
        const char *name;
        int n, transposed;
    } kinds[] = {{"ldmatrix.sync.aligned.m8n8.x2.shared.b16", 2, 0},
                 {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, 0},
                 {"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, 1},
                 {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, 1}};
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        if (strcmp(kinds[at].name, w->name) != 0)
            continue;
        ptx_form(w, "la");
        if (w->operand[0].n != kinds[at].n)
            ptx_refuse(w->path, w->line, "%s into %d registers", w->name, w->operand[0].n);
        i->n = (int16_t)kinds[at].n;
        i->mode = kinds[at].transposed;
        i->space = SLOT_SHARED;
        memcpy(i->list, w->operand[0].list, sizeof i->list);
        address_into(&w->operand[1], i);
        i->run = run_ldmatrix;
        return 1;
    }
    return 0;
}

/* Registers of d (and c), a and b. */
static const struct {
    const char *name;
    enum simt_mma kind;
    int d, a, b;
} mmas[] = {{"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", SIMT_MMA_BF16, 4, 4, 2},
            {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", SIMT_MMA_F16, 4, 4, 2},
            {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", SIMT_MMA_F16_K8, 4, 2, 1},
            {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", SIMT_MMA_S8, 4, 4, 2},
            {"mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", SIMT_MMA_S8_K16, 2, 1, 1}};

/* list: d, c, a and b; mode: which of mmas[]. */
static struct ptx_inst *run_mma(uint64_t *r, struct ptx_inst *i)
{
    const int n_d = mmas[i->mode].d, n_a = mmas[i->mode].a, n_b = mmas[i->mode].b;
    uint32_t d[4], a[4], b[2];
    for (int j = 0; j < n_d; j++)
        d[j] = (uint32_t)r[i->list[n_d + j]];
    for (int j = 0; j < n_a; j++)
        a[j] = (uint32_t)r[i->list[2 * n_d + j]];
    for (int j = 0; j < n_b; j++)
        b[j] = (uint32_t)r[i->list[2 * n_d + n_a + j]];
    simt_mma(mmas[i->mode].kind, d, a, b, ptx_site(i));
    for (int j = 0; j < n_d; j++)
        r[i->list[j]] = d[j];
    return i + 1;
}

static int mma(const struct ptx_words *w, struct ptx_inst *i)
{
    const struct ptx_operand *o = w->operand;
    for (size_t at = 0; at < sizeof mmas / sizeof *mmas; at++) {
        const int n_d = mmas[at].d, n_a = mmas[at].a, n_b = mmas[at].b;
        if (strcmp(mmas[at].name, w->name) != 0)
            continue;
        ptx_form(w, "llll");
        if (o[0].n != n_d || o[1].n != n_a || o[2].n != n_b || o[3].n != n_d)
            ptx_refuse(w->path, w->line, "%s of other fragments", w->name);
        memcpy(i->list, o[0].list, (size_t)n_d * sizeof *i->list);
        memcpy(i->list + n_d, o[3].list, (size_t)n_d * sizeof *i->list);
        memcpy(i->list + 2 * n_d, o[1].list, (size_t)n_a * sizeof *i->list);
        memcpy(i->list + 2 * n_d + n_a, o[2].list, (size_t)n_b * sizeof *i->list);
        i->mode = (int)at;
        i->run = run_mma;
        return 1;
    }
    return 0;
}

/* ---- where to go on ---- */

static struct ptx_inst *run_branch(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    return i->to;
}

static struct ptx_inst *run_return(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    (void)i;
    return NULL;
}

static struct ptx_inst *run_trap(uint64_t *r, struct ptx_inst *i)
{
    (void)r;
    simt_trap(ptx_site(i));
}

static int control(const struct ptx_words *w, struct ptx_inst *i)
{
    if (strcmp(w->name, "bra") == 0 || strcmp(w->name, "bra.uni") == 0) {
        ptx_form(w, "b"); // the reader finds the label
        i->run = run_branch;
    } else if (strcmp(w->name, "ret") == 0) {
        ptx_form(w, "");
        i->run = run_return;
    } else if (strcmp(w->name, "trap") == 0) {
        ptx_form(w, "");
        i->run = run_trap;
    }
    return i->run != NULL;
}

int ptx_memory(const struct ptx_words *w, struct ptx_inst *i)
{
    return load_or_store(w, i) || control(w, i) || atomic(w, i) || barrier_or_vote(w, i) ||
           shuffle(w, i) || copy(w, i) || ldmatrix(w, i) || mma(w, i);
}
