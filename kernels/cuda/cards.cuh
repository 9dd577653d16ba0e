/* kernels/cuda/cards.cuh - which cards this machine has, before one of them is opened.
 *
 * Owns: their number and places, and what is said where there is none. */
#ifndef KERNELS_CUDA_CARDS_CUH
#define KERNELS_CUDA_CARDS_CUH

#include "kernels/base/base.h"

/* ERR_DEVICE: the caller has another version of kernels/device.h than this library. */
enum err cards_version(int version);
/* Counts the cards; at least one. ERR_DEVICE: no driver, an old one, or no card. */
enum err cards_count(int *n);

#endif
