/* engine/cli/help.h - output made from the tables of flags and commands: `sluice help`, markdown,
 * the man page, shell completion. */
#ifndef ENGINE_CLI_HELP_H
#define ENGINE_CLI_HELP_H

#include <stdio.h>

#include "engine/api/config.h"

/* Prints the commands and the exit codes. */
void help_usage(FILE *f);
/* `sluice help WORDS...` on stdout: a command, --markdown, --man or --completion SHELL. ERR_USAGE.
 */
enum err help_words(int argc, char **argv);
/* `sluice COMMAND --help` on stdout, wrapped at the width of the terminal, COLUMNS, or 80. */
void help_command(const struct config_command_row *command);

#endif
