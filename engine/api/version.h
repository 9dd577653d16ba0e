/* engine/api/version.h - the version that summaries and manifests carry. */
#ifndef ENGINE_API_VERSION_H
#define ENGINE_API_VERSION_H

#define SLUICE_VERSION "0.1.0"

/* The version on stdout; all: also the commit, the compiler, and what of the program works here. */
void version_print(int all);

#endif
