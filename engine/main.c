/* engine/main.c - the verbs, the signals, the exit code. The only exit() of the program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run.h"
#include "engine/version.h"

static const struct command {
    const char *name;
    enum config_command id;
    enum err (*run)(const struct config *c);
    const char *usage, *help;
} commands[] = {
    {"run", CMD_RUN, command_run, "-m MODEL -i IN.jsonl -o OUT.jsonl",
     "generate for every row of IN"},
    {"gen", CMD_GEN, command_gen, "-m MODEL -p TEXT", "one prompt, text to stdout"},
    {"score", CMD_SCORE, command_score, "-m MODEL (-i IN.jsonl -o OUT.jsonl | --text FILE)",
     "log-probabilities of continuations, or perplexity of a text"},
    {"plan", CMD_PLAN, command_plan,
     "-m MODEL (-i IN.jsonl | --prompt-len N --gen-len N --num-prompts N)",
     "what run would do here, or on --machine FILE"},
    {"probe", CMD_PROBE, command_probe, "[--offload-dir DIR] [-o machine.cfg]",
     "measure this machine"},
    {"pack", CMD_PACK, command_pack, "MODEL -o FILE", "write a pack"},
    {"bench", CMD_BENCH, command_bench, "throughput|ops|io|sweep", "benchmarks"},
    {"inspect", CMD_INSPECT, command_inspect, "MODEL", "shape and tensors"},
    {"status", CMD_STATUS, command_status, "OUT.jsonl",
     "how far a job is, seen from another shell: it is only looked at"},
    {"merge", CMD_MERGE, command_merge, "-o OUT.jsonl PART.jsonl...",
     "join the OUTs of all shards (--shard i/N) of one job"},
    {"tokenize", CMD_TOKENIZE, command_tokenize, "-m MODEL < rows", "text to token ids and back"},
};
#define N_COMMANDS (int)(sizeof commands / sizeof commands[0])

static void usage(FILE *f)
{
    fputs(
        "sluice: large-batch offline generation with models that do not fit the memory at hand\n\n",
        f);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  sluice %-9s %s\n%19s%s\n", commands[i].name, commands[i].usage, "",
                commands[i].help);
    fputs("\nsluice COMMAND --help lists its flags. Exit codes: 0 all rows ok, 1 internal error, 2 "
          "usage,\n"
          "3 finished with failed rows, 4 does not fit, 5 bad model or input, 6 device, 7 corrupt "
          "bytes,\n"
          "8 job mismatch or lock, 9 disk error (resumable), 75 interrupted (resumable).\n",
          f);
}

/* The first signal stops at the next step; the second at once: what is journaled stays valid. */
static void on_signal(int number)
{
    (void)number;
    if (run_interrupted)
        _Exit(ERR_STOPPED);
    run_interrupted = 1;
}

static void catch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal};
    sigaction(SIGXCPU, &stop, NULL); // ulimit -t: as any other wish to stop
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    signal(SIGXFSZ, SIG_IGN); // a file size limit is a write error, not the end of the process
    signal(SIGPIPE, SIG_IGN);
}

static int finish(enum err err)
{
    if (err != OK && err != ERR_ROWS)
        fprintf(stderr, "sluice: error: %s\n", err_text());
    if (fflush(stdout) != 0 && err == OK)
        err = ERR_IO;
    return err < 100 ? (int)err : (int)ERR_INTERNAL;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? ERR_USAGE : OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("sluice " SLUICE_VERSION);
        return OK;
    }
    catch_signals();
    for (int i = 0; i < N_COMMANDS; i++) {
        const struct command *command = &commands[i];
        if (strcmp(argv[1], command->name) != 0)
            continue;
        static struct config config;
        enum err err = config_parse(&config, command->id, argc - 2, argv + 2);
        if (err != OK)
            return finish(err);
        if (config.help) {
            printf("sluice %s %s\n%s\n\n", command->name, command->usage, command->help);
            config_help(command->id);
            return OK;
        }
        log_level_max = config.quiet ? LOG_ERROR : config.verbose ? LOG_DEBUG : LOG_INFO;
        return finish(command->run(&config));
    }
    return finish(fail(ERR_USAGE, "%s: unknown command (see sluice --help)", argv[1]));
}
