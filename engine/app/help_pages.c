/* engine/app/help_pages.c - the tables of flags and commands as pages: markdown. */
#include "engine/app/help_impl.h"

#include <string.h>

#include "policy/evict.h"

/* A text in a cell of a markdown table. */
static void cell(const char *text)
{
    for (; *text; text++) {
        if (strchr("|*<", *text))
            putchar('\\');
        putchar(*text);
    }
}

/* The commands that take a flag: bench where all of its subcommands do, else bench ops/io. */
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
