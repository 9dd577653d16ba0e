/* engine/api/version.h - the version that summaries and manifests carry. */
#ifndef ENGINE_API_VERSION_H
#define ENGINE_API_VERSION_H

#define SLUICE_VERSION "0.1.0"

/* Prints the version on stdout; all: also commit, compiler and the features that work here. */
void version_print(int all);

#endif
