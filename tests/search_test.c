/* tests/search_test.c - the search against all plans there are: of small models and jobs, made up
 * from a seed, every plan of a dense grid that fits is priced, and none may be faster than the one
 * that was chosen. More room is never slower, and the same job gives the same plan.
 *
 * SEARCH_CASES=N tries more jobs, SEARCH_FIRST=N begins with that one. */
#include "offload/probe.h"
#include "kernels/base/num.h"
#include "tests/plan_help.h"
#include "tests/sweep.h"

/* ---- made-up models, jobs and machines ---- */

static uint64_t rng;

static double unit(void)
{
    return (double)(mix64(++rng) >> 11) * 0x1p-53;
}

static int pick(int least, int most)
{
    return least + (int)(mix64(++rng) % (uint64_t)(most - least + 1));
}

/* As likely between 1 and 2 as between 100 and 200. */
static double spread_of(double least, double most)
{
    return least * pow(most / least, unit());
}

static void make_model(int device)
{
    memset(&weights, 0, sizeof weights);
    int slices = pick(1, 2);
    weights.n_decoder = pick(1, 4);
    weights.n_layers = 1 + weights.n_decoder + slices;
    int heads = pick(2, 16), kv_heads = heads % 4 == 0 ? heads / 4 : heads;
    shape = (struct shape){.n_layers = weights.n_decoder,
                           .dim = 64 * heads,
                           .n_heads = heads,
                           .n_kv_heads = kv_heads,
                           .head_dim = 64,
                           .ffn_dim = 192 * heads,
                           .vocab = slices * HEAD_TILE - 96,
                           .context = 2048,
                           .embed_dim = 64 * heads,
                           .rope_dim = 64};
    int64_t layer = (int64_t)spread_of(MIB / 2, 48.0 * MIB), slice = 128 * HEAD_TILE * heads;
    int tiles = pick(0, 2) == 0;
    weights.must_decode = device && tiles;
    weights.embed_row_bytes = 128 * heads;
    weights.embed_rest_bytes = 4096;
    for (int i = 0; i < weights.n_layers; i++) {
        weights.layer_bytes[i] = i == 0 ? slice * slices : i <= weights.n_decoder ? layer : slice;
        weights.tile_bytes[i] = tiles && i > 0 ? weights.layer_bytes[i] * 4 / 3 : 0;
    }
}

static void make_work(void)
{
    int n = pick(1, 40), shares = pick(0, 3) == 0;
    double prompt = spread_of(4, 400), out = spread_of(2, 48);
    evict = pick(0, 3) ? (struct evict){.policy = EVICT_FULL}
                       : (struct evict){.policy = EVICT_H2O, .budget = 64, .sink = -1};
    work = (struct work){
        .n_rows = n, .rows = lengths, .n_lengths = n, .stride = 1, .line_bytes_max = 2000};
    work.scores = pick(0, 7) == 0;
    int64_t slots = 0;
    for (int i = 0; i < n; i++) {
        int n_prompt = 1 + (int)(prompt * (0.5 + unit())), n_out = 1 + (int)(out * (0.5 + unit()));
        lengths[i] = (struct work_row){.prompt = n_prompt,
                                       .known = n_prompt + (work.scores ? n_out : 0),
                                       .cap = n_prompt + n_out,
                                       .shared = i > 0 && shares ? n_prompt / 3 : 0};
        work.prompt_tokens += n_prompt;
        work.output_tokens += n_out;
        work.prompt_max = n_prompt > work.prompt_max ? n_prompt : work.prompt_max;
        int64_t held = evict_slots_max(&evict, KV_MOST, n_prompt, n_out);
        work.tokens_max = n_prompt + n_out > work.tokens_max ? n_prompt + n_out : work.tokens_max;
        work.slots_max = held > work.slots_max ? held : work.slots_max;
        slots += held;
    }
    work.slots_mean = slots / n;
    work.forced_max = work.scores ? (int64_t)(1.5 * out) : 0;
    work.scored_positions = work.scores ? work.output_tokens : 0;
}

static void make_machine(struct machine *m)
{
    *m = (struct machine){.threads = 4};
    m->nvme_read.value = spread_of(2e8, 8e9);
    m->nvme_write.value = m->nvme_read.value * (0.3 + 0.7 * unit());
    m->ram_read.value = spread_of(1e10, 1e11);
    m->matmul_flops.value = spread_of(2e10, 1e12);
    m->step_s.value = spread_of(2e-6, 5e-4);
    m->crc.value = pick(0, 1) ? 5e9 : 0;
    m->h2d.value = spread_of(2e9, 5e10);
    m->d2h.value = m->h2d.value * (0.5 + 0.5 * unit());
    m->device_read.value = spread_of(1e11, 2e12);
    m->device_flops.value = spread_of(2e12, 2e14);
    m->launch_s.value = pick(0, 1) ? 5e-6 : 0;
}

static void make_costs(const struct machine *m)
{
    int64_t page = 4096 * (int64_t)pick(1, 16);
    double head = (double)HEAD_TILE * shape.dim, layer = (double)weights.layer_bytes[1] / 2;
    costs = (struct plan_costs){.measure = engine_measure,
                                .tile_bytes = layer_tile_bytes,
                                .kv_page_bytes = page,
                                .kv_pages_written = {1 / 32.0, 1 / 32.0},
                                .prompt_page_bytes = page,
                                .cross = {pick(1, 2) * 2, pick(1, 2) * 2},
                                .text_bytes = MIB,
                                .io_bytes = MIB / 4,
                                .row_token_bytes = 16,
                                .scratch_bytes = {MIB / 2, MIB / 2, MIB / 2, MIB / 2}};
    if (pick(0, 1)) {
        costs.codec_share = 0.6 + 0.35 * unit();
        costs.codec_rate = spread_of(1e9, 2e10);
        costs.codec_make_s = pick(0, 1) ? 0 : 0.1;
        costs.codec_bytes = MIB;
        costs.staging_bytes = MIB / 4;
    }
    const struct model_weights numbers = {.layer = {{[MATMUL_Q8] = layer}, {[MATMUL_BF16] = layer}},
                                          .head = {{[MATMUL_BF16] = head}, {[MATMUL_BF16] = head}}};
    model_rates_derive(&costs.rates, m, &numbers);
}

struct trial {
    struct machine machine;
    struct plan_wish wish;
    struct budget budget;
};

/* Budgets from what holds next to nothing to more than all. */
static void make_trial(struct trial *t, int i)
{
    rng = (uint64_t)i * 1000003;
    t->wish = plan_wish_any();
    t->wish.device = pick(0, 1);
    t->wish.attn_cpu = t->wish.device && pick(0, 2) == 0;
    make_model(t->wish.device);
    make_work();
    make_machine(&t->machine);
    make_costs(&t->machine);
    double all = 0;
    for (int k = 0; k < weights.n_layers; k++)
        all += (double)(weights.tile_bytes[k] > 0 ? weights.tile_bytes[k] : weights.layer_bytes[k]);
    all += (double)(work.n_rows * weights.n_decoder * costs.kv_page_bytes *
                    (work.slots_mean / 32 + 2));
    int disk = pick(0, 2);
    t->budget = (struct budget){.device = 3 * MIB + (int64_t)(all * 1.3 * unit()),
                                .ram = 5 * MIB + (int64_t)(all * 1.3 * unit()),
                                .disk = disk == 0   ? 0
                                        : disk == 1 ? -1
                                                    : (int64_t)(all * unit())};
}

/* ---- all plans of a grid ---- */

struct grid {
    const struct trial *trial;
    const struct setting *set;
    void *memory;
    double limit_s;   // what is not faster is not looked at
    double made_s;    // of what is encoded: the file
    struct plan best; // fastest that is
    double best_s, best_moved;
    int64_t n_priced;
};

static int grid_fits(const struct grid *g, struct plan *p)
{
    struct plan_bytes b;
    char why[256];
    plan_derive(p, &weights, &work);
    return check(p, &g->trial->budget, &b, why, sizeof why) == 0;
}

static double moved_bytes(const struct plan_time *t)
{
    double sum = 0;
    for (int i = 0; i < N_WORK_LANES; i++)
        sum += t->bytes[i];
    return sum;
}

/* Below it no plan of these rows and homes comes, however far it looks ahead. */
static double least_s(const struct grid *g, struct plan p)
{
    struct plan_time t;
    p.ahead_weights = 1;
    plan_derive(&p, &weights, &work);
    if (plan_cost_quick(g->set, &p, g->memory, &t) != 0)
        return INFINITY;
    return t.job_s + (p.codec == PLAN_CODEC_NONE ? 0 : g->made_s);
}

static void over_ahead(struct grid *g, struct plan p)
{
    const int order[] = {1, p.batches, 2 * p.batches, 4 * p.batches, 100000, 0};
    static const int state[] = {0, 1, 2, 4};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++) {
            struct plan q = p;
            struct plan_time t;
            q.ahead_weights = order[i];
            q.ahead_state = state[k];
            if (!grid_fits(g, &q) || plan_cost(g->set, &q, g->memory, &t) != 0)
                continue;
            g->n_priced++;
            double s = t.job_s + (q.codec == PLAN_CODEC_NONE ? 0 : g->made_s);
            if (s >= g->limit_s)
                continue;
            g->limit_s = g->best_s = s;
            g->best = q;
            g->best_moved = moved_bytes(&t);
        }
}

static void over_state(struct grid *g, struct plan p)
{
    int extents = weights.n_decoder * p.batches, on_device = p.device && !p.attn_cpu;
    for (int near = 4; near >= 0; near--)
        for (int ram = on_device ? 4 - near : 0; ram >= 0; ram--)
            for (int hidden = 0; hidden < (p.device ? 3 : 2); hidden++) {
                struct plan q = p, lean;
                q.kv_near = extents * near / 4;
                q.kv_ram = near + ram == 4 ? extents - q.kv_near : extents * ram / 4;
                q.hidden_near = hidden == 0 ? p.batches : 0;
                q.hidden_ram = hidden == 1 ? p.batches : 0;
                lean = q;
                if (grid_fits(g, &lean) && least_s(g, q) < g->limit_s)
                    over_ahead(g, q);
            }
}

/* Resident layers are no more than their budget holds. */
static int holds_layers(const struct grid *g, const struct plan *p)
{
    int64_t bytes[N_TIERS] = {0};
    for (int layer = 1; layer < weights.n_layers; layer++)
        bytes[plan_layer_home(p, layer)] += weights.layer_bytes[layer];
    return bytes[TIER_RAM] <= g->trial->budget.ram &&
           (!p->device || bytes[TIER_DEVICE] <= g->trial->budget.device);
}

static void over_weights(struct grid *g, struct plan p)
{
    int n = weights.n_layers - 1;
    for (int resident = n; resident >= 0; resident--)
        for (int ram = p.device ? n - resident : 0; ram >= 0; ram--)
            for (int decoded = weights.tile_bytes[1] > 0 ? 2 : 0; decoded >= 0; decoded--) {
                struct plan q = p, ideal;
                q.resident = resident;
                q.weights_ram = ram;
                q.decoded = resident * decoded / 2;
                ideal = q;
                ideal.kv_near = ideal.hidden_near = PLAN_ALL;
                plan_derive(&ideal, &weights, &work);
                if (holds_layers(g, &ideal) && least_s(g, ideal) < g->limit_s)
                    over_state(g, q);
            }
}

static void over_prefill(struct grid *g, struct plan p)
{
    int64_t all = work.prompt_tokens + work.forced_max;
    for (int64_t prefill = 32;; prefill *= 2) {
        struct plan q = p, ideal;
        q.prefill_tokens = (int)(prefill < all ? prefill : all);
        ideal = q;
        ideal.resident = ideal.decoded = ideal.kv_near = ideal.hidden_near = PLAN_ALL;
        if (least_s(g, ideal) < g->limit_s)
            over_weights(g, q);
        if (prefill >= all)
            break;
    }
}

/* Rows: all in one wave, two ..., and powers of two. */
static void over_rows(struct grid *g, struct plan p)
{
    int n = (int)work.n_rows, most = (n + p.batches - 1) / p.batches, before = 0;
    for (int batch = 1; batch <= most; batch++) {
        int waves = (n + batch * p.batches - 1) / (batch * p.batches);
        int even = ((n + waves - 1) / waves + p.batches - 1) / p.batches == batch;
        if (!even && (batch & (batch - 1)) != 0)
            continue;
        p.batch = batch;
        before++;
        over_prefill(g, p);
    }
    assert_true(before > 0);
}

static void over_all(struct grid *g)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24};
    const struct plan_wish *wish = &g->trial->wish;
    int encodes = costs.codec_share > 0 &&
                  g->trial->machine.nvme_read.value * 2 < costs.codec_rate; // as the search asks
    for (int codec = 0; codec <= encodes; codec++)
        for (int i = 0; i < 10 && (counts[i] == 1 || counts[i] <= work.n_rows); i++)
            over_rows(g, (struct plan){.batches = counts[i],
                                       .device = wish->device,
                                       .attn_cpu = wish->attn_cpu,
                                       .window = 3,
                                       .codec = codec});
}

/* ---- the tests ---- */

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

static void show(const char *what, const struct plan *p, double s, double moved)
{
    print_message("  %s %.4f s, %.1f MB: %d x %d, resident %d ram %d decoded %d, kv %d/%d, hidden "
                  "%d/%d, prefill %d, ahead %d/%d, codec %d\n",
                  what, s, moved * 1e-6, p->batch, p->batches, p->resident, p->weights_ram,
                  p->decoded, p->kv_near, p->kv_ram, p->hidden_near, p->hidden_ram,
                  p->prefill_tokens, p->ahead_weights, p->ahead_state, p->codec);
}

/* 1: no plan is faster by more than a hundredth, or by two and moves more. */
static int is_best(int i, int64_t *n_priced, double *gap)
{
    struct trial t;
    struct plan p;
    struct plan_time time;
    char why[320];
    make_trial(&t, i);
    const struct setting set = setting_of(&t.machine);
    struct plan most = {.batch = 64, .batches = 24, .layers = 8, .decoder = 8, .attn_cpu = 1};
    struct grid g = {.trial = &t,
                     .set = &set,
                     .memory = malloc((size_t)plan_cost_bytes(&most)),
                     .made_s = costs.codec_make_s,
                     .limit_s = INFINITY,
                     .best_s = INFINITY};
    int found = search_on(&t.machine, &t.wish, &t.budget, &p, why, sizeof why) == 0;
    double s = 0, moved = 0;
    if (found) {
        assert_int_equal(plan_cost(&set, &p, g.memory, &time), 0);
        s = time.job_s + (p.codec == PLAN_CODEC_NONE ? 0 : g.made_s);
        moved = moved_bytes(&time);
        g.limit_s = s / 1.01;
    }
    over_all(&g);
    *n_priced += g.n_priced;
    *gap = found && g.best_s < s ? s / g.best_s - 1 : 0;
    int encoded = g.best_s < INFINITY && g.best.codec != PLAN_CODEC_NONE;
    /* Encoding has to bring 3 %. */
    double worth = found && encoded && p.codec == PLAN_CODEC_NONE ? g.best_s / 0.97 : g.best_s;
    int best = found ? worth > s / 1.01 || (worth > s / 1.02 && g.best_moved >= moved)
                     : g.best_s == INFINITY;
    if (!best) {
        print_message("case %d: device %d, attn %d, %d layers, %d rows, %s\n", i, t.wish.device,
                      t.wish.attn_cpu, weights.n_layers, (int)work.n_rows, found ? "" : why);
        if (found)
            show("chosen", &p, s, moved);
        show("faster", &g.best, g.best_s, g.best_moved);
    }
    free(g.memory);
    return best;
}

static void test_nothing_is_faster(void **state)
{
    (void)state;
    int first = number("SEARCH_FIRST", 1), n = number("SEARCH_CASES", sweep(12, 64)), lost = 0;
    int64_t n_priced = 0;
    double worst = 0;
    for (int i = first; i < first + n; i++) {
        double gap = 0;
        lost += !is_best(i, &n_priced, &gap);
        worst = gap > worst ? gap : worst;
    }
    print_message("%d of %d jobs have a faster plan, by up to %.1f %% (%lld played)\n", lost, n,
                  100 * worst, (long long)n_priced);
    assert_int_equal(lost, 0);
}

/* More of one of the tiers never makes a job slower, but for what is a tie. (A climb may end on
 * another hill: of the first 64 jobs one is 5 % slower at one of its budgets.) */
static void test_more_is_never_slower(void **state)
{
    (void)state;
    int n = number("SEARCH_CASES", sweep(12, 64)) / 2;
    double worst = 0;
    for (int i = 1; i <= n; i++) {
        struct trial t;
        make_trial(&t, 10000 + i);
        const struct setting set = setting_of(&t.machine);
        int64_t *budget = i % 3 == 0   ? &t.budget.disk
                          : i % 3 == 1 ? &t.budget.ram
                                       : &t.budget.device;
        const int64_t first = max_i64(*budget, 8 * MIB) / 2;
        double before_s = INFINITY;
        struct plan before = {0};
        for (int step = 0; step < 6; step++) {
            struct plan p;
            struct plan_time time;
            char why[320];
            *budget = first + first * step * step / 6;
            if (search_on(&t.machine, &t.wish, &t.budget, &p, why, sizeof why) != 0) {
                assert_true(before_s == INFINITY); // what fitted still does
                continue;
            }
            void *memory = malloc((size_t)plan_cost_bytes(&p));
            assert_int_equal(plan_cost(&set, &p, memory, &time), 0);
            free(memory);
            double s = time.job_s + (p.codec == PLAN_CODEC_NONE ? 0 : costs.codec_make_s);
            worst = fmax(worst, s / before_s - 1);
            if (s > before_s * 1.031) { // a tie, and what a codec has to bring
                print_message("case %d: %.4f s, with less %.4f\n", i, s, before_s);
                show("chosen", &p, s, moved_bytes(&time));
                show("before", &before, before_s, 0);
            }
            assert_true(s <= before_s * 1.031);
            before = s < before_s ? p : before;
            before_s = fmin(before_s, s);
        }
    }
    print_message("slower with more by %.1f %% at most\n", 100 * worst);
}

/* The same numbers, the same plan, whatever the memory held before. */
static void test_same_job_same_plan(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++) {
        struct trial t;
        struct plan first = {0};
        char why[320];
        make_trial(&t, i);
        t.budget = NO_BUDGET;
        const struct setting set = setting_of(&t.machine);
        size_t n_bytes = (size_t)plan_search_bytes(&t.wish, &work, weights.n_layers);
        void *memory = malloc(n_bytes);
        for (int k = 0; k < sweep(5, 25); k++) {
            struct plan p;
            memset(memory, k, n_bytes);
            memset(&p, 255 - k, sizeof p);
            assert_int_equal(
                plan_search(&set, &t.wish, &t.budget, memory, &p, NULL, why, sizeof why), 0);
            if (k == 0)
                first = p;
            assert_memory_equal(&p, &first, sizeof p);
        }
        free(memory);
    }
}

/* ---- large models ---- */

/* Llama 3 70B in bf16 of 12 bits, 100,000 rows of 512 tokens. */
static void make_large(int n_out)
{
    memset(&weights, 0, sizeof weights);
    weights.n_decoder = 80;
    weights.n_layers = 1 + 80 + 32;
    weights.must_decode = 1;
    weights.embed_row_bytes = 16384;
    weights.embed_rest_bytes = 4096;
    for (int i = 0; i < weights.n_layers; i++) {
        weights.layer_bytes[i] = i == 0 ? 2101346304 : i <= 80 ? 1283457024 : 2 * HEAD_TILE * 8192;
        weights.tile_bytes[i] = i == 0 ? 0 : i <= 80 ? 1711276032 : weights.layer_bytes[i];
    }
    shape = (struct shape){.n_layers = 80,
                           .dim = 8192,
                           .n_heads = 64,
                           .n_kv_heads = 8,
                           .head_dim = 128,
                           .ffn_dim = 28672,
                           .vocab = 128256,
                           .context = 8192,
                           .embed_dim = 8192,
                           .rope_dim = 128,
                           .act = ACT_SILU,
                           .gated = 1};
    evict = (struct evict){.policy = EVICT_FULL};
    work = (struct work){.n_rows = 100000,
                         .prompt_tokens = 51200000,
                         .output_tokens = 100000LL * n_out,
                         .prompt_max = 512,
                         .tokens_max = 512 + n_out,
                         .slots_max = 512 + n_out,
                         .slots_mean = 512 + n_out,
                         .line_bytes_max = 4000};
    costs = (struct plan_costs){.measure = engine_measure,
                                .tile_bytes = layer_tile_bytes,
                                .kv_page_bytes = 131072,
                                .prompt_page_bytes = 131072,
                                .cross = {2, 2},
                                .text_bytes = 64 * MIB,
                                .io_bytes = 16 * MIB,
                                .row_token_bytes = 16,
                                .scratch_bytes = {64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB},
                                .bounce_bytes = 64 * MIB};
}

/* A search of a large model takes little memory, and finds a plan that can be priced. */
static void test_large_models_have_a_plan(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct machine machine;
        const struct machine *m = &machine;
        struct plan_wish wish = plan_wish_any();
        struct plan p;
        struct plan_time t;
        char why[320];
        assert_int_equal(machine_file_read(&machine, i < 2 ? "configs/machine-t4.cfg"
                                                           : "configs/machine-a100.cfg"),
                         OK);
        wish.device = 1;
        make_large(i & 1 ? 1024 : 32);
        const struct budget budget = {m->device_memory, m->ram, m->disk};
        const struct setting set = setting_of(m);
        assert_true(plan_search_bytes(&wish, &work, weights.n_layers) < 64 * MIB);
        assert_int_equal(search_on(m, &wish, &budget, &p, why, sizeof why), 0);
        void *memory = malloc((size_t)plan_cost_bytes(&p));
        assert_int_equal(plan_cost(&set, &p, memory, &t), 0);
        free(memory);
        print_message("%s, 512/%d\n", i < 2 ? "T4" : "A100", i & 1 ? 1024 : 32);
        show("chosen", &p, t.job_s, moved_bytes(&t));
    }
}

/* One row in three goes on to its cap, the others stop in their first eighth, and the budget is
 * that of a plan for 8 rows of full length: most plans have KV for more than the mean row. */
static void test_rows_that_stop_at_random_have_room(void **state)
{
    (void)state;
    int more = 0, n = 0;
    for (int i = 0; n < 12; i++) {
        struct trial t;
        struct plan p;
        struct plan_time time;
        char why[320];
        make_trial(&t, i);
        if (t.wish.device || work.scores || evict.policy != EVICT_FULL)
            continue;
        n++;
        work.n_rows = work.n_lengths = 200;
        for (int k = 0; k < 200; k++)
            lengths[k] = (struct work_row){.prompt = 32, .known = 32, .cap = 32 + 960};
        work.prompt_max = 32;
        work.prompt_tokens = 32 * work.n_rows;
        work.tokens_max = work.slots_max = 32 + 960;
        work_expect(&work, &evict);
        const struct setting set = setting_of(&t.machine);
        struct plan_wish few = t.wish;
        struct plan_bytes bytes;
        few.batch = 8;
        few.batches = 1;
        few.decoded = 0;
        t.budget = (struct budget){.ram = (int64_t)4096 * MIB};
        assert_int_equal(search_on(&t.machine, &few, &t.budget, &p, why, sizeof why), 0);
        assert_int_equal(plan_check(&set, &p, &t.budget, &bytes, why, sizeof why), 0);
        t.budget.ram = bytes.ram;
        work.stops[0] = 0.009;
        work_expect(&work, &evict);
        const int64_t mean_pages = ceil_div(work.slots_mean, PAGE_SLOTS) + 1;
        assert_int_equal(search_on(&t.machine, &t.wish, &t.budget, &p, why, sizeof why), 0);
        void *memory = malloc((size_t)plan_cost_bytes(&p));
        assert_int_equal(plan_cost(&set, &p, memory, &time), 0);
        free(memory);
        more += p.pages_batch > mean_pages * p.batch;
        show("chosen", &p, time.job_s, (double)p.pages_batch / (double)(mean_pages * p.batch));
    }
    print_message("%d of %d plans have KV for more than the mean row\n", more, n);
    assert_true(more > n / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_faster),
        cmocka_unit_test(test_more_is_never_slower),
        cmocka_unit_test(test_same_job_same_plan),
        cmocka_unit_test(test_large_models_have_a_plan),
        cmocka_unit_test(test_rows_that_stop_at_random_have_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
