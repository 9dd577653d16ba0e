/* tests/simt/cudart/dlfcn.h - the libraries that kernels/cuda opens while it runs, for a machine
 * that has none of them: lt.c of this folder, whatever else is installed.
 *
 * Owns: names. */
#ifndef TESTS_SIMT_CUDART_DLFCN_H
#define TESTS_SIMT_CUDART_DLFCN_H

#ifdef __cplusplus
extern "C" {
#endif

#define RTLD_NOW   2
#define RTLD_LOCAL 0

#define dlopen  cudart_dlopen
#define dlsym   cudart_dlsym
#define dlclose cudart_dlclose

void *dlopen(const char *name, int flags);
void *dlsym(void *library, const char *name);
int dlclose(void *library);

#ifdef __cplusplus
}
#endif

#endif
