/* Weights in RAM that several processes share: who fills a layer (engine/line/shared.c); where the
 * layers of a plan are, and what it counts (policy/plan.c). */
#include "engine/line/shared.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/arena.h"
#include "tests/plan_help.h"
#include "tests/sweep.h"

#define N_BYTES ((int64_t)3 << 20)

/* A process that asks for `layer`, writes what it got, and waits to be killed. */
static pid_t other(void *base, int fd, int layer, enum shared_turn *turn)
{
    int told[2];
    char byte;
    assert_int_equal(pipe(told), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        byte = (char)shared_begin(base, fd, layer);
        if (write(told[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(told[0], &byte, 1), 1);
    *turn = (enum shared_turn)byte;
    close(told[0]);
    close(told[1]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static enum shared_turn asked_by_other(void *base, int fd, int layer)
{
    enum shared_turn turn;
    end(other(base, fd, layer, &turn));
    return turn;
}

static void test_turns(void **state)
{
    (void)state;
    const struct plan_shared of = {3, 4, 5, N_BYTES};
    const int fd = shared_make();
    void *base;
    enum shared_turn turn;
    assert_true(fd >= 0);
    assert_int_equal(shared_decide(fd, &of), OK);
    assert_int_equal(ram_share(fd, N_BYTES, &base), OK);
    for (int layer = 0; layer < PLAN_LAYERS_MAX; layer += PLAN_LAYERS_MAX - 2) {
        const pid_t pid = other(base, fd, layer, &turn);
        assert_int_equal(turn, SHARED_MINE);
        assert_int_equal(shared_begin(base, fd, layer), SHARED_BUSY);
        assert_int_equal(shared_begin(base, fd, layer + 1), SHARED_MINE);
        assert_int_equal(asked_by_other(base, fd, layer + 1), SHARED_BUSY);
        end(pid); // it filled nothing
        assert_int_equal(shared_begin(base, fd, layer), SHARED_MINE);
        shared_end(base, fd, layer, 0);
        assert_int_equal(asked_by_other(base, fd, layer), SHARED_MINE);
        assert_int_equal(shared_begin(base, fd, layer), SHARED_MINE);
        shared_end(base, fd, layer, 1);
        assert_int_equal(asked_by_other(base, fd, layer), SHARED_READY);
        assert_int_equal(shared_begin(base, fd, layer), SHARED_READY);
        assert_int_equal(asked_by_other(base, fd, layer + 1), SHARED_BUSY);
        shared_end(base, fd, layer + 1, 0);
    }
    ram_give(base, N_BYTES);
    close(fd);
}

static void test_decisions(void **state)
{
    (void)state;
    const struct plan_shared of = {3, 4, 5, N_BYTES}, none = {0};
    struct plan_shared got;
    for (int some = 0; some < 2; some++) {
        const int fd = shared_make();
        assert_int_equal(shared_decided(fd), 0);
        shared_read(fd, 7, &got);
        assert_true(got.workers == 7 && got.resident == -1 && got.n_bytes == 0);
        assert_int_equal(shared_decide(fd, some ? &of : &none), OK);
        assert_int_equal(shared_decided(fd), 1);
        shared_read(fd, 7, &got);
        assert_true(got.workers == 7 * some && got.n_bytes == N_BYTES * some);
        assert_true(!some || (got.resident == 4 && got.weights_ram == 5));
        close(fd);
    }
}

static int64_t bytes_of(int layer)
{
    return round_up(weights.layer_bytes[layer], BLOCK_BYTES);
}

/* Layers by their homes; shared ones are never on NVMe, and near only when all others are. */
static void assert_homes(const struct plan *p, int64_t *own_ram)
{
    int on[N_TIERS] = {0}, decoded = 0, shared = 0, shared_near = 0, own_away = 0;
    *own_ram = 0;
    for (int layer = 1; layer < p->layers; layer++) {
        const enum tier_kind tier = plan_layer_home(p, layer);
        on[tier]++;
        decoded += plan_layer_decoded(p, layer);
        if (plan_layer_shared(p, layer)) {
            shared++;
            shared_near += tier == TIER_DEVICE;
            assert_true(tier != TIER_NVME);
        } else {
            own_away += tier != TIER_DEVICE;
            *own_ram += tier == TIER_RAM ? bytes_of(layer) : 0;
        }
    }
    assert_int_equal(on[TIER_DEVICE], p->resident);
    assert_int_equal(on[TIER_RAM], p->weights_ram);
    assert_int_equal(decoded, p->decoded);
    assert_int_equal(shared, p->shared->weights_ram);
    assert_true(shared_near == 0 || own_away == 0);
}

static struct plan random_plan(uint64_t *seed)
{
    const int n = weights.n_layers - 1;
    *seed = mix64(*seed);
    return derived((struct plan){.device = 1,
                                 .batch = 1 + (int)(*seed % 9),
                                 .batches = 1 + (int)(*seed / 9 % 3),
                                 .resident = (int)(*seed / 27 % (uint64_t)(n + 1)),
                                 .weights_ram = (int)(*seed / 999 % (uint64_t)(n + 1)),
                                 .decoded = (int)(*seed / 99999 % 7),
                                 .window = 3,
                                 .prefill_tokens = 500});
}

/* The first of n processes decides; whatever the others plan, all that they take is what they count
 * together, or less. */
static void test_the_sum(void **state)
{
    char why[256];
    for (int i = 0; i < sweep(60, 4000); i++) {
        uint64_t seed = (uint64_t)i;
        struct plan_bytes b;
        setup(state);
        for (int layer = 1; layer < weights.n_layers; layer++)
            weights.layer_bytes[layer] += 4096 * layer + 100;
        memcpy(weights.tile_bytes, weights.layer_bytes, sizeof weights.tile_bytes);
        const int n = 2 + i % 4;
        weights.shared = (struct plan_shared){.workers = n, .resident = -1};
        struct plan first = random_plan(&seed);
        if (first.weights_ram == 0)
            continue;
        const struct plan_shared decided = {n, first.resident, first.weights_ram,
                                            plan_shared_bytes(&first, &weights)};
        assert_int_equal(check(&first, &NO_BUDGET, &b, why, sizeof why), 0);
        assert_int_equal(b.by[PLAN_BYTES_weights_resident][TIER_RAM], ceil_div(decided.n_bytes, n));
        int64_t all = PLAN_SHARED_HEAD, counted = 0, taken = decided.n_bytes, own_ram;
        for (int layer = 1; layer < weights.n_layers; layer++)
            all += plan_layer_home(&first, layer) == TIER_RAM ? bytes_of(layer) : 0;
        assert_int_equal(decided.n_bytes, all);
        weights.shared = decided;
        for (int k = 0; k < n; k++) {
            const struct plan p = random_plan(&seed);
            assert_homes(&p, &own_ram);
            assert_int_equal(check(&p, &NO_BUDGET, &b, why, sizeof why), 0);
            counted += b.by[PLAN_BYTES_weights_resident][TIER_RAM];
            taken += own_ram;
        }
        assert_true(taken <= counted);
        assert_true(counted - taken <
                    n * (1 + (int64_t)BLOCK_BYTES * weights.n_layers)); // what aligns
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_decisions),
                                       cmocka_unit_test(test_the_sum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
