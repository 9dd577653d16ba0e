/* tests/eta_test.c - the time that is left, from tables of passes: no clock, no engine. */
#include "policy/eta.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/rates.h"

/* A job as its plan saw it and as it went: passes of a kind, what each was predicted to take, how
 * much longer it took. */
struct phase {
    int passes;
    double predicted_s, times;
};

/* A job of so many passes more or less than predicted, when rows stop early. The second prediction
 * comes at every `look`-th pass and knows the real work; in between only the first one counts. */
struct table {
    const char *what;
    struct phase phase[4];
    double first_left_s; // what the first prediction said; 0: the sum of the phases
    double times;        // what earlier runs took by their predictions
    int look;
    double worst; // factor between the estimate and the truth after a tenth of the time
};

static double pass_s(const struct table *t, int pass, int measured)
{
    const struct phase *p = t->phase;
    while (pass >= p->passes)
        pass -= p++->passes;
    return p->predicted_s * (measured ? p->times : 1);
}

static double rest_s(const struct table *t, int from, int n, int measured)
{
    double s = 0;
    for (int i = from; i < n; i++)
        s += pass_s(t, i, measured);
    return s;
}

static double worst_of(const struct table *t)
{
    struct eta e;
    int n = 0;
    double worst = 1;
    for (int i = 0; i < 4; i++)
        n += t->phase[i].passes;
    double all_s = rest_s(t, 0, n, 1);
    eta_begin(&e, t->first_left_s > 0 ? t->first_left_s : rest_s(t, 0, n, 0), pass_s(t, 0, 0),
              t->times);
    for (int i = 0; i < n; i++) {
        for (int tenth = 0; tenth < 10; tenth++) { // within the pass, too
            double share = tenth / 10.0;
            double truth_s = rest_s(t, i, n, 1) - share * pass_s(t, i, 1);
            double left_s = eta_seconds(&e, share);
            assert_true(left_s >= 0 && isfinite(left_s));
            if (truth_s <= 0.9 * all_s && truth_s > 0.01 * all_s)
                worst = max_d(worst, max_d(left_s / truth_s, truth_s / max_d(left_s, 1e-9)));
        }
        eta_pass(&e, pass_s(t, i, 1), pass_s(t, i, 0));
        if (i % t->look == t->look - 1)
            eta_left(&e, rest_s(t, i + 1, n, 0), i + 1 < n ? pass_s(t, i + 1, 0) : 0);
    }
    assert_true(eta_seconds(&e, 0) < 1e-9);
    return worst;
}

static void test_jobs_of_all_kinds(void **state)
{
    (void)state;
    static const struct table tables[] = {
        {"as predicted", {{100, 0.1, 1}}, 0, 1, 1, 1.001},
        {"long prompts, then tokens", {{20, 5, 1}, {400, 0.1, 1}}, 0, 1, 1, 1.001},
        {"all slower than probed", {{20, 5, 2.5}, {400, 0.1, 2.5}}, 0, 1, 1, 1.5},
        {"as slow as earlier runs", {{20, 5, 2.5}, {400, 0.1, 2.5}}, 0, 2.5, 1, 1.001},
        {"one pass of minutes", {{1, 300, 1.2}, {60, 10, 1.2}}, 0, 1.2, 1, 1.001},
        {"slower from the middle on", {{200, 0.1, 1}, {200, 0.1, 1.5}}, 0, 1, 1, 1.51},
        {"a neighbour for a while", {{200, 0.1, 1}, {40, 0.1, 2}, {200, 0.1, 1}}, 0, 1, 1, 1.5},
        {"the end waits for another resource", {{300, 0.3, 0.5}, {60, 0.1, 1}}, 0, 1, 1, 2.01},
        {"looked at now and then", {{20, 5, 1.3}, {400, 0.1, 1.3}}, 0, 1, 16, 1.3},
        {"half of the work goes: rows stop early", {{100, 0.1, 1}}, 20, 1, 5, 1.001},
        {"twice the work: rows are sent back", {{200, 0.1, 1}}, 10, 1, 10, 1.001},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        double worst = worst_of(&tables[i]);
        if (worst > tables[i].worst)
            fail_msg("%s: the estimate is off by a factor of %.3f, not %.3f", tables[i].what, worst,
                     tables[i].worst);
    }
}

/* Nothing is known without a prediction; with one the first estimate is that prediction. */
static void test_before_the_first_pass(void **state)
{
    (void)state;
    struct eta e = {0};
    assert_true(eta_seconds(&e, 0) < 0);
    eta_begin(&e, 600, 100, 1.5);
    assert_true(fabs(eta_seconds(&e, 0) - 900) < 1e-9);
    assert_true(fabs(eta_seconds(&e, 0.5) - 825) < 1e-9); // half of a pass of 150 s is done
    assert_true(fabs(eta_seconds(&e, 7) - 750) < 1e-9);
}

/* One slow pass at the start is not believed at once: a twentieth of the job outweighs it. */
static void test_little_is_known_at_first(void **state)
{
    (void)state;
    struct eta e;
    eta_begin(&e, 100, 0.1, 1);
    eta_pass(&e, 1, 0.1); // ten times as long
    assert_true(eta_seconds(&e, 0) < 1.3 * 99.9);
    for (int i = 0; i < 40; i++)
        eta_pass(&e, 1, 0.1);
    assert_true(eta_seconds(&e, 0) > 8 * 95);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_of_all_kinds),
        cmocka_unit_test(test_before_the_first_pass),
        cmocka_unit_test(test_little_is_known_at_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
