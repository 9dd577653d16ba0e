/* tests/cut_test.c - cuts of layers over stages, against all cuts that there are. */
#include "kernels/base/base.h"
#include "policy/cut.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LAYERS = 9, STAGES = 5 };

static uint64_t rng;

static double unit(void)
{
    return (double)(mix64(++rng) >> 11) * 0x1p-53;
}

static double costliest(const double *cost, int stages, int layers, const int *first)
{
    double most = 0;
    for (int s = 0; s < stages; s++) {
        double sum = 0;
        for (int i = first[s + 1] - 1; i >= first[s]; i--)
            sum += cost[s * layers + i];
        most = fmax(most, sum);
    }
    return most;
}

/* The least over all cuts that give stages s .. the layers first[s] ..; and how many there are. */
static double least_of_all(const double *cost, int stages, int layers, int s, int *first, int *n)
{
    double least = INFINITY;
    if (s == stages) {
        *n += first[s] == layers;
        return first[s] == layers ? costliest(cost, stages, layers, first) : INFINITY;
    }
    for (first[s + 1] = first[s] + 1; first[s + 1] <= layers; first[s + 1]++)
        least = fmin(least, least_of_all(cost, stages, layers, s + 1, first, n));
    return least;
}

static void no_cut_is_better(void **state)
{
    (void)state;
    int cuts = 0;
    for (int layers = 1; layers <= LAYERS; layers++)
        for (int stages = 1; stages <= layers && stages <= STAGES; stages++)
            for (int kind = 0; kind < 60; kind++) {
                double cost[STAGES * LAYERS];
                int first[STAGES + 1], all[STAGES + 1] = {0};
                for (int i = 0; i < stages * layers; i++) // equal layers, whole numbers, any
                    cost[i] = kind < 4 ? 1 : kind < 30 ? floor(4 * unit()) : unit();
                double most = cut_layers(cost, stages, layers, first);
                assert_int_equal(first[0], 0);
                assert_int_equal(first[stages], layers);
                for (int s = 0; s < stages; s++)
                    assert_true(first[s] < first[s + 1]);
                assert_true(most == costliest(cost, stages, layers, first));
                assert_true(most == least_of_all(cost, stages, layers, 0, all, &cuts));
            }
    assert_true(cuts > 10000);
}

/* A machine of three times the speed gets three times the layers, wherever it stands. */
static void layers_by_speed(void **state)
{
    (void)state;
    double cost[3 * 100];
    for (int fast = 0; fast < 3; fast++) {
        int first[4];
        for (int i = 0; i < 300; i++)
            cost[i] = i / 100 == fast ? 1 : 3;
        cut_layers(cost, 3, 100, first);
        assert_int_equal(first[fast + 1] - first[fast], 60);
    }
}

static void the_largest_cut(void **state)
{
    (void)state;
    static double cost[CUT_STAGES_MAX * SHAPE_LAYERS_MAX];
    int first[CUT_STAGES_MAX + 1];
    for (int i = 0; i < CUT_STAGES_MAX * SHAPE_LAYERS_MAX; i++)
        cost[i] = 1;
    assert_true(cut_layers(cost, CUT_STAGES_MAX, SHAPE_LAYERS_MAX, first) == 8);
    for (int s = 0; s < CUT_STAGES_MAX; s++)
        assert_int_equal(first[s], 8 * s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_cut_is_better),
        cmocka_unit_test(layers_by_speed),
        cmocka_unit_test(the_largest_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
