/* engine/api/config_words.c - reads the words of a command line and the lines of a --config file;
 * suggests flags for unknown ones. */
#include "engine/api/config_impl.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/installed.h"
#include "engine/data/near.h"
#include "kernels/base/whole.h"

#define CONFIG_FILE_BYTES (1 << 16)

static void list_add(char *list, size_t cap, const char *dashes, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, cap - n, "%s%s%s", n ? ", " : "", dashes, name);
}

/* 1 if `name` is a word of the flag or a prefix: "mem" of mem-ram, "ram" of mem-ram. */
static int names_part(const char *name, const char *flag)
{
    size_t n = strlen(name);
    for (const char *at = flag; n > 1 && at; at = strchr(at, '-') ? strchr(at, '-') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == '-'))
            return 1;
    return 0;
}

/* Lists flags of the command similar to `name`: one letter in four wrong, or part of the name. */
static void near_flags(const char *name, int command, const char *dashes, char *list, size_t cap)
{
    const struct knob *nearest = NULL;
    int least = 0;
    for (int i = 0; i < config_n_knobs; i++)
        if ((config_knobs[i].commands & command) && is_near(name, config_knobs[i].name, &least))
            nearest = &config_knobs[i];
    if (nearest)
        list_add(list, cap, dashes, nearest->name);
    for (int i = 0; i < config_n_knobs && !nearest; i++)
        if ((config_knobs[i].commands & command) && names_part(name, config_knobs[i].name))
            list_add(list, cap, dashes, config_knobs[i].name);
}

enum err config_command_unknown(const char *word)
{
    const char *nearest = NULL;
    int least = 0;
    for (int i = 0; i < config_n_commands; i++)
        if (is_near(word, config_commands[i].name, &least))
            nearest = config_commands[i].name;
    if (nearest)
        return fail(ERR_USAGE, "%s: unknown command (did you mean %s?)", word, nearest);
    return fail(ERR_USAGE, "%s: unknown command (see sluice help)", word);
}

/* Names of the flags in other programs: FlexGen, then vLLM and llama.cpp. */
static const struct {
    const char *word, *hint;
} foreign[] = {
    {"--gpu-batch-size", "sluice calls it --batch"},
    {"--num-gpu-batches", "sluice calls it --batches"},
    {"--compress-weight", "sluice calls it --weights q4"},
    {"--compress-cache", "sluice calls it --kv-format q4"},
    {"--cpu-cache-compute", "sluice calls it --attn cpu"},
    {"--path",
     "sluice calls it --model: a folder, a file, or configs/opt-6.7b.cfg for dummy weights"},
    {"--log-file", "sluice calls it --summary; bench --csv and --json print the result"},
    {"--cut-gen-len", "give the shorter length: --gen-len"},
    {"--overlap", "always on: reads, writes and compute overlap"},
    {"--attn-sparsity", "--kv-policy and --kv-budget keep a part of the KV cache"},
    {"--gpu-memory-utilization", "sluice takes a size: --mem-device 14G"},
    {"--max-model-len", "not needed: the KV cache is as large as the rows need, within --mem-ram"},
    {"--tensor-parallel-size", "--devices all: the GPUs of a machine share the rows"},
    {"--data-parallel-size", "--devices all: the GPUs of a machine share the rows"},
    {"--max-num-seqs", "rows at once are --batch times --batches; by default the planner chooses"},
    {"--dtype", "--weights is the format that is stored, --compute the format of matmuls"},
    {"--ctx-size", "not needed: the KV cache is as large as the rows need, within --mem-ram"},
    {"-c", "not needed: the KV cache is as large as the rows need, within --mem-ram"},
    {"--n-gpu-layers", "the planner decides; --mem-device caps the memory of the GPU"},
    {"-ngl", "the planner decides; --mem-device caps the memory of the GPU"},
};

/* NULL: unknown word. */
static const char *foreign_hint(const char *word)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strcmp(foreign[i].word, word) == 0)
            return foreign[i].hint;
    return NULL;
}

/* Error for a flag that the command does not accept; `name` is without dashes. ERR_USAGE. */
static enum err unknown_flag(const char *name, size_t n, enum config_command command)
{
    char flag[66], *word = flag + 2, list[400] = "";
    snprintf(flag, sizeof flag, "--%.*s", (int)min_i64((int64_t)n, 63), name);
    const struct knob *others = knob_find(word, strlen(word), ~(int)command);
    for (int i = 0, named = 0; others && i < config_n_commands; i++) {
        int id = config_commands[i].id;
        if ((others->commands & id) != id || (named & id))
            continue; // not all of bench accepts the flag, or bench was listed already
        list_add(list, sizeof list, "", config_commands[i].name);
        named |= id;
    }
    if (others)
        return fail(ERR_USAGE, "--%s: unknown flag of %s (it belongs to %s)", word,
                    config_command_by_id(command)->name, list);
    if (foreign_hint(flag))
        return fail(ERR_USAGE, "%s: unknown flag (%s)", flag, foreign_hint(flag));
    near_flags(word, command, "--", list, sizeof list);
    if (*list)
        return fail(ERR_USAGE, "--%s: unknown flag (did you mean %s?)", word, list);
    return fail(ERR_USAGE, "--%s: unknown flag (see sluice %s --help)", word,
                config_command_by_id(command)->name);
}

/* Parses the flag at argv[*i]; leaves *i at its last word. */
static enum err parse_flag(struct config *c, int command, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    const struct knob *k = NULL;
    const char *value = NULL;
    if (word[1] == '-') {
        const char *eq = strchr(word, '=');
        size_t n = eq ? (size_t)(eq - word - 2) : strlen(word + 2);
        k = knob_find(word + 2, n, command);
        value = eq ? eq + 1 : NULL;
        if (!k)
            return unknown_flag(word + 2, n, command);
    } else {
        for (int j = 0; j < config_n_knobs && !k; j++)
            if (config_knobs[j].letter == word[1] && !word[2] &&
                (config_knobs[j].commands & command))
                k = &config_knobs[j];
        if (!k && foreign_hint(word))
            return fail(ERR_USAGE, "%s: unknown flag (%s)", word, foreign_hint(word));
        if (!k)
            return fail(ERR_USAGE, "%s: unknown flag (see sluice %s --help)", word,
                        config_command_by_id(command)->name);
    }
    if (k->kind == KNOB_SWITCH)
        return knob_give(c, k, value);
    int words = k->kind == KNOB_SIX ? 6 : 1, n = 0;
    if (value)
        return knob_give(c, k, value);
    if (*i + words >= argc)
        return fail(ERR_USAGE, "--%s: needs %s", k->name, k->value);
    value = argv[*i + 1];
    for (int j = 1; k->kind == KNOB_SIX && j <= words && n < (int)sizeof c->percent_text; j++)
        n += snprintf(c->percent_text + n, sizeof c->percent_text - (size_t)n, "%s%s",
                      j > 1 ? " " : "", argv[*i + j]);
    *i += words;
    return knob_give(c, k, k->kind == KNOB_SIX ? c->percent_text : value);
}

/* One `key = value` of a --config file. */
static enum err parse_line(struct config *c, char *line, int command, const char *path, int number)
{
    size_t name = strcspn(line, " \t=");
    char *eq = strchr(line, '=');
    if (!eq)
        return fail(ERR_USAGE, "%s: line %d: no '='", path, number);
    char *value = eq + 1 + strspn(eq + 1, " \t");
    for (size_t end = strlen(value); end > 0 && strchr(" \t", value[end - 1]); end--)
        value[end - 1] = 0;
    const struct knob *k = knob_find(line, name, command);
    if (!k) {
        char list[400] = "";
        line[name] = 0;
        near_flags(line, command, "", list, sizeof list);
        return fail(ERR_USAGE, "%s: line %d: %.64s: unknown key%s%s%s", path, number, line,
                    *list ? " (did you mean " : "", list, *list ? "?)" : "");
    }
    if (knob_give(c, k, value) != OK)
        return fail(ERR_USAGE, "%s: line %d: %s", path, number, err_text());
    return OK;
}

/* Parses key = value lines; # starts a comment. Values point into the text, which the config
 * owns. */
static enum err parse_file(struct config *c, const char *given, int command)
{
    const char *path = installed_path(given);
    const char *why;
    if (c->file_text)
        return fail(ERR_USAGE, "%s: --config: is given twice (one file holds all flags)", path);
    FILE *f = regular_open(path, &why);
    if (!f)
        return fail(ERR_USAGE, "%s: --config: %s", path, why);
    char *text = c->file_text = malloc(CONFIG_FILE_BYTES);
    size_t n = text ? fread(text, 1, CONFIG_FILE_BYTES - 1, f) : 0;
    int bad = !text ? ENOMEM : ferror(f) ? errno : 0;
    fclose(f);
    if (bad)
        return fail(ERR_USAGE, "%s: --config: %s", path, strerror(bad));
    if (n == CONFIG_FILE_BYTES - 1)
        return fail(ERR_USAGE, "%s: --config: more than 64 KiB", path);
    text[n] = 0;
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        number++;
        line[strcspn(line, "#\r")] = 0;
        line += strspn(line, " \t");
        if (*line)
            TRY(parse_line(c, line, command, path, number));
    }
    return OK;
}

/* Reads --config first, so that the command line overrides the file. */
static enum err parse_files(struct config *c, int argc, char **argv, int command)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            TRY(parse_file(c, argv[i] + 9, command));
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            TRY(parse_file(c, argv[i + 1], command));
    }
    return OK;
}

void config_free(struct config *c)
{
    free(c->file_text);
    c->file_text = NULL;
}

enum err config_words(struct config *c, enum config_command command, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] && argv[i][1] != '.' &&
            !isdigit((unsigned char)argv[i][1])) {
            TRY(parse_flag(c, command, argc, argv, &i));
            continue;
        }
        if (c->n_args == config_command_by_id(command)->words)
            return fail(ERR_USAGE, "%s: one word too many (see sluice %s --help)", argv[i],
                        config_command_by_id(command)->name);
        c->args[c->n_args++] = installed_path(argv[i]);
    }
    return OK;
}

enum err config_parse(struct config *c, enum config_command command, int argc, char **argv)
{
    memset(c, 0, sizeof *c);
    c->looks = command == CMD_PLAN;
    c->words = argv;
    c->n_words = argc;
    TRY(config_defaults(c));
    TRY(parse_files(c, argc, argv, command));
    return config_words(c, command, argc, argv);
}
