/* engine/cli/help_pages.c - the tables of flags and commands as markdown, and as roff for man. */
#include "engine/cli/help_impl.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/version.h"
#include "policy/evict.h"

/* Prints a text in a cell of a markdown table. */
static void cell(const char *text)
{
    for (; *text; text++) {
        if (strchr("|*<", *text))
            putchar('\\');
        putchar(*text);
    }
}

/* Prints the commands that take a flag: bench if all of its subcommands do, else bench ops/io. */
static void takers(int commands)
{
    int all = 0, n = 0;
    for (int i = 0; i < config_n_commands; i++)
        all |= (int)config_commands[i].id;
    if ((commands & all) == all) {
        printf("all");
        return;
    }
    for (int i = 0, named = 0, sub = 0; i < config_n_commands; i++) {
        const int id = (int)config_commands[i].id;
        const char *name = config_commands[i].name, *word = strchr(name, ' ');
        if ((commands & id) != id || (named & id))
            continue;
        printf("%s%s", !n ? "" : word && sub ? "/" : ", ", word && sub ? word + 1 : name);
        named |= id;
        sub = word != NULL;
        n++;
    }
}

static void markdown_flag(const struct knob *k)
{
    const char *preset = help_default(k);
    printf("| `");
    if (k->letter)
        printf("-%c`, `", k->letter);
    printf("--%s", k->name);
    if (*k->value) {
        putchar(' ');
        for (const char *at = k->value; *at; at++)
            printf("%s%c", *at == '|' ? "\\" : "", *at);
    }
    printf("` | ");
    cell(k->help);
    if (preset)
        printf(" [%s]", preset);
    printf(" | ");
    takers(k->commands);
    printf(" |\n");
}

void help_markdown(void)
{
    printf("| command | does |\n|---|---|\n");
    for (int i = 0; i < config_n_commands; i++) {
        const struct config_command_row *c = &config_commands[i];
        printf("| `sluice %s ", c->name);
        for (const char *at = c->usage; *at; at++)
            printf("%s%c", *at == '|' ? "\\" : "", *at);
        printf("` | ");
        cell(c->help);
        printf(" |\n");
    }
    for (int i = 0; i < config_n_knobs; i++) {
        const struct knob *k = &config_knobs[i];
        if (k->kind == KNOB_HEADING)
            printf("\n**%s**\n\n| flag | meaning [default] | commands |\n|---|---|---|\n", k->help);
        else
            markdown_flag(k);
    }
    printf("\n**KV policies (`--kv-policy`)**\n\n| policy | evicts first |\n|---|---|\n");
    for (int i = 0; i < N_EVICT_POLICIES; i++)
        printf("| `%s` | %s |\n", evict_policy_name(i), evict_policy_goes(i));
    printf("\n%s\n\n%s\n", HELP_UNITS, HELP_CODES);
}

/* ---- the man page ---- */

/* Escapes for roff: typed hyphens become minus signs, and no line begins with a command. */
static void roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        printf("\\&");
    for (; *text; text++)
        printf(*text == '\\' ? "\\e" : *text == '-' ? "\\-" : "%c", *text);
}

/* Prints a word in bold or italics, and the text after it. */
static void roff_font(char font, const char *word, const char *after)
{
    printf("\\f%c", font);
    roff(word);
    printf("\\fR%s", after);
}

static void man_commands(void)
{
    printf(".SH COMMANDS\n");
    for (int i = 0; i < config_n_commands; i++) {
        const struct config_command_row *c = &config_commands[i];
        printf(".TP\n");
        roff_font('B', c->name, " ");
        roff(c->usage);
        putchar('\n');
        roff(c->help);
        printf(".\n");
    }
}

static void man_flag(const struct knob *k)
{
    const char *preset = help_default(k);
    char letter[] = {'-', k->letter, 0}, name[80];
    snprintf(name, sizeof name, "--%s", k->name);
    printf(".TP\n");
    if (k->letter)
        roff_font('B', letter, ", ");
    roff_font('B', name, *k->value ? " " : "");
    roff_font('I', k->value, "\n");
    roff(k->help);
    if (preset) {
        printf(" [");
        roff(preset);
        putchar(']');
    }
    printf(".\n(");
    takers(k->commands);
    printf(")\n");
}

static void man_section(const char *title, const char *text)
{
    printf(".SH %s\n", title);
    roff(text);
    putchar('\n');
}

void help_man(void)
{
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n", SLUICE_VERSION);
    man_section("NAME", "sluice - batch generation with language models that do not fit in memory");
    printf(".SH SYNOPSIS\n.B sluice\n.I COMMAND\n.RI [ FLAGS ]\n");
    man_section("DESCRIPTION", HELP_TITLE ". " HELP_MORE);
    man_commands();
    printf(".SH OPTIONS\nThe commands that take a flag stand in parentheses, the default in "
           "brackets.\n");
    for (int i = 0; i < config_n_knobs; i++) {
        const struct knob *k = &config_knobs[i];
        if (k->kind != KNOB_HEADING) {
            man_flag(k);
            continue;
        }
        printf(".SS ");
        roff(k->help);
        putchar('\n');
    }
    printf(".SH KV POLICIES\nWhat each value of \\fB\\-\\-kv\\-policy\\fR evicts first:\n");
    for (int i = 0; i < N_EVICT_POLICIES; i++) {
        printf(".TP\n");
        roff_font('B', evict_policy_name(i), "\n");
        roff(evict_policy_goes(i));
        printf(".\n");
    }
    printf(".SH EXAMPLES\n.nf\n");
    roff("sluice run -m model.gguf -i in.jsonl -o out.jsonl --mem-ram 4G\n"
         "sluice gen -m model.gguf -p 'The three primary colours are' -n 12\n"
         "sluice plan -m configs/opt-30b.cfg --machine configs/machine-t4.cfg --num-prompts 1k\n");
    printf(".fi\n");
    man_section("UNITS", HELP_UNITS);
    man_section("FILES", HELP_FILES);
    man_section("EXIT STATUS", HELP_CODES);
}
