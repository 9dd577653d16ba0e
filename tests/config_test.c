/* tests/config_test.c - what the command line reads, and how it refuses: values, words, names. */
#include "engine/api/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/temp_dir.h"

#include <stdio.h>
#include <string.h>

#define WORDS_MAX 16

static struct config config;

/* Parses a line of words as `command` would get them. */
static enum err parse(enum config_command command, const char *line)
{
    static char text[4][512]; // the config borrows them
    static int turn;
    char *copy = text[turn++ % 4], *argv[WORDS_MAX], *save = NULL;
    int argc = 0;
    snprintf(copy, sizeof text[0], "%s", line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    config_free(&config);
    return config_parse(&config, command, argc, argv);
}

static void assert_refused(enum config_command command, const char *line, const char *words)
{
    if (parse(command, line) != ERR_USAGE)
        fail_msg("'%s' was accepted", line);
    if (!strstr(err_text(), words))
        fail_msg("'%s': no '%s' in: %s", line, words, err_text());
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"24G", 24LL << 30},
                {"24g", 24000000000},
                {"512M", 512 << 20},
                {"2.3G", (int64_t)(2.3 * (1 << 30))},
                {"300MB", 300000000},
                {"300MiB", 300 << 20},
                {"300mb", 300000000},
                {"300mib", 300 << 20},
                {"300Mi", 300 << 20},
                {"64KB", 64000},
                {"64kB", 64000},
                {"64KiB", 65536},
                {"1.5TB", 1500000000000},
                {"2TiB", 2LL << 40},
                {"2GB", 2000000000},
                {"4096B", 4096},
                {"0", 0},
                {"2097152", 2097152}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t bytes = -7;
        if (parse_size("x", good[i].text, &bytes) != OK || bytes != good[i].bytes)
            fail_msg("%s: %lld, want %lld", good[i].text, (long long)bytes,
                     (long long)good[i].bytes);
    }
    static const char *const bad[] = {"",    "G",      "12Q", "1GG", "1GiBB",
                                      "1iB", "1.5.2G", "1e9", "1 G", "1Gbi",
                                      "1G ", "0x10G",  "1Bi", "--",  "inf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t bytes;
        if (parse_size("x", bad[i], &bytes) != ERR_USAGE)
            fail_msg("'%s' was read as a size", bad[i]);
    }
    assert_refused(CMD_RUN, "--mem-ram -1G", "--mem-ram");
    assert_refused(CMD_RUN, "--mem-ram 300", "300 bytes");
    assert_int_equal(parse(CMD_RUN, "--mem-disk 0"), OK);
    assert_int_equal(parse(CMD_RUN, "--mem-ram 300B"), OK); // who writes bytes means them
}

static void counts(void **state)
{
    (void)state;
    int64_t n;
    assert_int_equal(parse_count("x", "32K", &n), OK);
    assert_int_equal(n, 32768);
    assert_int_equal(parse_count("x", "10k", &n), OK);
    assert_int_equal(n, 10000);
    assert_int_equal(parse_count("x", "2.5k", &n), OK);
    assert_int_equal(n, 2500);
    assert_int_equal(parse_count("x", "2.5", &n), ERR_USAGE);
    assert_non_null(strstr(err_text(), "whole number"));
    assert_int_equal(parse_count("x", "3KB", &n), ERR_USAGE);
    assert_refused(CMD_RUN, "-n 2.5", "--max-tokens");
    assert_refused(CMD_RUN, "-n -3", "--max-tokens");
    assert_refused(CMD_RUN, "--top-k -1", "--top-k");
    assert_refused(CMD_RUN, "--limit -2", "--limit");
    assert_refused(CMD_RUN, "--kv-sink -2", "--kv-sink");
    assert_refused(CMD_RUN, "--batch -1", "--batch");
    assert_int_equal(parse(CMD_RUN, "--kv-sink -1 --weights-decoded -1 --batch 0"),
                     OK); // as --help says
}

static void durations(void **state)
{
    (void)state;
    double s;
    static const struct {
        const char *text;
        double s;
    } good[] = {{"90s", 90},   {"15m", 900},   {"3h50m", 13800},
                {"1d", 86400}, {"3600", 3600}, {"1.5h", 5400}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(parse_duration("x", good[i].text, &s), OK);
        assert_true(s == good[i].s);
    }
    static const char *const bad[] = {"", "3y", "-5s", "s", "3h50", "1m2"}; // 50 of what?
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse_duration("x", bad[i], &s) != ERR_USAGE)
            fail_msg("'%s' was read as a duration", bad[i]);
}

static void sampling(void **state)
{
    (void)state;
    assert_refused(CMD_RUN, "--temperature -3", "--temperature");
    assert_refused(CMD_RUN, "--temperature hot", "--temperature");
    assert_refused(CMD_RUN, "--temperature 1000", "--temperature");
    assert_refused(CMD_RUN, "--top-p 0", "--top-p");
    assert_refused(CMD_RUN, "--top-p 1.5", "--top-p");
    assert_refused(CMD_RUN, "--min-p 2", "--min-p");
    assert_refused(CMD_RUN, "--repetition-penalty 0", "--repetition-penalty");
    assert_refused(CMD_RUN, "--repetition-penalty 500", "--repetition-penalty");
    assert_int_equal(
        parse(CMD_RUN, "--temperature 0 --top-p 0.9 --min-p 0 --repetition-penalty 1.3"), OK);
}

static void words(void **state)
{
    (void)state;
    static const enum config_command flags_only[] = {CMD_RUN,  CMD_GEN,   CMD_SCORE,
                                                     CMD_PLAN, CMD_PROBE, CMD_TOKENIZE};
    for (size_t i = 0; i < sizeof flags_only / sizeof *flags_only; i++)
        assert_refused(flags_only[i], "foo", "foo: one word too many");
    assert_refused(CMD_RUN, "-n 3 5", "5: one word too many");
    assert_refused(CMD_PLAN, "--batch 3 -5", "-5: one word too many");
    assert_refused(CMD_INSPECT, "a b", "b: one word too many");
    assert_refused(CMD_BENCH_OPS, "ops norm x", "x: one word too many");
    assert_int_equal(parse(CMD_BENCH_OPS, "ops norm"), OK);
    assert_int_equal(config.n_args, 2);
    assert_int_equal(parse(CMD_PACK, "model -o x"), OK);
    assert_int_equal(parse(CMD_RUN, "--percent 0 50 0 0 0 0 --batch 2"), OK);
    assert_string_equal(config.percent, "0 50 0 0 0 0");
    assert_refused(CMD_RUN, "--chat", "unknown flag");
    assert_refused(CMD_RUN, "--overwrite=maybe", "--overwrite");
    assert_int_equal(parse(CMD_RUN, "--overwrite=on --retry-errors=no"), OK);
    assert_true(config.overwrite && !config.retry_errors);
}

/* The right flags, or none. */
static void suggestions(void **state)
{
    (void)state;
    assert_refused(CMD_RUN, "--mem-ramm 1G", "did you mean --mem-ram?");
    assert_refused(CMD_RUN, "--mem 1G", "did you mean --mem-device, --mem-ram, --mem-disk?");
    assert_refused(CMD_RUN, "--temprature 1", "did you mean --temperature?");
    assert_refused(CMD_RUN, "--kv 1", "did you mean --kv-policy,");
    assert_refused(
        CMD_GEN, "--json",
        "--json: unknown flag of gen (it belongs to plan, probe, bench, inspect, status, cache)");
    assert_refused(CMD_RUN, "--xyzzy 1", "--xyzzy: unknown flag (see sluice run --help)");
    assert_refused(CMD_RUN, "-j 1", "-j: unknown flag (see sluice run --help)");
    assert_refused(CMD_RUN, "--ram 1G", "--ram: unknown flag (did you mean --mem-ram?)");
}

static void files(void **state)
{
    (void)state;
    char line[400];
    temp_dir_make();
    temp_write("a.cfg", "batch = 4\nwings = 2\n", 20);
    snprintf(line, sizeof line, "--config %s", temp_path("a.cfg"));
    assert_refused(CMD_RUN, line, "line 2: wings: unknown key");
    temp_write("b.cfg", "batchs = 4\n", 11);
    snprintf(line, sizeof line, "--config %s", temp_path("b.cfg"));
    assert_refused(CMD_RUN, line, "did you mean batch");
    temp_write("c.cfg", "batch = 4 # four\nchat = no\n", 27);
    snprintf(line, sizeof line, "--config=%s -n 3", temp_path("c.cfg"));
    assert_int_equal(parse(CMD_GEN, line), OK);
    assert_int_equal(config.batch, 4);
    assert_int_equal(config.chat, 0);
    temp_write("d.cfg", "batch = many\n", 13);
    snprintf(line, sizeof line, "--config %s", temp_path("d.cfg"));
    assert_refused(CMD_RUN, line, "d.cfg: line 1: --batch");
    assert_int_equal(parse(CMD_RUN, "--kv-budget 0.2"), OK); // the default, but given
    assert_true(config_given(&config, "kv-budget") && !config_given(&config, "kv-policy"));
    temp_dir_remove();
}

/* Numbers plain, words as they are. */
static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *text;
    } values[] = {{"mem-ram", "1G", "1073741824"}, {"mem-ram", "1g", "1000000000"},
                  {"batch", "2K", "2048"},         {"ahead-state", "-1", "-1"},
                  {"kv-budget", "0.10", "0.10"},   {"weights-resident", "50%", "50%"},
                  {"attn", "cpu", "cpu"},          {"percent", "0 1 2 3 4 5", "0 1 2 3 4 5"},
                  {"kv-recent", NULL, ""},         {"kv-format", NULL, "bf16"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[64], line[64] = "";
        if (values[i].value)
            snprintf(line, sizeof line, "--%s %s", values[i].name, values[i].value);
        assert_int_equal(parse(CMD_PLAN, line), OK);
        config_text(&config, values[i].name, text, sizeof text);
        assert_string_equal(text, values[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(counts),      cmocka_unit_test(durations),
        cmocka_unit_test(words), cmocka_unit_test(suggestions), cmocka_unit_test(sampling),
        cmocka_unit_test(files), cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
