/* tests/job_resume_test.c - a job killed anywhere ends in the same bytes: every cut of the journal,
 * every length of OUT.partial, real kills, full disks, damage. */
#include "engine/job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/job_help.h"
#include "tests/skip.h"
#include "tests/sweep.h"

static const char INPUT[] =
    "{\"prompt\":\"a\",\"max_tokens\":5,\"ignore_eos\":true}\n"
    "{\"prompt\":\"bad\n"
    "{\"custom_id\":\"c\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"b\",\"max_tokens\":6,"
    "\"logprobs\":2,\"top_k\":5,\"repetition_penalty\":1.3,\"ignore_eos\":true}}\n"
    "{\"prompt\":\"e\",\"echo\":true,\"logprobs\":1,\"max_tokens\":4,\"ignore_eos\":true}\n"
    "{\"prompt\":\"s\",\"max_tokens\":9,\"stop\":[\"e\",\"a\",\"i\"],\"presence_penalty\":1}\n";

static struct job_config config;
static char *want; // OUT of the uninterrupted job
static int64_t n_want;

/* What a killed job left. */
static char *journal, *partial, *manifest;
static int64_t n_journal, n_partial, n_manifest;

static void start_over(void)
{
    static const char *const names[] = {"out", "out.partial", "out.journal", "out.job.json"};
    for (size_t i = 0; i < 4; i++)
        unlink(temp_path(names[i]));
}

static void put_back(int64_t journal_bytes, int64_t partial_bytes)
{
    start_over();
    temp_write("out.journal", journal, journal_bytes);
    temp_write("out.partial", partial, partial_bytes);
    temp_write("out.job.json", manifest, n_manifest);
}

static void expect_same(const char *what, int64_t a, int64_t b)
{
    int64_t n;
    char *got = file_text("out", &n);
    if (!got || n != n_want || memcmp(got, want, (size_t)n) != 0)
        fail_msg("%s %lld %lld: %s", what, (long long)a, (long long)b, got ? got : "no OUT");
    free(got);
    assert_false(file_is_there("out.partial") || file_is_there("out.journal"));
}

static void resume_to_the_end(const char *what, int64_t a, int64_t b)
{
    if (job_run(&config, NULL, NULL) != OK)
        fail_msg("%s %lld %lld: %s", what, (long long)a, (long long)b, err_text());
    expect_same(what, a, b);
}

static int killed_setup(void **state)
{
    group_setup(state);
    temp_write_text("in", INPUT);
    config = config_for(kept_path("in"), kept_path("out"));
    assert_int_equal(job_run(&config, NULL, NULL), OK);
    want = file_text("out", &n_want);
    // killed after five passes, committed after each
    start_over();
    struct fake f = {.batch = 3, .nan_row = -1, .force = 1, .stop_after = 5};
    assert_int_equal(job_run(&config, &f, NULL), ERR_STOPPED);
    journal = file_text("out.journal", &n_journal);
    partial = file_text("out.partial", &n_partial);
    manifest = file_text("out.job.json", &n_manifest);
    assert_true(n_partial > 200 && n_journal > 800);
    return 0;
}

static int killed_teardown(void **state)
{
    free(want);
    free(journal);
    free(partial);
    free(manifest);
    return group_teardown(state);
}

/* Bytes of OUT.partial that the first n bytes of the journal vouch for. Offsets as in journal.c. */
static int64_t vouched(int64_t n)
{
    int64_t bytes = 0;
    for (int64_t at = 64; at + 64 <= n;) {
        uint16_t kind;
        int64_t offset, count;
        memcpy(&kind, journal + at + 4, sizeof kind);
        memcpy(&offset, journal + at + 16, sizeof offset);
        memcpy(&count, journal + at + 24, sizeof count);
        at += 64 + (kind == 2 ? 4 * count : 0);
        if (kind == 1)
            bytes = offset + count;
    }
    return bytes;
}

static void every_cut_of_the_journal(void **state)
{
    (void)state;
    for (int64_t cut = 0; cut <= n_journal; cut += sweep(3, 1)) {
        put_back(cut, cut % 2 ? n_partial : vouched(cut));
        resume_to_the_end("journal cut at", cut, n_partial);
    }
}

/* Lines beyond what the journal vouches for may be torn anywhere, or be anything. */
static void every_tail_of_partial(void **state)
{
    (void)state;
    for (int64_t cut = 64; cut <= n_journal; cut += sweep(519, 173))
        for (int64_t n = vouched(cut); n <= n_partial; n += 1 + n % 3) {
            put_back(cut, n);
            resume_to_the_end("cut at", cut, n);
        }
    put_back(n_journal, n_partial);
    FILE *file = fopen(temp_path("out.partial"), "ab");
    fputs("{\"half\":\"\xc3", file); // J13
    fclose(file);
    resume_to_the_end("garbage", 0, 0);
}

/* Killed again and again, after each pass. */
static void many_small_runs(void **state)
{
    (void)state;
    for (int force = 0; force < 2; force++) {
        start_over();
        for (int i = 0;; i++) {
            struct fake f = {.batch = 1 + i % 4, .nan_row = -1, .force = force, .stop_after = 1};
            enum err err = job_run(&config, &f, NULL);
            if (err == OK)
                break;
            assert_int_equal(err, ERR_STOPPED);
            assert_true(i < 100);
        }
        expect_same("small runs", 0, 0);
    }
}

static void resume_counts(void **state)
{
    (void)state;
    struct job *job;
    struct work work;
    struct job_counts counts;
    const struct request *next;
    put_back(n_journal, n_partial);
    assert_int_equal(job_open(&job, &config, &work), OK);
    job_counts(job, &counts);
    assert_true(counts.rows == 5 && counts.done + work.n_rows == 5 && counts.failed == 1);
    assert_true(work.n_rows > 0 && work.forced_max > 0);
    assert_int_equal(counts.resumed, counts.done + 1 + (work.n_rows > 1));
    assert_int_equal(job_begin(job), OK);
    assert_int_equal(job_peek(job, &next), OK);
    assert_true(next->n_tokens > next->n_prompt); // begun rows come first
    assert_int_equal(job_close(job), OK);
    resume_to_the_end("after a look", 0, 0);
}

/* The moments around the last rename. */
static void around_the_rename(void **state)
{
    (void)state;
    char *done = NULL;
    int64_t n_done;
    start_over();
    assert_int_equal(job_run(&config, NULL, NULL), OK);
    done = file_text("out.job.json", &n_done);
    // OUT has its name, the manifest does not know it yet
    put_back(n_journal, n_partial);
    temp_write("out", want, n_want);
    resume_to_the_end("renamed", 0, 0);
    // the manifest knows it, the rest is still there
    put_back(n_journal, n_partial);
    temp_write("out", want, n_want);
    temp_write("out.job.json", done, n_done);
    resume_to_the_end("complete", 0, 0);
    free(done);
    // completion order: OUT.partial has become OUT, nothing else happened
    struct job_config c = config;
    c.completion_order = 1;
    start_over();
    struct fake f = {.batch = 3, .nan_row = -1};
    struct work work;
    assert_int_equal(job_open(&f.job, &c, &work), OK);
    assert_int_equal(fake_run(&f), OK);
    assert_int_equal(job_close(f.job), OK);
    int64_t n = 0, m = 0;
    char *text = file_text("out.partial", &n);
    assert_int_equal(rename(temp_path("out.partial"), temp_path("out")), 0);
    assert_int_equal(job_run(&c, NULL, NULL), OK);
    char *got = file_text("out", &m);
    assert_true(n == m && memcmp(text, got, (size_t)n) == 0);
    assert_false(file_is_there("out.partial"));
    free(text);
    free(got);
}

static void damage(void **state) // J13, J14
{
    (void)state;
    for (int64_t at = 0; at < vouched(n_journal); at += 7) {
        put_back(n_journal, n_partial);
        int fd = open(temp_path("out.partial"), O_RDWR);
        char c = (char)(partial[at] ^ 1);
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
        close(fd);
        resume_to_the_end("flipped at", at, 0); // its row is run again
    }
    put_back(n_journal, vouched(n_journal) - 1); // less than the journal says
    resume_to_the_end("shorter", 0, 0);
    put_back(n_journal, n_partial);
    assert_int_equal(unlink(temp_path("out.partial")), 0);
    resume_to_the_end("no OUT.partial", 0, 0);
    // a journal of another job beside our manifest
    put_back(n_journal, n_partial);
    struct job_config c = config;
    c.fingerprint = "compute=f32\nmodel=fake\n";
    unlink(temp_path("out.job.json"));
    assert_int_equal(job_run(&c, NULL, NULL), ERR_JOB);
    assert_non_null(strstr(err_text(), "out.journal"));
    c.overwrite = 1;
    assert_int_equal(job_run(&c, NULL, NULL), OK);
    expect_same("overwritten", 0, 0); // the fake engine does not look at the fingerprint
    // no manifest, but the journal is ours
    put_back(n_journal, n_partial);
    unlink(temp_path("out.job.json"));
    resume_to_the_end("no manifest", 0, 0);
    // changed input
    put_back(n_journal, n_partial);
    char *changed = strdup(INPUT);
    *strstr(changed, "max_tokens\":9") = 'n';
    temp_write_text("in", changed);
    free(changed);
    assert_int_equal(job_run(&config, NULL, NULL), ERR_JOB);
    assert_non_null(strstr(err_text(), "input: "));
    assert_non_null(strstr(err_text(), ": line 5 has changed"));
    temp_write_text("in", INPUT);
    resume_to_the_end("as it was", 0, 0);
}

/* ---- real processes ---- */

/* Runs the job in a child that is killed after some microseconds (0: never). 1: it was killed. */
static int killed_child(int64_t us, int batch)
{
    pid_t child = fork();
    if (child == 0) {
        struct fake f = {.batch = batch, .nan_row = -1, .force = 1};
        _exit(job_run(&config, &f, NULL) == OK ? 0 : 1);
    }
    if (us > 0) {
        usleep((useconds_t)us);
        kill(child, SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void real_kills(void **state)
{
    (void)state;
    int killed = 0;
    start_over();
    int64_t start_ns = clock_ns();
    killed_child(0, 2);
    int64_t whole_us = max_i64((clock_ns() - start_ns) / 1000, 10);
    for (int i = 0; i < 60; i++) {
        start_over();
        for (int k = 0; k < 3; k++)
            killed += killed_child(1 + (int64_t)(mix64((uint64_t)(i * 3 + k)) % (uint64_t)whole_us),
                                   1 + k);
        resume_to_the_end("kill", i, 0);
    }
    assert_true(killed > 0);
}

/* In a child: ERR_IO while the limit stands. */
static int run_limited(int64_t file_bytes)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {.rlim_cur = (rlim_t)file_bytes, .rlim_max = RLIM_INFINITY};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        struct fake f = {.batch = 3, .nan_row = -1, .force = 1};
        enum err err = job_run(&config, &f, NULL);
        _exit(err == ERR_IO && !strstr(err_text(), temp_dir) ? 1 : (int)err);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void file_size_limit(void **state) // F07
{
    (void)state;
    int failures = 0;
    for (int64_t bytes = 0; bytes < n_want + 2000; bytes += 97) {
        start_over();
        int rc = run_limited(bytes);
        assert_true(rc == OK || rc == ERR_IO);
        failures += rc == ERR_IO;
        resume_to_the_end("file size", bytes, 0);
    }
    assert_true(failures > 10);
}

/* A tmpfs of a few pages, in a mount namespace of the child's own. */
static int run_on_full_disk(int pages)
{
    pid_t child = fork();
    if (child == 0) {
        char options[64], dir[100];
        snprintf(options, sizeof options, "size=%dk", 4 * pages);
        snprintf(dir, sizeof dir, "%s/disk", temp_dir);
        mkdir(dir, 0700);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("sluice-test", dir, "tmpfs", 0, options) != 0)
            _exit(77);
        config.out_path = kept_path("disk/out");
        struct fake f = {.batch = 3, .nan_row = -1, .force = 1};
        enum err err = job_run(&config, &f, NULL);
        if (err == OK)
            _exit(0);
        if (err != ERR_IO || !strstr(err_text(), "disk/out"))
            _exit(1);
        if (mount("sluice-test", dir, "tmpfs", MS_REMOUNT, "size=1m") != 0)
            _exit(77);
        int64_t n; // space was freed: the same command resumes
        if (job_run(&config, NULL, NULL) != OK)
            _exit(2);
        char *got = file_text("disk/out", &n);
        _exit(got && n == n_want && memcmp(got, want, (size_t)n) == 0 ? 9 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void full_disk(void **state) // F08
{
    (void)state;
    int full = 0;
    for (int pages = 1; pages < 9; pages++) {
        int rc = run_on_full_disk(pages);
        if (rc == 77)
            skip_because("tmpfs cannot be mounted here: not root, or no mounts");
        if (rc != 0 && rc != 9)
            fail_msg("%d pages: %d", pages, rc);
        full += rc == 9;
    }
    assert_true(full >= 2);
}

/* Two at once: one runs, the other is told by whom. */
static void two_processes(void **state) // J15
{
    (void)state;
    int pipes[2];
    struct job *job;
    struct work work;
    char words[64];
    start_over();
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        if (job_open(&job, &config, &work) != OK)
            _exit(1);
        (void)!write(pipes[1], "x", 1);
        pause();
        _exit(0);
    }
    char c;
    assert_int_equal(read(pipes[0], &c, 1), 1);
    assert_int_equal(job_open(&job, &config, &work), ERR_JOB);
    snprintf(words, sizeof words, "locked by pid %d", (int)child);
    assert_non_null(strstr(err_text(), words));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
    resume_to_the_end("after the other", 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_of_the_journal),
        cmocka_unit_test(every_tail_of_partial),
        cmocka_unit_test(many_small_runs),
        cmocka_unit_test(resume_counts),
        cmocka_unit_test(around_the_rename),
        cmocka_unit_test(damage),
        cmocka_unit_test(real_kills),
        cmocka_unit_test(file_size_limit),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(two_processes),
    };
    return cmocka_run_group_tests(tests, killed_setup, killed_teardown);
}
