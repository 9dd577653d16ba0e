/* tests/ring_fault.h - makes rings lie; tests that link it and build/tests/sluice-faults only. */
#ifndef TESTS_RING_FAULT_H
#define TESTS_RING_FAULT_H

/* The faults of the next ring that opens, and of no ring after it, in the language of ring_fault.c.
 * NULL or "": none. */
extern const char *ring_faults;

#endif
