/* engine/cli/help_impl.h - shared by the output formats of help; private to engine/cli/help*.c. */
#ifndef ENGINE_CLI_HELP_IMPL_H
#define ENGINE_CLI_HELP_IMPL_H

#include "engine/api/config_impl.h"
#include "engine/cli/help.h"

#define HELP_TITLE                                                                                 \
    "sluice: batch generation with language models that are larger than the memory at hand"
#define HELP_MORE                                                                                  \
    "sluice help COMMAND lists the flags of a command; sluice version says what this program was " \
    "built with. No command uses the network."
#define HELP_UNITS                                                                                 \
    "Sizes: 24G and 24GiB are binary, 24g and 24GB decimal, 2.3G, 512M; counts: 32K is 32,768, "   \
    "10k is 10,000; durations: 90s, 15m, 3h50m."
#define HELP_CODES                                                                                 \
    "Exit codes: 0 all rows ok, 1 internal error, 2 usage, 3 finished with failed rows, 4 does "   \
    "not fit, 5 bad model or input, 6 device, 7 corrupt bytes, 8 job mismatch or lock, 9 disk "    \
    "error (resumable), 75 interrupted (resumable)."

#define HELP_FILES                                                                                 \
    "configs/NAME.cfg: shapes of models (-m) and machines (--machine). Where there is no such "    \
    "file "                                                                                        \
    "here, the one that came with sluice is meant: beside the program, or in ../share/sluice. "    \
    "$SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice: packs and what was "    \
    "measured of this machine."

/* The default that help shows in brackets; NULL: the flag's text explains the default. */
const char *help_default(const struct knob *k);
/* All commands and flags as tables of markdown, on stdout. */
void help_markdown(void);
/* The page sluice(1), as roff on stdout. */
void help_man(void);
/* A completion script on stdout: bash, zsh or fish. ERR_USAGE: another shell. */
enum err help_completion(const char *shell);

#endif
