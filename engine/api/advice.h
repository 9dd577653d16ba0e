/* engine/api/advice.h - warnings about flags before a run starts: flags without effect, memory
 * limits above what the machine has, and the gain that int8 would give. Each is one line on stderr,
 * printed once.
 *
 * Owns: these sentences. Refuses: changing any choice. */
#ifndef ENGINE_API_ADVICE_H
#define ENGINE_API_ADVICE_H

#include "engine/api/run.h"

/* Warns of KV flags under `full`, --mem-device without a device, and memory limits above those of
 * the machine. Reads r->session->info. */
enum err advise_flags(const struct run *r);
/* Writes the advice to use int8 into buf, from the measured FLOP/s of bf16 and int8 matmuls.
 * Returns its length; 0: the gain is too small. Public for tests. */
int advice_int8_text(double bf16, double int8, int int8_weights, char *buf, int cap);
/* Requires r->decision.plan and its predicted time. If a bf16 job is limited by compute and lasts
 * 30 s or longer, measures bf16 and int8 matmuls (0.2 s) and prints the speedup of int8 and its
 * cost in quality. Returns int8 speed / bf16 speed; 0: not measured. */
double advise_int8(const struct run *r);

#endif
