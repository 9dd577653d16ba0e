/* engine/cli/help.h - what is printed from the tables of flags and commands: `sluice help`, its
 * markdown, the man page, completion for shells. */
#ifndef ENGINE_CLI_HELP_H
#define ENGINE_CLI_HELP_H

#include <stdio.h>

#include "engine/api/config.h"

/* The commands and the exit codes. */
void help_usage(FILE *f);
/* `sluice help WORDS...` on stdout: a command, --markdown, --man or --completion SHELL. ERR_USAGE.
 */
enum err help_words(int argc, char **argv);
/* `sluice COMMAND --help` on stdout: as wide as the terminal, or COLUMNS, or 80. */
void help_command(const struct config_command_row *command);

#endif
