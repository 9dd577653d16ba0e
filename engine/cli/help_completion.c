/* engine/cli/help_completion.c - completion for bash, zsh and fish, from the tables of flags and
 * commands.
 *
 * Owns: completion of commands, of a command's flags, and of a flag's words. Refuses: file names,
 * which each shell completes itself. */
#include "engine/cli/help_impl.h"

#include <ctype.h>
#include <string.h>

#include "policy/evict.h"

#define OTHERS "help version" // commands without a row in the table

/* The words that may follow a flag, separated by blanks: the lower-case words of a|b|c. */
static void values_of(const struct knob *k, char *list, size_t cap)
{
    *list = 0;
    for (int i = 0; strcmp(k->name, "kv-policy") == 0 && i < N_EVICT_POLICIES; i++) {
        size_t n = strlen(list);
        snprintf(list + n, cap - n, "%s%s", i ? " " : "", evict_policy_name(i));
    }
    for (const char *at = strchr(k->value, '|') ? k->value : ""; *at;) {
        size_t n = strcspn(at, "|["), room = strlen(list);
        if (islower((unsigned char)*at))
            snprintf(list + room, cap - room, "%s%.*s", room ? " " : "", (int)n, at);
        at += strcspn(at, "|");
        at += *at == '|';
    }
}

static int is_file(const struct knob *k)
{
    return k->kind == KNOB_FILE || k->kind == KNOB_OUTPUT;
}

static int is_folder(const struct knob *k)
{
    return strcmp(k->value, "DIR") == 0;
}

/* "throughput" of "bench throughput"; NULL for commands of one word. */
static const char *second_word(const struct config_command_row *c)
{
    const char *blank = strchr(c->name, ' ');
    return blank ? blank + 1 : NULL;
}

/* Prints the first words of all commands, or the second words of bench. */
static void print_words(int second)
{
    for (int i = 0, n = 0; i < config_n_commands; i++) {
        const char *word = second_word(&config_commands[i]);
        if (second ? word != NULL : word == NULL)
            printf("%s%s", n++ ? " " : "", second ? word : config_commands[i].name);
    }
}

/* ---- bash ---- */

static void bash(void)
{
    char list[400];
    printf(
        "# bash completion of sluice: sluice help --completion bash\n"
        "_sluice()\n{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
        "    local first=1 command=${COMP_WORDS[1]}\n"
        "    [[ $command == help && $COMP_CWORD -gt 1 ]] && first=2 && command=${COMP_WORDS[2]}\n"
        "    COMPREPLY=()\n"
        "    [[ $command == bench ]] && command=\"bench ${COMP_WORDS[first+1]}\"\n"
        "    case $prev in\n");
    for (int i = 0; i < config_n_knobs; i++) {
        const struct knob *k = &config_knobs[i];
        values_of(k, list, sizeof list);
        if (k->kind == KNOB_HEADING || k->kind == KNOB_SWITCH)
            continue;
        printf("    --%s", k->name);
        if (k->letter)
            printf("|-%c", k->letter);
        if (*list)
            printf(") words=\"%s\" ;;\n", list);
        else
            printf(") return 0 ;; # %s\n", is_file(k) || is_folder(k) ? "a file" : "any value");
    }
    printf("    esac\n"
           "    if [[ -n $words ]]; then\n        :\n"
           "    elif ((COMP_CWORD == first)); then\n        words=\"");
    print_words(0);
    printf(" " OTHERS "\"\n    elif ((COMP_CWORD == first + 1)) && [[ $command == \"bench \"* ]]; "
           "then\n        words=\"");
    print_words(1);
    printf("\"\n    elif [[ $cur == -* ]]; then\n        case $command in\n");
    for (int c = 0; c < config_n_commands; c++) {
        printf("        \"%s\") words=\"", config_commands[c].name);
        for (int i = 0, n = 0; i < config_n_knobs; i++)
            if (config_knobs[i].commands & (int)config_commands[c].id)
                printf("%s--%s", n++ ? " " : "", config_knobs[i].name);
        printf("\" ;;\n");
    }
    printf("        esac\n    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
           "}\n"
           "complete -o default -F _sluice sluice\n");
}

/* ---- zsh ---- */

/* Escapes a text inside '...' and, for _arguments, inside [...] or after a colon. */
static void zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else
            printf(strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
    }
}

static void zsh_flag(const struct knob *k)
{
    char list[400];
    values_of(k, list, sizeof list);
    printf("            ");
    if (k->letter)
        printf("'(-%c --%s)'{-%c,--%s}'", k->letter, k->name, k->letter, k->name);
    else
        printf("'%s--%s", k->kind == KNOB_STOPS ? "*" : "", k->name);
    putchar('[');
    zsh_text(k->help);
    putchar(']');
    if (k->kind != KNOB_SWITCH) {
        printf(":%s:", k->name);
        if (*list)
            printf("(%s)", list);
        else if (is_file(k) || is_folder(k))
            printf("_files%s", is_folder(k) ? " -/" : "");
    }
    printf("' \\\n");
}

static void zsh_list(const char *name, int second)
{
    printf("    %s=(\n", name);
    for (int i = 0; i < config_n_commands; i++) {
        const char *word = second_word(&config_commands[i]);
        if (second ? word == NULL : word != NULL)
            continue;
        printf("        '%s:", second ? word : config_commands[i].name);
        zsh_text(config_commands[i].help);
        printf("'\n");
    }
    printf("%s    )\n", second ? ""
                               : "        'help:list the flags of a command'\n"
                                 "        'version:what this program was built with'\n");
}

static void zsh(void)
{
    printf("#compdef sluice\n# zsh completion of sluice: sluice help --completion zsh\n"
           "_sluice() {\n    local -a commands benches\n    local command=$words[2] first=2\n");
    zsh_list("commands", 0);
    zsh_list("benches", 1);
    printf("    [[ $command == help ]] && ((CURRENT > 2)) && first=3 && command=$words[3]\n"
           "    if ((CURRENT == first)); then\n        _describe command commands\n"
           "        return\n    fi\n"
           "    if [[ $command == bench ]]; then\n"
           "        if ((CURRENT == first + 1)); then\n            _describe benchmark benches\n"
           "            return\n        fi\n        command=\"bench $words[first+1]\"\n    fi\n"
           "    case $command in\n");
    for (int c = 0; c < config_n_commands; c++) {
        printf("    '%s')\n        _arguments \\\n", config_commands[c].name);
        for (int i = 0; i < config_n_knobs; i++)
            if (config_knobs[i].commands & (int)config_commands[c].id)
                zsh_flag(&config_knobs[i]);
        printf("            '*:file:_files' ;;\n");
    }
    printf("    esac\n}\n_sluice \"$@\"\n");
}

/* ---- fish ---- */

static void fish_text(const char *text)
{
    putchar('\'');
    for (; *text; text++)
        printf(strchr("'\\", *text) ? "\\%c" : "%c", *text);
    printf("'\n");
}

static void fish_flag(const struct knob *k)
{
    char list[400];
    values_of(k, list, sizeof list);
    printf("complete -c sluice -n '__fish_seen_subcommand_from");
    for (int c = 0; c < config_n_commands; c++)
        if ((k->commands & (int)config_commands[c].id) && config_commands[c].id != CMD_BENCH)
            printf(" %s", second_word(&config_commands[c]) ? second_word(&config_commands[c])
                                                           : config_commands[c].name);
    printf("' -l %s", k->name);
    if (k->letter)
        printf(" -s %c", k->letter);
    if (k->kind != KNOB_SWITCH)
        printf(is_file(k) || is_folder(k) ? " -r -F" : " -x");
    if (*list)
        printf(" -a '%s'", list);
    printf(" -d ");
    fish_text(k->help);
}

static void fish(void)
{
    printf("# fish completion of sluice: sluice help --completion fish\n");
    for (int c = 0; c < config_n_commands; c++) {
        const char *word = second_word(&config_commands[c]);
        printf("complete -c sluice -f -n '");
        if (word) {
            printf("__fish_seen_subcommand_from bench; and not __fish_seen_subcommand_from ");
            print_words(1);
        } else
            printf("__fish_use_subcommand");
        printf("' -a %s -d ", word ? word : config_commands[c].name);
        fish_text(config_commands[c].help);
    }
    printf("complete -c sluice -f -n __fish_use_subcommand -a '" OTHERS "'\n"
           "complete -c sluice -f -n '__fish_seen_subcommand_from help' -a '");
    print_words(0);
    printf("'\n");
    for (int i = 0; i < config_n_knobs; i++)
        if (config_knobs[i].kind != KNOB_HEADING)
            fish_flag(&config_knobs[i]);
}

enum err help_completion(const char *shell)
{
    static void (*const scripts[])(void) = {bash, zsh, fish};
    int i;
    TRY(config_choose("completion", shell, "bash|zsh|fish", &i));
    scripts[i]();
    return OK;
}
