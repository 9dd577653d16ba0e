/* tests/flat_test.c - every op with all it reads and writes in device memory: args that hold no
 * host pointer behind a pointer.
 *
 * One image of memory goes to the device, ops run over it, and it comes back; the CPU's image is
 * what it must be. On the simulated accelerator a host address behind a device pointer, or a device
 * address that the host follows, is a fault. SLUICE_TEST_DEVICE takes a real one in its place: the
 * order rules' bytes, of ISA_EXACT. */
#include "kernels/device.h"

#include <string.h>

#include "tests/device_help.h"
#include "tests/ops_help.h"

enum {
    DIM = 64,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    HEADS_DIM = HEADS * HEAD_DIM,
    KV_DIM = KV_HEADS * HEAD_DIM,
    TOKENS = 48, // 40 of a prompt, 4 of each of two rows
    PROMPT = 40,
    SPAN = 4,
    ROWS = 3, // row 0 takes the prompt, 1 and 2 begin with spans
    PAGES = 6,
    BUDGET = 20,
    VOCAB = 96,
    POSITIONS = 3,
    EXPERTS = VOCAB / PANEL_ROWS,
    USED = 2,
    SCRATCH = 1 << 20,
};

/* What stands in the image; every op's results are other ops' operands. */
struct image {
    _Alignas(64) float weights[VOCAB * DIM], panels[VOCAB * DIM], decoded[VOCAB * DIM];
    float table[100 * DIM], norm[DIM], sinks[HEADS];
    float cos[64 * HEAD_DIM / 2], sin[64 * HEAD_DIM / 2];
    uint16_t halves[POSITIONS * HEADS_DIM];
    float x[TOKENS * DIM], normed[TOKENS * DIM], q[TOKENS * HEADS_DIM], out[TOKENS * HEADS_DIM];
    float k[TOKENS * KV_DIM], v[TOKENS * KV_DIM], logits[POSITIONS * VOCAB];
    float scores[2 * PAGE_SLOTS * KV_HEADS], slot_score[ROWS * KV_HEADS * 2 * PAGE_SLOTS];
    int32_t slot_pos[ROWS * KV_HEADS * 2 * PAGE_SLOTS];
    float routed[TOKENS * USED * PANEL_ROWS];
    _Alignas(64) uint8_t route[3 * TOKENS * USED * 4 + 512];
    int64_t offsets[TOKENS];
    int32_t pos[TOKENS], from[POSITIONS], page_ids[ROWS * 2];
    uint64_t dirty[ROWS];
    struct prompt_span prompt;
    struct forced_span spans[2];
    struct evict_event events[TOKENS * KV_HEADS];
    struct head_request requests[POSITIONS];
    struct head_result results[POSITIONS];
    struct logit_edit edits[POSITIONS * 2];
    struct head_candidate candidates[POSITIONS * HEAD_SAMPLE_MAX];
    _Alignas(4096) uint8_t prompt_pages[2 * 8192], pages[PAGES * 8192], tails[ROWS * 8192];
    uint8_t rings[ROWS * KV_RING_PAGES * 8192];
    _Alignas(64) uint8_t scratch[SCRATCH];
};

static struct kv_layout work, pages, ring;
static const struct evict h2o = {.policy = EVICT_H2O};
static const struct evict_row limits = {.budget = BUDGET, .recent = 8, .sink = 1};

static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = noise(seed, i);
}

static struct image *image_make(void)
{
    struct image *m = aligned_alloc(4096, (size_t)round_up(sizeof *m, 4096));
    assert_non_null(m);
    memset(m, 0, sizeof *m);
    const void *rows[PANEL_ROWS];
    fill(m->weights, VOCAB * DIM, 1);
    fill(m->table, 100 * DIM, 2);
    fill(m->norm, DIM, 3);
    fill(m->sinks, HEADS, 6);
    fill(m->cos, 64 * HEAD_DIM / 2, 4);
    fill(m->sin, 64 * HEAD_DIM / 2, 5);
    for (int panel = 0; panel < VOCAB / PANEL_ROWS; panel++) {
        for (int i = 0; i < PANEL_ROWS; i++)
            rows[i] = m->weights + (panel * PANEL_ROWS + i) * DIM;
        panel_pack(DTYPE_F32, rows, DIM,
                   (uint8_t *)m->panels + panel * dtype_panel_bytes(DTYPE_F32, DIM));
    }
    for (int i = 0; i < TOKENS; i++) {
        m->offsets[i] = (int64_t)(i * 37 % 100) * DIM * 4;
        m->pos[i] = i < PROMPT ? i : (i - PROMPT) % SPAN;
    }
    for (int i = 0; i < ROWS * 2; i++) // the second page of every row is its tail
        m->page_ids[i] = i % 2 ? ~(i / 2) : PAGES - 1 - i / 2;
    m->prompt = (struct prompt_span){.n_prompt = PROMPT, .n = PROMPT};
    for (int i = 0; i < 2; i++)
        m->spans[i] = (struct forced_span){
            .row = 1 + i, .n = SPAN, .token = PROMPT + i * SPAN, .limits = {3, 1, 1}};
    for (int i = 0; i < POSITIONS; i++) {
        m->from[i] = 7 + 20 * i;
        m->requests[i] =
            (struct head_request){.want = HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE | HEAD_FILTER,
                                  .target = 5 * i,
                                  .temperature = 0.5f * (float)i,
                                  .n_top = 4,
                                  .n_edits = 2,
                                  .place = POSITIONS - 1 - i,
                                  .noise_key = (uint64_t)i};
        m->edits[2 * i] = (struct logit_edit){3, 1, -1};
        m->edits[2 * i + 1] = (struct logit_edit){50 + i, 2, 1};
        head_start(&m->results[i]);
    }
    return m;
}

static void matmul(const struct ops *ops, struct image *m, const float *panels, const float *x,
                   float *y, int rows, int n)
{
    ops_run_matmul(ops,
                   &(struct matmul_args){
                       .x = x,
                       .m = rows,
                       .x_stride = DIM,
                       .parts = {{.w = {.dtype = DTYPE_F32, .n = n, .k = DIM, .panels = panels},
                                  .y = y,
                                  .y_stride = n}},
                       .n_parts = 1,
                       .scratch = m->scratch});
}

static void project(const struct ops *ops, struct image *m)
{
    struct rope_args rope = {.x = m->q,
                             .cos = m->cos,
                             .sin = m->sin,
                             .pos = m->pos,
                             .m = TOKENS,
                             .n_heads = HEADS,
                             .head_dim = HEAD_DIM,
                             .rope_dim = HEAD_DIM,
                             .x_stride = HEADS_DIM};
    ops_run_gather(ops, &(struct gather_args){.dtype = DTYPE_F32,
                                              .k = DIM,
                                              .rows = m->table,
                                              .offsets = m->offsets,
                                              .x = m->x,
                                              .x_stride = DIM,
                                              .n = TOKENS});
    ops_run_norm(ops, &(struct norm_args){.x = m->x,
                                          .y = m->normed,
                                          .weight = m->norm,
                                          .m = TOKENS,
                                          .dim = DIM,
                                          .x_stride = DIM,
                                          .y_stride = DIM,
                                          .kind = NORM_RMS,
                                          .eps = 1e-5f});
    ops_run_decode(ops, &(struct decode_args){
                            .w = {.dtype = DTYPE_F32, .n = VOCAB, .k = DIM, .panels = m->panels},
                            .to = DTYPE_F32,
                            .panels = m->decoded});
    matmul(ops, m, m->decoded, m->normed, m->q, TOKENS, HEADS_DIM);
    matmul(ops, m, m->panels, m->normed, m->k, TOKENS, KV_DIM);
    matmul(ops, m, m->panels + KV_DIM * DIM, m->normed, m->v, TOKENS, KV_DIM);
    ops_run_rope(ops, &rope);
    rope.x = m->k;
    rope.n_heads = KV_HEADS;
    rope.x_stride = KV_DIM;
    ops_run_rope(ops, &rope);
}

static void attend(const struct ops *ops, struct image *m)
{
    struct kv_rows kv = {.layout = pages,
                         .ring = ring,
                         .pages = m->pages,
                         .tails = m->tails,
                         .page_ids = m->page_ids,
                         .slot_pos = m->slot_pos,
                         .slot_score = m->slot_score,
                         .dirty = m->dirty,
                         .rings = m->rings,
                         .tail_stride = 8192,
                         .ring_stride = KV_RING_PAGES * 8192,
                         .slot_stride = KV_HEADS * 2 * PAGE_SLOTS,
                         .page_ids_stride = 2,
                         .dirty_stride = 1,
                         .slots_cap = 2 * PAGE_SLOTS};
    ops_run_kv_store(ops, &(struct kv_store_args){.layout = work,
                                                  .pages = m->prompt_pages,
                                                  .k = m->k,
                                                  .v = m->v,
                                                  .k_stride = KV_DIM,
                                                  .v_stride = KV_DIM,
                                                  .n = PROMPT});
    ops_run_attend_prompt(ops, &(struct attend_prompt_args){.layout = work,
                                                            .q = m->q,
                                                            .out = m->out,
                                                            .pages = m->prompt_pages,
                                                            .scores = m->scores,
                                                            .policy = h2o.policy,
                                                            .spans = &m->prompt,
                                                            .n_spans = 1,
                                                            .n_heads = HEADS,
                                                            .n_max = PROMPT,
                                                            .end_max = PROMPT,
                                                            .scale = 0.25f,
                                                            .cap = 1,
                                                            .sinks = m->sinks,
                                                            .q_stride = HEADS_DIM,
                                                            .out_stride = HEADS_DIM,
                                                            .scratch = m->scratch});
    ops_run_prompt_keep(ops, &(struct prompt_keep_args){.from = work,
                                                        .pages = m->prompt_pages,
                                                        .scores = m->scores,
                                                        .kv = kv,
                                                        .evict = h2o,
                                                        .limits = limits,
                                                        .n_prompt = PROMPT,
                                                        .scratch = m->scratch});
    ops_run_attend_forced(ops, &(struct attend_forced_args){.kv = kv,
                                                            .evict = h2o,
                                                            .spans = m->spans,
                                                            .n_spans = 2,
                                                            .n_heads = HEADS,
                                                            .n_max = SPAN,
                                                            .slots_max = 2,
                                                            .scale = 0.25f,
                                                            .cap = 1,
                                                            .sinks = m->sinks,
                                                            .q = m->q,
                                                            .k = m->k,
                                                            .v = m->v,
                                                            .out = m->out,
                                                            .q_stride = HEADS_DIM,
                                                            .k_stride = KV_DIM,
                                                            .v_stride = KV_DIM,
                                                            .out_stride = HEADS_DIM,
                                                            .events = m->events,
                                                            .scratch = m->scratch});
}

/* Experts of 32 outputs each; the router's logits are what stands in m->normed. */
static void experts(const struct ops *ops, struct image *m)
{
    const struct route route = route_at(m->route, TOKENS, EXPERTS, USED);
    ops_run_route(ops, &(struct route_args){.logits = m->normed,
                                            .logits_stride = DIM,
                                            .to = route,
                                            .m = TOKENS,
                                            .alone = 1,
                                            .scale = 1});
    ops_run_expert_matmul(
        ops,
        &(struct expert_matmul_args){
            .matmul =
                {.x = m->normed,
                 .m = TOKENS,
                 .x_stride = DIM,
                 .parts = {{.w = {.dtype = DTYPE_F32, .n = VOCAB, .k = DIM, .panels = m->panels},
                            .y = m->routed,
                            .y_stride = PANEL_ROWS}},
                 .n_parts = 1,
                 .scratch = m->scratch},
            .route = route,
            .by_token = 1});
    ops_run_expert_sum(ops, &(struct expert_sum_args){.x = m->x,
                                                      .y = m->routed,
                                                      .shared = m->normed,
                                                      .shares = m->out,
                                                      .route = route,
                                                      .m = TOKENS,
                                                      .n = PANEL_ROWS,
                                                      .x_stride = DIM,
                                                      .y_stride = PANEL_ROWS,
                                                      .add = 1});
}

static void head(const struct ops *ops, struct image *m)
{
    ops_run_gate_mul(ops, &(struct gate_mul_args){.gate = m->out,
                                                  .up = m->normed,
                                                  .m = TOKENS,
                                                  .n = DIM,
                                                  .gate_stride = HEADS_DIM,
                                                  .up_stride = DIM,
                                                  .act = ACT_SILU});
    ops_run_compact(ops, &(struct compact_args){
                             .x = m->out, .from = m->from, .n = POSITIONS, .dim = HEADS_DIM});
    const int64_t n = POSITIONS * HEADS_DIM;
    ops_run_cast(ops, &(struct cast_args){.from = m->out, .to = m->halves, .n = n});
    ops_run_cast(ops, &(struct cast_args){.from = m->halves, .to = m->out, .n = n, .widens = 1});
    matmul(ops, m, m->panels, m->out, m->logits, POSITIONS, VOCAB);
    ops_run_head_reduce(ops, &(struct head_reduce_args){.logits = m->logits,
                                                        .stride = VOCAB,
                                                        .requests = m->requests,
                                                        .results = m->results,
                                                        .edits = m->edits,
                                                        .candidates = m->candidates,
                                                        .edits_stride = 2,
                                                        .m = POSITIONS,
                                                        .n = VOCAB});
}

/* What a device asks for must be there: SCRATCH is the CPU's. */
static void assert_scratch(const struct device_scratch *s, const struct ops *ops)
{
    if (!s)
        return;
    assert_in_range(s->matmul(ops, TOKENS, VOCAB, DIM), 0, SCRATCH);
    assert_in_range(s->expert_matmul(ops, TOKENS, USED, PANEL_ROWS, DIM), 0, SCRATCH);
    assert_in_range(s->attend_prompt(ops, PROMPT, HEADS, KV_HEADS, HEAD_DIM), 0, SCRATCH);
    assert_in_range(s->attend_forced(ops, ROWS, 2, HEADS, KV_HEADS, HEAD_DIM, 1), 0, SCRATCH);
    assert_in_range(s->prompt_keep(ops, PROMPT, KV_HEADS, HEAD_DIM), 0, SCRATCH);
}

/* The image after all ops ran over it on a device. */
static struct image *run_on(struct device *d, enum isa isa)
{
    const struct device_api *api = d->api;
    struct image *m = image_make();
    int64_t n_bytes = round_up(sizeof *m, 4096);
    struct ops ops = {.isa = isa, .compute = COMPUTE_F32};
    assert_scratch(api->scratch, &ops);
    struct event *done;
    void *memory;
    assert_int_equal(api->alloc(d, n_bytes, &memory), OK);
    assert_int_equal(api->stream_open(d, &ops.stream), OK);
    assert_int_equal(api->event_open(d, &done), OK);
    assert_int_equal(api->pin(d, m, sizeof *m), OK);
    ops_copy(&ops, memory, m, sizeof *m);
    project(&ops, memory);
    attend(&ops, memory);
    experts(&ops, memory);
    head(&ops, memory);
    ops_fill(&ops, ((struct image *)memory)->scratch, 0, SCRATCH);
    ops_copy(&ops, m, memory, sizeof *m);
    api->record(ops.stream, done);
    assert_int_equal(api->event_wait(ops.stream, done), OK);
    api->unpin(d, m, sizeof *m);
    api->event_close(done);
    api->stream_close(ops.stream);
    api->release(d, memory, n_bytes);
    return m;
}

static void compare(enum isa isa, uint64_t n_seeds)
{
    struct image *want = run_on(device_cpu(), isa);
    assert_true(want->results[1].sample_logit != 0 && want->dirty[1] != 0);
    assert_true(want->events[TOKENS * KV_HEADS - 1].pos >= 0);
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        struct device *d = test_device_open(seed, 100);
        struct image *got = run_on(d, isa);
        assert_same_bits(got, want, sizeof *want, "image");
        test_device_close(d);
        free(got);
    }
    free(want);
}

static void every_op_runs_on_a_device(void **state)
{
    (void)state;
    kv_layout_init(&work, KV_F32, KV_HEADS, HEAD_DIM);
    kv_layout_init(&pages, KV_Q4, KV_HEADS, HEAD_DIM);
    kv_layout_init(&ring, KV_Q8, KV_HEADS, HEAD_DIM);
    assert_true(work.page_bytes <= 8192 && pages.page_bytes <= 8192 && ring.page_bytes <= 8192);
    if (real_device())
        compare(ISA_EXACT, 1);
    else
        FOR_EACH_ISA(isa)
    compare(isa, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_runs_on_a_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
