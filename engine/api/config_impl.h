/* engine/api/config_impl.h - the table of flags; private to engine/api/config*.c and help*.c, which
 * read, print and complete them. */
#ifndef ENGINE_API_CONFIG_IMPL_H
#define ENGINE_API_CONFIG_IMPL_H

#include "engine/api/config.h"

enum knob_kind {
    KNOB_HEADING, // not a flag: `help` is the heading of the following rows
    KNOB_STRING,
    KNOB_FILE,   // a path to read
    KNOB_OUTPUT, // a path to write
    KNOB_CHOICE, // one of the words of `value`
    KNOB_SIZE,
    KNOB_COUNT,
    KNOB_NUMBER,
    KNOB_DURATION,
    KNOB_SWITCH,
    KNOB_STOPS,
    KNOB_SIX
};

struct knob {
    const char *name; // long flag, without the dashes
    char letter;      // short flag, 0: none
    enum knob_kind kind;
    size_t offset;      // offset in struct config
    int commands;       // or-ed enum config_command
    const char *preset; // default as text, NULL: none
    const char *value;  // name of the value in --help
    const char *help;
};

extern const struct knob config_knobs[];
extern const int config_n_knobs;

/* The flag of this name if one of the commands accepts it; else NULL. */
const struct knob *knob_find(const char *name, size_t n, int commands);
/* Sets a flag to a value of the user: checks the range and records the flag for config_given(). */
enum err knob_give(struct config *c, const struct knob *k, const char *value);
/* Sets every flag to its default. */
enum err config_defaults(struct config *c);
enum err parse_switch(const char *flag, const char *text, int *on);

#endif
