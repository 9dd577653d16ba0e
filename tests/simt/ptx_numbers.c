/* tests/simt/ptx_numbers.c - see ptx.h: instructions that compute, one line each.
 *
 * Owns: what they do to bits. Refuses: all that is not in the table, to the letter.
 * Note: a NaN that arithmetic makes is 0x7fffffff, as on the device and other than
 * on x86; comparisons without u are false for a NaN, `ne` too. */
#include "kernels/dtype.h"
#include "tests/simt/ptx.h"

#include <math.h>
#include <string.h>

/* ---- slots as numbers ---- */

static inline float as_f32(uint64_t slot)
{
    const uint32_t u = (uint32_t)slot;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint64_t of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return f != f ? 0x7fffffff : u;
}

#define AS_u8(slot)   (uint8_t)(slot)
#define AS_s8(slot)   (int8_t)(slot)
#define AS_u16(slot)  (uint16_t)(slot)
#define AS_s16(slot)  (int16_t)(slot)
#define AS_u32(slot)  (uint32_t)(slot)
#define AS_s32(slot)  (int32_t)(slot)
#define AS_u64(slot)  (slot)
#define AS_s64(slot)  (int64_t)(slot)
#define AS_f32(slot)  as_f32(slot)
#define AS_pred(slot) (int)((slot)&1)

#define OF_u16(x)  (uint64_t)(uint16_t)(x)
#define OF_s16(x)  (uint64_t)(uint16_t)(x)
#define OF_u32(x)  (uint64_t)(uint32_t)(x)
#define OF_s32(x)  (uint64_t)(uint32_t)(x)
#define OF_u64(x)  (uint64_t)(x)
#define OF_s64(x)  (uint64_t)(x)
#define OF_f32(x)  of_f32(x)
#define OF_pred(x) (uint64_t)((x) != 0)

/* ---- what is more than an expression ---- */

static float least(float a, float b)
{
    if (a != a || b != b)
        return a != a ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}

static float greatest(float a, float b)
{
    return -least(-a, -b);
}

/* a + b, cut towards zero: the sum, one step back where it was rounded up. */
static float sum_cut(float a, float b)
{
    const float sum = a + b, of_b = sum - a;
    const float lost = (a - (sum - of_b)) + (b - of_b);
    return (lost < 0 && sum > 0) || (lost > 0 && sum < 0) ? nextafterf(sum, 0) : sum;
}

static int32_t to_s32(float x)
{
    if (x != x)
        return 0;
    return x >= 0x1p31f ? INT32_MAX : x <= -0x1p31f ? INT32_MIN : (int32_t)x;
}

static uint32_t permuted(uint32_t a, uint32_t b, uint32_t how)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t to = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = how >> 4 * i & 15,
                       byte = (uint32_t)(bytes >> 8 * (nibble & 7)) & 255;
        to |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return to;
}

static uint64_t inserted(uint64_t from, uint64_t to, uint32_t at, uint32_t n, unsigned bits)
{
    at &= 255;
    n &= 255;
    const uint64_t ones = n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
    const uint64_t mask = at >= bits ? 0 : ones << at;
    return at >= bits ? to : (to & ~mask) | (from << at & mask);
}

static int32_t dot4(uint32_t a, uint32_t b, uint32_t c)
{
    for (int i = 0; i < 4; i++)
        c += (uint32_t)((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
    return (int32_t)c;
}

static uint32_t bf16_of(float x)
{
    return x != x ? 0x7fff : f32_to_bf16(x);
}

/* 2^a, rounded once: the device's table is good to 2^-22. Results below 2^-126 are 0. */
static float exp2_of(float a)
{
    return a < -126.0f ? 0.0f : exp2f(a);
}

/* By zero a device gives a number that no one specifies (here all ones), and nvcc divides before it
 * asks whether it wants the quotient: the shim, which has the source, is who refuses that. */
static int64_t quotient(int64_t a, int64_t b)
{
    return b == 0 ? -1 : a / b;
}
static int64_t remainder_of(int64_t a, int64_t b)
{
    return b == 0 ? -1 : a % b;
}

/* ---- the table: name, operands, as what they are read, as what the result is kept, result ---- */

// (clang-format takes arguments of macros for types)
// clang-format off
#define BY (uint32_t)r[i->b] // of shifts: 32 bits, whatever is shifted

#define SETP(X, op, c, T) X(setp_##op##_##T, "setp." #op "." #T, 3, T, pred, a c b)
#define SETPS(X, T)                                                                                \
    SETP(X, eq, ==, T)                                                                             \
    SETP(X, ne, !=, T)                                                                             \
    SETP(X, lt, <, T)                                                                              \
    SETP(X, le, <=, T)                                                                             \
    SETP(X, gt, >, T)                                                                              \
    SETP(X, ge, >=, T)
#define LOGIC(X, T, name)                                                                          \
    X(and_##name, "and." #name, 3, T, T, a & b)                                                    \
    X(or_##name, "or." #name, 3, T, T, a | b)                                                      \
    X(xor_##name, "xor." #name, 3, T, T, a ^ b)

#define NUMBERS(X)                                                                                 \
    X(add_s32, "add.s32", 3, u32, u32, a + b)                                                      \
    X(add_s64, "add.s64", 3, u64, u64, a + b)                                                      \
    X(add_u64, "add.u64", 3, u64, u64, a + b)                                                      \
    X(mul_lo_s16, "mul.lo.s16", 3, u16, u16, a * b)                                                \
    X(add_s16, "add.s16", 3, u16, u16, a + b)                                                      \
    X(sub_s16, "sub.s16", 3, u16, u16, a - b)                                                      \
    X(sub_s32, "sub.s32", 3, u32, u32, a - b)                                                      \
    X(sub_s64, "sub.s64", 3, u64, u64, a - b)                                                      \
    X(neg_s32, "neg.s32", 2, u32, u32, 0u - a)                                                     \
    X(neg_s64, "neg.s64", 2, u64, u64, 0u - a)                                                     \
    X(mul_lo_s32, "mul.lo.s32", 3, u32, u32, a * b)                                                \
    X(mul_lo_s64, "mul.lo.s64", 3, u64, u64, a * b)                                                \
    X(mul_hi_s32, "mul.hi.s32", 3, s32, u32, (uint32_t)(((int64_t)a * b) >> 32))                   \
    X(mul_hi_u32, "mul.hi.u32", 3, u32, u32, (uint32_t)(((uint64_t)a * b) >> 32))                  \
    X(mul_wide_s32, "mul.wide.s32", 3, s32, s64, (int64_t)a * b)                                   \
    X(mul_wide_u32, "mul.wide.u32", 3, u32, u64, (uint64_t)a * b)                                  \
    X(mul_wide_u16, "mul.wide.u16", 3, u16, u32, (uint32_t)a * b)                                  \
    X(mad_lo_s32, "mad.lo.s32", 4, u32, u32, a * b + c)                                            \
    X(div_s32, "div.s32", 3, s32, s32, quotient(a, b))                                             \
    X(div_u32, "div.u32", 3, u32, u32, quotient(a, b))                                             \
    X(div_u16, "div.u16", 3, u16, u16, quotient(a, b))                                             \
    X(rem_s32, "rem.s32", 3, s32, s32, remainder_of(a, b))                                         \
    X(min_s32, "min.s32", 3, s32, s32, a < b ? a : b)                                              \
    X(max_s32, "max.s32", 3, s32, s32, a > b ? a : b)                                              \
    X(max_u32, "max.u32", 3, u32, u32, a > b ? a : b)                                              \
    X(min_s64, "min.s64", 3, s64, s64, a < b ? a : b)                                              \
    X(min_u64, "min.u64", 3, u64, u64, a < b ? a : b)                                              \
    LOGIC(X, u16, b16)                                                                             \
    LOGIC(X, u32, b32)                                                                             \
    LOGIC(X, u64, b64)                                                                             \
    LOGIC(X, pred, pred)                                                                           \
    X(not_pred, "not.pred", 2, pred, pred, !a)                                                     \
    X(not_b32, "not.b32", 2, u32, u32, ~a)                                                         \
    X(not_b64, "not.b64", 2, u64, u64, ~a)                                                         \
    X(shl_b16, "shl.b16", 3, u16, u16, BY > 15 ? 0 : a << BY)                                      \
    X(shl_b32, "shl.b32", 3, u32, u32, BY > 31 ? 0 : a << BY)                                      \
    X(shl_b64, "shl.b64", 3, u64, u64, BY > 63 ? 0 : a << BY)                                      \
    X(shr_u16, "shr.u16", 3, u16, u16, BY > 15 ? 0 : a >> BY)                                      \
    X(shr_u32, "shr.u32", 3, u32, u32, BY > 31 ? 0 : a >> BY)                                      \
    X(shr_u64, "shr.u64", 3, u64, u64, BY > 63 ? 0 : a >> BY)                                      \
    X(shr_s16, "shr.s16", 3, s16, s16, a >> (BY > 15 ? 15 : BY))                                   \
    X(shr_s32, "shr.s32", 3, s32, s32, a >> (BY > 31 ? 31 : BY))                                   \
    X(shr_s64, "shr.s64", 3, s64, s64, a >> (BY > 63 ? 63 : BY))                                   \
    X(popc_b32, "popc.b32", 2, u32, u32, __builtin_popcount(a))                                    \
    X(prmt_b32, "prmt.b32", 4, u32, u32, permuted(a, b, c))                                        \
    X(bfi_b32, "bfi.b32", 5, u32, u32, inserted(a, b, c, AS_u32(r[i->e]), 32))                     \
    X(bfi_b64, "bfi.b64", 5, u64, u64, inserted(a, b, AS_u32(c), AS_u32(r[i->e]), 64))             \
    X(dp4a, "dp4a.s32.s32", 4, u32, s32, dot4(a, b, c))                                            \
    X(selp_b32, "selp.b32", 4, u32, u32, c & 1 ? a : b)                                            \
    X(selp_u16, "selp.u16", 4, u16, u16, c & 1 ? a : b)                                            \
    X(selp_b16, "selp.b16", 4, u16, u16, c & 1 ? a : b)                                            \
    X(selp_u32, "selp.u32", 4, u32, u32, c & 1 ? a : b)                                            \
    X(selp_s32, "selp.s32", 4, u32, u32, c & 1 ? a : b)                                            \
    X(selp_f32, "selp.f32", 4, u32, u32, c & 1 ? a : b)                                            \
    X(selp_b64, "selp.b64", 4, u64, u64, c & 1 ? a : b)                                            \
    X(mov_pred, "mov.pred", 2, pred, pred, a)                                                      \
    X(mov_u16, "mov.u16", 2, u16, u16, a)                                                          \
    X(mov_b32, "mov.b32", 2, u32, u32, a)                                                          \
    X(mov_u32, "mov.u32", 2, u32, u32, a)                                                          \
    X(mov_f32, "mov.f32", 2, u32, u32, a)                                                          \
    X(mov_b64, "mov.b64", 2, u64, u64, a)                                                          \
    X(mov_u64, "mov.u64", 2, u64, u64, a)                                                          \
    X(cvta_to_global_u64, "cvta.to.global.u64", 2, u64, u64, a)                                    \
    X(cvta_shared_u64, "cvta.shared.u64", 2, u64, u64, r[SLOT_SHARED] + a)                         \
    X(cvt_s64_s32, "cvt.s64.s32", 2, s32, s64, a)                                                  \
    X(cvt_u64_u32, "cvt.u64.u32", 2, u32, u64, a)                                                  \
    X(cvt_u32_u64, "cvt.u32.u64", 2, u64, u32, a)                                                  \
    X(cvt_u32_u16, "cvt.u32.u16", 2, u16, u32, a)                                                  \
    X(cvt_u64_u16, "cvt.u64.u16", 2, u16, u64, a)                                                  \
    X(cvt_u16_u32, "cvt.u16.u32", 2, u32, u16, a)                                                  \
    X(cvt_s16_s8, "cvt.s16.s8", 2, s8, s16, a)                                                     \
    X(cvt_s32_s8, "cvt.s32.s8", 2, s8, s32, a)                                                     \
    X(cvt_rn_f32_s16, "cvt.rn.f32.s16", 2, s16, f32, (float)a)                                     \
    X(cvt_rn_f32_u16, "cvt.rn.f32.u16", 2, u16, f32, (float)a)                                     \
    X(cvt_rn_f32_s32, "cvt.rn.f32.s32", 2, s32, f32, (float)a)                                     \
    X(cvt_rn_f32_u32, "cvt.rn.f32.u32", 2, u32, f32, (float)a)                                     \
    X(cvt_rzi_s32_f32, "cvt.rzi.s32.f32", 2, f32, s32, to_s32(a))                                  \
    X(cvt_rn_bf16x2_f32, "cvt.rn.bf16x2.f32", 3, f32, u32, bf16_of(a) << 16 | bf16_of(b))          \
    X(ex2_approx_ftz_f32, "ex2.approx.ftz.f32", 2, f32, f32, exp2_of(a))                           \
    X(cvt_rn_f16_f32, "cvt.rn.f16.f32", 2, f32, u16, a != a ? 0x7fff : f32_to_f16(a))              \
    X(cvt_f32_f16, "cvt.f32.f16", 2, u16, f32, f16_to_f32(a))                                      \
    X(cvt_rmi_f32_f32, "cvt.rmi.f32.f32", 2, f32, f32, floorf(a))                                  \
    X(add_rn_f32, "add.rn.f32", 3, f32, f32, a + b)                                                \
    X(add_rz_f32, "add.rz.f32", 3, f32, f32, sum_cut(a, b))                                        \
    X(sub_rn_f32, "sub.rn.f32", 3, f32, f32, a - b)                                                \
    X(mul_rn_f32, "mul.rn.f32", 3, f32, f32, a * b)                                                \
    X(fma_rn_f32, "fma.rn.f32", 4, f32, f32, fmaf(a, b, c))                                        \
    X(div_rn_f32, "div.rn.f32", 3, f32, f32, a / b)                                                \
    X(rcp_rn_f32, "rcp.rn.f32", 2, f32, f32, 1.0f / a)                                             \
    X(sqrt_rn_f32, "sqrt.rn.f32", 2, f32, f32, sqrtf(a))                                           \
    X(max_f32, "max.f32", 3, f32, f32, greatest(a, b))                                             \
    X(min_f32, "min.f32", 3, f32, f32, least(a, b))                                                \
    X(abs_f32, "abs.f32", 2, u32, u32, a & 0x7fffffff)                                             \
    X(neg_f32, "neg.f32", 2, u32, u32, a ^ 0x80000000)                                             \
    SETPS(X, u16)                                                                                  \
    SETPS(X, s16)                                                                                  \
    SETPS(X, u32)                                                                                  \
    SETPS(X, s32)                                                                                  \
    SETPS(X, u64)                                                                                  \
    SETPS(X, s64)                                                                                  \
    X(setp_eq_b32, "setp.eq.b32", 3, u32, pred, a == b)                                            \
    X(setp_eq_f32, "setp.eq.f32", 3, f32, pred, a == b)                                            \
    X(setp_ne_f32, "setp.ne.f32", 3, f32, pred, a < b || a > b)                                    \
    X(setp_lt_f32, "setp.lt.f32", 3, f32, pred, a < b)                                             \
    X(setp_le_f32, "setp.le.f32", 3, f32, pred, a <= b)                                            \
    X(setp_gt_f32, "setp.gt.f32", 3, f32, pred, a > b)                                             \
    X(setp_ge_f32, "setp.ge.f32", 3, f32, pred, a >= b)                                            \
    X(setp_equ_f32, "setp.equ.f32", 3, f32, pred, !(a < b || a > b))                               \
    X(setp_neu_f32, "setp.neu.f32", 3, f32, pred, a != b)                                          \
    X(setp_ltu_f32, "setp.ltu.f32", 3, f32, pred, !(a >= b))                                       \
    X(setp_leu_f32, "setp.leu.f32", 3, f32, pred, !(a > b))                                        \
    X(setp_gtu_f32, "setp.gtu.f32", 3, f32, pred, !(a <= b))                                       \
    X(setp_geu_f32, "setp.geu.f32", 3, f32, pred, !(a < b))                                        \
    X(setp_num_f32, "setp.num.f32", 3, f32, pred, a == a && b == b)                                \
    X(setp_nan_f32, "setp.nan.f32", 3, f32, pred, a != a || b != b)
// clang-format on

#define NUMBER_RUN(id, text, n, T, D, result)                                                      \
    static struct ptx_inst *run_##id(uint64_t *r, struct ptx_inst *i)                              \
    {                                                                                              \
        const __auto_type a = AS_##T(r[i->a]);                                                     \
        const __auto_type b = AS_##T(r[i->b]);                                                     \
        const __auto_type c = AS_##T(r[i->c]);                                                     \
        (void)a, (void)b, (void)c;                                                                 \
        r[i->d] = OF_##D(result);                                                                  \
        return i + 1;                                                                              \
    }
NUMBERS(NUMBER_RUN)

static const struct {
    const char *name;
    int n;
    struct ptx_inst *(*run)(uint64_t *r, struct ptx_inst *i);
} numbers[] = {
#define NUMBER_ROW(id, text, n, T, D, result) {text, n, run_##id},
    NUMBERS(NUMBER_ROW)};

/* ---- registers that are cut or joined ---- */

static struct ptx_inst *run_join(uint64_t *r, struct ptx_inst *i)
{
    const uint64_t mask = (UINT64_C(1) << i->mode) - 1; // a constant may have more
    r[i->d] = (r[i->list[0]] & mask) | (r[i->list[1]] & mask) << i->mode;
    return i + 1;
}

static struct ptx_inst *run_cut(uint64_t *r, struct ptx_inst *i)
{
    const uint64_t whole = r[i->a];
    r[i->list[0]] = whole & ((UINT64_C(1) << i->mode) - 1);
    r[i->list[1]] = whole >> i->mode;
    return i + 1;
}

static int join_or_cut(const struct ptx_words *w, struct ptx_inst *i)
{
    const int is_b64 = strcmp(w->name, "mov.b64") == 0;
    if ((!is_b64 && strcmp(w->name, "mov.b32") != 0) || w->n != 2)
        return 0;
    const int join = w->operand[1].kind == OPERAND_LIST, cut = w->operand[0].kind == OPERAND_LIST;
    if (join == cut)
        return 0;
    const struct ptx_operand *list = &w->operand[join];
    if (list->n != 2 || list->bits != (is_b64 ? 32 : 16))
        ptx_refuse(w->path, w->line, "%s of %d registers of %d bits", w->name, list->n, list->bits);
    i->mode = list->bits;
    i->d = i->a = w->operand[!join].slot;
    i->run = join ? run_join : run_cut;
    memcpy(i->list, list->list, sizeof i->list);
    return 1;
}

int ptx_numbers(const struct ptx_words *w, struct ptx_inst *i)
{
    int32_t *const to[] = {&i->d, &i->a, &i->b, &i->c, &i->e};
    if (join_or_cut(w, i))
        return 1;
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        if (strcmp(numbers[at].name, w->name) != 0)
            continue;
        ptx_form(w, &"sssss"[5 - numbers[at].n]);
        for (int o = 0; o < w->n; o++)
            *to[o] = w->operand[o].slot;
        i->run = numbers[at].run;
        return 1;
    }
    return 0;
}
