/* engine/api/installed.h - files that come with the program: configs/NAME.cfg. */
#ifndef ENGINE_API_INSTALLED_H
#define ENGINE_API_INSTALLED_H

/* The path itself, unless it begins with configs/ and there is no such file here: then the file of
 * that name beside the program, or in ../share/sluice of an installed one, if there is one. The
 * text lives as long as the process. */
const char *installed_path(const char *path);

#endif
