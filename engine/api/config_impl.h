/* engine/api/config_impl.h - the table of flags, for the files that read, print and complete them:
 * engine/api/config*.c and help*.c. */
#ifndef ENGINE_API_CONFIG_IMPL_H
#define ENGINE_API_CONFIG_IMPL_H

#include "engine/api/config.h"

enum knob_kind {
    KNOB_HEADING, // not a flag: `help` is the heading of the rows that follow
    KNOB_STRING,
    KNOB_FILE,   // a path that is read
    KNOB_OUTPUT, // a path that is written
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
    size_t offset;      // in struct config
    int commands;       // or-ed enum config_command
    const char *preset; // default as text, NULL: none
    const char *value;  // how the value is named in --help
    const char *help;
};

extern const struct knob config_knobs[];
extern const int config_n_knobs;

/* The flag of this name, if one of the commands takes it; else NULL. */
const struct knob *knob_find(const char *name, size_t n, int commands);
/* Sets a flag as the user asks: the value is in range, and config_given() knows of it. */
enum err knob_give(struct config *c, const struct knob *k, const char *value);
/* Sets every flag to its default. */
enum err config_defaults(struct config *c);
enum err parse_switch(const char *flag, const char *text, int *on);

#endif
