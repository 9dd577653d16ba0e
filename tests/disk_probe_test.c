/* tests/disk_probe_test.c - one measurement of a disk, and what a series of windows says. */
#include "offload/disk_probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#include <math.h>
#include <stdlib.h>

static void disk_probe_reads_only_what_was_written(void **state)
{
    (void)state;
    struct disk_probe d;
    struct disk_load load = {
        .io = RING_AUTO, .block_bytes = 1 << 20, .depth = 4, .seconds_max = 0.05};
    double rate = -1;
    assert_int_equal(disk_probe_open_scratch(&d, temp_dir, 8 << 20), OK);
    assert_int_equal(disk_probe_rate(&d, &load, &rate), ERR_USAGE); // nothing there yet
    load.write = 1;
    load.seconds_max = 60;
    assert_int_equal(disk_probe_rate(&d, &load, &rate), OK);
    assert_true(rate > 0);
    assert_int_equal(d.file_bytes, 8 << 20); // stopped at the end, long before a minute
    load.write = 0;
    load.seconds_max = 0.05;
    static const enum ring_kind kinds[] = {RING_AUTO, RING_THREADS};
    for (int i = 0; i < 2; i++) {
        load.io = kinds[i];
        rate = -1;
        assert_int_equal(disk_probe_rate(&d, &load, &rate), OK);
        assert_true(rate > 0);
    }
    disk_probe_close(&d);
    disk_probe_close(&d);
    assert_int_equal(disk_probe_open_file(&d, temp_path("missing")), ERR_INPUT);
}

/* ---- the disk over time ---- */

/* n windows of 50 ms at `from`, then `to`, each up to 8 % off. */
static struct disk_series series_make(int n_from, double from, int n, double to)
{
    struct disk_series s = {.n = n};
    for (int i = 0; i < n; i++) {
        double off = 1 + 0.08 * ((double)(mix64((uint64_t)i) % 2001) / 1000 - 1);
        s.bytes_per_s[i] = (i < n_from ? from : to) * off;
        s.seconds[i] = DISK_SERIES_S;
    }
    return s;
}

static void bursts_are_told_from_what_lasts(void **state)
{
    (void)state;
    struct disk_rates r;
    for (int n = 20; n <= 600; n += 29)
        for (int n_from = 3; n_from < n * 2 / 3 - 2; n_from += 1 + n / 9) {
            struct disk_series s = series_make(n_from, 2.4e9, n, 1.1e9);
            disk_series_rates(&s, &r);
            assert_true(r.lasting.value > 1.0e9 && r.lasting.value < 1.2e9);
            assert_true(r.burst.value > 2.2e9 && r.burst.value < 2.6e9);
            double windows = r.burst_bytes / 2.4e9 / DISK_SERIES_S;
            assert_true(windows > n_from - 1.5 && windows < n_from + 1.5);
            assert_true(r.lasting.n <= n - n_from + 1); // nothing of the burst
        }
    for (int n = 1; n <= 200; n++) { // no burst: even, and slow to wake up
        struct disk_series s = series_make(0, 0, n, 3e9);
        disk_series_rates(&s, &r);
        assert_true(r.burst.value == 0 && r.burst_bytes == 0 && r.lasting.n >= 1);
        assert_true(r.lasting.value > 2.7e9 && r.lasting.value < 3.3e9);
        s = series_make(n / 4, 5e8, n, 3e9);
        disk_series_rates(&s, &r);
        assert_true(r.burst.value == 0 && r.lasting.value > 2.7e9);
    }
    struct disk_series s = series_make(2, 9e9, 40, 3e9); // two windows are noise
    disk_series_rates(&s, &r);
    assert_true(r.burst.value == 0 && r.lasting.value < 3.3e9);
}

static void a_series_gets_steady(void **state)
{
    (void)state;
    struct disk_series s = series_make(0, 0, 99, 3e9); // 4.95 s
    assert_int_equal(disk_series_steady(&s), 0);
    s = series_make(0, 0, 120, 3e9);
    assert_int_equal(disk_series_steady(&s), 1);
    s = series_make(60, 6e9, 120, 3e9);
    assert_int_equal(disk_series_steady(&s), 0);
    s = series_make(60, 6e9, 400, 3e9);
    assert_int_equal(disk_series_steady(&s), 1);
    s = (struct disk_series){0};
    assert_int_equal(disk_series_steady(&s), 0);
}

/* Writes that wrap, both ways at once; windows add up to the time that it took. */
static void disk_series_are_measured(void **state)
{
    (void)state;
    struct disk_probe d;
    struct disk_series s;
    struct disk_load load = {
        .io = RING_AUTO, .block_bytes = 1 << 20, .depth = 4, .seconds_max = 0.4, .mixed = 1};
    assert_int_equal(disk_probe_open_scratch(&d, temp_dir, 8 << 20), OK);
    load.write = 1;
    assert_int_equal(disk_probe_series(&d, &load, &s), ERR_USAGE); // nothing there yet
    load.mixed = 0;
    load.wrap = 1;
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    assert_int_equal(d.file_bytes, 8 << 20);
    for (int mixed = 0; mixed < 2; mixed++) {
        load.mixed = mixed;
        assert_int_equal(disk_probe_series(&d, &load, &s), OK);
        double took_s = 0;
        assert_true(s.n >= 1);
        for (int i = 0; i < s.n; i++) {
            assert_true(s.bytes_per_s[i] >= 0 && s.seconds[i] > 0.9 * DISK_SERIES_S);
            took_s += s.seconds[i];
        }
        assert_true(took_s < 0.5);
        assert_int_equal(d.file_bytes, 8 << 20);
    }
    disk_probe_close(&d);
    char *bytes = calloc(1, 4 << 20); // a file that cannot be written: reads pass, both do not
    temp_write("read_only", bytes, 4 << 20);
    free(bytes);
    assert_int_equal(disk_probe_open_file(&d, temp_path("read_only")), OK);
    assert_int_not_equal(disk_probe_series(&d, &load, &s), OK);
    load.write = load.mixed = 0;
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    disk_probe_close(&d);
}

/* A disk so slow that the time is over with the first block: what a mixed load needs is there. */
static void a_slow_disk_is_measured_too(void **state)
{
    (void)state;
    struct disk_probe d;
    struct disk_series s;
    struct disk_load load = {
        .io = RING_AUTO, .write = 1, .wrap = 1, .block_bytes = 1 << 20, .depth = 4};
    assert_int_equal(disk_probe_open_scratch(&d, temp_dir, 8 << 20), OK);
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    load.mixed = 1;
    assert_int_equal(disk_probe_series(&d, &load, &s), OK);
    disk_probe_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(disk_probe_reads_only_what_was_written, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test(bursts_are_told_from_what_lasts),
        cmocka_unit_test(a_series_gets_steady),
        cmocka_unit_test_setup_teardown(disk_series_are_measured, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_slow_disk_is_measured_too, temp_dir_setup,
                                        temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
