/* tests/simt_attend_test.c - the CUDA kernels of attention under the SIMT shim, byte for byte as
 * kernels/ref in contract order has it. What an op has to write counts as unwritten before.
 * Prompts run as on sm_75, because tensor cores give bytes of their own (simt_prompt_test.c). */
#include "kernels/cuda/forced.h"
#include "tests/simt_arrays.h"

#define aligned_alloc array_alloc
#define free          array_free
#include "tests/attend_help.h"

/* ---- a device whose launches go to the shim ---- */

static void kv_to_device(struct kv_rows *kv)
{
    TO_DEVICE(kv->pages);
    TO_DEVICE(kv->tails);
    TO_DEVICE(kv->page_ids);
    TO_DEVICE(kv->slot_pos);
    TO_DEVICE(kv->slot_score);
    TO_DEVICE(kv->slot_rank);
    TO_DEVICE(kv->slot_trait);
    TO_DEVICE(kv->dirty);
    TO_DEVICE(kv->rings);
}

static int slots_beyond; // that slots_max names too many

static void forced_on_shim(const struct ops *ops, struct attend_forced_args a)
{
    const struct forced_span *spans = a.spans;
    int n_kv_heads = a.kv.layout.n_kv_heads, head_dim = a.kv.layout.head_dim;
    a.slots_max += slots_beyond;
    kv_to_device(&a.kv);
    a.spans = simt_of(spans, a.n_spans * (int64_t)sizeof *spans); // on the caller's stack
    TO_DEVICE(a.q);
    TO_DEVICE(a.k);
    TO_DEVICE(a.v);
    TO_DEVICE(a.out);
    TO_DEVICE(a.events);
    TO_DEVICE(a.sinks);
    TO_DEVICE(a.rope.cos);
    TO_DEVICE(a.rope.sin);
    TO_DEVICE(a.rope.factors);
    for (int i = 0; i < a.n_spans; i++)
        for (int64_t t = spans[i].token; t < spans[i].token + spans[i].n; t++) {
            simt_forget(a.out + t * a.out_stride, (int64_t)a.n_heads * head_dim * 4);
            simt_forget(a.events + t * n_kv_heads, n_kv_heads * (int64_t)sizeof *a.events);
        }
    a.scratch = simt_alloc(cuda_attend_forced_scratch_bytes(ops, a.n_spans, a.slots_max, a.n_heads,
                                                            n_kv_heads, head_dim,
                                                            evict_decode_scores(a.evict.policy)));
    cuda_attend_forced(NULL, ops, &a);
    arrays_back("attend_forced");
}

static void keep_on_shim(const struct ops *ops, struct prompt_keep_args a)
{
    kv_to_device(&a.kv);
    TO_DEVICE(a.pages);
    TO_DEVICE(a.scores);
    TO_DEVICE(a.rope.cos);
    TO_DEVICE(a.rope.sin);
    TO_DEVICE(a.rope.factors);
    a.scratch = simt_alloc(
        cuda_prompt_keep_scratch_bytes(ops, a.n_prompt, a.from.n_kv_heads, a.from.head_dim));
    cuda_prompt_keep(NULL, ops, &a);
    arrays_back("prompt_keep");
}

static void launch(struct stream *s, enum op op, const struct ops *ops, const void *args)
{
    (void)s;
    simt_clear();
    if (op == OP_kv_store)
        store_on_shim(ops, *(const struct kv_store_args *)args);
    else if (op == OP_attend_prompt)
        prompt_on_shim(ops, *(const struct attend_prompt_args *)args);
    else if (op == OP_attend_forced)
        forced_on_shim(ops, *(const struct attend_forced_args *)args);
    else if (op == OP_prompt_keep)
        keep_on_shim(ops, *(const struct prompt_keep_args *)args);
    else
        fail_msg("op %d", (int)op);
}

static const struct device_api shim_api = {.name = "shim", .launch = launch};
static struct device shim = {&shim_api};
static struct stream shim_stream = {&shim};

/* ---- rows ---- */

/* What a row goes through. */
struct course {
    int n_rows;        // side by side
    int prompts;       // 1: the shim has the prompts too, else only what is kept of them
    int n_prompt, cut; // tokens of a prompt; of a tile
    int n;             // and then, in spans of 1, 2, 3 and again 1
    int gap;           // a slot of every head that is masked behind the prompt; 0: none, else + 1
};
#define ROWS_MOST 3

static void rows_run(const struct ops *ops, const struct model *m, const struct tokens *const *t,
                     struct scenario c, const struct course *course, struct row *to)
{
    const int n = course->n_prompt + course->n;
    const struct ops exact = {.isa = ISA_EXACT, .compute = ops->compute};
    struct row *rows[ROWS_MOST] = {&to[0], &to[1], &to[2]};
    for (int i = 0; i < course->n_rows; i++) {
        to[i] = row_make(m, t[i], c.evict, c.limits, course->n_prompt);
        if (course->n_prompt > 0)
            row_prompt_kept_by(course->prompts ? ops : &exact, ops, m, t[i], &to[i], course->cut);
        for (int h = 0; h < m->n_kv_heads && course->gap > 0; h++) {
            int32_t *pos = to[i].kv.slot_pos + h * to[i].kv.slots_cap + course->gap - 1;
            *pos = ~*pos;
        }
    }
    for (int at = course->n_prompt, step = 1; at < n; at += step, step = step % 3 + 1) {
        step = at + step < n ? step : n - at;
        rows_forced(ops, m, t, rows, course->n_rows, at, step);
    }
}

static void rows_check(const struct model *m, struct scenario c, enum compute compute,
                       struct course course)
{
    simt_arch_set(course.prompts ? 75 : 80);
    if (course.prompts && m->work == KV_BF16 && m->head_dim <= 256 && simt_arch() >= 80)
        compute = COMPUTE_F32; // PTX of sm_80 or newer would take tensor cores
    const int n = course.n_prompt + course.n;
    struct tokens a = tokens_make(m, n, 31), b = tokens_make(m, n, 37);
    const struct tokens *t[ROWS_MOST] = {&a, &b, &a};
    const int ints = compute != COMPUTE_F32 && m->kv >= KV_Q8; // on CPUs alone: see ops.h
    struct ops exact = {.isa = ISA_EXACT, .compute = compute}, ops = exact;
    struct row want[ROWS_MOST], got[ROWS_MOST];
    char what[192];
    ops.stream = &shim_stream;
    snprintf(what, sizeof what, "%d/%d heads of %d, kv %s %s, %s, %s%s%s, %d by %d + %d, gap %d",
             m->n_heads, m->n_kv_heads, m->head_dim, kv_format_name(m->work), kv_format_name(m->kv),
             compute_name(compute), evict_policy_name(c.evict.policy),
             c.evict.scope ? " layer" : "", c.evict.simulate ? " simulate" : "", course.n_prompt,
             course.cut, course.n, course.gap);
    rows_run(&ops, m, t, c, &course, got);
    const int first = m->work == KV_BF16 ? 0 : course.n_prompt; // prompts in f32 round no q
    for (int64_t i = first * a.q_stride; i < (int64_t)n * a.q_stride && ints; i++) {
        a.q[i] = bf16_to_f32(f32_to_bf16(a.q[i]));
        b.q[i] = bf16_to_f32(f32_to_bf16(b.q[i]));
    }
    exact.compute = ints ? COMPUTE_F32 : compute;
    rows_run(&exact, m, t, c, &course, want);
    for (int i = 0; i < course.n_rows; i++) {
        rows_same(&got[i], &want[i], what);
        row_free(&got[i]);
        row_free(&want[i]);
    }
    tokens_free(&a);
    tokens_free(&b);
}

static const struct model models[] = {
    {2, 2, 64, KV_F32, KV_F32},    {8, 2, 80, KV_BF16, KV_BF16}, {4, 1, 128, KV_F32, KV_Q8},
    {8, 1, 64, KV_BF16, KV_Q4},    {3, 3, 80, KV_F32, KV_MIXED}, {6, 2, 33, KV_F32, KV_Q8},
    {9, 1, 130, KV_F32, KV_MIXED}, {2, 1, 48, KV_BF16, KV_BF16},
};
#define N_MODELS ((int)(sizeof models / sizeof *models))

/* Every policy, scope and KV format, from no tokens on and behind prompts, full and evicting. */
static void rows_are_exact(void **state)
{
    (void)state;
    static const int prompts[] = {0, 1, 33, 64};
    for (int i = 0; i < N_SCENARIOS * 2; i += sweep(i % 4 ? 1 : 3, 1)) { // each scenario, by turns
        struct scenario c = scenarios[i / 2];
        c.evict.simulate = i % 2;
        for (int j = sweep(i / 2 % N_MODELS, i % 4); j < N_MODELS; j += sweep(N_MODELS, 4)) {
            const int k = i / 4 + j / 4 + i, n_prompt = prompts[k % 4];
            rows_check(&models[j], c, k % 2 ? COMPUTE_F32 : COMPUTE_BF16,
                       (struct course){2, 0, n_prompt, 64, 7, 0});
        }
    }
}

/* Page slots about a page's end and a split's, one after the other; rings that wrap. */
static void slots_about_the_edges(void **state)
{
    (void)state;
    static const int prompts[] = {31, 32, 255, 256, 320, 640};
    static const struct scenario cases[] = {
        {{.policy = EVICT_FULL}, {INT32_MAX, INT32_MAX, 0}},
        {{.policy = EVICT_H2O}, {258, 100, 0}},
        {{.policy = EVICT_H2O_MEAN, .scope = EVICT_SCOPE_LAYER}, {290, 5, 4}},
        {{.policy = EVICT_STREAMING, .simulate = 1}, {40, 36, 4}},
        {{.policy = EVICT_QHITTER, .scope = EVICT_SCOPE_LAYER}, {290, 5, 4}},
    };
    const int n = (int)(sizeof cases / sizeof *cases);
    for (int i = 0; i < sweep(n, 2 * n); i++) {
        const struct model m = {4, 2, 16, KV_F32, (enum kv_format)(i % 5)};
        rows_check(&m, cases[i % n], COMPUTE_F32,
                   (struct course){1, 0, prompts[(i + i / n) % 6], 640, 3, 0});
    }
}

/* Query heads of a block by formats: each is code of its own. */
static void heads_by_formats(void **state)
{
    (void)state;
    for (int heads = 1; heads <= 8; heads *= 2)
        for (enum kv_format format = KV_F32; format <= KV_MIXED; format++) {
            const struct model m = {heads, 1, 72, KV_F32, format};
            rows_check(&m, scenarios[3], COMPUTE_F32, (struct course){1, 0, 65, 65, 2, 0});
        }
}

/* Tokens of a prompt about a tile's end, whole and in tiles that continue, with scores and without.
 */
static void prompts_are_exact(void **state)
{
    (void)state;
    static const int lengths[] = {1, 31, 32, 33, 70, 100};
    for (int i = 0; i < 6; i++) {
        const struct model *m = &models[(5 * i + 3) % N_MODELS];
        const int n = lengths[i];
        rows_check(m, scenarios[3], COMPUTE_F32, (struct course){1, 1, n, n, 0, 0});
        rows_check(m, scenarios[5], COMPUTE_BF16, (struct course){1, 1, n, 64, 0, 0});
        rows_check(m, scenarios[1], COMPUTE_F32, (struct course){1, 1, n, 23, 0, 0});
    }
    for (int i = 0; i < 10; i++) { // a kernel for each
        static const int dims[] = {64, 80, 130, 264, 576};
        const enum kv_format format = i % 2 ? KV_BF16 : KV_F32;
        const struct model m = {1, 1, dims[i / 2], format, format};
        rows_check(&m, scenarios[3], i % 2 ? COMPUTE_BF16 : COMPUTE_F32,
                   (struct course){1, 1, 35, 35, 1, 0});
    }
    const struct model small = {2, 1, 16, KV_F32, KV_F32};
    rows_check(&small, scenarios[3], COMPUTE_F32, (struct course){1, 1, 300, 160, 0, 0});
}

/* Outputs may be no numbers, which have no one form. */
static void numbers_same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: number %lld is %a, not %a", what, (long long)i, (double)a[i],
                     (double)b[i]);
}

/* A query that is no number, of the prompt or of a span, adds nothing to the scores; values that
 * are none leave with their slot. */
static void what_is_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct model m = {4, 2, 32, KV_F32, i % 2 ? KV_Q4 : KV_F32};
        struct scenario c = {{.policy = i % 2 ? EVICT_EMA : EVICT_H2O}, {40, 10, 0}};
        struct tokens t = tokens_make(&m, 60, 980);
        const struct tokens *ts[] = {&t};
        struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32}, ops = exact;
        struct course course = {1, 1, 45, 64, 15, 0};
        struct row want, got;
        t.q[37 * t.q_stride + 32] = t.q[50 * t.q_stride + 3] = NAN;
        if (i / 2) {
            c.evict = (struct evict){.policy = EVICT_WINDOW, .simulate = 1};
            t.v[2 * t.kv_stride + 5] = INFINITY;
        }
        ops.stream = &shim_stream;
        rows_run(&exact, &m, ts, c, &course, &want);
        rows_run(&ops, &m, ts, c, &course, &got);
        numbers_same(got.out, want.out, got.out_bytes / 4, "out");
        numbers_same(got.scores, want.scores, 2 * 64, "scores of the prompt");
        numbers_same(got.kv.slot_score, want.kv.slot_score, 2 * got.kv.slots_cap, "scores");
        assert_same_bits(got.kv.slot_pos, want.kv.slot_pos, 2 * got.kv.slots_cap * 4, "slots");
        assert_true(isnan(got.out[50 * t.q_stride + 3]) && !isnan(got.out[51 * t.q_stride + 3]));
        row_free(&want);
        row_free(&got);
        tokens_free(&t);
    }
}

/* Prompts in one call, one of them at its second tile; turns: spans that do not fit scratch go one
 * after the other. */
static void prompts_side_by_side(void **state)
{
    (void)state;
    enum { HEADS = 4, KV_HEADS = 2, DIM = 16, N = 40 + 7 + 70, PAGES = 8 };
    static const struct prompt_span spans[] = {
        {40, 32, 8, 32, 1}, {7, 0, 7, 40, 3}, {70, 0, 70, 47, 5}};
    const int64_t score_bytes = PAGES * PAGE_SLOTS * KV_HEADS * 4;
    for (int i = 0; i < 4; i++) {
        struct ops ops = {.isa = ISA_EXACT, .compute = COMPUTE_F32};
        struct kv_layout l;
        float *q = noise_array(1, N * HEADS * DIM, 3), *k = noise_array(2, N * KV_HEADS * DIM, 2);
        float *v = noise_array(3, N * KV_HEADS * DIM, 1), *out[2], *scores[2];
        kv_layout_init(&l, i % 2 ? KV_BF16 : KV_F32, KV_HEADS, DIM);
        uint8_t *pages = take(PAGES * l.page_bytes);
        for (int s = 0; s < 3; s++) {
            const int at = spans[s].token - spans[s].first;
            ops_run_kv_store(&ops,
                             &(struct kv_store_args){.layout = l,
                                                     .pages = pages + spans[s].page * l.page_bytes,
                                                     .k = k + at * KV_HEADS * DIM,
                                                     .v = v + at * KV_HEADS * DIM,
                                                     .k_stride = KV_HEADS * DIM,
                                                     .v_stride = KV_HEADS * DIM,
                                                     .n = spans[s].n_prompt});
        }
        for (int j = 0; j < 2; j++) {
            out[j] = take(N * HEADS * DIM * 4);
            scores[j] = noise_array(4, score_bytes / 4, 1);
            ops.stream = j ? &shim_stream : NULL;
            struct attend_prompt_args a = {.layout = l,
                                           .q = q,
                                           .out = out[j],
                                           .pages = pages,
                                           .scores = scores[j],
                                           .policy = EVICT_H2O,
                                           .spans = spans,
                                           .n_spans = 3,
                                           .n_heads = HEADS,
                                           .n_max = j && i / 2 ? 5000 : 70,
                                           .end_max = 70,
                                           .scale = 0.2f,
                                           .window = i == 1 ? 0 : 21 * (i + 1),
                                           .q_stride = HEADS * DIM,
                                           .out_stride = HEADS * DIM,
                                           .scratch = take(1 << 16)};
            ops_run_attend_prompt(&ops, &a);
            free(a.scratch);
        }
        assert_same_bits(out[1], out[0], N * HEADS * DIM * 4, "prompts, out");
        assert_same_bits(scores[1], scores[0], score_bytes, "prompts, scores");
        float *all[] = {q, k, v, out[0], out[1], scores[0], scores[1], (float *)(void *)pages};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            free(all[j]);
    }
}

/* A cap, sinks, and both. */
static void caps_and_sinks_are_exact(void **state)
{
    (void)state;
    float *sinks = noise_array(8, 9, 4);
    for (int i = 0; i < 3 * N_MODELS; i += sweep(5, 1)) {
        struct scenario c = scenarios[i % N_SCENARIOS];
        c.evict.simulate = i % 2;
        attend_cap = i % 3 == 1 ? 0 : 2;
        attend_sinks = i % 3 == 0 ? NULL : sinks;
        rows_check(&models[i % N_MODELS], c, i % 2 ? COMPUTE_F32 : COMPUTE_BF16,
                   (struct course){1, i / 2 % 2, i % 2 ? 45 : 33, 32, 5, 0});
    }
    attend_cap = 0;
    attend_sinks = NULL;
    free(sinks);
}

/* Positions that are ranks: every policy and format, behind prompts, full and evicting. */
static void ranks_are_exact(void **state)
{
    (void)state;
    for (int i = 1; i < N_SCENARIOS; i += sweep(3, 1)) {
        struct scenario c = scenarios[i];
        const struct model *m = &models[i % N_MODELS];
        c.evict.simulate = i % 3 == 0;
        attend_rope =
            angles_make(i % 2 ? m->head_dim / 2 * 2 : m->head_dim / 4 * 2, 300, i % 2 ? 1 : 1.25f);
        rows_check(m, c, i % 2 || m->kv >= KV_Q8 ? COMPUTE_F32 : COMPUTE_BF16,
                   (struct course){2, 0, i % 4 ? 45 : 0, 45, 7, 0});
        angles_free(&attend_rope);
    }
    const struct model small = {4, 2, 16, KV_F32, KV_MIXED};
    attend_rope = angles_make(16, 324, 1);
    rows_check(&small, (struct scenario){{.policy = EVICT_H2O}, {290, 100, 0}}, COMPUTE_F32,
               (struct course){1, 0, 320, 320, 4, 0});
    angles_free(&attend_rope);
}

/* Pages of keys only, as they are and where positions are ranks; and the largest head. */
static void values_may_be_keys(void **state)
{
    (void)state;
    attend_values = VALUES_ARE_KEYS;
    for (int i = 0; i < 5; i++) {
        const struct model m = {i % 2 ? 9 : 3, 1, i == 3 ? 576 : 80, KV_F32, (enum kv_format)i};
        struct scenario s = scenarios[1 + 5 * i % (N_SCENARIOS - 1)];
        const struct course course = {2, 0, i % 2 ? 40 : 0, 45, 6, 0};
        s.evict.simulate = i % 3 == 0;
        rows_check(&m, s, COMPUTE_F32, course);
        attend_rope = angles_make(16, 128, i % 2 ? 1 : 1.25f);
        rows_check(&m, s, m.kv >= KV_Q8 ? COMPUTE_F32 : COMPUTE_BF16, course);
        angles_free(&attend_rope);
    }
    attend_values = VALUES_APART;
}

/* Heads so wide that scratch holds few units: two rows of three fill it, then the third; then each
 * row in a launch of its own, for a row alone has more units than that. */
static void spans_take_turns(void **state)
{
    (void)state;
    static const struct model wide = {64, 1, 256, KV_F32, KV_BF16};
    for (int i = 0; i < 2; i++) {
        const int scores = !i, most = (int)forced_units(1 << 20, 1, 64, 256, scores);
        slots_beyond = ((i ? most + 1 : most / 2) - 1) * SPLIT;
        assert_int_equal(most % 2, 0); // else a third row would find room for its first unit
        rows_check(&wide, scenarios[i ? 0 : 3], COMPUTE_F32, (struct course){3, 0, 33, 33, 3, 0});
    }
    slots_beyond = 0;
}

/* Units in the scratch of a launch: never fewer for more rows or longer ones, no more than there
 * are, and of many rows no more than FORCED_SCRATCH_MOST holds, but those of one row. */
static void scratch_is_bounded(void **state)
{
    (void)state;
    for (int scores = 0; scores < 2; scores++)
        for (int span = 1; span <= 1 << 20; span += 1 + span / 7) {
            const int64_t most = FORCED_SCRATCH_MOST / (8 * (128 + 5 + scores * SPLIT) * 4);
            int64_t before = 0;
            for (int n = 1; n <= 256; n++) {
                const int64_t units = forced_units(n, span, 8, 128, scores);
                assert_true(units >= before && units >= forced_units(n, span / 2, 8, 128, scores));
                assert_true(units >= span && units <= (int64_t)n * span);
                assert_true(units == span || units <= most);
                before = units;
            }
        }
    /* 24 rows of 4,096 slots of OPT-6.7B fit one launch. */
    assert_int_equal(forced_units(24, 32 * forced_splits(4096, 0), 1, 128, 0), 24 * 32 * 16);
}

/* A masked slot, at each place of a page, of a whole page and of one that is not full. */
static void gaps_at_every_slot(void **state)
{
    (void)state;
    const struct scenario c = {{.policy = EVICT_H2O, .simulate = 1}, {60, 20, 0}};
    for (int format = KV_F32; format <= KV_MIXED; format++)
        for (int slot = 0; slot < PAGE_SLOTS + 5; slot++) {
            const struct model m = {format % 2 ? 8 : 2, 2, 16, KV_F32, (enum kv_format)format};
            const int n = format == KV_MIXED ? 57 : 37; // the newest 20 stand in the ring
            rows_check(&m, c, COMPUTE_F32, (struct course){1, 0, n, n, 1, slot + 1});
        }
}

/* Threads and blocks in other orders. */
static void order_does_not_show(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        simt_order(seed);
        rows_check(&models[4], scenarios[4], COMPUTE_F32, (struct course){2, 1, 20, 20, 4, 0});
        rows_check(&models[7], scenarios[6], COMPUTE_BF16, (struct course){2, 1, 40, 40, 4, 0});
    }
    simt_order(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_exact),      cmocka_unit_test(slots_about_the_edges),
        cmocka_unit_test(heads_by_formats),    cmocka_unit_test(prompts_are_exact),
        cmocka_unit_test(what_is_no_number),   cmocka_unit_test(prompts_side_by_side),
        cmocka_unit_test(values_may_be_keys),  cmocka_unit_test(spans_take_turns),
        cmocka_unit_test(order_does_not_show), cmocka_unit_test(caps_and_sinks_are_exact),
        cmocka_unit_test(ranks_are_exact),     cmocka_unit_test(scratch_is_bounded),
        cmocka_unit_test(gaps_at_every_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
