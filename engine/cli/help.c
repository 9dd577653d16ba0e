/* engine/cli/help.c - see help.h: help for a terminal, from the tables of engine/api/config.c.
 *
 * Owns: wrapping and the order of flags. Refuses: other output formats (help_pages.c,
 * help_completion.c). */
#include "engine/cli/help_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "policy/evict.h"

#define WIDTH       80 // if neither the terminal nor COLUMNS sets a width
#define WIDTH_LEAST 40
#define WIDTH_MOST  120 // longer lines are hard to read
#define TEXT_COLUMN 28

static int width_read(void)
{
    const char *columns = getenv("COLUMNS");
    struct winsize window;
    int width = columns ? (int)strtol(columns, NULL, 10) : 0;
    if (width <= 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0)
        width = window.ws_col;
    width = width > 0 ? width : WIDTH;
    return width < WIDTH_LEAST ? WIDTH_LEAST : width > WIDTH_MOST ? WIDTH_MOST : width;
}

/* Prints a text wrapped at `width` from `column` of this line; other lines begin at `indent`. */
static void wrap(FILE *f, const char *text, int column, int indent, int width)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            fprintf(f, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', f);
            column++;
        }
        fprintf(f, "%.*s", n, text);
        column += n;
        text += n + strspn(text + n, " ");
    }
    fputc('\n', f);
}

/* Prints a name at column 2 and its text at TEXT_COLUMN, below a name that is too long. */
static void entry(FILE *f, const char *name, const char *text, int width)
{
    int n = fprintf(f, "  %s", name);
    if (n >= TEXT_COLUMN) {
        fputc('\n', f);
        n = 0;
    }
    fprintf(f, "%*s", TEXT_COLUMN - n, "");
    wrap(f, text, TEXT_COLUMN, TEXT_COLUMN, width);
}

const char *help_default(const struct knob *k)
{
    int is_auto = k->preset && (strcmp(k->preset, "-1") == 0 || strcmp(k->preset, "0") == 0);
    return k->preset && !is_auto ? k->preset : NULL;
}

static void flag(const struct knob *k, int width)
{
    char name[80], text[400];
    const char *preset = help_default(k);
    if (k->letter)
        snprintf(name, sizeof name, "-%c, --%s %s", k->letter, k->name, k->value);
    else
        snprintf(name, sizeof name, "    --%s %s", k->name, k->value);
    snprintf(text, sizeof text, "%s%s%s%s", k->help, preset ? " [" : "", preset ? preset : "",
             preset ? "]" : "");
    entry(stdout, name, text, width);
}

/* 1 if `name` is in a list separated by blanks. */
static int is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = strstr(list, name); at; at = strstr(at + 1, name))
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
            return 1;
    return 0;
}

static void title(const char *text, int width)
{
    char line[120];
    snprintf(line, sizeof line, "%s:", text);
    putchar('\n');
    wrap(stdout, line, 0, 0, width);
}

static void flags(const struct config_command_row *command, int width)
{
    const char *heading = NULL;
    if (*command->first)
        title("Used most", width);
    for (const char *at = command->first; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        flag(knob_find(at, n, (int)command->id), width);
        at += n;
    }
    for (int i = 0; i < config_n_knobs; i++) {
        const struct knob *k = &config_knobs[i];
        if (k->kind == KNOB_HEADING)
            heading = k->help;
        if (!(k->commands & (int)command->id) || is_listed(command->first, k->name))
            continue;
        if (heading)
            title(heading, width);
        heading = NULL;
        flag(k, width);
    }
}

static void policies(int width)
{
    title("KV policies (--kv-policy), and what each evicts first", width);
    for (int i = 0; i < N_EVICT_POLICIES; i++)
        entry(stdout, evict_policy_name(i), evict_policy_goes(i), width);
}

/* Prints the subcommands of `bench`, which have its flags. */
static void subcommands(const char *name, int width)
{
    size_t n = strlen(name);
    for (int i = 0; i < config_n_commands; i++)
        if (strncmp(config_commands[i].name, name, n) == 0 && config_commands[i].name[n] == ' ')
            entry(stdout, config_commands[i].name, config_commands[i].help, width);
}

void help_command(const struct config_command_row *command)
{
    const int width = width_read();
    int n = printf("sluice %s ", command->name);
    wrap(stdout, command->usage, n, n, width);
    wrap(stdout, command->help, 0, 0, width);
    if (command->id == CMD_BENCH) {
        putchar('\n');
        subcommands(command->name, width);
        printf("\nsluice bench NAME --help, or sluice help bench NAME, lists the flags of one.\n");
        return;
    }
    flags(command, width);
    if (knob_find("kv-policy", 9, (int)command->id) || knob_find("policies", 8, (int)command->id))
        policies(width);
    putchar('\n');
    wrap(stdout, HELP_UNITS, 0, 0, width);
}

void help_usage(FILE *f)
{
    const int width = width_read();
    wrap(f, HELP_TITLE, 0, 0, width);
    fputc('\n', f);
    for (int i = 0; i < config_n_commands; i++) {
        const struct config_command_row *c = &config_commands[i];
        if (strchr(c->name, ' '))
            continue; // a bench subcommand, listed in the help of bench
        int n = fprintf(f, "  sluice %-9s ", c->name);
        wrap(f, c->usage, n, n, width);
        fprintf(f, "%*s", n, "");
        wrap(f, c->help, n, n, width);
    }
    fputc('\n', f);
    wrap(f, HELP_MORE, 0, 0, width);
    fputc('\n', f);
    wrap(f, HELP_FILES, 0, 0, width);
    fputc('\n', f);
    wrap(f, HELP_CODES, 0, 0, width);
}

enum err help_words(int argc, char **argv)
{
    const char *word = argc > 0 ? argv[0] : "";
    if (argc == 0 || strcmp(word, "help") == 0 || strcmp(word, "version") == 0) {
        help_usage(stdout);
        return OK;
    }
    if (strcmp(word, "--markdown") == 0 && argc == 1) {
        help_markdown();
        return OK;
    }
    if (strcmp(word, "--man") == 0 && argc == 1) {
        help_man();
        return OK;
    }
    if (strcmp(word, "--completion") == 0)
        return help_completion(argc > 1 ? argv[1] : "");
    const struct config_command_row *command = config_command_find(argc, argv);
    if (!command)
        return config_command_unknown(word);
    help_command(command);
    return OK;
}
