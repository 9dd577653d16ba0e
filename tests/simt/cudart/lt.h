/* tests/simt/cudart/lt.h - a cuBLASLt without a GPU, as hostile as the real one may be.
 *
 * Owns: what may be planted in it. Refuses: speed. Its matmul is a command of a stream. An output
 * is one chain of fused multiply-adds over k, ascending, from 0; both ends of its workspace are
 * written. */
#ifndef TESTS_SIMT_CUDART_LT_H
#define TESTS_SIMT_CUDART_LT_H

#include "tests/simt/cudart/cublasLt.h"

struct cublaslt_plant {
    const char *folder; // a Python environment with the library in it, beside what the loader has
    int no_library;      // 1: not under its version's name; 2: under none
    const char *no_call; // that the library has not
    int version;         // 0: 130100
    int no_algorithm;    // whatever is asked for
    int splits;          // the first algorithm that is offered splits k, whatever was asked for
    int only_splits;     // there is no other
    int asked;           // another order unless the heuristic is asked about 256 rows
    int rows_max;        // more are not supported; 0: any number is
    int64_t workspace;   // bytes that the algorithm turns out to want
    int by_rows;         // another order for more rows than these; 0: for none
    int by_place;        // another order for this row of a call; 0: for none
    int by_pad;          // sums take in a number of a call's last row
};
/* Starts anew, with nothing held. NULL: nothing planted. */
void cublaslt_open(const struct cublaslt_plant *plant);
/* The n-th call from now on returns e. */
void cublaslt_fail_call(int64_t n, cublasStatus_t e);
int64_t cublaslt_calls(void);
/* Handles, descriptors and so on that there are, and open libraries. */
int cublaslt_held(void);

#endif
