/* tests/cost_test.c - what plans cost in time: lanes, their overlap, and that more memory is not
 * slower. */
#include "policy/pace.h"
#include "policy/servers.h"

#include "tests/plan_help.h"
#include "tests/sweep.h"

static double job_seconds(struct budget budget, struct plan *p, struct plan_time *t)
{
    struct plan_wish wish = AUTO;
    char why[320];
    wish.device = 1;
    if (search(&wish, &budget, p, why, sizeof why) != 0)
        return INFINITY;
    *t = time_on(&MACHINE, p);
    assert_true(t->job_s > 0 && t->job_s < 1e6 && t->bound);
    return t->job_s;
}

static int about(double a, double b, double by)
{
    return fabs(a - b) <= by * fabs(b);
}

/* A search ends by its work, so that a smaller budget may be given the luckier end: 11 % were seen.
 */
#define SLACK 1.15

/* More memory of either kind is not slower; with enough of the device's nothing moves. */
static void test_device_memory_helps(void **state)
{
    (void)state;
    work.n_rows = work.n_lengths = ROWS;
    work.prompt_tokens *= 30;
    work.output_tokens *= 30;
    struct plan p;
    struct plan_time t;
    double all = 0;
    for (int layer = 0; layer < weights.n_layers; layer++)
        all += (double)weights.layer_bytes[layer];
    for (int64_t ram = 64; ram <= 4096; ram *= sweep(8, 4)) {
        double before_s = INFINITY;
        for (int64_t device = 32; device <= 16384; device *= sweep(8, 2)) {
            double s = job_seconds((struct budget){device * MIB, ram * MIB, 0}, &p, &t);
            assert_true(s <= before_s * SLACK);
            before_s = s;
        }
        assert_true(p.resident == 20 && p.kv_near == 16 * p.batches && p.hidden_near == p.batches);
        assert_true(about(t.bytes[LANE_H2D], all, 1e-3)); // the first pass
        assert_true(t.d2h_s == 0 && t.write_s == 0 && strcmp(t.bound, "gpu") == 0);
    }
    for (int64_t device = 64; device <= 1024; device *= 4) {
        double before_s = INFINITY;
        for (int64_t ram = 64; ram <= 16384; ram *= sweep(4, 2)) {
            double s = job_seconds((struct budget){device * MIB, ram * MIB, 1 << 30}, &p, &t);
            assert_true(s <= before_s * SLACK);
            before_s = s;
        }
        double rows = 5632.0 * (double)(work.prompt_tokens + work.output_tokens); // gathered
        assert_true(t.bytes[LANE_NVME_READ] <
                    1.2 * all + rows); // RAM holds what the device does not
    }
}

/* A lane's seconds are its bytes by its rate, each layer where it lives; the first pass brings what
 * stays besides. */
static void test_device_lanes(void **state)
{
    (void)state;
    struct plan_time t, moved, less;
    struct plan p = derived((struct plan){.batch = 10,
                                          .batches = 4,
                                          .device = 1,
                                          .window = 3,
                                          .resident = 5,
                                          .weights_ram = 9,
                                          .kv_near = PLAN_ALL,
                                          .hidden_near = PLAN_ALL,
                                          .prefill_tokens = 64,
                                          .ahead_weights = 2});
    double nvme = 0, link = 0, all = (double)weights.embed_rest_bytes;
    for (int layer = 1; layer < p.layers; layer++) {
        double n_bytes = (double)weights.layer_bytes[layer];
        nvme += plan_layer_home(&p, layer) == TIER_NVME ? n_bytes : 0;
        link += plan_layer_home(&p, layer) != TIER_DEVICE ? n_bytes : 0;
        all += n_bytes;
    }
    t = time_on(&MACHINE, &p);
    double loads = t.bytes[LANE_NVME_READ] - t.passes * nvme;
    assert_true(loads > all - nvme && loads < all - nvme + 1e9); // and gathered rows, look-ahead
    assert_true(about(t.read_s * 2e9 * t.passes, t.bytes[LANE_NVME_READ], 0.01));
    assert_true(about(t.h2d_s * 1e10 * t.passes, t.bytes[LANE_H2D], 0.01));
    assert_true(about(t.bytes[LANE_H2D], t.passes * link + all - link, 0.01));
    assert_true(t.d2h_s == 0 && t.write_s == 0 && t.gpu_s > 0 && t.compute_s > 0);
    assert_string_equal(t.bound, "nvme-read");
    assert_true(t.pass_s > t.read_s);
    p.kv_near = 0;
    p.kv_ram = PLAN_ALL;
    p = derived(p);
    moved = time_on(&MACHINE, &p);
    double kv = moved.bytes[LANE_H2D] - t.bytes[LANE_H2D];
    /* Full pages of rows that hold 250 slots in the mean of their lives, 10,000 tokens. */
    assert_true(about(kv, 10000.0 * (250 / 32.0 - 0.5) * 32768 * 16, 0.05));
    assert_true(about(moved.read_s, t.read_s, 1e-9) && moved.write_s == 0 && moved.d2h_s > 0);
    p.kv_ram = 0; // 64 extents on NVMe, 16 of them beside the ops
    p.kv_near = 16;
    p = derived(p);
    less = time_on(&MACHINE, &p);
    assert_true(about(less.bytes[LANE_H2D] - t.bytes[LANE_H2D], 0.75 * kv, 0.1));
    assert_true(about(less.bytes[LANE_NVME_READ] - t.bytes[LANE_NVME_READ], 0.75 * kv, 0.1));
    assert_true(about(less.bytes[LANE_NVME_WRITE], less.bytes[LANE_D2H], 1e-9));
    assert_true(about(less.d2h_s, 0.75 * moved.d2h_s, 0.1));
}

/* Weights that are made here are not read, but for those that the device holds or that come through
 * a frame to be decoded: beside a device they go over the link all the same. */
static void test_made_weights_are_not_read(void **state)
{
    (void)state;
    struct machine slow = MACHINE; // so that nothing hides the reads
    slow.nvme_read.value = 1e8;
    struct plan on_device = {.batch = 10,
                             .batches = 4,
                             .device = 1,
                             .window = 3,
                             .resident = 5,
                             .weights_ram = 9,
                             .kv_near = PLAN_ALL,
                             .hidden_near = PLAN_ALL,
                             .prefill_tokens = 64,
                             .ahead_weights = 2};
    struct plan on_cpu = on_device;
    on_cpu.device = on_cpu.window = on_cpu.weights_ram = 0;
    on_cpu.resident = 14;
    on_cpu.decoded = 6;
    for (int device = 0; device < 2; device++) {
        double n_bytes = 0;
        for (int layer = 1; layer < weights.n_layers; layer++)
            weights.tile_bytes[layer] = device ? 0 : weights.layer_bytes[layer];
        struct plan p = derived(device ? on_device : on_cpu);
        assert_int_equal(p.decoded, device ? 0 : 6);
        for (int layer = 0; layer < p.layers; layer++)
            if (plan_layer_home(&p, layer) == TIER_RAM && !plan_layer_decoded(&p, layer))
                n_bytes += (double)weights.layer_bytes[layer];
        weights.made_here = 0;
        const struct plan_time read = time_on(&slow, &p);
        weights.made_here = 1;
        const struct plan_time made = time_on(&slow, &p);
        double less = read.bytes[LANE_NVME_READ] - made.bytes[LANE_NVME_READ];
        assert_true(n_bytes > 0 && about(less, n_bytes, 1e-9));
        assert_true(about(read.first_s - made.first_s, n_bytes / 1e8, 0.1));
        assert_true(read.bytes[LANE_H2D] == made.bytes[LANE_H2D]);
    }
}

/* Where the CPU attends, KV leaves the link and the device's memory; q, k, v and what attention
 * gives cross it beside the ops, and the CPU reads the KV. */
static void test_attention_beside_a_device(void **state)
{
    (void)state;
    struct plan_time on, beside;
    struct plan p = {.batch = 25,
                     .batches = 4,
                     .device = 1,
                     .window = 3,
                     .resident = 20,
                     .kv_ram = PLAN_ALL,
                     .hidden_near = PLAN_ALL,
                     .prefill_tokens = 64,
                     .ahead_weights = 2};
    struct plan apart = p;
    apart.attn_cpu = 1;
    apart.kv_near = PLAN_ALL;
    p = derived(p);
    apart = derived(apart);
    assert_int_equal(apart.kv_ram, 0);
    assert_int_equal(plan_kv_count(&apart, TIER_RAM), 64);
    on = time_on(&MACHINE, &p);
    beside = time_on(&MACHINE, &apart);
    double slot = (double)costs.kv_page_bytes / 32 * 16;
    assert_true(beside.bytes[LANE_H2D] < on.bytes[LANE_H2D] && beside.bytes[LANE_D2H] == 0);
    assert_true((beside.compute_s - on.compute_s) * on.passes > 10000 * 250 * slot / 2e10);
    assert_true(beside.gpu_s > 0);
    struct plan_bytes b, c;
    char why[256];
    assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
    assert_int_equal(check(&apart, &NO_BUDGET, &c, why, sizeof why), 0);
    assert_true(c.device < b.device);
}

/* Attention on a device takes the bytes of its slots and the FLOPs of its pairs at rates of its
 * own; without them at those of the device's memory and matmuls. */
static void test_attention_on_a_device_has_rates_of_its_own(void **state)
{
    (void)state;
    const struct plan p = derived((struct plan){.batch = 25,
                                                .batches = 4,
                                                .device = 1,
                                                .window = 3,
                                                .resident = 20,
                                                .kv_near = PLAN_ALL,
                                                .hidden_near = PLAN_ALL,
                                                .prefill_tokens = 64,
                                                .ahead_weights = 2});
    struct machine m = MACHINE;
    struct plan_time without, same, reads, pairs;
    double n_pairs = 0, slot_bytes = (double)costs.kv_page_bytes / PAGE_SLOTS * 16;
    for (int i = 0; i < 100; i++)
        n_pairs += lengths[i].prompt * (lengths[i].prompt + 1) / 2.0;
    without = time_on(&m, &p);
    m.device_attend_read = m.device_read;
    m.device_attend_flops = m.device_flops;
    same = time_on(&m, &p);
    assert_true(same.gpu_s == without.gpu_s && same.job_s == without.job_s);
    m.device_attend_read.value = MACHINE.device_read.value / 11; // ten times as much more
    reads = time_on(&m, &p);
    double more_s = (reads.gpu_s - same.gpu_s) * same.passes;
    assert_true(about(more_s, 10 * 10000.0 * 250 * slot_bytes / MACHINE.device_read.value, 0.05));
    m.device_attend_read.value = 0;
    m.device_attend_flops.value = MACHINE.device_flops.value / 101;
    pairs = time_on(&m, &p);
    more_s = (pairs.gpu_s - same.gpu_s) * same.passes;
    assert_true(about(more_s, 100 * 4.0 * 12 * 64 * 16 * n_pairs / 1e13, 0.05));
    evict.positions = EVICT_POSITIONS_SLOT; // keys are rotated at the rate of copies
    m.device_attend_flops.value = 0;
    same = time_on(&m, &p);
    m.device_attend_read.value = MACHINE.device_read.value / 11;
    reads = time_on(&m, &p);
    more_s = (reads.gpu_s - same.gpu_s) * same.passes;
    assert_true(about(more_s, 10 * 10000.0 * 250 * slot_bytes / MACHINE.device_read.value, 0.05));
}

/* All layers stream, 10 ms of the disk each (a slice 5), 5 ms of the CPU: without look-ahead one
 * waits for the other, with enough of it the disk never rests; a faster disk leaves the CPU's. */
static void test_lanes_overlap_as_far_as_look_ahead_lets_them(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    struct machine machine = {.nvme_read = {12 * MIB / 0.01}, .nvme_write = {1e12}, .threads = 2};
    struct plan p = {.batch = 50,
                     .batches = 1,
                     .kv_near = PLAN_ALL,
                     .hidden_near = PLAN_ALL,
                     .prefill_tokens = 256};
    const struct setting set = setting_of(&machine);
    for (int state_of = 0; state_of < N_WEIGHT_STATES; state_of++)
        for (int i = 0; i < N_MATMUL_ROWS; i++)
            costs.rates.layer_s[state_of][i] = costs.rates.head_s[state_of][i] = 0.005;
    const double alone = 0.180 + 0.100, disk = 0.180, cpu = 0.100;
    for (int ahead = 0; ahead <= 4; ahead += 2)
        for (int fast = 1; fast <= 10; fast += 9) {
            struct plan_time t;
            struct plan q = p;
            machine.nvme_read.value = fast * 12 * MIB / 0.01;
            q.ahead_weights = ahead;
            q = derived(q);
            void *memory = malloc((size_t)plan_cost_bytes(&q));
            assert_non_null(memory);
            assert_int_equal(plan_cost(&set, &q, memory, &t), 0);
            free(memory);
            double want =
                ahead == 0 ? (fast > 1 ? cpu + disk / 10 : alone) : (fast > 1 ? cpu : disk);
            assert_true(t.pass_s > want * 0.999);
            assert_true(t.pass_s < want * (ahead == 0 ? 1.15 : 1.04)); // until a transfer is told
        }
    costs = saved;
}

/* A plan whose 20 layers of 2 MiB all stream through a disk of 1 GiB/s, and seconds of its ops. */
static struct plan small_layers(int ahead, double ops_s)
{
    for (int layer = 1; layer < weights.n_layers; layer++)
        weights.layer_bytes[layer] = 2 * MIB;
    for (int at = 0; at < N_WEIGHT_STATES; at++)
        for (int i = 0; i < N_MATMUL_ROWS; i++)
            costs.rates.layer_s[at][i] = costs.rates.head_s[at][i] = ops_s;
    return derived((struct plan){.batch = 50,
                                 .batches = 1,
                                 .kv_near = PLAN_ALL,
                                 .hidden_near = PLAN_ALL,
                                 .ahead_weights = ahead,
                                 .prefill_tokens = 256});
}

/* All layers on a device, whose rows attend on the CPU. */
static struct plan attends_on_cpu(void)
{
    return derived((struct plan){.batch = 25,
                                 .batches = 4,
                                 .device = 1,
                                 .attn_cpu = 1,
                                 .window = 3,
                                 .resident = 20,
                                 .kv_near = PLAN_ALL,
                                 .hidden_near = PLAN_ALL,
                                 .prefill_tokens = 4096,
                                 .ahead_weights = 2});
}

/* The prompts of rows that attend on the CPU attend on the device: a CPU of slow matmuls is no
 * slower with them, a device of slow attention is, by their pairs; spans are as they were. */
static void test_prompts_attend_on_the_device(void **state)
{
    (void)state;
    struct machine machine = MACHINE;
    const struct plan p = attends_on_cpu();
    double pairs = 0;
    for (int i = 0; i < 100; i++)
        pairs += lengths[i].prompt * (lengths[i].prompt + 1.0) / 2;
    machine.h2d.value = machine.d2h.value = machine.device_attend_flops.value = 1e15;
    const struct plan_time was = time_on(&machine, &p);
    machine.prompt_flops.value = 1e6;
    machine.device_attend_read.value = 1;
    const struct plan_time cpu = time_on(&machine, &p);
    machine.device_attend_flops.value = 1e10;
    const struct plan_time device = time_on(&machine, &p);
    assert_true(cpu.job_s == was.job_s && cpu.compute_s == was.compute_s);
    assert_true(about((device.gpu_s - was.gpu_s) * was.passes, pairs * 4 * 768 * 16 / 1e10, 1e-3));
    assert_true(device.compute_s == was.compute_s && device.job_s > was.job_s);
}

/* Where rows attend on the CPU, q, k and v of spans, attention, and what prompts leave cross the
 * link beside the ops: a link that is slow bounds the passes by its bytes; one that takes 15 % of
 * the ops' time hides behind them. */
static void test_what_crosses_the_link(void **state)
{
    (void)state;
    struct machine machine = MACHINE;
    struct plan_costs saved = costs;
    struct plan p = attends_on_cpu();
    machine.h2d.value = machine.d2h.value = 1e15;
    const double free_s = time_on(&machine, &p).job_s;
    const double spans = 10000.0 * 16 * (768 + 2 * 256), prompts = 20000.0 * 16 * 768;
    double kept = 0; // full pages
    for (int i = 0; i < 100; i++)
        kept += lengths[i].prompt / 32 * 32768 * 16.0;
    machine.d2h.value = ((spans + prompts) * 4 + kept) / (100 * free_s);
    const double slow_s = time_on(&machine, &p).job_s;
    costs.cross.in = 2;
    const double half_s = time_on(&machine, &p).job_s;
    machine.device_flops.value = 2e11;
    machine.d2h.value = 1e15;
    const double ops_s = time_on(&machine, &p).job_s;
    machine.d2h.value = (spans * 2 + prompts * 4 + kept) / (0.15 * ops_s);
    const double beside_s = time_on(&machine, &p).job_s;
    /* Weights that stream share the link with what comes back. */
    const double back = 30000.0 * 16 * 768;
    machine = MACHINE;
    machine.h2d.value = 1e8;
    p.resident = 0;
    p.weights_ram = 20;
    p = derived(p);
    costs.cross = (struct cross_bytes){2, 0};
    const double weights_s = time_on(&machine, &p).job_s;
    costs.cross.out = 4;
    const double more_s = time_on(&machine, &p).job_s - weights_s;
    costs = saved;
    /* Passes up to LIKE = 1.25 times as long wait alike (policy/pass.c). */
    assert_true(about(more_s, back * 4 / 1e8, 0.25));
    assert_true(about(slow_s, 100 * free_s, 0.05));
    assert_true(about(slow_s - half_s, spans * 2 / ((spans + prompts) * 4 + kept) * slow_s, 0.03));
    assert_true(beside_s > ops_s && beside_s < 1.05 * ops_s);
}

/* One layer at a time is two pieces in flight, and its waiter is told later, as is that of the rows
 * of the embedding; with six ahead the disk gives all that it has. */
static void test_few_in_flight_wait_longer(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    const double piece = MIB / (1024.0 * MIB); // seconds at the full rate
    struct machine m = {.nvme_read = {1024.0 * MIB},
                        .nvme_write = {1e12},
                        .nvme_read_d1 = {256.0 * MIB},
                        .nvme_read_d2 = {512.0 * MIB},
                        .nvme_read_d4 = {768.0 * MIB},
                        .ticket_s = {0.003},
                        .gather_s = {1e-9},
                        .threads = 2};
    struct plan p = small_layers(0, 1e-9);
    struct plan_time t = time_on(&m, &p);
    assert_true(about(t.pass_s, 20 * 4 * piece + 21 * 0.003, 0.01));
    assert_true(about(t.read_s, 20 * 4 * piece, 0.03)); // so long something was in flight
    m.nvme_read_d2.value = m.nvme_read_d1.value;        // two get no more than one
    t = time_on(&m, &p);
    assert_true(about(t.pass_s, 20 * 8 * piece + 21 * 0.003, 0.01));
    m.ticket_s.value = 1e-9;
    t = time_on(&m, &p);
    assert_true(about(t.pass_s, 20 * 8 * piece, 0.01));
    p = small_layers(6, 1e-9);
    t = time_on(&m, &p);
    assert_true(about(t.pass_s, 20 * 2 * piece, 0.02));
    costs = saved;
}

/* While ops compute the disk gives half; it makes up for it while they wait. */
static void test_the_disk_is_slower_beside_ops(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    struct machine m = {.nvme_read = {1024.0 * MIB},
                        .nvme_read_d1 = {1024.0 * MIB},
                        .nvme_read_d2 = {1024.0 * MIB},
                        .nvme_read_d4 = {1024.0 * MIB},
                        .nvme_write = {1e12},
                        .ticket_s = {1e-9},
                        .threads = 2};
    const double layer_s = 2.0 / 1024, ops_s = 0.0015;
    struct plan p = small_layers(4, ops_s);
    struct plan_time t = time_on(&m, &p);
    double alone_s = t.pass_s;
    assert_true(about(alone_s, 20 * layer_s, 0.1)); // the disk bounds
    m.read_beside.value = 0.5;
    t = time_on(&m, &p);
    assert_true(about(t.pass_s - alone_s, 20 * 0.5 * ops_s, 0.15));
    m.read_beside.value = 1.5; // disturbed: not faster than alone
    t = time_on(&m, &p);
    assert_true(about(t.pass_s, alone_s, 1e-9));
    costs = saved;
}

/* Ops that go at half their rate while the disk is read lose as long as it takes; where nobody has
 * measured it, what the checksums take. */
static void test_ops_are_slower_beside_reads(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    struct machine m = {
        .nvme_read = {1024.0 * MIB}, .nvme_write = {1e12}, .ticket_s = {1e-9}, .threads = 2};
    struct plan p = small_layers(4, 0.01);
    const double read_s = 20 * 2.0 / 1024;
    double alone_s = time_on(&m, &p).pass_s;
    m.matmul_beside.value = 0.5;
    assert_true(about(time_on(&m, &p).pass_s - alone_s, read_s, 0.05));
    m.read_beside.value = 0.5; // and it takes twice as long
    assert_true(about(time_on(&m, &p).pass_s - alone_s, 2 * read_s, 0.05));
    m.matmul_beside.value = 1.2; // disturbed: not faster than alone
    m.read_beside.value = 0;
    assert_true(about(time_on(&m, &p).pass_s, alone_s, 1e-6));
    m.matmul_beside.value = 0;
    m.crc.value = 1024.0 * MIB;
    assert_true(about(time_on(&m, &p).pass_s - alone_s, read_s / m.threads, 0.05));
    costs = saved;
}

/* Rows of the embedding that nothing holds: of prompts, and of what the only batch has sampled. */
static void test_rows_are_gathered_in_time(void **state)
{
    (void)state;
    struct plan_costs saved = costs;
    struct machine m = {.nvme_read = {1e15},
                        .nvme_write = {1e12},
                        .ticket_s = {1e-9},
                        .gather_s = {1e-9},
                        .threads = 2};
    struct plan p = small_layers(2, 1e-4);
    struct plan_time t = time_on(&m, &p);
    double rows = (double)(work.prompt_tokens + work.output_tokens - work.n_rows);
    m.gather_s.value = 1e-4;
    assert_true(about(time_on(&m, &p).job_s - t.job_s, rows * 1e-4, 0.03));
    m.gather_s.value = 1e-9;
    m.ticket_s.value = 0.01; // of layers, of sampled rows; of prompts in some passes
    double more = (time_on(&m, &p).job_s - t.job_s) / t.passes;
    assert_true(more > 0.0099 * 2 && more < 0.0101 * 23);
    costs = saved;
}

/* Where positions are ranks a slot's keys are written and read once more, in f32: three times the
 * bytes of a slot in bf16, here. */
static void test_keys_by_rank_cost_their_rotation(void **state)
{
    (void)state;
    const struct plan_costs saved = costs;
    const struct machine m = {
        .nvme_read = {1e12}, .nvme_write = {1e12}, .ram_read = {1e9}, .threads = 2};
    evict = (struct evict){.policy = EVICT_STREAMING, .budget = 128, .sink = -1};
    work.slots_max = work.slots_mean = 128;
    const struct plan p = small_layers(2, 1e-4);
    const struct plan_time plain = time_on(&m, &p);
    evict.positions = EVICT_POSITIONS_SLOT;
    const struct plan_time by_rank = time_on(&m, &p);
    evict.positions = EVICT_POSITIONS_TRUE;
    costs.kv_page_bytes *= 3;
    const struct plan_time thrice = time_on(&m, &p);
    assert_true(by_rank.compute_s > 1.01 * plain.compute_s);
    assert_true(about(by_rank.compute_s, thrice.compute_s, 1e-6));
    costs = saved;
}

/* KV that lives on the disk comes page by page: each row's first pages in one piece. */
static void test_pages_apart_cost_their_start(void **state)
{
    (void)state;
    struct machine m = {
        .nvme_read = {1e10}, .nvme_write = {1e10}, .ticket_s = {1e-9}, .threads = 2};
    m.gather_s.value = 4096 / 1e10; // a piece costs its bytes
    struct plan p = derived((struct plan){.batch = 25,
                                          .batches = 2,
                                          .resident = 20,
                                          .hidden_near = PLAN_ALL,
                                          .ahead_weights = 2,
                                          .ahead_state = 2,
                                          .prefill_tokens = 256});
    struct plan_time t = time_on(&m, &p);
    m.gather_s.value += 1e-5;
    struct plan_time slow = time_on(&m, &p);
    double pages = t.bytes[LANE_NVME_READ] / (double)costs.kv_page_bytes; // but for the first pass
    double starts = (slow.read_s - t.read_s) * t.passes / 1e-5;
    double rows = 16.0 * (double)(work.output_tokens - work.n_rows); // a layer and pass each
    assert_true(t.read_s > 0 && starts > 0.2 * rows && starts < 0.7 * pages);
    assert_true(slow.write_s > t.write_s && slow.job_s > t.job_s);
}

/* Weights that stay and KV are touched for the first time by the first pass, once more than a
 * little stays: the disk brings the former meanwhile, ops do nothing else. Tiles ops write, too. */
static void test_fresh_memory_costs_its_first_touch(void **state)
{
    (void)state;
    struct machine machine = MACHINE;
    struct plan p = small_layers(1, 1e-4);
    p.resident = 20;
    for (int large = 0; large < 2; large++)
        for (int tiles = 0; tiles < 2; tiles++) {
            for (int layer = 1; layer < weights.n_layers; layer++) {
                weights.layer_bytes[layer] = (large ? 100 : 10) * MIB;
                weights.tile_bytes[layer] = (large ? 150 : 15) * MIB;
            }
            p.decoded = tiles ? 20 : 0;
            p = derived(p);
            machine.ram_fresh.value = 0;
            struct plan_time known = time_on(&machine, &p);
            double kv = 16.0 * (double)(p.pages_batch * costs.kv_page_bytes);
            double read = tiles ? 0 : 2000.0 * MIB, written = kv + (tiles ? 3000.0 * MIB : 0);
            double disk_s = (2000.0 * MIB + (double)weights.layer_bytes[0]) / 2e9;
            read += plan_layer_home(&p, 0) == TIER_RAM ? (double)weights.layer_bytes[0] : 0;
            assert_true(large || 300.0 * MIB + kv < PLAN_BROUGHT_IN);
            for (double fresh = 1e8; fresh <= 1e12; fresh *= 10) {
                machine.ram_fresh.value = fresh;
                struct plan_time t = time_on(&machine, &p);
                double more = large ? fmax(read / fresh - disk_s, 0) + written / fresh : 0;
                assert_true(about(t.first_s - known.first_s, more, 0.01) ||
                            fabs(t.first_s - known.first_s - more) < 0.01 * known.first_s);
                assert_true(fabs(t.job_s - known.job_s - (t.first_s - known.first_s)) <
                            1e-6 * t.job_s);
                assert_true(t.passes == known.passes);
            }
        }
}

/* Reads that are due first wait for the pieces of others that are in flight: half of each is left.
 */
static void test_pieces_in_flight_are_not_called_back(void **state)
{
    (void)state;
    const double most = 1e8;
    struct machine machine = {.nvme_read = {.value = most},
                              .nvme_read_d1 = {.value = most},
                              .nvme_read_d2 = {.value = most},
                              .nvme_read_d4 = {.value = most},
                              .ticket_s = {.value = 1e-9}};
    struct item items[8], links[8];
    struct servers s;
    servers_make(&s, &machine, 0);
    s.cap = 8;
    s.disk.items = items;
    s.link.items = links;
    for (int i = 0; i < 4; i++) {
        const int flying = i % 2, depth = i < 2 ? 2 : IO_DEPTH;
        double first = INFINITY, later = INFINITY;
        const struct item large = {
            .due = 9, .disk_s = 0.08, .piece_s = 0.01, .pieces = 8, .ready = &later};
        const struct item urgent = {
            .due = 1, .from = 0.02, .disk_s = 0.04, .piece_s = 0.005, .pieces = 8, .ready = &first};
        servers_start(&s);
        s.disk.depth = depth;
        if (flying)
            servers_take(&s, &large);
        servers_go(&s, 0.02);
        servers_take(&s, &urgent);
        assert_true(about(servers_wait(&s, &first), 0.06 + flying * depth * 0.01 / 2, 1e-6));
        if (flying) // nothing is lost
            assert_true(about(servers_wait(&s, &later), 0.08 + 0.04, 1e-6));
    }
}

/* The factor of earlier runs is of the time that passes, never of lanes; the same for all plans of
 * a class that is not known, so the same plan is the best. */
static void test_earlier_runs_scale_the_time(void **state)
{
    (void)state;
    const struct budget budget = {64 * MIB, 256 * MIB, 1 << 30};
    struct pace_runs runs = {0};
    struct pace pace = {0};
    struct plan p, q;
    struct plan_time was, t;
    double s = job_seconds(budget, &p, &was);
    assert_true(was.pace.value == 1 && was.pace.n == 0);
    pace_add(&runs, &(struct pace_run){pace_class(&p, 0), 1.5});
    pace_make(&pace, &runs);
    costs.pace = &pace;
    assert_true(about(job_seconds(budget, &q, &t), 1.5 * s, 1e-9));
    assert_memory_equal(&p, &q, sizeof p);
    assert_true(about(t.pass_s, 1.5 * was.pass_s, 1e-9));
    assert_true(about(t.first_s, 1.5 * was.first_s, 1e-9));
    assert_true(t.read_s == was.read_s && t.compute_s == was.compute_s && t.gpu_s == was.gpu_s);
    assert_true(t.pace.value == 1.5 && t.pace.n == 1);
    pace.setup = 1; // another format: no run was of it
    assert_true(about(job_seconds(budget, &q, &t), 1.5 * s, 1e-9) && t.pace.n == 0);
    assert_memory_equal(&p, &q, sizeof p);
    costs.pace = NULL;
}

/* Bytes of the device for a batch of so many rows, without what grows with the batch by itself. */
static int64_t scratch_of(int batch, int attn_cpu)
{
    struct plan_bytes with, without;
    char why[256];
    struct plan p = derived((struct plan){.batch = batch,
                                          .batches = 1,
                                          .device = 1,
                                          .attn_cpu = attn_cpu,
                                          .window = 3,
                                          .resident = 5,
                                          .hidden_near = PLAN_ALL,
                                          .prefill_tokens = 64,
                                          .ahead_weights = 1,
                                          .ahead_state = 1});
    const struct plan_costs saved = costs;
    assert_int_equal(check(&p, &NO_BUDGET, &with, why, sizeof why), 0);
    memset(costs.scratch_bytes, 0, sizeof costs.scratch_bytes);
    costs.attend_row_bytes = costs.attend_rows_bytes = 0;
    assert_int_equal(check(&p, &NO_BUDGET, &without, why, sizeof why), 0);
    costs = saved;
    return with.device - without.device;
}

/* One batch of 100 rows; weights, KV and hidden states stay on the device. */
static struct plan all_on_device(void)
{
    return derived((struct plan){.batch = 100,
                                 .batches = 1,
                                 .device = 1,
                                 .window = 1,
                                 .resident = 20,
                                 .kv_near = PLAN_ALL,
                                 .hidden_near = PLAN_ALL,
                                 .prefill_tokens = 64});
}

/* A step on a device waits once for each of its ops and tile of tokens, and a token's numbers are
 * read and written between matmuls, whatever these take. Ops of a layer: as many as
 * engine/line/layer_decode.c queues for such a shape. */
static void test_ops_beside_matmuls(void **state)
{
    (void)state;
    static const struct {
        int position, qk_norm, gated, n_experts, ops;
    } shapes[] = {{POSITION_LEARNED, QK_NORM_NONE, 0, 0, 8},
                  {POSITION_ROPE, QK_NORM_NONE, 1, 0, 11},
                  {POSITION_ROPE, QK_NORM_HEAD, 1, 8, 16},
                  {POSITION_ROPE, QK_NORM_NONE, 0, 0, 10}};
    struct machine m = MACHINE;
    struct plan p = all_on_device();
    const double steps = 16 + 1 + 4, numbers = 4.0 * 768 + 2 * (768 + 256);
    memset(weights.layer_bytes, 0, sizeof weights.layer_bytes);
    m.device_flops.value = m.device_attend_read.value = m.device_attend_flops.value = 1e30;
    p.tile_tokens = 4096; // all of a pass
    struct plan_time t = time_on(&m, &p), slow;
    double tokens = (double)(work.prompt_tokens + work.output_tokens - work.n_rows);
    assert_true(about(t.gpu_s * t.passes, 16 * tokens * 4 * numbers / 2e11, 1e-3));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        shape.position = shapes[i].position;
        shape.qk_norm = shapes[i].qk_norm;
        shape.gated = shapes[i].gated;
        shape.n_experts = shapes[i].n_experts;
        shape.n_experts_used = shapes[i].n_experts > 0;
        m.launch_s.value = 0;
        t = time_on(&m, &p);
        m.launch_s.value = 1e-5;
        slow = time_on(&m, &p);
        assert_true(about(slow.gpu_s - t.gpu_s, steps * shapes[i].ops * 1e-5, 1e-3));
    }
    p.tile_tokens = 4;
    slow = time_on(&m, &p);
    assert_true(slow.gpu_s - t.gpu_s > 5 * steps * 10e-5);
}

/* Of the experts a tile reads those that its tokens go to, by themselves: while they wait for their
 * bytes and the other matmuls for FLOPs, one does not hide the other. A token's row is written and
 * read once more for each of its experts. */
static void test_experts_on_a_device(void **state)
{
    (void)state;
    struct machine m = MACHINE;
    struct plan p = all_on_device();
    const double tokens = (double)(work.prompt_tokens + work.output_tokens - work.n_rows);
    const double dense = (2.0 * 768 + 2 * 256) * 768, mlp = 2.0 * 2048 * 768, read = 2e11;
    const double number = 12.0 * MIB / (dense + 8 * mlp); // bytes
    const double rows = 4 * (4.0 * 768 + 2 * (768 + 256) + 4 * (768 + 2048));
    shape.n_experts = 8;
    shape.n_experts_used = 1;
    for (int i = 17; i < 21; i++)
        weights.layer_bytes[i] = 0;
    m.device_flops.value = m.device_attend_read.value = m.device_attend_flops.value = 1e30;
    p.tile_tokens = 1;
    struct plan_time t = time_on(&m, &p);
    assert_true(about(t.gpu_s * t.passes, 16 * tokens * (number * (dense + mlp) + rows) / read,
                      1e-3));
    p.tile_tokens = 4;
    m.device_flops.value = 2 / (number / 2) * read; // as long as half of a token's own bytes
    t = time_on(&m, &p);
    const double met = 1 - pow(7.0 / 8, 4);
    const double s = number * (dense / 2 + 8 * mlp * met / 4) + rows;
    assert_true(about(t.gpu_s * t.passes, 16 * tokens * s / read, 0.06)); // not all tiles are full
}

/* A batch of few rows has the scratch that its rows attend with, and not that of many. */
static void test_scratch_grows_with_rows(void **state)
{
    (void)state;
    costs.attend_row_bytes = MIB;
    costs.attend_rows_bytes = 10 * MIB;
    assert_int_equal(scratch_of(2, 0), 3 * MIB); // other ops need more
    assert_int_equal(scratch_of(8, 0), 8 * MIB);
    assert_int_equal(scratch_of(16, 0), 10 * MIB);
    assert_int_equal(scratch_of(16, 1), 3 * MIB); // the CPU attends
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_pieces_in_flight_are_not_called_back, setup),
        cmocka_unit_test_setup(test_device_memory_helps, setup),
        cmocka_unit_test_setup(test_device_lanes, setup),
        cmocka_unit_test_setup(test_made_weights_are_not_read, setup),
        cmocka_unit_test_setup(test_attention_beside_a_device, setup),
        cmocka_unit_test_setup(test_attention_on_a_device_has_rates_of_its_own, setup),
        cmocka_unit_test_setup(test_prompts_attend_on_the_device, setup),
        cmocka_unit_test_setup(test_what_crosses_the_link, setup),
        cmocka_unit_test_setup(test_lanes_overlap_as_far_as_look_ahead_lets_them, setup),
        cmocka_unit_test_setup(test_few_in_flight_wait_longer, setup),
        cmocka_unit_test_setup(test_the_disk_is_slower_beside_ops, setup),
        cmocka_unit_test_setup(test_ops_are_slower_beside_reads, setup),
        cmocka_unit_test_setup(test_rows_are_gathered_in_time, setup),
        cmocka_unit_test_setup(test_keys_by_rank_cost_their_rotation, setup),
        cmocka_unit_test_setup(test_pages_apart_cost_their_start, setup),
        cmocka_unit_test_setup(test_fresh_memory_costs_its_first_touch, setup),
        cmocka_unit_test_setup(test_earlier_runs_scale_the_time, setup),
        cmocka_unit_test_setup(test_ops_beside_matmuls, setup),
        cmocka_unit_test_setup(test_experts_on_a_device, setup),
        cmocka_unit_test_setup(test_scratch_grows_with_rows, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
