/* engine/api/installed.h - files installed with the program: configs/NAME.cfg. */
#ifndef ENGINE_API_INSTALLED_H
#define ENGINE_API_INSTALLED_H

/* Returns `path`, unless it begins with configs/ and the file is missing: then the file of that
 * name beside the program or in ../share/sluice, if it exists. The text lives as long as the
 * process. */
const char *installed_path(const char *path);

#endif
